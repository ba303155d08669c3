// SPDX-License-Identifier: Apache-2.0
//! The page that a host publishes: the layout of Linux' `vmclock_abi`, and KTSN's own words behind it.
//!
//! In: words of shared memory; the page may say anything. Out: a checked [`Page`], or a [`PageError`] that names the lie. A page pairs a value
//! of the host's counter with `CLOCK_REALTIME` and the counter's period, so that any later counter value has a time.

use crate::seqlock::{self, Busy, Memory};
use crate::{Host, Utc};
use ktsn_time::Nanos;

/// Words of the page that are used.
pub const WORDS: usize = 40;
/// "VCLK", at octet 0.
const MAGIC: u32 = 0x4b4c_4356;
const VERSION: u16 = 1;
const TIME_UTC: u8 = 0;
/// The word of the sequence count; its lower half holds version, counter and kind of time.
const COUNT_WORD: usize = 1;
/// "KTSNvPTP", and a version of its own.
const OWN_MAGIC: u64 = u64::from_le_bytes(*b"KTSNvP01");
/// Where KTSN's own words begin.
const OWN: usize = 32;
/// The words that change: vmclock's behind the count, then KTSN's own.
const CHANGING: [usize; 17] =
    [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, OWN, OWN + 1, OWN + 2, OWN + 3, OWN + 4, OWN + 5];
const TAI_VALID: u64 = 1 << 0;
const PERIOD_MAX_ERROR_VALID: u64 = 1 << 4;
const ESTIMATED_ERROR_VALID: u64 = 1 << 5;
const MAX_ERROR_VALID: u64 = 1 << 6;
/// Counters are between 1 MHz and 100 GHz.
const PERIOD_NS: std::ops::RangeInclusive<f64> = 0.01..=1000.0;
const SHIFT_MAX: u8 = 63;
/// 2017 to 2223: Linux sets no clock beyond 2232 (`TIME_SETTOD_SEC_MAX`), and the clock goes on from here.
const SECONDS: std::ops::RangeInclusive<u64> = 1_483_228_800..=8_000_000_000;
/// vmclock's field has the sign of UTC − TAI: Linux computes TAI as UTC less the field (`tai_adjust` of ptp_vmclock). UTC − TAI was −10 s in
/// 1972 and is −37 s since 2017; 0: not known.
const UTC_LESS_TAI_SECONDS: std::ops::RangeInclusive<i16> = -99..=0;
/// A ktsn before 0.1.0 wrote TAI − UTC into the field.
const OLDER_TAI_SECONDS: std::ops::RangeInclusive<i16> = 1..=99;
/// A follower waits some of these for a window, and calls a page of 1.5 s too old.
const INTERVAL: std::ops::RangeInclusive<u64> = 1_000_000..=1_000_000_000;
const LEAP_MAX: u8 = 5;

/// Which counter a page speaks of, by vmclock's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterKind {
    /// `CNTVCT_EL0`.
    ArmVirtual,
    /// The time stamp counter.
    X86Tsc,
}

impl CounterKind {
    const fn number(self) -> u8 {
        match self {
            Self::ArmVirtual => 0,
            Self::X86Tsc => 1,
        }
    }
}

/// What the host says about its own clock, by vmclock's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Nothing is known.
    Unknown,
    /// Not synchronised yet.
    Initializing,
    /// Synchronised.
    Synchronized,
    /// It runs without a reference.
    FreeRunning,
    /// It is broken: the page is not to be used.
    Unreliable,
}

impl Status {
    const ALL: [Self; 5] =
        [Self::Unknown, Self::Initializing, Self::Synchronized, Self::FreeRunning, Self::Unreliable];

    const fn number(self) -> u8 {
        self as u8
    }

    /// The word for it in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Initializing => "initializing",
            Self::Synchronized => "synchronised",
            Self::FreeRunning => "free-running",
            Self::Unreliable => "unreliable",
        }
    }
}

/// A leap second that is near, by vmclock's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Leap {
    /// None.
    None = 0,
    /// One is inserted at the end of the month.
    InsertAhead = 1,
    /// One is deleted at the end of the month.
    DeleteAhead = 2,
    /// It is being inserted.
    Inserting = 3,
    /// One was inserted.
    Inserted = 4,
    /// One was deleted.
    Deleted = 5,
}

impl Leap {
    const ALL: [Self; 6] =
        [Self::None, Self::InsertAhead, Self::DeleteAhead, Self::Inserting, Self::Inserted, Self::Deleted];
}

/// What a page says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    /// Which counter it is about.
    pub kind: CounterKind,
    /// Another value: the counter's relation to time is another one (the guest was moved, or the publisher is a new one).
    pub marker: u64,
    /// The state of the host's clock.
    pub status: Status,
    /// TAI − UTC in seconds.
    pub tai_offset: Option<i16>,
    /// The page has TAI − UTC where UTC − TAI stands: an older ktsn wrote it. [`Page::write`] never does.
    pub has_older_sign: bool,
    /// A leap second.
    pub leap: Leap,
    /// The counter at `time`.
    pub counter: Host,
    /// `CLOCK_REALTIME` at `counter`.
    pub time: Utc,
    /// Nanoseconds between two values of the counter.
    pub period: f64,
    /// How far the period may differ: a share of it.
    pub period_error: f64,
    /// The host's estimate of its error against UTC.
    pub estimated_error: Nanos,
    /// The host's bound of its error against UTC.
    pub max_error: Nanos,
    /// How often the page is published.
    pub interval: Nanos,
    /// The bound of the error with which counter and time were read as one.
    pub reading_error: Nanos,
    /// The window that is open for exchanges; 0: none.
    pub window: u64,
    /// Windows that were opened.
    pub windows: u64,
    /// CPU time that the publisher has used.
    pub cpu: Nanos,
}

/// What is wrong with a page.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PageError {
    /// Nothing has been published.
    #[error(
        "the page has the magic number {0:#010x}, expected 0x4b4c4356 (\"VCLK\"): no publisher has written it; start `ktsn clock publish`"
    )]
    Magic(u32),
    /// Another version.
    #[error("the page has version {0}, expected {VERSION}; use the same ktsn on the host and in the guest")]
    Version(u16),
    /// Its length.
    #[error("the page says that it has {0} octets, expected at least {expected}", expected = WORDS * 8)]
    Size(u32),
    /// The count stays odd, or changes at each try.
    #[error(
        "the page is being written at each look (count {0}); its publisher may have ended within a write"
    )]
    Busy(u32),
    /// Another counter than this processor's.
    #[error("the page is about the counter {0}, which this processor does not have")]
    Counter(u8),
    /// Another kind of time.
    #[error("the page has time of the kind {0}, expected 0 (UTC)")]
    TimeType(u8),
    /// Not of KTSN.
    #[error(
        "the page has no KTSN words ({0:#018x}); `ktsn clock follow` needs a page of `ktsn clock publish`"
    )]
    NotOurs(u64),
    /// An impossible period.
    #[error("the page's counter period is {0} ns, expected 0.01 to 1000")]
    Period(f64),
    /// The period's unit.
    #[error("the page's period has a shift of {0}, expected at most {SHIFT_MAX}")]
    Shift(u8),
    /// The period's error.
    #[error("the page's counter period may differ by the share {0}, expected 0 to 0.1")]
    PeriodError(f64),
    /// A period that another page just before contradicts.
    #[error(
        "the page's counter period went from {before} to {now} ns, more than the limit of 0.1 % between two pages"
    )]
    PeriodJump {
        /// Nanoseconds.
        before: f64,
        /// Nanoseconds.
        now: f64,
    },
    /// A time that no clock shows.
    #[error("the page's time is {0} s after 1970, expected 2017 to 2223")]
    Time(u64),
    /// A time far from the one before.
    #[error(
        "the page's time jumped by {by}, more than the limit of {limit}; if the host's clock was really set, start the follower again"
    )]
    Jump {
        /// How far.
        by: Nanos,
        /// The limit.
        limit: Nanos,
    },
    /// The counter went back although the marker stayed.
    #[error("the page's counter went back by {0} without a new disruption marker")]
    CounterBack(u64),
    /// A counter value that the host's counter has not reached.
    #[error("the page's counter is {0} ahead of the host's own, which an exchange found")]
    CounterAhead(u64),
    /// An impossible offset of TAI.
    #[error("the page's tai_offset_sec (UTC - TAI) is {0} s, expected -99 to 0, or 1 to 99 of an older ktsn")]
    Tai(i16),
    /// An unknown state.
    #[error("the page's clock status is {0}, expected 0 to 4")]
    Status(u8),
    /// An unknown leap indicator.
    #[error("the page's leap indicator is {0}, expected 0 to {LEAP_MAX}")]
    Leap(u8),
    /// The host says that its clock is not to be used.
    #[error("the host says that its clock is {}", .0.name())]
    Unusable(Status),
    /// An impossible interval.
    #[error("the page is published each {0} ns, expected 1 ms to 1 s")]
    Interval(u64),
    /// An impossible error.
    #[error("the page's reading error is {0} ns, expected at most 1 s")]
    ReadingError(u64),
}

/// Whether octets of a file begin as a page does.
pub(crate) fn is_page(octets: &[u8]) -> bool {
    octets.starts_with(&MAGIC.to_le_bytes())
}

/// A page's constant words and its changing ones.
fn constant_words(octets: u32, kind: CounterKind) -> (u64, u32) {
    let low = u32::from(VERSION) | u32::from(kind.number()) << 16 | u32::from(TIME_UTC) << 24;
    (u64::from(octets) << 32 | u64::from(MAGIC), low)
}

/// A period in ns as vmclock has it: value and shift, in 2^-(64 + shift) s, with 63 significant bits.
fn period_words(period: f64) -> (u64, u8) {
    let seconds = period * 1e-9;
    // 2^63 ≤ value·2^shift: the largest shift that fits.
    let mut shift = 0_u8;
    let mut value = seconds * 2_f64.powi(64);
    while value < 2_f64.powi(62) && shift < SHIFT_MAX {
        value *= 2.0;
        shift += 1;
    }
    (value as u64, shift)
}

/// The counter's period in nanoseconds.
fn period_of(word: u64, shift: u8) -> Result<f64, PageError> {
    if shift > SHIFT_MAX {
        return Err(PageError::Shift(shift));
    }
    let period = word as f64 * 2_f64.powi(-64 - i32::from(shift)) * 1e9;
    if PERIOD_NS.contains(&period) { Ok(period) } else { Err(PageError::Period(period)) }
}

/// The period's greatest error as a share of it; a page that states none may be off by a tenth.
fn period_error_of(period: u64, stated: Option<u64>) -> Result<f64, PageError> {
    let error = stated.map_or(0.1, |error| error as f64 / period as f64);
    if (0.0..=0.1).contains(&error) { Ok(error) } else { Err(PageError::PeriodError(error)) }
}

fn nanos(value: Nanos) -> u64 {
    u64::try_from(value.get()).unwrap_or(0)
}

fn to_nanos(value: u64) -> Nanos {
    Nanos::new(i64::try_from(value).unwrap_or(i64::MAX))
}

impl Page {
    /// Writes the page, which has `octets`. There is one writer at a time.
    pub fn write(&self, memory: &impl Memory, octets: u32) {
        let (first, constant) = constant_words(octets, self.kind);
        memory.store(0, first);
        let (period, shift) = period_words(self.period);
        let flags = PERIOD_MAX_ERROR_VALID
            | ESTIMATED_ERROR_VALID
            | MAX_ERROR_VALID
            | if self.tai_offset.is_some() { TAI_VALID } else { 0 };
        let utc_less_tai = self.tai_offset.map_or(0, i16::wrapping_neg).cast_unsigned();
        let small = u64::from(self.status.number()) << 16
            | u64::from(utc_less_tai) << 32
            | u64::from(self.leap as u8) << 48
            | u64::from(shift) << 56;
        let (seconds, below) = (self.time.0 / 1_000_000_000, self.time.0 % 1_000_000_000);
        // Rounded up, so that reading gives the nanosecond back.
        let fraction = (u128::from(below) << 64).div_ceil(1_000_000_000) as u64;
        let values = [
            self.marker,
            flags,
            small,
            self.counter.0,
            period,
            0,
            (period as f64 * self.period_error) as u64,
            seconds,
            fraction,
            nanos(self.estimated_error),
            nanos(self.max_error),
            OWN_MAGIC,
            nanos(self.interval),
            self.window,
            self.windows,
            nanos(self.reading_error),
            nanos(self.cpu),
        ];
        seqlock::write(memory, COUNT_WORD, constant, CHANGING.into_iter().zip(values));
    }

    /// Reads and checks a page; with it the count of its write.
    ///
    /// # Errors
    /// [`PageError`].
    pub fn read(memory: &impl Memory, kind: CounterKind) -> Result<(Self, u32), PageError> {
        let first = memory.load(0);
        let (magic, octets) = (first as u32, (first >> 32) as u32);
        if magic != MAGIC {
            return Err(PageError::Magic(magic));
        }
        if (octets as usize) < WORDS * 8 {
            return Err(PageError::Size(octets));
        }
        let constant = memory.load(COUNT_WORD) as u32;
        let (version, counter, time_type) = (constant as u16, (constant >> 16) as u8, (constant >> 24) as u8);
        if version != VERSION {
            return Err(PageError::Version(version));
        }
        if counter != kind.number() {
            return Err(PageError::Counter(counter));
        }
        if time_type != TIME_UTC {
            return Err(PageError::TimeType(time_type));
        }
        let (words, count) =
            seqlock::read(memory, COUNT_WORD, CHANGING).map_err(|Busy { count }| PageError::Busy(count))?;
        Ok((Self::from_words(kind, &words)?, count))
    }

    fn from_words(kind: CounterKind, words: &[u64; CHANGING.len()]) -> Result<Self, PageError> {
        let &[
            marker,
            flags,
            small,
            counter,
            period_word,
            _,
            period_error_word,
            seconds,
            fraction,
            estimated_error,
            max_error,
            own,
            interval,
            window,
            windows,
            reading_error,
            cpu,
        ] = words;
        if own != OWN_MAGIC {
            return Err(PageError::NotOurs(own));
        }
        let (status, leap, shift) = ((small >> 16) as u8, (small >> 48) as u8, (small >> 56) as u8);
        let utc_less_tai = ((small >> 32) as u16).cast_signed();
        let status = *Status::ALL.get(usize::from(status)).ok_or(PageError::Status(status))?;
        if matches!(status, Status::Unreliable | Status::Unknown) {
            return Err(PageError::Unusable(status));
        }
        let leap = *Leap::ALL.get(usize::from(leap)).ok_or(PageError::Leap(leap))?;
        let period = period_of(period_word, shift)?;
        let stated = (flags & PERIOD_MAX_ERROR_VALID != 0).then_some(period_error_word);
        let period_error = period_error_of(period_word, stated)?;
        if !SECONDS.contains(&seconds) {
            return Err(PageError::Time(seconds));
        }
        let has_tai = flags & TAI_VALID != 0;
        let has_older_sign = has_tai && OLDER_TAI_SECONDS.contains(&utc_less_tai);
        if has_tai && !has_older_sign && !UTC_LESS_TAI_SECONDS.contains(&utc_less_tai) {
            return Err(PageError::Tai(utc_less_tai));
        }
        if !INTERVAL.contains(&interval) {
            return Err(PageError::Interval(interval));
        }
        if reading_error > 1_000_000_000 {
            return Err(PageError::ReadingError(reading_error));
        }
        let whole = u128::from(fraction) * 1_000_000_000;
        let error = |flag: u64, value: u64| if flags & flag == 0 { Nanos::MAX } else { to_nanos(value) };
        Ok(Self {
            kind,
            marker,
            status,
            tai_offset: has_tai.then(|| utc_less_tai.wrapping_abs()),
            has_older_sign,
            leap,
            counter: Host(counter),
            time: Utc(seconds * 1_000_000_000 + (whole >> 64) as u64),
            period,
            period_error,
            estimated_error: error(ESTIMATED_ERROR_VALID, estimated_error),
            max_error: error(MAX_ERROR_VALID, max_error),
            interval: to_nanos(interval),
            window,
            windows,
            reading_error: to_nanos(reading_error),
            cpu: to_nanos(cpu),
        })
    }

    /// The host's time when its counter is `at`, limited to the range.
    #[must_use]
    pub fn time_at(&self, at: Host) -> Utc {
        let ticks = i128::from(at.0) - i128::from(self.counter.0);
        // The product is exact to 2⁻⁵³ of the span since the page.
        let nanos = (ticks as f64 * self.period).round() as i128;
        let time = i128::from(self.time.0) + nanos;
        Utc(u64::try_from(time).unwrap_or(if time < 0 { 0 } else { u64::MAX }))
    }

    /// How long after the page `at` is.
    #[must_use]
    pub fn age(&self, at: Host) -> Nanos {
        let ticks = i128::from(at.0) - i128::from(self.counter.0);
        Nanos::new((ticks as f64 * self.period) as i64)
    }

    /// Holds the page against the one before.
    ///
    /// # Errors
    /// What two pages of one host cannot say one after the other.
    pub fn check_after(&self, before: &Self, jump_max: Nanos) -> Result<(), PageError> {
        if self.marker != before.marker {
            return Ok(());
        }
        if self.counter < before.counter {
            return Err(PageError::CounterBack(before.counter.0 - self.counter.0));
        }
        if (self.period / before.period - 1.0).abs() > 1e-3 {
            return Err(PageError::PeriodJump { before: before.period, now: self.period });
        }
        let by = self.time.since(before.time_at(self.counter));
        if by > jump_max || by < Nanos::new(-jump_max.get()) {
            return Err(PageError::Jump { by, limit: jump_max });
        }
        Ok(())
    }
}
