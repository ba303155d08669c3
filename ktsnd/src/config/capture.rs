// SPDX-License-Identifier: Apache-2.0
//! `capture` and `capture_priority` of an attachment.

use super::ConfigError;
use super::values::Checked;

/// How sends of an attachment's programs are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureMode {
    /// libktsn sees the sends of programs that it is preloaded into.
    #[default]
    Preload,
    /// libktsn where it is preloaded, and a BPF program at the host end of the pod's veth.
    Kernel,
}

impl CaptureMode {
    /// The word of the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Preload => "preload",
            Self::Kernel => "kernel",
        }
    }

    pub(super) fn check(field: &str, word: Option<&str>) -> Checked<Self> {
        match word {
            None | Some("preload") => Ok(Self::Preload),
            Some("kernel") => Ok(Self::Kernel),
            Some(other) => Err(ConfigError::value(field, other, "preload or kernel")),
        }
    }
}

/// Priority of captured datagrams whose DS field names none.
pub(super) fn priority(field: &str, value: Option<u32>) -> Checked<u8> {
    let checked = u8::try_from(value.unwrap_or(0)).ok().filter(|priority| *priority <= 15);
    checked.ok_or_else(|| ConfigError::value(field, value.unwrap_or(0), "0 to 15"))
}
