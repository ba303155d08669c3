// SPDX-License-Identifier: Apache-2.0
//! The kernel's `CLOCK_REALTIME`: reading it beside the counter, its state, and steering it.
//!
//! In: commands. Out: readings, or the kernel's error. The caller decides.

use crate::{Utc, counter, sys};
use ktsn_time::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::io;

/// The kernel's frequency unit: 2⁻¹⁶ ppm.
const FREQUENCY: f64 = 65_536e6;
/// The most that the frequency alone changes the rate.
const FREQUENCY_MAX: f64 = 500e-6;
/// A tick of 10,000 µs, in USER_HZ of 100.
const TICK: f64 = 10_000.0;

/// `CLOCK_REALTIME` and the counter as one.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// The counter.
    pub counter: u64,
    /// The time.
    pub time: Utc,
    /// How far the counter may be from the time's instant, in ticks.
    pub error: u64,
}

fn nanos(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Of `tries` the pair with the narrowest bracket.
#[must_use]
pub fn pair(tries: u32) -> Pair {
    let mut best = Pair { counter: 0, time: Utc(0), error: u64::MAX };
    let mut before = counter::read();
    for _ in 0..tries {
        let time = clock_gettime(ClockId::Realtime);
        let after = counter::read();
        let width = after.saturating_sub(before);
        if width / 2 < best.error {
            best = Pair { counter: before + width / 2, time: Utc(nanos(time)), error: width / 2 };
        }
        before = after;
    }
    best
}

/// What a thread of this process may have used of a CPU.
#[must_use]
pub fn thread_cpu() -> Nanos {
    Nanos::new(i64::try_from(nanos(clock_gettime(ClockId::ThreadCPUTime))).unwrap_or(i64::MAX))
}

/// The kernel's judgement of its clock.
#[derive(Clone, Copy, Debug)]
pub struct State {
    /// Whether it is synchronised.
    pub is_synchronised: bool,
    /// TAI − UTC in seconds; 0: not set.
    pub tai_offset: i32,
    /// A leap second at the end of the day: 1 inserted, −1 deleted.
    pub leap: i32,
    /// Estimate of the error.
    pub estimated_error: Nanos,
    /// Bound of the error.
    pub max_error: Nanos,
    /// The frequency correction of the clock, as a share.
    pub rate: f64,
}

/// Reads it; changes nothing.
///
/// # Errors
/// The kernel's, where a sandbox refuses the call.
pub fn state() -> io::Result<State> {
    let mut timex = sys::unchanged();
    let verdict = sys::adjust(&mut timex)?;
    let micros = |value: libc::c_long| Nanos::from_micros(value);
    Ok(State {
        is_synchronised: verdict != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0,
        tai_offset: timex.tai,
        leap: match verdict {
            libc::TIME_INS => 1,
            libc::TIME_DEL => -1,
            _ => 0,
        },
        estimated_error: micros(timex.esterror),
        max_error: micros(timex.maxerror),
        rate: timex.freq as f64 / FREQUENCY + (timex.tick as f64 - TICK) / TICK,
    })
}

/// Frequency (2⁻¹⁶ ppm) and tick (µs) for a rate, as a share.
fn frequency_and_tick(rate: f64) -> (i64, i64) {
    let ticks = if rate.abs() > FREQUENCY_MAX { (rate * TICK).round() } else { 0.0 };
    let rest = (rate - ticks / TICK).clamp(-FREQUENCY_MAX, FREQUENCY_MAX);
    ((rest * FREQUENCY).round() as i64, (TICK + ticks) as i64)
}

/// Lets the clock run at this rate.
///
/// # Errors
/// EPERM without CAP_SYS_TIME.
pub fn set_rate(rate: f64) -> io::Result<()> {
    let mut timex = sys::unchanged();
    (timex.freq, timex.tick) = frequency_and_tick(rate);
    timex.modes = libc::ADJ_FREQUENCY | libc::ADJ_TICK;
    sys::adjust(&mut timex).map(drop)
}

/// Sets the clock by this.
///
/// # Errors
/// EPERM without CAP_SYS_TIME.
pub fn step(by: Nanos) -> io::Result<()> {
    let mut timex = sys::unchanged();
    timex.modes = libc::ADJ_SETOFFSET | libc::ADJ_NANO;
    timex.time.tv_sec = by.get().div_euclid(1_000_000_000);
    timex.time.tv_usec = by.get().rem_euclid(1_000_000_000);
    sys::adjust(&mut timex).map(drop)
}

/// What the kernel shall tell about its clock.
#[derive(Clone, Copy, Debug)]
pub struct Claim {
    /// Whether it is synchronised.
    pub is_synchronised: bool,
    /// Estimate of the error.
    pub estimated_error: Nanos,
    /// Bound of the error.
    pub max_error: Nanos,
    /// TAI − UTC, if it is known.
    pub tai_offset: Option<i16>,
    /// A leap second at the end of the day: 1 inserted, −1 deleted.
    pub leap: i32,
}

/// Tells the kernel.
///
/// # Errors
/// EPERM without CAP_SYS_TIME.
pub fn claim(claim: &Claim) -> io::Result<()> {
    let mut timex = sys::unchanged();
    let micros = |value: Nanos| value.get().div_ceil_positive(1000).min(16_000_000);
    timex.modes = libc::ADJ_STATUS | libc::ADJ_MAXERROR | libc::ADJ_ESTERROR;
    timex.status = if claim.is_synchronised { 0 } else { libc::STA_UNSYNC }
        | match claim.leap {
            1 => libc::STA_INS,
            -1 => libc::STA_DEL,
            _ => 0,
        };
    (timex.esterror, timex.maxerror) = (micros(claim.estimated_error), micros(claim.max_error));
    sys::adjust(&mut timex)?;
    if let Some(tai_offset) = claim.tai_offset {
        let mut timex = sys::unchanged();
        timex.modes = libc::ADJ_TAI;
        timex.constant = tai_offset.into();
        sys::adjust(&mut timex)?;
    }
    Ok(())
}

/// Division that rounds up, of numbers that are not negative.
trait DivCeil {
    fn div_ceil_positive(self, by: i64) -> i64;
}

impl DivCeil for i64 {
    fn div_ceil_positive(self, by: i64) -> i64 {
        let value = self.max(0);
        value / by + i64::from(value % by != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_frequency_and_whole_ticks() {
        for rate in [0.0, 20e-6, -499e-6, 501e-6, -0.0995, 0.03] {
            let (frequency, tick) = frequency_and_tick(rate);
            let got = frequency as f64 / FREQUENCY + (tick as f64 - TICK) / TICK;
            assert!(
                (got - rate).abs() < 1e-10 && frequency.abs() <= 32_768_000,
                "{rate}: {frequency} {tick}"
            );
            assert!((9000..=11_000).contains(&tick), "{tick}");
        }
    }

    #[test]
    fn a_pair_is_read_as_one() {
        let (first, second) = (pair(5), pair(5));
        assert!(second.counter > first.counter && second.time >= first.time);
    }
}
