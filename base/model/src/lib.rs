// SPDX-License-Identifier: Apache-2.0
//! Nouns shared by several parts: reasons, priorities, policies, prefixes.
//!
//! In: numbers and words from configuration, rings and counters. Out: checked values with one spelling.
//! No I/O, no clock; only a gate control list allocates.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod class;
mod gate;
mod policy;
mod prefix;
mod reason;

pub use class::{OutOfRange, Priority, PriorityMap, TrafficClass};
pub use gate::{AdminPort, GateControlEntry, GateFault, GateOperation, GateStates};
pub use policy::{LatePolicy, UnsynchronisedPolicy};
pub use prefix::{IpPrefix, PrefixError};
pub use reason::{BypassReason, DropReason};

#[cfg(test)]
mod tests;
