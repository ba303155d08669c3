// SPDX-License-Identifier: Apache-2.0
//! The credit of one traffic class (802.1Q-2022 clause 8.6.8.2).
//!
//! In: when frames wait, for how long their gate was open, and what was transmitted, in MONOTONIC instants.
//! Out: whether the class may transmit, and if not, after how much time with an open gate it may.
//! Never: reads a clock, drifts, or gives more than `idleSlope` over any span plus what had been saved up.
//!
//! # The rule
//! ```text
//!  credit                      hiCredit
//!    ▲         ╱╲              ─ ─ ─ ─    waiting, gate open:       rises with idleSlope
//!    │        ╱  ╲ sendSlope              transmitting:             falls with sendSlope = idleSlope − portTransmitRate
//!  0 ┼───────╱────╲──────╱──┐             waiting, gate closed:     stays
//!    │ idle waiting╲    ╱   │reset        nothing waits, credit > 0: 0 at once
//!    │              ╲  ╱ idleSlope        nothing waits, credit < 0: rises with idleSlope up to 0 (gate open)
//!    └──────────────────────────────►
//! ```
//! A frame may be chosen while credit ≥ 0 (`transmitAllowed`).
//!
//! # Exact
//! Credit is kept in billionths of a bit. A slope of n bit/s is n billionths of a bit in a nanosecond, and a bit
//! on the wire is 10^9 of them, so every change is a whole number and nothing is ever rounded: after any history credit is
//! exactly what the clause's real numbers would give at those instants. Sums are held at the ends of `i128`, which
//! lie 10^29 bits away.
//!
//! `sendSlope` needs no number of its own: over a transmission of B bits in T credit changes by sendSlope · T =
//! idleSlope · T − B. Where T is not a whole number of nanoseconds the link counts as busy until the next one,
//! and idleSlope covers that part too, as it would after the end (whatever waits, or credit below 0).
//!
//! # With gates
//! Credit only changes while the gate is open (8.6.8.2, with 8.6.8.4): the caller says how much of the time that passed
//! that was. Where in the span it lay does not matter. A share of the link that is meant over the whole cycle has to be
//! configured as `idleSlope · OperCycleTime / GateOpenTime` where the gate control list is known; nothing here
//! scales it.
//!
//! # What waits
//! A frame waits from its due instant on: what is queued for a TxTime in the future is, to this clause, not there
//! yet, or credit would be saved up by sending far ahead. The caller finds the due instant when it next looks:
//! `advance` to it, `set_waiting(true)`, `advance` to now.

use ktsn_time::{Monotonic, Nanos, Span};

/// Billionths of a bit in a bit.
const UNIT: i128 = 1_000_000_000;
const BITS_PER_OCTET: i128 = 8;

/// What is configured for a class's credit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CreditOptions {
    /// `idleSlope` in bit/s of what occupies the wire; 0 counts as 1, so that a waiting frame leaves some day.
    pub idle_slope: u64,
    /// `hiCredit` in bits: what may be saved up at most. The clause has no limit of its own; it follows from the
    /// longest interference (annex L.1). `None`: no limit. A limit keeps a worker that overslept from sending a burst.
    pub hi_credit: Option<u64>,
    /// `loCredit` as a debt in bits: what may be owed at most after a transmission. Credit below is forgiven: a limit that frames reach
    /// gives the class more than its share. `None`: no limit.
    pub lo_credit: Option<u64>,
}

impl CreditOptions {
    /// A share of the link, without limits to what is saved or owed.
    #[must_use]
    pub const fn new(idle_slope: u64) -> Self {
        Self { idle_slope, hi_credit: None, lo_credit: None }
    }

    /// The limits that annex L.1 derives, rounded up to whole bits: credit saved up during an interference of
    /// `interference_octets` (other classes' frames between two of ours), and owed after one frame of `frame_octets`, both on the
    /// wire of a link of `port_transmit_rate` bit/s.
    #[must_use]
    pub const fn with_limits(
        idle_slope: u64,
        port_transmit_rate: u64,
        interference_octets: u32,
        frame_octets: u32,
    ) -> Self {
        let rate = if port_transmit_rate == 0 { 1 } else { port_transmit_rate as u128 };
        let slope = if idle_slope as u128 > rate { rate } else { idle_slope as u128 };
        let hi_credit = (interference_octets as u128 * 8 * slope).div_ceil(rate) as u64;
        let lo_credit = (frame_octets as u128 * 8 * (rate - slope)).div_ceil(rate) as u64;
        Self { idle_slope, hi_credit: Some(hi_credit), lo_credit: Some(lo_credit) }
    }
}

/// The credit of one class, as of an instant.
///
/// Calls are made in the order of their instants; one before [`as_of`](Self::as_of) changes nothing, which is what
/// happens while a frame of the class is on the wire.
///
/// # Examples
/// ```
/// use ktsn_sched::{Credit, CreditOptions};
/// use ktsn_time::{Monotonic, Nanos};
///
/// let at = Monotonic::from_nanos;
/// let mut credit = Credit::new(CreditOptions::new(250_000_000)); // a quarter of 1 Gbit/s
/// credit.set_waiting(true);
/// assert!(credit.is_transmit_allowed());
/// credit.transmit(at(0), at(1_000), 125); // 1,000 bits in 1 µs
/// assert!(!credit.is_transmit_allowed()); // 750 bits are owed
/// assert_eq!(credit.allowed_at(), at(4_000)); // one in four
/// credit.advance(at(4_000), Nanos::new(3_000));
/// assert!(credit.is_transmit_allowed());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    slope: u64,
    /// Limits and level in billionths of a bit.
    highest: i128,
    lowest: i128,
    level: i128,
    as_of: Monotonic,
    is_waiting: bool,
}

impl Credit {
    /// No credit and nothing that waits, at the clock's zero.
    #[must_use]
    pub fn new(options: CreditOptions) -> Self {
        let mut credit = Self {
            slope: 1,
            highest: i128::MAX,
            lowest: i128::MIN,
            level: 0,
            as_of: Monotonic::ZERO,
            is_waiting: false,
        };
        credit.set_options(options);
        credit
    }

    /// Change what is configured, from [`as_of`](Self::as_of) on.
    pub fn set_options(&mut self, options: CreditOptions) {
        self.slope = options.idle_slope.max(1);
        self.highest = options.hi_credit.map_or(i128::MAX, |bits| i128::from(bits) * UNIT);
        self.lowest = options.lo_credit.map_or(i128::MIN, |bits| i128::from(bits) * -UNIT);
        self.level = self.level.clamp(self.lowest, self.highest);
    }

    /// The instant that everything is known up to; the end of the transmission while there is one.
    #[must_use]
    pub const fn as_of(&self) -> Monotonic {
        self.as_of
    }

    /// Whether a frame waits, as it was set.
    #[must_use]
    pub const fn is_waiting(&self) -> bool {
        self.is_waiting
    }

    /// Time passes up to `now`; the gate was `open` for so long since [`as_of`](Self::as_of) (without gates: all of it; longer
    /// counts as all of it).
    pub fn advance(&mut self, now: Monotonic, open: Nanos) {
        if now < self.as_of {
            return;
        }
        let passed = now.span_since(self.as_of);
        let open = if open == Nanos::MAX { passed } else { Span::not_negative(open).min(passed) };
        let limit = if self.is_waiting { self.highest } else { 0 };
        self.level = self.level.saturating_add(self.gain(open)).min(limit);
        self.as_of = now;
    }

    /// From [`as_of`](Self::as_of) on a frame waits, or none does. The next [`advance`](Self::advance) with nothing waiting takes credit
    /// above 0, even if no time passes. A frame that comes while the last one is still on the wire keeps it.
    pub fn set_waiting(&mut self, is_waiting: bool) {
        self.is_waiting = is_waiting;
    }

    /// A frame of `wire_octets` is on the wire from `start` to `end`, with its gate open. What waits behind it is for
    /// [`set_waiting`](Self::set_waiting) to say.
    pub fn transmit(&mut self, start: Monotonic, end: Monotonic, wire_octets: u32) {
        // It waited until it started.
        self.is_waiting = true;
        self.advance(start, Nanos::MAX);
        let end = end.max(self.as_of);
        let taken = end.span_since(self.as_of);
        let octets = i128::from(wire_octets);
        let after =
            self.level.saturating_add(self.gain(taken)).saturating_sub(octets * BITS_PER_OCTET * UNIT);
        self.level = after.clamp(self.lowest, self.highest);
        self.as_of = end;
    }

    /// `transmitAllowed`: credit is at least 0 at [`as_of`](Self::as_of).
    #[must_use]
    pub const fn is_transmit_allowed(&self) -> bool {
        self.level >= 0
    }

    /// How long the gate has to be open after [`as_of`](Self::as_of) until credit is 0; zero if it is.
    #[must_use]
    pub fn open_time_needed(&self) -> Nanos {
        if self.level >= 0 {
            return Nanos::ZERO;
        }
        let nanos = self.level.unsigned_abs().div_ceil(u128::from(self.slope));
        Nanos::new(i64::try_from(nanos).unwrap_or(i64::MAX))
    }

    /// The instant at which credit reaches 0 if the gate stays open; never before [`as_of`](Self::as_of).
    #[must_use]
    pub fn allowed_at(&self) -> Monotonic {
        self.as_of.saturating_add(self.open_time_needed())
    }

    /// Credit in whole bits, rounded down, for display.
    #[must_use]
    pub fn bits(&self) -> i64 {
        let bits = self.level.div_euclid(UNIT);
        i64::try_from(bits).unwrap_or(if bits < 0 { i64::MIN } else { i64::MAX })
    }

    fn gain(&self, span: Span) -> i128 {
        i128::try_from(u128::from(self.slope) * u128::from(span.as_nanos())).unwrap_or(i128::MAX)
    }
}
