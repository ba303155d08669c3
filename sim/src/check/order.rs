// SPDX-License-Identifier: Apache-2.0
//! Frames of one process, class and clock that are on time leave in the order of their TxTimes; of equal ones the
//! one that was published first leaves first, unless a clock was set or gates closed (`docs/design/gates.md`).

use std::collections::BTreeMap;

use crate::ledger::{Frame, Kind};
use crate::world::World;

/// No more than this many frames of one program wait at a time, so no more need to be compared.
const NEIGHBOURS: usize = 300;

/// A frame that arrived: its publication, its TxTime, its place on the wire, its id.
type Place = (u64, u64, u64, u64);

pub(super) fn check(world: &mut World) {
    let mut streams: BTreeMap<(u16, u64, bool), Vec<Place>> = BTreeMap::new();
    for (id, frame) in world.ledger.frames.iter().enumerate() {
        let Some(arrival) = frame.arrival.filter(|_| comparable(world, frame)) else { continue };
        let (due, _) = frame.due(frame.pushed);
        let one = (frame.turn, due, arrival.position, id as u64);
        streams.entry((frame.tenant, frame.key, frame.is_tai())).or_default().push(one);
    }
    let at = world.clocks.at();
    let steady = world.ledger.steps == 0 && world.ledger.schedules.is_empty();
    for ((tenant, ..), mut frames) in streams {
        frames.sort_unstable();
        for (index, (_, due, position, id)) in frames.iter().enumerate() {
            let before = &frames[index.saturating_sub(NEIGHBOURS)..index];
            // Equal ones may change places when a clock or a gate steps under a frame that lies ready.
            let overtaken = before.iter().find(|(_, earlier, place, _)| {
                (earlier < due || (earlier == due && steady)) && place > position
            });
            if let Some((_, earlier, _, other)) = overtaken {
                let detail = format!(
                    "tenant {tenant}: frame {id} (TxTime {due}) left before frame {other} (TxTime {earlier})"
                );
                world.ledger.violated("order", at, detail);
            }
        }
    }
}

fn comparable(world: &World, frame: &Frame) -> bool {
    frame.kind == Kind::Good && !world.tenants[usize::from(frame.tenant)].corrupted
}
