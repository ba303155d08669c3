// SPDX-License-Identifier: Apache-2.0
//! Snapshots with everything in them, and their text.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ktsn_proto::v1;
use ktsn_time::Nanos;

use super::*;
use crate::stats::{AttachmentStats, PortStats};

fn attachment(name: &str) -> AttachmentSnapshot {
    let stats = AttachmentStats::default();
    stats.taken.store(11, Relaxed);
    stats.sent.store(10, Relaxed);
    stats.drop_frame(DropReason::Missed);
    stats.bypassed[0].store(4, Relaxed);
    stats.clients_refused[0].store(2, Relaxed);
    for span in [100, 700, 700, 3_000, 200_000_000] {
        stats.transmit_error.record(Nanos::new(span));
    }
    stats.capture_lag.record(Nanos::new(30_000));
    let counts = v1::ReceiveCounts { expected: 100, hit: 90, early: 7, missed: 3, spun_ns: 2_500_000_000 };
    AttachmentSnapshot {
        name: name.to_owned(),
        clients: 3,
        stats: Arc::new(stats),
        ingress: Some(v1::IngressStatistics {
            taken: 5,
            left: BTreeMap::from([("fragment".to_owned(), 1)]),
            ..Default::default()
        }),
        receive: Some(v1::ReceiveStatistics { counts: Some(counts), processes: 2, granted_permille: 150 }),
        deferral: Some(v1::Deferral { for_ns: 61_000_000_000, longest_hand_over_ns: 512_000 }),
    }
}

fn snapshot(name: &str) -> Snapshot {
    let port = PortStats::default();
    port.frames[6].store(9, Relaxed);
    port.refused[1].store(4, Relaxed);
    let worker = WorkerStats::default();
    worker.spin_ns.store(1_500_000_000, Relaxed);
    worker.bugs.store(77, Relaxed);
    let thread =
        v1::ThreadState { name: "ktsn-worker".to_owned(), device: "eth0".to_owned(), ..Default::default() };
    let clock = v1::ClockState { source: "kernel".to_owned(), is_good: true, ..Default::default() };
    Snapshot {
        health: v1::HealthReply {
            serving: true,
            tai_offset_seconds: 37,
            threads: vec![thread],
            clock: Some(clock),
            ..Default::default()
        },
        attachments: vec![attachment(name)],
        ports: vec![PortSnapshot {
            device: "eth0".to_owned(),
            up: true,
            link_speed: 1_000_000_000,
            stats: Arc::new(port),
        }],
        workers: vec![("eth0".to_owned(), Arc::new(worker))],
    }
}

#[test]
fn every_metric_of_the_table_is_served_with_its_kind_and_labels() {
    let text = render(Some(snapshot("pod")));
    for metric in table().metrics.iter().filter(|metric| metric.by == By::Both) {
        let family = format!("{PREFIX}{}", metric.name.trim_end_matches("_total"));
        let kind = format!("# TYPE {family} {}\n", metric.kind.word());
        assert!(text.contains(&kind), "{kind}");
        assert!(text.contains(&format!("# HELP {family} {}\n", metric.help)), "{family}");
        let sample = text.lines().find(|line| line.starts_with(&format!("{PREFIX}{}", metric.name)));
        let sample = sample.unwrap_or_else(|| panic!("no sample of {}", metric.name));
        let labels: BTreeSet<&str> = sample
            .split_once('{')
            .and_then(|(_, rest)| rest.split_once('}'))
            .map(|(labels, _)| labels.split(',').filter_map(|label| label.split('=').next()).collect())
            .unwrap_or_default();
        assert_eq!(labels, metric.labels.iter().copied().collect(), "{sample}");
    }
    // A name that no match knows would be shown as bugs.
    assert_eq!(text.lines().filter(|line| line.ends_with(" 77")).count(), 1, "{text}");
    assert_eq!(served().len(), text.lines().filter(|line| line.starts_with("# TYPE")).count());
    assert!(text.ends_with("\n# EOF\n"));
}

#[test]
fn values_are_in_base_units() {
    let text = render(Some(snapshot("pod")));
    for line in [
        "ktsn_up 1.0",
        "ktsn_clock_tai_offset_seconds 37.0",
        "ktsn_frames_dropped_total{attachment=\"pod\",reason=\"missed\"} 1",
        "ktsn_receive_spun_seconds_total{attachment=\"pod\"} 2.5",
        "ktsn_receive_granted_cpus{attachment=\"pod\"} 0.15",
        "ktsn_deferred_seconds{attachment=\"pod\"} 61.0",
        "ktsn_port_link_speed_octets_per_second{port=\"eth0\"} 125000000.0",
        "ktsn_port_frames_total{port=\"eth0\",class=\"6\"} 9",
        "ktsn_worker_spin_seconds_total{port=\"eth0\"} 1.5",
        "ktsn_transmit_error_seconds_bucket{le=\"2.5e-7\",attachment=\"pod\"} 1",
        "ktsn_transmit_error_seconds_bucket{le=\"0.000001\",attachment=\"pod\"} 3",
        "ktsn_transmit_error_seconds_bucket{le=\"0.1\",attachment=\"pod\"} 4",
        "ktsn_transmit_error_seconds_bucket{le=\"+Inf\",attachment=\"pod\"} 5",
        "ktsn_transmit_error_seconds_count{attachment=\"pod\"} 5",
    ] {
        assert!(text.lines().any(|found| found == line), "{line}\n{text}");
    }
}

#[test]
fn no_name_breaks_the_text() {
    let text = render(Some(snapshot("a\"b\\c\nktsn_up 0\u{1b}[2J")));
    assert!(text.contains("ktsn_clients{attachment=\"a\\\"b\\\\c\\nktsn_up 0\u{1b}[2J\"} 3.0\n"), "{text}");
    assert!(!text.lines().any(|line| line.starts_with("ktsn_up 0")));
}

#[test]
fn a_control_thread_that_does_not_answer_is_shown_as_down() {
    let text = render(None);
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples, ["ktsn_up 0.0", "ktsn_healthy 0.0"]);
}
