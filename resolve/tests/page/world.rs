// SPDX-License-Identifier: Apache-2.0
//! What a small world is made of: in few words, each with few values, so that all of them can be tried.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_wire::MacAddress;

/// The attachment's network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// None; does the node forward, and has it the pod's gateway address?
    Plain { forwards: bool, has_gateway: bool },
    /// Routed: `Far` lies behind the first end, `Inner` within it behind `second`.
    Routed,
    /// Bridged: `Station` by its MAC address behind the first end, `Prefixed` by its prefix behind `second`.
    Bridged { flood: Flood, copy_here: bool },
}

/// Whom a segment floods to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    Nobody,
    First,
    /// Both ends, and ours, which never gets one.
    All,
}

/// Where a second entry of the overlay's table leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    Absent,
    /// To the second end.
    Remote,
    /// To this node.
    Here,
    /// Its prefix is known, its end is not (routed only).
    Unknown,
}

/// The pod's routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodRoute {
    Nothing,
    /// Its own network, on link.
    Subnet,
    /// Its own network on link, and everything else by the gateway.
    Gateway,
    /// Its own network on link, and everything else by another device.
    Elsewhere,
    /// Its own network on link, and everything else as only the kernel knows.
    Asked,
    /// Rules decide on all routes.
    Rules,
}

/// The uplink's route to the tunnel ends; without an overlay to the far pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Underlay {
    Nothing,
    OnLink,
    /// By a router, of the ends' own network.
    Router,
    /// By a router, the default route.
    Default,
    Elsewhere,
}

/// Whose MAC addresses are known on the uplink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    Nobody,
    /// The second's and the router's.
    SecondAndRouter,
    Everybody,
}

/// Which destinations are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// The destinations that the overlay's peers give.
    Default,
    Everything,
    /// `Far`'s network only.
    Far,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct World {
    pub mode: Mode,
    pub is_v6: bool,
    pub over_v6: bool,
    pub second: Second,
    pub pod_route: PodRoute,
    /// The pod knows its gateway's MAC address, and those of the stations on its link.
    pub knows_link: bool,
    pub underlay: Underlay,
    pub known: Known,
    pub allowed: Allowed,
    pub is_tagged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Own,
    Loopback,
    Unspecified,
    Gateway,
    /// On the pod's network, in no table.
    Near,
    Station,
    Prefixed,
    Far,
    Inner,
    Outside,
    Node,
    Group,
    /// Everybody on the link.
    Broadcast,
    /// The network's broadcast address; with IPv6 a group of the link.
    SubnetBroadcast,
    LinkLocal,
}

impl Place {
    pub(crate) const ALL: [Self; 15] = [
        Self::Own,
        Self::Loopback,
        Self::Unspecified,
        Self::Gateway,
        Self::Near,
        Self::Station,
        Self::Prefixed,
        Self::Far,
        Self::Inner,
        Self::Outside,
        Self::Node,
        Self::Group,
        Self::Broadcast,
        Self::SubnetBroadcast,
        Self::LinkLocal,
    ];

    pub(crate) fn address(self, is_v6: bool) -> IpAddr {
        let (v4, v6) = match self {
            Self::Own => ([10, 1, 0, 5], "fd01::5"),
            Self::Loopback => ([127, 0, 0, 1], "::1"),
            Self::Unspecified => ([0, 0, 0, 0], "::"),
            Self::Gateway => ([10, 1, 0, 1], "fd01::1"),
            Self::Near => ([10, 1, 0, 6], "fd01::6"),
            Self::Station => ([10, 1, 0, 7], "fd01::7"),
            Self::Prefixed => ([10, 1, 0, 200], "fd01::200"),
            Self::Far => ([10, 1, 1, 7], "fd01:0:0:1::7"),
            Self::Inner => ([10, 1, 1, 200], "fd01:0:0:1:8000::7"),
            Self::Outside => ([198, 51, 100, 9], "2001:db8::9"),
            Self::Node => ([10, 1, 1, 1], "fd01:0:0:1::1"),
            Self::Group => ([239, 129, 2, 3], "ff05::1:8003"),
            Self::Broadcast => ([255, 255, 255, 255], "ff02::1"),
            Self::SubnetBroadcast => ([10, 1, 0, 255], "ff02::7"),
            Self::LinkLocal => ([169, 254, 0, 9], "fe80::9"),
        };
        if is_v6 { v6.parse::<Ipv6Addr>().unwrap().into() } else { Ipv4Addr::from(v4).into() }
    }
}

/// What the socket is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bound {
    Nothing,
    Own,
    Foreign,
}

/// MAC addresses by their last octet.
pub(crate) fn mac(last: u8) -> MacAddress {
    MacAddress([2, 0, 0, 0, 0, last])
}
pub(crate) const POD: u8 = 5;
pub(crate) const GATEWAY: u8 = 1;
pub(crate) const NEAR: u8 = 6;
pub(crate) const STATION: u8 = 7;
pub(crate) const PREFIXED: u8 = 200;
pub(crate) const LINK_LOCAL: u8 = 9;
pub(crate) const UPLINK: u8 = 50;
pub(crate) const ROUTER: u8 = 54;
pub(crate) const DEVICE: u8 = 80;
pub(crate) const FAR_DEVICE: u8 = 81;
pub(crate) const INNER_DEVICE: u8 = 82;
pub(crate) const INTERFACE_MTU: u32 = 1450;
pub(crate) const UPLINK_MTU: u32 = 1440;

/// Host `last` of the underlay: 1 is ours, 2 and 3 are the ends, 9 is the router.
pub(crate) fn underlay(over_v6: bool, last: u8) -> IpAddr {
    if over_v6 {
        Ipv6Addr::new(0xfd50, 0, 0, 0, 0, 0, 0, last.into()).into()
    } else {
        Ipv4Addr::new(192, 168, 50, last).into()
    }
}
