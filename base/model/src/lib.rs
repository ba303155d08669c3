// SPDX-License-Identifier: Apache-2.0
//! Nouns shared by several parts: reasons, priorities, policies, prefixes.
//!
//! In: numbers and words from configuration, rings and counters. Out: checked values with one spelling.
//! No I/O, no clock; only gate control lists allocate, behind a feature.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "gates")]
extern crate alloc;

mod class;
#[cfg(feature = "gates")]
mod gate;
pub mod link_frame;
mod policy;
mod prefix;
mod reason;
mod words;

pub use class::{OutOfRange, Priority, PriorityMap, TrafficClass};
#[cfg(feature = "gates")]
pub use gate::{AdminPort, GateControlEntry, GateFault, GateOperation, GateStates};
pub use link_frame::{IpSource, LinkFault, LinkHead, LinkRules};
pub use policy::{LatePolicy, UnsynchronisedPolicy};
pub use prefix::{IpPrefix, PrefixError};
pub use reason::{BypassReason, DropReason};
pub use words::{UnknownWord, Words};

#[cfg(test)]
mod tests;
