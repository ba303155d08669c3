// SPDX-License-Identifier: Apache-2.0
//! Whether CLOCK_TAI went on, or was set. In: its distance from CLOCK_MONOTONIC at two instants, the kernel's TAI - UTC at both,
//! and whether CLOCK_REALTIME was set between them. Out: a step of TAI, or none; a change of TAI - UTC. Pure.
//!
//! The kernel announces only that CLOCK_REALTIME was set. A leap second does that, and CLOCK_TAI goes on: TAI - UTC changes by the
//! same second. A daemon that sets TAI - UTC moves CLOCK_TAI, and CLOCK_REALTIME goes on. So the distance decides where TAI - UTC
//! changed; where only CLOCK_REALTIME was set, both clocks have moved.

use ktsn_time::{Monotonic, Nanos, Offset};

use crate::now::{monotonic_now, tai_now};

/// A disciplined clock is slewed by at most a tenth (adjtimex, ADJ_TICK), and a reading is taken with this uncertainty.
const SLEW_DIVISOR: i64 = 10;
const UNCERTAINTY: Nanos = Nanos::from_millis(50);
/// Readings of which the best one counts: the thread may be preempted between the clocks.
const TRIES: usize = 5;

/// The clocks at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaiReading {
    /// CLOCK_TAI - CLOCK_MONOTONIC.
    pub(super) distance: Nanos,
    pub(super) at: Monotonic,
    /// The kernel's TAI - UTC, in seconds.
    pub(super) utc_offset: i32,
}

impl TaiReading {
    /// The clocks now.
    pub(super) fn now() -> Self {
        let once = |_| {
            let (before, tai, at) = (monotonic_now(), tai_now(), monotonic_now());
            (at.since(before), Offset::between(tai, at).span(), at)
        };
        let best = (0..TRIES).map(once).min_by_key(|(took, ..)| *took);
        let (_, distance, at) = best.unwrap_or((Nanos::ZERO, Nanos::ZERO, Monotonic::ZERO));
        Self { distance, at, utc_offset: crate::sys::clock_state().1 }
    }
}

/// What happened between two readings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TaiChange {
    /// CLOCK_TAI was set, by about this much.
    pub(super) step: Option<Nanos>,
    /// TAI - UTC before and now, in seconds, where it is another one.
    pub(super) utc_offset: Option<(i32, i32)>,
}

/// Compares two readings. `was_set`: CLOCK_REALTIME was set between them.
pub(super) fn compare(before: TaiReading, now: TaiReading, was_set: bool) -> TaiChange {
    let moved = now.distance.saturating_sub(before.distance);
    let slewed = Nanos::new(now.at.since(before.at).get() / SLEW_DIVISOR).saturating_add(UNCERTAINTY);
    let has_jumped = moved.get().unsigned_abs() > slewed.get().unsigned_abs();
    let utc_offset = (before.utc_offset != now.utc_offset).then_some((before.utc_offset, now.utc_offset));
    let is_step = has_jumped || was_set && utc_offset.is_none();
    TaiChange { step: is_step.then_some(moved), utc_offset }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(seconds: i64, distance: i64, utc_offset: i32) -> TaiReading {
        let at = Monotonic::ZERO.saturating_add(Nanos::from_seconds(seconds));
        TaiReading { distance: Nanos::from_millis(distance), at, utc_offset }
    }

    #[test]
    fn a_step_a_leap_second_and_a_new_offset_are_told_apart() {
        let before = reading(10, 1_000_000, 37);
        let step = |now, was_set| compare(before, now, was_set).step.map(|moved| moved.get() / 1_000_000);
        // Slewing, and nothing at all.
        assert_eq!(step(reading(11, 1_000_000, 37), false), None);
        assert_eq!(step(reading(11, 1_000_090, 37), false), None);
        // clock_settime: both clocks move, however little.
        assert_eq!(step(reading(10, 1_000_003, 37), true), Some(3));
        assert_eq!(step(reading(10, 999_000, 37), true), Some(-1000));
        // A leap second is inserted: CLOCK_REALTIME is set back, CLOCK_TAI goes on.
        let leap = compare(before, reading(11, 1_000_000, 38), true);
        assert_eq!(leap, TaiChange { step: None, utc_offset: Some((37, 38)) });
        // ADJ_TAI: CLOCK_TAI moves, and the kernel announces nothing.
        let adjusted = compare(before, reading(11, 999_000, 36), false);
        assert_eq!(adjusted.utc_offset, Some((37, 36)));
        assert_eq!(adjusted.step, Some(Nanos::from_seconds(-1)));
        assert_eq!(step(reading(11, 1_037_000, 37), false), Some(37_000));
        // Both at once, by a daemon that starts.
        assert_eq!(step(reading(11, 1_036_500, 74), true), Some(36_500));
    }

    #[test]
    fn the_clocks_are_read() {
        let (one, two) = (TaiReading::now(), TaiReading::now());
        assert!(compare(one, two, false).step.is_none() && two.at >= one.at);
    }
}
