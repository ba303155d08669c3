// SPDX-License-Identifier: Apache-2.0
//! The answer for one datagram: port, headers and largest payload, or why not.
//!
//! In: [`Tables`] and a [`Flow`]. Out: [`Resolved`] or [`Refusal`]. Must never allocate or panic: workers call it.

use core::net::{IpAddr, Ipv4Addr};

use ktsn_model::{BypassReason, DropReason, IpPrefix};
use ktsn_wire::template::{Ends, Outer};
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Network, TemplateRepr};

use crate::link::{LinkTable, Via};
use crate::source;
use crate::table::{AttachmentIndex, AttachmentTables, Peer, PortIndex, Tables, VxlanRouted};
use crate::way::{Way, payload_max, way};

/// Hop limit of unicast when the program sets none (Linux's default).
const HOP_LIMIT_UNICAST: u8 = 64;
/// Hop limit of multicast when the program sets none (RFC 1112 6.1).
const HOP_LIMIT_MULTICAST: u8 = 1;
/// TTL of the outer header (default of Linux's VXLAN device).
const HOP_LIMIT_TUNNEL: u8 = 64;

/// A datagram's addresses and marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Whose it is.
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

const NO_ROUTE: Refusal = Refusal::Drop(DropReason::NoRoute, None);
const NOT_ALLOWED: Refusal = Refusal::Bypass(BypassReason::NotAllowed);

/// Applies the rules to one datagram.
///
/// # Errors
/// [`Refusal`]: `Bypass` for own, not allowed and foreign-scope destinations and for a bound address that is not the
/// interface's; `Drop` with `no_route` (also: the hop limit ends here, no source of the family), `no_neighbour`.
pub fn resolve(tables: &Tables, flow: &Flow) -> Result<Resolved, Refusal> {
    let Some(tables) = tables.attachment(flow.attachment) else {
        return Err(Refusal::Bypass(BypassReason::NotAttached));
    };
    let destination = flow.destination.to_canonical();
    let way = way(tables, IpPrefix::host(destination));
    if let Way::Bypass(reason) = way {
        return Err(Refusal::Bypass(reason));
    }
    if needs_scope(destination) && flow.scope != 0 && flow.scope != tables.interface.if_index() {
        return Err(NOT_ALLOWED);
    }
    let bound = bound_source(&tables.interface, flow.bound, destination)?;
    let datagram = Datagram { tables, flow, destination, bound };
    let repr = match way {
        Way::Group => datagram.group()?,
        Way::Tunnel(vxlan, peer) => datagram.tunnel(vxlan, peer)?,
        Way::Unicast | Way::Bypass(_) => datagram.unicast()?,
    };
    let (port, egress) = match repr.outer {
        Some(_) => (tables.uplink.port(), Egress::Uplink),
        None => (tables.interface.port(), Egress::Interface),
    };
    let template = HeaderTemplate::new(&repr).map_err(|_| Refusal::Drop(DropReason::Bug, None))?;
    Ok(Resolved { port, template, payload_max: payload_max(tables, &way, destination.is_ipv4()), egress })
}

/// Destinations whose scope identifier counts in Linux (RFC 4007): link-local unicast, multicast of scopes 1 and 2.
fn needs_scope(destination: IpAddr) -> bool {
    match destination {
        IpAddr::V4(_) => false,
        IpAddr::V6(a) => {
            a.is_unicast_link_local() || (a.is_multicast() && matches!(a.segments()[0] & 0xf, 1 | 2))
        }
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
    destination: IpAddr,
    bound: Option<IpAddr>,
}

impl Datagram<'_> {
    fn source(&self, preferred: Option<IpAddr>, next_hop: Option<IpAddr>) -> Result<IpAddr, Refusal> {
        let choose = || source::choose(&self.tables.interface, preferred, next_hop, self.destination);
        self.bound.or_else(choose).ok_or(NO_ROUTE)
    }

    fn hop_limit(&self, default: u8) -> u8 {
        if self.flow.hop_limit == 0 { default } else { self.flow.hop_limit }
    }

    fn network(&self, source: IpAddr, hop_limit: u8) -> Result<Network, Refusal> {
        network(source, self.destination, hop_limit, self.flow.traffic_class, true)
            .ok_or(Refusal::Drop(DropReason::Bug, None))
    }

    fn udp(&self) -> Ends<u16> {
        Ends { source: self.flow.source_port, destination: self.flow.destination_port }
    }

    fn by_interface(&self, mac: MacAddress, network: Network) -> TemplateRepr {
        let ethernet = Ends { source: self.tables.interface.mac(), destination: mac };
        TemplateRepr { outer: None, ethernet, vlan: self.tables.vlan, network, udp: self.udp() }
    }

    /// Rule 3: the MAC address follows from the destination.
    fn group(&self) -> Result<TemplateRepr, Refusal> {
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
        Ok(self.by_interface(mac, self.network(source, self.hop_limit(hop_limit))?))
    }

    /// Rule 4: what the pod's router and the node's VXLAN device would have made of it.
    fn tunnel(&self, vxlan: &VxlanRouted, peer: &Peer) -> Result<TemplateRepr, Refusal> {
        let route = self.tables.interface.route(self.destination);
        let hop = match route.map(|route| route.via) {
            Some(Via::Gateway(gateway)) => gateway,
            _ => self.destination,
        };
        let source = self.source(route.and_then(|route| route.source), Some(hop))?;
        let hop_limit = self.hop_limit(HOP_LIMIT_UNICAST) - 1;
        // A router forwards neither an expired datagram (RFC 1812 5.3.1) nor a link-local source (RFC 4291 2.5.6).
        if hop_limit == 0 || matches!(source, IpAddr::V6(source) if source.is_unicast_link_local()) {
            return Err(NO_ROUTE);
        }
        let underlay = next_hop(&self.tables.uplink, peer.vtep)?;
        let mac = neighbour(&self.tables.uplink, Side::Uplink, underlay)?;
        let outer = Outer {
            ethernet: Ends { source: self.tables.uplink.mac(), destination: mac },
            network: network(vxlan.local, peer.vtep, HOP_LIMIT_TUNNEL, 0, false).ok_or(NO_ROUTE)?,
            dscp_inherit: false,
            vxlan_port: vxlan.port,
            vni: vxlan.vni,
            udp_checksum: vxlan.udp_checksum,
        };
        Ok(TemplateRepr {
            outer: Some(outer),
            ethernet: Ends { source: vxlan.device_mac, destination: peer.mac },
            vlan: None,
            network: self.network(source, hop_limit)?,
            udp: self.udp(),
        })
    }

    /// Rules 5 and 6.
    fn unicast(&self) -> Result<TemplateRepr, Refusal> {
        let interface = &self.tables.interface;
        let (hop, preferred) = if needs_scope(self.destination) {
            (self.destination, None) // link-local is on link by definition
        } else {
            let preferred = interface.route(self.destination).and_then(|route| route.source);
            (next_hop(interface, self.destination)?, preferred)
        };
        let source = self.source(preferred, Some(hop))?;
        let mac = neighbour(interface, Side::Interface, hop)?;
        Ok(self.by_interface(mac, self.network(source, self.hop_limit(HOP_LIMIT_UNICAST))?))
    }
}

/// The router or the destination itself.
fn next_hop(link: &LinkTable, destination: IpAddr) -> Result<IpAddr, Refusal> {
    match link.route(destination).map(|route| route.via) {
        Some(Via::OnLink) => Ok(destination),
        Some(Via::Gateway(gateway)) => Ok(gateway.to_canonical()),
        Some(Via::Elsewhere) | None => Err(NO_ROUTE),
    }
}

/// Rule 6: the MAC address, or the request to resolve it.
fn neighbour(link: &LinkTable, side: Side, address: IpAddr) -> Result<MacAddress, Refusal> {
    let missing = Refusal::Drop(DropReason::NoNeighbour, Some(NextHop { side, address }));
    link.neighbour(address).ok_or(missing)
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
    dont_fragment: bool,
) -> Option<Network> {
    let ds = DsField(traffic_class);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Some(Network::V4 { source, destination, ttl: hop_limit, ds, dont_fragment })
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            // No label (RFC 6437 3 allows that); Linux draws one from a secret hash.
            Some(Network::V6 { source, destination, hop_limit, ds, flow_label: 0 })
        }
        _ => None,
    }
}
