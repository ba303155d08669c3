// SPDX-License-Identifier: Apache-2.0
//! The properties over random worlds, asked of the engine and of the reference alike.
//!
//! In: a way to make a port. Out: a verdict, or the shrunken world that breaks a property.

use crate::cases;
use crate::checks::{self, Check};
use crate::engine::engine;
use crate::port::{Port, Setup};
use crate::reference::Reference;
use crate::relations;
use crate::watch::Verdict;
use crate::world::{any_world, run, steady_world};
use proptest::prelude::*;

pub(crate) type Make = fn(&Setup) -> Box<dyn Port>;

pub(crate) fn reference(setup: &Setup) -> Box<dyn Port> {
    Box::new(Reference::new(setup.capacity, setup.link_speed, setup.hand_over, setup.classes))
}

fn verdict(verdict: Verdict) -> Result<(), TestCaseError> {
    verdict.map_err(TestCaseError::fail)
}

/// `check` in random worlds with steady clocks.
fn in_steady_worlds(check: Check) {
    for make in [engine as Make, reference] {
        cases::check(20, steady_world(), |world| {
            verdict(check(&world.setup, &run(make(&world.setup).as_mut(), &world)))
        });
    }
}

fn in_any_world(check: Check) {
    for make in [engine as Make, reference] {
        cases::check(20, any_world(), |world| {
            verdict(check(&world.setup, &run(make(&world.setup).as_mut(), &world)))
        });
    }
}

macro_rules! steady {
    ($($(#[$doc:meta])* $name:ident = $check:ident;)*) => {
        $($(#[$doc])* #[test] fn $name() { in_steady_worlds(checks::$check); })*
    };
}

steady! {
    clause_8_6_8_4_nothing_starts_in_a_closed_gate = nothing_starts_in_a_closed_gate;
    clause_8_6_8_4_nothing_crosses_a_close = nothing_crosses_a_close;
    clause_8_6_8_4_the_window_said_is_the_gates = the_window_is_the_gates;
    clause_8_6_8_the_wire_carries_one_frame = the_wire_carries_one_frame;
    clause_8_6_6_order_within_a_class = order_within_a_class;
    clause_8_6_6_fifo_within_a_class = fifo_within_a_class;
    clause_8_6_8_1_highest_eligible_class_first = highest_eligible_class_first;
    clause_8_6_8_work_conserving = work_conserving;
    drops_have_a_cause = drops_have_a_cause;
    never_early = never_early;
    late_is_said = late_is_said;
}

#[test]
fn conservation_of_frames() {
    in_any_world(checks::conservation);
}

#[test]
fn clause_8_6_8_4_queue_max_sdu() {
    in_any_world(checks::queue_max_sdu);
}

#[test]
fn clause_8_6_9_a_clock_step_leaves_nothing_in_a_closed_window() {
    in_any_world(checks::steps_leave_nothing_in_a_closed_gate);
}

macro_rules! related {
    ($($name:ident = $relation:ident, $worlds:ident;)*) => {
        $(#[test] fn $name() {
            for make in [engine as Make, reference] {
                cases::check(20, relations::$worlds(), |drawn| verdict(relations::$relation(make, &drawn)));
            }
        })*
    };
}

related! {
    clause_8_6_9_3_change_exactly_at_config_change_time = change_exactly_at_config_change_time, changes;
    jumping_to_wake_at_equals_polling_each_nanosecond = jumping_equals_polling, polled_worlds;
    clause_8_6_9_1_a_shift_by_whole_cycles_changes_nothing = shift_by_cycles, shifted_worlds;
    clause_8_6_9_2_splitting_an_entry_changes_nothing = splitting_an_entry, split_worlds;
    a_flood_in_a_lower_class_costs_at_most_one_frame = flood_from_below, flooded_worlds;
    a_flood_outside_an_exclusive_window_costs_nothing = flood_beside_a_window, exclusive_worlds;
}
