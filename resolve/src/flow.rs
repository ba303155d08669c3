// SPDX-License-Identifier: Apache-2.0
//! What is asked about a datagram, and the words of the answer: the frame's egress, the copy, the refusal.

use core::net::IpAddr;

use ktsn_model::{BypassReason, DropReason};

use crate::table::AttachmentIndex;

/// A datagram's addresses and marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The attachment that sends it.
    pub attachment: AttachmentIndex,
    /// The socket's local address when it has a specific one (bound or chosen by `connect`).
    pub bound: Option<IpAddr>,
    /// The socket's local port.
    pub source_port: u16,
    /// Destination address; IPv4-mapped IPv6 counts as IPv4.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// Device number that a link-local IPv6 destination is meant on; 0: this attachment's interface.
    pub scope: u32,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    /// TTL or hop limit; 0: the default, 64, for multicast 1.
    pub hop_limit: u8,
}

/// How a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Egress {
    /// Straight onto the node's uplink.
    Uplink,
    /// Out of the pod's own interface.
    Interface,
}

/// One of the frames that a datagram to a group, or to an unknown station, leaves as (head-end replication).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Replica {
    /// The first that can leave, or the only one.
    #[default]
    First,
    /// The copy to this tunnel end.
    Vtep(IpAddr),
    /// The copy for the stations on this node: by the interface, after all others.
    Interface,
}

/// Which of an attachment's two links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The pod's interface.
    Interface,
    /// The node's uplink.
    Uplink,
}

/// A neighbour whose MAC address is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NextHop {
    /// On which link.
    pub side: Side,
    /// Its address.
    pub address: IpAddr,
}

/// Why a datagram does not leave here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// It is the kernel's business.
    Bypass(BypassReason),
    /// It cannot leave now; with the neighbour that the kernel should resolve.
    Drop(DropReason, Option<NextHop>),
}

pub(crate) const NO_ROUTE: Refusal = Refusal::Drop(DropReason::NoRoute, None);
pub(crate) const FORBIDDEN: Refusal = Refusal::Drop(DropReason::NetworkPolicy, None);
pub(crate) const NOT_ALLOWED: Refusal = Refusal::Bypass(BypassReason::NotAllowed);

/// Destinations whose scope identifier counts in Linux (RFC 4007): link-local unicast, multicast of scopes 1 and 2.
pub(crate) fn needs_scope(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => {
            a.is_unicast_link_local() || (a.is_multicast() && matches!(a.segments()[0] & 0xf, 1 | 2))
        }
    }
}
