// SPDX-License-Identifier: Apache-2.0
//! Resolved destinations kept ready, with the stream that their datagrams belong to: a direct-mapped cache that forgets
//! with the tables' generation, and an attachment's entries with its policy.

use std::net::IpAddr;

use ktsn_resolve::{AttachmentIndex, Flow, Refusal, Replica, Resolved, Tables, resolve_replica};
use ktsn_sched::policing::{StreamHandle, StreamIdentification};

use super::policing::stream_of;

use crate::limits::CACHE_ENTRIES;

#[derive(Debug, Clone)]
struct Entry {
    generation: u64,
    flow: Flow,
    replica: Replica,
    resolved: Resolved,
    /// Its stream, if there is one; `None` until it is asked for.
    stream: Option<Option<StreamHandle>>,
}

/// The cache.
#[derive(Debug)]
pub(super) struct Routes {
    entries: Box<[Option<Entry>]>,
}

/// A cheap hash: the cache is private, direct-mapped and bounded, so a client that provokes collisions only slows
/// its own frames down to an uncached resolve.
fn slot_of(flow: &Flow, replica: Replica) -> usize {
    let bits = |address| match address {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => (a.to_bits() >> 64) as u64 ^ a.to_bits() as u64,
    };
    let copy = match replica {
        Replica::First => 0,
        Replica::Vtep(vtep) => bits(vtep).rotate_left(17),
        Replica::Interface => 1 << 16,
    };
    let address = bits(flow.destination) ^ copy;
    let ports = u64::from(flow.destination_port) << 32 | u64::from(flow.source_port) << 48;
    let mixed = (address ^ ports ^ u64::from(flow.attachment.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as usize & (CACHE_ENTRIES - 1)
}

impl Routes {
    pub(super) fn new() -> Self {
        Self { entries: (0..CACHE_ENTRIES).map(|_| None).collect() }
    }

    /// Where `flow` leaves under `tables`.
    pub(super) fn find(&mut self, tables: &Tables, flow: &Flow) -> Result<&Resolved, Refusal> {
        self.find_replica(tables, flow, Replica::First)
    }

    /// The same for one of the frames that it leaves as.
    pub(super) fn find_replica(
        &mut self,
        tables: &Tables,
        flow: &Flow,
        replica: Replica,
    ) -> Result<&Resolved, Refusal> {
        let entry = &mut self.entries[slot_of(flow, replica)];
        let generation = tables.generation();
        let fits = entry
            .as_ref()
            .is_some_and(|e| e.generation == generation && e.replica == replica && e.flow == *flow);
        if !fits {
            let resolved = resolve_replica(tables, flow, replica)?;
            *entry = Some(Entry { generation, flow: *flow, replica, resolved, stream: None });
        }
        // Filled just now when it was not.
        entry.as_ref().map(|e| &e.resolved).ok_or(Refusal::Drop(ktsn_model::DropReason::Bug, None))
    }
    /// The stream of `flow` by its attachment's table. That is visited once for each entry of the cache.
    pub(super) fn stream(
        &mut self,
        tables: &Tables,
        flow: &Flow,
        streams: &StreamIdentification,
    ) -> Option<StreamHandle> {
        self.find(tables, flow).ok()?;
        let Entry { resolved, stream, .. } = self.entries[slot_of(flow, Replica::First)].as_mut()?;
        *stream.get_or_insert_with(|| stream_of(streams, flow, resolved))
    }

    /// Forgets the flows of an attachment.
    pub(super) fn forget(&mut self, attachment: AttachmentIndex) {
        for entry in &mut self.entries {
            if entry.as_ref().is_some_and(|entry| entry.flow.attachment == attachment) {
                *entry = None;
            }
        }
    }
}
