// SPDX-License-Identifier: Apache-2.0
//! The short way in: one program at a node's uplink, which takes attached pods' VXLAN frames straight into the pods.
//!
//! In: which frames are for which attachment ([`Target`], [`Delivery`]), the attachments' devices, the uplink. Out: frames in
//! pods, [`Tallied`] for each attachment. It never holds a frame, and what it does not take is the kernel's.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::fd::{AsRawFd as _, OwnedFd};

use crate::error::BpfError;
use crate::program::{INGRESS, IngressMap};
use crate::sys::{self, MapType};

mod layout;
#[cfg(test)]
mod tests;

use layout::{DELIVERY_OCTETS, TALLIES, TARGET_OCTETS, address_key};
pub use layout::{Delivery, End, Routed, Tallied, Target};

/// What the kernel shows of the program and its maps.
const NAME: &str = "ktsn_ingress";
/// Addresses of all attachments of one uplink.
pub const TARGETS_MAX: usize = 16_384;
/// Tunnel ends of all networks of one uplink.
const ENDS_MAX: usize = 16_384;
/// Addresses of the node.
const OWN_MAX: usize = 16_384;
/// Attachments, by slot.
pub const SLOTS_MAX: usize = 1024;

/// Where the program is found at a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At its device, in front of all others.
    First,
    /// At its device, behind others.
    Behind,
    /// Nowhere: somebody took it off, or the device is gone, or it was never put anywhere.
    Nowhere,
}

type TargetKey = [u8; TARGET_OCTETS];
type TargetValue = [u8; DELIVERY_OCTETS];

/// Targets and deliveries as the program's map has them.
fn values_of(targets: impl IntoIterator<Item = (Target, Delivery)>) -> BTreeMap<TargetKey, TargetValue> {
    targets.into_iter().map(|(target, delivery)| (target.key(), target.value(&delivery))).collect()
}

#[derive(Debug)]
struct Maps {
    pods: OwnedFd,
    devices: OwnedFd,
    tallies: OwnedFd,
    ends: OwnedFd,
    own: OwnedFd,
}

impl Maps {
    fn new() -> std::io::Result<Self> {
        let create =
            |kind, octets, entries_max, flags| sys::map_create(NAME, kind, octets, entries_max, flags);
        let pods = (TARGET_OCTETS as u32, DELIVERY_OCTETS as u32);
        let tallies = (4, (TALLIES * 8) as u32);
        Ok(Self {
            pods: create(MapType::Hash, pods, TARGETS_MAX as u32, sys::NO_PREALLOC)?,
            // No devices are redirected to by it: it is a list that the kernel itself takes a device out of when it goes.
            devices: create(MapType::Devmap, (4, 4), SLOTS_MAX as u32, 0)?,
            tallies: create(MapType::PercpuArray, tallies, SLOTS_MAX as u32, 0)?,
            ends: create(MapType::Hash, (TARGET_OCTETS as u32, 1), ENDS_MAX as u32, sys::NO_PREALLOC)?,
            own: create(MapType::Hash, (16, 1), OWN_MAX as u32, sys::NO_PREALLOC)?,
        })
    }

    fn of(&self, map: IngressMap) -> u32 {
        let map = match map {
            IngressMap::Pods => &self.pods,
            IngressMap::Devices => &self.devices,
            IngressMap::Tallies => &self.tallies,
            IngressMap::Ends => &self.ends,
            IngressMap::Own => &self.own,
        };
        map.as_raw_fd().unsigned_abs()
    }
}

#[derive(Debug)]
struct Link {
    descriptor: OwnedFd,
    ifindex: u32,
}

/// A loaded program. Dropping it takes it off its device; frames are the kernel's from then on.
#[derive(Debug)]
pub struct Ingress {
    maps: Maps,
    pub(crate) program: OwnedFd,
    link: Option<Link>,
    targets: BTreeMap<TargetKey, TargetValue>,
    ends: BTreeSet<[u8; TARGET_OCTETS]>,
    own: BTreeSet<[u8; 16]>,
}

impl Ingress {
    /// Makes the maps and loads the program. It takes nothing before devices and targets are set and it is attached.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn load() -> Result<Self, BpfError> {
        let maps = Maps::new().map_err(BpfError::os("maps"))?;
        let instructions = INGRESS.with_maps(|map| maps.of(map));
        let program = sys::program_load(NAME, &instructions).map_err(|(source, log)| {
            if log.is_empty() { BpfError::os("load")(source) } else { BpfError::Refused { source, log } }
        })?;
        let (targets, ends, own) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Ok(Self { maps, program, link: None, targets, ends, own })
    }

    /// The host end of the veth of the attachment at `slot`; `None`: it takes nothing. The kernel takes a device that goes
    /// away out by itself, so that a new one with its number gets nothing.
    ///
    /// # Errors
    /// The kernel's: no such device.
    pub fn set_device(&self, slot: u16, ifindex: Option<u32>) -> Result<(), BpfError> {
        let key = u32::from(slot).to_ne_bytes();
        let result = match ifindex {
            Some(ifindex) => sys::map_update(&self.maps.devices, &key, &ifindex.to_ne_bytes()),
            None => sys::map_delete(&self.maps.devices, &key),
        };
        result.map_err(BpfError::os("device"))
    }

    /// The device that is bound to a slot now.
    #[must_use]
    pub fn device(&self, slot: u16) -> Option<u32> {
        let found = sys::map_lookup::<4, 4>(&self.maps.devices, &u32::from(slot).to_ne_bytes());
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
        let wanted = values_of(targets);
        self.remove_targets(|key, _| wanted.contains_key(key))?;
        if wanted.len() > TARGETS_MAX {
            let (count, count_max) = (wanted.len(), TARGETS_MAX);
            return Err(BpfError::TooMany { what: "addresses", count, count_max });
        }
        for (key, value) in wanted {
            if self.targets.get(&key) != Some(&value) {
                sys::map_update(&self.maps.pods, &key, &value).map_err(BpfError::os("targets"))?;
                self.targets.insert(key, value);
            }
        }
        Ok(())
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
        self.remove_targets(|key, value| wanted.get(key) == Some(value))
    }

    fn remove_targets(
        &mut self,
        is_kept: impl Fn(&TargetKey, &TargetValue) -> bool,
    ) -> Result<usize, BpfError> {
        let gone = self.targets.iter().filter(|(key, value)| !is_kept(key, value));
        let gone: Vec<_> = gone.map(|(key, _)| *key).collect();
        for key in &gone {
            sys::map_delete(&self.maps.pods, key).map_err(BpfError::os("targets"))?;
            self.targets.remove(key);
        }
        Ok(gone.len())
    }

    /// Replaces the tunnel ends that frames may come from; what goes goes first.
    ///
    /// # Errors
    /// As [`Self::set_targets`].
    pub fn set_ends(&mut self, ends: impl IntoIterator<Item = End>) -> Result<(), BpfError> {
        let wanted = ends.into_iter().map(|end| end.key()).collect();
        set_members(&self.maps.ends, "tunnel ends", ENDS_MAX, &mut self.ends, wanted)
    }

    /// Replaces the node's own addresses: no frame from one of them is taken.
    ///
    /// # Errors
    /// As [`Self::set_targets`].
    pub fn set_own(&mut self, own: impl IntoIterator<Item = IpAddr>) -> Result<(), BpfError> {
        let wanted = own.into_iter().map(address_key).collect();
        set_members(&self.maps.own, "addresses of the node", OWN_MAX, &mut self.own, wanted)
    }

    /// Puts the program at the ingress of the device, in front of all others there; off the one it was at before. While it
    /// changes places frames are the kernel's.
    ///
    /// # Errors
    /// The kernel's; `TooOld` before Linux 6.6.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), BpfError> {
        // A device takes a program only once.
        self.link = None;
        let descriptor = sys::link_create(&self.program, ifindex).map_err(BpfError::os("attach"))?;
        self.link = Some(Link { descriptor, ifindex });
        Ok(())
    }

    /// Takes the program off its device: from here on every frame is the kernel's.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Where the program is now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn place(&self) -> Result<Place, BpfError> {
        let Some(Link { descriptor, ifindex }) = &self.link else { return Ok(Place::Nowhere) };
        let (device, id) = sys::link_device(descriptor).map_err(BpfError::os("link"))?;
        if device != *ifindex {
            return Ok(Place::Nowhere);
        }
        match sys::link_is_first(device, id) {
            Ok(true) => Ok(Place::First),
            Ok(false) => Ok(Place::Behind),
            // The device went away in between.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(Place::Nowhere),
            Err(error) => Err(BpfError::os("query")(error)),
        }
    }

    /// Begins to count for a slot at zero.
    ///
    /// # Errors
    /// The kernel's.
    pub fn clear_tallies(&self, slot: u16) -> Result<(), BpfError> {
        let zeros = sys::processors().map(|processors| vec![0; TALLIES * processors]);
        zeros
            .and_then(|zeros| {
                sys::map_update_percpu(&self.maps.tallies, u32::from(slot), &zeros, TALLIES * 8)
            })
            .map_err(BpfError::os("tallies"))
    }

    /// What was counted for a slot since it was last cleared, in the order of [`Tallied::ALL`], over all processors.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tallies(&self, slot: u16) -> Result<[u64; Tallied::ALL.len()], BpfError> {
        let processors = sys::processors().map_err(BpfError::os("processors"))?;
        let mut values = vec![0; TALLIES * processors];
        sys::map_lookup_percpu(&self.maps.tallies, u32::from(slot), &mut values, TALLIES * 8)
            .map_err(BpfError::os("tallies"))?;
        let mut sums = [0_u64; Tallied::ALL.len()];
        for of_one in values.chunks_exact(TALLIES) {
            for (sum, count) in sums.iter_mut().zip(of_one) {
                *sum = sum.wrapping_add(*count);
            }
        }
        Ok(sums)
    }
}

/// Makes a map hold these keys and no others.
fn set_members<const N: usize>(
    map: &OwnedFd,
    what: &'static str,
    count_max: usize,
    held: &mut BTreeSet<[u8; N]>,
    wanted: BTreeSet<[u8; N]>,
) -> Result<(), BpfError> {
    for key in held.difference(&wanted).copied().collect::<Vec<_>>() {
        sys::map_delete(map, &key).map_err(BpfError::os(what))?;
        held.remove(&key);
    }
    if wanted.len() > count_max {
        return Err(BpfError::TooMany { what, count: wanted.len(), count_max });
    }
    for key in wanted {
        if !held.contains(&key) {
            sys::map_update(map, &key, &[1_u8]).map_err(BpfError::os(what))?;
            held.insert(key);
        }
    }
    Ok(())
}
