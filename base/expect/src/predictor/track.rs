// SPDX-License-Identifier: Apache-2.0
//! One periodic stream that is followed: its next slot, its period, and how far its events deviate.
//!
//! In: events near its slots, and misses. Out: the next slots and their spread.

use super::terms::{LATENESS, PERIOD_MAX, PERIOD_MIN, SPREAD_MAX, SPREAD_MIN, Seen, since};

/// Periods are kept in 1/256 ns: a correction of 1 ns in 32 slots is not lost.
const FRACTION_BITS: u32 = 8;
const PERIODS: (u64, u64) =
    (PERIOD_MIN.get().unsigned_abs() << FRACTION_BITS, PERIOD_MAX.get().unsigned_abs() << FRACTION_BITS);
/// The phase follows by a quarter of each residual. Less would be too slow for a program that sleeps for a period after each send, so that
/// its lateness adds up; more would follow the jitter of one that sleeps until a grid.
const PHASE_SHIFT: u32 = 2;
/// The period follows by 1/32 of each residual: with a quarter for the phase, that is damped critically (a²/(2 − a) = 1/28).
const PERIOD_SHIFT: u32 = 5;
/// An event inside of the deviation takes 1/128 from it, one outside adds half: in balance 2 of 100 are outside.
const DEVIATION_SHIFT: u32 = 7;
/// What an event outside adds to the deviation besides, nanoseconds: a deviation of nothing grows too.
const DEVIATION_STEP: u32 = 250;
const DEVIATION_MAX: u32 = SPREAD_MAX.as_nanos() as u32;
/// An event belongs to a slot up to four times the spread and 32 µs (an unlucky wake-up of the talker) away, a quarter of the period at most.
const GATE_SHIFT: u32 = 2;
const GATE_MIN: u64 = 32_000;
/// Penalties: a miss, a miss that another track's event may explain, an event outside of the spread. An event inside takes one away.
const MISS: u8 = 2;
const SHARED_MISS: u8 = 1;
const OUTSIDE: u8 = 1;
/// Four misses in a row. Every second event of a stream may get lost for 16 slots, every fourth for ever.
const PENALTY_MAX: u8 = 8;
/// Slots without an event, or a miss that was reported, until the phase is not known well enough any more.
const UNSEEN_MAX: u64 = 32;
/// A track that has lost so many slots in a row follows two events that are its period apart.
const LOST: u8 = 2;

/// How far an event is from a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Distance {
    nanos: i64,
    /// From the slot before the next one, for which no event has come.
    is_late: bool,
    is_within_spread: bool,
}

impl Distance {
    pub(super) fn is_less(self, other: Self) -> bool {
        self.nanos.unsigned_abs() < other.nanos.unsigned_abs()
    }
}

/// A stream that is followed. It is unused while its period is zero.
#[derive(Clone, Copy, Debug)]
pub(super) struct Track {
    /// The first slot for which no event has come and that is not missed, nanoseconds.
    next: u64,
    /// In 1/256 ns.
    period: u64,
    /// Most events are no further from their slots, nanoseconds.
    deviation: u32,
    /// How far outside the last event was after the track followed it, nanoseconds; 0 = it was inside. While `is_early`: how far
    /// before `next` an event came.
    outside: i32,
    penalty: u8,
    /// Slots since the last event.
    unseen: u8,
    /// The phase comes from [`Seen::Exact`] events.
    is_exact: bool,
    /// The slot before `next` had its event.
    is_last_seen: bool,
    /// Another track took an event that may have been that of `next`.
    is_shared: bool,
    /// An event came earlier than the spread before `next`. It counts as that of `next` once no better one came.
    is_early: bool,
}

impl Track {
    pub(super) const NONE: Self = Self {
        next: 0,
        period: 0,
        deviation: 0,
        outside: 0,
        penalty: 0,
        unseen: 0,
        is_exact: false,
        is_last_seen: false,
        is_shared: false,
        is_early: false,
    };

    /// A track of which a slot at `slot` just had its event. `period` is in 1/256 ns.
    pub(super) fn new(slot: u64, period: u64, deviation: u64, how: Seen) -> Self {
        let mut track = Self {
            next: slot,
            period: period.clamp(PERIODS.0, PERIODS.1),
            deviation: u32::try_from(deviation).unwrap_or(DEVIATION_MAX).min(DEVIATION_MAX),
            is_exact: how == Seen::Exact,
            is_last_seen: true,
            ..Self::NONE
        };
        track.next = track.slot(1).unwrap_or(u64::MAX);
        track
    }

    pub(super) fn is_used(&self) -> bool {
        self.period != 0
    }

    pub(super) fn penalty(&self) -> u8 {
        self.penalty
    }

    /// The period in nanoseconds.
    pub(super) fn period(&self) -> u64 {
        self.period >> FRACTION_BITS
    }

    /// The spread of the next slot.
    pub(super) fn spread(&self) -> u64 {
        self.spread_after(0)
    }

    /// The spread of the slot that comes `skipped` slots after the next one: an eighth above the deviation, and a sixteenth of
    /// the deviation for each slot without an event.
    fn spread_after(&self, skipped: u64) -> u64 {
        let deviation = u64::from(self.deviation);
        let unseen = u64::from(self.unseen) + skipped;
        let lateness = if self.is_exact { 0 } else { LATENESS.as_nanos() };
        let spread =
            deviation + (deviation >> 3) + ((deviation * unseen) >> 4) + SPREAD_MIN.as_nanos() + lateness;
        spread.min(SPREAD_MAX.as_nanos()).min(self.period() >> 2)
    }

    fn gate(&self) -> u64 {
        ((self.spread() << GATE_SHIFT) + GATE_MIN).min(self.period() >> 2)
    }

    /// The slot that comes `count` slots (at most a few more than [`UNSEEN_MAX`]) after the next one.
    fn slot(&self, count: u64) -> Option<u64> {
        self.next.checked_add((count * self.period) >> FRACTION_BITS)
    }

    /// Passes over the slots that an event at `at` comes too late for, and gives the track up when its phase is not known any more.
    #[inline]
    pub(super) fn advance(&mut self, at: u64) {
        if !self.is_used() {
            return;
        }
        let (period, overdue) = (self.period(), at.saturating_sub(self.gate()).saturating_sub(self.next));
        if overdue > 0 {
            self.skip(if overdue <= period {
                1
            } else {
                overdue.saturating_sub(1).checked_div(period).map_or(1, |slots| slots.saturating_add(1))
            });
        } else if self.next.saturating_sub(at) > period << 1 {
            // Time went back, or the stream did.
            self.punish(MISS);
        }
    }

    fn skip(&mut self, count: u64) {
        if self.is_early {
            self.accept_early();
        } else {
            self.outside = 0;
        }
        let unseen = count.saturating_add(u64::from(self.unseen));
        let is_known = self.is_used() && unseen <= UNSEEN_MAX;
        let next = if is_known { self.slot(count) } else { None };
        let Some(next) = next else {
            *self = Self::NONE;
            return;
        };
        (self.next, self.unseen) = (next, u8::try_from(unseen).unwrap_or(u8::MAX));
        (self.is_last_seen, self.is_shared) = (false, false);
    }

    /// The early event was that of the next slot, and it was outside.
    fn accept_early(&mut self) {
        let moved = self.learn_outside(self.outside.into());
        self.next = self.next.saturating_add_signed(moved);
        (self.is_early, self.unseen) = (false, 0);
    }

    fn punish(&mut self, penalty: u8) {
        self.penalty += penalty;
        if self.penalty >= PENALTY_MAX {
            *self = Self::NONE;
        }
    }

    /// How far an event at `at` is from a slot that it can belong to.
    #[inline]
    pub(super) fn distance(&self, at: u64) -> Option<Distance> {
        if !self.is_used() {
            return None;
        }
        let mut distance = Distance { nanos: since(at, self.next), is_late: false, is_within_spread: false };
        let gate = self.gate();
        if distance.nanos.unsigned_abs() > gate {
            let before = self.next.saturating_sub(self.period());
            distance = Distance { nanos: since(at, before), is_late: true, ..distance };
            if self.is_last_seen || distance.nanos.unsigned_abs() > gate {
                return None;
            }
        }
        distance.is_within_spread = distance.nanos.unsigned_abs() <= self.spread();
        Some(distance)
    }

    /// An event came so far from the next slot. Unless this track follows it, it is another's.
    #[inline]
    pub(super) fn note_another(&mut self, distance: Distance) {
        self.is_shared |= distance.is_within_spread && !distance.is_late;
    }

    /// True when an event at `at` comes within the spread of a slot that has had its event.
    pub(super) fn is_repeated(&self, at: u64) -> bool {
        let before = self.next.saturating_sub(self.period());
        self.is_used() && self.is_last_seen && at.abs_diff(before) <= self.spread()
    }

    /// Learns from an event that belongs to this track. False when it comes so early that it may be another's.
    #[inline]
    pub(super) fn follow(&mut self, distance: Distance, how: Seen) -> bool {
        let spread = since(self.spread(), 0);
        let mut residual = distance.nanos;
        if self.is_exact && how == Seen::NotAfter && residual.unsigned_abs() <= LATENESS.as_nanos() {
            // The event may well have come at its slot.
            residual = 0;
        }
        let has_stepped = self.outside != 0
            && !self.is_early
            && (residual - i64::from(self.outside)).saturating_abs() <= spread;
        let moved = if !self.is_exact && how == Seen::Exact {
            self.is_exact = true;
            self.note_inside();
            residual
        } else if residual.saturating_abs() <= spread {
            self.note_inside();
            self.learn_period(residual);
            residual >> PHASE_SHIFT
        } else if has_stepped {
            // Two events on the same side, equally far.
            self.note_inside();
            residual
        } else if residual < 0 && !distance.is_late {
            self.note_early(residual);
            return false;
        } else {
            self.learn_outside(residual)
        };
        if !self.is_used() {
            return true;
        }
        let slot = if distance.is_late { Some(self.next) } else { self.slot(1) };
        self.next = slot.unwrap_or(u64::MAX).saturating_add_signed(moved);
        (self.unseen, self.is_last_seen) = (0, true);
        (self.is_shared, self.is_early) = (false, false);
        true
    }

    /// Remembers the event that came least early.
    fn note_early(&mut self, residual: i64) {
        let residual = i32::try_from(residual).unwrap_or(0);
        if !self.is_early || residual > self.outside {
            self.outside = residual;
        }
        self.is_early = true;
    }

    fn note_inside(&mut self) {
        (self.outside, self.is_early) = (0, false);
        self.penalty = self.penalty.saturating_sub(1);
        self.deviation -= self.deviation >> DEVIATION_SHIFT;
    }

    /// Learns from an event outside of the spread. Returns by how much the phase moves.
    fn learn_outside(&mut self, residual: i64) -> i64 {
        let spread = since(self.spread(), 0);
        let bounded = residual.clamp(-2 * spread, 2 * spread);
        let moved = bounded >> PHASE_SHIFT;
        self.learn_period(bounded);
        self.outside = i32::try_from(residual - moved).unwrap_or(0);
        let grown = self.deviation + (self.deviation >> 1) + DEVIATION_STEP;
        self.deviation = grown.min(DEVIATION_MAX);
        self.punish(OUTSIDE);
        moved
    }

    /// The residual has grown since the last event: less for each slot where there was none in between.
    fn learn_period(&mut self, residual: i64) {
        if !self.is_used() {
            return;
        }
        let correction =
            (residual << (FRACTION_BITS - PERIOD_SHIFT)) >> (u8::BITS - self.unseen.leading_zeros());
        self.period = self.period.saturating_add_signed(correction).clamp(PERIODS.0, PERIODS.1);
    }

    /// The next slot after `after` and its spread.
    #[inline]
    pub(super) fn expected(&self, after: u64) -> Option<(u64, u64)> {
        if !self.is_used() {
            return None;
        }
        let skipped = match after.checked_sub(self.next) {
            None => 0,
            Some(passed) if passed < self.period() => 1,
            Some(passed) => passed.checked_div(self.period()).map_or(1, |slots| slots.saturating_add(1)),
        };
        if u64::from(self.unseen).saturating_add(skipped) > UNSEEN_MAX {
            return None;
        }
        let at = self.slot(skipped)?;
        (at > after).then(|| (at, self.spread_after(skipped)))
    }

    /// The event of the slot at `at`, if that is one, did not come.
    pub(super) fn miss(&mut self, at: u64) {
        let Some(passed) = at.checked_sub(self.next).filter(|_| self.is_used()) else { return };
        let count = if passed < self.period() { 0 } else { passed.checked_div(self.period()).unwrap_or(0) };
        if count > UNSEEN_MAX || self.slot(count) != Some(at) {
            return;
        }
        let penalty = match (self.is_early, self.is_shared) {
            (true, _) => 0,
            (_, true) => SHARED_MISS,
            _ => MISS,
        };
        self.skip(count + 1);
        if self.is_used() {
            self.punish(penalty);
        }
    }

    /// The period in nanoseconds, while the track has lost its events.
    pub(super) fn lost_period(&self) -> Option<u64> {
        (self.is_used() && self.unseen >= LOST).then(|| self.period())
    }

    /// The stream goes on at another phase: a slot at `slot` just had its event.
    pub(super) fn restart(&mut self, slot: u64, how: Seen) {
        let penalty = self.penalty >> 1;
        *self = Self { penalty, ..Self::new(slot, self.period, self.deviation.into(), how) };
    }

    /// True when the other track has the same period and lies half a period apart: then this one has half of the period from here
    /// on, and the other one is not needed.
    pub(super) fn is_joined(&mut self, other: &Self) -> bool {
        let half = self.period >> 1;
        if !self.is_used() || half < PERIODS.0 || self.period.abs_diff(other.period) > self.period >> 8 {
            return false;
        }
        let apart = self.next.abs_diff(other.next);
        if apart.abs_diff(half >> FRACTION_BITS) > self.spread() + other.spread() {
            return false;
        }
        self.next = self.next.min(other.next);
        self.period = half;
        self.deviation = self.deviation.max(other.deviation);
        (self.outside, self.is_last_seen) = (0, true);
        (self.is_shared, self.is_early) = (false, false);
        true
    }
}
