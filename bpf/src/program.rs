// SPDX-License-Identifier: Apache-2.0
//! Instructions as clang made them, and the maps that they name.

/// The maps of the capture program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CaptureMap {
    Settings,
    Destinations,
    Sources,
    Counters,
    Frames,
}

/// The maps of the short way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IngressMap {
    Pods,
    Devices,
    Tallies,
    Ends,
    Own,
}

/// A program that has not been loaded yet.
pub(crate) struct Program<M: 'static> {
    pub(crate) instructions: &'static [u64],
    /// Which instruction loads which map's address.
    pub(crate) maps: &'static [(usize, M)],
}

/// BPF_PSEUDO_MAP_FD: the source register of a load whose value is a map's descriptor.
const SOURCE_IS_MAP: u64 = 1 << 12;

impl<M: Copy> Program<M> {
    /// The instructions with the maps' descriptors in their places.
    pub(crate) fn with_maps(&self, descriptor: impl Fn(M) -> u32) -> Vec<u64> {
        let mut instructions = self.instructions.to_vec();
        for (at, map) in self.maps {
            instructions[*at] |= SOURCE_IS_MAP | u64::from(descriptor(*map)) << 32;
        }
        instructions
    }
}

include!(concat!(env!("OUT_DIR"), "/programs.rs"));
