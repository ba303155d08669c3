// SPDX-License-Identifier: Apache-2.0
//! Rules 1 to 5: the path to one address or to a whole prefix.
//!
//! In: the tables of an attachment and a prefix (an address is the prefix of one host). Out: a [`Path`] and the
//! largest payload on it. Because every test here is "does this prefix cover all of that one", the same code decides a
//! datagram and fills the client's table.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ktsn_model::{BypassReason, IpPrefix};

use crate::limits::{VXLAN_OVER_IPV4_OCTETS, VXLAN_OVER_IPV6_OCTETS};
use crate::link::Via;
use crate::overlay::{Overlay, Peer, VxlanRouted};
use crate::prefixes::canonical;
use crate::table::AttachmentTables;

/// Octets of an 802.1Q tag.
const TAG_OCTETS: u32 = 4;

/// How a destination is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path<'a> {
    /// The kernel's business.
    Bypass(BypassReason),
    /// As the kernel answers for each flow: on the interface's link, or through the tunnel to this peer.
    Asked(Option<(&'a VxlanRouted, &'a Peer)>),
    /// Multicast or broadcast, on the interface's link.
    Group,
    /// Through the tunnel, by the uplink.
    Tunnel(&'a VxlanRouted, &'a Peer),
    /// The frame leaves by the uplink, with the headers that the node's own routing would make.
    Forwarded,
    /// One host on the interface's link: by the interface or, in a bridged overlay, to where its station is.
    Unicast,
}

/// Prefixes with a meaning of their own, whatever the tables say.
pub(crate) fn special_prefixes() -> impl Iterator<Item = IpPrefix> {
    let v4 = |octets: [u8; 4], bits| IpPrefix::covering(IpAddr::V4(Ipv4Addr::from(octets)), bits);
    let v6 = |first, last, bits| {
        IpPrefix::covering(IpAddr::V6(Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last)), bits)
    };
    [
        v4([127, 0, 0, 0], 8),
        v4([0, 0, 0, 0], 32),
        v4([224, 0, 0, 0], 4),
        v4([255, 255, 255, 255], 32),
        v6(0, 1, 128),
        v6(0, 0, 128),
        v6(0xfe80, 0, 10),
        v6(0xff00, 0, 8),
    ]
    .into_iter()
    .flatten()
    // Interface-local multicast (RFC 4291 2.7): scope 1, whatever the four flag bits are.
    .chain((0..16).filter_map(move |flags| v6(0xff01 | (flags << 4), 0, 16).ok()))
}

fn is_own(tables: &AttachmentTables, at: IpPrefix) -> bool {
    let is_local = match at.address() {
        IpAddr::V4(address) => {
            (address.is_loopback() && at.bits() >= 8) || (address.is_unspecified() && at.bits() == 32)
        }
        IpAddr::V6(address) => {
            let is_interface_local = address.is_multicast() && address.segments()[0] & 0xf == 1;
            (at.bits() == 128 && (address.is_loopback() || address.is_unspecified()))
                || (is_interface_local && at.bits() >= 16)
        }
    };
    is_local
        || tables.is_local(at)
        || (at == IpPrefix::host(at.address()) && tables.own.binary_search(&at.address()).is_ok())
}

fn is_group(tables: &AttachmentTables, at: IpPrefix) -> bool {
    match at.address() {
        IpAddr::V4(address) => (address.is_multicast() && at.bits() >= 4) || is_broadcast(tables, at),
        IpAddr::V6(address) => address.is_multicast() && at.bits() >= 8,
    }
}

/// Whether `at` is one broadcast address: of all networks, or of one of the interface's.
pub(crate) fn is_broadcast(tables: &AttachmentTables, at: IpPrefix) -> bool {
    match at.address() {
        IpAddr::V4(address) if at.bits() == 32 => {
            address.is_broadcast() || tables.interface.broadcasts().any(|own| own == address)
        }
        _ => false,
    }
}

/// Rule 2b: whether only the kernel knows how all of `at` is reached. In a family that is not asked about as a whole, groups
/// and link-local addresses follow no route.
fn is_asked(tables: &AttachmentTables, at: IpPrefix) -> bool {
    let has_such_route = || tables.interface.route_at(at).is_some_and(|route| route.via == Via::Asked);
    tables.asked().has(at.address()) || (has_such_route() && !is_group(tables, at) && !is_link_local(at))
}

/// The path of what only the kernel knows the route of. Groups and link-local destinations leave by the device that their socket
/// names, and a segment's next hop decides on the port: these are the kernel's.
fn asked_path(tables: &AttachmentTables, at: IpPrefix) -> Path<'_> {
    if is_group(tables, at) || is_link_local(at) || tables.overlay.bridged().is_some() {
        return Path::Bypass(BypassReason::RoutingRules);
    }
    Path::Asked(tables.overlay.routed().and_then(|vxlan| Some((vxlan, vxlan.peer_at(at)?))))
}

/// Whether all of `at` is link-local IPv6 unicast (RFC 4291 2.5.6).
pub(crate) fn is_link_local(at: IpPrefix) -> bool {
    match at.address() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local() && at.bits() >= 10,
    }
}

/// The path to all addresses of `at` that no longer prefix of the tables covers.
pub(crate) fn path_to(tables: &AttachmentTables, at: IpPrefix) -> Path<'_> {
    if is_own(tables, at) {
        return Path::Bypass(BypassReason::OwnAddress); // rule 1
    }
    if tables.allowed.longest(at).is_none() || tables.leaves(at) {
        return Path::Bypass(BypassReason::NotAllowed); // rule 2
    }
    if is_asked(tables, at) {
        return asked_path(tables, at); // rule 2b
    }
    if is_link_local(at) {
        return Path::Unicast; // never routed, so rules 3 and 4 do not apply
    }
    if tables.yields(at) {
        return Path::Bypass(BypassReason::NotAllowed); // the other attachment's
    }
    if is_group(tables, at) {
        return Path::Group; // rule 3
    }
    if let Some(vxlan) = tables.overlay.routed()
        && let Some(peer) = vxlan.peer_at(at)
    {
        return Path::Tunnel(vxlan, peer); // rule 4
    }
    if is_forwarded(tables, at) {
        return Path::Forwarded; // rule 4b
    }
    match tables.interface.route_at(at) {
        Some(route) if route.via == Via::Elsewhere => Path::Bypass(BypassReason::NotAllowed),
        _ => Path::Unicast, // rule 5
    }
}

/// Rule 4b: whether the pod's next hop for all of `at` is this node, which sends it on by the uplink.
fn is_forwarded(tables: &AttachmentTables, at: IpPrefix) -> bool {
    let node = &tables.forwarding;
    let forwards = if at.address().is_ipv4() { node.is_v4 } else { node.is_v6 };
    if !forwards || tables.overlay != Overlay::None || is_nodes(tables, at) {
        return false;
    }
    let Some(Via::Gateway(gateway)) = tables.interface.route_at(at).map(|route| route.via) else {
        return false;
    };
    // A link-local gateway says nothing of which device has it.
    let gateway = gateway.to_canonical();
    let is_node = node.own.binary_search(&gateway).is_ok() && !is_link_local(IpPrefix::host(gateway));
    // Where the node's default route leads may be anywhere, and its address is translated as a rule.
    let route = tables.uplink.route_at(at).filter(|route| route.prefix.bits() > 0);
    is_node && route.is_some_and(|route| matches!(route.via, Via::OnLink | Via::Gateway(_)))
}

/// Whether `at` is an address that the node does not send on: its own, or the broadcast address of the uplink's network.
fn is_nodes(tables: &AttachmentTables, at: IpPrefix) -> bool {
    let is_own = |address: IpAddr| tables.forwarding.own.binary_search(&address).is_ok();
    let is_broadcast = |address: IpAddr| tables.uplink.broadcasts().any(|own| IpAddr::V4(own) == address);
    at == IpPrefix::host(at.address()) && (is_own(at.address()) || is_broadcast(at.address()))
}

/// The tunnel that frames on this path may take: its octets within the uplink's MTU, and whether it is over IPv4.
fn tunnel_octets(tables: &AttachmentTables, path: &Path<'_>) -> Option<(u32, bool)> {
    let (local, tag) = match path {
        Path::Tunnel(vxlan, _) | Path::Asked(Some((vxlan, _))) => (vxlan.tunnel.local, 0),
        // One answer for the whole segment, wherever a station is: it may move.
        Path::Group | Path::Unicast => {
            (tables.overlay.bridged()?.tunnel.local, if tables.vlan.is_some() { TAG_OCTETS } else { 0 })
        }
        Path::Forwarded | Path::Bypass(_) | Path::Asked(None) => return None,
    };
    let headers = if local.is_ipv4() { VXLAN_OVER_IPV4_OCTETS } else { VXLAN_OVER_IPV6_OCTETS };
    Some((headers + tag, local.is_ipv4()))
}

/// The largest UDP payload on the path to `at`, octets: what the interface's MTU, or that which a router named, allows (the kernel would fragment more) and,
/// on the uplink, what its MTU leaves.
pub(crate) fn payload_max(tables: &AttachmentTables, path: &Path<'_>, at: IpPrefix) -> u16 {
    payload_max_within(tables, path, at.address().is_ipv4(), tables.interface.path_mtu(at))
}

/// [`payload_max`] where the interface's route allows packets of `interface` octets.
pub(crate) fn payload_max_within(
    tables: &AttachmentTables,
    path: &Path<'_>,
    is_v4: bool,
    interface: u32,
) -> u16 {
    let (packet_max, tunnel_limit) = match (tunnel_octets(tables, path), path) {
        (Some((octets, over_v4)), _) => {
            let limit = if over_v4 { 65_535 } else { 65_535 + 40 };
            (interface.min(tables.uplink.mtu().saturating_sub(octets)), limit - octets)
        }
        (None, Path::Forwarded) => (interface.min(tables.uplink.mtu()), u32::MAX),
        (None, _) => (interface, u32::MAX),
    };
    // The length fields: 16 bits over IP header (IPv4) or behind it (IPv6).
    let (headers, packet_limit) = if is_v4 { (20 + 8, 65_535) } else { (40 + 8, 65_535 + 40) };
    let payload = packet_max.min(packet_limit).min(tunnel_limit).saturating_sub(headers);
    u16::try_from(payload).unwrap_or(u16::MAX)
}

/// Every prefix at which [`path_to`] or its payload may change within `tables`.
pub(crate) fn prefixes_that_matter(tables: &AttachmentTables) -> impl Iterator<Item = IpPrefix> {
    let node = &tables.forwarding;
    let forwards = tables.overlay == Overlay::None && (node.is_v4 || node.is_v6);
    let nodes = node.own.iter().copied().chain(tables.uplink.broadcasts().map(IpAddr::V4));
    let nodes = nodes.filter(move |_| forwards);
    let hosts = tables.own.iter().copied().chain(tables.interface.broadcasts().map(IpAddr::V4));
    let peers = tables.overlay.routed().into_iter().flat_map(|vxlan| vxlan.peers.iter().map(|entry| entry.0));
    // Routes matter only where some of them lead elsewhere, or to the node, or are only the kernel's to know.
    let elsewhere = tables.interface.routes().any(|route| matches!(route.via, Via::Elsewhere | Via::Asked));
    let routes = tables.interface.routes().filter(move |_| elsewhere || forwards);
    let routes = routes.chain(tables.uplink.routes().filter(move |_| forwards)).map(|route| route.prefix);
    let listed = tables.allowed().chain(tables.left()).chain(tables.filtered()).chain(tables.local());
    let listed = listed.chain(peers).chain(routes).map(canonical);
    special_prefixes().chain(hosts.chain(nodes).map(IpPrefix::host)).chain(listed)
}
