// SPDX-License-Identifier: Apache-2.0
//! `clock_source` and `clock_error_max` of `[daemon]`: who says whether the clock is good.

use ktsn_time::Nanos;

use super::values::{Checked, duration};

ktsn_model::words! {
    /// The source that judges whether the clock is good.
    #[derive(Default)]
    pub enum ClockSource {
        /// The kernel's clock discipline (adjtimex).
        #[default]
        Kernel = "kernel",
        /// ptp4l, asked by `pmc`.
        Ptp4l = "ptp4l",
        /// chronyd, asked by `chronyc`.
        Chrony = "chrony",
    }
}

/// The greatest error with which a clock is good; none: whatever its source admits.
pub(super) fn error_max(field: &str, text: Option<&str>) -> Checked<Option<Nanos>> {
    text.map(|text| duration(field, text, Nanos::new(1), Nanos::from_seconds(10))).transpose()
}
