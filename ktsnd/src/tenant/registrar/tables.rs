// SPDX-License-Identifier: Apache-2.0
//! The registrar follows the tables: what clients are told changes with them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ktsn_resolve::AttachmentIndex;

use super::{Connection, Held, Service};
use crate::tenant::answer::{link_status_of, offer, status_of};
use crate::worker::{Command, Offer, StreamInfo};

impl<P: Send + 'static> Service<P> {
    /// Clients of an attachment that is gone are over.
    fn end_unserved(&mut self) {
        let (served, namespaces): (BTreeSet<AttachmentIndex>, BTreeSet<u64>) =
            self.directory.lock().served.iter().map(|s| (s.index, s.netns_cookie)).unzip();
        self.granted.retain(|cookie, _| namespaces.contains(cookie));
        let unserved = |c: &Connection<P>| c.client.as_ref().is_some_and(|c| !served.contains(&c.attachment));
        let unserved: Vec<u64> =
            self.connections.iter().filter(|(_, c)| unserved(c)).map(|(n, _)| *n).collect();
        for number in unserved {
            self.end(number);
        }
    }

    /// For each attachment the interfaces of its namespace's others, where there are any; asked when that changed.
    fn others_if(&self, changed: bool) -> Option<BTreeMap<AttachmentIndex, Vec<u32>>> {
        let known = changed.then(|| self.directory.lock())?;
        let mut namespaces: BTreeMap<u64, Vec<(AttachmentIndex, u32)>> = BTreeMap::new();
        for served in &known.served {
            namespaces.entry(served.netns_cookie).or_default().push((served.index, served.interface_index));
        }
        let shared = namespaces.values().filter(|all| all.len() > 1);
        let others = |of: AttachmentIndex, all: &[(AttachmentIndex, u32)]| {
            all.iter().filter(|(index, _)| *index != of).map(|(_, interface)| *interface).collect()
        };
        Some(shared.flat_map(|all| all.iter().map(|(of, _)| (*of, others(*of, all)))).collect())
    }

    /// Tells every client what changed: its destination table, the limits of its connected streams, the other attachments
    /// of its namespace. A client whose attachment's tables are the same ones as before costs next to nothing.
    pub(super) fn follow_tables(&mut self) {
        self.end_unserved();
        let (tables, version) = {
            let known = self.directory.lock();
            (known.tables.clone(), known.version)
        };
        if (tables.generation(), version) == (self.generation, self.version) {
            return;
        }
        let others = self.others_if(version != self.version);
        (self.generation, self.version) = (tables.generation(), version);
        for connection in self.connections.values_mut() {
            let Some(client) = connection.client.as_mut() else { continue };
            let own = tables.attachments().get(usize::from(client.attachment.0)).and_then(Option::as_ref);
            let is_same = match (&client.tables, own) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            let others =
                others.as_ref().map(|all| all.get(&client.attachment).map_or(&[][..], Vec::as_slice));
            if is_same && others.is_none_or(|others| others == client.offer.others) {
                continue;
            }
            client.tables = own.cloned();
            let others = others.map_or_else(|| client.offer.others.clone(), <[u32]>::to_vec);
            let offer = Offer { others, ..offer(&tables, client.attachment) };
            if offer != client.offer {
                client.offer.clone_from(&offer);
                if matches!(client.held, Held::Given) {
                    let _ = client.worker.send(Command::Offer(client.key, Box::new(offer)));
                } else {
                    client.is_offer_changed = true;
                }
            }
            let mut changed = Vec::new();
            if let Some(view) = self.directory.lock().clients.get_mut(&client.key) {
                for (index, info) in view.streams.iter() {
                    let (token, flags) = (info.token, info.status.flags);
                    let status = match info.link {
                        Some(_) => link_status_of(token, flags, &tables, client.attachment),
                        None => status_of(token, flags, &client.offer.table, info.peer.map(|p| p.ip())),
                    };
                    if status != info.status {
                        changed.push((index, StreamInfo { status, ..info.clone() }));
                    }
                }
                changed.iter().for_each(|(index, info)| view.streams.insert(*index, info.clone()));
            }
            for (index, info) in changed {
                let _ = client.worker.send(Command::Register(client.key, index, Box::new(info)));
            }
        }
    }
}
