// SPDX-License-Identifier: Apache-2.0
//! Conservation, exact and at any moment between two passes: published = on the wire + dropped + still held.
//!
//! What is still held is read from the regions' free slots, as the programs see them, not from the worker.

use std::sync::atomic::Ordering::Relaxed;

use crate::world::World;

/// Frames of a tenant that its counters call dropped.
pub(super) fn dropped(stats: &ktsnd::stats::AttachmentStats) -> u64 {
    stats.dropped.iter().map(|counter| counter.load(Relaxed)).sum()
}

/// Looks at every tenant that never wrote what is not its own.
pub fn conserved(world: &mut World) {
    let at = world.clocks.at();
    let mut published = vec![0u64; world.tenants.len()];
    for frame in &world.ledger.frames {
        published[usize::from(frame.tenant)] += u64::from(frame.published_at.is_some());
    }
    for (tenant, published) in published.into_iter().enumerate() {
        let state = &world.tenants[tenant];
        if state.corrupted {
            continue;
        }
        let (wire, dropped) = (state.seen.frames, dropped(&state.stats));
        let held: usize = state.processes.iter().map(crate::tenant::Process::outstanding).sum();
        if wire + dropped + held as u64 != published {
            let detail = format!(
                "tenant {tenant}: {published} published, but {wire} on the wire + {dropped} dropped + {held} held"
            );
            world.ledger.violated("conservation", at, detail);
        }
    }
}
