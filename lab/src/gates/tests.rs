// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::carry_out::Measured;
use crate::experiment::Setup;
use ktsn_measure::gates::Figures;
use ktsn_measure::results::{CheckOutcome, Round, Series};
use ktsn_measure::watchdog;
use ktsn_time::Nanos;
use round::{Class, RoundResult};

fn plan() -> Plan {
    Plan { rounds: 2, cycles: 100, gated: true, watchdog: true, setup: Setup::nowhere() }
}

fn observed(round: u32, outside: [u64; 3]) -> Measured<RoundResult> {
    let series = |index: usize| Series {
        path: PATH.to_owned(),
        payload_octets: STREAMS[index].payload_octets,
        class: Some(STREAMS[index].class),
        round: Round::Number(round),
        frames_sent: Some(1_000),
        outside_window: Some(outside[index]),
        transmission_overrun: Some(1),
        transmission_overrun_unproven: Some(0),
        wire_outside_window_ratio: Some(0.0),
        early: Some(0),
        lost: Some(0),
        duplicates: Some(0),
        reordered: Some(0),
        ..Series::default()
    };
    let class = |index: usize| Class {
        class: STREAMS[index].class,
        figures: Figures { outside_window: outside[index], wire_seen: 1_000, ..Figures::default() },
    };
    let result = RoundResult {
        classes: (0..3).map(class).collect(),
        watchdog: watchdog::Outcome::default(),
        port: ktsn_proto::v1::PortStatistics { transmission_overrun: vec![1, 2], ..Default::default() },
        to_wire: vec![Nanos::new(2_000)],
        calls: vec![Nanos::new(3_000)],
    };
    Measured { series: (0..3).map(series).collect(), ..Measured::default() }.with(result)
}

fn document(observed: Vec<Measured<RoundResult>>) -> Document {
    let mut document = Document::new("gates", Vec::new());
    let (series, results): (Vec<_>, Vec<_>) = observed.into_iter().map(|one| (one.series, one.extra)).unzip();
    document.add_series(series.into_iter().flatten());
    bars::figures(&mut document, &results);
    bars::compare(&mut document);
    document
}

#[test]
fn wrong_plans_are_refused_and_a_missing_daemon_is_not_possible() {
    plan().check().unwrap();
    for wrong in [Plan { rounds: 0, ..plan() }, Plan { cycles: 9, ..plan() }] {
        assert_eq!(run(&wrong, &mut |_| ()).unwrap_err().exit_status(), 2);
    }
    let error = run(&plan(), &mut |_| ()).unwrap_err();
    assert_eq!(error.exit_status(), 3);
    assert!(error.to_string().contains("make build"), "{error}");
}

#[test]
fn the_daemon_gets_link_speed_and_schedule() {
    let plain = "[[port]]\ndevice = \"uplink\"\n\n[[attachment]]\nname = \"lab\"\n";
    let gated = configure(plain, Some(traffic::toml(&traffic::admin_port(Tai::ZERO))));
    assert!(gated.starts_with("[[port]]\nlink_speed = 1000000000\nschedule = \"lab\"\ndevice"), "{gated}");
    assert!(gated.contains("[[schedule]]\nname = \"lab\""));
    let open = configure(plain, None);
    assert!(!open.contains("schedule") && open.contains("link_speed"));
}

#[test]
fn every_class_has_its_bars_and_one_frame_outside_is_a_violation() {
    let good = document(vec![observed(1, [0; 3]), observed(2, [0; 3])]);
    assert_eq!(good.comparisons.len(), 12);
    assert!(
        good.comparisons.iter().all(|comparison| comparison.holds == Some(true)),
        "{:?}",
        good.comparisons
    );
    assert_eq!(violations(&good), Vec::<String>::new());
    let bad = document(vec![observed(1, [0; 3]), observed(2, [0, 1, 0])]);
    let missed: Vec<_> =
        bad.comparisons.iter().filter(|comparison| comparison.holds == Some(false)).collect();
    assert_eq!((missed.len(), missed[0].payload_octets), (1, Some(256)));
    assert_eq!(violations(&bad), ["class 5: outside_window is 1, expected 0"]);
}

#[test]
fn what_was_not_judged_holds_no_bar() {
    let mut one = observed(1, [0; 3]);
    one.series[0].outside_window = None;
    one.extra.classes[0].figures.unseen = 4;
    let document = document(vec![one]);
    assert!(violations(&document).iter().any(|line| line.contains("outside_window is unknown")));
    assert!(violations(&document).iter().any(|line| line.contains("4 frames lie in no system call")));
}

#[test]
fn the_control_must_see_class_5_outside() {
    let see = |outside| bars::control(&observed(0, [0, outside, 500]).extra).outcome;
    assert_eq!(
        (see(1_000), see(900), see(899)),
        (CheckOutcome::Passed, CheckOutcome::Passed, CheckOutcome::Failed)
    );
}

#[test]
fn gates_that_close_late_must_be_caught_and_not_excused() {
    let see = |outside, overruns, unproven| {
        let mut one = observed(0, [0; 3]);
        let figures =
            Figures { outside_window: outside, overruns, overruns_unproven: unproven, ..Figures::default() };
        one.extra.classes[2].figures = figures;
        bars::late_control(&one.extra).outcome
    };
    assert_eq!(see(60, 40, 30), CheckOutcome::Passed);
    // Eleven of a hundred excused; and too few frames near the close to say anything.
    assert_eq!(see(60, 40, 29), CheckOutcome::Failed);
    assert_eq!(see(900, 19, 19), CheckOutcome::Failed);
}

#[test]
fn the_chance_of_an_accident_is_told() {
    let mut one = observed(1, [0; 3]);
    one.extra.to_wire = [2_000, 25_000, 25_001].map(Nanos::new).to_vec();
    one.extra.classes[1].figures.overruns = 3;
    one.extra.classes[1].figures.overruns_by_stall = 2;
    let document = document(vec![one]);
    let figure = |name: &str| {
        let micro = document.micro.iter().find(|micro| micro.name == name).unwrap();
        (micro.p50 as u64, micro.samples)
    };
    assert_eq!(figure("hand_over.stalls"), (1, 3));
    assert_eq!(figure("overruns.proven_by_stall"), (2, 3));
}
