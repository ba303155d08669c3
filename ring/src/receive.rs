// SPDX-License-Identifier: Apache-2.0
//! The receive area: the page behind a region in which the daemon grants *expected arrival*, and the program counts it.
//!
//! In: the daemon's grant, the period that the daemon knows, the program's listeners and counts. Out: the share of one CPU that the process may spin, and what is shown
//! of each listener. `docs/design/ring-abi.md` has the layout. The area decides nothing about frames.
//!
//! The program's side ([`Receive`]) is wait-free and async-signal-safe. The daemon's side (`ReceiveArea`) believes no word
//! of the program: an entry that makes no sense is no listener, and counts saturate.
//!
//! ```text
//! daemon    period, before the program maps the region and later
//! program   claim an entry (CAS: 0 → name) → its cookie → counts … → counts to `ended` → cookie 0 → name 0
//! daemon    grant, granted_until;  name → cookie, counts → name again
//! ```

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ktsn_time::{Monotonic, Nanos};

pub use crate::layout::AREA_OCTETS;
use crate::layout::{LATER_HORIZON, LINE_OCTETS, RECEIVE_OCTETS};
use crate::producer::Producer;
use crate::words::{Mapping, Words};

#[cfg(feature = "daemon")]
mod area;
#[cfg(feature = "daemon")]
pub use area::{ListenerReading, Reading, ReceiveArea, ReceiveCounts, read, set_grant};

/// Entries for listeners.
pub const LISTENERS_COUNT: usize = 32;
/// Counts of a listener.
pub const COUNTS_COUNT: usize = 5;
/// The whole of one CPU in a grant: parts per thousand.
pub const WHOLE_CPU: u32 = 1_000;

/// Share of one CPU that the process may spin, parts per thousand, u32 (daemon).
pub const GRANT: usize = 0;
/// Until when the grant holds, nanoseconds of `CLOCK_MONOTONIC`, u64 (daemon).
pub const GRANTED_UNTIL: usize = 8;
/// The period of the arrivals that the daemon knows, nanoseconds, u64 (daemon); 0 = it knows none.
pub const PERIOD: usize = 16;
/// Counts of the listeners that are over, u64 each (program).
pub const ENDED: usize = 64;
/// The listeners' entries (program).
pub const LISTENERS: usize = 128;
/// Octets of an entry.
pub const LISTENER_OCTETS: usize = LINE_OCTETS;
/// In an entry: its socket's SO_COOKIE, u64; 0 = not written.
pub const COOKIE: usize = 8;
/// In an entry: its counts, u64 each.
pub const COUNTS: usize = 16;

const _: () =
    assert!(GRANTED_UNTIL + 8 <= PERIOD && PERIOD + 8 <= ENDED && ENDED + 8 * COUNTS_COUNT <= LISTENERS);
const _: () = assert!(LISTENERS.is_multiple_of(LINE_OCTETS) && COUNTS + 8 * COUNTS_COUNT <= LISTENER_OCTETS);
const _: () = assert!(LISTENERS + LISTENERS_COUNT * LISTENER_OCTETS <= AREA_OCTETS);

/// What a listener counts. The number is the place among an entry's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ReceiveCount {
    /// Arrivals that the thread waited for as predicted.
    Expected = 0,
    /// Expected arrivals that came while the thread was awake for them.
    Hit = 1,
    /// Expected arrivals that came before the thread was awake for them.
    Early = 2,
    /// Expected arrivals that did not come in their window.
    Missed = 3,
    /// Nanoseconds in which the thread spun.
    Spun = 4,
}

/// A listener's socket, as it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenerName {
    /// UDP over IPv4, with its local port.
    Udp4(u16),
    /// UDP over IPv6, with its local port.
    Udp6(u16),
    /// A packet socket, with the interface that it is bound to; 0 = all.
    Packet(u32),
}

/// Linux's AF_INET, AF_INET6 and AF_PACKET.
const FAMILIES: [u8; 3] = [2, 10, 17];

impl ListenerName {
    /// The word in the entry, never 0: port in bits 0–15, address family in bits 16–23, interface in bits 32–63.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        let [inet, inet6, packet] = FAMILIES;
        match self {
            Self::Udp4(port) => port as u64 | (inet as u64) << 16,
            Self::Udp6(port) => port as u64 | (inet6 as u64) << 16,
            Self::Packet(interface) => (packet as u64) << 16 | (interface as u64) << 32,
        }
    }

    /// The name in an entry's word; `None` for 0 and for every word that [`Self::to_word`] does not make.
    #[must_use]
    pub const fn from_word(word: u64) -> Option<Self> {
        let [inet, inet6, packet] = FAMILIES;
        let family = (word >> 16) as u8;
        let name = if family == inet {
            Self::Udp4(word as u16)
        } else if family == inet6 {
            Self::Udp6(word as u16)
        } else if family == packet {
            Self::Packet((word >> 32) as u32)
        } else {
            return None;
        };
        if name.to_word() == word { Some(name) } else { None }
    }
}

/// An entry that a socket of the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener(u8);

impl Listener {
    /// The entry's number, below [`LISTENERS_COUNT`].
    #[must_use]
    pub const fn index(self) -> u8 {
        self.0
    }

    /// The entry of a number that [`Self::index`] gave; `None` where there is no such entry.
    #[must_use]
    pub const fn from_index(index: u8) -> Option<Self> {
        if (index as usize) < LISTENERS_COUNT { Some(Self(index)) } else { None }
    }

    const fn at(self, area: usize) -> usize {
        area.wrapping_add(LISTENERS).wrapping_add(LISTENER_OCTETS.wrapping_mul(self.0 as usize))
    }
}

/// Claims a free entry, of the first `entries` ones of the area at `area`, for a socket; `None` when none is free. Wait-free: it looks
/// at each entry twice at most.
#[inline]
pub fn claim(
    words: &impl Words,
    area: usize,
    entries: usize,
    name: ListenerName,
    cookie: u64,
) -> Option<Listener> {
    let entries = if entries < LISTENERS_COUNT { entries } else { LISTENERS_COUNT };
    // An exchange may fail for no reason, so a free entry gets a second chance.
    for index in (0..entries).chain(0..entries) {
        let listener = Listener(index as u8);
        let at = listener.at(area);
        // Acquire: the last owner has emptied the entry.
        if words.load64(at, Relaxed) == 0 && words.exchange64(at, 0, name.to_word(), Acquire).is_ok() {
            // Release: who reads the cookie and then the name again finds this name, or a later one.
            words.store64(at.wrapping_add(COOKIE), cookie, Release);
            return Some(listener);
        }
    }
    None
}

/// Frees a claimed entry: its counts move to those of the listeners that are over. Wait-free. The caller frees an entry once.
#[inline]
pub fn free(words: &impl Words, area: usize, listener: Listener) {
    let at = listener.at(area);
    for number in 0..COUNTS_COUNT {
        let offset = number.wrapping_mul(8);
        let place = at.wrapping_add(COUNTS).wrapping_add(offset);
        let count = words.load64(place, Relaxed);
        // First away, then there: the sum of both never shows a count twice. What a thread adds in between stays in the entry, and
        // so in the sum.
        words.add64(place, 0u64.wrapping_sub(count));
        words.fence(Release);
        words.add64(area.wrapping_add(ENDED).wrapping_add(offset), count);
    }
    words.store64(at.wrapping_add(COOKIE), 0, Relaxed);
    // Release: who claims the entry, or reads its next name, finds it empty.
    words.store64(at, 0, Release);
}

/// Adds to a count of a claimed entry.
#[inline]
pub fn add(words: &impl Words, area: usize, listener: Listener, which: ReceiveCount, count: u64) {
    let at = listener.at(area).wrapping_add(COUNTS);
    words.add64(at.wrapping_add((which as usize).wrapping_mul(8)), count);
}

/// The share that is granted at `now`, parts per thousand of one CPU.
#[inline]
pub fn grant(words: &impl Words, area: usize, now: Monotonic) -> u32 {
    let until = words.load64(area.wrapping_add(GRANTED_UNTIL), Acquire);
    if now.as_nanos() >= until {
        return 0;
    }
    let share = words.load32(area.wrapping_add(GRANT), Relaxed);
    if share < WHOLE_CPU { share } else { WHOLE_CPU }
}

/// The program's side of the area: a plain value, any number of copies, any thread or signal handler. It is used as long as the
/// [`Producer`] that gave it.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    words: Mapping,
    at: usize,
}

impl Producer {
    /// The receive area; `None` where the daemon is older and made none. One load.
    #[inline]
    #[must_use]
    pub fn receive(&self) -> Option<Receive> {
        let announced = self.words.load32(RECEIVE_OCTETS, Relaxed) as usize;
        let at = self.layout.region_octets();
        let is_there = announced >= AREA_OCTETS && self.words.octets() >= at.saturating_add(AREA_OCTETS);
        is_there.then_some(Receive { words: self.words, at })
    }

    /// How far ahead a datagram's transmit time may be that the daemon takes by a [`crate::control::Later`], milliseconds; 0 = it takes
    /// none.
    #[must_use]
    pub fn later_horizon(&self) -> u32 {
        self.words.load32(LATER_HORIZON, Relaxed)
    }
}

impl Receive {
    /// The share of one CPU that this process may spin at `now`, parts per thousand; 0 = it must not expect. A grant ends by itself: a
    /// daemon that lives renews it.
    #[inline]
    #[must_use]
    pub fn grant(&self, now: Monotonic) -> u32 {
        grant(&self.words, self.at, now)
    }

    /// The period of this process's arrivals, as the daemon knows it; 0 = it knows none. It may change at any time.
    #[inline]
    #[must_use]
    pub fn period(&self) -> Nanos {
        // One word of its own: nothing else is read with it.
        Nanos::new(self.words.load64(self.at.wrapping_add(PERIOD), Relaxed).cast_signed())
    }

    /// Claims an entry for a socket; `None` when all are taken. `cookie` is the socket's SO_COOKIE, 0 = unknown.
    #[inline]
    #[must_use]
    pub fn claim(&self, name: ListenerName, cookie: u64) -> Option<Listener> {
        claim(&self.words, self.at, LISTENERS_COUNT, name, cookie)
    }

    /// Frees an entry, once.
    #[inline]
    pub fn free(&self, listener: Listener) {
        free(&self.words, self.at, listener);
    }

    /// Adds to a count of an entry.
    #[inline]
    pub fn add(&self, listener: Listener, which: ReceiveCount, count: u64) {
        add(&self.words, self.at, listener, which, count);
    }

    /// Adds the time in which a thread spun for an entry; a negative span adds nothing.
    #[inline]
    pub fn add_spun(&self, listener: Listener, spun: Nanos) {
        self.add(listener, ReceiveCount::Spun, spun.get().max(0).cast_unsigned());
    }
}
