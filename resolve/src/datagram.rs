// SPDX-License-Identifier: Apache-2.0
//! One datagram: its path by rules 1 to 5, the headers of the frame that it leaves as, its port and its largest payload; or why not.
//!
//! In: [`Tables`] and a [`Flow`]. Out: [`Resolved`] or [`Refusal`]. Must never allocate or panic: workers call it.

use core::net::{IpAddr, Ipv4Addr};

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_wire::template::{Ends, Outer};
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Network, TemplateRepr};

use crate::flow::{
    Egress, FORBIDDEN, Flow, InterfaceRoute, Marks, NO_ROUTE, NOT_ALLOWED, NextHop, ROUTING_RULES, Refusal,
    Replica, RouteAnswer, Side, needs_scope,
};
use crate::link::{LinkTable, PortIndex, Via};
use crate::overlay::{OuterDf, OuterDs, OuterTtl, Overlay, Peer, Station, Tunnel, VxlanRouted};
use crate::path::{Path, path_to, payload_max_within};
use crate::source;
use crate::table::{AttachmentIndex, AttachmentTables, Tables};

/// Hop limit of unicast when the program sets none (Linux's default).
const HOP_LIMIT_UNICAST: u8 = 64;
/// Hop limit of multicast when the program sets none (RFC 1112 6.1).
const HOP_LIMIT_MULTICAST: u8 = 1;

/// Where and how a datagram leaves.
#[derive(Clone, Copy, Debug)]
pub struct Resolved {
    /// The port to hand it to.
    pub port: PortIndex,
    /// Its headers.
    pub template: HeaderTemplate,
    /// Largest payload, octets (rule 7).
    pub payload_max: u16,
    /// How it leaves.
    pub egress: Egress,
    /// Set when the datagram leaves as several frames: which of them this is. The next is [`next_replica`]'s.
    pub replica: Option<Replica>,
    /// Copies before this one that cannot leave, for want of a route or a neighbour.
    pub skipped: u16,
}

/// Applies the rules to one datagram. Where it leaves as several frames, this is the first that can leave.
///
/// # Errors
/// [`Refusal`]: `Bypass` for own, not allowed and foreign-scope destinations and for a bound address that is not the
/// interface's; `Drop` with `no_route` (also: the hop limit ends here, no source of the family), `no_neighbour`,
/// `network_policy`. `Unanswered` where the kernel must be asked.
pub fn resolve(tables: &Tables, flow: &Flow) -> Result<Resolved, Refusal> {
    resolve_replica(tables, flow, Replica::First)
}

/// Applies the rules to one of the frames that a datagram leaves as.
///
/// # Errors
/// Those of [`resolve`]; `no_route` for a copy that the tables know no more.
pub fn resolve_replica(tables: &Tables, flow: &Flow, replica: Replica) -> Result<Resolved, Refusal> {
    decide(tables, flow, replica, None, None)
}

/// Applies the rules to a datagram about whose route the kernel was asked. The answer counts only where the tables have none.
///
/// # Errors
/// Those of [`resolve`]; `Bypass` with `routing_rules` where the kernel would not send it by the interface, or from an address that
/// is not the interface's.
pub fn resolve_answered(tables: &Tables, flow: &Flow, answer: &RouteAnswer) -> Result<Resolved, Refusal> {
    decide(tables, flow, Replica::First, None, Some(answer))
}

/// What [`resolve`] will say once the MAC addresses are known for want of which it refuses with a [`NextHop`](crate::NextHop): port,
/// lengths, first copy. The same for a flow that the kernel has not answered for, as if it left by the interface. The template has
/// zeros in their place, so no frame may be made of it.
///
/// # Errors
/// Those of [`resolve`]; `no_neighbour` also where the MAC address is needed to know the port (bridged overlays).
pub fn resolve_ahead(
    tables: &Tables,
    flow: &Flow,
    answer: Option<&RouteAnswer>,
) -> Result<Resolved, Refusal> {
    decide(tables, flow, Replica::First, Some(MacAddress::default()), answer)
}

fn decide(
    tables: &Tables,
    flow: &Flow,
    replica: Replica,
    unknown: Option<MacAddress>,
    answer: Option<&RouteAnswer>,
) -> Result<Resolved, Refusal> {
    let Some(tables) = tables.attachment(flow.attachment) else {
        return Err(Refusal::Bypass(BypassReason::NotAttached));
    };
    let destination = flow.destination.to_canonical();
    let path = path_to(tables, IpPrefix::host(destination));
    if let Path::Bypass(reason) = path {
        return Err(Refusal::Bypass(reason));
    }
    if needs_scope(destination) && flow.scope != 0 && flow.scope != tables.interface.if_index() {
        return Err(NOT_ALLOWED);
    }
    let bound = bound_source(&tables.interface, flow.bound, destination)?;
    let asked = match (path, answer) {
        (Path::Asked(_), Some(RouteAnswer::Interface(route))) => Some(*route),
        (Path::Asked(_), Some(RouteAnswer::Elsewhere)) => return Err(ROUTING_RULES),
        // For its lengths every answer is as good.
        (Path::Asked(_), None) if unknown.is_some() => {
            let source = tables.interface.addresses().iter().map(|&(own, _)| own);
            let source = source.into_iter().find(|own| own.is_ipv4() == destination.is_ipv4());
            Some(InterfaceRoute { source, ..InterfaceRoute::default() })
        }
        (Path::Asked(_), None) => return Err(Refusal::Unanswered),
        _ => None,
    };
    let datagram = Datagram { tables, flow, destination, bound, asked, unknown };
    let leaves = match path {
        Path::Asked(_) if replica != Replica::First => return Err(NO_ROUTE),
        Path::Group => datagram.group(replica)?,
        Path::Unicast | Path::Bypass(_) | Path::Asked(None) => datagram.unicast(replica)?,
        Path::Tunnel(..) | Path::Forwarded if replica != Replica::First => return Err(NO_ROUTE),
        Path::Tunnel(vxlan, peer) | Path::Asked(Some((vxlan, peer))) => datagram.tunnel(vxlan, peer)?,
        Path::Forwarded => datagram.forwarded()?,
    };
    let Departure { egress, repr, replica, skipped } = leaves;
    if egress == Egress::Uplink && !tables.permits(Some(destination)) {
        return Err(FORBIDDEN);
    }
    let port = match egress {
        Egress::Uplink => tables.uplink.port(),
        Egress::Interface => tables.interface.port(),
    };
    let template = HeaderTemplate::new(&repr).map_err(|_| Refusal::Drop(DropReason::Bug, None))?;
    let mtu = asked.and_then(|route| route.mtu).unwrap_or(u32::MAX).min(tables.interface.mtu());
    let payload_max = payload_max_within(tables, &path, destination.is_ipv4(), mtu);
    Ok(Resolved { port, template, payload_max, egress, replica, skipped })
}

/// The copy after this one of a frame that leaves as several. Each tunnel end gets one, even if the tables change between
/// two copies: what counts is which ends come after the last one.
#[must_use]
pub fn next_replica(tables: &Tables, attachment: AttachmentIndex, after: Replica) -> Option<Replica> {
    let bridged = tables.attachment(attachment)?.overlay.bridged()?;
    let Replica::Vtep(last) = after else { return None };
    let later = bridged.flood().partition_point(|&vtep| vtep <= last);
    match bridged.flood().get(later) {
        Some(&vtep) => Some(Replica::Vtep(vtep)),
        None => bridged.flood_interface().then_some(Replica::Interface),
    }
}

/// The bound address when it is specific; a foreign one, or one of another family, is refused.
fn bound_source(
    interface: &LinkTable,
    bound: Option<IpAddr>,
    destination: IpAddr,
) -> Result<Option<IpAddr>, Refusal> {
    match bound.map(|address| address.to_canonical()) {
        None => Ok(None),
        Some(address) if address.is_unspecified() => Ok(None),
        Some(address) if address.is_ipv4() == destination.is_ipv4() && interface.has_address(address) => {
            Ok(Some(address))
        }
        Some(_) => Err(NOT_ALLOWED),
    }
}

/// One datagram under rules 3 to 6.
struct Datagram<'a> {
    tables: &'a AttachmentTables,
    flow: &'a Flow,
    /// Canonical.
    destination: IpAddr,
    /// The socket's own address, which is the interface's.
    bound: Option<IpAddr>,
    /// The kernel's answer, where only the kernel knows the route.
    asked: Option<InterfaceRoute>,
    /// What stands for a MAC address that is not known yet; none: there is no answer without it.
    unknown: Option<MacAddress>,
}

/// A frame of a datagram: its egress, its headers, and which copy it is.
struct Departure {
    egress: Egress,
    repr: TemplateRepr,
    /// Set when the datagram leaves as several frames: which of them this is.
    replica: Option<Replica>,
    skipped: u16,
}

impl Departure {
    fn one(egress: Egress, repr: TemplateRepr) -> Self {
        Self { egress, repr, replica: None, skipped: 0 }
    }
}

impl Datagram<'_> {
    fn source(&self, preferred: Option<IpAddr>, next_hop: Option<IpAddr>) -> Result<IpAddr, Refusal> {
        if let Some(route) = self.asked {
            // The kernel's choice, or the frame is the kernel's.
            let is_v4 = self.destination.is_ipv4();
            let is_own = |own: &IpAddr| own.is_ipv4() == is_v4 && self.tables.interface.has_address(*own);
            return self.bound.or(route.source.filter(is_own)).ok_or(ROUTING_RULES);
        }
        let choose = || source::choose(&self.tables.interface, preferred, next_hop, self.destination);
        self.bound.or_else(choose).ok_or(NO_ROUTE)
    }

    fn hop_limit(&self, default: u8) -> u8 {
        let routes = self.asked.and_then(|route| route.hop_limit);
        match routes {
            // Linux asks the route only where the program set none.
            Some(hops) if self.flow.hop_limit == 0 || self.flow.marks.is_default_hop_limit => hops,
            _ if self.flow.hop_limit == 0 => default,
            _ => self.flow.hop_limit,
        }
    }

    /// The hop limit of unicast. Linux asks the interface where the program set none, IPv4 the namespace.
    fn hop_limit_unicast(&self) -> u8 {
        let is_interfaces = self.destination.is_ipv6() && self.flow.marks.is_default_hop_limit;
        let has_routes = self.asked.is_some_and(|route| route.hop_limit.is_some());
        let interfaces = self.tables.interface.hop_limit_v6().filter(|_| is_interfaces && !has_routes);
        interfaces.unwrap_or_else(|| self.hop_limit(HOP_LIMIT_UNICAST))
    }

    fn network(&self, source: IpAddr, hop_limit: u8) -> Result<Network, Refusal> {
        network(source, self.destination, hop_limit, self.flow.traffic_class, self.flow.marks)
            .ok_or(Refusal::Drop(DropReason::Bug, None))
    }

    fn udp(&self) -> Ends<u16> {
        Ends { source: self.flow.source_port, destination: self.flow.destination_port }
    }

    fn untagged(&self, ethernet: Ends<MacAddress>, network: Network) -> TemplateRepr {
        let udp_checksum = self.flow.marks.udp_checksum;
        TemplateRepr { outer: None, ethernet, vlan: None, network, udp: self.udp(), udp_checksum }
    }

    fn by_interface(&self, mac: MacAddress, network: Network) -> TemplateRepr {
        let ethernet = Ends { source: self.tables.interface.mac(), destination: mac };
        TemplateRepr { vlan: self.tables.vlan, ..self.untagged(ethernet, network) }
    }

    /// Rule 3: the MAC address follows from the destination.
    pub(crate) fn group(&self, replica: Replica) -> Result<Departure, Refusal> {
        let (mac, hop_limit, next_hop) = match group_mac(self.destination) {
            Some(mac) => (mac, HOP_LIMIT_MULTICAST, None),
            None => {
                let next_hop = match self.destination {
                    IpAddr::V4(Ipv4Addr::BROADCAST) => None,
                    subnet => Some(subnet),
                };
                (MacAddress::BROADCAST, HOP_LIMIT_UNICAST, next_hop)
            }
        };
        let source = self.source(None, next_hop)?;
        let inner = self.by_interface(mac, self.network(source, self.hop_limit(hop_limit))?);
        self.on_segment(inner, None, replica)
    }

    /// What the pod's router would pass on: with which source and hop limit.
    fn passed_on(&self) -> Result<Network, Refusal> {
        let route = self.tables.interface.route(self.destination);
        let hop = match route.map(|route| route.via) {
            Some(Via::Gateway(gateway)) => gateway,
            _ => self.destination,
        };
        let source = self.source(route.and_then(|route| route.source), Some(hop))?;
        let hop_limit = self.hop_limit_unicast() - 1;
        // A router forwards neither an expired datagram (RFC 1812 5.3.1) nor a link-local source (RFC 4291 2.5.6).
        if hop_limit == 0 || matches!(source, IpAddr::V6(source) if source.is_unicast_link_local()) {
            return Err(NO_ROUTE);
        }
        self.network(source, hop_limit)
    }

    /// Rule 4: what the pod's router and the node's VXLAN device would have made of it.
    pub(crate) fn tunnel(&self, vxlan: &VxlanRouted, peer: &Peer) -> Result<Departure, Refusal> {
        let network = self.passed_on()?;
        if !peer.is_reachable() {
            return Err(Refusal::Drop(DropReason::NoNeighbour, None));
        }
        let outer = Some(self.outer(&vxlan.tunnel, peer.vtep, &network)?);
        let ethernet = Ends { source: vxlan.device_mac, destination: peer.mac };
        Ok(Departure::one(Egress::Uplink, TemplateRepr { outer, ..self.untagged(ethernet, network) }))
    }

    /// Rule 4b: what the node's own routing would have made of it.
    pub(crate) fn forwarded(&self) -> Result<Departure, Refusal> {
        let network = self.passed_on()?;
        let uplink = &self.tables.uplink;
        let hop = next_hop(uplink, self.destination)?;
        let mac = neighbour(uplink, Side::Uplink, hop, self.unknown)?;
        let ethernet = Ends { source: uplink.mac(), destination: mac };
        Ok(Departure::one(Egress::Uplink, self.untagged(ethernet, network)))
    }

    /// Rule 4c: a frame as the interface would send it; in a bridged overlay, where on the segment it goes. `hop`: the next
    /// hop that it is for, of groups none.
    fn on_segment(
        &self,
        inner: TemplateRepr,
        hop: Option<IpAddr>,
        replica: Replica,
    ) -> Result<Departure, Refusal> {
        let mac = inner.ethernet.destination;
        let placed = place(&self.tables.overlay, mac, hop, replica, |tunnel, vtep| {
            self.outer(tunnel, vtep, &inner.network)
        })?;
        let Placed { outer, replica, skipped } = placed;
        let egress = if outer.is_some() { Egress::Uplink } else { Egress::Interface };
        Ok(Departure { egress, repr: TemplateRepr { outer, ..inner }, replica, skipped })
    }

    /// Rules 5 and 6.
    pub(crate) fn unicast(&self, replica: Replica) -> Result<Departure, Refusal> {
        let interface = &self.tables.interface;
        let (hop, preferred) = if let Some(route) = self.asked {
            (route.gateway.map_or(self.destination, |gateway| gateway.to_canonical()), None)
        } else if needs_scope(self.destination) {
            (self.destination, None) // link-local is on link by definition
        } else {
            let preferred = interface.route(self.destination).and_then(|route| route.source);
            (next_hop(interface, self.destination)?, preferred)
        };
        let source = self.source(preferred, Some(hop))?;
        // On a segment the MAC address says by which port.
        let unknown = self.unknown.filter(|_| self.tables.overlay.bridged().is_none());
        let mac = neighbour(interface, Side::Interface, hop, unknown)?;
        let inner = self.by_interface(mac, self.network(source, self.hop_limit_unicast())?);
        self.on_segment(inner, Some(hop), replica)
    }

    /// The headers of the tunnel to `vtep` around a packet.
    fn outer(&self, tunnel: &Tunnel, vtep: IpAddr, inner: &Network) -> Result<Outer, Refusal> {
        let (ttl, dont_fragment) = match *inner {
            Network::V4 { ttl, dont_fragment, .. } => (ttl, dont_fragment),
            Network::V6 { hop_limit, .. } => (hop_limit, true),
        };
        outer_around(tunnel, &self.tables.uplink, vtep, (ttl, dont_fragment), self.unknown)
    }
}

/// Where a frame goes on a segment.
pub(crate) struct Placed {
    /// Through this tunnel, by the uplink; `None`: by the interface.
    pub(crate) outer: Option<Outer>,
    /// Set when the datagram leaves as several frames: which of them this is.
    pub(crate) replica: Option<Replica>,
    pub(crate) skipped: u16,
}

/// Rule 4c for a frame to the station `mac`, which is the next hop `hop` where that is known.
pub(crate) fn place(
    overlay: &Overlay,
    mac: MacAddress,
    hop: Option<IpAddr>,
    replica: Replica,
    outer: impl Fn(&Tunnel, IpAddr) -> Result<Outer, Refusal>,
) -> Result<Placed, Refusal> {
    let by_interface = |replica| Placed { outer: None, replica, skipped: 0 };
    let Some(vxlan) = overlay.bridged() else {
        return if replica == Replica::First { Ok(by_interface(None)) } else { Err(NO_ROUTE) };
    };
    let to = |vtep, replica, skipped| {
        let outer = outer(&vxlan.tunnel, vtep)?;
        Ok(Placed { outer: Some(outer), replica, skipped })
    };
    match replica {
        Replica::Vtep(vtep) if vxlan.flood().binary_search(&vtep).is_ok() => {
            return to(vtep, Some(replica), 0);
        }
        Replica::Interface if vxlan.flood_interface() => return Ok(by_interface(Some(replica))),
        Replica::Vtep(_) | Replica::Interface => return Err(NO_ROUTE),
        Replica::First => {}
    }
    match vxlan.station(mac, hop) {
        Station::Remote(vtep) => return to(vtep, None, 0),
        Station::Here => return Ok(by_interface(None)),
        Station::Unknown => {}
    }
    let mut refusal = None;
    for (&vtep, skipped) in vxlan.flood().iter().zip(0..) {
        match to(vtep, Some(Replica::Vtep(vtep)), skipped) {
            Ok(placed) => return Ok(placed),
            Err(error) => refusal = refusal.or(Some(error)),
        }
    }
    match refusal {
        Some(refusal) if !vxlan.flood_interface() => Err(refusal),
        Some(_) => {
            Ok(Placed { skipped: vxlan.flood().len() as u16, ..by_interface(Some(Replica::Interface)) })
        }
        // There is no tunnel end for copies: the node's bridge knows where it goes.
        None => Ok(by_interface(None)),
    }
}

/// The headers of the tunnel to `vtep` around what has this TTL, and may not be fragmented or may. `unknown`: as
/// [`Datagram::unknown`].
pub(crate) fn outer_around(
    tunnel: &Tunnel,
    uplink: &LinkTable,
    vtep: IpAddr,
    (inner_ttl, inner_df): (u8, bool),
    unknown: Option<MacAddress>,
) -> Result<Outer, Refusal> {
    let mac = neighbour(uplink, Side::Uplink, next_hop(uplink, vtep)?, unknown)?;
    let ttl = match tunnel.ttl {
        OuterTtl::Fixed(ttl) => ttl,
        OuterTtl::Inherit => inner_ttl,
    };
    let dont_fragment = match tunnel.df {
        OuterDf::Unset => false,
        OuterDf::Set => true,
        OuterDf::Inherit => inner_df,
    };
    let (ds, dscp_inherit) = match tunnel.ds {
        OuterDs::Fixed(ds) => (ds.0, false),
        OuterDs::Inherit => (0, true),
    };
    let marks = Marks { dont_fragment, ..Marks::default() };
    Ok(Outer {
        ethernet: Ends { source: uplink.mac(), destination: mac },
        network: network(tunnel.local, vtep, ttl, ds, marks).ok_or(NO_ROUTE)?,
        dscp_inherit,
        vxlan_port: tunnel.port,
        vni: tunnel.vni,
        udp_checksum: tunnel.udp_checksum,
    })
}

/// The router or the destination itself.
fn next_hop(link: &LinkTable, destination: IpAddr) -> Result<IpAddr, Refusal> {
    match link.route(destination).map(|route| route.via) {
        Some(Via::OnLink) => Ok(destination),
        Some(Via::Gateway(gateway)) => Ok(gateway.to_canonical()),
        Some(Via::Elsewhere | Via::Asked) | None => Err(NO_ROUTE),
    }
}

/// Rule 6: the MAC address, or what stands for an unknown one, or the request to resolve it.
fn neighbour(
    link: &LinkTable,
    side: Side,
    address: IpAddr,
    unknown: Option<MacAddress>,
) -> Result<MacAddress, Refusal> {
    let missing = Refusal::Drop(DropReason::NoNeighbour, Some(NextHop { side, address }));
    link.neighbour(address).or(unknown).ok_or(missing)
}

/// Rule 3: RFC 1112 6.4 (IPv4), RFC 2464 7 (IPv6); `None` for what is no multicast.
fn group_mac(destination: IpAddr) -> Option<MacAddress> {
    match destination {
        IpAddr::V4(address) if address.is_multicast() => {
            let [_, b, c, d] = address.octets();
            Some(MacAddress([0x01, 0x00, 0x5e, b & 0x7f, c, d]))
        }
        IpAddr::V6(address) if address.is_multicast() => {
            let [.., c, d, e, f] = address.octets();
            Some(MacAddress([0x33, 0x33, c, d, e, f]))
        }
        _ => None,
    }
}

/// The network header; `None` when the addresses are of different families.
fn network(
    source: IpAddr,
    destination: IpAddr,
    hop_limit: u8,
    traffic_class: u8,
    marks: Marks,
) -> Option<Network> {
    let Marks { dont_fragment, flow_label, .. } = marks;
    let ds = DsField(traffic_class);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Some(Network::V4 { source, destination, ttl: hop_limit, ds, dont_fragment })
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Some(Network::V6 { source, destination, hop_limit, ds, flow_label })
        }
        _ => None,
    }
}
