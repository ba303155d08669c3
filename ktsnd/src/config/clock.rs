// SPDX-License-Identifier: Apache-2.0
//! `clock_source` and `clock_error_max` of `[daemon]`: who says whether the clock is good.

use ktsn_time::Nanos;

use super::ConfigError;
use super::values::{Checked, duration};

/// The source that judges whether the clock is good.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClockSource {
    /// The kernel's clock discipline (adjtimex).
    #[default]
    Kernel,
    /// ptp4l, asked by `pmc`.
    Ptp4l,
    /// chronyd, asked by `chronyc`.
    Chrony,
}

impl ClockSource {
    const ALL: [Self; 3] = [Self::Kernel, Self::Ptp4l, Self::Chrony];

    /// The word of the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Ptp4l => "ptp4l",
            Self::Chrony => "chrony",
        }
    }

    pub(super) fn check(field: &str, word: Option<&str>) -> Checked<Self> {
        let Some(word) = word else { return Ok(Self::default()) };
        let found = Self::ALL.into_iter().find(|source| source.word() == word);
        found.ok_or_else(|| ConfigError::value(field, word, Self::ALL.map(Self::word).join(", ")))
    }
}

/// The greatest error with which a clock is good; none: whatever its source admits.
pub(super) fn error_max(field: &str, text: Option<&str>) -> Checked<Option<Nanos>> {
    text.map(|text| duration(field, text, Nanos::new(1), Nanos::from_seconds(10))).transpose()
}
