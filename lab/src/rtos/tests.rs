// SPDX-License-Identifier: Apache-2.0
//! Tests of `rtos` without a guest: lines, figures, bars, refusals.

use super::*;
use ktsn_measure::results::{CheckOutcome, Comparison};

fn plan() -> Plan {
    Plan {
        rounds: 3,
        trips: 100,
        stream_mib: 1,
        tcp_kib: vec![16, 128],
        posted: vec![1, 8, 255],
        usual_posted: 8,
        dropping_posted: vec![64, 255],
        backends: vec![Backend::User, Backend::VhostUser],
        workspace: PathBuf::from("/nowhere"),
        setup: Setup::nowhere(),
    }
}

fn trips(path: &str, trips_ns: Vec<i64>) -> Run {
    let messages = trips_ns.len() as u64;
    let (path, load) = (path.to_owned(), PING_PONG.to_owned());
    Run {
        path,
        load,
        payload_octets: 1,
        round: 1,
        trips_ns,
        messages,
        interrupts: 2 * messages,
        ..Run::default()
    }
}

fn stream(posted: u64, nanoseconds: u64) -> Run {
    Run {
        path: FREERTOS.to_owned(),
        load: RECEIVE.to_owned(),
        payload_octets: 1448,
        round: 1,
        tcp_octets: 131_072,
        posted_max: Some(posted),
        octets: Some(1_000_000),
        nanoseconds: Some(nanoseconds),
        messages: 690,
        interrupts: 69,
        posted_peak_octets: Some(posted * 1536),
        ..Run::default()
    }
}

fn judged(runs: &[Run]) -> Document {
    let mut document = Document::new("rtos", Vec::new());
    document.add_series(runs.iter().map(figures));
    bars::compare(&mut document);
    document
}

fn comparison<'a>(document: &'a Document, metric: &str) -> &'a Comparison {
    document.comparisons.iter().find(|comparison| comparison.metric == metric).unwrap()
}

#[test]
fn lines_of_the_program_are_read() {
    assert_eq!(harness::read(r#"{"step": "round 1"}"#).unwrap(), Line::Step("round 1".to_owned()));
    let line = r#"{"run": {"path": "linux", "round": 2, "tcp_octets": 65536, "posted_max": null, "load": "receive",
        "payload_octets": 1448, "octets": 1000, "nanoseconds": 8000, "messages": 10, "interrupts": 5}}"#;
    let Line::Run(run) = harness::read(line).unwrap() else { panic!("this is a run") };
    let series = figures(&run);
    assert_eq!(
        (series.bit_rate, series.interrupts_per_message, series.posted_max),
        (Some(1e9), Some(0.5), None)
    );
    assert_eq!((series.latency_ns, records(&run)), (None, None));
    let missing = harness::read(r#"{"missing": {"what": "no qemu", "remedy": "apt-get install qemu"}}"#);
    let error = missing.unwrap_err();
    assert_eq!(error.exit_status(), 3);
    assert!(error.to_string().contains("apt-get install qemu"), "{error}");
    for wrong in ["Traceback", "{}", r#"{"run": {"path": "linux"}}"#] {
        assert!(matches!(harness::read(wrong), Err(LabError::Contents { .. })), "{wrong}");
    }
}

#[test]
fn round_trips_become_records_one_after_the_other() {
    let run = trips(LINUX, vec![5, 7, 9]);
    let latency = figures(&run).latency_ns.unwrap();
    assert_eq!((latency.min, latency.p50, latency.max), (5, 7, 9));
    let records = records(&run).unwrap().records;
    assert_eq!(
        (records[2].tx_time, records[2].received_at),
        (Tai::from_nanos(12), Some(Tai::from_nanos(21)))
    );
}

#[test]
fn the_round_trip_has_two_bars() {
    let document = judged(&[trips(FREERTOS, vec![80, 80, 160]), trips(LINUX, vec![100, 100, 300])]);
    let median = comparison(&document, "latency_ns.p50");
    assert_eq!((median.ratio, median.holds), (Some(0.8), Some(true)));
    assert_eq!(comparison(&document, "latency_ns.max/p50").holds, Some(true));
    let document = judged(&[trips(FREERTOS, vec![81, 81, 243]), trips(LINUX, vec![100, 100, 300])]);
    assert_eq!(comparison(&document, "latency_ns.p50").holds, Some(false));
    // As wide as Linux's is not lower.
    assert_eq!(comparison(&document, "latency_ns.max/p50").holds, Some(false));
    assert!(judged(&[trips(FREERTOS, vec![1])]).comparisons.is_empty());
}

#[test]
fn guests_are_compared_behind_the_same_backend() {
    let runs = [
        trips(FREERTOS, vec![80]),
        trips(LINUX_SWITCH, vec![100]),
        trips(FREERTOS_SWITCH, vec![90, 90, 120]),
    ];
    assert!(judged(&runs[..2]).comparisons.is_empty());
    let document = judged(&runs);
    let compared: Vec<_> =
        document.comparisons.iter().map(|one| (one.of.as_str(), one.to.as_deref(), one.holds)).collect();
    let pair = |holds| (FREERTOS_SWITCH, Some(LINUX_SWITCH), Some(holds));
    assert_eq!(compared, [pair(false), pair(false)]);
}

#[test]
fn memory_counts_where_the_bandwidth_is_reached() {
    let document = judged(&[stream(255, 1000), stream(32, 1052), stream(8, 1100), stream(64, 900)]);
    let memory = comparison(&document, "posted_peak_octets");
    assert_eq!((memory.ratio, memory.holds), (Some(32.0 * 1536.0), Some(true)));
    let check = &document.checks[0];
    assert_eq!(check.outcome, CheckOutcome::Passed);
    assert!(check.reason.as_ref().unwrap().starts_with("with 32 posted"), "{check:?}");
    // 75 buffers and more save less than 400 KiB.
    assert_eq!(
        comparison(&judged(&[stream(255, 1000), stream(75, 1000)]), "posted_peak_octets").holds,
        Some(false)
    );
    let document = judged(&[stream(255, 1000), stream(8, 1100)]);
    assert_eq!(comparison(&document, "posted_peak_octets").holds, Some(false));
    assert_eq!(document.checks[0].outcome, CheckOutcome::Failed);
    assert!(judged(&[stream(8, 1000)]).comparisons.is_empty());
}

#[test]
fn configurations_are_series_of_their_own() {
    let document = judged(&[stream(1, 1000), stream(8, 1000), Run { round: 2, ..stream(8, 2000) }]);
    let all: Vec<_> = document.summary().iter().map(|series| (series.posted_max, series.bit_rate)).collect();
    assert_eq!(all, [(Some(1), Some(8e12)), (Some(8), Some(6e12))]);
}

#[test]
fn what_cannot_be_measured_is_named() {
    plan().check().unwrap();
    assert_eq!(plan().guests(), 4 + 2 + 2 + 2);
    assert_eq!(Plan { backends: vec![Backend::VhostUser], ..plan() }.guests(), 2 + 2);
    for (wrong, text) in [
        (Plan { tcp_kib: vec![512], ..plan() }, "tcp: 512: expected 2 to 256"),
        (Plan { posted: vec![8, 8], ..plan() }, "posted: 8 is named twice"),
        (Plan { posted: vec![256], ..plan() }, "posted: 256: expected 1 to 255"),
        (Plan { tcp_kib: Vec::new(), ..plan() }, "tcp: expected one number at least"),
        (Plan { rounds: 0, ..plan() }, "rounds: 0"),
        (Plan { dropping_posted: vec![0], ..plan() }, "dropping-posted: 0: expected 1 to 255"),
        (Plan { backends: Vec::new(), ..plan() }, "backend: expected one at least"),
        (Plan { backends: vec![Backend::User; 2], ..plan() }, "backend: user is named twice"),
    ] {
        let error = wrong.check().unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let error = run(&plan(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("/nowhere/virtio-net/test/experiments.py does not exist"), "{error}");
}
