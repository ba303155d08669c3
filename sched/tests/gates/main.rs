// SPDX-License-Identifier: Apache-2.0
//! Proofs of transmission selection behind gates (802.1Q-2022 8.6.8, 8.6.9): the three state machines polled tick
//! by tick, a reference that was written from the rules alone, the properties that must hold whatever the
//! reference says, and faulty twins that each property must catch.
//!
//! `KTSN_CASES` is the number of random worlds per comparing test; without it, as many as fit into a minute.

mod cases;
mod checks;
mod clauses;
mod compare;
mod credit;
mod engine;
mod extremes;
mod machines;
mod port;
mod properties;
mod reference;
mod relations;
#[path = "../selection/sequences.rs"]
mod sequences;
mod small_worlds;
mod timeline;
#[path = "../selection/turn_rule.rs"]
#[allow(dead_code)]
mod turn_rule;
mod twins;
mod watch;
mod world;
