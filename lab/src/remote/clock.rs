// SPDX-License-Identifier: Apache-2.0
//! Whether the clocks of two hosts agree, and within which bound.
//!
//! In: on each host the kernel's clock state, and what chrony (`chronyc tracking`) or ptp4l (`pmc`) says. Out: the largest difference of both
//! clocks, or why it is not known. A clock that nothing holds, or whose error is not stated, makes no result.

use super::said_by;
pub use crate::error::ClockError;
use ktsn_measure::clock::clock_state;
use ktsn_time::Nanos;
use serde::{Deserialize, Serialize};

/// The largest time between two updates of a clock that counts as held: chrony's longest ordinary interval.
const UPDATE_MAX_SECONDS: f64 = 2048.0;

/// What holds a clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "lowercase", deny_unknown_fields)]
pub enum Holder {
    /// chronyd.
    Chrony {
        /// The source that it follows.
        source: String,
        /// Its bound: the clock's own offset, the root dispersion and half of the root delay.
        bound_ns: i64,
        /// Seconds between updates.
        update_seconds: f64,
    },
    /// ptp4l (with phc2sys where the card has a clock of its own).
    Ptp4l {
        /// The grandmaster.
        source: String,
        /// The last offset from the master.
        offset_ns: i64,
    },
    /// Neither of them answers.
    Nothing,
}

/// What one host says about its clock.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClockFacts {
    /// Whether the kernel takes its clock for synchronised.
    pub synchronised: bool,
    /// TAI − UTC in the kernel.
    pub tai_offset_seconds: i32,
    /// Who holds it.
    pub holder: Holder,
}

impl ClockFacts {
    /// Asks the kernel, chrony and ptp4l of this machine.
    #[must_use]
    pub fn here() -> Self {
        let state = clock_state().unwrap_or_default();
        let chrony = said_by("chronyc", &["-n", "-c", "tracking"]).and_then(|text| of_chrony(&text));
        let ptp4l =
            || said_by("pmc", &["-u", "-b", "0", "GET TIME_STATUS_NP"]).and_then(|text| of_ptp4l(&text));
        Self {
            synchronised: state.synchronised,
            tai_offset_seconds: state.tai_offset_seconds,
            holder: chrony.or_else(ptp4l).unwrap_or(Holder::Nothing),
        }
    }

    /// The most that this clock is off, or why that is not known; `host` names it in errors.
    fn bound(&self, host: &str) -> Result<Nanos, ClockError> {
        let lost = |state: String| Err(ClockError::Lost { host: host.to_owned(), state });
        match &self.holder {
            Holder::Nothing => Err(ClockError::Free { host: host.to_owned() }),
            Holder::Chrony { update_seconds, .. } if *update_seconds > UPDATE_MAX_SECONDS => {
                lost(format!("chrony's updates are {update_seconds} s apart"))
            }
            // Of the other host's answer: a bound below zero would make the sum of both smaller.
            Holder::Chrony { bound_ns, .. } if *bound_ns < 0 => {
                lost(format!("its bound is said to be {bound_ns} ns"))
            }
            Holder::Chrony { bound_ns, .. } => Ok(Nanos::new(*bound_ns)),
            // chrony tells the kernel only with its option rtcsync; ptp4l and phc2sys always do.
            Holder::Ptp4l { .. } if !self.synchronised => lost("the kernel says so".to_owned()),
            Holder::Ptp4l { offset_ns, .. } => Ok(Nanos::new(offset_ns.saturating_abs())),
        }
    }
}

/// Holds both clocks against `wanted`; the largest difference.
///
/// # Errors
/// [`ClockError`].
pub fn check(here: &ClockFacts, there: &ClockFacts, host: &str, wanted: Nanos) -> Result<Nanos, ClockError> {
    let (ours, theirs) = (here.bound("this host")?, there.bound(host)?);
    let offsets = [here.tai_offset_seconds, there.tai_offset_seconds];
    if offsets[0] != offsets[1] {
        return Err(ClockError::Tai { host: host.to_owned(), here: offsets[0], there: offsets[1] });
    }
    // chrony's bounds are against UTC, whatever the source; ptp4l's against one grandmaster.
    if let (Holder::Ptp4l { source: here, .. }, Holder::Ptp4l { source: there, .. }) =
        (&here.holder, &there.holder)
        && here != there
    {
        return Err(ClockError::Masters { host: host.to_owned(), here: here.clone(), there: there.clone() });
    }
    let bound = Nanos::new(ours.get().saturating_add(theirs.get()));
    if bound <= wanted {
        return Ok(bound);
    }
    Err(ClockError::TooFar { host: host.to_owned(), bound, here: ours, there: theirs, wanted })
}

/// Seconds as nanoseconds, rounded up.
fn nanos(seconds: f64) -> Option<i64> {
    let nanos = (seconds * 1e9).ceil();
    (nanos.is_finite() && nanos.abs() < 1e18).then_some(nanos as i64)
}

/// The answer of `chronyc -n -c tracking`; `None` if it follows no source.
pub(super) fn of_chrony(text: &str) -> Option<Holder> {
    let fields: Vec<&str> = text.lines().next()?.split(',').collect();
    // Reference, its name, stratum, reference time, system time, last offset, RMS offset, frequency, residual, skew, root delay, root
    // dispersion, update interval, leap status.
    let [_, source, _, _, system, _, _, _, _, _, delay, dispersion, interval, leap] = fields[..] else {
        return None;
    };
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite());
    let bound = number(system)?.abs() + number(delay)?.abs() / 2.0 + number(dispersion)?.abs();
    if leap == "Not synchronised" || source.is_empty() {
        return None;
    }
    Some(Holder::Chrony {
        source: source.to_owned(),
        bound_ns: nanos(bound)?,
        update_seconds: number(interval)?,
    })
}

/// The answer of `pmc … 'GET TIME_STATUS_NP'`; `None` without a grandmaster.
pub(super) fn of_ptp4l(text: &str) -> Option<Holder> {
    let of = |name: &str| {
        text.lines().find_map(|line| {
            let (field, value) = line.trim().split_once(char::is_whitespace)?;
            (field == name).then(|| value.trim())
        })
    };
    if of("gmPresent")? != "true" {
        return None;
    }
    Some(Holder::Ptp4l {
        source: of("gmIdentity")?.to_owned(),
        offset_ns: of("master_offset")?.parse().ok()?,
    })
}
