// SPDX-License-Identifier: Apache-2.0
//! The readers of a pod's packet filter, and of the ICMP messages of routers, for fuzz targets.

use std::net::IpAddr;

use super::{PodFilter, nft, older};
use crate::tables::kernel::icmp::{destination_v4, destination_v6};
use crate::tables::kernel::netlink::first_message;
use ktsn_model::IpPrefix;

/// Reads messages as dumps of chains and rules bring them. The destinations that datagrams from `own` by `device` may have for a rule.
#[must_use]
pub fn nf_tables(octets: &[u8], device: &str, own: IpAddr) -> Vec<IpPrefix> {
    let mut messages = Vec::new();
    let mut rest = octets;
    while let Some((message, behind)) = first_message(rest) {
        rest = behind;
        messages.push((message.message_type(), message.payload().to_vec()));
    }
    PodFilter { changed: nft::changed(&messages), fault: None }.destinations(device, &[(own, 32)])
}

/// Reads a table of the older iptables: its description, then its rules.
#[must_use]
pub fn older_table(is_v4: bool, octets: &[u8], device: &str, own: IpAddr) -> Vec<IpPrefix> {
    PodFilter { changed: older::changed(is_v4, octets), fault: None }.destinations(device, &[(own, 32)])
}

/// The destination that an ICMP message is about.
#[must_use]
pub fn excepted(is_v4: bool, message: &[u8]) -> Option<IpAddr> {
    if is_v4 { destination_v4(message) } else { destination_v6(message) }
}
