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
    /// The user that the socket belongs to: routing rules may look at it.
    pub uid: u32,
    /// The datagram goes to the peer that its socket is connected to: Linux keeps the route that `connect` found.
    pub is_connected: bool,
    /// The socket's local address when it has a specific one (bound or chosen by `connect`).
    pub bound: Option<IpAddr>,
    /// The socket's local port.
    pub source_port: u16,
    /// Destination address; IPv4-mapped IPv6 counts as IPv4.
    pub destination: IpAddr,
    /// Destination port.
    pub destination_port: u16,
    /// Device number that a link-local IPv6 destination is meant on, or that the socket is bound to; 0: none is named, and
    /// link-local destinations are meant on this attachment's interface.
    pub scope: u32,
    /// Type of service (IPv4) or traffic class (IPv6).
    pub traffic_class: u8,
    /// TTL or hop limit; 0: the default, 64, for multicast 1.
    pub hop_limit: u8,
    /// Further fields of its headers.
    pub marks: Marks,
}

/// Fields of a datagram's headers that its socket decides on. The default is that of a UDP socket under Linux
/// (IP_PMTUDISC_WANT), without a flow label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Marks {
    /// IPv4: don't-fragment.
    pub dont_fragment: bool,
    /// IPv6: the flow label, at most 20 bits; 0: none (RFC 6437 3).
    pub flow_label: u32,
    /// The UDP checksum is computed; else the field is 0.
    pub udp_checksum: bool,
    /// `hop_limit` is the namespace's default: the program set none.
    pub is_default_hop_limit: bool,
}

impl Default for Marks {
    fn default() -> Self {
        Self { dont_fragment: true, flow_label: 0, udp_checksum: true, is_default_hop_limit: false }
    }
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
    /// Only the kernel knows its route, and has not answered yet ([`RouteAnswer`]).
    Unanswered,
}

impl Flow {
    /// Whether [`Self::scope`] belongs to the destination's address (RFC 4007): link-local unicast, multicast of scopes 1 and 2.
    #[must_use]
    pub fn needs_scope(&self) -> bool {
        needs_scope(self.destination.to_canonical())
    }
}

impl Refusal {
    /// Why the kernel sends the datagram instead; `None`: it is not sent.
    #[must_use]
    pub const fn bypass_reason(self) -> Option<BypassReason> {
        match self {
            Self::Bypass(BypassReason::NotAttached) | Self::Drop(..) => None,
            Self::Bypass(reason) => Some(reason),
            Self::Unanswered => Some(BypassReason::RoutingRules),
        }
    }
}

/// What the kernel answered about a flow with a route that only the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RouteAnswer {
    /// The kernel would send the datagram by the attachment's interface.
    Interface(InterfaceRoute),
    /// By another device, or not as one plain frame, or not at all.
    Elsewhere,
}

/// A route by the attachment's interface, as the kernel answered it for one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct InterfaceRoute {
    /// The router; none: the destination is on link.
    pub gateway: Option<IpAddr>,
    /// The source that an unbound socket gets.
    pub source: Option<IpAddr>,
    /// Largest IP packet, octets, where it is not the interface's.
    pub mtu: Option<u32>,
    /// The hop limit of datagrams without one of their own, where it is not the default.
    pub hop_limit: Option<u8>,
}

pub(crate) const NO_ROUTE: Refusal = Refusal::Drop(DropReason::NoRoute, None);
pub(crate) const FORBIDDEN: Refusal = Refusal::Drop(DropReason::NetworkPolicy, None);
pub(crate) const ROUTING_RULES: Refusal = Refusal::Bypass(BypassReason::RoutingRules);
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
