// SPDX-License-Identifier: Apache-2.0
//! Forwarding in the driver (XDP) between a virtual machine's tap and the uplink.
//!
//! In: which station (MAC address) is behind which device. Out: frames for these stations leave by their device, in front of the kernel's
//! stack; [`Forwarded`]. All other frames are the kernel's. A veth takes redirected frames only when its peer has a program: [`Pass`].
//! Devices are those of the calling thread's network namespace.

use crate::error::BpfError;
use crate::program::{FORWARD_GUEST, FORWARD_UPLINK, ForwardMap, Loaded, PASS, Program};
use crate::sys::{self, MapShape, MapType};

/// Stations of one table.
pub const STATIONS_MAX: usize = 1024;
const COUNTERS: usize = 3;

/// A MAC address.
pub type Mac = [u8; 6];

/// What a program has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Forwarded {
    /// Sent to the device of their station. The device may drop them: its own counters say so.
    pub forwarded: u64,
    /// Passed to the kernel: the destination is no station of the table.
    pub unknown: u64,
    /// Passed to the kernel: the source is no station of the device (a guest's program only).
    pub foreign: u64,
}

/// The maps, in the order of [`ForwardMap`].
fn shapes() -> [MapShape; 3] {
    [
        MapShape::new(MapType::Hash, (8, 4), STATIONS_MAX, 0),
        // The kernel itself takes a device out of it when the device goes.
        MapShape::new(MapType::DevmapHash, (4, 4), STATIONS_MAX, 0),
        MapShape::new(MapType::PercpuArray, (4, 8), COUNTERS, 0),
    ]
}

/// A MAC address as the table's key.
fn key(mac: Mac) -> [u8; 8] {
    let mut key = [0; 8];
    key[..6].copy_from_slice(&mac);
    key
}

/// A loaded program with its table. Dropping it takes it off its device; frames are the kernel's from then on.
#[derive(Debug)]
pub struct Forward {
    pub(crate) loaded: Loaded,
}

impl Forward {
    /// The program of an uplink: it asks for the destination only.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn uplink() -> Result<Self, BpfError> {
        Self::load("ktsn_uplink", &FORWARD_UPLINK)
    }

    /// The program of a guest's tap: what bears the address of another device's station is passed to the kernel.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn guest() -> Result<Self, BpfError> {
        Self::load("ktsn_guest", &FORWARD_GUEST)
    }

    fn load(name: &str, program: &Program) -> Result<Self, BpfError> {
        Loaded::new(name, program, &shapes()).map(|loaded| Self { loaded })
    }

    /// Says behind which device a station is.
    ///
    /// # Errors
    /// The kernel's: no such device, or too many stations.
    pub fn set_station(&self, mac: Mac, ifindex: u32) -> Result<(), BpfError> {
        let port = ifindex.to_ne_bytes();
        sys::map_update(self.loaded.map(ForwardMap::Ports as usize), &port, &port)
            .map_err(BpfError::os("port"))?;
        sys::map_update(self.loaded.map(ForwardMap::Stations as usize), &key(mac), &port)
            .map_err(BpfError::os("station"))
    }

    /// Takes a station out of the table; frames for it are the kernel's.
    ///
    /// # Errors
    /// The kernel's.
    pub fn remove_station(&self, mac: Mac) -> Result<(), BpfError> {
        sys::map_delete(self.loaded.map(ForwardMap::Stations as usize), &key(mac))
            .map_err(BpfError::os("station"))
    }

    /// The device that a station is behind.
    #[must_use]
    pub fn station(&self, mac: Mac) -> Option<u32> {
        let found = sys::map_lookup::<8, 4>(self.loaded.map(ForwardMap::Stations as usize), &key(mac));
        found.ok().map(u32::from_ne_bytes)
    }

    /// Puts the program into the driver of the device; off the one it was at before.
    ///
    /// # Errors
    /// The kernel's: the driver has no XDP, or the device has another program.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), BpfError> {
        self.loaded.attach(ifindex)
    }

    /// What was counted since the program was loaded, over all processors.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counted(&self) -> Result<Forwarded, BpfError> {
        let sum = |which: u32| {
            let words = sys::map_lookup_percpu(self.loaded.map(ForwardMap::Counted as usize), which, 8);
            words.map(|words| words.iter().sum()).map_err(BpfError::os("counters"))
        };
        Ok(Forwarded { forwarded: sum(0)?, unknown: sum(1)?, foreign: sum(2)? })
    }
}

/// A program that passes everything to the kernel: the peer of a veth that others redirect to needs one.
#[derive(Debug)]
pub struct Pass(Loaded);

impl Pass {
    /// Puts the program into the driver of a device of the calling thread's network namespace.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn attach(ifindex: u32) -> Result<Self, BpfError> {
        let mut loaded = Loaded::new("ktsn_pass", &PASS, &[])?;
        loaded.attach(ifindex)?;
        Ok(Self(loaded))
    }

    /// Whether the program is still at its device.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_attached(&self) -> Result<bool, BpfError> {
        self.0.is_attached()
    }
}

#[cfg(test)]
mod tests;
