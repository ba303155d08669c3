// SPDX-License-Identifier: Apache-2.0
//! The stream gate, 802.1Q-2022 8.6.5.4 with the machines of 8.6.9.

use crate::{at, priority, reference};
use ktsn_model::{DropReason, Priority};
use ktsn_sched::policing::StreamGateState::{Closed, Open};
use ktsn_sched::policing::{
    Judged, Police, PolicingConfig, StreamFilter, StreamGate, StreamGateEntry, StreamGateProgram,
    StreamGateState,
};
use ktsn_time::{Monotonic, Nanos, Now, Tai};
use proptest::prelude::*;

const MICRO: u64 = 1_000;

fn entry(state: StreamGateState, micros: i64) -> StreamGateEntry {
    StreamGateEntry { state, ipv: None, interval: Nanos::from_micros(micros), interval_octet_max: None }
}

/// Open for 30 µs, closed for 70 µs, from 1 ms on; closed before.
fn thirty_of_hundred() -> StreamGate {
    StreamGate {
        gate_enabled: true,
        gate_state: Closed,
        base_time: Tai::from_nanos(1_000 * MICRO),
        cycle_time: Nanos::from_micros(100),
        control_list: vec![entry(Open, 30), entry(Closed, 70)],
        ..StreamGate::default()
    }
}

fn gated(gate: StreamGate) -> Police {
    Police::new(&PolicingConfig {
        stream_filters: vec![StreamFilter { stream_gate: Some(0), ..StreamFilter::default() }],
        stream_gates: vec![gate],
        ..PolicingConfig::default()
    })
    .unwrap()
}

/// The priority that a frame of 100 octets with priority 2 goes on with.
fn judge(police: &mut Police, now: Now) -> Option<u8> {
    match police.judge(None, priority(2), 100, 150, now) {
        Judged::Pass { priority } => Some(priority.get()),
        Judged::Drop(_) => None,
    }
}

fn is_open(police: &mut Police, nanos: u64) -> bool {
    judge(police, at(nanos)).is_some()
}

#[test]
fn clause_8_6_9_2_open_and_closed_to_the_nanosecond() {
    let mut police = gated(thirty_of_hundred());
    for cycle in [1_000 * MICRO, 1_100 * MICRO, 1_000_000 * MICRO] {
        assert!(is_open(&mut police, cycle));
        assert!(is_open(&mut police, cycle + 30 * MICRO - 1));
        assert!(!is_open(&mut police, cycle + 30 * MICRO));
        assert!(!is_open(&mut police, cycle + 100 * MICRO - 1));
    }
    assert_eq!(police.counters(0).unwrap().not_passing_frames, 6);
}

#[test]
fn before_its_base_time_the_gate_is_in_its_initial_state() {
    assert!(!is_open(&mut gated(thirty_of_hundred()), 1_000 * MICRO - 1));
    let open = StreamGate { gate_state: Open, ipv: Some(priority(5)), ..thirty_of_hundred() };
    assert_eq!(judge(&mut gated(open), at(999 * MICRO)), Some(5));
}

#[test]
fn not_enabled_or_without_entries_it_stays_in_its_initial_state() {
    let now = 1_050 * MICRO;
    assert!(!is_open(
        &mut gated(StreamGate { gate_enabled: false, ..thirty_of_hundred() }),
        now - 40 * MICRO
    ));
    let empty = StreamGate { control_list: vec![], gate_state: Open, ..thirty_of_hundred() };
    assert!(is_open(&mut gated(empty), now));
}

#[test]
fn clause_8_6_5_4_ipv_replaces_the_priority_of_what_passes() {
    let mut gate = thirty_of_hundred();
    gate.control_list[0].ipv = Some(priority(6));
    gate.control_list[1] = entry(Open, 70);
    let mut police = gated(gate);
    assert_eq!(judge(&mut police, at(1_000 * MICRO)), Some(6));
    assert_eq!(judge(&mut police, at(1_030 * MICRO)), Some(2));
}

#[test]
fn clause_8_6_5_4_interval_octet_max_counts_anew_in_each_interval() {
    let mut gate = thirty_of_hundred();
    gate.control_list[0].interval_octet_max = Some(250);
    let mut police = gated(gate);
    for cycle in [1_000 * MICRO, 1_100 * MICRO] {
        assert_eq!([0, 1, 2, 3].map(|n| is_open(&mut police, cycle + n)), [true, true, false, false]);
        // A shorter one still fits.
        let short = police.judge(None, priority(2), 50, 100, at(cycle + 4));
        assert!(matches!(short, Judged::Pass { .. }));
    }
    assert!(!police.tripped(0).unwrap().closed_due_to_octets_exceeded);
}

#[test]
fn clause_8_6_5_4_closed_for_good_by_what_was_not_meant_to_come() {
    let mut police = gated(StreamGate { closed_due_to_invalid_rx_enabled: true, ..thirty_of_hundred() });
    assert!(is_open(&mut police, 1_000 * MICRO));
    assert!(!is_open(&mut police, 1_031 * MICRO));
    assert!(!is_open(&mut police, 1_100 * MICRO));
    assert!(police.tripped(0).unwrap().closed_due_to_invalid_rx);
    police.clear(0);
    assert!(is_open(&mut police, 1_101 * MICRO));

    let mut gate = StreamGate { closed_due_to_octets_exceeded_enabled: true, ..thirty_of_hundred() };
    gate.control_list[0].interval_octet_max = Some(100);
    let mut police = gated(gate);
    assert!(is_open(&mut police, 1_000 * MICRO));
    assert!(!is_open(&mut police, 1_001 * MICRO));
    assert!(!is_open(&mut police, 1_100 * MICRO));
    assert!(police.tripped(0).unwrap().closed_due_to_octets_exceeded);
}

#[test]
fn clause_8_6_9_3_a_new_list_takes_over_at_its_config_change_time() {
    let mut police = gated(thirty_of_hundred());
    let always = StreamGate {
        base_time: Tai::from_nanos(20 * MICRO),
        control_list: vec![entry(Open, 100)],
        ..thirty_of_hundred()
    };
    let program = Box::new(StreamGateProgram::new(&always).unwrap());
    // In the past: the next of 20, 120, 220 … µs.
    assert!(police.set_stream_gate(0, program, at(1_140 * MICRO)).is_none());
    assert_eq!(police.config_change_error(0), Some(1));
    assert!(!is_open(&mut police, 1_220 * MICRO - 70 * MICRO));
    // The cycle that began at 1,200 is the last one, cut at 1,220.
    assert!(is_open(&mut police, 1_219 * MICRO));
    assert!(is_open(&mut police, 1_250 * MICRO));
    let retired = police.take_retired(0).unwrap();
    assert_eq!(retired.admin(), &thirty_of_hundred());
    // For good, although TAI steps back.
    assert!(is_open(&mut police, 1_250 * MICRO));
}

#[test]
fn clause_8_6_9_1_the_last_cycle_is_extended_by_its_last_entry() {
    // 40 µs after its last whole cycle the new list begins: too little for a cycle, so the last entry goes on.
    let mut police =
        gated(StreamGate { cycle_time_extension: Nanos::from_micros(40), ..thirty_of_hundred() });
    let next = StreamGate { base_time: Tai::from_nanos(1_340 * MICRO), ..thirty_of_hundred() };
    let program = Box::new(StreamGateProgram::new(&next).unwrap());
    assert!(police.set_stream_gate(0, program, at(1_150 * MICRO)).is_none());
    assert!(is_open(&mut police, 1_200 * MICRO));
    assert!(!is_open(&mut police, 1_300 * MICRO));
    assert!(!is_open(&mut police, 1_340 * MICRO - 1));
    assert!(is_open(&mut police, 1_340 * MICRO));
}

#[test]
fn a_step_of_tai_moves_windows_and_gives_no_tokens() {
    let mut police = gated(thirty_of_hundred());
    let monotonic = Monotonic::from_nanos(7);
    let now = |micros: u64| Now { tai: Tai::from_nanos(micros * MICRO), monotonic };
    assert_eq!(judge(&mut police, now(5_010)), Some(2));
    assert_eq!(judge(&mut police, now(4_990)), None);
    assert_eq!(judge(&mut police, now(990)), None);
    assert_eq!(judge(&mut police, now(1_000)), Some(2));
}

#[test]
fn faults_name_gate_and_entry() {
    let mut gate = thirty_of_hundred();
    gate.control_list[1].interval = Nanos::ZERO;
    let config =
        PolicingConfig { stream_gates: vec![thirty_of_hundred(), gate], ..PolicingConfig::default() };
    let fault = Police::new(&config).unwrap_err();
    assert_eq!((fault.list, fault.index, fault.entry_index), ("stream-gate", 1, Some(1)));
    let filter = StreamFilter { stream_gate: Some(1), ..StreamFilter::default() };
    let config = PolicingConfig {
        stream_filters: vec![filter],
        stream_gates: vec![thirty_of_hundred()],
        ..PolicingConfig::default()
    };
    let fault = Police::new(&config).unwrap_err();
    assert_eq!((fault.leaf, fault.value), ("stream-gate-ref", 1));
}

/// Gates on a grid of 10 µs, changed often, so that instants coincide: changes, starts of cycles, entries, frames.
fn small_gate() -> impl Strategy<Value = StreamGate> {
    let state = || prop::sample::select(vec![Open, Closed]);
    let ipv = || prop::option::of((0u32..8).prop_map(Priority::capped));
    let part = (state(), ipv(), 1i64..4, prop::option::of(0u32..300));
    (prop::bool::weighted(0.9), state(), -40i64..40, prop::collection::vec(part, 0..5), 0i64..6, -3i64..4)
        .prop_map(|(gate_enabled, gate_state, base, parts, extension, more)| {
            let control_list: Vec<_> = parts
                .into_iter()
                .map(|(state, ipv, tens, interval_octet_max)| StreamGateEntry {
                    ipv,
                    interval_octet_max,
                    ..entry(state, 10 * tens)
                })
                .collect();
            let sum: i64 = control_list.iter().map(|entry| entry.interval.get()).sum();
            let extension = 10_000 * extension;
            let cycle_time = (sum + (10_000 * more).clamp(-extension, extension)).max(50_000);
            StreamGate {
                gate_enabled,
                gate_state,
                base_time: Tai::from_nanos(1_000_000).saturating_add(Nanos::from_micros(10 * base)),
                cycle_time: Nanos::new(cycle_time),
                // A list that is too short for the shortest cycle needs an extension that covers it.
                cycle_time_extension: Nanos::new(extension.max((cycle_time - sum).abs())),
                control_list,
                ..StreamGate::default()
            }
        })
}

proptest! {
    #![proptest_config(crate::cases(10))]

    #[test]
    fn agrees_with_the_reference_through_changes(
        first in small_gate(),
        events in prop::collection::vec((0u64..4, prop::option::weighted(0.15, (small_gate(), 0i64..60)), 1u32..150), 1..100),
    ) {
        let (mut police, mut theirs) = (gated(first.clone()), reference::Gate::new(&first));
        let mut now = 900 * MICRO;
        for (tens, change, octets) in events {
            now += 10 * tens * MICRO;
            if let Some((mut gate, ahead)) = change {
                if ahead > 30 {
                    gate.base_time = Tai::from_nanos(now).saturating_add(Nanos::from_micros(10 * (ahead - 30)));
                }
                let program = Box::new(StreamGateProgram::new(&gate).unwrap());
                police.set_stream_gate(0, program, at(now));
                theirs.set(&gate, now);
            }
            let judged = police.judge(None, priority(2), octets, octets, at(now));
            let expected = theirs.judge(priority(2), octets, now);
            prop_assert_eq!(judged, expected.map_or(Judged::Drop(DropReason::Policed), |priority| Judged::Pass { priority }));
            prop_assert_eq!(police.config_change_error(0), Some(theirs.config_change_error));
        }
    }
}
