// SPDX-License-Identifier: Apache-2.0
//! Tests of transmission selection: the rules by example, by random worlds and by all small worlds against a
//! reference that was written from the rules alone, and a proof that nothing allocates.

mod events;
mod flood;
mod no_allocation;
mod properties;
mod put_back;
mod reference;
mod rules;
mod sequences;
mod small_worlds;
#[allow(unsafe_code)]
mod sys;
mod turn_rule;
mod turns;
mod world;
