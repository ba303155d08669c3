// SPDX-License-Identifier: Apache-2.0
//! The virtual clocks: MONOTONIC is the simulation's time, TAI follows it with an offset, a drift and steps.
//!
//! Linux slews both clocks alike, so between steps TAI − MONOTONIC is constant there. The drift is harder than
//! Linux: whoever waits on one clock for an instant of the other is found out.

use ktsn_time::{Monotonic, Now, Tai};

/// Nanoseconds in a microsecond.
pub const US: u64 = 1_000;
/// Nanoseconds in a millisecond.
pub const MS: u64 = 1_000_000;

/// What TAI does from an instant of MONOTONIC on.
#[derive(Clone, Copy, Debug)]
struct Course {
    since: u64,
    /// TAI − MONOTONIC at `since`.
    ahead: i64,
    /// How much faster TAI runs, in parts per thousand million.
    drift_ppb: i64,
}

impl Course {
    fn ahead_at(&self, monotonic: u64) -> i64 {
        let span = i128::from(monotonic) - i128::from(self.since);
        self.ahead + (span * i128::from(self.drift_ppb)).div_euclid(1_000_000_000) as i64
    }
}

/// MONOTONIC and TAI.
#[derive(Clone, Debug)]
pub struct Clocks {
    monotonic: u64,
    now: Course,
    before: Vec<Course>,
}

impl Clocks {
    /// Clocks at the start of a run.
    #[must_use]
    pub const fn new(monotonic: u64, tai: u64, drift_ppb: i64) -> Self {
        let ahead = tai.wrapping_sub(monotonic) as i64;
        Self { monotonic, now: Course { since: monotonic, ahead, drift_ppb }, before: Vec::new() }
    }

    /// MONOTONIC in nanoseconds: the simulation's time.
    #[must_use]
    pub const fn at(&self) -> u64 {
        self.monotonic
    }

    /// What TAI shows when MONOTONIC shows `monotonic`, unless it steps before.
    #[must_use]
    pub fn tai_at(&self, monotonic: u64) -> u64 {
        monotonic.saturating_add_signed(self.now.ahead_at(monotonic))
    }

    /// What TAI showed at an earlier instant; of two readings around a step the later one.
    #[must_use]
    pub fn tai_of(&self, monotonic: u64) -> u64 {
        let courses = self.before.iter().chain([&self.now]).rev();
        let course = courses.into_iter().find(|course| course.since <= monotonic).unwrap_or(&self.now);
        monotonic.saturating_add_signed(course.ahead_at(monotonic))
    }

    /// Both now.
    #[must_use]
    pub fn now(&self) -> Now {
        Now {
            tai: Tai::from_nanos(self.tai_at(self.monotonic)),
            monotonic: Monotonic::from_nanos(self.monotonic),
        }
    }

    /// Lets time pass until `monotonic`; never backwards.
    pub fn pass_until(&mut self, monotonic: u64) {
        self.monotonic = self.monotonic.max(monotonic);
    }

    /// Somebody sets TAI.
    pub fn step(&mut self, span: i64) {
        self.turn(span, self.now.drift_ppb);
    }

    /// Ends the drift.
    pub fn hold(&mut self) {
        self.turn(0, 0);
    }

    fn turn(&mut self, step: i64, drift_ppb: i64) {
        let ahead = self.now.ahead_at(self.monotonic) + step;
        self.before.push(self.now);
        self.now = Course { since: self.monotonic, ahead, drift_ppb };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tai_drifts_and_steps_and_monotonic_does_not() {
        let mut clocks = Clocks::new(1_000, 50_000, 1_000_000);
        clocks.pass_until(1_001_000);
        assert_eq!((clocks.at(), clocks.tai_at(clocks.at())), (1_001_000, 1_051_000));
        clocks.step(-400);
        clocks.pass_until(5);
        assert_eq!((clocks.at(), clocks.tai_at(clocks.at())), (1_001_000, 1_050_600));
        clocks.hold();
        clocks.pass_until(2_001_000);
        assert_eq!(clocks.tai_at(clocks.at()), 2_050_600);
        assert_eq!((clocks.tai_of(1_000_999), clocks.tai_of(1_001_000)), (1_050_998, 1_050_600));
    }
}
