// SPDX-License-Identifier: Apache-2.0
//! The rules of `docs/design/resolve.md`, one function a number, without any cleverness: linear scans over the plain
//! lists. Written from the document, not from the crate; shares only its plain input types.

use std::net::{IpAddr, Ipv4Addr};

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_resolve::{
    Egress, Flow, Link, Marks, Member, MemberAt, NextHop, OuterDf, OuterDs, OuterTtl, Peer, PortIndex,
    Refusal, Route, RouteAnswer, Side, Via,
};
use ktsn_wire::template::{Ends, Outer};
use ktsn_wire::{DsField, MacAddress, Network, Tci, TemplateRepr, Vni};

/// What the attachment's network is.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// No overlay, on a node with these addresses that forwards IPv4, IPv6.
    Plain(Vec<IpAddr>, bool, bool),
    /// An overlay with `peers`.
    Routed,
    /// A segment: its table, whom it floods to, and whether the interface gets a copy.
    Bridged(Vec<Member>, Vec<IpAddr>, bool),
}

/// One attachment as plain lists.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub interface: Link,
    pub uplink: Link,
    pub kind: Kind,
    pub peers: Vec<Peer>,
    pub outer: (OuterTtl, OuterDs, OuterDf),
    pub local: IpAddr,
    pub vni: Vni,
    pub vxlan_port: u16,
    pub device_mac: MacAddress,
    pub udp_checksum: bool,
    pub destinations: Vec<IpPrefix>,
    pub own: Vec<IpAddr>,
    pub vlan: Option<Tci>,
    /// Only the kernel knows the routes of IPv4, of IPv6.
    pub asked: (bool, bool),
    /// Delivered by the namespace to itself.
    pub delivered: Vec<IpPrefix>,
    /// What the kernel answers about each flow that it is asked about.
    pub answer: Option<RouteAnswer>,
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
        || plain.delivered.iter().any(|prefix| inside(to, *prefix))
        || plain.interface.addresses.iter().any(|entry| entry.0 == to)
}

fn rule_2_allowed(plain: &Plain, to: IpAddr) -> bool {
    plain.destinations.iter().any(|prefix| inside(to, *prefix))
}

fn rule_2b_asked(plain: &Plain, to: IpAddr, is_group: bool) -> bool {
    let of_family = if to.is_ipv4() { plain.asked.0 } else { plain.asked.1 };
    let by = route(&plain.interface, to);
    of_family || (!is_group && !is_link_local(to) && by.is_some_and(|route| route.via == Via::Asked))
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
            let of_subnet = is_subnet_broadcast(&plain.interface, a);
            (of_subnet || a == Ipv4Addr::new(255, 255, 255, 255)).then_some((MacAddress([255; 6]), 64))
        }
        IpAddr::V6(_) => None,
    }
}

fn is_subnet_broadcast(link: &Link, a: Ipv4Addr) -> bool {
    link.addresses.iter().any(|&(own, bits)| match own {
        // All host bits set, in our subnet, which has host addresses at all.
        IpAddr::V4(own) => {
            bits < 31
                && shared_bits(own.into(), a.into()) >= bits
                && (0..32 - u32::from(bits)).all(|bit| a.to_bits() >> bit & 1 == 1)
        }
        IpAddr::V6(_) => false,
    })
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(a) if a.segments()[0] & 0xffc0 == 0xfe80)
}

fn is_link_scoped(address: IpAddr) -> bool {
    let group = matches!(address, IpAddr::V6(a) if a.octets()[0] == 0xff && a.octets()[1] & 0xf <= 2);
    is_link_local(address) || group
}

/// A scope identifier counts for link-local addresses and for groups of scopes 1 and 2, not for those of the reserved scope 0
/// (`__ipv6_addr_needs_scope_id` in Linux).
fn needs_scope(address: IpAddr) -> bool {
    let group =
        matches!(address, IpAddr::V6(a) if a.octets()[0] == 0xff && matches!(a.octets()[1] & 0xf, 1 | 2));
    is_link_local(address) || group
}

fn rule_4_peer(plain: &Plain, to: IpAddr) -> Option<Peer> {
    let Kind::Routed = plain.kind else { return None };
    let peer = longest(to, &plain.peers, |peer| peer.prefix)?;
    (!is_link_local(to) && peer.vtep != plain.local).then_some(peer)
}

fn rule_4b_forwarded(plain: &Plain, to: IpAddr) -> bool {
    let Kind::Plain(node, v4, v6) = &plain.kind else { return false };
    if is_link_local(to) || node.contains(&to) || !(if to.is_ipv4() { *v4 } else { *v6 }) {
        return false;
    }
    if matches!(to, IpAddr::V4(to) if is_subnet_broadcast(&plain.uplink, to)) {
        return false;
    }
    let Some(Route { via: Via::Gateway(gateway), .. }) = route(&plain.interface, to) else { return false };
    let by = route(&plain.uplink, to);
    node.contains(&gateway)
        && !is_link_local(gateway)
        && by.is_some_and(|by| by.prefix.bits() != 0 && !matches!(by.via, Via::Elsewhere | Via::Asked))
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

fn rule_7_payload_max(plain: &Plain, to: IpAddr, tunnel: bool, forwarded: bool) -> u16 {
    let mut mtu = i64::from(plain.interface.mtu);
    let mut field = 65_535 + if to.is_ipv4() { 0 } else { 40 };
    if forwarded {
        mtu = mtu.min(i64::from(plain.uplink.mtu));
    }
    let bridged = matches!(plain.kind, Kind::Bridged(..));
    if tunnel || bridged {
        let (headers, ip) = if plain.local.is_ipv4() { (50, 0) } else { (70, 40) };
        let headers = headers + if bridged && plain.vlan.is_some() { 4 } else { 0 };
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

fn network(from: IpAddr, to: IpAddr, hop_limit: u8, class: u8, marks: Marks) -> Network {
    let ds = DsField(class);
    let Marks { dont_fragment, flow_label, .. } = marks;
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Network::V4 { source, destination, ttl: hop_limit, ds, dont_fragment }
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Network::V6 { source, destination, hop_limit, ds, flow_label }
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
    let network = network(from, to, hop_limit - 1, flow.traffic_class, flow.marks);
    Ok(TemplateRepr {
        outer: Some(outer(plain, peer.vtep, &network)?),
        ethernet: Ends { source: plain.device_mac, destination: peer.mac },
        vlan: None,
        network,
        udp: Ends { source: flow.source_port, destination: flow.destination_port },
        udp_checksum: flow.marks.udp_checksum,
    })
}

/// What the node's routing makes of it.
fn passed_on(plain: &Plain, flow: &Flow, to: IpAddr) -> Result<TemplateRepr, Refusal> {
    let Some(Route { via: Via::Gateway(gateway), source: wanted, .. }) = route(&plain.interface, to) else {
        panic!("{to} is forwarded without a gateway")
    };
    let by = Route { prefix: IpPrefix::host(to), via: Via::Gateway(gateway), source: wanted };
    let from = source(plain, flow, to, Some(by), Some(gateway))?;
    let hop_limit = if flow.hop_limit == 0 { 64 } else { flow.hop_limit };
    if hop_limit <= 1 || is_link_local(from) {
        return Err(Refusal::Drop(DropReason::NoRoute, None));
    }
    let mac = rule_6_mac(&plain.uplink, Side::Uplink, next_hop(&plain.uplink, to)?)?;
    Ok(TemplateRepr {
        outer: None,
        ethernet: Ends { source: plain.uplink.mac, destination: mac },
        vlan: None,
        network: network(from, to, hop_limit - 1, flow.traffic_class, flow.marks),
        udp: Ends { source: flow.source_port, destination: flow.destination_port },
        udp_checksum: flow.marks.udp_checksum,
    })
}

fn outer(plain: &Plain, vtep: IpAddr, inner: &Network) -> Result<Outer, Refusal> {
    let underlay = next_hop(&plain.uplink, vtep)?;
    let mac = rule_6_mac(&plain.uplink, Side::Uplink, underlay)?;
    let (inner_ttl, inner_ds, inner_df) = match *inner {
        Network::V4 { ttl, ds, dont_fragment, .. } => (ttl, ds, dont_fragment),
        Network::V6 { hop_limit, ds, .. } => (hop_limit, ds, true),
    };
    let ttl = match plain.outer.0 {
        OuterTtl::Fixed(0) => 64,
        OuterTtl::Fixed(ttl) => ttl,
        OuterTtl::Inherit => inner_ttl,
    };
    let class = match plain.outer.1 {
        OuterDs::Fixed(ds) => ds.0,
        OuterDs::Inherit => inner_ds.0,
    };
    let dont_fragment = match plain.outer.2 {
        OuterDf::Unset => false,
        OuterDf::Set => true,
        OuterDf::Inherit => inner_df,
    };
    Ok(Outer {
        ethernet: Ends { source: plain.uplink.mac, destination: mac },
        network: network(plain.local, vtep, ttl, class, Marks { dont_fragment, ..Marks::default() }),
        dscp_inherit: false,
        vxlan_port: plain.vxlan_port,
        vni: plain.vni,
        udp_checksum: plain.udp_checksum,
    })
}

/// A frame that the interface would send, as what it leaves.
fn rule_4c_segment(plain: &Plain, frame: Leaves, hop: Option<IpAddr>) -> Result<Vec<Leaves>, Refusal> {
    let Kind::Bridged(members, flood, flood_interface) = &plain.kind else { return Ok(vec![frame]) };
    let in_tunnel = |vtep: IpAddr| {
        let repr = TemplateRepr { outer: Some(outer(plain, vtep, &frame.repr.network)?), ..frame.repr };
        Ok(Leaves { port: plain.uplink.port, repr, egress: Egress::Uplink, ..frame })
    };
    let by_mac = members.iter().find(|m| m.at == MemberAt::Mac(frame.repr.ethernet.destination)).copied();
    let prefixes: Vec<_> = members
        .iter()
        .filter_map(|m| match m.at {
            MemberAt::Prefix(prefix) => Some((prefix, *m)),
            MemberAt::Mac(_) => None,
        })
        .collect();
    let by_prefix = hop.and_then(|hop| longest(hop, &prefixes, |entry| entry.0)).map(|entry| entry.1);
    match by_mac.or(by_prefix) {
        Some(member) if member.vtep == plain.local => return Ok(vec![frame]),
        Some(member) => return Ok(vec![in_tunnel(member.vtep)?]),
        None => {}
    }
    let ends: std::collections::BTreeSet<_> = flood.iter().filter(|end| **end != plain.local).collect();
    let copies: Vec<Result<Leaves, Refusal>> = ends.iter().map(|end| in_tunnel(**end)).collect();
    let mut leave: Vec<Leaves> = copies.iter().filter_map(|copy| copy.ok()).collect();
    if copies.is_empty() || *flood_interface {
        leave.push(frame);
    }
    if leave.is_empty() { Err(copies[0].unwrap_err()) } else { Ok(leave) }
}

/// An answered flow leaves as if its interface had one route, the answer.
fn as_answered(plain: &Plain, flow: &Flow, to: IpAddr, is_group: bool) -> Result<Vec<Leaves>, Refusal> {
    let kernels = Err(Refusal::Bypass(BypassReason::RoutingRules));
    if is_group || is_link_local(to) || matches!(plain.kind, Kind::Bridged(..)) {
        return kernels;
    }
    if let Err(foreign @ Refusal::Bypass(_)) = source(plain, flow, to, None, None) {
        return Err(foreign);
    }
    let route = match plain.answer {
        None => return Err(Refusal::Unanswered),
        Some(RouteAnswer::Elsewhere) => return kernels,
        Some(RouteAnswer::Interface(route)) => route,
    };
    let is_bound = flow.bound.is_some_and(|bound| !bound.to_canonical().is_unspecified());
    let is_own = |source: IpAddr| {
        source.is_ipv4() == to.is_ipv4() && plain.interface.addresses.iter().any(|entry| entry.0 == source)
    };
    let mut as_if = plain.clone();
    as_if.asked = (false, false);
    if let Kind::Plain(..) = as_if.kind {
        as_if.kind = Kind::Plain(vec![], false, false);
    }
    let via = route.gateway.map_or(Via::OnLink, Via::Gateway);
    as_if.interface.routes = vec![Route { prefix: IpPrefix::host(to), via, source: route.source }];
    as_if.interface.mtu = plain.interface.mtu.min(route.mtu.unwrap_or(u32::MAX));
    let is_programs = flow.hop_limit != 0 && !flow.marks.is_default_hop_limit;
    let hop_limit = route.hop_limit.filter(|_| !is_programs).unwrap_or(flow.hop_limit);
    let answered = resolve(&as_if, &Flow { hop_limit, ..*flow });
    // The tunnel comes before the source in what is missing; without the kernel's source nothing leaves.
    if !is_bound && !route.source.is_some_and(is_own) { kernels } else { answered }
}

/// All rules in their order; all frames that it leaves as.
pub(crate) fn resolve(plain: &Plain, flow: &Flow) -> Result<Vec<Leaves>, Refusal> {
    let to = flow.destination.to_canonical();
    let not_allowed = Err(Refusal::Bypass(BypassReason::NotAllowed));
    if rule_1_own(plain, to) {
        return Err(Refusal::Bypass(BypassReason::OwnAddress));
    }
    if !rule_2_allowed(plain, to) {
        return not_allowed;
    }
    let group = rule_3_group(plain, to);
    if rule_2b_asked(plain, to, group.is_some()) {
        return as_answered(plain, flow, to, group.is_some());
    }
    let peer = if group.is_some() { None } else { rule_4_peer(plain, to) };
    let by = route(&plain.interface, to);
    let unicast = group.is_none() && peer.is_none() && !is_link_local(to);
    if unicast && by.is_some_and(|route| route.via == Via::Elsewhere) {
        return not_allowed;
    }
    if needs_scope(to) && flow.scope != 0 && flow.scope != plain.interface.if_index {
        return not_allowed;
    }
    let forwarded = group.is_none() && rule_4b_forwarded(plain, to);
    let payload_max = rule_7_payload_max(plain, to, peer.is_some(), forwarded);
    let by_interface = |mac, from, default, hop| {
        let hop_limit = if flow.hop_limit == 0 { default } else { flow.hop_limit };
        let repr = TemplateRepr {
            outer: None,
            ethernet: Ends { source: plain.interface.mac, destination: mac },
            vlan: plain.vlan,
            network: network(from, to, hop_limit, flow.traffic_class, flow.marks),
            udp: Ends { source: flow.source_port, destination: flow.destination_port },
            udp_checksum: flow.marks.udp_checksum,
        };
        let frame = Leaves { port: plain.interface.port, repr, payload_max, egress: Egress::Interface };
        rule_4c_segment(plain, frame, hop)
    };
    // A foreign bound address is refused whatever else is missing.
    if let Err(refusal @ Refusal::Bypass(_)) = source(plain, flow, to, None, None) {
        return Err(refusal);
    }
    if let Some((mac, default)) = group {
        let of_subnet = default == 64 && to != IpAddr::V4(Ipv4Addr::BROADCAST);
        return by_interface(mac, source(plain, flow, to, None, of_subnet.then_some(to))?, default, None);
    }
    if let Some(peer) = peer {
        let repr = tunnel(plain, flow, to, peer)?;
        return Ok(vec![Leaves { port: plain.uplink.port, repr, payload_max, egress: Egress::Uplink }]);
    }
    if forwarded {
        let repr = passed_on(plain, flow, to)?;
        return Ok(vec![Leaves { port: plain.uplink.port, repr, payload_max, egress: Egress::Uplink }]);
    }
    let (hop, by) = if is_link_local(to) { (to, None) } else { (next_hop(&plain.interface, to)?, by) };
    let from = source(plain, flow, to, by, Some(hop))?;
    by_interface(rule_6_mac(&plain.interface, Side::Interface, hop)?, from, 64, Some(hop))
}

/// The width of a host prefix, for generators.
pub(crate) fn width(address: IpAddr) -> u8 {
    hosts_bits(address)
}
