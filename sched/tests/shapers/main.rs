// SPDX-License-Identifier: Apache-2.0
//! Tests of strict priority and credit-based shaping: the clauses by example, random worlds against a reference that
//! lives through every nanosecond, and properties that hold whatever the reference says.

mod credit;
mod credit_based;
#[path = "../selection/events.rs"]
#[allow(dead_code)]
mod events;
#[path = "../selection/flood.rs"]
mod flood;
mod happen;
mod no_allocation;
mod reference;
mod strict_priority;
#[path = "../selection/sys.rs"]
#[allow(unsafe_code)]
mod sys;
#[path = "../selection/turn_rule.rs"]
#[allow(dead_code)]
mod turn_rule;
#[path = "../selection/world.rs"]
#[allow(dead_code)]
mod world;

/// For one in `share` of the random worlds that `KTSN_CASES` asks for; 50,000 where it is not set.
fn cases(share: u32) -> proptest::test_runner::Config {
    let wanted =
        std::env::var("KTSN_CASES").map_or(50_000, |text| text.parse().expect("KTSN_CASES is a count"));
    let cases = (wanted / share).max(1);
    proptest::test_runner::Config { cases, failure_persistence: None, ..Default::default() }
}
