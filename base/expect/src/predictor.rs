// SPDX-License-Identifier: Apache-2.0
//! When the next event of a periodic stream comes.
//!
//! In: the instants of events, and which expected events did not come. Out: the next expected event and its spread.

use core::marker::PhantomData;

use ktsn_time::{Instant, Nanos, Span};

/// Shorter periods never lock: two wake-ups take as long.
pub const PERIOD_MIN: Nanos = Nanos::from_micros(50);
/// Longer periods never lock: a processor that sleeps for longer gains nothing from a prediction.
pub const PERIOD_MAX: Nanos = Nanos::from_seconds(10);
/// Gaps in a row that differ by no more than the tolerance, until the predictor locks.
const CONSISTENT: u8 = 4;
/// Misses in a row after which the lock is given up.
const MISSES_MAX: u8 = 4;
/// A sleeper is usually woken so long after the event.
const LATENESS: i64 = 30_000;
/// The least spread, in nanoseconds.
const SPREAD_MIN: i64 = 1_000;

/// What is known of the instant of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// The instant itself.
    Exact,
    /// The event came at or before the instant: the thread slept and was woken.
    NotAfter,
}

/// An expected event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected<I> {
    /// When the event is expected.
    pub at: I,
    /// How much earlier or later the event usually comes.
    pub spread: Span,
}

/// Learns when the next event of periodic streams comes.
#[derive(Clone, Copy, Debug)]
pub struct Predictor<I> {
    /// The estimated instant of the last event; 0 = none.
    last: u64,
    period: i64,
    known: bool,
    consistent: u8,
    misses: u8,
    deviation: i64,
    clock: PhantomData<I>,
}

impl<I: Instant> Predictor<I> {
    /// A predictor that has seen no event.
    #[must_use]
    pub const fn new() -> Self {
        Self { last: 0, period: 0, known: false, consistent: 0, misses: 0, deviation: 0, clock: PhantomData }
    }

    /// A predictor for events of which the period is known and the phase is not. A period out of bounds counts as unknown.
    #[must_use]
    pub const fn with_period(period: Nanos) -> Self {
        let mut new = Self::new();
        if period.get() >= PERIOD_MIN.get() && period.get() <= PERIOD_MAX.get() {
            new.period = period.get();
            new.known = true;
            new.consistent = CONSISTENT - 2;
        }
        new
    }

    /// Learns from an event.
    pub fn observe(&mut self, at: I, how: Seen) {
        let lateness = if how == Seen::Exact { 0 } else { LATENESS.unsigned_abs() };
        let at = at.as_nanos().saturating_sub(lateness);
        let gap = i64::try_from(at.saturating_sub(self.last)).unwrap_or(i64::MAX);
        if self.last == 0 || gap > PERIOD_MAX.get() {
            return self.restart(at);
        }
        if gap < PERIOD_MIN.get() >> 1 {
            return;
        }
        let tolerance = self.period >> 3;
        let slots = if self.is_locked() { (gap + (self.period >> 1)) / self.period } else { 1 };
        let error = gap - self.period.saturating_mul(slots);
        if slots == 0 || error.abs() > tolerance {
            let misses = self.misses + 1;
            if !self.is_locked() || misses >= MISSES_MAX {
                self.restart(at);
                (self.period, self.consistent) = (gap, 1);
            } else {
                self.misses = misses;
            }
            return;
        }
        self.misses = 0;
        self.consistent = self.consistent.saturating_add(1).min(CONSISTENT);
        self.deviation = error.abs().max(self.deviation - (self.deviation >> 5));
        self.period = (self.period + (error >> 5)).clamp(PERIOD_MIN.get(), PERIOD_MAX.get());
        self.last = at.saturating_add_signed(-(error - (error >> 2)));
    }

    fn restart(&mut self, at: u64) {
        let known = Self::with_period(Nanos::new(if self.known { self.period } else { 0 }));
        *self = Self { last: at, ..known };
    }

    /// The next expected event after `after`; `None`: no period is known well enough.
    #[must_use]
    pub fn expected(&self, after: I) -> Option<Expected<I>> {
        if !self.is_locked() {
            return None;
        }
        let period = self.period.unsigned_abs();
        let mut at = self.last.checked_add(period)?;
        if at <= after.as_nanos() {
            let passed = after.as_nanos() - at;
            at = at.checked_add(passed - passed % period)?.checked_add(period)?;
        }
        let spread = self.deviation + (self.deviation >> 3) + SPREAD_MIN;
        Some(Expected {
            at: I::from_nanos(at),
            spread: Span::not_negative(Nanos::new(spread.min(self.period >> 2))),
        })
    }

    /// The expected event at `at` did not come within its spread. After a few misses in a row the lock is given up.
    pub fn missed(&mut self, at: I) {
        if self.is_locked() && at.as_nanos() > self.last {
            self.misses += 1;
            if self.misses >= MISSES_MAX {
                self.restart(0);
            }
        }
    }

    /// True when events are expected.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.last != 0 && self.consistent >= CONSISTENT
    }

    /// The period of the stream that has been expected for longest; `None`: no event is expected.
    #[must_use]
    pub fn period(&self) -> Option<Nanos> {
        self.is_locked().then_some(Nanos::new(self.period))
    }
}

impl<I: Instant> Default for Predictor<I> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
