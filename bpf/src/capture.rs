// SPDX-License-Identifier: Apache-2.0
//! One loaded capture program: its maps, its place at a device.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use crate::error::BpfError;
use crate::frames::{Counters, Frames};
use crate::layout::{self, COUNTERS_OCTETS, Clock};
use crate::program::{CAPTURE, CaptureMap, Loaded, Program};
use crate::sys::{self, CounterMap, MapShape, MapType, RingMap};

/// What the kernel shows of the program and its maps.
const NAME: &str = "ktsn_capture";
/// Rules for destinations.
const DESTINATIONS_MAX: usize = 4096;
/// Addresses of one interface.
const SOURCES_MAX: usize = 1024;

/// How a capture is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Octets of the ring: a power of two, a page at least.
    pub ring_octets: usize,
    /// Clocks whose times are taken.
    pub clocks: Vec<Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self { ring_octets: 1 << 20, clocks: vec![Clock::Monotonic, Clock::Tai] }
    }
}

/// A prefix, and what happens to datagrams that go there; the longest prefix counts, no prefix means that they pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The prefix; IPv4 as IPv4-mapped IPv6.
    pub address: Ipv6Addr,
    /// Its length, 0 to 128.
    pub bits: u8,
    /// Taken, with payloads up to so many octets; `None`: passed on.
    pub take: Option<u16>,
}

/// The maps, in the order of [`CaptureMap`].
fn shapes(ring_octets: usize) -> [MapShape; 5] {
    [
        MapShape::new(MapType::Array, (4, 8), 1, 0),
        MapShape::new(MapType::LpmTrie, (20, 4), DESTINATIONS_MAX, sys::NO_PREALLOC),
        MapShape::new(MapType::Hash, (16, 1), SOURCES_MAX, 0),
        MapShape::new(MapType::Array, (4, COUNTERS_OCTETS), 1, sys::MAPPABLE),
        MapShape::new(MapType::Ringbuf, (0, 0), ring_octets, 0),
    ]
}

/// A loaded program. Dropping it takes it off its device.
#[derive(Debug)]
pub struct Capture {
    pub(crate) loaded: Loaded,
    ring_octets: usize,
    destinations: Vec<Destination>,
    sources: Vec<Ipv6Addr>,
}

impl Capture {
    /// Makes the maps and loads the program. It takes nothing before destinations and sources are set and it is attached.
    ///
    /// # Errors
    /// [`BpfError`].
    pub fn load(options: &Options) -> Result<Self, BpfError> {
        Self::load_program(&CAPTURE, options)
    }

    pub(crate) fn load_program(program: &Program, options: &Options) -> Result<Self, BpfError> {
        let ring_octets = options.ring_octets;
        let loaded = Loaded::new(NAME, program, &shapes(ring_octets))?;
        let capture = Self { loaded, ring_octets, destinations: Vec::new(), sources: Vec::new() };
        let clocks = options.clocks.iter().fold(0, |bits, clock| bits | clock.bit());
        let mut settings = [0; 8];
        settings[..4].copy_from_slice(&clocks.to_ne_bytes());
        sys::map_update(capture.map(CaptureMap::Settings), &[0; 4], &settings)
            .map_err(BpfError::os("settings"))?;
        Ok(capture)
    }

    fn map(&self, map: CaptureMap) -> &OwnedFd {
        self.loaded.map(map as usize)
    }

    /// Replaces the rules, one by one: for a moment old and new ones stand side by side.
    ///
    /// # Errors
    /// `TooMany`, or the kernel's.
    pub fn set_destinations(&mut self, rules: &[Destination]) -> Result<(), BpfError> {
        bound("destinations", rules.len(), DESTINATIONS_MAX / 2)?;
        let key = |rule: &Destination| layout::destination_key(rule.address, rule.bits);
        for rule in rules.iter().filter(|rule| !self.destinations.contains(rule)) {
            let value = layout::verdict(rule.take);
            sys::map_update(self.map(CaptureMap::Destinations), &key(rule), &value)
                .map_err(BpfError::os("destinations"))?;
        }
        for old in self.destinations.iter().filter(|old| rules.iter().all(|rule| key(rule) != key(old))) {
            sys::map_delete(self.map(CaptureMap::Destinations), &key(old))
                .map_err(BpfError::os("destinations"))?;
        }
        self.destinations = rules.to_vec();
        Ok(())
    }

    /// Replaces the addresses that frames may come from; IPv4 as IPv4-mapped IPv6.
    ///
    /// # Errors
    /// `TooMany`, or the kernel's.
    pub fn set_sources(&mut self, addresses: &[Ipv6Addr]) -> Result<(), BpfError> {
        bound("sources", addresses.len(), SOURCES_MAX / 2)?;
        for new in addresses.iter().filter(|new| !self.sources.contains(new)) {
            sys::map_update(self.map(CaptureMap::Sources), &new.octets(), &[1])
                .map_err(BpfError::os("sources"))?;
        }
        for old in self.sources.iter().filter(|old| !addresses.contains(old)) {
            sys::map_delete(self.map(CaptureMap::Sources), &old.octets()).map_err(BpfError::os("sources"))?;
        }
        self.sources = addresses.to_vec();
        Ok(())
    }

    /// Puts the program at the ingress of the device, in front of all others there; off the one it was at before.
    ///
    /// # Errors
    /// The kernel's; `TooOld` before Linux 6.6.
    pub fn attach(&mut self, ifindex: u32) -> Result<(), BpfError> {
        self.loaded.attach(ifindex)
    }

    /// Takes the program off its device: from here on it takes no frame.
    pub fn detach(&mut self) {
        self.loaded.detach();
    }

    /// Whether the program is at its device. False, too, when another process detached it or the device is gone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn is_attached(&self) -> Result<bool, BpfError> {
        self.loaded.is_attached()
    }

    /// The ring. One consumer only: of two, each may get the same frames, or none.
    ///
    /// # Errors
    /// The kernel's, when memory or descriptors run out.
    pub fn frames(&self) -> Result<Frames, BpfError> {
        let ring =
            RingMap::new(self.map(CaptureMap::Frames), self.ring_octets).map_err(BpfError::os("ring"))?;
        let descriptor = self.map(CaptureMap::Frames).try_clone().map_err(BpfError::os("ring"))?;
        Ok(Frames::new(ring, descriptor))
    }

    /// What is counted; good for longer than the program.
    ///
    /// # Errors
    /// The kernel's, when memory runs out.
    pub fn counters(&self) -> Result<Counters, BpfError> {
        CounterMap::new(self.map(CaptureMap::Counters), COUNTERS_OCTETS)
            .map(Counters)
            .map_err(BpfError::os("counters"))
    }
}

fn bound(what: &'static str, count: usize, count_max: usize) -> Result<(), BpfError> {
    if count > count_max { Err(BpfError::TooMany { what, count, count_max }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;
