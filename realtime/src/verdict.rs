// SPDX-License-Identifier: Apache-2.0
//! Verdicts. In: a requirement, figures, the share of the budget that processing may use, how long was measured. Out: PASS, TIGHT or FAIL
//! with the margin, and a sentence that names the duration.
//!
//! A requirement is end to end: the network needs its part. Processing may use `share` of the latency and of the jitter.
//! PASS: at most [`TIGHT_ABOVE`] of that; TIGHT: at most all of it; FAIL: more. Only a measurement as long as the paper's
//! ([`FIT_AFTER`]) ends with "fit".

use crate::requirements::Requirement;
use crate::statistics::Figures;
use ktsn_time::{Nanos, Span};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The usual share: the other paper's 0.4 ms of 1 ms.
pub const SHARE_USUAL: f64 = 0.4;
/// Beyond this part of its share a system is tight.
pub const TIGHT_ABOVE: f64 = 0.8;
/// A shorter measurement never ends with "fit": the paper's tests took 8 h.
pub const FIT_AFTER: Span = Span::from_nanos(8 * 3_600_000_000_000);

/// The least share: below it the use of a share is no sensible number.
pub const SHARE_MIN: f64 = 0.001;

/// The share of a requirement that processing may use: [`SHARE_MIN`] to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Share(f64);

impl Default for Share {
    fn default() -> Self {
        Self(SHARE_USUAL)
    }
}

impl TryFrom<f64> for Share {
    type Error = String;

    fn try_from(share: f64) -> Result<Self, String> {
        if (SHARE_MIN..=1.0).contains(&share) {
            Ok(Self(share))
        } else {
            Err(format!("share {share}: expected {SHARE_MIN} to 1"))
        }
    }
}

impl From<Share> for f64 {
    fn from(share: Share) -> Self {
        share.0
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    /// `40%` or `0.4`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("share `{text}`: expected 0.1 % to 100 % of the budget, for example `40%` or `0.4`");
        let (number, parts) = text.strip_suffix('%').map_or((text, 1.0), |number| (number, 100.0));
        let number: f64 = number.trim().parse().map_err(|_| wrong())?;
        Self::try_from(number / parts).map_err(|_| wrong())
    }
}

/// How a system meets a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Outcome {
    /// With room left.
    Pass,
    /// Within its share, but with little room left.
    Tight,
    /// Beyond its share.
    Fail,
}

impl Outcome {
    /// The word shown.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Pass => "PASS",
            Self::Tight => "TIGHT",
            Self::Fail => "FAIL",
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

/// Which half of a requirement decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Decisive {
    /// The latency.
    Latency,
    /// The jitter.
    Jitter,
}

/// Figures held against a requirement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// How the system meets it.
    pub outcome: Outcome,
    /// What is used of the share that processing may use; the greater of latency and jitter.
    pub used_ratio: f64,
    /// What is left of that share; negative: how much is missing.
    pub margin_ratio: f64,
    /// Which of the two uses more.
    pub decided_by: Decisive,
}

/// Holds figures against a requirement.
#[must_use]
pub fn judge(requirement: &Requirement, figures: Figures, share: Share) -> Judgement {
    let used = |figure: Nanos, limit: Nanos| figure.get() as f64 / (limit.get() as f64 * share.0);
    let latency = used(figures.latency, requirement.latency());
    let jitter = used(figures.jitter, requirement.jitter());
    let (used_ratio, decided_by) =
        if jitter >= latency { (jitter, Decisive::Jitter) } else { (latency, Decisive::Latency) };
    let outcome = match used_ratio {
        used if used <= TIGHT_ABOVE => Outcome::Pass,
        used if used <= 1.0 => Outcome::Tight,
        _ => Outcome::Fail,
    };
    Judgement { outcome, used_ratio, margin_ratio: 1.0 - used_ratio, decided_by }
}

/// What an outcome means after a measurement of this length.
#[must_use]
pub fn statement(outcome: Outcome, measured: Span) -> String {
    let lasted = duration(measured);
    match outcome {
        Outcome::Fail => format!("unfit: seen within {lasted}"),
        _ if measured < FIT_AFTER => format!("not unfit so far, after {lasted}"),
        Outcome::Pass => format!("fit, after {lasted}"),
        Outcome::Tight => format!("fit with little room, after {lasted}"),
    }
}

/// A duration for people: `8 h`, `1 h 30 min`, `10 s`, `0.5 s`.
#[must_use]
pub fn duration(span: Span) -> String {
    let millis = span.as_nanos() / 1_000_000;
    let (hours, minutes, seconds) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
    let mut parts = Vec::new();
    if hours > 0 {
        parts.push(format!("{hours} h"));
    }
    if minutes > 0 {
        parts.push(format!("{minutes} min"));
    }
    if hours == 0 && (seconds > 0 || parts.is_empty()) {
        let is_whole = minutes > 0 || millis.is_multiple_of(1000);
        let shown = if is_whole { seconds.to_string() } else { format!("{:.1}", millis as f64 / 1000.0) };
        parts.push(format!("{shown} s"));
    }
    parts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn requirement() -> Requirement {
        Requirement { service: "x".into(), latency_ns: 1_000_000, jitter_ns: 100_000 }
    }

    fn of(latency: i64, jitter: i64) -> Judgement {
        let figures = Figures { latency: Nanos::from_micros(latency), jitter: Nanos::from_micros(jitter) };
        judge(&requirement(), figures, Share::default())
    }

    #[test]
    fn the_share_divides_pass_tight_and_fail() {
        // Processing may use 400 µs of the latency and 40 µs of the jitter.
        assert_eq!(of(320, 32).outcome, Outcome::Pass);
        assert_eq!(of(321, 0).outcome, Outcome::Tight);
        assert_eq!((of(400, 0).outcome, of(400, 0).margin_ratio), (Outcome::Tight, 0.0));
        assert_eq!((of(401, 0).outcome, of(401, 0).decided_by), (Outcome::Fail, Decisive::Latency));
        assert_eq!((of(0, 41).outcome, of(0, 41).decided_by), (Outcome::Fail, Decisive::Jitter));
        assert_eq!(of(0, 80).margin_ratio, -1.0);
    }

    #[test]
    fn seconds_never_say_fit() {
        let text = |outcome, seconds: u64| statement(outcome, Span::from_nanos(seconds * 1_000_000_000));
        assert_eq!(text(Outcome::Pass, 10), "not unfit so far, after 10 s");
        assert_eq!(text(Outcome::Tight, 8 * 3600 - 1), "not unfit so far, after 7 h 59 min");
        assert_eq!(text(Outcome::Pass, 8 * 3600), "fit, after 8 h");
        assert_eq!(text(Outcome::Tight, 9 * 3600), "fit with little room, after 9 h");
        assert_eq!(text(Outcome::Fail, 90), "unfit: seen within 1 min 30 s");
        assert_eq!(duration(Span::from_nanos(1_500_000_000)), "1.5 s");
        assert_eq!(duration(Span::from_nanos(0)), "0 s");
    }

    #[test]
    fn shares_are_checked() {
        for (text, value) in
            [("40%", 0.4), ("0.4", 0.4), ("100 %", 1.0), ("1", 1.0), ("0.1%", 0.001), ("0.001", 0.001)]
        {
            assert!((f64::from(text.parse::<Share>().unwrap()) - value).abs() < 1e-12);
        }
        for text in ["0", "1.1", "40", "-1%", "x", "NaN", "inf", "1e-310", "0.0009", "0.09%"] {
            let error = text.parse::<Share>().unwrap_err();
            assert!(error.contains(text) && error.contains("0.1 % to 100 %"), "{error}");
        }
        assert!(serde_json::from_str::<Share>("1e-310").unwrap_err().to_string().contains("0.001 to 1"));
    }

    /// What is written can be read again: JSON has no infinite number.
    #[test]
    fn the_least_share_has_a_finite_use() {
        let requirement = Requirement { service: "x".into(), latency_ns: 1, jitter_ns: 1 };
        let figures = Figures { latency: Nanos::MAX, jitter: Nanos::MAX };
        let judgement = judge(&requirement, figures, Share::try_from(SHARE_MIN).unwrap());
        let text = serde_json::to_string(&judgement).unwrap();
        assert_eq!(serde_json::from_str::<Judgement>(&text).unwrap(), judgement);
    }

    proptest! {
        /// Worse figures never make a better outcome, and a greater share never a worse one.
        #[test]
        fn verdicts_are_monotonic(latency in 0_i64..2_000, jitter in 0_i64..200, more in 0_i64..500, share in 0.01_f64..0.5) {
            prop_assert!(of(latency + more, jitter).outcome >= of(latency, jitter).outcome);
            prop_assert!(of(latency, jitter + more).outcome >= of(latency, jitter).outcome);
            let figures = Figures { latency: Nanos::from_micros(latency), jitter: Nanos::from_micros(jitter) };
            let with = |share: f64| judge(&requirement(), figures, Share::try_from(share).unwrap());
            prop_assert!(with(share * 2.0).outcome <= with(share).outcome);
            prop_assert!((with(share).used_ratio + with(share).margin_ratio - 1.0).abs() < 1e-9);
        }
    }
}
