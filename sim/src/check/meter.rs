// SPDX-License-Identifier: Apache-2.0
//! Meters: of a tenant that is metered no span carries more than its burst and its rate allow (802.1Q 8.6.5.5).
//!
//! When the worker judged a frame is not known, only that it was after its publication and before its hand-over. So of any
//! two frames the longest possible span between them is assumed.

use crate::world::World;

/// Tokens for an octet: a rate of n bit/s gives n of them in a nanosecond.
const OCTET: i128 = 8_000_000_000;
/// Octets that a frame has on the link beyond those that are seen: check sequence, preamble and gap.
const BESIDES: i128 = 24;

pub(super) fn check(world: &mut World) {
    let at = world.clocks.at();
    let mut found = Vec::new();
    for (index, tenant) in world.tenants.iter().enumerate() {
        let Some(meter) = tenant.plan.meter else { continue };
        let rate = i128::from(meter.rate);
        let mine = world.ledger.frames.iter().filter(|frame| usize::from(frame.tenant) == index);
        let mut passed: Vec<_> =
            mine.filter_map(|frame| Some((frame.turn, frame.published_at?, frame.arrival?))).collect();
        passed.sort_unstable_by_key(|(turn, ..)| *turn);
        // The greatest of "tokens that were there at a frame's publication, less what went before it".
        let (mut before, mut most) = (0, i128::MIN);
        for (_, published, arrival) in passed {
            most = most.max(rate * i128::from(published) - before);
            before += (i128::from(arrival.octets) + BESIDES) * OCTET;
            let excess = before - rate * i128::from(arrival.handed.monotonic.as_nanos()) + most;
            if excess > i128::from(meter.burst) * OCTET {
                let octets = excess / OCTET - i128::from(meter.burst);
                found.push(format!("tenant {index} sent {octets} octets more than its meter allows"));
                break;
            }
        }
    }
    for detail in found {
        world.ledger.violated("meter", at, detail);
    }
}
