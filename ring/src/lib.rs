// SPDX-License-Identifier: Apache-2.0
//! The shared-memory seam between programs and ktsnd: `docs/design/ring-abi.md`, ABI 1.
//!
//! In: frames that a program's threads and signal handlers push ([`Producer`]). Out: private, checked copies of
//! them, oldest first (`Consumer`, feature `daemon`). Beside them travel the stream and destination tables and
//! the worker's promise of markers, from the daemon to the program, what became of frames that asked for it
//! ([`completion`]), the grant of expected arrival ([`receive`]), and the [`control`] messages.
//!
//! The producer's side is `no_std` and async-signal-safe: it never allocates, locks, waits, panics or makes a
//! system call. The consumer's side never believes a shared word: whatever the program writes, and whenever, the
//! outcome is a frame, a typed error or nothing, in a bounded number of steps.
//!
//! Every access to the region goes through [`words::Words`], so the [`algorithm`]s that loom explores on its own
//! atomics are the ones that run on the mapping.
#![no_std]

#[cfg(feature = "daemon")]
extern crate std;

#[cfg(target_endian = "big")]
compile_error!("ring ABI 1 is little endian");

pub mod algorithm;
pub mod completion;
pub mod control;
mod frame;
pub mod layout;
pub mod link;
pub mod marker;
mod producer;
pub mod receive;
pub mod tables;
mod usage;
#[allow(unsafe_code)]
pub mod words;

#[cfg(feature = "daemon")]
mod consumer;
#[cfg(feature = "daemon")]
pub mod published;
#[cfg(feature = "daemon")]
#[allow(unsafe_code)]
mod region;

pub use algorithm::Bell;
#[cfg(feature = "daemon")]
pub use consumer::{Consumer, Holding, Markers, TableError, sleep_fence};
pub use frame::{ClockId, HeaderMarks, SlotFlags, SlotFrame, SlotHeader};
pub use layout::{Layout, LayoutError};
pub use link::LinkFacts;
pub use producer::{Claim, Claims, Producer, Run, TooLong};
#[cfg(feature = "daemon")]
pub use published::{LinkError, SlotError, SlotFault, Taken};
#[cfg(feature = "daemon")]
pub use region::{ClientMapping, RegionError};
pub use tables::{
    Destination, DestinationAction, DestinationVerdict, RegionState, StreamCode, StreamStatus, bypass,
    counter, stream_flags,
};
pub use usage::Usage;
