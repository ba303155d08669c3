// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::experiment::Setup;
use ktsn_measure::results::{CheckOutcome, Round, Series};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;

fn series(path: Path, scene: Scene, latency: i64, cpu: f64) -> Series {
    Series {
        path: path.to_string(),
        round: Round::Number(1),
        payload_octets: PAYLOAD_OCTETS,
        load: Some(scene.word().to_owned()),
        frames_intended: Some(10),
        frames_sent: Some(10),
        lost: Some(0),
        early: Some(0),
        duplicates: Some(0),
        reordered: Some(0),
        latency_ns: Some(Statistics { p50: latency, ..Statistics::default() }),
        listener_cpu_ratio: Some(cpu),
        ..Series::default()
    }
}

fn judged(rounds: Vec<Series>) -> Document {
    let mut document = Document::new("receive", Vec::new());
    document.add_series(rounds);
    bars::compare(&mut document);
    document
}

fn plan() -> Plan {
    Plan {
        scenes: vec![Scene::Idle, Scene::Slow],
        paths: Vec::new(),
        rounds: 2,
        span: Nanos::from_seconds(1),
        setup: Setup::nowhere(),
    }
}

#[test]
fn the_first_bar_holds_by_either_of_its_two_ratios() {
    let outcome = |own, spinning| {
        let document = judged(vec![
            series(Path::FLANNEL, Scene::Idle, 100, 0.01),
            series(Path::SHORT_SPIN, Scene::Idle, spinning, 1.0),
            series(Path::SHORT_EXPECT, Scene::Idle, own, 0.05),
        ]);
        document.checks[0].outcome
    };
    assert_eq!(outcome(14, 8), CheckOutcome::Passed);
    assert_eq!(outcome(20, 18), CheckOutcome::Passed);
    assert_eq!(outcome(20, 10), CheckOutcome::Failed);
    assert!(judged(Vec::new()).checks.is_empty());
}

#[test]
fn the_cpu_of_a_listener_is_judged_by_what_it_uses_above_a_blocking_one() {
    let document = judged(vec![
        series(Path::FLANNEL, Scene::Slow, 100, 0.004),
        series(Path::FLANNEL_EXPECT, Scene::Slow, 60, 0.014),
        series(Path::SHORT, Scene::Slow, 100, 0.004),
        series(Path::SHORT_EXPECT, Scene::Slow, 60, 0.024),
    ]);
    let cpu = document.comparisons.iter().filter(|one| one.metric.starts_with("listener_cpu_ratio"));
    let found: Vec<_> = cpu.map(|one| (one.of.as_str(), one.holds)).collect();
    assert_eq!(found, [("ktsn-short-expect", Some(false)), ("flannel-expect", Some(true))]);
}

#[test]
fn a_lost_frame_of_ours_is_a_violation_in_every_scene() {
    let lost = |path| Series { lost: Some(1), ..series(path, Scene::Poisson, 1, 0.0) };
    let found = bars::violations(&judged(vec![lost(Path::FLANNEL), lost(Path::FLANNEL_EXPECT)]));
    assert_eq!(found, ["flannel-expect (poisson): lost is 1, expected 0"]);
    let refused = Series { frames_sent: Some(9), ..series(Path::SHORT, Scene::Idle, 1, 0.0) };
    assert!(bars::violations(&judged(vec![refused]))[0].contains("9 of 10 frames were accepted"));
}

#[test]
fn a_plan_names_what_is_wrong() {
    assert_eq!(plan().frames(Scene::Idle, Nanos::from_millis(1)), 1_000);
    assert_eq!(plan().frames(Scene::Slow, Nanos::from_millis(10)), 300);
    let twice = Plan { paths: vec![Path::FLANNEL, Path::FLANNEL], ..plan() };
    assert!(twice.check().unwrap_err().to_string().contains("flannel is named twice"));
    assert!(Plan { rounds: 0, ..plan() }.check().is_err() && plan().check().is_ok());
}
