// SPDX-License-Identifier: Apache-2.0
//! The rules of `docs/design/resolve.md`, one function a number, without any cleverness: linear scans over the plain
//! lists. Written from the document, not from the crate; shares only its plain input types.

use std::net::{IpAddr, Ipv4Addr};

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_resolve::{Egress, Flow, Link, NextHop, Peer, PortIndex, Refusal, Route, Side, Via};
use ktsn_wire::template::{Ends, Outer};
use ktsn_wire::{DsField, MacAddress, Network, Tci, TemplateRepr, Vni};

/// One attachment as plain lists.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub interface: Link,
    pub uplink: Link,
    pub peers: Vec<Peer>,
    pub local: IpAddr,
    pub vni: Vni,
    pub vxlan_port: u16,
    pub device_mac: MacAddress,
    pub udp_checksum: bool,
    pub destinations: Vec<IpPrefix>,
    pub own: Vec<IpAddr>,
    pub vlan: Option<Tci>,
}

/// What leaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Leaves {
    pub port: PortIndex,
    pub repr: TemplateRepr,
    pub payload_max: u16,
    pub egress: Egress,
}

fn hosts_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Bit by bit.
fn shared_bits(a: IpAddr, b: IpAddr) -> u8 {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let (a, b) = (octets(a), octets(b));
    let bit = |octets: &[u8], at: usize| octets[at / 8] >> (7 - at % 8) & 1;
    (0..a.len() * 8).take_while(|&at| bit(&a, at) == bit(&b, at)).count() as u8
}

fn inside(address: IpAddr, prefix: IpPrefix) -> bool {
    address.is_ipv4() == prefix.address().is_ipv4() && shared_bits(address, prefix.address()) >= prefix.bits()
}

/// The first of the longest.
fn longest<T: Copy>(address: IpAddr, list: &[T], prefix: impl Fn(T) -> IpPrefix) -> Option<T> {
    let mut best: Option<T> = None;
    for &entry in list {
        if inside(address, prefix(entry)) && best.is_none_or(|b| prefix(entry).bits() > prefix(b).bits()) {
            best = Some(entry);
        }
    }
    best
}

fn rule_1_own(plain: &Plain, to: IpAddr) -> bool {
    let interface_local = matches!(to, IpAddr::V6(a) if a.octets()[0] == 0xff && a.octets()[1] & 0x0f == 1);
    to.is_loopback()
        || to.is_unspecified()
        || interface_local
        || plain.own.contains(&to)
        || plain.interface.addresses.iter().any(|entry| entry.0 == to)
}

fn rule_2_allowed(plain: &Plain, to: IpAddr) -> bool {
    plain.destinations.iter().any(|prefix| inside(to, *prefix))
}

/// The MAC address, and the hop limit that is the default.
fn rule_3_group(plain: &Plain, to: IpAddr) -> Option<(MacAddress, u8)> {
    match to {
        IpAddr::V4(a) if a.octets()[0] >> 4 == 14 => {
            let o = a.octets();
            Some((MacAddress([1, 0, 0x5e, o[1] & 0x7f, o[2], o[3]]), 1))
        }
        IpAddr::V6(a) if a.octets()[0] == 0xff => {
            let o = a.octets();
            Some((MacAddress([0x33, 0x33, o[12], o[13], o[14], o[15]]), 1))
        }
        IpAddr::V4(a) => {
            let of_subnet = plain.interface.addresses.iter().any(|&(own, bits)| match own {
                // All host bits set, in our subnet, which has host addresses at all.
                IpAddr::V4(own) => {
                    bits < 31
                        && shared_bits(own.into(), a.into()) >= bits
                        && (0..32 - u32::from(bits)).all(|bit| a.to_bits() >> bit & 1 == 1)
                }
                IpAddr::V6(_) => false,
            });
            (of_subnet || a == Ipv4Addr::new(255, 255, 255, 255)).then_some((MacAddress([255; 6]), 64))
        }
        IpAddr::V6(_) => None,
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.segments()[0] & 0xffc0 == 0xfe80)
}

fn is_link_scoped(address: IpAddr) -> bool {
    let group = matches!(address, IpAddr::V6(a) if a.octets()[0] == 0xff && a.octets()[1] & 0xf <= 2);
    is_link_local(address) || group
}

fn rule_4_peer(plain: &Plain, to: IpAddr) -> Option<Peer> {
    let peer = longest(to, &plain.peers, |peer| peer.prefix)?;
    (!is_link_local(to) && peer.vtep != plain.local).then_some(peer)
}

fn route(link: &Link, to: IpAddr) -> Option<Route> {
    longest(to, &link.routes, |route| route.prefix)
}

fn next_hop(link: &Link, to: IpAddr) -> Result<IpAddr, Refusal> {
    match route(link, to).map(|route| route.via) {
        Some(Via::OnLink) => Ok(to),
        Some(Via::Gateway(gateway)) => Ok(gateway),
        _ => Err(Refusal::Drop(DropReason::NoRoute, None)),
    }
}

fn rule_6_mac(link: &Link, side: Side, address: IpAddr) -> Result<MacAddress, Refusal> {
    let found = link.neighbours.iter().find(|neighbour| neighbour.address == address);
    found.map(|n| n.mac).ok_or(Refusal::Drop(DropReason::NoNeighbour, Some(NextHop { side, address })))
}

fn rule_7_payload_max(plain: &Plain, to: IpAddr, tunnel: Option<Peer>) -> u16 {
    let mut mtu = i64::from(plain.interface.mtu);
    let mut field = 65_535 + if to.is_ipv4() { 0 } else { 40 };
    if let Some(peer) = tunnel {
        let (headers, ip) = if peer.vtep.is_ipv4() { (50, 0) } else { (70, 40) };
        mtu = mtu.min(i64::from(plain.uplink.mtu) - headers);
        field = field.min(65_535 + ip - headers);
    }
    let headers = if to.is_ipv4() { 28 } else { 48 };
    (mtu.min(field) - headers).clamp(0, 65_535) as u16
}

fn source(
    plain: &Plain,
    flow: &Flow,
    to: IpAddr,
    by: Option<Route>,
    hop: Option<IpAddr>,
) -> Result<IpAddr, Refusal> {
    let own = &plain.interface.addresses;
    if let Some(bound) = flow.bound.map(|bound| bound.to_canonical()).filter(|bound| !bound.is_unspecified())
    {
        let is_ours = own.iter().any(|entry| entry.0 == bound) && bound.is_ipv4() == to.is_ipv4();
        return if is_ours { Ok(bound) } else { Err(Refusal::Bypass(BypassReason::NotAllowed)) };
    }
    let of_family: Vec<_> = own.iter().filter(|entry| entry.0.is_ipv4() == to.is_ipv4()).copied().collect();
    if let Some(preferred) = by.and_then(|route| route.source)
        && of_family.iter().any(|entry| entry.0 == preferred)
    {
        return Ok(preferred);
    }
    let right: Vec<_> =
        of_family.iter().filter(|e| is_link_scoped(e.0) == is_link_scoped(to)).copied().collect();
    let candidates = if right.is_empty() { of_family } else { right };
    let target = hop.map(|hop| {
        let fits = hop.is_ipv4() == to.is_ipv4() && is_link_scoped(hop) == is_link_scoped(to);
        if fits { hop } else { to }
    });
    let rank =
        |(address, bits): (IpAddr, u8)| target.map_or(0, |target| shared_bits(address, target).min(bits));
    let best = candidates.iter().map(|entry| rank(*entry)).max();
    let first = candidates.iter().find(|entry| Some(rank(**entry)) == best);
    first.map(|entry| entry.0).ok_or(Refusal::Drop(DropReason::NoRoute, None))
}

fn network(from: IpAddr, to: IpAddr, hop_limit: u8, class: u8, dont_fragment: bool) -> Network {
    let ds = DsField(class);
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Network::V4 { source, destination, ttl: hop_limit, ds, dont_fragment }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Network::V6 { source, destination, hop_limit, ds, flow_label: 0 }
        }
        _ => panic!("{from} and {to}"),
    }
}

fn tunnel(plain: &Plain, flow: &Flow, to: IpAddr, peer: Peer) -> Result<TemplateRepr, Refusal> {
    let by = route(&plain.interface, to);
    let hop = match by.map(|route| route.via) {
        Some(Via::Gateway(gateway)) => gateway,
        _ => to,
    };
    let from = source(plain, flow, to, by, Some(hop))?;
    let hop_limit = if flow.hop_limit == 0 { 64 } else { flow.hop_limit };
    if hop_limit <= 1 || is_link_local(from) {
        return Err(Refusal::Drop(DropReason::NoRoute, None));
    }
    if peer.mac.0 == [0; 6] {
        return Err(Refusal::Drop(DropReason::NoNeighbour, None));
    }
    let underlay = next_hop(&plain.uplink, peer.vtep)?;
    let mac = rule_6_mac(&plain.uplink, Side::Uplink, underlay)?;
    let outer = Outer {
        ethernet: Ends { source: plain.uplink.mac, destination: mac },
        network: network(plain.local, peer.vtep, 64, 0, false),
        dscp_inherit: false,
        vxlan_port: plain.vxlan_port,
        vni: plain.vni,
        udp_checksum: plain.udp_checksum,
    };
    Ok(TemplateRepr {
        outer: Some(outer),
        ethernet: Ends { source: plain.device_mac, destination: peer.mac },
        vlan: None,
        network: network(from, to, hop_limit - 1, flow.traffic_class, true),
        udp: Ends { source: flow.source_port, destination: flow.destination_port },
    })
}

/// All rules in their order.
pub(crate) fn resolve(plain: &Plain, flow: &Flow) -> Result<Leaves, Refusal> {
    let to = flow.destination.to_canonical();
    let not_allowed = Err(Refusal::Bypass(BypassReason::NotAllowed));
    if rule_1_own(plain, to) {
        return Err(Refusal::Bypass(BypassReason::OwnAddress));
    }
    if !rule_2_allowed(plain, to) {
        return not_allowed;
    }
    let group = rule_3_group(plain, to);
    let peer = if group.is_some() { None } else { rule_4_peer(plain, to) };
    let by = route(&plain.interface, to);
    let unicast = group.is_none() && peer.is_none() && !is_link_local(to);
    if unicast && by.is_some_and(|route| route.via == Via::Elsewhere) {
        return not_allowed;
    }
    if is_link_scoped(to) && flow.scope != 0 && flow.scope != plain.interface.if_index {
        return not_allowed;
    }
    let payload_max = rule_7_payload_max(plain, to, peer);
    let by_interface = |mac, from, default| {
        let hop_limit = if flow.hop_limit == 0 { default } else { flow.hop_limit };
        let repr = TemplateRepr {
            outer: None,
            ethernet: Ends { source: plain.interface.mac, destination: mac },
            vlan: plain.vlan,
            network: network(from, to, hop_limit, flow.traffic_class, true),
            udp: Ends { source: flow.source_port, destination: flow.destination_port },
        };
        Ok(Leaves { port: plain.interface.port, repr, payload_max, egress: Egress::Interface })
    };
    // A foreign bound address is refused whatever else is missing.
    if let Err(refusal @ Refusal::Bypass(_)) = source(plain, flow, to, None, None) {
        return Err(refusal);
    }
    if let Some((mac, default)) = group {
        let of_subnet = default == 64 && to != IpAddr::V4(Ipv4Addr::BROADCAST);
        return by_interface(mac, source(plain, flow, to, None, of_subnet.then_some(to))?, default);
    }
    if let Some(peer) = peer {
        let repr = tunnel(plain, flow, to, peer)?;
        return Ok(Leaves { port: plain.uplink.port, repr, payload_max, egress: Egress::Uplink });
    }
    let (hop, by) = if is_link_local(to) { (to, None) } else { (next_hop(&plain.interface, to)?, by) };
    let from = source(plain, flow, to, by, Some(hop))?;
    by_interface(rule_6_mac(&plain.interface, Side::Interface, hop)?, from, 64)
}

/// The width of a host prefix, for generators.
pub(crate) fn width(address: IpAddr) -> u8 {
    hosts_bits(address)
}
