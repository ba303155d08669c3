// SPDX-License-Identifier: Apache-2.0
//! Nanoseconds per frame through offer, decide (transmit) and decide (wait), at several queue depths.
//!
//! In: nothing. Out: one line per depth and clock mix on standard output. A measurement, not a test.

use ktsn_model::{LatePolicy, TrafficClass};
use ktsn_sched::{Decision, Frame, FrameId, TimeAware, TimeAwareOptions};
use ktsn_time::{Nanos, Now, Offset, Tai, TxTime};
use std::hint::black_box;
use std::time::Instant;

const FRAMES: u64 = 2_000_000;
/// The TAI offset of the made-up clocks.
const OFFSET: Nanos = Nanos::from_seconds(37);
/// Frames are due this far apart on average.
const GAP: u64 = 1_000;

/// A full period of the 64-bit congruential generator; its upper half is random enough for times.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// A frame of a random class, due at random within the time that `depth` frames take.
fn frame(id: u64, depth: u64, classes: u64, both_clocks: bool, now: Now, seed: &mut u64) -> Frame {
    let ahead = Nanos::new((1 + random(seed) % (2 * depth * GAP)) as i64);
    let on_tai = !both_clocks || random(seed).is_multiple_of(2);
    let tx_time = if on_tai {
        TxTime::Tai(now.tai.saturating_add(ahead))
    } else {
        TxTime::Monotonic(now.monotonic.saturating_add(ahead))
    };
    Frame {
        id: FrameId(id),
        attachment: 0,
        class: TrafficClass::new((random(seed) % classes) as u8).unwrap_or_default(),
        tx_time: Some(tx_time),
        pushed_at: now.monotonic,
        wire_octets: 134,
        sdu_octets: 64,
        late: LatePolicy::ByClock,
        overrun_limit: Nanos::from_millis(1),
        horizon: Nanos::from_seconds(10),
    }
}

/// Nanoseconds per frame with `depth` frames queued all the time.
fn measure(depth: u64, classes: u64, both_clocks: bool) -> u128 {
    let offset = Offset::between(Tai::ZERO.saturating_add(OFFSET), ktsn_time::Monotonic::ZERO);
    let mut now = offset.now(ktsn_time::Monotonic::from_nanos(1_000_000_000));
    let mut selection = TimeAware::new(TimeAwareOptions::tx_time(depth as usize, 1));
    let mut seed = 7;
    for id in 0..depth {
        let _ = selection.offer(frame(id, depth, classes, both_clocks, now, &mut seed), now);
    }
    let begin = Instant::now();
    let mut sent = 0;
    while sent < FRAMES {
        match selection.decide(black_box(now)) {
            Decision::Transmit { frame: old, .. } | Decision::Drop { frame: old, .. } => {
                sent += 1;
                let new = frame(old.id.0, depth, classes, both_clocks, now, &mut seed);
                let _ = selection.offer(black_box(new), now);
            }
            Decision::WakeAt { at, .. } => now = offset.now(now.monotonic.saturating_add(at.ahead_of(now))),
            Decision::Idle => break,
        }
    }
    begin.elapsed().as_nanos() / u128::from(sent.max(1))
}

/// Nanoseconds that making a frame takes, which every figure includes.
fn making() -> u128 {
    let (now, mut seed) = (Now::default(), 7);
    let begin = Instant::now();
    for id in 0..FRAMES {
        black_box(frame(id, 1024, 8, true, now, &mut seed));
    }
    begin.elapsed().as_nanos() / u128::from(FRAMES)
}

fn main() {
    println!("making a frame, part of every figure: {} ns", making());
    println!("depth  classes  clocks  ns/frame");
    for depth in [1, 64, 1024, 65_536] {
        for (classes, both_clocks) in [(1, false), (1, true), (8, true)] {
            let clocks = if both_clocks { 2 } else { 1 };
            println!("{depth:>5}  {classes:>7}  {clocks:>6}  {:>8}", measure(depth, classes, both_clocks));
        }
    }
}
