// SPDX-License-Identifier: Apache-2.0
//! The experiment `overlay` from end to end with the shipped programs: idle and beside iperf3 every frame arrives once, in
//! order; so do those of several attachments; everything is gone afterwards. Nothing here looks at a time.

mod support;

use ktsn_lab::container::{self, Load, Path};
use ktsn_lab::overlay::{self, Phases, Plan, bars};
use ktsn_lab::{LabError, Tools};
use ktsn_measure::results::{CheckOutcome, Comparison, Round};
use ktsn_time::Nanos;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Mutex;
use support::{namespaces, setup, tools};

const FRAMES: u64 = 60;
const ATTACHMENTS: usize = 4;
const PAYLOAD: usize = 64;

/// Both tests count the namespaces of this process.
static ALONE: Mutex<()> = Mutex::new(());

fn plan(directory: &FilePath, paths: &[Path]) -> Plan {
    let paths = container::Plan {
        experiment: "overlay",
        paths: paths.to_vec(),
        payloads: vec![PAYLOAD],
        loads: Load::ALL.to_vec(),
        rounds: 1,
        frames: FRAMES,
        period: Nanos::from_millis(2),
        lead: container::LEAD,
        setup: setup(directory),
    };
    Plan { paths, attachments: ATTACHMENTS }
}

#[test]
fn every_frame_arrives_once_and_in_order_idle_and_loaded() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let paths = [Path::Flannel, Path::Ktsn, Path::KtsnShort, Path::BareSpin];
    let plan = plan(directory.path(), &paths);
    let outcome = overlay::run(&plan, &mut |_| ()).unwrap().whole().unwrap();
    assert_eq!(namespaces(), Vec::<PathBuf>::new());
    let document = &outcome.document;
    for (path, load) in paths.into_iter().flat_map(|path| Load::ALL.map(|load| (path, load))) {
        let all = document.all_rounds(path.word(), PAYLOAD, Some(load.word())).unwrap();
        let name = format!("{path} {load}: {all:?}");
        assert_eq!((all.frames_sent, all.frames_received), (Some(FRAMES), Some(FRAMES)), "{name}");
        let counts = [all.lost, all.duplicates, all.reordered, all.early];
        assert_eq!(counts, [Some(0); 4], "{name}");
        assert!(all.wake_up_ns.is_some() && all.before_wake_up_ns.is_some(), "{name}");
        assert_eq!(all.ktsn_cpu_ratio.is_some(), path.is_served(), "{name}");
        assert_eq!(all.load_bit_rate.is_some(), load != Load::Idle, "{name}");
    }
    // It flowed, whatever the machine made of its rate beside one path or another.
    let most = document.series.iter().filter_map(|series| series.load_bit_rate).fold(0.0, f64::max);
    assert!(most > 1e6, "{most} bit/s");
    // By turns: both ways were taken, and nothing was lost while one became the other.
    let by_turns = ["ktsn-turns", "ktsn-short-turns"];
    for path in by_turns {
        let all = document.all_rounds(path, PAYLOAD, Some(Load::Idle.word())).unwrap();
        assert!(all.frames_received > Some(0) && all.latency_ns.is_some(), "{path}: {all:?}");
    }
    let arrived = document.checks.iter().find(|check| check.name.starts_with("no frame is lost")).unwrap();
    assert_eq!(arrived.outcome, CheckOutcome::Passed, "{arrived:?}");
    // One after the other they are told, without a bar, under each load.
    let told = |c: &&Comparison| {
        c.metric == "latency_ns.p50" && c.of == "ktsn-short" && c.to.as_deref() == Some("ktsn")
    };
    let bars: Vec<_> = document.comparisons.iter().filter(told).map(|comparison| comparison.bar).collect();
    assert!(!bars.is_empty() && bars.iter().all(Option::is_none), "{bars:?}");
    assert!(document.comparisons.iter().any(|c| c.of == by_turns[1] && c.to.as_deref() == Some(by_turns[0])));
    for phases in Phases::ALL {
        let many = document.all_rounds(phases.word(), PAYLOAD, Some(Load::Idle.word())).unwrap();
        // 4 + 3 + 2 + 1 before the window, 200 in it and 20 after it for each.
        assert_eq!(many.frames_intended, Some(10 + 220 * ATTACHMENTS as u64), "{many:?}");
        assert_eq!(many.frames_received, many.frames_intended, "{many:?}");
        assert_eq!([many.lost, many.duplicates, many.reordered, many.early], [Some(0); 4], "{many:?}");
        // Told by the daemon, whose counters of all attachments are summed.
        assert!(many.transmit_error_ns.is_some() && many.late_over_1us_ratio.is_some(), "{many:?}");
    }
    assert_eq!(bars::violations(document), Vec::<String>::new());
    let loads: Vec<_> = outcome.runs.iter().take(8).map(|run| run.load.as_deref().unwrap()).collect();
    assert_eq!(loads, [["idle"; 4], ["iperf3-udp"; 4]].concat());
    assert!(document.published.iter().any(|entry| !entry.ours.is_empty()));
    assert!(document.series.iter().any(|series| series.round == Round::Number(1)));
}

#[test]
fn a_node_without_the_short_way_in_is_told_and_nothing_stays() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let mut plan = plan(directory.path(), &[Path::KtsnShort]);
    plan.paths.setup.tools = Tools { ktsnd: PathBuf::from("/bin/false"), ..tools().clone() };
    let error = overlay::run(&plan, &mut |_| ()).unwrap_err();
    assert!(matches!(&error, LabError::Impossible { what, .. } if what.contains("ktsn-short")), "{error}");
    assert_eq!(error.exit_status(), 3);
    assert_eq!(namespaces(), Vec::<PathBuf>::new());
}

#[test]
fn frames_pass_a_virtual_switch_that_is_killed_and_starts_again() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(package) = ktsn_lab::ovs::missing() {
        println!("SKIP ovs_dpdk_missing: Debian's {package} is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let paths = [Path::KtsnOvsDpdk];
    let whole = plan(directory.path(), &paths);
    let outcome = overlay::run(&Plan { attachments: 0, ..whole }, &mut |_| ());
    assert_eq!(namespaces(), Vec::<PathBuf>::new());
    let outcome = match outcome {
        Err(LabError::Nothing(reasons)) => {
            println!("SKIP huge_pages_missing: {}", reasons.trim());
            return;
        }
        outcome => outcome.unwrap().whole().unwrap(),
    };
    let document = &outcome.document;
    let all = document.all_rounds(paths[0].word(), PAYLOAD, Some(Load::Idle.word())).unwrap();
    assert_eq!((all.frames_sent, all.frames_received), (Some(FRAMES), Some(FRAMES)), "{all:?}");
    // The switch is measured without a load, whatever loads there are.
    assert!(document.series.iter().all(|series| series.load.as_deref() == Some("idle")));
    assert_eq!([all.lost, all.duplicates, all.reordered, all.early], [Some(0); 4], "{all:?}");
    assert_eq!(all.egress.as_deref(), Some("vhost-user"));
    let restart = document.checks.iter().find(|check| check.name.starts_with("OVS killed")).unwrap();
    assert_eq!(restart.outcome, CheckOutcome::Passed, "{restart:?}");
    assert!(document.micro.iter().any(|micro| micro.name == "switch.attached_again"));
    assert_eq!(bars::violations(document), Vec::<String>::new());
}
