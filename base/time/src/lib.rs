// SPDX-License-Identifier: Apache-2.0
//! Instants and spans, one type per clock.
//!
//! In: nanosecond counts that the caller read from a clock. Out: checked arithmetic.
//! Two instants of one clock give a [`Nanos`] or a [`Span`]; instants of different clocks never mix.
//! [`Offset`] converts between clocks.
//! This crate reads no clock, uses no float and allocates nothing.
#![no_std]
#![forbid(unsafe_code)]

use core::fmt;
use core::ops::{Add, Rem, Sub};

/// A signed span in nanoseconds (±292 years).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(i64);

impl Nanos {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span.
    pub const MAX: Self = Self(i64::MAX);
    /// The most negative span.
    pub const MIN: Self = Self(i64::MIN);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn new(nanos: i64) -> Self {
        Self(nanos)
    }
    /// A span of `micros` microseconds, saturating.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros.saturating_mul(1_000))
    }
    /// A span of `millis` milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }
    /// A span of `seconds` seconds, saturating.
    #[must_use]
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(1_000_000_000))
    }
    /// The count of nanoseconds.
    #[must_use]
    pub const fn get(self) -> i64 {
        self.0
    }
    /// `self + other`, or `None` when it does not fit.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }
    /// `self - other`, or `None` when it does not fit.
    #[must_use]
    pub const fn checked_sub(self, other: Self) -> Option<Self> {
        match self.0.checked_sub(other.0) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }
    /// `self + other`, limited to the range.
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
    /// `self - other`, limited to the range.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// `self * factor`, limited to the range.
    #[must_use]
    pub const fn saturating_mul(self, factor: i64) -> Self {
        Self(self.0.saturating_mul(factor))
    }
    /// The magnitude, limited to the range.
    #[must_use]
    pub const fn abs(self) -> Self {
        Self(self.0.saturating_abs())
    }
    /// Whether the span is shorter than nothing.
    #[must_use]
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ns", self.0)
    }
}

/// A span in nanoseconds that is never negative, up to 584 years: it holds every distance between two instants of one clock.
///
/// `+` and `-` are for spans whose result is known to fit; they panic like the operators of `u64` in a debug build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The longest span; used as "for ever".
    pub const ENDLESS: Self = Self(u64::MAX);

    /// A span of `nanos` nanoseconds.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }
    /// A span of `nanos` nanoseconds, at most [`Self::ENDLESS`].
    #[must_use]
    pub const fn from_wide(nanos: u128) -> Self {
        if nanos > u64::MAX as u128 { Self::ENDLESS } else { Self(nanos as u64) }
    }
    /// `nanos`, or no time where that is negative.
    #[must_use]
    pub const fn not_negative(nanos: Nanos) -> Self {
        if nanos.is_negative() { Self::ZERO } else { Self(nanos.get().unsigned_abs()) }
    }
    /// The count of nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }
    /// The span as a signed one, at most [`Nanos::MAX`].
    #[must_use]
    pub const fn to_nanos(self) -> Nanos {
        if self.0 > i64::MAX as u64 { Nanos::MAX } else { Nanos(self.0 as i64) }
    }
    /// `self + other`, at most [`Self::ENDLESS`].
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
    /// `self - other`, or no time where `other` is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// `self + other`, or `None` when it does not fit.
    #[must_use]
    pub const fn checked_add(self, other: Self) -> Option<Self> {
        match self.0.checked_add(other.0) {
            Some(n) => Some(Self(n)),
            None => None,
        }
    }
}

impl Add for Span {
    type Output = Self;
    #[inline]
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl Sub for Span {
    type Output = Self;
    #[inline]
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl Rem for Span {
    type Output = Self;
    #[inline]
    fn rem(self, other: Self) -> Self {
        Self(self.0 % other.0)
    }
}

macro_rules! clock {
    ($(#[$doc:meta])* $name:ident, $label:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u64);

        impl $name {
            /// The clock's zero.
            pub const ZERO: Self = Self(0);
            /// The furthest instant; used as "never".
            pub const MAX: Self = Self(u64::MAX);

            /// The instant `nanos` nanoseconds after the clock's zero.
            #[must_use]
            pub const fn from_nanos(nanos: u64) -> Self {
                Self(nanos)
            }
            /// Nanoseconds since the clock's zero.
            #[must_use]
            pub const fn as_nanos(self) -> u64 {
                self.0
            }
            /// The instant `span` later (earlier when negative), or `None` when it does not fit.
            #[must_use]
            pub const fn checked_add(self, span: Nanos) -> Option<Self> {
                match self.0.checked_add_signed(span.get()) {
                    Some(n) => Some(Self(n)),
                    None => None,
                }
            }
            /// The instant `span` later, limited to the range.
            #[must_use]
            pub const fn saturating_add(self, span: Nanos) -> Self {
                Self(self.0.saturating_add_signed(span.get()))
            }
            /// The instant `span` earlier, limited to the range.
            #[must_use]
            pub const fn saturating_sub(self, span: Nanos) -> Self {
                if span.get() == i64::MIN {
                    return Self(self.0.saturating_add(1 << 63));
                }
                Self(self.0.saturating_add_signed(-span.get()))
            }
            /// The instant `span` later, or `None` when it does not fit.
            #[must_use]
            pub const fn checked_after(self, span: Span) -> Option<Self> {
                match self.0.checked_add(span.0) {
                    Some(n) => Some(Self(n)),
                    None => None,
                }
            }
            /// The instant `span` later, limited to the range.
            #[must_use]
            pub const fn after(self, span: Span) -> Self {
                Self(self.0.saturating_add(span.0))
            }
            /// The instant `span` earlier, at least the clock's zero.
            #[must_use]
            pub const fn before(self, span: Span) -> Self {
                Self(self.0.saturating_sub(span.0))
            }
            /// The time from `earlier` to `self`; no time where `earlier` comes later.
            #[must_use]
            pub const fn span_since(self, earlier: Self) -> Span {
                Span(self.0.saturating_sub(earlier.0))
            }
            /// The time from `earlier` to `self`, or `None` where `earlier` comes later.
            #[must_use]
            pub const fn checked_span_since(self, earlier: Self) -> Option<Span> {
                match self.0.checked_sub(earlier.0) {
                    Some(n) => Some(Span(n)),
                    None => None,
                }
            }
            /// `self - earlier`, limited to the range of [`Nanos`].
            #[must_use]
            pub const fn since(self, earlier: Self) -> Nanos {
                let span = self.0 as i128 - earlier.0 as i128;
                if span > i64::MAX as i128 {
                    Nanos::MAX
                } else if span < i64::MIN as i128 {
                    Nanos::MIN
                } else {
                    Nanos::new(span as i64)
                }
            }
        }

        impl Instant for $name {
            #[inline]
            fn from_nanos(nanos: u64) -> Self {
                Self(nanos)
            }
            #[inline]
            fn as_nanos(self) -> u64 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!("{}.{:09} ", $label), self.0 / 1_000_000_000, self.0 % 1_000_000_000)
            }
        }
    };
}

clock!(
    /// An instant of `CLOCK_TAI`, the clock of 802.1Q schedules and of etf.
    Tai,
    "TAI"
);
clock!(
    /// An instant of `CLOCK_MONOTONIC`, the clock that the worker waits on and that fq uses.
    Monotonic,
    "monotonic"
);

/// An instant of one clock: code that works the same on every clock takes this type parameter.
pub trait Instant: Copy + Ord {
    /// The instant `nanos` nanoseconds after the clock's zero.
    #[must_use]
    fn from_nanos(nanos: u64) -> Self;
    /// Nanoseconds since the clock's zero.
    #[must_use]
    fn as_nanos(self) -> u64;
}

/// A transmit time as a program asked for it: the clock belongs to the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TxTime {
    /// Asked in `CLOCK_TAI` (etf).
    Tai(Tai),
    /// Asked in `CLOCK_MONOTONIC` (fq).
    Monotonic(Monotonic),
}

impl TxTime {
    /// How far ahead of `now` the transmit time lies; negative when it has passed.
    #[must_use]
    pub const fn ahead_of(self, now: Now) -> Nanos {
        match self {
            Self::Tai(at) => at.since(now.tai),
            Self::Monotonic(at) => at.since(now.monotonic),
        }
    }
    /// The transmit time moved by `span`, limited to the range.
    #[must_use]
    pub const fn saturating_add(self, span: Nanos) -> Self {
        match self {
            Self::Tai(at) => Self::Tai(at.saturating_add(span)),
            Self::Monotonic(at) => Self::Monotonic(at.saturating_add(span)),
        }
    }
}

/// One instant read on both clocks: what a decision is made with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The instant in TAI.
    pub tai: Tai,
    /// The instant in monotonic time.
    pub monotonic: Monotonic,
}

/// `TAI − MONOTONIC` at one moment; constant between clock steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offset(Nanos);

impl Offset {
    /// The offset for which `tai` and `monotonic` are the same instant.
    #[must_use]
    pub const fn between(tai: Tai, monotonic: Monotonic) -> Self {
        let span = tai.as_nanos() as i128 - monotonic.as_nanos() as i128;
        if span > i64::MAX as i128 { Self(Nanos::MAX) } else { Self(Nanos::new(span as i64)) }
    }
    /// The span that is added to monotonic time to get TAI.
    #[must_use]
    pub const fn span(self) -> Nanos {
        self.0
    }
    /// The TAI instant of a monotonic one, limited to the range.
    #[must_use]
    pub const fn tai(self, at: Monotonic) -> Tai {
        Tai::from_nanos(at.as_nanos().saturating_add_signed(self.0.get()))
    }
    /// The monotonic instant of a TAI one, limited to the range.
    #[must_use]
    pub const fn monotonic(self, at: Tai) -> Monotonic {
        Monotonic::from_nanos(at.as_nanos()).saturating_sub(self.0)
    }
    /// Both clocks at `at`.
    #[must_use]
    pub const fn now(self, at: Monotonic) -> Now {
        Now { tai: self.tai(at), monotonic: at }
    }
}

#[cfg(test)]
mod tests;
