// SPDX-License-Identifier: Apache-2.0
//! Whether the node forwards what comes in by a device.
//!
//! In: sysctls of the daemon's own namespace. Out: a [`Router`]. Sysctls are read, never written. Must not be used for
//! another namespace: `/proc/sys/net` shows that of the reading process.

/// Whether the node forwards what comes in by a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Router {
    pub(crate) is_v4: bool,
    pub(crate) is_v6: bool,
}

impl Router {
    /// Of the device with this name; IPv6 forwards between all devices ([`Self::is_v6`]) or not at all.
    pub(crate) fn of(device: &str, is_v6: bool) -> Self {
        Self { is_v4: is_on(&format!("/proc/sys/net/ipv4/conf/{device}/forwarding")), is_v6 }
    }

    /// Whether IPv6 is forwarded.
    pub(crate) fn is_v6() -> bool {
        is_on("/proc/sys/net/ipv6/conf/all/forwarding")
    }
}

fn is_on(path: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}
