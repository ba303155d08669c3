// SPDX-License-Identifier: Apache-2.0
//! The registrar follows the tables: it notifies clients when they change.
//!  
//! In: new tables, or other attachments. Out: client tables and streams for the workers, a bounded number in each turn ([`Following`]).
//! A client with unchanged tables costs next to nothing.
//!
//! [`Following`]: crate::clients::following::Following

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ktsn_resolve::{AttachmentIndex, AttachmentTables, Tables};

use super::{Connection, Registrar, SealState};
use crate::clients::answer::{client_tables, code_for, link_status_of, status_of};
use crate::clients::streams::Streams;
use crate::limits::STREAMS_MAX;
use crate::worker::{ClientTables, Command, StreamInfo};

impl<P: Send + 'static> Registrar<P> {
    /// Clients of an attachment that is gone are over.
    fn end_unserved(&mut self) {
        let (served, namespaces): (BTreeSet<AttachmentIndex>, BTreeSet<u64>) =
            self.directory.lock().served.iter().map(|s| (s.index, s.netns_cookie)).unzip();
        self.granted.retain(|cookie, _| namespaces.contains(cookie));
        self.directory
            .later()
            .keep_served(|cookie, index| namespaces.contains(&cookie) && served.contains(&index));
        let unserved = |c: &Connection<P>| c.client.as_ref().is_some_and(|c| !served.contains(&c.attachment));
        let unserved: Vec<u64> =
            self.connections.iter().filter(|(_, c)| unserved(c)).map(|(n, _)| *n).collect();
        for number in unserved {
            self.end(number);
        }
    }

    /// For each attachment the other interfaces of its namespace, if any; computed when that changed.
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

    /// Finds the clients for which something changed: the tables of their attachment, or the other attachments of their namespace.
    /// [`Self::follow`] notifies them.
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
        for (number, connection) in &mut self.connections {
            let Some(client) = connection.client.as_mut().filter(|client| !client.is_followed) else {
                continue;
            };
            let others =
                others.as_ref().map(|all| all.get(&client.attachment).map_or(&[][..], Vec::as_slice));
            if is_same(client.tables.as_ref(), tables_of(&tables, client.attachment))
                && others.is_none_or(|others| others == client.client_tables.others)
            {
                continue;
            }
            client.is_followed = true;
            self.following.add(client.netns_cookie, *number);
        }
    }

    /// Notifies clients of what changed: their destination tables, the limits of their connected streams, the other attachments of their
    /// namespace. A bounded part in each turn. A namespace pays with its turns.
    pub(super) fn follow(&mut self) {
        while !self.following.is_empty() {
            let now = (self.clock.now)();
            let next = self.following.next(now, |netns_cookie| self.turns.spent(netns_cookie));
            let Some((netns_cookie, number, most)) = next else { return };
            let before = (self.clock.cpu_time)();
            let (looks, is_done) = self.follow_client(number, most);
            let took = (self.clock.cpu_time)().saturating_sub(before);
            self.turns.spend(netns_cookie, took, now);
            self.following.spend(netns_cookie, looks);
            if !is_done {
                self.following.add(netns_cookie, number);
            }
        }
    }

    /// Notifies one client of what changed, with at most `most` looks. Returns how many it took, and whether all is done. Tables that
    /// change before the end are followed from there on.
    fn follow_client(&mut self, number: u64, most: usize) -> (usize, bool) {
        let Some(client) = self.connections.get_mut(&number).and_then(|c| c.client.as_mut()) else {
            return (1, true);
        };
        let mut known = self.directory.lock();
        let tables = known.tables.clone();
        let own = tables_of(&tables, client.attachment);
        let has_same_tables = is_same(client.tables.as_ref(), own);
        if !has_same_tables || client.version != known.version {
            let others = known.others(client.netns_cookie, client.attachment);
            client.version = known.version;
            drop(known);
            if !has_same_tables {
                client.tables = own.cloned();
                client.round.begin(STREAMS_MAX);
            }
            let client_tables = ClientTables { others, ..client_tables(&tables, client.attachment) };
            if client_tables != client.client_tables {
                client.client_tables.clone_from(&client_tables);
                if matches!(client.seal, SealState::WithWorker) {
                    let _ = client.worker.send(Command::SetClientTables(client.key, Box::new(client_tables)));
                } else {
                    client.are_client_tables_changed = true;
                }
            }
            client.is_followed = !client.round.is_over();
            return (1, client.round.is_over());
        }
        let (mut looks, mut changed) = (0, Vec::new());
        let mut none = Streams::default();
        let streams = known.clients.get_mut(&client.key).map_or(&mut none, |view| &mut view.streams);
        while looks < most {
            let first_from = |from| streams.first_from(from).map(|(index, _)| index);
            let Some(index) = client.round.next(STREAMS_MAX, first_from) else { break };
            looks += 1;
            let Some(info) = streams.get(index) else { continue };
            let (token, flags) = (info.token, info.status.flags);
            let status = match info.link {
                Some(_) => link_status_of(token, flags, &tables, client.attachment),
                None => {
                    let code = code_for(tables.attachment(client.attachment), info.local.ip());
                    let peer = info.peer.map(|peer| peer.ip());
                    status_of((token, flags, code), &client.client_tables.table, peer)
                }
            };
            if status != info.status {
                let info = StreamInfo { status, ..info.clone() };
                streams.insert(index, info.clone());
                changed.push((index, info));
            }
        }
        // The worker may have to return something first, and that needs the directory.
        drop(known);
        for (index, info) in changed {
            let _ = client.worker.send(Command::Register(client.key, index, Box::new(info)));
        }
        client.is_followed = !client.round.is_over();
        (looks.max(1), client.round.is_over())
    }
}

fn tables_of(tables: &Tables, attachment: AttachmentIndex) -> Option<&Arc<AttachmentTables>> {
    tables.attachments().get(usize::from(attachment.0)).and_then(Option::as_ref)
}

/// Whether these are the same tables as before, or none as before.
fn is_same(before: Option<&Arc<AttachmentTables>>, now: Option<&Arc<AttachmentTables>>) -> bool {
    before.map(Arc::as_ptr) == now.map(Arc::as_ptr)
}
