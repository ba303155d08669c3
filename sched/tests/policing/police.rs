// SPDX-License-Identifier: Apache-2.0
//! Filters, gates and meters together: by example, and in random worlds against the reference.

use crate::meter::rates;
use crate::reference::Reference;
use crate::{at, priority};
use ktsn_model::{DropReason, Priority};
use ktsn_sched::policing::{
    FlowMeter, Judged, Police, PolicingConfig, StreamFilter, StreamGate, StreamGateEntry, StreamGateProgram,
    StreamGateState, StreamHandle, Tripped,
};
use ktsn_time::{Monotonic, Nanos, Now, Tai};
use proptest::prelude::*;

const POLICED: Judged = Judged::Drop(DropReason::Policed);

fn police(stream_filters: Vec<StreamFilter>) -> Police {
    Police::new(&PolicingConfig { stream_filters, ..PolicingConfig::default() }).unwrap()
}

#[test]
fn clause_8_6_5_3_the_first_filter_that_matches_stream_and_priority_decides() {
    let only = |stream: Option<u32>, wanted: Option<u32>| StreamFilter {
        stream: stream.map(StreamHandle),
        priority: wanted.map(Priority::capped),
        ..StreamFilter::default()
    };
    let mut police = police(vec![only(Some(1), Some(3)), only(None, Some(5)), only(Some(1), None)]);
    for (stream, value) in [(Some(1), 3), (Some(1), 5), (Some(1), 0), (Some(2), 5), (None, 5), (Some(2), 0)] {
        let judged = police.judge(stream.map(StreamHandle), priority(value), 46, 84, at(0));
        assert_eq!(judged, Judged::Pass { priority: priority(value) });
    }
    let matching = [0, 1, 2].map(|filter| police.counters(filter).unwrap().matching_frames);
    assert_eq!(matching, [1, 3, 1]);
    assert!(police.counters(3).is_none());
}

#[test]
fn clause_8_6_5_3_maximum_sdu_size() {
    let mut police = police(vec![StreamFilter { max_sdu_octets: Some(100), ..StreamFilter::default() }]);
    assert_eq!(police.judge(None, priority(0), 100, 138, at(0)), Judged::Pass { priority: priority(0) });
    assert_eq!(police.judge(None, priority(0), 101, 139, at(0)), POLICED);
    assert_eq!(police.judge(None, priority(0), 100, 138, at(0)), Judged::Pass { priority: priority(0) });
    let counters = police.counters(0).unwrap();
    assert_eq!((counters.matching_frames, counters.passing_sdu, counters.not_passing_sdu), (3, 2, 1));
}

#[test]
fn clause_8_6_5_3_stream_blocked_due_to_oversize_frame() {
    let mut police = police(vec![StreamFilter {
        max_sdu_octets: Some(100),
        blocked_due_to_oversize_frame_enabled: true,
        ..StreamFilter::default()
    }]);
    assert_eq!(police.judge(None, priority(0), 101, 139, at(0)), POLICED);
    assert_eq!(police.judge(None, priority(0), 10, 84, at(0)), POLICED);
    assert!(police.tripped(0).unwrap().blocked_due_to_oversize_frame);
    police.clear(0);
    assert_eq!(police.judge(None, priority(0), 10, 84, at(0)), Judged::Pass { priority: priority(0) });
    assert_eq!(police.tripped(0), Some(Tripped::default()));
}

#[test]
fn without_a_filter_that_matches_everything_passes() {
    let mut police = police(vec![]);
    let judged = police.judge(Some(StreamHandle(1)), priority(7), u32::MAX, u32::MAX, at(0));
    assert_eq!(judged, Judged::Pass { priority: priority(7) });
}

#[test]
fn what_a_gate_drops_takes_no_tokens() {
    let mut police = Police::new(&PolicingConfig {
        stream_filters: vec![
            StreamFilter {
                priority: Some(priority(1)),
                stream_gate: Some(0),
                flow_meter: Some(0),
                ..StreamFilter::default()
            },
            StreamFilter { flow_meter: Some(0), ..StreamFilter::default() },
        ],
        stream_gates: vec![StreamGate { gate_state: StreamGateState::Closed, ..StreamGate::default() }],
        flow_meters: vec![FlowMeter {
            committed_information_rate: 1,
            committed_burst_size: 100,
            ..FlowMeter::default()
        }],
    })
    .unwrap();
    assert_eq!(police.judge(None, priority(1), 100, 100, at(0)), POLICED);
    // The meter is shared: the other filter has its whole burst, once.
    assert_eq!(police.judge(None, priority(0), 100, 100, at(0)), Judged::Pass { priority: priority(0) });
    assert_eq!(police.judge(None, priority(0), 100, 100, at(0)), POLICED);
    assert_eq!(police.counters(1).unwrap().red_frames, 1);
}

#[test]
fn too_many_instances_are_a_fault() {
    let config = |count| PolicingConfig {
        stream_filters: vec![StreamFilter::default(); count],
        ..PolicingConfig::default()
    };
    assert!(Police::new(&config(256)).is_ok());
    assert_eq!(Police::new(&config(257)).unwrap_err().value, 257);
}

fn gate() -> impl Strategy<Value = StreamGate> {
    let state = || prop::sample::select(vec![StreamGateState::Open, StreamGateState::Closed]);
    let ipv = || prop::option::of((0u32..8).prop_map(Priority::capped));
    let entry = (state(), ipv(), 10i64..80, prop::option::of(0u32..400)).prop_map(
        |(state, ipv, micros, interval_octet_max)| StreamGateEntry {
            state,
            ipv,
            interval: Nanos::from_micros(micros),
            interval_octet_max,
        },
    );
    (
        (prop::bool::weighted(0.8), state(), ipv(), 0u64..3_000),
        prop::collection::vec(entry, 0..5),
        -40i64..40,
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    )
        .prop_map(|((gate_enabled, gate_state, ipv, base), control_list, more, invalid_rx, exceeded)| {
            let sum: i64 = control_list.iter().map(|entry| entry.interval.get()).sum();
            StreamGate {
                gate_enabled,
                gate_state,
                ipv,
                base_time: Tai::from_nanos(base * 1_000),
                cycle_time: Nanos::new((sum + more * 1_000).max(50_000)),
                cycle_time_extension: Nanos::from_micros(50),
                control_list,
                closed_due_to_invalid_rx_enabled: invalid_rx,
                closed_due_to_octets_exceeded_enabled: exceeded,
            }
        })
}

fn meter() -> impl Strategy<Value = FlowMeter> {
    (
        (0u64..100_000_000, 1u32..2_000, 0u64..100_000_000, 1u32..2_000),
        any::<(bool, bool)>(),
        prop::bool::weighted(0.1),
    )
        .prop_map(
            |((cir, cbs, eir, ebs), (coupling_flag, drop_on_yellow), mark_all_frames_red_enabled)| {
                let rates = rates((cir, cbs), (eir, ebs));
                FlowMeter { coupling_flag, drop_on_yellow, mark_all_frames_red_enabled, ..rates }
            },
        )
}

/// Three gates, two meters, and filters that name them or not.
fn config() -> impl Strategy<Value = PolicingConfig> {
    let filter = (
        prop::option::of((0u32..3).prop_map(StreamHandle)),
        prop::option::of((0u32..3).prop_map(Priority::capped)),
        prop::option::of(50u32..400),
        prop::bool::weighted(0.1),
        prop::option::of(0usize..3),
        prop::option::of(0usize..2),
    );
    let filter = filter.prop_map(|(stream, priority, max_sdu_octets, blocked, stream_gate, flow_meter)| {
        StreamFilter {
            stream,
            priority,
            max_sdu_octets,
            blocked_due_to_oversize_frame_enabled: blocked,
            stream_gate,
            flow_meter,
        }
    });
    (prop::collection::vec(filter, 0..8), prop::collection::vec(gate(), 3), prop::collection::vec(meter(), 2))
        .prop_map(|(stream_filters, stream_gates, flow_meters)| PolicingConfig {
            stream_filters,
            stream_gates,
            flow_meters,
        })
}

#[derive(Clone, Debug)]
enum Event {
    Frame { stream: Option<u32>, priority: u32, octets: u32 },
    Advance(u64),
    SetGate { gate: usize, admin: StreamGate },
    Clear(usize),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        12 => (prop::option::of(0u32..3), 0u32..4, 1u32..450)
            .prop_map(|(stream, priority, octets)| Event::Frame { stream, priority, octets }),
        8 => prop_oneof![0u64..10, 0u64..100_000, Just(10_000), Just(50_000)].prop_map(Event::Advance),
        1 => (0usize..3, gate()).prop_map(|(gate, admin)| Event::SetGate { gate, admin }),
        1 => (0usize..8).prop_map(Event::Clear),
    ]
}

proptest! {
    #![proptest_config(crate::cases(33))]

    #[test]
    fn agrees_with_the_reference(config in config(), events in prop::collection::vec(event(), 0..120)) {
        let (mut ours, mut theirs) = (Police::new(&config).unwrap(), Reference::new(&config));
        let (mut tai, offset) = (1_000_000u64, 37_000_000_000u64);
        for event in events {
            let now = Now { tai: Tai::from_nanos(tai), monotonic: Monotonic::from_nanos(tai + offset) };
            match event {
                Event::Frame { stream, priority: value, octets } => {
                    let (stream, frame_priority) = (stream.map(StreamHandle), priority(value));
                    let judged = ours.judge(stream, frame_priority, octets, octets + 38, now);
                    let expected = theirs.judge(stream, frame_priority, (octets, octets + 38), (tai, tai + offset));
                    prop_assert_eq!(judged, expected.map_or(POLICED, |priority| Judged::Pass { priority }));
                }
                Event::Advance(span) => tai += span,
                Event::SetGate { gate, admin } => {
                    let program = StreamGateProgram::new(&admin).unwrap();
                    let displaced = ours.set_stream_gate(gate, Box::new(program), now);
                    prop_assert!(displaced.is_none_or(|program| program.admin().check().is_ok()));
                    theirs.gates[gate].set(&admin, tai);
                }
                Event::Clear(filter) => {
                    ours.clear(filter);
                    if filter < config.stream_filters.len() {
                        theirs.clear(filter);
                    }
                }
            }
            for filter in 0..config.stream_filters.len() {
                let counters = *ours.counters(filter).unwrap();
                prop_assert_eq!(counters, theirs.counters(filter));
                prop_assert_eq!(counters.matching_frames, counters.passing_sdu + counters.not_passing_sdu);
                prop_assert_eq!(counters.passing_sdu, counters.passing_frames + counters.not_passing_frames);
                prop_assert_eq!(ours.tripped(filter), Some(theirs.tripped(filter)));
            }
            for gate in 0..3 {
                prop_assert_eq!(ours.config_change_error(gate), Some(theirs.gates[gate].config_change_error));
            }
        }
    }
}
