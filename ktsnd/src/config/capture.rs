// SPDX-License-Identifier: Apache-2.0
//! `capture` and `capture_priority` of an attachment.

use super::ConfigError;
use super::values::Checked;

ktsn_model::words! {
    /// How sends of an attachment's programs are seen.
    #[derive(Default)]
    pub enum CaptureMode {
        /// libktsn sees the sends of programs that it is preloaded into.
        #[default]
        Preload = "preload",
        /// libktsn where it is preloaded, and a BPF program at the host end of the pod's veth.
        Kernel = "kernel",
    }
}

/// Priority of captured datagrams whose DS field names none.
pub(super) fn priority(field: &str, value: Option<u32>) -> Checked<u8> {
    let checked = u8::try_from(value.unwrap_or(0)).ok().filter(|priority| *priority <= 15);
    checked.ok_or_else(|| ConfigError::value(field, value.unwrap_or(0), "0 to 15"))
}
