// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path: one program at a node's uplink, which takes attached pods' VXLAN frames straight into the pods.
//!
//! In: which frames are for which attachment ([`Target`], [`Delivery`]), the attachments' devices, the uplink. Out: frames in
//! pods, [`Tallied`] for each attachment. It never holds a frame, and what it does not take is the kernel's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use crate::error::BpfError;
use crate::mirror::Mirror;
use crate::program::{INGRESS, IngressMap, Loaded, Place};
use crate::sys::{self, MapShape, MapType};

mod layout;
#[cfg(test)]
mod tests;

use layout::{DELIVERY_OCTETS, TALLIES, TARGET_OCTETS, address_key};
pub use layout::{Delivery, End, Routed, Tallied, Target};

/// The name that the kernel shows for the program and its maps.
const NAME: &str = "ktsn_ingress";
/// Addresses of all attachments of one uplink.
pub const TARGETS_MAX: usize = 16_384;
/// Tunnel ends of all networks of one uplink.
const ENDS_MAX: usize = 16_384;
/// Addresses of the node.
const OWN_MAX: usize = 16_384;
/// Attachments, by slot.
pub const SLOTS_MAX: usize = 1024;

/// Targets and deliveries as the program's map has them.
fn values_of(
    targets: impl IntoIterator<Item = (Target, Delivery)>,
) -> BTreeMap<[u8; TARGET_OCTETS], [u8; DELIVERY_OCTETS]> {
    targets.into_iter().map(|(target, delivery)| (target.key(), target.value(&delivery))).collect()
}

/// The maps, in the order of [`IngressMap`].
fn shapes() -> [MapShape; 5] {
    [
        MapShape::new(MapType::Hash, (TARGET_OCTETS, DELIVERY_OCTETS), TARGETS_MAX, sys::NO_PREALLOC),
        // No frame is redirected by it: the kernel itself takes a device out of such a map when the device goes.
        MapShape::new(MapType::Devmap, (4, 4), SLOTS_MAX, 0),
        MapShape::new(MapType::PercpuArray, (4, TALLIES * 8), SLOTS_MAX, 0),
        MapShape::new(MapType::Hash, (TARGET_OCTETS, 1), ENDS_MAX, sys::NO_PREALLOC),
        MapShape::new(MapType::Hash, (16, 1), OWN_MAX, sys::NO_PREALLOC),
    ]
}

/// A loaded program. Dropping it takes it off its device; frames are the kernel's from then on.
#[derive(Debug)]
pub struct Ingress {
    pub(crate) loaded: Loaded,
    targets: Mirror<TARGET_OCTETS, DELIVERY_OCTETS>,
    ends: Mirror<TARGET_OCTETS, 1>,
    own: Mirror<16, 1>,
}

impl Ingress {
    /// Makes the maps and loads the program. It takes nothing before devices and targets are set and it is attached.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn load() -> Result<Self, BpfError> {
        let loaded = Loaded::new(NAME, &INGRESS, &shapes())?;
        Ok(Self {
            loaded,
            targets: Mirror::new("addresses", TARGETS_MAX),
            ends: Mirror::new("tunnel ends", ENDS_MAX),
            own: Mirror::new("addresses of the node", OWN_MAX),
        })
    }

    fn map(&self, map: IngressMap) -> &OwnedFd {
        self.loaded.map(map as usize)
    }

    /// The host end of the veth of the attachment at `slot`; `None`: it takes nothing. The kernel takes a device that goes
    /// away out by itself, so that a new one with its number gets nothing.
    ///
    /// # Errors
    /// The kernel's: no such device.
    pub fn set_device(&self, slot: u16, ifindex: Option<u32>) -> Result<(), BpfError> {
        let key = u32::from(slot).to_ne_bytes();
        let result = match ifindex {
            Some(ifindex) => sys::map_update(self.map(IngressMap::Devices), &key, &ifindex.to_ne_bytes()),
            None => sys::map_delete(self.map(IngressMap::Devices), &key),
        };
        result.map_err(BpfError::os("device"))
    }

    /// The device that is bound to a slot now.
    #[must_use]
    pub fn device(&self, slot: u16) -> Option<u32> {
        let found = sys::map_lookup::<4, 4>(self.map(IngressMap::Devices), &u32::from(slot).to_ne_bytes());
        found.ok().map(u32::from_ne_bytes)
    }

    /// Replaces the targets one by one, what goes first.
    ///
    /// # Errors
    /// `TooMany`, or the kernel's; some are replaced then and some are not, and the next call sees to the rest. With
    /// `TooMany` all that go are gone.
    pub fn set_targets(
        &mut self,
        targets: impl IntoIterator<Item = (Target, Delivery)>,
    ) -> Result<(), BpfError> {
        self.targets.replace(self.loaded.map(IngressMap::Pods as usize), &values_of(targets))
    }

    /// Takes out every target that is not among these, or is delivered otherwise; adds none. Returns how many were taken out.
    ///
    /// # Errors
    /// The kernel's.
    pub fn keep_targets(
        &mut self,
        targets: impl IntoIterator<Item = (Target, Delivery)>,
    ) -> Result<usize, BpfError> {
        let wanted = values_of(targets);
        let map = self.loaded.map(IngressMap::Pods as usize);
        self.targets.retain(map, |key, value| wanted.get(key) == Some(value))
    }

    /// Replaces the tunnel ends that frames may come from; what goes goes first.
    ///
    /// # Errors
    /// `TooMany`, or the kernel's; the next call replaces the rest.
    pub fn set_ends(&mut self, ends: impl IntoIterator<Item = End>) -> Result<(), BpfError> {
        let wanted = ends.into_iter().map(|end| (end.key(), [1])).collect();
        self.ends.replace(self.loaded.map(IngressMap::Ends as usize), &wanted)
    }

    /// Replaces the node's own addresses: no frame from one of them is taken.
    ///
    /// # Errors
    /// `TooMany`, or the kernel's; the next call replaces the rest.
    pub fn set_own(&mut self, own: impl IntoIterator<Item = IpAddr>) -> Result<(), BpfError> {
        let wanted = own.into_iter().map(|address| (address_key(address), [1])).collect();
        self.own.replace(self.loaded.map(IngressMap::Own as usize), &wanted)
    }

    /// Puts the program at the ingress of the device, in front of all others there; off the one it was at before. While it
    /// changes places frames are the kernel's.
    ///
    /// # Errors
    /// The kernel's; `TooOld` before Linux 6.6.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), BpfError> {
        self.loaded.attach(ifindex)
    }

    /// Takes the program off its device: from here on every frame is the kernel's.
    pub fn detach(&mut self) {
        self.loaded.detach();
    }

    /// Where the program is now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn place(&self) -> Result<Place, BpfError> {
        self.loaded.place()
    }

    /// Begins to count for a slot at zero.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear_tallies(&self, slot: u16) -> Result<(), BpfError> {
        sys::map_clear_percpu(self.map(IngressMap::Tallies), u32::from(slot), TALLIES * 8)
            .map_err(BpfError::os("tallies"))
    }

    /// What was counted for a slot since it was last cleared, in the order of [`Tallied::ALL`], over all processors.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tallies(&self, slot: u16) -> Result<[u64; Tallied::ALL.len()], BpfError> {
        let values = sys::map_lookup_percpu(self.map(IngressMap::Tallies), u32::from(slot), TALLIES * 8);
        let values = values.map_err(BpfError::os("tallies"))?;
        let mut sums = [0_u64; Tallied::ALL.len()];
        for of_one in values.chunks_exact(TALLIES) {
            for (sum, count) in sums.iter_mut().zip(of_one) {
                *sum = sum.wrapping_add(*count);
            }
        }
        Ok(sums)
    }
}
