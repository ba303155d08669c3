// SPDX-License-Identifier: Apache-2.0
//! The daemon's side of the receive area.
//!
//! In: a grant. Out: a copy of what the program wrote into its entries, made plausible. The program may write anything at any
//! moment; no word that it writes decides more than what is shown. Only a sealed region is read or written here: a program can
//! make each user of an unsealed one wait.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::Arc;
use std::vec::Vec;

use ktsn_time::{Monotonic, Nanos};

use super::{
    COOKIE, COUNTS, COUNTS_COUNT, ENDED, GRANT, GRANTED_UNTIL, LISTENERS_COUNT, Listener, ListenerName,
    PERIOD, ReceiveCount, WHOLE_CPU,
};
use crate::region::GuardedMapping;
use crate::words::Words;

/// Counts of expected arrivals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiveCounts([u64; COUNTS_COUNT]);

impl ReceiveCounts {
    /// Counts in the order of [`ReceiveCount`].
    #[must_use]
    pub const fn new(counts: [u64; COUNTS_COUNT]) -> Self {
        Self(counts)
    }

    /// One of the counts; that of [`ReceiveCount::Spun`] in nanoseconds.
    #[must_use]
    pub const fn get(&self, which: ReceiveCount) -> u64 {
        self.0[which as usize]
    }

    /// How long threads spun.
    #[must_use]
    pub fn spun(&self) -> Nanos {
        Nanos::new(i64::try_from(self.get(ReceiveCount::Spun)).unwrap_or(i64::MAX))
    }

    /// The counts in the order of [`ReceiveCount`].
    #[must_use]
    pub const fn to_array(self) -> [u64; COUNTS_COUNT] {
        self.0
    }

    /// The sums with `more`, saturating.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        Self(core::array::from_fn(|number| self.0[number].saturating_add(more.0[number])))
    }

    /// What was added since `earlier`; 0 for a count that shrank.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|number| self.0[number].saturating_sub(earlier.0[number])))
    }

    /// The greater of each count: a program can only raise what is shown.
    #[must_use]
    pub fn at_least(self, earlier: Self) -> Self {
        Self(core::array::from_fn(|number| self.0[number].max(earlier.0[number])))
    }
}

/// A listener as its program describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerReading {
    /// The entry's number.
    pub index: u8,
    /// Its socket.
    pub name: ListenerName,
    /// Its socket's SO_COOKIE; 0 = unknown.
    pub cookie: u64,
    /// What it counted.
    pub counts: ReceiveCounts,
}

/// A copy of the program's part of the area.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The listeners, by the number of their entries.
    pub listeners: Vec<ListenerReading>,
    /// The sum of all counts: of these listeners, and of those that are over.
    pub total: ReceiveCounts,
}

fn read_counts(words: &impl Words, at: usize) -> ReceiveCounts {
    ReceiveCounts(core::array::from_fn(|number| words.load64(at + 8 * number, Relaxed)))
}

/// Reads the area at `area`, with its first `entries` entries: a fixed number of loads. An entry that changes hands meanwhile is no listener now, but its counts are in
/// the sum.
pub fn read(words: &impl Words, area: usize, entries: usize) -> Reading {
    let mut reading = Reading { total: read_counts(words, area + ENDED), ..Reading::default() };
    // Who sees a count among those of listeners that are over sees it in no entry.
    words.fence(Acquire);
    for listener in (0..entries as u8).filter_map(Listener::from_index) {
        let at = listener.at(area);
        // Acquire: the cookie is this name's or 0.
        let word = words.load64(at, Acquire);
        let cookie = words.load64(at + COOKIE, Relaxed);
        let counts = read_counts(words, at + COUNTS);
        reading.total = reading.total.plus(counts);
        words.fence(Acquire);
        if words.load64(at, Relaxed) != word {
            continue;
        }
        if let Some(name) = ListenerName::from_word(word) {
            reading.listeners.push(ListenerReading { index: listener.index(), name, cookie, counts });
        }
    }
    reading
}

/// Grants `share` parts per thousand of one CPU until `until`.
pub fn set_grant(words: &impl Words, area: usize, share: u32, until: Monotonic) {
    words.store32(area + GRANT, share.min(WHOLE_CPU), Relaxed);
    // Release: who sees the instant sees the share.
    words.store64(area + GRANTED_UNTIL, until.as_nanos(), Release);
}

/// The receive area of one client. It keeps the region mapped.
#[derive(Clone, Debug)]
pub struct ReceiveArea {
    memory: Arc<GuardedMapping>,
    at: usize,
}

impl ReceiveArea {
    pub(crate) const fn new(memory: Arc<GuardedMapping>, at: usize) -> Self {
        Self { memory, at }
    }

    /// Grants the process `share` parts per thousand of one CPU until `until`. Only when the region is sealed.
    pub fn grant(&self, share: u32, until: Monotonic) {
        set_grant(&self.memory.words(), self.at, share, until);
    }

    /// Says which period the arrivals have; [`Nanos::ZERO`]: none is known. Only when the region is sealed, or before its program has it.
    pub fn set_period(&self, period: Nanos) {
        self.memory.words().store64(self.at + PERIOD, period.get().cast_unsigned(), Relaxed);
    }

    /// Withdraws the grant. Only when the region is sealed.
    pub fn withdraw(&self) {
        self.grant(0, Monotonic::ZERO);
    }

    /// A copy of what the program wrote. Only when the region is sealed.
    #[must_use]
    pub fn read(&self) -> Reading {
        read(&self.memory.words(), self.at, LISTENERS_COUNT)
    }
}
