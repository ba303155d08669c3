// SPDX-License-Identifier: Apache-2.0
//! Programs as clang made them, and how they are loaded: maps first, then the program that names them, then a device.
//!
//! In: instructions from the build, the maps' shapes, a device. Out: descriptors, which the kernel cleans up after when they
//! are closed.

use std::os::fd::{AsFd as _, OwnedFd};

use crate::error::BpfError;
use crate::hook::Hook;
use crate::sys::{self, MapShape};

/// The maps of the capture program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CaptureMap {
    Settings,
    Destinations,
    Sources,
    Counters,
    Frames,
}

/// The maps of the ingress fast path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IngressMap {
    Pods,
    Devices,
    Tallies,
    Ends,
    Own,
}

/// The maps of the programs that forward between a tap and the uplink.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ForwardMap {
    Stations,
    Ports,
    Counted,
}

/// A program that has not been loaded yet.
pub(crate) struct Program {
    hook: Hook,
    instructions: &'static [u64],
    /// Which instruction loads the address of which map.
    maps: &'static [(usize, usize)],
}

/// BPF_PSEUDO_MAP_FD: the source register of a load whose value is a map's descriptor.
const SOURCE_IS_MAP: u64 = 1 << 12;

/// Where a program is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At its device, in front of all others.
    First,
    /// At its device, behind others.
    Behind,
    /// At no device: the program was never attached, another process detached it, or the device is gone.
    Nowhere,
}

/// A loaded program with its maps. Dropping it takes the program off its device.
#[derive(Debug)]
pub(crate) struct Loaded {
    maps: Vec<OwnedFd>,
    hook: Hook,
    pub(crate) program: OwnedFd,
    /// The link, and the device that it was made for.
    link: Option<(OwnedFd, u32)>,
}

impl Loaded {
    /// Makes the maps and loads the program; the kernel shows both under `name`.
    pub(crate) fn new(name: &str, program: &Program, shapes: &[MapShape]) -> Result<Self, BpfError> {
        let maps = shapes.iter().map(|shape| sys::map_create(name, shape)).collect::<Result<Vec<_>, _>>();
        let maps = maps.map_err(BpfError::os("maps"))?;
        let mut instructions = program.instructions.to_vec();
        for (at, map) in program.maps {
            instructions[*at] |= SOURCE_IS_MAP | u64::from(sys::number(maps[*map].as_fd())) << 32;
        }
        let hook = program.hook;
        let program = sys::program_load(name, hook, &instructions).map_err(|(source, log)| {
            if log.is_empty() { BpfError::os("load")(source) } else { BpfError::Refused { source, log } }
        })?;
        Ok(Self { maps, hook, program, link: None })
    }

    /// The map of this number ([`CaptureMap`], [`IngressMap`], [`ForwardMap`]).
    pub(crate) fn map(&self, number: usize) -> &OwnedFd {
        &self.maps[number]
    }

    /// Takes the program off the device that it was at, and puts it in front of all others at the ingress of this one. XDP: the
    /// device has no other program.
    pub(crate) fn attach(&mut self, ifindex: u32) -> Result<(), BpfError> {
        // A device takes a program only once.
        self.link = None;
        let link = sys::link_create(&self.program, self.hook, ifindex).map_err(BpfError::os("attach"))?;
        self.link = Some((link, ifindex));
        Ok(())
    }

    /// Takes the program off its device.
    pub(crate) fn detach(&mut self) {
        self.link = None;
    }

    /// Whether the program is at a device.
    pub(crate) fn is_attached(&self) -> Result<bool, BpfError> {
        let Some((link, _)) = &self.link else { return Ok(false) };
        sys::link_device(link).map(|(ifindex, _)| ifindex != 0).map_err(BpfError::os("link"))
    }

    /// Where the program is now.
    pub(crate) fn place(&self) -> Result<Place, BpfError> {
        let Some((link, ifindex)) = &self.link else { return Ok(Place::Nowhere) };
        let (device, id) = sys::link_device(link).map_err(BpfError::os("link"))?;
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
}

include!(concat!(env!("OUT_DIR"), "/programs.rs"));
