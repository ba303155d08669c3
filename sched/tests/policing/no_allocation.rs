// SPDX-License-Identifier: Apache-2.0
//! Nothing allocates or frees once everything is made, changes of gates included.

use crate::{at, priority, sys};
use ktsn_sched::policing::{
    FlowKey, FlowMeter, FrameKey, Judged, Police, PolicingConfig, StreamFilter, StreamGate, StreamGateEntry,
    StreamGateProgram, StreamGateState, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch,
};
use ktsn_time::Nanos;
use std::net::Ipv4Addr;

#[test]
fn nothing_allocates_after_new() {
    let entry = |state, micros| StreamGateEntry {
        state,
        ipv: None,
        interval: Nanos::from_micros(micros),
        interval_octet_max: Some(2_000),
    };
    let gate = StreamGate {
        gate_enabled: true,
        cycle_time: Nanos::from_micros(100),
        control_list: vec![entry(StreamGateState::Open, 50), entry(StreamGateState::Closed, 50)],
        ..StreamGate::default()
    };
    let filter = |n: u32| StreamFilter {
        stream: Some(StreamHandle(n)),
        stream_gate: Some(0),
        flow_meter: Some(n as usize % 2),
        ..StreamFilter::default()
    };
    let meter = FlowMeter {
        committed_information_rate: 50_000_000,
        committed_burst_size: 1_542,
        ..FlowMeter::default()
    };
    let mut police = Police::new(&PolicingConfig {
        stream_filters: (0..256).map(filter).collect(),
        stream_gates: vec![gate.clone()],
        flow_meters: vec![meter; 2],
    })
    .unwrap();
    let entries: Vec<_> = (0..256u16)
        .map(|n| StreamIdentity {
            matches: StreamMatch::Ip {
                attachment: None,
                source: None,
                destination: None,
                protocol: Some(17),
                source_port: None,
                destination_port: Some(n),
            },
            stream: StreamHandle(n.into()),
        })
        .collect();
    let table = StreamIdentification::new(&entries).unwrap();
    let mut programs: Vec<_> = (0..20).map(|_| Box::new(StreamGateProgram::new(&gate).unwrap())).collect();
    let mut freed_elsewhere = Vec::with_capacity(100);
    let before = sys::allocations();
    let (mut passed, mut dropped) = (0, 0);
    for n in 0..20_000u64 {
        let now = at(1_000_000 + n * 7_919);
        let flow = FlowKey {
            source: Ipv4Addr::LOCALHOST.into(),
            destination: Ipv4Addr::LOCALHOST.into(),
            protocol: 17,
            source_port: Some(1),
            destination_port: Some((n % 300) as u16),
        };
        let key = FrameKey { attachment: 0, destination: [2; 6], vlan: None, flow: Some(flow) };
        match police.judge(table.identify(&key), priority(3), 1_000, 1_038, now) {
            Judged::Pass { .. } => passed += 1,
            Judged::Drop(_) => dropped += 1,
        }
        if n % 1_000 == 0 {
            let program = programs.pop().unwrap();
            freed_elsewhere.extend(police.set_stream_gate(0, program, now));
        }
    }
    let after = sys::allocations();
    assert_eq!(after, before);
    assert!(passed > 1_000 && dropped > 1_000, "{passed} passed, {dropped} dropped");
    assert!(freed_elsewhere.len() >= 18);
}
