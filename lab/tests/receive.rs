// SPDX-License-Identifier: Apache-2.0
//! The experiments `receive` and `loop` from end to end with the shipped programs: in every scene each listener gets each
//! frame once and in order, every cycle has its answer, and everything is gone afterwards. Nothing here looks at a time.

mod support;

use ktsn_lab::container::Path as Way;
use ktsn_lab::control_loop;
use ktsn_lab::receive::{self, Path, Receiver, Scene};
use ktsn_time::Nanos;
use std::path::PathBuf;
use std::sync::Mutex;
use support::{namespaces, setup};

const PAYLOAD: usize = 64;

/// Both tests count the namespaces of this process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn every_listener_gets_every_frame_in_every_scene() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let paths = vec![Path::FLANNEL, Path::FLANNEL.with(Receiver::Spin), Path::SHORT];
    let plan = receive::Plan {
        scenes: Scene::ALL.to_vec(),
        paths: paths.clone(),
        rounds: 1,
        span: Nanos::from_millis(100),
        setup: setup(directory.path()),
    };
    let outcome = receive::run(&plan, &mut |_| ()).unwrap().whole().unwrap();
    assert_eq!(namespaces(), Vec::<PathBuf>::new());
    let document = &outcome.document;
    assert_eq!(receive::bars::violations(document), Vec::<String>::new());
    for (path, scene) in paths.into_iter().flat_map(|path| Scene::ALL.map(|scene| (path, scene))) {
        let all = document.all_rounds(&path.to_string(), PAYLOAD, Some(scene.word())).unwrap();
        let name = format!("{path} {scene}: {all:?}");
        assert!(all.frames_intended > Some(10) && all.frames_received == all.frames_intended, "{name}");
        assert_eq!([all.lost, all.duplicates, all.reordered], [Some(0); 3], "{name}");
        assert!(all.latency_ns.is_some() && all.listener_cpu_ratio.is_some(), "{name}");
        assert_eq!(all.jitter_ns.is_none(), scene == Scene::EightStreams, "{name}");
        assert_eq!(all.far_daemon_cpu_ratio.is_some(), path == Path::SHORT, "{name}");
        assert_eq!(all.load_bit_rate.is_some(), scene == Scene::Iperf3Udp, "{name}");
    }
    let eight = outcome.runs.iter().find(|run| run.load.as_deref() == Some("eight-streams")).unwrap();
    // 100 ms of 2, 3, 4, 5, 7, 8, 10 and 20 ms.
    assert_eq!(eight.records.len(), 50 + 34 + 25 + 20 + 15 + 13 + 10 + 5);
}

#[test]
fn every_cycle_has_its_answer() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let bare = Path { way: Way::Bare, receiver: Receiver::Kernel };
    let ktsn = Path { way: Way::Ktsn, receiver: Receiver::Kernel };
    let plan = control_loop::Plan {
        paths: vec![Path::FLANNEL, bare, ktsn, Path::SHORT],
        rounds: 2,
        cycles: 40,
        period: Nanos::from_millis(2),
        hosts: None,
        setup: setup(directory.path()),
    };
    let outcome = control_loop::run(&plan, &mut |_| ()).unwrap().whole().unwrap();
    assert_eq!(namespaces(), Vec::<PathBuf>::new());
    let document = &outcome.document;
    assert_eq!(control_loop::bars::violations(document), Vec::<String>::new());
    for path in plan.paths {
        let all = document.all_rounds(&path.to_string(), PAYLOAD, Some("idle")).unwrap();
        let name = format!("{path}: {all:?}");
        assert_eq!((all.frames_intended, all.frames_received), (Some(80), Some(80)), "{name}");
        assert!(all.latency_ns.is_some() && all.request_ns.is_some(), "{name}");
        assert!(all.missed_250us_ratio >= all.missed_500us_ratio, "{name}");
        assert_eq!(all.daemon_cpu_ratio.is_some(), path.way.is_served(), "{name}");
    }
    let shown = document.comparisons.iter().filter(|one| one.metric == "latency_ns.p50").count();
    assert_eq!(shown, 1, "{:?}", document.comparisons);
    assert!(document.parameters.contains_key("deadline_flannel_misses_a_tenth_of_ns"));
}
