// SPDX-License-Identifier: Apache-2.0
//! The clauses by example.

use super::{ENDLESS, Gates, config_change_time, cycle_start, last_cycle_start, port, program};
use crate::GateProgram;
use alloc::vec;
use ktsn_model::{AdminPort, GateOperation, GateStates};
use ktsn_time::{Nanos, Tai};

/// Two entries of 6 and 4 in a cycle of 10, begun at 100.
fn ten() -> Gates {
    let gates = Gates::with(&port(100, 10, 0, &[(1, 6), (2, 4)]), 50);
    assert_eq!(gates.pending_change_at(), Some(100));
    gates
}

#[test]
fn clause_8_6_9_3_base_time_in_the_future_is_the_config_change_time() {
    assert_eq!(config_change_time(500, 10, 499), 500);
    let mut gates = ten();
    assert_eq!(gates.bits_over(98..112), [255, 255, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 1, 1]);
}

#[test]
fn clause_8_6_9_3_base_time_in_the_past_takes_the_next_start_of_a_cycle() {
    assert_eq!(config_change_time(500, 10, 501), 510);
    assert_eq!(config_change_time(500, 10, 509), 510);
    assert_eq!(config_change_time(7, 10_000_000_000, 25_000_000_000), 30_000_000_007);
}

#[test]
fn clause_8_6_9_3_exactly_on_the_boundary_counts() {
    for now in [500, 510, 12_340] {
        assert_eq!(config_change_time(500, 10, now), now);
    }
    let mut gates = Gates::with(&port(500, 10, 0, &[(1, 6), (2, 4)]), 510);
    assert_eq!((gates.pending_change_at(), gates.oper_start()), (None, Some(510)));
    assert_eq!(gates.bits(510), 1);
}

#[test]
fn clause_8_6_9_3_change_at_config_change_time_and_for_good() {
    let mut gates = ten();
    gates.advance(105);
    assert!(gates.set_admin(program(&port(133, 20, 0, &[(4, 20)])), 110).is_none());
    assert_eq!((gates.bits(132), gates.pending_change_at()), (1, Some(133)));
    assert_eq!((gates.bits(133), gates.pending_change_at(), gates.oper_start()), (4, None, Some(133)));
    // The clock steps back: before its first cycle oper's initial states hold, not the old list.
    assert_eq!(gates.bits(120), 255);
    let position = gates.at(120);
    assert_eq!(gates.current_cycle_start(&position), None);
    let replaced = gates.take_retired().unwrap();
    assert_eq!(replaced.admin().cycle_time, Nanos::new(10));
    assert!(gates.take_retired().is_none());
}

#[test]
fn clause_8_6_9_3_change_seen_late_still_counts_from_config_change_time() {
    let mut gates = ten();
    let position = gates.at(123);
    assert_eq!(gates.oper_start(), Some(100));
    assert_eq!(gates.current_cycle_start(&position), Some(120));
}

#[test]
fn clause_8_6_9_3_config_change_error_counts_past_base_times_while_gates_run() {
    let mut gates = Gates::default();
    let past = port(5, 10, 0, &[(1, 10)]);
    gates.set_admin(program(&past), 100);
    assert_eq!(gates.config_change_error(), 0, "no gates ran");
    gates.advance(105);
    gates.set_admin(program(&port(110, 10, 0, &[(1, 10)])), 110);
    assert_eq!(gates.config_change_error(), 0, "now is not past");
    gates.set_admin(program(&past), 111);
    assert_eq!((gates.config_change_error(), gates.pending_change_at()), (1, Some(115)));
    // Changes that happen at once have no base time to miss.
    gates.set_admin(program(&port(5, 10, 0, &[])), 112);
    gates.set_admin(program(&AdminPort { gate_enabled: false, ..past.clone() }), 113);
    assert_eq!(gates.config_change_error(), 1);
    gates.set_admin(program(&past), 114);
    assert_eq!(gates.config_change_error(), 1, "gates were disabled");
}

#[test]
fn clause_8_6_9_3_second_change_replaces_the_first_and_gives_it_back() {
    let mut gates = ten();
    let displaced = gates.set_admin(program(&port(80, 7, 0, &[(8, 7)])), 60).unwrap();
    assert_eq!(displaced.admin().cycle_time, Nanos::new(10));
    assert_eq!((gates.bits(79), gates.bits(80)), (255, 8));
}

#[test]
fn no_program_is_freed_however_many_nobody_takes() {
    let mut gates = Gates::default();
    let (mut given, mut back) = (0, 0);
    for now in 0..200u64 {
        let change = match now % 7 {
            0 | 1 => port(0, 10, 0, &[]),
            2 => port(now + 3, 10, 0, &[(1, 10)]),
            3 => port(now + 50, 10, 0, &[(1, 10)]),
            _ => {
                gates.advance(now);
                continue;
            }
        };
        given += 1;
        back += usize::from(gates.set_admin(program(&change), now).is_some());
        let held =
            [gates.0.oper.is_some(), gates.0.pending.is_some()].into_iter().filter(|&held| held).count();
        let retired = gates.0.retired.iter().flatten().count();
        assert_eq!(given, back + held + retired, "at {now}");
    }
    assert!(back > 50);
}

#[test]
fn clause_8_6_9_1_cycles_start_at_multiples_of_the_cycle_time() {
    assert_eq!(cycle_start(100, 10, 100), 100);
    assert_eq!(cycle_start(100, 10, 109), 100);
    assert_eq!(cycle_start(100, 10, 110), 110);
    for (cycle, count) in [(50_000, 1 << 40), (10_000_000_000, 1 << 29)] {
        let first = 37_000_000_123;
        let start = first + cycle * count;
        assert_eq!(cycle_start(first, cycle, start + cycle - 1), start);
    }
}

#[test]
fn clause_8_6_9_1_base_time_in_the_past_keeps_the_phase() {
    for (cycle, now) in
        [(50_000i64, 1_795_000_000_123_456_789u64), (10_000_000_000, 1_795_000_000_123_456_789)]
    {
        let half = cycle / 2;
        let mut gates = Gates::with(&port(7, cycle, 0, &[(1, half), (2, half)]), now);
        let start = gates.pending_change_at().unwrap();
        assert!(start >= now && start - now < cycle as u64 && (start - 7).is_multiple_of(cycle as u64));
        let half = half as u64;
        let edges = [start, start + half - 1, start + half, start + 2 * half - 1, start + 2 * half];
        assert_eq!(edges.map(|at| gates.bits(at)), [1, 1, 2, 2, 1]);
    }
}

/// `ten` with a change to 0x80 at `change_at`, configured at `at`, under an extension; the states over `span`.
fn changed(extension: i64, at: u64, change_at: u64, span: core::ops::Range<u64>) -> vec::Vec<u8> {
    let mut gates = Gates::with(&port(100, 10, extension, &[(1, 6), (2, 4)]), 50);
    gates.advance(100);
    gates.set_admin(program(&port(change_at, 10, 0, &[(0x80, 10)])), at);
    gates.bits_over(span)
}

#[test]
fn clause_8_6_9_1_truncated_last_cycle() {
    // The cycle of 120 would end at 130: cut at 123.
    assert_eq!(changed(0, 105, 123, 119..125), [2, 1, 1, 1, 0x80, 0x80]);
}

#[test]
fn clause_8_6_9_1_extension_prolongs_the_last_cycle() {
    // 123 ≤ 110 + 10 + 3: the cycle of 110 goes on with its last entry.
    assert_eq!(changed(3, 105, 123, 115..124), [1, 2, 2, 2, 2, 2, 2, 2, 0x80]);
    // One less, and there is another cycle, cut short.
    assert_eq!(changed(2, 105, 123, 119..124), [2, 1, 1, 1, 0x80]);
}

#[test]
fn clause_8_6_9_1_only_a_cycle_that_starts_with_the_change_in_sight_is_extended() {
    // Configured in the very instant of the start: seen. One later: not any more, and the cycle of 120 is cut.
    assert_eq!(changed(5, 110, 123, 119..124), [2, 2, 2, 2, 0x80]);
    assert_eq!(changed(5, 111, 123, 119..124), [2, 1, 1, 1, 0x80]);
    assert_eq!(last_cycle_start(100, 10, 5, 111, 123), Some(120));
    assert_eq!(last_cycle_start(100, 10, 5, 121, 123), None);
}

#[test]
fn clause_8_6_9_1_change_within_the_running_cycle_cuts_it() {
    assert_eq!(changed(0, 112, 114, 111..116), [1, 1, 1, 0x80, 0x80]);
}

#[test]
fn clause_8_6_9_1_change_at_the_end_of_a_cycle_cuts_and_extends_nothing() {
    assert_eq!(changed(5, 105, 120, 114..122), [1, 1, 2, 2, 2, 2, 0x80, 0x80]);
}

#[test]
fn clause_8_6_9_1_extension_runs_on_in_a_list_longer_than_the_cycle() {
    let mut gates = Gates::with(&port(100, 10, 6, &[(1, 8), (2, 4), (4, 4)]), 50);
    assert_eq!(gates.bits_over(106..112), [1, 1, 2, 2, 1, 1]);
    gates.set_admin(program(&port(126, 10, 0, &[(0x80, 10)])), 112);
    // The cycle of 110 had started before the change was configured, and the one of 120 is cut.
    assert_eq!(gates.bits_over(118..127), [2, 2, 1, 1, 1, 1, 1, 1, 0x80]);
    let mut longer = Gates::with(&port(100, 10, 6, &[(1, 8), (2, 4), (4, 4)]), 50);
    longer.advance(100);
    longer.set_admin(program(&port(125, 10, 0, &[(0x80, 10)])), 103);
    assert_eq!(longer.bits_over(116..126), [1, 1, 2, 2, 2, 2, 4, 4, 4, 0x80]);
}

#[test]
fn clause_8_6_9_2_list_shorter_than_the_cycle_holds_its_last_entry() {
    let mut gates = Gates::with(&port(0, 10, 0, &[(1, 2), (2, 3)]), 0);
    assert_eq!(gates.bits_over(0..12), [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
}

#[test]
fn clause_8_6_9_2_list_longer_than_the_cycle_is_cut_off() {
    let mut gates = Gates::with(&port(0, 5, 0, &[(1, 2), (2, 9), (4, 1)]), 0);
    assert_eq!(gates.bits_over(0..7), [1, 1, 2, 2, 2, 1, 1]);
    let mut exact = Gates::with(&port(0, 5, 0, &[(1, 2), (2, 3), (4, 1)]), 0);
    assert_eq!(exact.bits_over(3..6), [2, 2, 1]);
}

#[test]
fn clause_8_6_9_2_one_entry_is_a_gate_that_never_moves() {
    let mut gates = Gates::with(&port(0, 5, 0, &[(0x81, 1)]), 0);
    let position = gates.at(1 << 60);
    assert_eq!(gates.window(&position, 7).unwrap().rest, ENDLESS);
    assert_eq!(gates.window(&position, 6), None);
    assert_eq!(gates.after(&position, 6, 0, 1), None);
}

#[test]
fn clause_8_6_9_2_hold_and_release_set_gate_states_and_nothing_else() {
    let mut admin = port(0, 10, 0, &[(1, 3), (2, 3), (4, 4)]);
    let mut plain = Gates::with(&admin, 0);
    admin.control_list[0].operation = GateOperation::SetAndHoldMac;
    admin.control_list[1].operation = GateOperation::SetAndReleaseMac;
    let mut held = Gates::with(&admin, 0);
    assert_eq!(plain.bits_over(0..25), held.bits_over(0..25));
}

#[test]
fn clause_8_6_9_empty_list_and_disabled_gates_stay_and_change_at_once() {
    let still = AdminPort { gate_states: GateStates::from_bits(0x0f), ..port(900, 0, 0, &[]) };
    let disabled = AdminPort { gate_enabled: false, ..port(900, 10, 0, &[(1, 10)]) };
    for (admin, bits) in [(still, 0x0f), (disabled, 0xff)] {
        let mut gates = ten();
        gates.advance(104);
        gates.set_admin(program(&admin), 104);
        assert_eq!((gates.oper_start(), gates.pending_change_at()), (Some(104), None));
        assert_eq!([104, 950, u64::MAX].map(|at| gates.bits(at)), [bits; 3]);
        let position = gates.at(105);
        assert_eq!(gates.current_cycle_start(&position), None);
    }
}

#[test]
fn clause_8_6_8_4_window_spans_entries_and_cycles() {
    // Class 0: open 0..3, 7..10, so 7..13 across the seam; class 1 always.
    let mut gates = Gates::with(&port(0, 10, 0, &[(3, 1), (3, 2), (2, 4), (3, 3)]), 0);
    let of = |gates: &mut Gates, at| {
        let position = gates.at(at);
        gates.window(&position, 0).map(|window| (window.opens_at, at + window.rest))
    };
    assert_eq!([0, 2, 3, 6].map(|at| of(&mut gates, at)), [Some((0, 3)), Some((0, 3)), None, None]);
    assert_eq!(
        [7, 9, 10, 12, 13].map(|at| of(&mut gates, at)),
        [Some((7, 13)), Some((7, 13)), Some((7, 13)), Some((7, 13)), None]
    );
    let position = gates.at(45);
    assert_eq!(gates.window(&position, 1).unwrap().rest, ENDLESS);
    assert_eq!(gates.after(&position, 0, 0, 6), Some(2));
    assert_eq!(gates.after(&position, 0, 3, 6), Some(12));
    assert_eq!(gates.after(&position, 0, 0, 7), None);
}

#[test]
fn clause_8_6_9_3_pending_change_is_a_boundary_even_where_both_lists_are_open() {
    let mut gates = Gates::with(&port(0, 10, 0, &[(1, 10)]), 0);
    gates.set_admin(program(&port(25, 10, 0, &[(1, 10)])), 1);
    let position = gates.at(20);
    assert_eq!(gates.window(&position, 0).unwrap().rest, 5);
    assert_eq!(gates.after(&position, 0, 0, 6), Some(5));
    let position = gates.at(25);
    let window = gates.window(&position, 0).unwrap();
    assert_eq!((window.opens_at, window.rest), (25, ENDLESS));
}

#[test]
fn clause_8_6_9_step_of_tai_needs_no_call() {
    let mut gates = ten();
    let straight: vec::Vec<u8> = gates.bits_over(100..180);
    for at in [179, 100, 135, 134, 171, 108] {
        assert_eq!(gates.bits(at), straight[(at - 100) as usize]);
    }
    assert_eq!(gates.bits(99), 255);
}

#[test]
fn a_list_of_1024_entries_is_executed_to_the_last() {
    let entries: vec::Vec<(u8, i64)> = (0..1024).map(|index| ((index % 251) as u8, 50 + index % 3)).collect();
    let cycle: i64 = entries.iter().map(|entry| entry.1).sum();
    let admin = port(1_000, cycle, 0, &entries);
    assert_eq!(admin.check(), Ok(()));
    let mut gates = Gates::with(&admin, 0);
    for count in [0, 1, 77_777] {
        let mut begin = 1_000 + count * cycle as u64;
        for &(bits, interval) in &entries {
            assert_eq!([begin, begin + interval as u64 - 1].map(|at| gates.bits(at)), [bits; 2]);
            begin += interval as u64;
        }
    }
    let one_more = port(0, cycle + 50, 0, &[&entries[..], &[(1, 50)]].concat());
    let fault = GateProgram::new(&one_more).unwrap_err();
    assert_eq!((fault.leaf, fault.value), ("admin-control-list", 1025));
}

#[test]
fn what_cannot_be_executed_is_refused_by_name() {
    let fault = |admin: &AdminPort| GateProgram::new(admin).unwrap_err();
    assert_eq!(fault(&port(0, 10, -1, &[(1, 10)])).leaf, "admin-cycle-time-extension");
    assert_eq!(fault(&port(0, 0, 0, &[(1, 10)])).leaf, "admin-cycle-time");
    assert_eq!(fault(&port(0, -10, 0, &[(1, 10)])).leaf, "admin-cycle-time");
    let zero = fault(&port(0, 10, 0, &[(1, 10), (1, 0)]));
    assert_eq!((zero.leaf, zero.entry_index, zero.value), ("time-interval-value", Some(1), 0));
    // Not sensible, but it can be executed.
    assert!(GateProgram::new(&port(u64::MAX, 1, i64::MAX, &[(1, i64::MAX)])).is_ok());
}

#[test]
fn instants_near_the_ends_of_tai_are_exact() {
    let mut gates = Gates::with(&port(u64::MAX - 25, 10, 0, &[(1, 6), (2, 4)]), u64::MAX - 30);
    assert_eq!(gates.bits(u64::MAX - 26), 255);
    assert_eq!(gates.bits_over(u64::MAX - 7..u64::MAX), [2, 2, 1, 1, 1, 1, 1]);
    let position = gates.at(u64::MAX);
    assert_eq!((gates.states(&position).bits(), gates.window(&position, 0).unwrap().rest), (1, 1));
    assert_eq!(gates.after(&position, 0, u64::MAX, 6), Some(u64::MAX));
    assert_eq!(config_change_time(3, 10, u64::MAX), u64::MAX);
    assert_eq!(config_change_time(0, i64::MAX as u64, u64::MAX), u64::MAX);
    let mut early = Gates::with(&port(0, i64::MAX, i64::MAX, &[(1, i64::MAX), (2, i64::MAX)]), 0);
    assert_eq!([0, i64::MAX as u64 - 1, i64::MAX as u64, u64::MAX].map(|at| early.bits(at)), [1; 4]);
    let never = early.set_admin(program(&port(u64::MAX, 1, 0, &[(1, 1)])), 0);
    assert!(never.is_none());
    assert_eq!(early.bits(u64::MAX - 1), 2, "the last cycle, extended into the list's second entry");
    assert_eq!(Tai::MAX.as_nanos(), early.pending_change_at().unwrap());
}
