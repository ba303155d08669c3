// SPDX-License-Identifier: Apache-2.0
//! `ethernet` of an attachment: where frames of packet sockets go that are neither IP nor ARP.

use super::checked::Checked;
use super::{ConfigError, RawAttachment};

/// Where frames go that are neither IP nor ARP. IP and ARP go by prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ethernet {
    /// To every MAC address that is no reserved group; to such a group where `destinations` names it.
    #[default]
    Any,
    /// To MAC addresses that `destinations` names.
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

/// The same with what an attachment by the API has where it says nothing: who attaches there attaches for others (a pod's CNI
/// plugin), and what no rule about IP addresses can judge is named.
#[must_use]
pub fn by_api(mut raw: RawAttachment) -> RawAttachment {
    raw.ethernet.get_or_insert_with(|| Ethernet::Listed.word().to_owned());
    raw
}
