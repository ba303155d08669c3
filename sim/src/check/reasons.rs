// SPDX-License-Identifier: Apache-2.0
//! Every frame that did not arrive needs a reason that can be true, and each reason's counter must lie between what
//! must have been counted there and what can have been.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::DropReason;

use crate::ledger::{Disturbance, Frame, Kind};
use crate::plan::{MS, OVERRUN_LIMIT, US};
use crate::world::World;

/// New tables are applied by then, stalls included.
const TABLES_WITHIN: u64 = 10 * MS;

/// Instants between which a frame's fate is decided: (from, until).
fn decided(world: &World, frame: &Frame) -> (u64, u64) {
    let pushed = frame.pushed.monotonic.as_nanos();
    let due = due_at(frame);
    let held_until = frame.published_at.unwrap_or(pushed);
    // The overrun limit, and some cycles of waiting for windows: more of them behind a flood.
    let last = due.max(held_until) + OVERRUN_LIMIT + 5 * MS;
    let last = if behind_a_flood(world, frame, due, last) { last + 10 * MS } else { last };
    if frame.is_tai() && stepped(world, pushed, last + 3_000 * MS) {
        // Steps of all seeds together are shorter than this.
        return (pushed, last + 10_000 * MS);
    }
    (due.saturating_sub(300 * US).max(pushed), last)
}

fn stepped(world: &World, from: u64, until: u64) -> bool {
    world.ledger.overlaps(from, until, |what| matches!(what, Disturbance::Step(_)))
}

/// Whether a tenant whose frames go before this one, or with it, floods meanwhile.
fn behind_a_flood(world: &World, frame: &Frame, from: u64, until: u64) -> bool {
    let goes_before = |tenant: u16| world.tenants[usize::from(tenant)].plan.class >= frame.class;
    world.ledger.overlaps(
        from,
        until,
        |what| matches!(what, Disturbance::Flood(tenant) if goes_before(tenant)),
    )
}

/// When it was due by the clocks of its push, on MONOTONIC.
pub(super) fn due_at(frame: &Frame) -> u64 {
    let (due, now) = frame.due(frame.pushed);
    frame.pushed.monotonic.as_nanos() + due.saturating_sub(now)
}

/// What may have been the reason.
fn possible(world: &World, frame: &Frame) -> Vec<DropReason> {
    let pushed = frame.pushed.monotonic.as_nanos();
    let (from, until) = decided(world, frame);
    let mut reasons = Vec::new();
    let overlaps = |from, which: &dyn Fn(Disturbance) -> bool| world.ledger.overlaps(from, until, which);
    match frame.kind {
        Kind::Late if frame.is_tai() => reasons.push(DropReason::Missed),
        Kind::Zero if frame.is_tai() => reasons.push(DropReason::InvalidTime),
        Kind::FarAhead => reasons.push(DropReason::BeyondHorizon),
        Kind::Policed => reasons.push(DropReason::Policed),
        Kind::Corrupt => return vec![DropReason::PeerCorrupt],
        // By fq's rule a frame on MONOTONIC is sent however late.
        Kind::Good if frame.is_tai() && overran(world, frame, from, until) => {
            reasons.push(DropReason::Overrun);
            // A step between its push and its taking over makes it late by the clock of the taking over.
            if stepped(world, pushed, until) {
                reasons.push(DropReason::Missed);
            }
        }
        _ => {}
    }
    if world.tenants[usize::from(frame.tenant)].plan.meter.is_some() {
        reasons.push(DropReason::Policed);
    }
    // The next hop is looked at when a frame is taken over and again when it is built; new tables are applied some
    // time after they were sent.
    if overlaps(pushed.saturating_sub(TABLES_WITHIN), &|what| what == Disturbance::NoNeighbour(frame.tenant))
    {
        reasons.push(DropReason::NoNeighbour);
    }
    if overlaps(pushed, &|what| what == Disturbance::Detached(frame.tenant)) {
        reasons.push(DropReason::Detached);
    }
    if overlaps(from, &|what| matches!(what, Disturbance::LinkDown | Disturbance::DeviceGone)) {
        reasons.push(DropReason::LinkDown);
    }
    if overlaps(from, &|what| matches!(what, Disturbance::PortErrors | Disturbance::PortFull)) {
        reasons.push(DropReason::PortError);
    }
    reasons
}

/// Whether a frame that was on time may have been overslept or stepped over.
fn overran(world: &World, frame: &Frame, from: u64, until: u64) -> bool {
    let pushed = frame.pushed.monotonic.as_nanos();
    let held_up = frame.published_at.is_some_and(|at| at > pushed + 20 * US);
    let stalled = world.ledger.overlaps(from, until, |what| what == Disturbance::Stall);
    stalled || behind_a_flood(world, frame, from, until) || held_up || stepped(world, pushed, until)
}

pub(super) fn check(world: &mut World) {
    let at = world.clocks.at();
    let mut found = Vec::new();
    for tenant in 0..world.tenants.len() {
        if world.tenants[tenant].corrupted {
            continue;
        }
        let mut must = [0u64; DropReason::COUNT];
        let mut may = [0u64; DropReason::COUNT];
        for (id, frame) in world.ledger.frames.iter().enumerate() {
            if usize::from(frame.tenant) != tenant || frame.published_at.is_none() || frame.arrival.is_some()
            {
                continue;
            }
            let reasons = possible(world, frame);
            for reason in &reasons {
                may[usize::from(reason.number())] += 1;
            }
            match reasons.as_slice() {
                [] => found.push(format!(
                    "tenant {tenant}: frame {id} ({:?}) did not arrive, for no reason",
                    frame.kind
                )),
                [one] => must[usize::from(one.number())] += 1,
                _ => {}
            }
        }
        for reason in DropReason::ALL {
            let number = usize::from(reason.number());
            let counted = world.tenants[tenant].stats.dropped[number].load(Relaxed);
            if counted < must[number] || counted > may[number] {
                found.push(format!(
                    "tenant {tenant}: {reason} counts {counted}, but {} to {} frames have this reason",
                    must[number], may[number]
                ));
            }
        }
    }
    for detail in found {
        world.ledger.violated("reasons", at, detail);
    }
}
