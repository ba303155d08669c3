// SPDX-License-Identifier: Apache-2.0
//! `ingress` of an attachment.

use super::ConfigError;
use super::values::Checked;

/// How frames that arrive for the pod get into it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IngressMode {
    /// Frames arrive by the kernel's path: VXLAN device, netfilter, bridge.
    #[default]
    Kernel,
    /// UDP datagrams out of the overlay straight from the uplink, past all of that.
    Short,
}

impl IngressMode {
    /// The word of the configuration.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Short => "short",
        }
    }

    pub(super) fn check(field: &str, word: Option<&str>, has_overlay: bool) -> Checked<Self> {
        match (word, has_overlay) {
            (None | Some("kernel"), _) => Ok(Self::Kernel),
            (Some("short"), true) => Ok(Self::Short),
            (Some("short"), false) => {
                let expected = "kernel without an overlay: the ingress fast path takes an overlay's frames (overlay = { vxlan = … })";
                Err(ConfigError::value(field, "short", expected))
            }
            (Some(other), _) => Err(ConfigError::value(field, other, "kernel or short")),
        }
    }
}
