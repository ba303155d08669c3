// SPDX-License-Identifier: Apache-2.0
//! When the next event of periodic streams comes.
//!
//! In: the instants of events, and which expected events did not come. Out: the next expected event and its spread.
//!
//! ```text
//!  event ──► near a slot of a track? ──yes──► the track follows: phase, period, spread
//!                    │ no
//!                    ▼
//!            the past: the last 16 events that no track explains ──► an even chain? ──► a new track
//! ```
//!
//! The rules and the reason for each constant are in `docs/design/expected-arrival.md`. A call of `observe` makes at most four looks at
//! tracks and some 230 steps through the past. Events that a track explains cost the former alone, without a division. A
//! predictor has at most 288 octets. It never allocates, and no input makes it panic.

mod past;
mod terms;
mod track;

use core::marker::PhantomData;

use ktsn_time::{Instant, Nanos, Span};

use past::Past;
pub use terms::{LATENESS, PERIOD_MAX, PERIOD_MIN, SPREAD_MAX, SPREAD_MIN, Seen, TRACKS};
use track::Track;

/// Events closer together are one burst. Half of the shortest period.
const BURST: u64 = PERIOD_MIN.get().unsigned_abs() / 2;

/// An expected event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected<I> {
    /// When the event is expected.
    pub at: I,
    /// How much earlier or later than `at` the event usually comes; between [`SPREAD_MIN`] and [`SPREAD_MAX`].
    pub spread: Span,
}

/// Learns when the next event of up to four periodic streams comes.
#[derive(Clone, Copy, Debug)]
pub struct Predictor<I> {
    tracks: [Track; TRACKS],
    past: Past,
    /// The last event, nanoseconds; 0 = none.
    last: u64,
    /// The period that the caller knows, nanoseconds; 0 = none.
    known: u64,
    clock: PhantomData<I>,
}

impl<I: Instant> Predictor<I> {
    /// A predictor that has seen no event. All its octets are zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { tracks: [Track::NONE; TRACKS], past: Past::new(), last: 0, known: 0, clock: PhantomData }
    }

    /// A predictor for events of which one period is known: it locks on that period one event sooner than on others, and on others
    /// as usual. A period out of bounds counts as unknown.
    #[must_use]
    pub const fn with_period(period: Nanos) -> Self {
        let mut new = Self::new();
        new.set_period(period);
        new
    }

    /// The caller knows a period from now on, instead of the one that it knew. What was learnt stays. A period out of bounds counts as
    /// unknown.
    pub const fn set_period(&mut self, period: Nanos) {
        let is_within = period.get() >= PERIOD_MIN.get() && period.get() <= PERIOD_MAX.get();
        self.known = if is_within { period.get().unsigned_abs() } else { 0 };
    }

    /// Learns from an event. `at` is what `how` says of its instant.
    pub fn observe(&mut self, at: I, how: Seen) {
        let at = match how {
            Seen::Exact => at.as_nanos(),
            Seen::NotAfter => at.as_nanos().saturating_sub(LATENESS.as_nanos()),
        };
        for track in &mut self.tracks {
            track.advance(at);
        }
        let is_burst = at.abs_diff(self.last) < BURST;
        self.last = at;
        if self.is_explained(at, how) || is_burst || self.is_moved(at, how) {
            return;
        }
        self.past.push(at);
        if let Some(found) = self.past.search(self.known) {
            self.lock(&found, how);
        }
    }

    /// True when a track has a slot for the event: the nearest track follows it.
    #[inline]
    fn is_explained(&mut self, at: u64, how: Seen) -> bool {
        let mut nearest = None;
        // `enumerate` counts with a check that panics, which libktsn must not hold.
        for (index, track) in (0..self.tracks.len()).zip(&mut self.tracks) {
            let Some(distance) = track.distance(at) else { continue };
            track.note_another(distance);
            if nearest.is_none_or(|(_, best): (_, track::Distance)| distance.is_less(best)) {
                nearest = Some((index, distance));
            }
        }
        match nearest {
            Some((index, distance))
                if self.tracks.get_mut(index).is_some_and(|track| track.follow(distance, how)) =>
            {
                true
            }
            _ => self.tracks.iter().any(|track| track.is_repeated(at)),
        }
    }

    /// True when the event and an earlier one are a period of a track apart that has lost its events: the track goes on from here.
    fn is_moved(&mut self, at: u64, how: Seen) -> bool {
        for track in &mut self.tracks {
            let Some(period) = track.lost_period() else { continue };
            let earlier = at.saturating_sub(period);
            if self.past.take_near(earlier, track.spread()) {
                track.restart(at, how);
                return true;
            }
        }
        false
    }

    /// Makes a track of a chain, or of a chain and a track that lie half a period apart.
    fn lock(&mut self, found: &past::Chain, how: Seen) {
        let (track, members) = self.past.fit(found, how);
        if self.tracks.iter_mut().any(|other| other.is_joined(&track)) {
            self.past.remove(members);
            return;
        }
        // A track that keeps missing its events gives way, a good one does not.
        let worst = |track: &&mut Track| if track.is_used() { track.penalty() } else { u8::MAX };
        if let Some(place) = self.tracks.iter_mut().max_by_key(worst).filter(|place| worst(place) > 0) {
            *place = track;
            self.past.remove(members);
        }
    }

    /// The next expected event after `after`; `None`: no event is expected.
    #[must_use]
    pub fn expected(&self, after: I) -> Option<Expected<I>> {
        let slots = self.tracks.iter().filter_map(|track| track.expected(after.as_nanos()));
        let (at, spread) = slots.min_by_key(|(at, _)| *at)?;
        Some(Expected { at: I::from_nanos(at), spread: Span::from_nanos(spread) })
    }

    /// The event that [`Self::expected`] gave for `at` did not come within its spread. After four misses in a row the stream is given
    /// up. Where no event is expected at `at` any more, nothing happens.
    pub fn missed(&mut self, at: I) {
        for track in &mut self.tracks {
            track.miss(at.as_nanos());
        }
    }

    /// True when events are expected.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.tracks.iter().any(Track::is_used)
    }

    /// The shortest period of the streams that are expected; `None`: no event is expected.
    #[must_use]
    pub fn period(&self) -> Option<Nanos> {
        let periods = self.tracks.iter().filter(|track| track.is_used()).map(Track::period);
        periods.min().map(|period| Span::from_nanos(period).to_nanos())
    }
}

impl<I: Instant> Default for Predictor<I> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;
