// SPDX-License-Identifier: Apache-2.0
//! `ethernet` of an attachment: where frames of packet sockets go that are neither IP nor ARP.

use super::ConfigError;
use super::values::Checked;

/// Where frames go that are neither IP nor ARP. IP and ARP go by prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ethernet {
    /// Frames go to every MAC address except reserved groups; to a reserved group if `destinations` names it.
    #[default]
    Any,
    /// Frames go only to MAC addresses that `destinations` names.
    Listed,
}

impl Ethernet {
    /// The word of the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Any => "any",
            Self::Listed => "listed",
        }
    }

    pub(super) fn check(field: &str, word: Option<&str>) -> Checked<Self> {
        match word {
            None | Some("any") => Ok(Self::Any),
            Some("listed") => Ok(Self::Listed),
            Some(other) => Err(ConfigError::value(field, other, "any or listed")),
        }
    }
}
