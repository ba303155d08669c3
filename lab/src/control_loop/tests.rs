// SPDX-License-Identifier: Apache-2.0
use super::*;
use ktsn_measure::payload::Probe;
use ktsn_time::Tai;

/// A run whose cycle `i` had its answer `spans[i]` microseconds after T; `None`: it had none.
fn recorded(spans: &[Option<u64>]) -> Recorded {
    let at = |index: usize, micros: u64| Tai::from_nanos(1_000_000 * index as u64 + 1_000 * micros);
    let probe = |index: usize| Probe { sequence: index as u64, tx_time: at(index, 0) };
    let requests = (0..spans.len())
        .map(|index| TalkRecord { probe: probe(index), called_at: at(index, 0), returned_at: at(index, 1) })
        .collect();
    let answers: Vec<ArrivalRecord> = spans
        .iter()
        .enumerate()
        .filter_map(|(index, span)| {
            let received_at = Some(at(index, (*span)?));
            Some(ArrivalRecord { probe: probe(index), kernel_at: None, received_at })
        })
        .collect();
    Recorded {
        control: Summary { cycles: spans.len() as u64, ..Summary::default() },
        requests,
        at_device: answers.clone(),
        answers,
        device: DeviceSummary::default(),
    }
}

#[test]
fn round_trips_and_missed_deadlines_count_cycles_without_an_answer() {
    let (run, series) = figures(Path::FLANNEL, 1, &recorded(&[Some(100), Some(300), None, Some(700)]));
    assert_eq!(run.records.len(), 4);
    assert_eq!((series.frames_intended, series.lost), (Some(4), Some(1)));
    assert_eq!(series.latency_ns.unwrap().p50, 300_000);
    assert_eq!(series.missed_250us_ratio, Some(0.75));
    assert_eq!(series.missed_500us_ratio, Some(0.5));
    assert_eq!(series.missed_1ms_ratio, Some(0.25));
}

#[test]
fn we_are_judged_by_the_deadline_that_flannel_misses_a_tenth_of() {
    let mut document = Document::new("loop", Vec::new());
    let judge = |document: &mut Document, ours: &[Option<u64>]| {
        let flannel: Vec<_> = (1..=100).map(|micros| Some(micros * 3)).collect();
        let all = [(Path::FLANNEL, flannel.as_slice()), (Path::SHORT_EXPECT, ours)];
        let (runs, series): (Vec<_>, Vec<_>) =
            all.map(|(path, spans)| figures(path, 1, &recorded(spans))).into_iter().unzip();
        document.add_series(series);
        bars::compare(document, &runs);
    };
    // Flannel misses 10 of 100 cycles at 270 µs; one of ours is later, one of 100 is allowed.
    let mut ours = vec![Some(50); 99];
    ours.push(Some(271));
    judge(&mut document, &ours);
    assert_eq!(document.parameters["deadline_flannel_misses_a_tenth_of_ns"], 270_000);
    let held: Vec<_> = document.comparisons.iter().map(|one| (one.holds, one.ratio.unwrap())).collect();
    assert_eq!(held.len(), 2);
    assert!(held[0].0 == Some(true) && (held[1].1 - 0.01).abs() < 1e-9, "{held:?}");
    let mut document = Document::new("loop", Vec::new());
    ours[0] = None;
    judge(&mut document, &ours);
    assert_eq!(document.comparisons[1].holds, Some(false));
    assert_eq!(bars::violations(&document), ["ktsn-short-expect: lost is 1, expected 0"]);
}

#[test]
fn both_hosts_counts_stand_beside_each_other() {
    let mut recorded = recorded(&[Some(100), Some(300), None]);
    recorded.device = DeviceSummary { answered: 2, ..DeviceSummary::default() };
    recorded.control.answers = 2;
    let account = account(Path::FLANNEL, 1, &recorded);
    assert_eq!(account.reason.unwrap(), "0 sent, 2 arrived at the device, 2 answered, 2 answers arrived");
}

#[test]
fn what_cannot_be_measured_is_named() {
    let plan = |path| Plan {
        paths: vec![path],
        rounds: 1,
        cycles: 10,
        period: Nanos::from_millis(1),
        hosts: None,
        setup: Setup::nowhere(),
    };
    assert!(plan(Path::SHORT_EXPECT).check().is_ok());
    let problem = plan(Path::SHORT_SPIN).check().unwrap_err().to_string();
    assert!(problem.contains("ktsn-short-spin-listener") && problem.contains("flannel-expect"), "{problem}");
    assert!(Plan { cycles: 0, ..plan(Path::FLANNEL) }.check().is_err());
}
