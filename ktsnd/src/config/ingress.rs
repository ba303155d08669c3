// SPDX-License-Identifier: Apache-2.0
//! `ingress` of an attachment.

use super::ConfigError;
use super::values::{Checked, word};

ktsn_model::words! {
    /// How frames that arrive for the pod get into it.
    #[derive(Default)]
    pub enum IngressMode {
        /// Frames arrive by the kernel's path: VXLAN device, netfilter, bridge.
        #[default]
        Kernel = "kernel",
        /// UDP datagrams out of the overlay straight from the uplink, past all of that.
        Short = "short",
    }
}

impl IngressMode {
    pub(super) fn check(field: &str, text: Option<&str>, has_overlay: bool) -> Checked<Self> {
        let mode = word(field, text)?;
        if mode == Self::Short && !has_overlay {
            let expected = "kernel without an overlay: the ingress fast path takes an overlay's frames (overlay = { vxlan = … })";
            return Err(ConfigError::value(field, mode, expected));
        }
        Ok(mode)
    }
}
