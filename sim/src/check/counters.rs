// SPDX-License-Identifier: Apache-2.0
//! The counters that ktsnd shows equal what the wire and the programs saw.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::TrafficClass;
use ktsnd::stats::WorkerStats;

use crate::ledger::{Disturbance, Disturbed, Frame, Kind};
use crate::trace::Note;
use crate::world::World;

/// Above this a hand-over counts as an overrun (`docs/interfaces.md`), in nanoseconds.
const OVERRUN: i64 = 1_000;

fn late(frame: &Frame) -> bool {
    !frame.at_once() && frame.was_late()
}

fn on_time(frame: &Frame) -> bool {
    !frame.at_once() && !frame.was_late()
}

pub(super) fn check(world: &mut World, worker: &WorkerStats) {
    let at = world.clocks.at();
    let mut found = Vec::new();
    for tenant in 0..world.tenants.len() {
        let mut compare = |name: &str, counted: u64, truth: u64| {
            if counted != truth {
                found.push(format!("tenant {tenant}: {name} is {counted}, but {truth} is true"));
            }
        };
        let state = &world.tenants[tenant];
        let stats = &state.stats;
        compare("sent", stats.sent.load(Relaxed), state.seen.frames);
        compare("sent_octets", stats.sent_octets.load(Relaxed), state.seen.octets);
        if state.corrupted {
            continue;
        }
        let frames = || world.ledger.frames.iter().filter(|f| usize::from(f.tenant) == tenant);
        let arrived = || frames().filter(|f| f.arrival.is_some());
        let count = |which: &dyn Fn(&Frame) -> bool| arrived().filter(|f| which(f)).count() as u64;
        let taken = frames().filter(|f| f.published_at.is_some() && f.kind != Kind::Corrupt).count() as u64;
        compare("taken", stats.taken.load(Relaxed), taken);
        compare("late", stats.late.load(Relaxed), count(&late));
        compare("transmit_error", stats.transmit_error.snapshot().len(), count(&on_time));
        let overrun = count(&|f| on_time(f) && f.error().is_some_and(|error| error > OVERRUN));
        // With gates it counts from the opening, which the checkers do not know to the nanosecond.
        if world.ledger.schedules.is_empty() {
            compare("overrun", stats.overrun.load(Relaxed), overrun);
        }
        let heard = stats.doorbells.load(Relaxed);
        if heard > state.rang {
            found.push(format!("tenant {tenant}: {heard} doorbells heard of {} rung", state.rang));
        }
    }
    let corrupted = world.tenants.iter().any(|tenant| tenant.corrupted);
    let overruns: u64 =
        world.port_stats.transmission_overrun.iter().map(|counter| counter.load(Relaxed)).sum();
    let held_up = |one: &Disturbed| matches!(one.what, Disturbance::Stall | Disturbance::Step(_));
    if overruns > 0 && !world.ledger.disturbed.iter().any(held_up) {
        found.push(format!("port: transmission_overrun is {overruns} on a machine that never stalled"));
    }
    for class in 0..TrafficClass::COUNT {
        let here = |f: &&Frame| f.arrival.is_some() && usize::from(f.class) == class;
        let truth = world.ledger.frames.iter().filter(here).count() as u64;
        let counted = world.port_stats.frames[class].load(Relaxed);
        if counted != truth && !corrupted {
            found.push(format!("port: class {class} counts {counted} frames, but {truth} is true"));
        }
    }
    let stalls = world.ledger.disturbed.iter().filter(|one| one.what == Disturbance::Stall).count() as u64;
    for (name, value, most) in [
        ("bugs", worker.bugs.load(Relaxed), 0),
        // A stall between the readings of the two clocks looks like a step there and one back.
        ("clock_steps", worker.clock_steps.load(Relaxed), world.ledger.steps + 2 * stalls),
        ("regions_retired", worker.regions_retired.load(Relaxed), if corrupted { u64::MAX } else { 0 }),
    ] {
        if value > most {
            found.push(format!("worker: {name} is {value}, but at most {most} is true"));
        }
    }
    for detail in found {
        world.ledger.violated("counters", at, detail);
    }
    note_all(world);
}

/// All counters become part of the run's hash.
fn note_all(world: &mut World) {
    for tenant in 0..world.tenants.len() {
        let stats = world.tenants[tenant].stats.clone();
        let ours =
            [&stats.taken, &stats.sent, &stats.sent_octets, &stats.late, &stats.overrun, &stats.doorbells];
        for (number, counter) in ours.into_iter().chain(&stats.dropped).enumerate() {
            let value = counter.load(Relaxed);
            world.note(Note::Counter { tenant: tenant as u16, number: number as u16, value });
        }
    }
}
