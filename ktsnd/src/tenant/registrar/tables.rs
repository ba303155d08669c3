// SPDX-License-Identifier: Apache-2.0
//! The registrar follows the tables: what clients are told changes with them.

use ktsn_resolve::AttachmentIndex;

use super::{Connection, Service};
use crate::tenant::answer::{link_status_of, offer, status_of};
use crate::worker::Command;

impl<P: Send + 'static> Service<P> {
    /// Clients of an attachment that is gone are over.
    fn end_unserved(&mut self) {
        let served: Vec<AttachmentIndex> = self.directory.lock().served.iter().map(|s| s.index).collect();
        self.granted.retain(|index, _| served.contains(index));
        let unserved = |c: &Connection<P>| c.client.as_ref().is_some_and(|c| !served.contains(&c.attachment));
        let unserved: Vec<u64> =
            self.connections.iter().filter(|(_, c)| unserved(c)).map(|(n, _)| *n).collect();
        for number in unserved {
            self.end(number);
        }
    }

    /// Tells every client what changed: its destination table, and the limits of its connected streams.
    pub(super) fn follow_tables(&mut self) {
        self.end_unserved();
        let tables = self.directory.lock().tables.clone();
        if tables.generation() == self.generation {
            return;
        }
        self.generation = tables.generation();
        for connection in self.connections.values_mut() {
            let Some(client) = connection.client.as_mut() else { continue };
            let offer = offer(&tables, client.attachment);
            if offer != client.offer {
                client.offer.clone_from(&offer);
                let _ = client.worker.send(Command::Offer(client.key, Box::new(offer)));
            }
            for (index, info) in &mut client.streams {
                let (token, flags) = (info.token, info.status.flags);
                let status = match info.link {
                    Some(_) => link_status_of(token, flags, &tables, client.attachment),
                    None => status_of(token, flags, &client.offer.table, info.peer.map(|p| p.ip())),
                };
                if status != info.status {
                    info.status = status;
                    let _ = client.worker.send(Command::Register(client.key, *index, Box::new(info.clone())));
                }
            }
        }
    }
}
