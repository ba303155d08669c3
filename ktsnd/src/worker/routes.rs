// SPDX-License-Identifier: Apache-2.0
//! Resolved destinations kept ready: a direct-mapped cache that forgets with the tables' generation.

use std::net::IpAddr;

use ktsn_resolve::{Flow, Refusal, Resolved, Tables, resolve};

use crate::limits::CACHE_ENTRIES;

#[derive(Debug, Clone)]
struct Entry {
    generation: u64,
    flow: Flow,
    resolved: Resolved,
}

/// The cache.
#[derive(Debug)]
pub(super) struct Routes {
    entries: Box<[Option<Entry>]>,
}

/// A cheap hash: the cache is private, direct-mapped and bounded, so a client that provokes collisions only slows
/// its own frames down to an uncached resolve.
fn slot_of(flow: &Flow) -> usize {
    let address = match flow.destination {
        IpAddr::V4(a) => u64::from(a.to_bits()),
        IpAddr::V6(a) => (a.to_bits() >> 64) as u64 ^ a.to_bits() as u64,
    };
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
        let index = slot_of(flow);
        let entry = &mut self.entries[index];
        let fits = entry.as_ref().is_some_and(|e| e.generation == tables.generation() && e.flow == *flow);
        if !fits {
            let resolved = resolve(tables, flow)?;
            *entry = Some(Entry { generation: tables.generation(), flow: *flow, resolved });
        }
        // Filled just now when it was not.
        entry.as_ref().map(|e| &e.resolved).ok_or(Refusal::Drop(ktsn_model::DropReason::Bug, None))
    }
}
