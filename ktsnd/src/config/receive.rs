// SPDX-License-Identifier: Apache-2.0
//! `receive` of an attachment, and `receive_spin_max` of the daemon.

use super::ConfigError;
use super::values::Checked;

/// Most CPUs that `receive_spin_max` may name.
const SPIN_MAX: f64 = 64.0;

/// How the attachment's programs may wait for frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveMode {
    /// As the kernel has it: a thread that waits sleeps until the frame is there.
    #[default]
    Kernel,
    /// A program that asks may be awake when a frame is expected.
    Expect,
}

impl ReceiveMode {
    /// The word of the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Expect => "expect",
        }
    }

    pub(super) fn check(field: &str, word: Option<&str>) -> Checked<Self> {
        match word {
            None | Some("kernel") => Ok(Self::Kernel),
            Some("expect") => Ok(Self::Expect),
            Some(other) => Err(ConfigError::value(field, other, "kernel or expect")),
        }
    }
}

/// `receive_spin_max`: CPUs that all programs together may spin, in parts per thousand of one.
pub(super) fn spin_max_permille(field: &str, value: Option<f64>) -> Checked<u32> {
    let Some(value) = value else { return Ok(crate::limits::RECEIVE_SPIN_MAX) };
    if !(0.0..=SPIN_MAX).contains(&value) {
        return Err(ConfigError::value(field, value, format!("0 to {SPIN_MAX} CPUs, for example 0.2")));
    }
    Ok((value * 1000.0).round() as u32)
}
