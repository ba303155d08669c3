// SPDX-License-Identifier: Apache-2.0
//! What a VXLAN device of the kernel says of itself, and its forwarding table.
//!
//! In: link attributes (IFLA_VXLAN_*), neighbour messages of family AF_BRIDGE. Out: a [`VxlanDevice`], and
//! [`Forwarding`] entries: which MAC address is behind which tunnel end.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_resolve::{OuterDf, OuterDs, OuterTtl};
use ktsn_wire::{DsField, MacAddress};
use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::{InfoData, InfoVxlan, LinkInfo, VxlanDf};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};

/// The value of `tos inherit` (ip-link(8)).
const TOS_INHERIT: u8 = 1;

/// A kernel device of type `vxlan`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VxlanDevice {
    pub(crate) vni: u32,
    /// UDP destination port.
    pub(crate) port: u16,
    /// Source address on the underlay; the kernel asks its routes when there is none.
    pub(crate) local: Option<IpAddr>,
    /// TTL of outer headers.
    pub(crate) ttl: OuterTtl,
    /// DSCP of outer headers.
    pub(crate) ds: OuterDs,
    /// Don't-fragment flag of outer IPv4 headers.
    pub(crate) df: OuterDf,
    /// Whether it computes outer UDP checksums over IPv4.
    pub(crate) udp_checksum: bool,
    /// Whether it sends zero checksums over IPv6 (RFC 6935).
    pub(crate) udp_zero_checksum_v6: bool,
    /// Why its frames cannot be made here; `None` when they can.
    pub(crate) foreign: Option<&'static str>,
}

/// The VXLAN part of a link's attributes.
pub(crate) fn of_link(infos: &[LinkInfo]) -> Option<VxlanDevice> {
    let all = infos.iter().find_map(|info| match info {
        LinkInfo::Data(InfoData::Vxlan(vxlan)) => Some(vxlan),
        _ => None,
    })?;
    let mut device = VxlanDevice {
        vni: 0,
        port: 0,
        local: None,
        ttl: OuterTtl::linux(0),
        ds: OuterDs::Fixed(DsField(0)),
        df: OuterDf::Unset,
        udp_checksum: true,
        udp_zero_checksum_v6: false,
        foreign: None,
    };
    for info in all {
        match info {
            InfoVxlan::Id(vni) => device.vni = *vni,
            InfoVxlan::Port(port) => device.port = *port,
            InfoVxlan::Local(local) => device.local = Some(IpAddr::V4(*local)),
            InfoVxlan::Local6(local) => device.local = Some(IpAddr::V6(*local)),
            InfoVxlan::Ttl(ttl) if device.ttl != OuterTtl::Inherit => device.ttl = OuterTtl::linux(*ttl),
            InfoVxlan::TtlInherit(1..) => device.ttl = OuterTtl::Inherit,
            InfoVxlan::Tos(TOS_INHERIT) => device.ds = OuterDs::Inherit,
            InfoVxlan::Tos(tos) => device.ds = OuterDs::Fixed(DsField(*tos)),
            InfoVxlan::Df(VxlanDf::Set) => device.df = OuterDf::Set,
            InfoVxlan::Df(VxlanDf::Inherit) => device.df = OuterDf::Inherit,
            InfoVxlan::UDPCsum(is_on) => device.udp_checksum = *is_on,
            InfoVxlan::UDPZeroCsumTX(is_on) => device.udp_zero_checksum_v6 = *is_on,
            InfoVxlan::CollectMetadata(true) => {
                device.foreign = Some("it has no VNI of its own (`external`)");
            }
            InfoVxlan::Vnifilter(true) => device.foreign = Some("it has several VNIs (`vnifilter`)"),
            InfoVxlan::Gbp => device.foreign = Some("its headers carry a group policy (`gbp`)"),
            InfoVxlan::Gpe => device.foreign = Some("its headers are those of VXLAN-GPE (`gpe`)"),
            _ => {}
        }
    }
    device.local = device.local.filter(|local| !local.is_unspecified());
    Some(device)
}

/// An entry of a VXLAN device's forwarding table that leads to a tunnel end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forwarding {
    /// On which device.
    pub(crate) device: u32,
    /// Which stations; zero: all that no other entry names (the flood list).
    pub(crate) mac: MacAddress,
    /// Behind which tunnel end.
    pub(crate) vtep: IpAddr,
    /// A VNI other than the device's.
    pub(crate) vni: Option<u32>,
    /// A port other than the device's.
    pub(crate) port: Option<u16>,
}

/// The entry that a message tells of; `None`: it leads to no tunnel end.
pub(crate) fn forwarding(message: &NeighbourMessage) -> Option<Forwarding> {
    let is_own = message.header.flags.contains(NeighbourFlags::Own);
    if message.header.family != AddressFamily::Bridge || !is_own {
        return None;
    }
    let (mut mac, mut vtep, mut vni, mut port) = (None, None, None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(octets) => {
                mac = octets.as_slice().try_into().ok().map(MacAddress);
            }
            NeighbourAttribute::Destination(NeighbourAddress::Other(octets)) => vtep = address(octets),
            NeighbourAttribute::Vni(number) => vni = Some(*number),
            NeighbourAttribute::Port(number) => port = Some(*number),
            _ => {}
        }
    }
    let vtep = vtep.filter(|vtep| !vtep.is_unspecified())?;
    Some(Forwarding { device: message.header.ifindex, mac: mac?, vtep, vni, port })
}

/// A station behind a port of a bridge: the port's number and the station's MAC address.
pub(crate) fn station(message: &NeighbourMessage) -> Option<(u32, MacAddress)> {
    let of_bridge = message.attributes.iter().any(|a| matches!(a, NeighbourAttribute::Controller(_)));
    if message.header.family != AddressFamily::Bridge || !of_bridge {
        return None;
    }
    let mac = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(octets) => octets.as_slice().try_into().ok().map(MacAddress),
        _ => None,
    });
    Some((message.header.ifindex, mac.filter(|mac| !mac.is_multicast() && *mac != MacAddress::ZERO)?))
}

fn address(octets: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(octets).ok().map(|octets| IpAddr::V4(Ipv4Addr::from(octets)));
    v4.or_else(|| <[u8; 16]>::try_from(octets).ok().map(|octets| IpAddr::V6(Ipv6Addr::from(octets))))
}
