// SPDX-License-Identifier: Apache-2.0
//! What one network device knows about layer 3: addresses, routes, neighbours.
//!
//! In: a plain [`Link`] in any order. Out: a [`LinkTable`], whose answers cost hardly more when it is large.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};

use ktsn_model::IpPrefix;
use ktsn_wire::MacAddress;

use crate::error::TableError;
use crate::index::Index;
use crate::limits::{ADDRESSES_MAX, NEIGHBOURS_MAX, ROUTES_MAX};
use crate::prefixes::{PrefixMap, v4_bits, v6_bits};

/// Which port, in the daemon's list of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u16);

/// How a route leads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// The destination is on the link itself.
    OnLink,
    /// Through this router on the link.
    Gateway(IpAddr),
    /// Through another device of the namespace, or nowhere (unreachable, blackhole): the kernel's business. Such a
    /// route hides shorter ones of this link.
    Elsewhere,
    /// Only the kernel can say, for each flow: several next hops, a type of service, an encapsulation. Such a route hides
    /// shorter ones, too.
    Asked,
}

/// One route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// Which destinations.
    pub prefix: IpPrefix,
    /// How it leads on.
    pub via: Via,
    /// Preferred source address.
    pub source: Option<IpAddr>,
}

/// A neighbour whose MAC address is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Neighbour {
    /// Its address on the link.
    pub address: IpAddr,
    /// Its MAC address.
    pub mac: MacAddress,
}

/// What a [`LinkTable`] is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The port that sends on this device.
    pub port: PortIndex,
    /// The device's number in its namespace (the scope of link-local addresses).
    pub if_index: u32,
    /// The device's MAC address.
    pub mac: MacAddress,
    /// Largest IP packet, octets.
    pub mtu: u32,
    /// Own addresses with their prefix lengths, the kernel's order (primary first).
    pub addresses: Vec<(IpAddr, u8)>,
    /// Routes; of equal prefixes the first counts, so lower metrics come first.
    pub routes: Vec<Route>,
    /// Neighbours whose MAC address is known.
    pub neighbours: Vec<Neighbour>,
}

/// Addresses, routes and neighbours of one device, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkTable {
    port: PortIndex,
    if_index: u32,
    mac: MacAddress,
    mtu: u32,
    addresses: Vec<(IpAddr, u8)>,
    routes: PrefixMap<Route>,
    neighbours: Vec<Neighbour>,
    neighbours_v4: Index<u32>,
    neighbours_v6: Index<u128>,
    is_up: bool,
    hop_limit_v6: Option<u8>,
    path_mtus: PrefixMap<u32>,
}

impl LinkTable {
    /// Sorts and checks.
    ///
    /// # Errors
    /// `TooMany`, or `Bits` when an address has a prefix length that its family does not know.
    pub fn new(link: Link) -> Result<Self, TableError> {
        TableError::bound("addresses", link.addresses.len(), ADDRESSES_MAX)?;
        TableError::bound("routes", link.routes.len(), ROUTES_MAX)?;
        TableError::bound("neighbours", link.neighbours.len(), NEIGHBOURS_MAX)?;
        for &(address, bits) in &link.addresses {
            IpPrefix::covering(address, bits).map_err(|_| TableError::Bits { address, bits })?;
        }
        let mut neighbours = link.neighbours;
        for neighbour in &mut neighbours {
            neighbour.address = neighbour.address.to_canonical();
        }
        neighbours.sort_by_key(|neighbour| neighbour.address);
        neighbours.dedup_by_key(|neighbour| neighbour.address);
        let places = || neighbours.iter().map(|neighbour| neighbour.address).zip(0..);
        let neighbours_v4 = Index::new(places().filter_map(|(address, at)| Some((v4_bits(address)?, at))));
        let neighbours_v6 = Index::new(places().filter_map(|(address, at)| Some((v6_bits(address)?, at))));
        Ok(Self {
            port: link.port,
            if_index: link.if_index,
            mac: link.mac,
            mtu: link.mtu,
            addresses: link.addresses,
            routes: PrefixMap::new(link.routes.into_iter().map(|route| (route.prefix, route))),
            neighbours,
            neighbours_v4,
            neighbours_v6,
            is_up: true,
            hop_limit_v6: None,
            path_mtus: PrefixMap::new([]),
        })
    }

    /// Sets whether the device is administratively up. New tables are of a device that is up.
    #[must_use]
    pub fn with_state(mut self, is_up: bool) -> Self {
        self.is_up = is_up;
        self
    }
    /// Sets the hop limit of the device's IPv6 datagrams whose program sets none (`net.ipv6.conf.DEVICE.hop_limit`, or a router's
    /// word). New tables do not know it.
    #[must_use]
    pub fn with_hop_limit_v6(mut self, hop_limit: Option<u8>) -> Self {
        self.hop_limit_v6 = hop_limit;
        self
    }
    /// Sets the largest IP packets to destinations for which a router named it, octets. New tables have none.
    #[must_use]
    pub fn with_path_mtus(mut self, path_mtus: Vec<(IpPrefix, u32)>) -> Self {
        self.path_mtus = PrefixMap::new(path_mtus);
        self
    }
    /// The largest IP packet to all of `at`, octets, by this device.
    pub(crate) fn path_mtu(&self, at: IpPrefix) -> u32 {
        self.path_mtus.longest(at).map_or(self.mtu, |path| self.mtu.min(*path))
    }
    /// The hop limit of IPv6 datagrams whose program sets none; `None`: not known.
    pub(crate) fn hop_limit_v6(&self) -> Option<u8> {
        self.hop_limit_v6
    }
    /// Whether the device is administratively up; else the kernel refuses packet sockets' frames (ENETDOWN).
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The port that sends on this device.
    #[must_use]
    pub fn port(&self) -> PortIndex {
        self.port
    }
    /// The device's number in its namespace.
    #[must_use]
    pub fn if_index(&self) -> u32 {
        self.if_index
    }
    /// The device's MAC address.
    #[must_use]
    pub fn mac(&self) -> MacAddress {
        self.mac
    }
    /// Largest IP packet, octets.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.mtu
    }
    /// Own addresses with their prefix lengths, primary first.
    #[must_use]
    pub fn addresses(&self) -> &[(IpAddr, u8)] {
        &self.addresses
    }
    /// All routes: IPv4 before IPv6, longest prefixes first, then by address.
    pub fn routes(&self) -> impl Iterator<Item = &Route> {
        self.routes.iter().map(|(_, route)| route)
    }
    /// How many routes.
    #[must_use]
    pub fn routes_count(&self) -> usize {
        self.routes.len()
    }
    /// All neighbours by address.
    #[must_use]
    pub fn neighbours(&self) -> &[Neighbour] {
        &self.neighbours
    }
    /// Whether `address` is one of this device's own.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|&(own, _)| own == address)
    }
    /// The route of the longest prefix that covers the address.
    #[must_use]
    pub fn route(&self, address: IpAddr) -> Option<&Route> {
        self.route_at(IpPrefix::host(address))
    }
    /// The route of the longest prefix that covers all of `at`.
    pub(crate) fn route_at(&self, at: IpPrefix) -> Option<&Route> {
        self.routes.longest(at)
    }
    /// The MAC address of a neighbour.
    #[must_use]
    pub fn neighbour(&self, address: IpAddr) -> Option<MacAddress> {
        let found = match address {
            IpAddr::V4(address) => self.neighbours_v4.find(address.to_bits()),
            IpAddr::V6(address) => self.neighbours_v6.find(address.to_bits()),
        };
        self.neighbours.get(found?).map(|neighbour| neighbour.mac)
    }
    /// The broadcast addresses of this device's IPv4 subnets (none for /31 and /32, RFC 3021).
    pub(crate) fn broadcasts(&self) -> impl Iterator<Item = Ipv4Addr> {
        self.addresses.iter().filter_map(|&(address, bits)| match address {
            IpAddr::V4(address) if bits < 31 => {
                let hosts = u32::MAX.checked_shr(u32::from(bits)).unwrap_or(0);
                Some(Ipv4Addr::from_bits(address.to_bits() | hosts))
            }
            _ => None,
        })
    }
}
