// SPDX-License-Identifier: Apache-2.0
//! The experiment `container` from end to end with the shipped programs: every path delivers every frame once, in
//! order, and everything is gone afterwards. Nothing here looks at a time, except that no frame may be early.

mod support;

use ktsn_lab::container::{self, Load, Path, Plan, bars};
use ktsn_lab::{Event, LabError, Setup, Tools};
use ktsn_measure::results::Round;
use ktsn_time::Nanos;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Mutex;
use support::{namespaces, setup, tools};

const FRAMES: u64 = 60;
const PAYLOADS: [usize; 2] = [16, 1024];

/// What needs nothing of the receiving node.
const PATHS: [Path; 7] = [
    Path::Bare,
    Path::BareSpin,
    Path::Flannel,
    Path::FlannelSpin,
    Path::FlannelOther,
    Path::Ktsn,
    Path::KtsnCapture,
];

/// Both tests count the namespaces of this process.
static ALONE: Mutex<()> = Mutex::new(());

fn plan(directory: &FilePath) -> Plan {
    Plan {
        experiment: "container",
        paths: PATHS.to_vec(),
        payloads: PAYLOADS.to_vec(),
        loads: vec![Load::Idle],
        rounds: 2,
        frames: FRAMES,
        period: Nanos::from_millis(1),
        lead: container::LEAD,
        setup: setup(directory),
    }
}

#[test]
fn every_path_delivers_every_frame_once_and_in_order() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let plan = plan(directory.path());
    let mut last = (0, 0);
    let outcome = container::run(&plan, &mut |event| {
        if let Event::Progress { done, all } = event {
            last = (done, all);
        }
    });
    let outcome = outcome.unwrap().whole().unwrap();
    let runs = 2 * (PATHS.len() * PAYLOADS.len()) as u64;
    assert_eq!(last, (runs, runs));
    assert_eq!(outcome.runs.len() as u64, runs);
    assert_eq!(namespaces(), Vec::<PathBuf>::new());

    for path in PATHS {
        for payload in PAYLOADS {
            let all = outcome.document.all_rounds(path.word(), payload, Some(Load::Idle.word())).unwrap();
            let name = format!("{path} {payload}: {all:?}");
            assert_eq!(all.frames_intended, Some(2 * FRAMES), "{name}");
            assert_eq!(
                (all.frames_sent, all.frames_received),
                (Some(2 * FRAMES), Some(2 * FRAMES)),
                "{name}"
            );
            assert_eq!(
                (all.lost, all.duplicates, all.reordered, all.early),
                (Some(0), Some(0), Some(0), Some(0)),
                "{name}"
            );
            assert!(all.transmit_error_ns.is_some() && all.wire_offset_ns.is_some(), "{name}");
            // Only KTSN has a daemon, and it alone knows when its frames were handed over.
            assert_eq!(all.daemon_rss_octets.is_some(), path.is_served(), "{name}");
        }
    }
    let lead = outcome.document.micro.iter().find(|figure| figure.name == "capture.lead").unwrap();
    assert_eq!(lead.samples, 2 * FRAMES * PAYLOADS.len() as u64);
    assert_eq!(bars::violations(&outcome.document), Vec::<String>::new());
    let single = outcome.document.series.iter().filter(|series| series.round != Round::All).count();
    assert_eq!(single as u64, runs);
    // Each round begins with another row.
    let order = &outcome.document.parameters["order"]["rounds_begin_with"];
    assert_eq!(order, &serde_json::json!(["16 octets, bare", "1024 octets, bare"]));
    for run in &outcome.runs {
        // Frames of different runs never share a sequence number.
        assert_eq!(run.records.len() as u64, FRAMES);
        assert!(run.records.iter().all(|record| record.wire_at.is_some() && record.received_at.is_some()));
    }
}

#[test]
fn a_daemon_that_cannot_start_is_told_and_nothing_stays() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let directory = tempfile::tempdir().unwrap();
    let broken = Tools { ktsnd: PathBuf::from("/bin/false"), ..tools().clone() };
    let setup = Setup { tools: broken, ..setup(directory.path()) };
    let plan = Plan { paths: vec![Path::Ktsn], setup, ..plan(directory.path()) };
    let error = container::run(&plan, &mut |_| ()).unwrap_err();
    assert!(matches!(&error, LabError::Process { name, .. } if name == "ktsnd"), "{error}");
    assert_eq!(namespaces(), Vec::<PathBuf>::new());
}
