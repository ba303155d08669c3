// SPDX-License-Identifier: Apache-2.0
//! The node as one scrape sees it: names and shared counters, no copy of a distribution.

use std::collections::BTreeMap;

use ktsn_resolve::AttachmentIndex;

use super::Node;
use super::switch::Backend;
use crate::metrics::{AttachmentSnapshot, PortSnapshot, Snapshot};

impl Node {
    pub(super) fn snapshot(&self) -> Snapshot {
        self.directory.receivers().look();
        let clients = self.directory.clients_by_attachment();
        let uplinks = self.ports.values().filter(|port| port.netns.is_empty());
        Snapshot {
            health: self.health(),
            attachments: self.attachment_snapshots(&clients),
            ports: uplinks
                .map(|port| PortSnapshot {
                    device: port.device.clone(),
                    up: port.backend.as_ref().map_or(port.up, Backend::is_up),
                    link_speed: port.link_speed,
                    stats: port.stats.clone(),
                })
                .collect(),
            workers: self.workers.iter().map(|(uplink, w)| (uplink.clone(), w.stats.clone())).collect(),
        }
    }

    fn attachment_snapshots(&self, clients: &BTreeMap<AttachmentIndex, usize>) -> Vec<AttachmentSnapshot> {
        let indexed = (0..).map(AttachmentIndex).zip(&self.attached);
        indexed
            .filter_map(|(index, attached)| {
                let attached = attached.as_ref()?;
                Some(AttachmentSnapshot {
                    name: attached.attachment.name.clone(),
                    clients: clients.get(&index).copied().unwrap_or_default(),
                    stats: attached.stats.clone(),
                    ingress: self.ingress_statistics(attached),
                    receive: self.receive_statistics(attached),
                    deferral: self.deferral(attached),
                })
            })
            .collect()
    }
}
