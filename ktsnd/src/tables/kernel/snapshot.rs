// SPDX-License-Identifier: Apache-2.0
//! A namespace's links, addresses, routes and neighbours as one dump showed them.
//!
//! In: a netlink socket of that namespace. Out: a [`Snapshot`], and of it what one device's table needs.
//! Of routes those of the main table count. Where rules or other tables have a say, the kernel is asked ([`Routing::asked`]).

pub(crate) mod fuzzing;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_resolve::{Link, Neighbour, PortIndex, Route, Via};
use ktsn_wire::MacAddress;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourHeader, NeighbourMessage,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::ask::Answer;
use super::device::{self, Device, mac};
use super::ends::Ends;
use super::netlink::Netlink;
use super::pod_filter::PodFilter;
use super::router::Router;
use super::routes::{Hop, MainRoute};
use super::routing::Routing;
use super::rules::Origin;
use super::vxlan_device::{self, Forwarding};
use crate::tables::error::{TablesError, netlink_error};

/// NUD_REACHABLE, _STALE, _DELAY, _PROBE, _NOARP, _PERMANENT: the MAC address may be used (NUD_VALID).
const NUD_VALID: u16 = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80;
/// NUD_FAILED: the neighbour did not answer.
const NUD_FAILED: u16 = 0x20;
/// Valid neighbour states that need no new probe: all but NUD_STALE.
const NUD_FRESH: u16 = NUD_VALID & !0x04;

/// An address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Address {
    device: u32,
    address: IpAddr,
    bits: u8,
    /// The address may not be used as a source: not yet, or no more.
    unusable: bool,
    deprecated: bool,
}

/// A neighbour in whatever state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    mac: Option<MacAddress>,
    state: u16,
}

/// What the kernel says about one network namespace: devices, addresses, routes and neighbours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Devices, by number.
    pub(crate) devices: BTreeMap<u32, Device>,
    addresses: Vec<Address>,
    /// Routes and rules.
    pub(crate) routing: Routing,
    /// The kernel's answers for tunnel ends, where the main table has none.
    pub(crate) ends: Ends,
    routers: BTreeMap<u32, Router>,
    neighbours: BTreeMap<(u32, IpAddr), Known>,
    /// Forwarding entries of the VXLAN devices with learnt tables, in the kernel's order.
    pub(crate) forwarding: Vec<Forwarding>,
    /// Beside them: port of the same bridge, and a MAC address behind it.
    stations: Vec<(u32, MacAddress)>,
    /// Of a pod's namespace: its own packet filter.
    pub(crate) filter: PodFilter,
}

impl Snapshot {
    /// Dumps everything.
    pub(crate) fn take(netlink: &mut Netlink) -> Result<Self, TablesError> {
        let mut snapshot = Self::default();
        snapshot.take_layout(netlink)?;
        snapshot.take_neighbours(netlink)?;
        Ok(snapshot)
    }

    /// Dumps links, addresses and routes.
    pub(crate) fn take_layout(&mut self, netlink: &mut Netlink) -> Result<(), TablesError> {
        self.devices = device::devices(netlink).map_err(netlink_error("links"))?;
        let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let addresses = netlink.dump(&addresses, |message| match message {
            RouteNetlinkMessage::NewAddress(message) => address(&message),
            _ => None,
        });
        self.addresses = addresses.map_err(netlink_error("addresses"))?;
        self.take_routing(netlink)
    }

    /// Dumps routes and rules.
    pub(crate) fn take_routing(&mut self, netlink: &mut Netlink) -> Result<(), TablesError> {
        self.routing = Routing::take(netlink)?;
        Ok(())
    }

    /// Dumps neighbours.
    pub(crate) fn take_neighbours(&mut self, netlink: &mut Netlink) -> Result<(), TablesError> {
        let mut all = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut request = NeighbourMessage::default();
            request.header.family = family;
            let neighbours =
                netlink.dump(&RouteNetlinkMessage::GetNeighbour(request), |message| match message {
                    RouteNetlinkMessage::NewNeighbour(message) => neighbour(&message),
                    _ => None,
                });
            all.extend(neighbours.map_err(netlink_error("neighbours"))?);
        }
        self.neighbours = all.into_iter().collect();
        Ok(())
    }

    /// Dumps the forwarding tables of the VXLAN devices with these names, and of the bridges that they are ports of; the
    /// numbers of all devices that matter for them.
    pub(crate) fn take_forwarding<'a>(
        &mut self,
        netlink: &mut Netlink,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<u32>, TablesError> {
        let is_vxlan = |(index, device): (u32, &Device)| device.vxlan.is_some().then_some(index);
        let mut devices: Vec<u32> = names.filter_map(|name| self.device(name).and_then(is_vxlan)).collect();
        self.forwarding.clear();
        self.stations.clear();
        if devices.is_empty() {
            return Ok(devices);
        }
        let bridges: Vec<u32> = devices.iter().filter_map(|index| self.master_of(*index)).collect();
        let is_port = |(index, device): &(&u32, &Device)| {
            bridges.contains(index) || device.master.is_some_and(|master| bridges.contains(&master))
        };
        let ports: Vec<u32> = self.devices.iter().filter(is_port).map(|(index, _)| *index).collect();
        let mut request = NeighbourMessage::default();
        request.header.family = AddressFamily::Bridge;
        let entries = netlink.dump(&RouteNetlinkMessage::GetNeighbour(request), |message| match message {
            RouteNetlinkMessage::NewNeighbour(message) => {
                Some((vxlan_device::forwarding(&message), vxlan_device::station(&message)))
            }
            _ => None,
        });
        let entries = entries.map_err(netlink_error("forwarding tables"))?;
        let tunnels = entries.iter().filter_map(|entry| entry.0);
        self.forwarding = tunnels.filter(|entry| devices.contains(&entry.device)).collect();
        let stations = entries.iter().filter_map(|entry| entry.1);
        self.stations =
            stations.filter(|(port, _)| ports.contains(port) && !devices.contains(port)).collect();
        devices.extend(ports);
        Ok(devices)
    }

    /// The bridge that a device is a port of.
    fn master_of(&self, index: u32) -> Option<u32> {
        self.devices.get(&index)?.master
    }

    /// MAC addresses behind the other ports of the bridge that a learnt VXLAN device is a port of.
    pub(crate) fn stations_beside(&self, vxlan: u32) -> impl Iterator<Item = MacAddress> {
        let bridge = self.master_of(vxlan);
        let beside =
            move |port: u32| bridge.is_some() && (Some(port) == bridge || self.master_of(port) == bridge);
        self.stations.iter().filter(move |(port, _)| beside(*port)).map(|(_, mac)| *mac)
    }

    /// Whether a device is a tunnel: neither Ethernet nor loopback (WireGuard, tun, IP in IP, GRE, VTI, xfrm).
    fn is_tunnel(&self, index: u32) -> bool {
        self.devices.get(&index).is_some_and(|device| device.mac.is_none() && !device.loopback)
    }

    /// Prefixes whose preferred route leaves by a tunnel device.
    pub(crate) fn tunnelled(&self) -> impl Iterator<Item = IpPrefix> {
        let by_tunnel = |route: &&MainRoute| route.hops.iter().any(|hop| self.is_tunnel(hop.device));
        let ends = self.ends.answers().filter_map(|(vtep, answer)| {
            answer.filter(|answer| self.is_tunnel(answer.device)).map(|_| IpPrefix::host(vtep))
        });
        self.routing.main.iter().filter(by_tunnel).map(|route| route.prefix).chain(ends)
    }

    /// The kernel's route to an address; of equal lengths the first is preferred.
    pub(crate) fn route_to(&self, address: IpAddr) -> Option<&MainRoute> {
        let all = self.routing.main.iter().filter(|route| route.prefix.contains(address)).rev();
        all.max_by_key(|route| route.prefix.bits())
    }

    /// The tunnel device that the kernel's route to an address leaves by.
    pub(crate) fn tunnel_to(&self, address: IpAddr) -> Option<&str> {
        let device = match self.ends.to(address) {
            Some(answer) => answer.map(|answer| answer.device).filter(|device| self.is_tunnel(*device))?,
            None => self.route_to(address)?.hops.iter().find(|hop| self.is_tunnel(hop.device))?.device,
        };
        self.devices.get(&device).map(|device| device.name.as_str())
    }

    /// The MAC address of a device's neighbour, when the kernel may use it.
    pub(crate) fn mac_of(&self, device: u32, address: IpAddr) -> Option<MacAddress> {
        let known = self.neighbours.get(&(device, address))?;
        known.mac.filter(|_| known.state & NUD_VALID != 0)
    }

    /// A device's neighbours whose MAC address the kernel may use.
    pub(crate) fn neighbours_of(&self, device: u32) -> impl Iterator<Item = Neighbour> {
        let all = self.neighbours.range((device, IpAddr::from([0; 4]))..);
        all.take_while(move |((of, _), _)| *of == device).filter_map(|((_, address), known)| {
            let mac = known.mac.filter(|_| known.state & NUD_VALID != 0)?;
            Some(Neighbour { address: *address, mac })
        })
    }

    /// All addresses of a device, also those that are not usable yet.
    pub(crate) fn addresses_of(&self, device: u32) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().filter(move |entry| entry.device == device).map(|entry| entry.address)
    }

    /// The first usable address of a device, IPv4 before IPv6.
    pub(crate) fn first_address(&self, device: u32) -> Option<IpAddr> {
        let is_usable = |entry: &&Address| entry.device == device && !entry.unusable;
        let usable = || self.addresses.iter().filter(is_usable).map(|entry| entry.address);
        let is_global = |address: &IpAddr| matches!(address, IpAddr::V6(a) if !a.is_unicast_link_local());
        usable().find(IpAddr::is_ipv4).or_else(|| usable().find(is_global))
    }

    /// The device of this name.
    pub(crate) fn device(&self, name: &str) -> Option<(u32, &Device)> {
        self.devices.iter().find(|(_, device)| device.name == name).map(|(index, device)| (*index, device))
    }

    /// Which devices with addresses the node forwards from: of the daemon's own namespace only.
    pub(crate) fn take_routers(&mut self) {
        self.routers.clear();
        let is_v6 = Router::is_v6();
        for address in &self.addresses {
            let Some(device) = self.devices.get(&address.device) else { continue };
            self.routers.entry(address.device).or_insert_with(|| Router::of(&device.name, is_v6));
        }
    }

    /// Whether, and how, the node forwards what comes to this address of its own.
    pub(crate) fn router_at(&self, address: IpAddr) -> Option<Router> {
        let own = self.addresses.iter().find(|own| own.address == address)?;
        self.routers.get(&own.device).copied()
    }

    /// All addresses of all devices.
    pub(crate) fn own(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|entry| entry.address)
    }

    /// Whether a neighbour's MAC address needs no probe now.
    pub(crate) fn is_fresh(&self, device: u32, address: IpAddr) -> bool {
        self.neighbours.get(&(device, address)).is_some_and(|known| known.state & NUD_FRESH != 0)
    }

    /// The device of the default route: IPv4 first, then the lowest metric.
    pub(crate) fn default_device(&self) -> Option<String> {
        let leads = |route: &&MainRoute| route.prefix.bits() == 0 && !route.hops.is_empty();
        let default = |is_v4: bool| {
            self.routing.main.iter().filter(leads).find(|route| route.prefix.address().is_ipv4() == is_v4)
        };
        let hop = default(true).or_else(|| default(false))?.hops.first()?;
        self.devices.get(&hop.device).map(|device| device.name.clone())
    }

    /// The prefixes whose preferred route leads out of one of these devices.
    pub(crate) fn routes_by<'a>(&'a self, devices: &'a [u32]) -> impl Iterator<Item = IpPrefix> + 'a {
        let by = |route: &&MainRoute| route.hops.iter().any(|hop| devices.contains(&hop.device));
        let mut seen = BTreeSet::new();
        self.routing
            .main
            .iter()
            .filter(move |route| seen.insert((route.prefix.address(), route.prefix.bits())))
            .filter(by)
            .map(|route| route.prefix)
    }

    /// What the namespace delivers to itself, besides its addresses.
    pub(crate) fn local(&self) -> Vec<IpPrefix> {
        self.routing.local(|address| self.addresses.iter().any(|own| own.address == address))
    }

    /// Whether the kernel is asked about any of its own datagrams.
    pub(crate) fn is_asked(&self) -> bool {
        let is_unsure = |route: &MainRoute| route.is_asked || self.is_passed_over(route);
        let asked = self.routing.asked(Origin::Own);
        asked.is_v4
            || asked.is_v6
            || !self.routing.exceptions.is_empty()
            || self.routing.main.iter().any(is_unsure)
    }

    /// Whether the same neighbours have not answered: Linux passes over routes by those.
    pub(crate) fn has_same_failures(&self, other: &Self) -> bool {
        let failed = |of: &Self| -> BTreeSet<(u32, IpAddr)> {
            let is_failed = |(_, known): &(&(u32, IpAddr), &Known)| known.state & NUD_FAILED != 0;
            of.neighbours.iter().filter(is_failed).map(|(key, _)| *key).collect()
        };
        failed(self) == failed(other)
    }

    /// Whether the main table alone does not say how an address is reached.
    pub(crate) fn must_ask(&self, address: IpAddr) -> bool {
        let is_unsure = |route: &MainRoute| route.is_asked || self.is_passed_over(route);
        self.routing.asked(Origin::Own).has(address) || self.route_to(address).is_some_and(is_unsure)
    }

    /// Whether Linux may take a shorter IPv6 route instead of this one: its gateway did not answer.
    fn is_passed_over(&self, route: &MainRoute) -> bool {
        let is_failed = |hop: &Hop| {
            let known = hop.gateway.and_then(|gateway| self.neighbours.get(&(hop.device, gateway)));
            known.is_some_and(|known| known.state & NUD_FAILED != 0)
        };
        let is_shorter = |other: &MainRoute| {
            other.prefix.bits() < route.prefix.bits() && other.prefix.contains(route.prefix.address())
        };
        let is_v6 = route.prefix.address().is_ipv6();
        is_v6 && route.hops.iter().any(is_failed) && self.routing.main.iter().any(is_shorter)
    }

    /// What the table of one device is made from; `None` when there is no such device or it is no Ethernet device.
    pub(crate) fn link(&self, index: u32, port: PortIndex) -> Option<Link> {
        let device = self.devices.get(&index)?;
        let mut addresses: Vec<&Address> =
            self.addresses.iter().filter(|entry| entry.device == index && !entry.unusable).collect();
        addresses.sort_by_key(|entry| entry.deprecated);
        let routes = self.routing.main.iter().map(|route| {
            let via = match route.hops.iter().find(|hop| hop.device == index) {
                _ if route.is_asked || self.is_passed_over(route) => Via::Asked,
                Some(Hop { gateway: Some(gateway), .. }) => Via::Gateway(*gateway),
                Some(Hop { gateway: None, .. }) => Via::OnLink,
                None => Via::Elsewhere,
            };
            Route { prefix: route.prefix, via, source: route.source }
        });
        let own: Vec<(IpAddr, u8)> = self.addresses.iter().map(|entry| (entry.address, entry.bits)).collect();
        let unusual =
            self.routing.unusual(&own).map(|prefix| Route { prefix, via: Via::Asked, source: None });
        let ends = self.ends.answers().map(|(vtep, answer)| {
            let via = match answer {
                Some(Answer { device, gateway, .. }) if device == index => {
                    gateway.map_or(Via::OnLink, Via::Gateway)
                }
                _ => Via::Elsewhere,
            };
            Route { prefix: IpPrefix::host(vtep), via, source: None }
        });
        Some(Link {
            port,
            if_index: index,
            mac: device.mac?,
            mtu: device.mtu,
            addresses: addresses.iter().map(|entry| (entry.address, entry.bits)).collect(),
            routes: ends.chain(unusual).chain(routes).collect(),
            neighbours: self.neighbours_of(index).collect(),
        })
    }
}

fn address(message: &AddressMessage) -> Option<Address> {
    let mut flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    let (mut local, mut peer) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(address) => local = Some(*address),
            AddressAttribute::Address(address) => peer = Some(*address),
            AddressAttribute::Flags(all) => flags = *all,
            _ => {}
        }
    }
    let optimistic = flags.contains(AddressFlags::Optimistic);
    Some(Address {
        device: message.header.index,
        // IFA_ADDRESS is the other end's on point-to-point links.
        address: local.or(peer)?,
        bits: message.header.prefix_len,
        unusable: flags.contains(AddressFlags::Dadfailed)
            || (flags.contains(AddressFlags::Tentative) && !optimistic),
        deprecated: flags.contains(AddressFlags::Deprecated),
    })
}

fn neighbour(message: &NeighbourMessage) -> Option<((u32, IpAddr), Known)> {
    if message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let (mut known, mut address) = (Known { mac: None, state: message.header.state.into() }, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(own)) => address = Some(IpAddr::V4(*own)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(own)) => address = Some(IpAddr::V6(*own)),
            NeighbourAttribute::LinkLayerAddress(octets) => known.mac = mac(octets),
            _ => {}
        }
    }
    // A group's MAC address follows from its own; the kernel notes it without announcing that.
    let address = address.filter(|address| !address.is_multicast())?;
    Some(((message.header.ifindex, address), known))
}

/// The device of the default route (IPv4 first, lowest metric).
///
/// # Errors
/// `NoDefaultRoute`, `Netlink`.
#[allow(clippy::unused_async)] // asked from the control task; one short dump
pub async fn default_uplink() -> Result<String, TablesError> {
    host_now()?.default_device().ok_or(TablesError::NoDefaultRoute)
}

/// The daemon's network namespace as it is now.
///
/// # Errors
/// `Netlink`.
pub(crate) fn host_now() -> Result<Snapshot, TablesError> {
    let mut netlink = Netlink::open().map_err(netlink_error("socket"))?;
    Snapshot::take(&mut netlink)
}

/// The request that makes the kernel resolve a neighbour, or probe it once more (`ip neigh … use`).
pub(crate) fn use_neighbour(device: u32, address: IpAddr) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    let (family, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
    };
    message.header = NeighbourHeader { family, ifindex: device, ..NeighbourHeader::default() };
    message.header.flags = NeighbourFlags::Use;
    message.attributes.push(NeighbourAttribute::Destination(destination));
    RouteNetlinkMessage::NewNeighbour(message)
}
