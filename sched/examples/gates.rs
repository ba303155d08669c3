// SPDX-License-Identifier: Apache-2.0
//! What a decision of time-aware selection costs: by length of the gate control list, and by frames queued.
//!
//! In: nothing. Out: nanoseconds, one line per case, on standard output. A measurement, not a test.

use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates, LatePolicy, TrafficClass};
use ktsn_sched::{Decision, Frame, FrameId, GateProgram, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Now, Offset, Tai, TxTime};
use std::hint::black_box;
use std::time::Instant;

const DECISIONS: u64 = 2_000_000;
const FRAMES: u64 = 2_000_000;
const OFFSET: Nanos = Nanos::from_seconds(37);
const HAND_OVER: Nanos = Nanos::from_micros(5);
/// Most entries are this short; frames need longer windows than these.
const SHORT: i64 = 1_000;
/// The last entry, in which every gate is open.
const LONG: i64 = 50_000;

/// A full period of the 64-bit congruential generator; its upper half is random enough for states.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Short entries with random states, then a long one; `(states, interval)` alternate between closed and random so that no two windows touch.
fn port(entries: u64, open_throughout: bool) -> AdminPort {
    let mut seed = 3;
    let mut control_list: Vec<GateControlEntry> = (1..entries)
        .map(|index| GateControlEntry {
            operation: GateOperation::SetGateStates,
            states: match index % 2 {
                _ if open_throughout => GateStates::from_bits((random(&mut seed) % 256) as u8),
                0 => GateStates::ALL_CLOSED,
                _ => GateStates::from_bits((random(&mut seed) % 256) as u8),
            },
            interval: Nanos::new(if open_throughout { LONG } else { SHORT }),
        })
        .collect();
    let (states, interval) = (GateStates::ALL_OPEN, Nanos::new(LONG));
    control_list.push(GateControlEntry { operation: GateOperation::SetGateStates, states, interval });
    let cycle_time = Nanos::new(control_list.iter().map(|entry| entry.interval.get()).sum());
    AdminPort { gate_enabled: true, cycle_time, control_list, ..AdminPort::default() }
}

fn selection(admin: &AdminPort, capacity: u64, now: Now) -> TimeAware {
    let mut selection = TimeAware::new(TimeAwareOptions {
        link_speed: Some(1_000_000_000),
        hand_over: HAND_OVER,
        ..TimeAwareOptions::gates(capacity as usize, 1)
    });
    if let Ok(program) = GateProgram::new(admin) {
        selection.set_admin(Box::new(program), now);
    }
    selection
}

fn frame(id: u64, class: u64, tx_time: Option<TxTime>, wire_octets: u32, now: Now) -> Frame {
    Frame {
        id: FrameId(id),
        attachment: 0,
        class: TrafficClass::new((class % 8) as u8).unwrap_or_default(),
        tx_time,
        pushed_at: now.monotonic,
        wire_octets,
        sdu_octets: wire_octets.saturating_sub(42),
        late: LatePolicy::ByClock,
        overrun_limit: Nanos::MAX,
        horizon: Nanos::MAX,
    }
}

/// Nanoseconds for one decision that finds no class ready, with a due frame in every class: the longest way through.
/// `is_worker`: time passes as it does in a worker; else each decision is somewhere else in the cycle and finds nothing remembered.
fn waiting(entries: u64, is_worker: bool) -> f64 {
    let offset = Offset::between(Tai::from_nanos(OFFSET.get() as u64), Monotonic::ZERO);
    let start = offset.now(Monotonic::from_nanos(1_000_000_000));
    let admin = port(entries, false);
    let mut selection = selection(&admin, 1024, start);
    let cycle = admin.cycle_time.get() as u64;
    for id in 0..80 {
        let _ = selection.offer(frame(id, id, None, 1_538, start), start);
    }
    // The start of a cycle; the long entry is not reached.
    let first = offset.now(start.monotonic.saturating_add(Nanos::new(2 * cycle as i64)));
    let begin_at = first.tai.as_nanos() - first.tai.as_nanos() % cycle;
    let span = cycle - LONG as u64 - SHORT as u64;
    let (mut seed, mut waits, mut at) = (7, 0, 0);
    let begin = Instant::now();
    for _ in 0..DECISIONS {
        at = (at + if is_worker { 5 } else { random(&mut seed) }) % span;
        if !is_worker {
            selection.set_hand_over(HAND_OVER);
        }
        let tai = Tai::from_nanos(begin_at + at);
        let now = Now { tai, monotonic: offset.monotonic(tai) };
        waits += u64::from(matches!(selection.decide(black_box(now)), Decision::WakeAt { .. }));
    }
    let nanos = begin.elapsed().as_nanos() as f64 / DECISIONS as f64;
    assert_eq!(waits, DECISIONS, "a frame left");
    nanos
}

/// Nanoseconds per frame from `offer` to the last decision about it, with `streams` frames queued all the time. The link
/// is never busy, so that every decision is about a frame.
fn streams(streams: u64, entries: u64) -> f64 {
    let offset = Offset::between(Tai::from_nanos(OFFSET.get() as u64), Monotonic::ZERO);
    let mut now = offset.now(Monotonic::from_nanos(1_000_000_000));
    let mut selection = selection(&port(entries, true), streams, now);
    let mut seed = 7;
    let due = |now: Now, seed: &mut u64| {
        let ahead = 1 + random(seed) % (2 * streams * 1_000);
        Some(TxTime::Tai(now.tai.saturating_add(Nanos::new(ahead as i64))))
    };
    for id in 0..streams {
        let _ = selection.offer(frame(id, id, due(now, &mut seed), 84, now), now);
    }
    let (mut sent, mut decisions) = (0u64, 0u64);
    let begin = Instant::now();
    while sent < FRAMES {
        decisions += 1;
        match selection.decide(black_box(now)) {
            Decision::Transmit { frame: old, .. } | Decision::Drop { frame: old, .. } => {
                sent += 1;
                let new = frame(old.id.0, old.id.0, due(now, &mut seed), 84, now);
                let _ = selection.offer(black_box(new), now);
            }
            Decision::WakeAt { at, .. } => now = offset.now(now.monotonic.saturating_add(at.ahead_of(now))),
            Decision::Idle => break,
        }
    }
    let nanos = begin.elapsed().as_nanos() as f64;
    println!(
        "    ({:.2} decisions per frame, {:.0} ns each)",
        decisions as f64 / sent as f64,
        nanos / decisions as f64
    );
    nanos / sent as f64
}

fn main() {
    println!("one decision, a due frame in each of 8 classes, none may leave (ns)");
    for is_worker in [true, false] {
        let order = if is_worker { "as time passes" } else { "anywhere, nothing remembered" };
        for entries in [8, 64, 1024] {
            println!("{entries:>6} entries, {order:<29} {:>7.1}", waiting(entries, is_worker));
        }
    }
    println!("one frame, offered, waited for and transmitted, 8 classes (ns)");
    for entries in [64, 1024] {
        for queued in [10, 100, 1_000, 10_000] {
            println!("{entries:>6} entries, {queued:>6} queued {:>7.1}", streams(queued, entries));
        }
    }
}
