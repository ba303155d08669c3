// SPDX-License-Identifier: Apache-2.0
//! The ends of all ranges: instants up to 2^64 − 1, cycles and extensions that pass it, clocks that jump from one end to the
//! other. Nothing overflows (tests are built with overflow checks), and no answer lies in the past.

use ktsn_model::{
    AdminPort, GateControlEntry, GateOperation, GateStates, LatePolicy, Priority, TrafficClass,
};
use ktsn_sched::policing::{
    Police, PolicingConfig, StreamFilter, StreamGate, StreamGateEntry, StreamGateProgram, StreamGateState,
};
use ktsn_sched::{
    ClassOptions, CreditOptions, Decision, Frame, FrameId, GateProgram, Shaper, TimeAware, TimeAwareOptions,
};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
use proptest::prelude::*;

/// Any instant, most of them near an end.
fn instant() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0u64..2_000).prop_map(|back| u64::MAX - back),
        1 => Just(u64::MAX),
        1 => 0u64..2_000,
        1 => any::<u64>(),
    ]
}

fn span() -> impl Strategy<Value = i64> {
    prop_oneof![2 => 1i64..500, 1 => (0i64..50).prop_map(|back| i64::MAX - back), 1 => 1..=i64::MAX]
}

fn admin() -> impl Strategy<Value = AdminPort> {
    let entries = prop::collection::vec((any::<u8>(), span()), 0..4);
    (any::<bool>(), any::<u8>(), instant(), span(), prop_oneof![Just(0), span()], entries).prop_map(
        |(gate_enabled, states, base_time, cycle_time, extension, entries)| AdminPort {
            gate_enabled,
            gate_states: GateStates::from_bits(states),
            base_time: Tai::from_nanos(base_time),
            cycle_time: Nanos::new(cycle_time),
            cycle_time_extension: Nanos::new(extension),
            control_list: entries
                .into_iter()
                .map(|(states, interval)| GateControlEntry {
                    operation: GateOperation::SetGateStates,
                    states: GateStates::from_bits(states),
                    interval: Nanos::new(interval),
                })
                .collect(),
        },
    )
}

#[derive(Clone, Debug)]
enum Call {
    Configure(AdminPort),
    Offer { class: u8, tx_time: Option<(bool, u64)>, octets: u32, horizon: i64, deadline: bool },
    Decide,
    Status,
    HandOver(i64),
    Speed(Option<u64>),
}

fn call() -> impl Strategy<Value = Call> {
    let tx_time = prop::option::of((any::<bool>(), instant()));
    let octets = prop_oneof![0u32..2_000, Just(u32::MAX)];
    let offer = (0u8..8, tx_time, octets, prop_oneof![Just(i64::MAX), 0i64..1_000], any::<bool>()).prop_map(
        |(class, tx_time, octets, horizon, deadline)| Call::Offer {
            class,
            tx_time,
            octets,
            horizon,
            deadline,
        },
    );
    prop_oneof![
        2 => admin().prop_map(Call::Configure),
        4 => offer,
        4 => Just(Call::Decide),
        1 => Just(Call::Status),
        1 => prop_oneof![Just(i64::MIN), Just(i64::MAX), 0i64..1_000].prop_map(Call::HandOver),
        1 => prop::option::of(prop_oneof![Just(1u64), Just(u64::MAX), Just(1_000_000_000)]).prop_map(Call::Speed),
    ]
}

fn frame(id: u64, call: &Call, now: Now) -> Option<Frame> {
    let Call::Offer { class, tx_time, octets, horizon, deadline } = *call else { return None };
    Some(Frame {
        id: FrameId(id),
        attachment: 0,
        class: TrafficClass::new(class).ok()?,
        tx_time: tx_time.map(|(is_tai, at)| {
            if is_tai {
                TxTime::Tai(Tai::from_nanos(at))
            } else {
                TxTime::Monotonic(Monotonic::from_nanos(at))
            }
        }),
        pushed_at: now.monotonic,
        wire_octets: octets,
        sdu_octets: octets,
        late: if deadline { LatePolicy::Deadline } else { LatePolicy::Send },
        overrun_limit: Nanos::MAX,
        horizon: Nanos::new(horizon),
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn clause_8_6_9_nothing_overflows_at_the_ends_of_time(
        is_shaped in any::<bool>(),
        calls in prop::collection::vec((call(), instant(), instant()), 1..24),
    ) {
        let shaper =
            if is_shaped { Shaper::CreditBased(CreditOptions::new(1_000_000)) } else { Shaper::StrictPriority };
        let mut gates = TimeAware::new(TimeAwareOptions {
link_speed: Some(1_000_000_000),
hand_over: Nanos::new(500),
classes: [ClassOptions { shaper, ..ClassOptions::default() }; TrafficClass::COUNT],
..TimeAwareOptions::gates(64, 4)
});
        for (id, (call, tai, monotonic)) in calls.iter().enumerate() {
            let now = Now { tai: Tai::from_nanos(*tai), monotonic: Monotonic::from_nanos(*monotonic) };
            match call {
                Call::Configure(admin) => {
                    if let Ok(program) = GateProgram::new(admin) {
                        drop(gates.set_admin(Box::new(program), now));
                    }
                }
                Call::Offer { .. } => {
                    let offered = frame(id as u64, call, now).map(|frame| gates.offer(frame, now));
                    prop_assert!(offered.is_some());
                }
                Call::Decide => {
                    if let Decision::WakeAt { at, .. } = gates.decide(now) {
                        prop_assert!(at.ahead_of(now) >= Nanos::ZERO, "{at:?} lies before {now:?}");
                    }
                }
                Call::Status => prop_assert!(gates.status(now).config_change_error <= calls.len() as u64),
                Call::HandOver(span) => gates.set_hand_over(Nanos::new(*span)),
                Call::Speed(speed) => gates.set_link_speed(*speed),
            }
        }
    }

    #[test]
    fn clause_8_6_10_nothing_overflows_in_a_stream_gate(
        gates in prop::collection::vec((any::<bool>(), 0u64..1 << 62, 0i64..1_000_000), 1..3),
        instants in prop::collection::vec((instant(), instant(), any::<bool>()), 1..24),
    ) {
        let made = |&(gate_enabled, base_time, extension): &(bool, u64, i64)| StreamGate {
            gate_enabled,
            base_time: Tai::from_nanos(base_time),
            cycle_time: Nanos::from_micros(50),
            cycle_time_extension: Nanos::new(extension),
            control_list: [StreamGateState::Open, StreamGateState::Closed]
                .map(|state| StreamGateEntry {
                    state,
                    ipv: None,
                    interval: Nanos::from_micros(25),
                    interval_octet_max: Some(u32::MAX),
                })
                .to_vec(),
            ..StreamGate::default()
        };
        let mut police = Police::new(&PolicingConfig {
            stream_filters: vec![StreamFilter { stream_gate: Some(0), ..StreamFilter::default() }],
            stream_gates: vec![made(&gates[0])],
            ..PolicingConfig::default()
        }).unwrap();
        for (tai, monotonic, is_change) in instants {
            let now = Now { tai: Tai::from_nanos(tai), monotonic: Monotonic::from_nanos(monotonic) };
            if is_change {
                let program = StreamGateProgram::new(&made(&gates[gates.len() - 1])).unwrap();
                drop(police.set_stream_gate(0, Box::new(program), now));
                drop(police.take_retired(0));
            }
            police.judge(None, Priority::capped(0), u32::MAX, u32::MAX, now);
        }
        let seen = police.counters(0).unwrap();
        prop_assert_eq!(seen.matching_frames, seen.passing_frames + seen.not_passing_frames);
    }
}
