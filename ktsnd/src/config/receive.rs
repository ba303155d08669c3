// SPDX-License-Identifier: Apache-2.0
//! `receive` and `receive_period` of an attachment, and `receive_spin_max` of the daemon.

use ktsn_expect::predictor::{PERIOD_MAX, PERIOD_MIN};
use ktsn_time::Nanos;

use super::ConfigError;
use super::values::Checked;

/// Most CPUs that `receive_spin_max` may name.
const SPIN_MAX: f64 = 64.0;

ktsn_model::words! {
    /// How the attachment's programs may wait for frames.
    #[derive(Default)]
    pub enum ReceiveMode {
        /// As the kernel has it: a thread that waits sleeps until the frame is there.
        #[default]
        Kernel = "kernel",
        /// A program that asks may be awake when a frame is expected.
        Expect = "expect",
    }
}

/// `receive_period`: the period of what the attachment's programs receive, where it is known.
pub(super) fn period(field: &str, text: Option<&str>) -> Checked<Option<Nanos>> {
    let Some(text) = text else { return Ok(None) };
    let read = super::values::duration(field, text, PERIOD_MIN, PERIOD_MAX);
    let expected = "a time from 50us to 10s with its unit, such as 1ms";
    read.map(Some).map_err(|_| ConfigError::value(field, text, expected))
}

/// `receive_spin_max`: CPUs that all programs together may spin, in parts per thousand of one.
pub(super) fn spin_max_permille(field: &str, value: Option<f64>) -> Checked<u32> {
    let Some(value) = value else { return Ok(crate::limits::RECEIVE_SPIN_MAX) };
    if !(0.0..=SPIN_MAX).contains(&value) {
        return Err(ConfigError::value(field, value, format!("0 to {SPIN_MAX} CPUs, for example 0.2")));
    }
    Ok((value * 1000.0).round() as u32)
}
