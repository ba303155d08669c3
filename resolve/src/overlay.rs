// SPDX-License-Identifier: Apache-2.0
//! Overlay networks: VXLAN in routed mode (as Flannel sets it up) and in bridged mode (one L2 segment).
//!
//! In: plain descriptions ([`Vxlan`], [`Bridged`]), from configuration or from what the kernel has learnt. Out: checked,
//! values whose answers cost hardly more when there are many ends. Must never hold our own tunnel end as a remote
//! one: a frame that came back would be on the segment twice.

use alloc::vec::Vec;
use core::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_wire::{DsField, MacAddress, Vni};

use crate::error::TableError;
use crate::index::Index;
use crate::limits::{FLOOD_MAX, PEERS_MAX};
use crate::prefixes::PrefixMap;

/// TTL or hop limit of the outer header of a Linux device that says nothing of it.
const TTL_DEFAULT: u8 = 64;

/// TTL or hop limit of the outer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OuterTtl {
    /// A fixed value above 0.
    Fixed(u8),
    /// The value of the inner packet; frames without an IP packet get the default, 64.
    Inherit,
}

impl OuterTtl {
    /// What `ttl N` of a Linux device means: 0 is the default, 64.
    #[must_use]
    pub fn linux(ttl: u8) -> Self {
        Self::Fixed(if ttl == 0 { TTL_DEFAULT } else { ttl })
    }
}

/// DSCP of the outer header. Its ECN is the inner packet's in any case, CE as ECT(0) (RFC 3168 9.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OuterDs {
    /// The DSCP of this field.
    Fixed(DsField),
    /// The DSCP of the inner packet; frames without an IP packet get 0.
    Inherit,
}

ktsn_model::words! {
    /// Don't-fragment flag of an outer IPv4 header.
    #[derive(Default)]
    pub enum OuterDf {
        /// Clear: routers may fragment.
        #[default]
        Unset = "unset",
        /// Set.
        Set = "set",
        /// The bit of the inner IPv4 header; set around IPv6, clear around everything else.
        Inherit = "inherit",
    }
}

/// What all tunnels of one overlay network have in common, as a VXLAN device of Linux would be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Network identifier.
    pub vni: Vni,
    /// UDP destination port (Flannel: 8472). The source port is a hash of the inner flow, 49152 to 65535.
    pub port: u16,
    /// Source address on the underlay.
    pub local: IpAddr,
    /// TTL of the outer header.
    pub ttl: OuterTtl,
    /// DSCP of the outer header.
    pub ds: OuterDs,
    /// Don't-fragment flag of an outer IPv4 header.
    pub df: OuterDf,
    /// Compute the outer UDP checksum (Linux's device does unless `noudpcsum`; IPv6 needs it, RFC 6935).
    pub udp_checksum: bool,
}

impl Tunnel {
    /// The tunnel of a Linux device without further options: TTL 64, DSCP 0, don't-fragment clear, with checksum.
    #[must_use]
    pub fn new(vni: Vni, port: u16, local: IpAddr) -> Self {
        Self {
            vni,
            port,
            local: local.to_canonical(),
            ttl: OuterTtl::Fixed(TTL_DEFAULT),
            ds: OuterDs::Fixed(DsField(0)),
            df: OuterDf::Unset,
            udp_checksum: true,
        }
    }

    /// The canonical address of `vtep`, which must be of the same family as ours.
    fn checked_end(&self, vtep: IpAddr) -> Result<IpAddr, TableError> {
        let (vtep, local) = (vtep.to_canonical(), self.local.to_canonical());
        if vtep.is_ipv4() == local.is_ipv4() {
            Ok(vtep)
        } else {
            Err(TableError::TunnelFamily { vtep, local })
        }
    }

    fn canonical(self) -> Self {
        let ttl = match self.ttl {
            OuterTtl::Fixed(ttl) => OuterTtl::linux(ttl),
            OuterTtl::Inherit => OuterTtl::Inherit,
        };
        Self { local: self.local.to_canonical(), ttl, ..self }
    }
}

/// One remote end of a routed overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The pods behind it.
    pub prefix: IpPrefix,
    /// Its tunnel end on the underlay. Our own `local` address marks a prefix of this node: rule 5, not rule 4.
    pub vtep: IpAddr,
    /// MAC address of its VXLAN device; [`MacAddress::ZERO`]: its tunnel end is not known now, so what goes to its pods
    /// is dropped (`no_neighbour`) and never leaves by the interface instead.
    pub mac: MacAddress,
}

impl Peer {
    /// Whether its tunnel end is known.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.mac != MacAddress::ZERO
    }
}

/// What a [`VxlanRouted`] is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// Outer headers.
    pub tunnel: Tunnel,
    /// MAC address of this node's VXLAN device.
    pub device_mac: MacAddress,
    /// Remote ends.
    pub peers: Vec<Peer>,
}

/// VXLAN in routed mode, as Flannel's VXLAN backend sets it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanRouted {
    pub(crate) tunnel: Tunnel,
    pub(crate) device_mac: MacAddress,
    pub(crate) peers: PrefixMap<Peer>,
}

impl VxlanRouted {
    /// Sorts and checks.
    ///
    /// # Errors
    /// `TooMany` peers, `TunnelFamily`.
    pub fn new(vxlan: Vxlan) -> Result<Self, TableError> {
        TableError::bound("peers", vxlan.peers.len(), PEERS_MAX)?;
        let mut peers = vxlan.peers;
        for peer in &mut peers {
            peer.vtep = vxlan.tunnel.checked_end(peer.vtep)?;
        }
        Ok(Self {
            tunnel: vxlan.tunnel.canonical(),
            device_mac: vxlan.device_mac,
            peers: PrefixMap::new(peers.into_iter().map(|peer| (peer.prefix, peer))),
        })
    }
    /// Outer headers.
    #[must_use]
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }
    /// MAC address of this node's VXLAN device.
    #[must_use]
    pub fn device_mac(&self) -> MacAddress {
        self.device_mac
    }
    /// Remote ends: longest prefixes first within a family.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().map(|(_, peer)| peer)
    }
    /// The remote end for everything in `at`; `None` for a prefix of this node.
    pub(crate) fn peer_at(&self, at: IpPrefix) -> Option<&Peer> {
        self.peers.longest(at).filter(|peer| peer.vtep != self.tunnel.local)
    }
}

/// Which stations an entry of a segment's forwarding table is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberAt {
    /// The station with this MAC address. Goes before prefixes.
    Mac(MacAddress),
    /// Next hops with these addresses, whatever their MAC addresses are.
    Prefix(IpPrefix),
}

/// One entry of a segment's forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// Which stations.
    pub at: MemberAt,
    /// Behind which tunnel end. Our own `local` address marks a station of this node: it is reached by the interface.
    pub vtep: IpAddr,
}

/// What a [`VxlanBridged`] is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridged {
    /// Outer headers.
    pub tunnel: Tunnel,
    /// Forwarding table; of equal keys the first counts.
    pub members: Vec<Member>,
    /// Tunnel ends that get a copy each of frames to groups and to stations that the table does not know. Our own is
    /// left out. Empty: such frames leave by the interface.
    pub flood: Vec<IpAddr>,
    /// One more copy of these leaves by the interface, for the segment's stations on this node. Only where the node's
    /// bridge will not flood it into a VXLAN device of this segment again.
    pub flood_interface: bool,
}

/// VXLAN in bridged mode: the pod's interface is a station on one L2 segment that spans nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanBridged {
    pub(crate) tunnel: Tunnel,
    macs: Vec<(MacAddress, IpAddr)>,
    by_mac: Index<u64>,
    prefixes: PrefixMap<IpAddr>,
    flood: Vec<IpAddr>,
    flood_interface: bool,
}

/// Where a station of the segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Station {
    /// Behind this tunnel end.
    Remote(IpAddr),
    /// On this node.
    Here,
    /// The table does not know.
    Unknown,
}

/// A MAC address as an [`Index`]'s key.
fn mac_bits(mac: MacAddress) -> u64 {
    mac.0.iter().fold(0, |bits, &octet| bits << 8 | u64::from(octet))
}

impl VxlanBridged {
    /// Sorts and checks.
    ///
    /// # Errors
    /// `TooMany` peers or flood destinations, `TunnelFamily`, `GroupMember`.
    pub fn new(bridged: Bridged) -> Result<Self, TableError> {
        let Bridged { tunnel, members, flood, flood_interface } = bridged;
        TableError::bound("peers", members.len(), PEERS_MAX)?;
        TableError::bound("flood destinations", flood.len(), FLOOD_MAX)?;
        let (mut macs, mut prefixes) = (Vec::new(), Vec::new());
        for member in members {
            let vtep = tunnel.checked_end(member.vtep)?;
            match member.at {
                MemberAt::Mac(mac) if mac.is_multicast() => return Err(TableError::GroupMember(mac)),
                MemberAt::Mac(mac) => macs.push((mac, vtep)),
                MemberAt::Prefix(prefix) => prefixes.push((prefix, vtep)),
            }
        }
        macs.sort_by_key(|&(mac, _)| mac);
        macs.dedup_by_key(|&mut (mac, _)| mac);
        let by_mac = Index::new(macs.iter().zip(0..).map(|(&(mac, _), at)| (mac_bits(mac), at)));
        let flood = flood.into_iter().map(|vtep| tunnel.checked_end(vtep));
        let mut flood = flood.collect::<Result<Vec<_>, _>>()?;
        let tunnel = tunnel.canonical();
        flood.retain(|&vtep| vtep != tunnel.local);
        flood.sort_unstable();
        flood.dedup();
        let prefixes = PrefixMap::new(prefixes);
        Ok(Self { tunnel, macs, by_mac, prefixes, flood, flood_interface })
    }
    /// Outer headers.
    #[must_use]
    pub fn tunnel(&self) -> &Tunnel {
        &self.tunnel
    }
    /// The forwarding table: MAC addresses in order, then prefixes, longest first within a family.
    pub fn members(&self) -> impl Iterator<Item = Member> {
        let macs = self.macs.iter().map(|&(mac, vtep)| Member { at: MemberAt::Mac(mac), vtep });
        macs.chain(self.prefixes.iter().map(|&(prefix, vtep)| Member { at: MemberAt::Prefix(prefix), vtep }))
    }
    /// Tunnel ends that get copies, in the order in which they get them (by address).
    #[must_use]
    pub fn flood(&self) -> &[IpAddr] {
        &self.flood
    }
    /// Whether the interface gets a copy too.
    #[must_use]
    pub fn flood_interface(&self) -> bool {
        self.flood_interface
    }
    /// Where the station `mac` is, which is the next hop `hop` where that is known.
    pub(crate) fn station(&self, mac: MacAddress, hop: Option<IpAddr>) -> Station {
        let by_mac = self.by_mac.find(mac_bits(mac));
        let by_mac = by_mac.and_then(|at| self.macs.get(at)).map(|entry| entry.1);
        let vtep = by_mac.or_else(|| self.prefixes.longest(IpPrefix::host(hop?)).copied());
        match vtep {
            Some(vtep) if vtep == self.tunnel.local => Station::Here,
            Some(vtep) => Station::Remote(vtep),
            None => Station::Unknown,
        }
    }
}

/// The overlay network of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Overlay {
    /// There is none: everything leaves by the interface, or as the node's own routing would send it on (rule 4b).
    #[default]
    None,
    /// VXLAN in routed mode.
    VxlanRouted(VxlanRouted),
    /// VXLAN in bridged mode.
    VxlanBridged(VxlanBridged),
}

impl Overlay {
    pub(crate) fn routed(&self) -> Option<&VxlanRouted> {
        match self {
            Self::VxlanRouted(vxlan) => Some(vxlan),
            Self::None | Self::VxlanBridged(_) => None,
        }
    }
    pub(crate) fn bridged(&self) -> Option<&VxlanBridged> {
        match self {
            Self::VxlanBridged(vxlan) => Some(vxlan),
            Self::None | Self::VxlanRouted(_) => None,
        }
    }
    /// The prefixes that its forwarding table names: the destinations that are allowed where nothing else is said.
    pub fn prefixes(&self) -> impl Iterator<Item = IpPrefix> {
        let routed = self.routed().into_iter().flat_map(|vxlan| vxlan.peers.iter().map(|entry| entry.0));
        let bridged = self.bridged().into_iter().flat_map(|vxlan| vxlan.prefixes.iter().map(|entry| entry.0));
        routed.chain(bridged)
    }
    /// The tunnel of all its ends; none without an overlay.
    #[must_use]
    pub fn tunnel(&self) -> Option<&Tunnel> {
        match self {
            Self::None => None,
            Self::VxlanRouted(vxlan) => Some(&vxlan.tunnel),
            Self::VxlanBridged(vxlan) => Some(&vxlan.tunnel),
        }
    }
    /// Every remote tunnel end that frames may go to.
    pub fn ends(&self) -> impl Iterator<Item = IpAddr> {
        let local = self.tunnel().map(|tunnel| tunnel.local);
        let routed = self.routed().into_iter().flat_map(|vxlan| vxlan.peers().map(|peer| peer.vtep));
        let bridged = self
            .bridged()
            .into_iter()
            .flat_map(|vxlan| vxlan.members().map(|member| member.vtep).chain(vxlan.flood.iter().copied()));
        routed.chain(bridged).filter(move |&end| Some(end) != local)
    }
}
