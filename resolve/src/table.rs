// SPDX-License-Identifier: Apache-2.0
//! All tables of a node, one entry an attachment.
//!
//! In: tables of links, the overlay, plain lists. Out: checked, sorted values that workers share read-only.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;

use ktsn_model::IpPrefix;
use ktsn_wire::{MacAddress, Tci};

use crate::delivery::Delivery;
use crate::error::TableError;
use crate::limits::{ADDRESSES_MAX, ALLOWED_MAX, ATTACHMENTS_MAX, NAMED_MAX, ROUTES_MAX, SOURCES_MAX};
use crate::link::LinkTable;
use crate::overlay::Overlay;
use crate::prefixes::{PrefixMap, canonical};

/// Which attachment, in the daemon's list of attachments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttachmentIndex(pub u16);

/// The node as its pods' router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forwarding {
    /// Addresses of the node, of all its devices; none: it is no router for this attachment.
    pub own: Vec<IpAddr>,
    /// It forwards IPv4 that comes from the pod (`net.ipv4.conf.DEVICE.forwarding`).
    pub is_v4: bool,
    /// The node forwards IPv6 that comes from the pod.
    pub is_v6: bool,
}

/// The families whose routes only the kernel knows: rules besides the usual ones have a say in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AskedFamilies {
    /// IPv4.
    pub is_v4: bool,
    /// IPv6.
    pub is_v6: bool,
}

impl AskedFamilies {
    /// Whether the kernel is asked about the family of this address.
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        if address.is_ipv4() { self.is_v4 } else { self.is_v6 }
    }
}

/// All that is known for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentTables {
    pub(crate) interface: LinkTable,
    pub(crate) uplink: Arc<LinkTable>,
    pub(crate) overlay: Overlay,
    pub(crate) allowed: PrefixMap<()>,
    pub(crate) own: Vec<IpAddr>,
    pub(crate) vlan: Option<Tci>,
    pub(crate) forwarding: Forwarding,
    /// Routes of the namespace that lead to its other attachments.
    yielded: PrefixMap<IpPrefix>,
    /// Allowed, but the kernel's for now.
    left: PrefixMap<()>,
    /// The kernel's for the pod's own packet filter, which may change datagrams to them.
    filtered: PrefixMap<()>,
    /// What the namespace delivers to itself besides its addresses.
    local: PrefixMap<()>,
    asked: AskedFamilies,
    answers_revision: u64,
    /// Destinations that frames past the node's packet filter may have; none: every one.
    permitted: Option<PrefixMap<()>>,
    is_mac_listed: bool,
    named: Vec<MacAddress>,
    /// What its interface has besides the addresses that were given; `None`: the interface is believed.
    withheld: Option<Vec<IpAddr>>,
    pub(crate) delivery: Option<Delivery>,
}

impl AttachmentTables {
    /// Tables of an attachment with this interface in the pod's namespace. `uplink`: one table for all attachments that use it.
    /// `destinations`: allowed ones; `None`: the prefixes that the overlay names.
    ///
    /// # Errors
    /// `TooMany` destinations.
    pub fn new(
        interface: LinkTable,
        uplink: Arc<LinkTable>,
        overlay: Overlay,
        destinations: Option<Vec<IpPrefix>>,
    ) -> Result<Self, TableError> {
        let destinations = destinations.unwrap_or_else(|| overlay.prefixes().collect());
        TableError::bound("destinations", destinations.len(), ALLOWED_MAX)?;
        let tables = Self {
            interface,
            uplink,
            overlay,
            allowed: PrefixMap::new(destinations.into_iter().map(|prefix| (prefix, ()))),
            own: Vec::new(),
            vlan: None,
            is_mac_listed: false,
            named: Vec::new(),
            forwarding: Forwarding::default(),
            yielded: PrefixMap::new([]),
            left: PrefixMap::new([]),
            filtered: PrefixMap::new([]),
            local: PrefixMap::new([]),
            asked: AskedFamilies::default(),
            answers_revision: 0,
            withheld: None,
            permitted: None,
            delivery: None,
        };
        tables.with_own([])
    }
    /// Adds addresses of the namespace's other devices; the interface's own need not be repeated.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn with_own(mut self, own: impl IntoIterator<Item = IpAddr>) -> Result<Self, TableError> {
        let of_interface = self.interface.addresses().iter().map(|&(address, _)| address);
        self.own = of_interface.chain(own).map(|address| address.to_canonical()).collect();
        self.own.sort_unstable();
        self.own.dedup();
        TableError::bound("own addresses", self.own.len(), 2 * ADDRESSES_MAX)?;
        Ok(self)
    }
    /// Sets the tag of frames that leave by the interface and bring none.
    ///
    /// # Errors
    /// `ReservedVlan`.
    pub fn with_vlan(mut self, vlan: Option<Tci>) -> Result<Self, TableError> {
        if vlan.is_some_and(|tci| tci.vid.is_reserved()) {
            return Err(TableError::ReservedVlan);
        }
        self.vlan = vlan;
        Ok(self)
    }
    /// Changes the tables to those on a node that forwards for the pod (rule 4b).
    ///
    /// # Errors
    /// `TooMany` addresses.
    pub fn forwarded(mut self, mut forwarding: Forwarding) -> Result<Self, TableError> {
        for address in &mut forwarding.own {
            *address = address.to_canonical();
        }
        forwarding.own.sort_unstable();
        forwarding.own.dedup();
        TableError::bound("addresses of the node", forwarding.own.len(), 2 * ADDRESSES_MAX)?;
        self.forwarding = forwarding;
        Ok(self)
    }
    /// Sets how arriving frames are delivered, where they take the ingress fast path.
    #[must_use]
    pub fn delivered(mut self, delivery: Option<Delivery>) -> Self {
        self.delivery = delivery;
        self
    }
    /// How arriving frames are delivered; `None`: by the kernel.
    #[must_use]
    pub fn delivery(&self) -> Option<&Delivery> {
        self.delivery.as_ref()
    }
    /// What the node forwards for the pod.
    #[must_use]
    pub fn forwarding(&self) -> &Forwarding {
        &self.forwarding
    }
    /// Adds the routes that lead to the namespace's other attachments: the destinations that they cover are
    /// not this attachment's, unless a longer route says otherwise.
    #[must_use]
    pub fn with_routes_of_others(mut self, routes: impl IntoIterator<Item = IpPrefix>) -> Self {
        self.yielded = PrefixMap::new(routes.into_iter().map(canonical).map(|prefix| (prefix, prefix)));
        self
    }
    /// Whether the namespace's own routing sends `at` to another attachment.
    pub(crate) fn yields(&self, at: IpPrefix) -> bool {
        let Some(yielded) = self.yielded.longest(at) else { return false };
        self.interface.route_at(at).is_none_or(|route| canonical(route.prefix) == *yielded)
    }
    /// Leaves these destinations to the kernel, though they are allowed.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn with_left_to_kernel(mut self, left: Vec<IpPrefix>) -> Result<Self, TableError> {
        TableError::bound("destinations left to the kernel", left.len(), ALLOWED_MAX)?;
        self.left = PrefixMap::new(left.into_iter().map(|prefix| (prefix, ())));
        Ok(self)
    }
    /// Whether all of `at` is left to the kernel.
    pub(crate) fn leaves(&self, at: IpPrefix) -> bool {
        self.left.longest(at).is_some()
    }
    /// The destinations that are left to the kernel.
    pub fn left(&self) -> impl Iterator<Item = IpPrefix> {
        self.left.iter().map(|&(prefix, ())| prefix)
    }
    /// Says to which destinations the pod's own packet filter may change datagrams. Programs leave these to the kernel as
    /// `routing_rules`. [`resolve`](crate::resolve) does not look at it: Linux runs the filter once, at the call.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn with_filtered(mut self, filtered: Vec<IpPrefix>) -> Result<Self, TableError> {
        TableError::bound("destinations of the pod's packet filter", filtered.len(), ALLOWED_MAX)?;
        self.filtered = PrefixMap::new(filtered.into_iter().map(|prefix| (prefix, ())));
        Ok(self)
    }
    /// Whether the pod's own packet filter may change datagrams to all of `at`.
    #[must_use]
    pub fn filters(&self, at: IpPrefix) -> bool {
        self.filtered.longest(at).is_some()
    }
    /// The destinations to which the pod's own packet filter may change datagrams.
    pub fn filtered(&self) -> impl Iterator<Item = IpPrefix> {
        self.filtered.iter().map(|&(prefix, ())| prefix)
    }
    /// Adds prefixes that the namespace delivers to itself (routes of type `local`), besides its addresses.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn with_local(mut self, local: Vec<IpPrefix>) -> Result<Self, TableError> {
        TableError::bound("local prefixes", local.len(), ROUTES_MAX)?;
        self.local = PrefixMap::new(local.into_iter().map(|prefix| (prefix, ())));
        Ok(self)
    }
    /// Whether the namespace delivers all of `at` to itself.
    pub(crate) fn is_local(&self, at: IpPrefix) -> bool {
        self.local.longest(at).is_some()
    }
    /// The prefixes that the namespace delivers to itself, besides its addresses.
    pub fn local(&self) -> impl Iterator<Item = IpPrefix> {
        self.local.iter().map(|&(prefix, ())| prefix)
    }
    /// Says in which families only the kernel knows the routes.
    #[must_use]
    pub fn asking(mut self, asked: AskedFamilies) -> Self {
        self.asked = asked;
        self
    }
    /// Says which of the kernel's answers for flows hold: those of this revision.
    #[must_use]
    pub fn with_answers_of(mut self, revision: u64) -> Self {
        self.answers_revision = revision;
        self
    }
    /// The revision of the kernel's answers that hold.
    #[must_use]
    pub fn answers_revision(&self) -> u64 {
        self.answers_revision
    }
    /// The families in which only the kernel knows the routes.
    #[must_use]
    pub fn asked(&self) -> AskedFamilies {
        self.asked
    }
    /// Says that the attachment's addresses are given: those of `interface`. Its device has `withheld`
    /// besides. They stay own addresses of the namespace, but no frame leaves with one as its source.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn withholding(mut self, mut withheld: Vec<IpAddr>) -> Result<Self, TableError> {
        TableError::bound("withheld addresses", withheld.len(), ADDRESSES_MAX)?;
        withheld.sort_unstable();
        withheld.dedup();
        self.withheld = Some(withheld);
        Ok(self)
    }
    /// The addresses that the interface has and that are not given, sorted.
    #[must_use]
    pub fn withheld(&self) -> &[IpAddr] {
        self.withheld.as_deref().unwrap_or_default()
    }
    /// The addresses that clients get as sources of packet sockets' frames, where these are judged.
    pub fn sources(&self) -> impl Iterator<Item = IpAddr> {
        let count_max = if self.is_source_judged() { SOURCES_MAX } else { 0 };
        self.interface.addresses().iter().take(count_max).map(|&(address, _)| address)
    }
    /// Whether a packet socket's frame must come from an address of the attachment, as far as it names one.
    #[must_use]
    pub fn is_source_judged(&self) -> bool {
        self.withheld.is_some()
    }
    /// Applies network policies: frames that leave by the uplink may have these destinations only, others are
    /// dropped as `network_policy`. `None`: every destination. Frames by the interface meet the node's packet filter.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn permitting(mut self, permitted: Option<&[IpPrefix]>) -> Result<Self, TableError> {
        TableError::bound("permitted destinations", permitted.map_or(0, <[_]>::len), ALLOWED_MAX)?;
        self.permitted =
            permitted.map(|permitted| PrefixMap::new(permitted.iter().map(|prefix| (*prefix, ()))));
        Ok(self)
    }
    /// Whether network policies let a frame leave by the uplink. `to`: its IP destination; none: it has none.
    pub(crate) fn permits(&self, to: Option<IpAddr>) -> bool {
        let Some(permitted) = &self.permitted else { return true };
        to.is_some_and(|to| permitted.longest(IpPrefix::host(to.to_canonical())).is_some())
    }
    /// Names the MAC addresses that packet sockets may send to: with `is_only`, frames that are neither IP nor ARP go
    /// to no other one; else to each that is no reserved group. IP and ARP are judged by the allowed prefixes.
    ///
    /// # Errors
    /// `TooMany`.
    pub fn naming(mut self, mut named: Vec<MacAddress>, is_only: bool) -> Result<Self, TableError> {
        TableError::bound("MAC addresses", named.len(), NAMED_MAX)?;
        named.sort_unstable();
        named.dedup();
        (self.is_mac_listed, self.named) = (is_only, named);
        Ok(self)
    }
    /// Whether frames that are neither IP nor ARP may go to named MAC addresses only.
    #[must_use]
    pub fn is_mac_listed(&self) -> bool {
        self.is_mac_listed
    }
    /// The named MAC addresses, sorted.
    #[must_use]
    pub fn named(&self) -> &[MacAddress] {
        &self.named
    }
    /// Whether a MAC address is named.
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

/// One consistent view of everything; replaced as a whole. What a change leaves as it was is shared between two
/// generations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    generation: u64,
    attachments: Vec<Option<Arc<AttachmentTables>>>,
    /// For each attachment the generation that brought its tables.
    since: Vec<u64>,
}

impl Tables {
    /// Tables with this generation; attachments by index, holes for those that are not there.
    ///
    /// # Errors
    /// `TooMany` attachments.
    pub fn new(generation: u64, attachments: Vec<Option<AttachmentTables>>) -> Result<Self, TableError> {
        Self::shared(generation, attachments.into_iter().map(|tables| tables.map(Arc::new)).collect())
    }
    /// Tables with this generation, of entries that an older generation may share.
    ///
    /// # Errors
    /// `TooMany` attachments.
    pub fn shared(
        generation: u64,
        attachments: Vec<Option<Arc<AttachmentTables>>>,
    ) -> Result<Self, TableError> {
        TableError::bound("attachments", attachments.len(), ATTACHMENTS_MAX)?;
        let since = alloc::vec![generation; attachments.len()];
        Ok(Self { generation, attachments, since })
    }

    /// The generation after this one. An attachment whose entry is the same value as before keeps its generation.
    ///
    /// # Errors
    /// `TooMany` attachments.
    pub fn next(&self, attachments: Vec<Option<Arc<AttachmentTables>>>) -> Result<Self, TableError> {
        let mut next = Self::shared(self.generation + 1, attachments)?;
        let pairs =
            self.attachments.iter().zip(&self.since).zip(next.attachments.iter().zip(&mut next.since));
        for ((before, since), (now, since_now)) in pairs {
            let is_same = match (before, now) {
                (Some(before), Some(now)) => Arc::ptr_eq(before, now),
                (before, now) => before.is_none() && now.is_none(),
            };
            if is_same {
                *since_now = *since;
            }
        }
        Ok(next)
    }

    /// The generation that brought an attachment's tables: what was resolved by them holds as long as it is the same.
    #[must_use]
    pub fn generation_of(&self, index: AttachmentIndex) -> u64 {
        self.since.get(usize::from(index.0)).copied().unwrap_or(self.generation)
    }

    /// Grows by one with each change.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }
    /// The tables of one attachment.
    #[must_use]
    pub fn attachment(&self, index: AttachmentIndex) -> Option<&AttachmentTables> {
        self.attachments.get(usize::from(index.0))?.as_deref()
    }
    /// All attachments by index.
    #[must_use]
    pub fn attachments(&self) -> &[Option<Arc<AttachmentTables>>] {
        &self.attachments
    }
}
