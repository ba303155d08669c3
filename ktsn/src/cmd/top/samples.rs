// SPDX-License-Identifier: Apache-2.0
//! Intervals for the tests of the screen.

use hdrhistogram::Histogram;
use hdrhistogram::serialization::{Serializer as _, V2Serializer};
use ktsn_proto::v1;

use super::rows::Interval;
use super::view::View;

/// A distribution of these transmit errors.
pub(super) fn histogram(values: &[u64]) -> v1::Histogram {
    let mut all = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
    values.iter().for_each(|value| all.record(*value).unwrap());
    let mut hdr_v2 = Vec::new();
    V2Serializer::new().serialize(&all, &mut hdr_v2).unwrap();
    v1::Histogram { hdr_v2, count: all.len(), ..Default::default() }
}

/// An interval of a second in which each attachment sent so many frames, with one transmit error of so many nanoseconds.
pub(super) fn interval(attachments: &[(&str, u64, u64)]) -> Interval {
    let counted = |(name, sent, error): &(&str, u64, u64)| v1::AttachmentStatistics {
        name: (*name).to_owned(),
        taken: *sent,
        sent: *sent,
        transmit_error: Some(if *error == 0 { histogram(&[]) } else { histogram(&[*error]) }),
        ..Default::default()
    };
    let listed = |(name, ..): &(&str, u64, u64)| v1::AttachmentState {
        name: (*name).to_owned(),
        clients: vec![v1::Client {
            pid: 77,
            streams: vec![v1::Stream { cookie: 5, local: "10.244.0.5:7000".to_owned(), peer: String::new() }],
            ..Default::default()
        }],
        ..Default::default()
    };
    let port = |frames| v1::PortStatistics { device: "eth1".to_owned(), frames, ..Default::default() };
    let after = v1::StatisticsReply {
        at_monotonic_ns: 2_000_000_000,
        attachments: attachments.iter().map(counted).collect(),
        ports: vec![port(vec![0, 0, 0, 0, 0, 0, 1234, 0])],
        ..Default::default()
    };
    let before = v1::StatisticsReply {
        at_monotonic_ns: 1_000_000_000,
        ports: vec![port(vec![0; 8])],
        ..Default::default()
    };
    let list = v1::ListReply {
        ports: vec![v1::Port { device: "eth1".to_owned(), up: true, ..Default::default() }],
        attachments: attachments.iter().map(listed).collect(),
    };
    let health = v1::HealthReply { serving: true, clock_synchronised: true, ..Default::default() };
    let entry = |gate_states_value, time_interval_value| v1::GateControlEntry {
        gate_states_value,
        time_interval_value,
        ..Default::default()
    };
    let oper = v1::GateParameters {
        cycle_time: 1_000_000,
        control_list: vec![entry(0b100_0000, 500_000), entry(0b1, 500_000)],
        ..Default::default()
    };
    let gates = v1::ScheduleState {
        port: "eth1".to_owned(),
        name: "line".to_owned(),
        gate_enabled: true,
        oper: Some(oper),
        ..Default::default()
    };
    Interval { view: View::between(&before, &after, &health, &list), gates: vec![gates] }
}
