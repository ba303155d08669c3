// SPDX-License-Identifier: Apache-2.0
//! Neighbours that the kernel is asked to resolve, and to keep fresh.
//!
//! In: next hops that frames need. Out: requests to the kernel, in the pod's namespace or in the node's.

use std::net::IpAddr;

use ktsn_resolve::{AttachmentIndex, NextHop, Side};

use super::attachment;
use super::state::TablesState;
use crate::tables::news::Event;

/// Neighbours of one attachment that are kept fresh because a frame once needed them; the oldest goes first.
const WANTED_MAX: usize = 64;

impl TablesState {
    /// See [`crate::tables::Manager::ensure_neighbour`].
    pub(crate) fn ensure_neighbour(&mut self, index: AttachmentIndex, next_hop: NextHop) {
        let Some(tracked) = self.tracked.get_mut(&index.0) else { return };
        let wanted = (next_hop.side, next_hop.address);
        if !tracked.wanted.contains(&wanted) {
            if tracked.wanted.len() >= WANTED_MAX {
                tracked.wanted.pop_front();
            }
            tracked.wanted.push_back(wanted);
        }
        self.ask(index, &[wanted]);
    }

    /// Has the kernel probe what it does not know, or what was not confirmed for a while.
    pub(crate) fn probe(&mut self) {
        if self.overlays.is_due() {
            self.learn();
            self.rebuild(|tracked| tracked.attachment.overlay.routed().is_some());
        }
        for (device, gateway) in self.overlays.gateways(&self.host.snapshot) {
            if let Err(error) = self.host.ask(device, gateway) {
                (self.report)(Event::Warning(format!("neighbour {gateway}: {error}")));
            }
        }
        for tracked in self.tracked.values_mut() {
            tracked.tell(&*self.report);
        }
        let all: Vec<AttachmentIndex> = self.tracked.keys().copied().map(AttachmentIndex).collect();
        for index in all {
            self.probe_for(index);
        }
    }

    pub(super) fn probe_for(&mut self, index: AttachmentIndex) {
        let Some(tracked) = self.tracked.get(&index.0) else { return };
        let mut hops = tracked.tables.as_deref().map(attachment::next_hops).unwrap_or_default();
        hops.extend(&tracked.wanted);
        hops.sort_unstable();
        hops.dedup();
        self.ask(index, &hops);
    }

    /// One request for each of these that is not fresh.
    fn ask(&mut self, index: AttachmentIndex, hops: &[(Side, IpAddr)]) {
        let Some(tracked) = self.tracked.get(&index.0) else { return };
        let Some(pod) = self.pods.get_mut(&tracked.attachment.netns) else { return };
        let uplink = self.host.snapshot.device(&tracked.uplink).map(|(index, _)| index);
        for &(side, address) in hops {
            let (space, device) = match side {
                Side::Interface => (&mut pod.space, Some(tracked.interface_index)),
                Side::Uplink => (&mut self.host, uplink),
            };
            let Some(device) = device.filter(|device| !space.snapshot.is_fresh(*device, address)) else {
                continue;
            };
            if let Err(error) = space.ask(device, address) {
                (self.report)(Event::Warning(format!("neighbour {address}: {error}")));
            }
        }
    }
}
