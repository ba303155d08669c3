// SPDX-License-Identifier: Apache-2.0
//! The reader of IPsec policies for a fuzz target.

use std::net::IpAddr;

use super::{Policies, Tunnelled, policy};
use crate::tables::kernel::netlink::first_message;

/// Reads messages as a dump of policies brings them. Whether they protect anything, and whether they cover a tunnel's datagrams.
#[must_use]
pub fn policies(octets: &[u8], local: IpAddr, vtep: IpAddr) -> (bool, bool) {
    let mut policies = Policies { is_unknown: false, ..Policies::unknown() };
    let mut rest = octets;
    while let Some((message, behind)) = first_message(rest) {
        rest = behind;
        policies.list.extend(policy(message.payload()).ok().flatten());
    }
    policies.list.sort_by_key(|policy| policy.priority);
    (policies.protect_anything(), policies.cover(&Tunnelled { local, vtep, port: 8472, device: 2 }))
}
