// SPDX-License-Identifier: Apache-2.0
//! Windows: every frame is handed over while its class's gate is open (8.6.8.4) and, on a dedicated link, ends on the
//! wire before the gate closes; on a shared one it ends no later than what the kernel may have put in front of it.
//!
//! Which list is in force is not asked of the worker. A list that was sent with a base time ahead begins there; one
//! with a past base begins with some cycle soon after it was sent, and until that is over either list will do. So will,
//! where it is not certain which cycle is the last before a change, that cycle with its extension or without.

use crate::gates::{Running, Sent};
use crate::ledger::{Arrival, Disturbance, Frame};
use crate::link::FRAME_MAX_WIRE_OCTETS;
use crate::plan::{MS, Mode};
use crate::world::World;

/// A command is applied by then on a machine that is not disturbed.
const APPLIED_WITHIN: u64 = 2 * MS;

/// How long a command that was sent at `at` may take: stalls are added.
fn applied_within(world: &World, at: u64) -> u64 {
    let stalls = world.ledger.disturbed.iter().filter(|one| one.what == Disturbance::Stall);
    let near = stalls.filter(|one| one.until >= at && one.from <= at + 30 * MS);
    APPLIED_WITHIN + near.map(|one| one.until - one.from).sum::<u64>()
}

/// The instant of TAI at which a list surely takes over, if no step of TAI came between.
fn begins_by(world: &World, sent: &Sent) -> u64 {
    let known_by = sent.at_tai + applied_within(world, sent.at);
    if sent.base_time > known_by { sent.base_time } else { known_by + sent.schedule.cycle_time() }
}

/// Whether its beginning is known to the nanosecond: a base time ahead.
fn begins_exactly(world: &World, sent: &Sent) -> bool {
    sent.base_time > sent.at_tai + applied_within(world, sent.at)
}

fn stepped(world: &World, from: u64, until: u64) -> bool {
    world.ledger.overlaps(from, until, |what| matches!(what, Disturbance::Step(_)))
}

/// How `one` may run at an instant, with `newer` lists sent by then.
fn running<'a>(world: &World, one: &'a Sent, newer: &[&Sent], at: u64, tai: u64) -> Vec<Running<'a>> {
    if let [next] = newer
        && begins_exactly(world, next)
        && !stepped(world, one.at, at)
    {
        // Where it does not matter when exactly the worker heard of the change, there is one answer.
        let known_by = next.at_tai + applied_within(world, next.at);
        let last = one.last_start(known_by, next.base_time);
        if last == one.last_start(next.at_tai, next.base_time) {
            return vec![last.map_or(one.repeated(), |last| one.up_to(last))];
        }
    }
    let extended = one.extended_at(tai).filter(|_| !newer.is_empty());
    std::iter::once(one.repeated()).chain(extended.map(|last| one.up_to(last))).collect()
}

/// The lists that may be in force at an instant; `None` stands for "no list yet". With each the instant of TAI at
/// which the next one takes over, where that is certain.
pub(super) fn in_force(world: &World, at: u64, tai: u64) -> Vec<(Option<Running<'_>>, u64)> {
    let sent = &world.ledger.schedules;
    let mut found = Vec::new();
    // From the newest back to the first that surely took over.
    let mut ends = u64::MAX;
    let mut newer: Vec<&Sent> = Vec::new();
    for one in sent.iter().rev().filter(|one| one.at <= at) {
        let mut certain = !stepped(world, one.at, at);
        let next = newer.last().copied();
        newer.push(one);
        let newer = &newer[..newer.len() - 1];
        if let Some(next) = next {
            // A list whose time has not come is replaced by the next one.
            let known_by = next.at_tai + applied_within(world, next.at);
            if certain && begins_exactly(world, one) && known_by < one.base_time {
                continue;
            }
            certain = certain && next.at_tai > begins_by(world, one);
        }
        let may = !certain || tai >= one.base_time;
        if may {
            found.extend(running(world, one, newer, at, tai).into_iter().map(|runs| (Some(runs), ends)));
        }
        if certain && tai >= begins_by(world, one) && at >= one.at + applied_within(world, one.at) {
            return found;
        }
        if certain {
            ends = if begins_exactly(world, one) && tai < one.base_time { one.base_time } else { u64::MAX };
        }
    }
    found.push((None, ends));
    found
}

pub(super) fn check(world: &mut World) {
    if world.ledger.schedules.is_empty() {
        return;
    }
    let mut found = Vec::new();
    for (id, frame) in world.ledger.frames.iter().enumerate() {
        let Some(arrival) = frame.arrival else { continue };
        if world.tenants[usize::from(frame.tenant)].corrupted {
            continue;
        }
        if let Some(detail) = outside(world, frame, &arrival) {
            let at = arrival.handed.monotonic.as_nanos();
            found.push((
                at,
                format!("frame {id} of tenant {} (class {}) {detail}", frame.tenant, frame.class),
            ));
        }
    }
    for (at, detail) in found {
        world.ledger.violated("window", at, detail);
    }
}

/// What is wrong with a frame's place in its window.
fn outside(world: &World, frame: &Frame, arrival: &Arrival) -> Option<String> {
    let (at, tai) = (arrival.handed.monotonic.as_nanos(), arrival.handed.tai.as_nanos());
    let kernel = if world.plan.link.mode == Mode::Shared { world.plan.link.kernel_frames } else { 0 };
    let allowed = kernel * world.link.span(FRAME_MAX_WIRE_OCTETS);
    let ended = tai + (arrival.wire_until - at);
    let mut said = None;
    for (list, next_at) in in_force(world, at, tai) {
        let open = match list {
            None => Some(u64::MAX),
            Some(list) => list.open_for(frame.class, tai),
        };
        let Some(open) = open else {
            said = said.or(Some("was handed over in a closed gate".to_owned()));
            continue;
        };
        let closes = tai.saturating_add(open).min(next_at);
        if ended <= closes.saturating_add(allowed) || stepped(world, at, arrival.wire_until) {
            return None;
        }
        said = Some(format!("ended {} ns after its gate had closed, allowed are {allowed}", ended - closes));
    }
    said
}
