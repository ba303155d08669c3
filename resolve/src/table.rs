// SPDX-License-Identifier: Apache-2.0
//! All tables of a node, one entry an attachment.
//!
//! In: plain descriptions ([`Attachment`], [`Vxlan`]). Out: checked, sorted values that workers share read-only.

use alloc::vec::Vec;
use core::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_wire::{MacAddress, Tci, Vni};

use crate::limits::{ADDRESSES_MAX, ALLOWED_MAX, ATTACHMENTS_MAX, NAMED_MAX, PEERS_MAX};
use crate::link::LinkTable;
use crate::prefixes::PrefixMap;

/// Which port, in the daemon's list of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortIndex(pub u16);

/// Which attachment, in the daemon's list of attachments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentIndex(pub u16);

/// What a table cannot be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// More than [`crate::limits`] allows.
    #[error("{count} {what}, at most {count_max} are possible")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        count_max: usize,
    },
    /// A prefix length that the address's family does not know.
    #[error("{address}/{bits} is no address with a prefix length")]
    Bits {
        /// The address.
        address: IpAddr,
        /// The prefix length found.
        bits: u8,
    },
    /// A tunnel end of another family than `local`.
    #[error("tunnel end {vtep} and local address {local} are of different families")]
    TunnelFamily {
        /// The peer's tunnel end.
        vtep: IpAddr,
        /// Ours.
        local: IpAddr,
    },
    /// VLAN identifier 4095 is reserved (802.1Q 9.6).
    #[error("VLAN identifier 4095 is reserved")]
    ReservedVlan,
}

impl TableError {
    pub(crate) fn bound(what: &'static str, count: usize, count_max: usize) -> Result<(), Self> {
        if count <= count_max { Ok(()) } else { Err(Self::TooMany { what, count, count_max }) }
    }
}

/// One remote end of an overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The pods behind it.
    pub prefix: IpPrefix,
    /// Its tunnel end on the underlay. Our own `local` address marks a prefix of this node: rule 5, not rule 4.
    pub vtep: IpAddr,
    /// MAC address of its VXLAN device.
    pub mac: MacAddress,
}

/// What a [`VxlanRouted`] is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: Vni,
    /// UDP destination port (Flannel: 8472). The source port is a hash of the inner flow, 49152 to 65535.
    pub port: u16,
    /// Source address on the underlay.
    pub local: IpAddr,
    /// MAC address of this node's VXLAN device.
    pub device_mac: MacAddress,
    /// Compute the outer UDP checksum (Linux's device does unless `noudpcsum`; IPv6 needs it, RFC 6935).
    pub udp_checksum: bool,
    /// Remote ends.
    pub peers: Vec<Peer>,
}

/// VXLAN in routed mode, as Flannel's VXLAN backend sets it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VxlanRouted {
    pub(crate) vni: Vni,
    pub(crate) port: u16,
    pub(crate) local: IpAddr,
    pub(crate) device_mac: MacAddress,
    pub(crate) udp_checksum: bool,
    pub(crate) peers: PrefixMap<Peer>,
}

impl VxlanRouted {
    /// Sorts and checks.
    ///
    /// # Errors
    /// `TooMany` peers, `TunnelFamily`.
    pub fn new(vxlan: Vxlan) -> Result<Self, TableError> {
        TableError::bound("peers", vxlan.peers.len(), PEERS_MAX)?;
        let local = vxlan.local.to_canonical();
        let mut peers = vxlan.peers;
        for peer in &mut peers {
            peer.vtep = peer.vtep.to_canonical();
            if peer.vtep.is_ipv4() != local.is_ipv4() {
                return Err(TableError::TunnelFamily { vtep: peer.vtep, local });
            }
        }
        Ok(Self {
            vni: vxlan.vni,
            port: vxlan.port,
            local,
            device_mac: vxlan.device_mac,
            udp_checksum: vxlan.udp_checksum,
            peers: PrefixMap::new(peers.into_iter().map(|peer| (peer.prefix, peer))),
        })
    }
    /// Remote ends: longest prefixes first within a family.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.iter().map(|(_, peer)| peer)
    }
    /// The remote end for everything in `at`; `None` for a prefix of this node.
    pub(crate) fn peer_at(&self, at: IpPrefix) -> Option<&Peer> {
        self.peers.longest(at).filter(|peer| peer.vtep != self.local)
    }
}

/// The overlay network of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Overlay {
    /// There is none: everything leaves by the interface.
    #[default]
    None,
    /// VXLAN in routed mode.
    VxlanRouted(VxlanRouted),
}

impl Overlay {
    pub(crate) fn vxlan(&self) -> Option<&VxlanRouted> {
        match self {
            Self::None => None,
            Self::VxlanRouted(vxlan) => Some(vxlan),
        }
    }
}

/// What [`AttachmentTables`] are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// The pod's interface in the pod's namespace.
    pub interface: LinkTable,
    /// The node's uplink.
    pub uplink: LinkTable,
    /// The overlay network.
    pub overlay: Overlay,
    /// Allowed destinations; `None`: the peers' prefixes.
    pub destinations: Option<Vec<IpPrefix>>,
    /// Addresses of the namespace's other devices (the interface's own need not be repeated).
    pub own: Vec<IpAddr>,
    /// Tag of frames that leave by the interface.
    pub vlan: Option<Tci>,
}

/// All that is known for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentTables {
    pub(crate) interface: LinkTable,
    pub(crate) uplink: LinkTable,
    pub(crate) overlay: Overlay,
    pub(crate) allowed: PrefixMap<()>,
    pub(crate) own: Vec<IpAddr>,
    pub(crate) vlan: Option<Tci>,
    is_listed: bool,
    named: Vec<MacAddress>,
}

impl AttachmentTables {
    /// Sorts and checks.
    ///
    /// # Errors
    /// `TooMany`, `ReservedVlan`.
    pub fn new(attachment: Attachment) -> Result<Self, TableError> {
        let Attachment { interface, uplink, overlay, destinations, mut own, vlan } = attachment;
        if vlan.is_some_and(|tci| tci.vid.is_reserved()) {
            return Err(TableError::ReservedVlan);
        }
        let destinations = match (destinations, overlay.vxlan()) {
            (Some(destinations), _) => destinations,
            (None, Some(vxlan)) => vxlan.peers().map(|peer| peer.prefix).collect(),
            (None, None) => Vec::new(),
        };
        TableError::bound("destinations", destinations.len(), ALLOWED_MAX)?;
        own.extend(interface.addresses().iter().map(|&(address, _)| address));
        for address in &mut own {
            *address = address.to_canonical();
        }
        own.sort_unstable();
        own.dedup();
        TableError::bound("own addresses", own.len(), 2 * ADDRESSES_MAX)?;
        let allowed = PrefixMap::new(destinations.into_iter().map(|prefix| (prefix, ())));
        Ok(Self { interface, uplink, overlay, allowed, own, vlan, is_listed: false, named: Vec::new() })
    }
    /// The same tables with a list of destinations for packet sockets: the allowed prefixes, and these MAC addresses.
    /// Without it they may send to everything but the reserved groups.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn listed(mut self, mut named: Vec<MacAddress>) -> Result<Self, TableError> {
        TableError::bound("MAC addresses", named.len(), NAMED_MAX)?;
        named.sort_unstable();
        named.dedup();
        (self.is_listed, self.named) = (true, named);
        Ok(self)
    }
    /// Whether packet sockets may send to listed destinations only.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }
    /// The MAC addresses on that list, sorted.
    #[must_use]
    pub fn named(&self) -> &[MacAddress] {
        &self.named
    }
    /// Whether a MAC address is on that list.
    #[must_use]
    pub fn names(&self, address: MacAddress) -> bool {
        self.named.binary_search(&address).is_ok()
    }
    /// Tag of frames that leave by the interface and bring none.
    #[must_use]
    pub fn vlan(&self) -> Option<Tci> {
        self.vlan
    }
    /// The pod's interface.
    #[must_use]
    pub fn interface(&self) -> &LinkTable {
        &self.interface
    }
    /// The node's uplink.
    #[must_use]
    pub fn uplink(&self) -> &LinkTable {
        &self.uplink
    }
    /// The overlay network.
    #[must_use]
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }
    /// Allowed destinations, longest prefixes first within a family.
    pub fn allowed(&self) -> impl Iterator<Item = IpPrefix> {
        self.allowed.iter().map(|&(prefix, ())| prefix)
    }
    /// All addresses of the namespace, sorted.
    #[must_use]
    pub fn own(&self) -> &[IpAddr] {
        &self.own
    }
}

/// One consistent view of everything; replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    generation: u64,
    attachments: Vec<Option<AttachmentTables>>,
}

impl Tables {
    /// Tables with this generation; attachments by index, holes for those that are not there.
    ///
    /// # Errors
    /// `TooMany` attachments.
    pub fn new(generation: u64, attachments: Vec<Option<AttachmentTables>>) -> Result<Self, TableError> {
        TableError::bound("attachments", attachments.len(), ATTACHMENTS_MAX)?;
        Ok(Self { generation, attachments })
    }
    /// Grows by one with each change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// The tables of one attachment.
    #[must_use]
    pub fn attachment(&self, index: AttachmentIndex) -> Option<&AttachmentTables> {
        self.attachments.get(usize::from(index.0))?.as_ref()
    }
    /// All attachments by index.
    #[must_use]
    pub fn attachments(&self) -> &[Option<AttachmentTables>] {
        &self.attachments
    }
}
