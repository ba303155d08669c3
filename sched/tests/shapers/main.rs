// SPDX-License-Identifier: Apache-2.0
//! Tests of strict priority and credit-based shaping: the clauses by example, random worlds against a reference that
//! lives through every nanosecond, and properties that hold whatever the reference says.

mod credit;
mod credit_based;
#[path = "../selection/events.rs"]
#[allow(dead_code)]
mod events;
mod no_allocation;
mod reference;
mod strict_priority;
#[path = "../selection/sys.rs"]
#[allow(unsafe_code)]
mod sys;
#[path = "../selection/world.rs"]
#[allow(dead_code)]
mod world;
