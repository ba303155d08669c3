// SPDX-License-Identifier: Apache-2.0
//! Punctuality: programs that behave are not moved beyond the bound, the device adds no more than its own time, and
//! after the faults everything is on time again.

use crate::ledger::{Disturbance, Frame, Kind};
use crate::link::FRAME_MAX_WIRE_OCTETS;
use crate::plan::{Behaviour, MS, MeterPlan, Mode, Select, US};
use crate::world::World;

use super::reasons::due_at;
use super::window;

/// The longest hand-over that the worker's guard band allows for.
const GUARD_BAND_MAX: u64 = 64 * US;

/// How long after its TxTime a frame may be handed over on a machine that is not disturbed: a wake-up as late as
/// they come, one hand-over of every other tenant that is due at the same instant, and what is under way already.
#[must_use]
pub fn error_bound(world: &World) -> u64 {
    let machine = world.plan.machine;
    let one = machine.stage + machine.commit + 8 * machine.read;
    let paced = if world.plan.select == Select::Gates { world.link.span(FRAME_MAX_WIRE_OCTETS) } else { 0 };
    let metered = world.tenants.iter().filter_map(|tenant| tenant.plan.meter);
    // What a meter lets through at once, and what it lets through while that leaves.
    let burst =
        |meter: MeterPlan| u64::from(meter.burst) * 8_000_000_000 / (world.plan.link.speed - meter.rate);
    let bursts: u64 = metered.map(burst).sum();
    bursts + machine.lateness_max + (world.tenants.len() as u64 + 1) * (one + paced) + 20 * US
}

/// How long after its hand-over a frame's first bit may leave: the device's own time and, before it in the FIFO, one
/// frame of each tenant and what the kernel may have put in.
#[must_use]
pub fn wire_bound(world: &World) -> u64 {
    let link = world.plan.link;
    let kernel = if link.mode == Mode::Shared { link.kernel_frames } else { 0 };
    let frames = world.tenants.len() as u64 + kernel;
    link.hand_over + link.hand_over_spread + frames * world.link.span(FRAME_MAX_WIRE_OCTETS)
}

fn undisturbed(world: &World, frame: &Frame, handed: u64) -> bool {
    let due = due_at(frame);
    let pushed = frame.pushed.monotonic.as_nanos();
    let from = due.saturating_sub(MS).max(pushed);
    let stepped = |what| frame.is_tai() && matches!(what, Disturbance::Step(_));
    let busy = |what| match what {
        Disturbance::Stall => true,
        Disturbance::Flood(tenant) => world.tenants[usize::from(tenant)].plan.class >= frame.class,
        _ => false,
    };
    !world.ledger.overlaps(from, handed, busy) && !world.ledger.overlaps(pushed, handed, stepped)
}

/// How long a frame may wait for a window in which there is surely room: for the greatest guard band and one frame of
/// every tenant. `None` while it is not certain which list is in force.
fn waits_for_gate(world: &World, frame: &Frame, handed: u64) -> Option<u64> {
    if world.ledger.schedules.is_empty() {
        return Some(0);
    }
    let due = due_at(frame);
    let due_tai = world.clocks.tai_of(due);
    let need = GUARD_BAND_MAX + (world.tenants.len() as u64 + 1) * world.link.span(FRAME_MAX_WIRE_OCTETS);
    let (now, then) = (window::in_force(world, due, due_tai), world.clocks.tai_of(handed));
    match (now.as_slice(), window::in_force(world, handed, then).as_slice()) {
        ([(Some(list), u64::MAX)], [(Some(later), u64::MAX)]) if std::ptr::eq(list.sent, later.sent) => {
            let first = list.fits_at(frame.class, due_tai, need)?;
            let room = list.open_for(frame.class, first)?;
            // A late wake-up may use up what is left of this window: then it is the next one.
            let spoilt = room < need + error_bound(world);
            let last = if spoilt { list.fits_at(frame.class, first + room, need)? } else { first };
            Some(last - due_tai)
        }
        _ => None,
    }
}

pub(super) fn check(world: &mut World) {
    let (error_max, wire_max) = (error_bound(world), wire_bound(world));
    let mut found = Vec::new();
    for (id, frame) in world.ledger.frames.iter().enumerate() {
        let tenant = &world.tenants[usize::from(frame.tenant)];
        let behaves = tenant.plan.behaviour == Behaviour::Good && frame.kind == Kind::Good;
        if !behaves && !frame.fresh {
            continue;
        }
        let rule = if frame.fresh { "progress" } else { "isolation" };
        let who = format!("frame {id} of tenant {}", frame.tenant);
        let (Some(arrival), Some(error)) = (frame.arrival, frame.error()) else {
            if frame.fresh {
                found.push((rule, frame.pushed.monotonic.as_nanos(), format!("{who} did not arrive")));
            }
            continue;
        };
        let handed = arrival.handed.monotonic.as_nanos();
        if !undisturbed(world, frame, handed) {
            continue;
        }
        let Some(gate) = waits_for_gate(world, frame, handed) else { continue };
        let error = error - gate as i64;
        if error > error_max as i64 {
            found.push((
                rule,
                handed,
                format!("{who} left {error} ns after its TxTime, allowed are {error_max}"),
            ));
        }
        let waited = arrival.wire_from - handed;
        if frame.fresh && waited > wire_max {
            let detail = format!("{who}: first bit {waited} ns after the hand-over, allowed are {wire_max}");
            found.push(("wire", handed, detail));
        }
    }
    for (rule, at, detail) in found {
        world.ledger.violated(rule, at, detail);
    }
}
