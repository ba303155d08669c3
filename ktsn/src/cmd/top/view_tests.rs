// SPDX-License-Identifier: Apache-2.0
//! Two statistics, and what is said of the time between them.

use hdrhistogram::serialization::{Serializer as _, V2Serializer};

use super::*;

fn histogram(values: &[u64]) -> v1::Histogram {
    let mut all = Histogram::<u64>::new_with_bounds(1, 1_000_000_000, 3).unwrap();
    for value in values {
        all.record(*value).unwrap();
    }
    let mut hdr_v2 = Vec::new();
    V2Serializer::new().serialize(&all, &mut hdr_v2).unwrap();
    v1::Histogram { hdr_v2, count: all.len(), ..Default::default() }
}

fn statistics(at: u64, frames: u64, errors: &[u64], dropped: &[(&str, u64)]) -> v1::StatisticsReply {
    v1::StatisticsReply {
        at_monotonic_ns: at,
        attachments: vec![v1::AttachmentStatistics {
            name: "pod-a".to_owned(),
            taken: frames,
            sent: frames,
            sent_octets: frames * 125,
            late: frames / 10,
            dropped: dropped.iter().map(|(word, count)| ((*word).to_owned(), *count)).collect(),
            transmit_error: Some(histogram(errors)),
            ..Default::default()
        }],
        workers: vec![v1::WorkerStatistics {
            uplink: "eth0".to_owned(),
            wake_ups: frames,
            spin_ns: at / 20,
            spin_margin_ns: 38_000,
            ..Default::default()
        }],
        detached: None,
        ports: vec![v1::PortStatistics {
            device: "eth0".to_owned(),
            frames: vec![0, frames],
            ..Default::default()
        }],
    }
}

fn view(before: &v1::StatisticsReply, after: &v1::StatisticsReply) -> View {
    let health = v1::HealthReply { serving: true, clock_synchronised: false, ..Default::default() };
    let list = v1::ListReply {
        ports: vec![v1::Port { device: "eth0".to_owned(), up: true, ..Default::default() }],
        attachments: vec![v1::AttachmentState {
            name: "pod-a".to_owned(),
            clients: vec![v1::Client {
                pid: 1,
                streams: vec![v1::Stream::default(); 3],
                ..Default::default()
            }],
            ..Default::default()
        }],
    };
    View::between(before, after, &health, &list)
}

#[test]
fn rates_and_percentiles_are_those_of_the_interval() {
    let before = statistics(1_000_000_000, 5_000, &[900_000; 50], &[("missed", 7)]);
    let errors: Vec<u64> = std::iter::repeat_n(900_000, 50).chain(1..=100).collect();
    let after = statistics(3_000_000_000, 7_000, &errors, &[("missed", 7), ("queue_full", 5)]);
    let view = view(&before, &after);
    let json = view.json();
    assert_eq!(
        (json["interval_ns"].as_u64(), json["clock_synchronised"].as_bool()),
        (Some(2_000_000_000), Some(false))
    );
    let of = &json["attachments"][0];
    assert_eq!((of["sent_per_second"].as_f64(), of["late_per_second"].as_f64()), (Some(1000.0), Some(100.0)));
    assert_eq!(
        of["dropped_per_second"],
        json!({ "queue_full": 2.5 }),
        "what was dropped before is not of now"
    );
    assert_eq!(of["streams"], 3);
    // The 900 µs were before.
    assert_eq!(of["transmit_error_ns"], json!({ "p50": 50, "p99": 99, "max": 100 }));
    assert_eq!(
        (json["ports"][0]["frames_per_second"].as_f64(), json["ports"][0]["up"].as_bool()),
        (Some(1000.0), Some(true))
    );
    assert_eq!(json["workers"][0]["spin_ratio"].as_f64(), Some(0.05));
    let table = view.table();
    for said in [
        "NOT SYNCHRONISED",
        "2.00 s interval",
        "1000",
        "1.00 ",
        "queue_full 2.5",
        "50 ns",
        "5.0 %",
        "38.00 µs",
    ] {
        assert!(table.contains(said), "{said}: {table}");
    }
    assert!(!table.contains("missed"), "{table}");
    let line = view.line();
    assert!(
        !line.contains('\n') && line.contains("sent 1000 late 100") && line.contains("p99 99 ns"),
        "{line}"
    );
}

/// A ktsnd that was restarted, and a new attachment.
#[test]
fn what_began_anew_counts_from_nothing() {
    let before = statistics(1_000_000_000, 5_000, &[5; 50], &[("missed", 7)]);
    let after = statistics(2_000_000_000, 20, &[8; 3], &[("missed", 2)]);
    let of = &view(&before, &after).json()["attachments"][0];
    assert_eq!(of["sent_per_second"].as_f64(), Some(20.0));
    assert_eq!(of["dropped_per_second"], json!({ "missed": 2.0 }));
    assert_eq!(of["transmit_error_ns"]["p50"], 8);
    let nothing = v1::StatisticsReply { at_monotonic_ns: 1_000_000_000, ..Default::default() };
    let of = &view(&nothing, &after).json()["attachments"][0];
    assert_eq!(of["sent_per_second"].as_f64(), Some(20.0));
    let idle = view(&after, &statistics(3_000_000_000, 20, &[8; 3], &[("missed", 2)]));
    assert_eq!(idle.json()["attachments"][0]["transmit_error_ns"], Value::Null);
    assert!(idle.line().contains("nothing timed sent"), "{}", idle.line());
}

#[test]
fn small_rates_have_tenths() {
    let view = view(&statistics(0, 0, &[], &[]), &statistics(10_000_000_000, 15, &[1], &[]));
    assert_eq!(
        (view.rate(15), view.rate(0), view.rate(100), view.rate(99)),
        ("1.5".into(), "0".into(), "10".into(), "9.9".into())
    );
}

/// Expected arrivals have a table of their own, of the attachments that have any.
#[test]
fn expected_arrivals_are_rates() {
    let with = |at: u64, expected: u64| {
        let counts =
            v1::ReceiveCounts { expected, hit: expected / 2, spun_ns: at / 50, ..Default::default() };
        let mut reply = statistics(at, 0, &[], &[]);
        reply.attachments[0].receive =
            Some(v1::ReceiveStatistics { counts: Some(counts), processes: 2, granted_permille: 200 });
        reply
    };
    let plain = view(&statistics(0, 0, &[], &[]), &statistics(1_000_000_000, 0, &[], &[]));
    assert!(!plain.table().contains("expected arrivals"), "{}", plain.table());
    assert_eq!(plain.json()["attachments"][0]["receive"], Value::Null);
    let shown = view(&with(1_000_000_000, 100), &with(3_000_000_000, 300));
    let table = shown.table();
    let head = table.lines().position(|line| line.contains("expected arrivals")).expect("its head");
    let row: Vec<&str> = table.lines().nth(head + 1).expect("its row").split_whitespace().collect();
    assert_eq!(row, ["pod-a", "2", "100", "50", "0", "0", "2.0", "%"], "{table}");
    let json = shown.json();
    assert_eq!(json["attachments"][0]["receive"]["expected_per_second"], 100.0);
    assert_eq!(json["attachments"][0]["receive"]["spin_ratio"], 0.02);
}
