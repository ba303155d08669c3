// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::experiment::Setup;
use ktsn_measure::results::{Check, CheckOutcome, Document, Round, Series};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;

fn plan() -> Plan {
    Plan {
        experiment: "container",
        paths: Path::USUAL.to_vec(),
        payloads: vec![16, 64],
        loads: vec![Load::Idle],
        rounds: 3,
        frames: 10,
        period: Nanos::from_millis(1),
        lead: LEAD,
        setup: Setup::nowhere(),
    }
}

fn document(ktsn: Series) -> Document {
    let mut document = Document::new("container", Vec::new());
    let at = |path: Path, wire| Series {
        path: path.word().to_owned(),
        payload_octets: 64,
        load: Some(Load::Idle.word().to_owned()),
        wire_offset_ns: Some(Statistics { p50: wire, ..Statistics::default() }),
        ..Series::default()
    };
    document.add_rounds(vec![at(Path::Flannel, 30_000)]);
    document.add_rounds(vec![Series { round: Round::Number(1), ..ktsn }]);
    bars::compare(&mut document);
    document
}

fn good() -> Series {
    Series {
        path: Path::Ktsn.word().to_owned(),
        payload_octets: 64,
        load: Some(Load::Idle.word().to_owned()),
        frames_intended: Some(10),
        frames_sent: Some(10),
        lost: Some(0),
        early: Some(0),
        duplicates: Some(0),
        reordered: Some(0),
        wire_offset_ns: Some(Statistics { p50: 2_100, ..Statistics::default() }),
        ..Series::default()
    }
}

#[test]
fn wrong_plans_are_refused_by_field() {
    plan().check().unwrap();
    let cases: [(Plan, &str); 8] = [
        (Plan { lead: Nanos::from_millis(201), ..plan() }, "lead"),
        (Plan { loads: Vec::new(), ..plan() }, "a load"),
        (Plan { loads: vec![Load::Idle, Load::Idle], ..plan() }, "load: idle is named twice"),
        (Plan { payloads: vec![15], ..plan() }, "payload"),
        (Plan { payloads: vec![1450], ..plan() }, "overlay's MTU"),
        (Plan { rounds: 0, ..plan() }, "nothing to measure"),
        (Plan { period: Nanos::from_micros(10), ..plan() }, "period"),
        (Plan { paths: vec![Path::Bare, Path::Bare], ..plan() }, "bare is named twice"),
    ];
    for (wrong, word) in cases {
        let error = run(&wrong, &mut |_| ()).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
        assert_eq!(error.exit_status(), 2);
    }
    // Without daemon and library the path ktsn is not possible here, and the remedy says what to do.
    let error = run(&plan(), &mut |_| ()).unwrap_err();
    assert_eq!(error.exit_status(), 3);
    assert!(error.to_string().contains("make build"), "{error}");
}

#[test]
fn names_are_those_of_the_results() {
    for path in Path::ALL {
        assert_eq!(path.word().parse(), Ok(path));
    }
    assert!("ktsn-long".parse::<Path>().unwrap_err().to_string().contains("flannel-other"));
}

#[test]
fn bars_are_answered_for_the_paths_that_ran() {
    let document = document(good());
    let wire: Vec<_> = document.comparisons.iter().filter(|c| c.metric == "wire_offset_ns.p50").collect();
    assert_eq!(wire.len(), 1);
    assert!((wire[0].ratio.unwrap() - 0.07).abs() < 1e-9 && wire[0].holds == Some(true));
    // A figure that is missing holds no bar.
    assert!(
        bars::missed(&document).iter().any(|line| line.starts_with("transmit_error_ns.p50 ktsn: unknown"))
    );
    assert!(!bars::missed(&document).iter().any(|line| line.starts_with("wire_offset")));
}

/// The best spinner differs from figure to figure.
#[test]
fn the_best_spinner_of_the_run_is_the_rival() {
    let spinner = |path: Path, late, p99| Series {
        path: path.word().to_owned(),
        round: Round::Number(1),
        late_over_1us_ratio: Some(late),
        wire_offset_ns: Some(Statistics { p50: 3_000, p90: 4_000, p99, ..Statistics::default() }),
        ..good()
    };
    let mut document = Document::new("container", Vec::new());
    document.add_series([
        spinner(Path::Ktsn, 0.03, 8_000),
        spinner(Path::PacketSpin, 0.04, 5_000),
        spinner(Path::BareSpin, 0.02, 9_000),
    ]);
    bars::compare(&mut document);
    let rival = |metric: &str| {
        let of = document.comparisons.iter().filter(|c| c.metric == metric);
        of.filter_map(|c| Some((c.to.clone()?, c.holds?))).collect::<Vec<_>>()
    };
    let named = |path: Path, holds| (path.word().to_owned(), holds);
    assert_eq!(rival("late_over_1us_ratio"), [named(Path::BareSpin, false)]);
    assert_eq!(rival("wire_offset_ns.p99"), [named(Path::PacketSpin, false)]);
    assert_eq!(rival("wire_offset_ns.p90"), [named(Path::PacketSpin, true)]);
}

#[test]
fn hard_counts_are_violations() {
    assert_eq!(bars::violations(&document(good())), Vec::<String>::new());
    for (series, word) in [
        (Series { lost: Some(1), ..good() }, "lost is 1"),
        (Series { early: Some(2), ..good() }, "early is 2"),
        (Series { duplicates: Some(1), ..good() }, "duplicates"),
        (Series { reordered: None, ..good() }, "reordered is unknown"),
        (Series { frames_sent: Some(9), ..good() }, "9 of 10 frames"),
    ] {
        let found = bars::violations(&document(series));
        assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
    }
}

/// Rows of qdiscs beside a KTSN of 2,100 ns.
#[test]
fn a_qdisc_that_keeps_times_better_fails_a_check() {
    let beside = |rows: &[(&str, u64, u64, i64)]| {
        let mut document = document(good());
        let of = |&(path, lost, early, p50): &(&str, u64, u64, i64)| Series {
            path: path.to_owned(),
            round: Round::Number(1),
            frames_sent: Some(1_000),
            lost: Some(lost),
            early: Some(early),
            wire_offset_ns: Some(Statistics { p50, ..Statistics::default() }),
            ..good()
        };
        rows.iter().for_each(|row| document.add_rounds(vec![of(row)]));
        bars::compare(&mut document);
        let is_passed = |check: Check| (check.name, check.outcome == CheckOutcome::Passed);
        document.checks.into_iter().map(is_passed).collect::<Vec<_>>()
    };
    let named = |name: &str, passed| (format!("{name} keeps times no better than ktsn"), passed);
    // The one of 18 us delivers too little, whatever its offset is.
    let rows =
        [("pod-etf-18us", 11, 0, 10), ("pod-etf-75us", 5, 900, -900), ("pod-etf-later-150us", 0, 0, 2_099)];
    assert_eq!(beside(&rows), [named("pod-etf-75us", true), named("pod-etf-later-150us", false)]);
    let rows = [("bare-fq", 0, 0, 2_100), ("pod-fq", 0, 1, 2_000)];
    assert_eq!(beside(&rows), [named("bare-fq", true), named("pod-fq", true)]);
    assert_eq!(beside(&[("bare-etf-75us", 600, 0, 100)]), [("bare-etf is a rival".to_owned(), false)]);
}
