// SPDX-License-Identifier: Apache-2.0
//! The last events that no track explains, and the search for an even chain among them.
//!
//! In: instants. Out: a chain of events that is too even to be chance, as a track.

use super::terms::{PERIOD_MAX, PERIOD_MIN, SPREAD_MIN, Seen, since};
use super::track::Track;

/// Events that are remembered. Two streams that begin at once leave seven or more to each, and a search stays below 230 steps.
const EVENTS: usize = 16;
/// A link of a chain may be off by so much, and by an eighth of the period: jitter of 45 µs makes second differences of up to 90 µs.
const TOLERANCE: u64 = 100_000;
/// Bits are counted in 1/256.
const BIT: u32 = 256;
/// A chain of chance is found less than once in 2²⁴ events or so: in hours, at 1 kHz of noise.
const SURE: u32 = 24 * BIT;
/// What one link says at most: a chain of noiseless events has three links beyond the first gap, so five events.
const LINK_MAX: u32 = 8 * BIT;
/// A talker's clock may be off by so much of a period that the caller knows: 1/8192, 122 ppm.
const CLOCK_SHIFT: u32 = 13;

/// The last events that no track explains.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    /// Nanoseconds, the newest first.
    at: [u64; EVENTS],
    count: u8,
}

/// Members of an even chain.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    /// By their place: bit 0 is the newest event, and a member.
    members: u16,
    /// Periods from the oldest member to the newest one.
    links: u32,
}

impl Past {
    pub(super) const fn new() -> Self {
        Self { at: [0; EVENTS], count: 0 }
    }

    fn events(&self) -> &[u64] {
        self.at.get(..usize::from(self.count)).unwrap_or(&self.at)
    }

    /// Adds an event. One that is not later than the newest is the first of a new past.
    pub(super) fn push(&mut self, at: u64) {
        if self.events().first().is_some_and(|newest| at <= *newest) {
            self.count = 0;
        }
        self.at.copy_within(0..EVENTS - 1, 1);
        self.at[0] = at;
        self.count = (self.count + 1).min(EVENTS as u8);
    }

    /// Forgets these events, by their places.
    pub(super) fn remove(&mut self, members: u16) {
        let mut kept = 0;
        let before = self.at;
        for (place, at) in before.iter().enumerate().take(self.events().len()) {
            if members & (1 << place) == 0
                && let Some(to) = self.at.get_mut(kept)
            {
                *to = *at;
                kept += 1;
            }
        }
        self.count = kept as u8;
    }

    /// True when an event lies within `reach` of `at`: the newest such event is forgotten.
    pub(super) fn take_near(&mut self, at: u64, reach: u64) -> bool {
        let found = self.events().iter().position(|event| event.abs_diff(at) <= reach);
        if let Some(place) = found {
            self.remove(1 << place);
        }
        found.is_some()
    }

    /// The chain with the shortest period that ends at the newest event and is sure. `known`: a period that is likely; 0 = none.
    pub(super) fn search(&self, known: u64) -> Option<Chain> {
        let events = self.events();
        let newest = *events.first()?;
        let periods = events.iter().map(|event| newest - event).enumerate();
        let possible = periods
            .skip_while(|(_, period)| *period < PERIOD_MIN.get().unsigned_abs())
            .take_while(|(_, period)| *period <= PERIOD_MAX.get().unsigned_abs());
        possible.into_iter().find_map(|(second, period)| Self::walk(events, second, period, known))
    }

    /// Walks back from the newest event by `period`, which is that to the event at `second`, until the chain breaks or is sure.
    fn walk(events: &[u64], second: usize, period: u64, known: u64) -> Option<Chain> {
        // Of a period that is known the first gap is a link like the others.
        let first = period.abs_diff(known).saturating_sub(known >> CLOCK_SHIFT);
        let is_known = known != 0 && first <= TOLERANCE;
        let tolerance = (period >> 3).min(TOLERANCE);
        let mut chain = Chain { members: 1 | 1 << second, links: 1 };
        let (mut slot, mut step, mut place) = (*events.get(second)?, period, second);
        let mut worst = if is_known { first.max(SPREAD_MIN.as_nanos()) } else { SPREAD_MIN.as_nanos() };
        loop {
            let gaps = u32::try_from(place).unwrap_or(0);
            if chain.score(period, gaps, worst, is_known) >= SURE {
                return Some(chain);
            }
            let target = slot.checked_sub(step)?;
            place += 1;
            let off = |place: usize| events.get(place).map(|event| event.abs_diff(target));
            while off(place + 1).is_some_and(|next| off(place).is_some_and(|this| next < this)) {
                place += 1;
            }
            let error = off(place).filter(|error| *error <= tolerance)?;
            let residual = since(*events.get(place)?, target);
            worst = worst.max(error);
            slot = target.saturating_add_signed(residual >> 1);
            step = step.saturating_add_signed(-(residual >> 2));
            chain = Chain { members: chain.members | 1 << place, links: chain.links + 1 };
        }
    }

    /// The track of a chain, and the places of its members.
    pub(super) fn fit(&self, chain: &Chain, how: Seen) -> (Track, u16) {
        let events = self.events();
        let members = || {
            (0..events.len())
                .filter(|place| chain.members & (1 << place) != 0)
                .filter_map(|place| events.get(place).copied())
        };
        let newest = members().next().unwrap_or(0);
        let span = newest - members().next_back().unwrap_or(newest);
        let period = (span << 8).checked_div(u64::from(chain.links)).unwrap_or(0);
        // How far each member is off its slot. (An iterator that counts would bring a check that panics into libktsn.)
        let residuals = || {
            members().scan(0_u64, |slots, at| {
                let slot = newest.saturating_sub((*slots * period) >> 8);
                *slots += 1;
                Some(since(at, slot))
            })
        };
        let mean = residuals()
            .fold(0, i64::saturating_add)
            .checked_div_euclid(i64::from(chain.links) + 1)
            .unwrap_or(0);
        let furthest = residuals().map(|residual| (residual - mean).unsigned_abs()).max().unwrap_or(0);
        // A few events have not shown the greatest deviation: half more.
        let deviation = furthest + (furthest >> 1);
        (Track::new(newest.saturating_add_signed(mean), period, deviation, how), chain.members)
    }
}

impl Chain {
    /// How unlikely the chain is among random events as dense as those that it lies in, in 1/256 bits: a random event is within `worst` of
    /// a given instant with a probability of twice `worst` over the mean gap. `gaps` gaps lie between the members.
    fn score(self, period: u64, gaps: u32, worst: u64, is_known: bool) -> u32 {
        let gap = log2(period) + log2(self.links.into()) - log2(gaps.into()).min(log2(period));
        let link = gap.saturating_sub(log2(worst << 1)).min(LINK_MAX);
        link * if is_known { self.links } else { self.links - 1 }
    }
}

/// The binary logarithm in 1/256, linear between the powers of two; 0 for 0.
fn log2(value: u64) -> u32 {
    let Some(exponent) = value.checked_ilog2() else { return 0 };
    let fraction = if exponent >= 8 { value >> (exponent - 8) } else { value << (8 - exponent) };
    exponent * BIT + (fraction & 255) as u32
}
