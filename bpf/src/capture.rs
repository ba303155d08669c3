// SPDX-License-Identifier: Apache-2.0
//! One loaded capture program: its maps, its place at a device.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use crate::error::BpfError;
use crate::frames::{Counters, Frames};
use crate::layout::{self, COUNTERS_OCTETS, Clock};
use crate::mirror::Mirror;
use crate::program::{CAPTURE, CaptureMap, Loaded, Program};
use crate::sys::{self, CounterMap, MapShape, MapType, RingMap};

/// The name that the kernel shows for the program and its maps.
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
    /// The prefix length, 0 to 128.
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
    destinations: Mirror<20, 4>,
    sources: Mirror<16, 1>,
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
        let destinations = Mirror::new("destinations", DESTINATIONS_MAX / 2);
        let sources = Mirror::new("sources", SOURCES_MAX / 2);
        let capture = Self { loaded, ring_octets, destinations, sources };
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
        self.destinations.check_count(rules.len())?;
        let entry = |rule: &Destination| {
            (layout::destination_key(rule.address, rule.bits), layout::verdict(rule.take))
        };
        let wanted = rules.iter().map(entry).collect();
        self.destinations.replace_overlapping(self.loaded.map(CaptureMap::Destinations as usize), &wanted)
    }

    /// Replaces the addresses that frames may come from; IPv4 as IPv4-mapped IPv6.
    ///
    /// # Errors
    /// `TooMany`, or the kernel's.
    pub fn set_sources(&mut self, addresses: &[Ipv6Addr]) -> Result<(), BpfError> {
        self.sources.check_count(addresses.len())?;
        let wanted = addresses.iter().map(|address| (address.octets(), [1])).collect();
        self.sources.replace_overlapping(self.loaded.map(CaptureMap::Sources as usize), &wanted)
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

#[cfg(test)]
mod tests;
