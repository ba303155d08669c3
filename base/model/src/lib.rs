// SPDX-License-Identifier: Apache-2.0
//! Nouns shared by several parts: reasons, priorities, policies, prefixes.
//!
//! In: numbers and words from configuration, rings and counters. Out: checked values with one spelling.
//! No I/O, no allocation, no clock.
#![no_std]
#![forbid(unsafe_code)]

mod class;
mod policy;
mod prefix;
mod reason;

pub use class::{OutOfRange, Priority, PriorityMap, TrafficClass};
pub use policy::{LatePolicy, UnsynchronisedPolicy};
pub use prefix::{IpPrefix, PrefixError};
pub use reason::{BypassReason, DropReason};

#[cfg(test)]
mod tests;
