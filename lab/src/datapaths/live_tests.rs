// SPDX-License-Identifier: Apache-2.0
//! Datapaths that stand, in namespaces of their own (root): frames both ways, faults, and what is left afterwards.

use super::datapath::{Datapath, Placement};
use super::path::{Direction, Load, Path};
use super::*;
use crate::ovs::Polling;
use ktsn_measure::clock::tai_now;

const FRAMES: u64 = 60;
/// Runs until one has sent the load.
const RUNS_MAX: usize = 5;
const PLACEMENT: Placement = Placement {
    switch_cpu: 0,
    other_cpu: 0,
    polling: Polling::Sleeps { us_max: 50 },
    ends: None,
    guest_cpu: None,
};

fn set_up(path: Path, directory: &FilePath) -> Option<(Datapath, Remote)> {
    let (mut remote, _) = Remote::begin(None, true, directory).unwrap();
    match Datapath::set_up(path, With::StandIn, PLACEMENT, directory, &mut remote) {
        Err(LabError::Impossible { what, .. }) if path.has_switch() => {
            println!("SKIP ovs_dpdk_missing: {what}");
            None
        }
        datapath => Some((datapath.unwrap_or_else(|error| panic!("{path}: {error}")), remote)),
    }
}

const fn what(direction: Direction, load: Load) -> What {
    What { direction, load, frames: FRAMES }
}

fn exists(namespace: &str) -> bool {
    std::path::Path::new(&crate::testbed::namespace_path(namespace)).exists()
}

/// Frames through a path, both ways, with the load: all of them are received, or a counter says where they went.
fn pass(path: Path) {
    let directory = tempfile::tempdir().unwrap();
    let Some((mut datapath, mut remote)) = set_up(path, directory.path()) else { return };
    let namespaces = datapath.namespaces();
    for direction in Direction::ALL {
        let mut seen = one_run::run(&mut datapath, &mut remote, what(direction, Load::Udp), None).unwrap();
        // A sender that has no CPU in time misses all windows of the load.
        for _ in 1..RUNS_MAX {
            if seen.carried.sending.load_sent > 0 {
                break;
            }
            seen = one_run::run(&mut datapath, &mut remote, what(direction, Load::Udp), None).unwrap();
        }
        let row = path::row(direction, Load::Udp);
        let (end, accelerator) = (End::StandIn, None);
        let label = Label { path, end, accelerator, direction, row: &row, round: 1, intended: FRAMES };
        let run = judge::judge(&label, &seen);
        let series = run.series;
        println!("{path} {row}: {:?}, {:?}", series.network_latency_ns.map(|n| n.p50), series.dropped);
        let refused: u64 = seen.carried.sending.refused.values().sum();
        assert!(series.frames_sent.unwrap() + refused >= FRAMES, "{series:?}");
        // A busy machine may make a ring full; nothing may vanish.
        assert!(series.frames_received.unwrap() >= FRAMES / 2, "{series:?}");
        assert!(series.load_received.unwrap() > 0, "{series:?}");
        assert_eq!((series.lost_uncounted, series.duplicates), (Some(0), Some(0)), "{series:?}");
        assert_eq!(judge::fault(&seen, direction), None);
        assert!(run.stable.is_some());
    }
    drop(datapath);
    assert!(!namespaces.iter().any(|name| exists(name)), "{namespaces:?}");
}

#[test]
fn macvtap_passes_frames_both_ways() {
    pass(Path::Macvtap);
}

#[test]
fn tap_and_bridge_pass_frames_both_ways() {
    pass(Path::TapBridge);
}

#[test]
fn tap_and_xdp_pass_frames_both_ways() {
    pass(Path::TapXdp);
}

#[test]
fn tap_and_ovs_pass_frames_both_ways() {
    pass(Path::TapOvs);
}

#[test]
fn ovs_with_af_xdp_passes_frames_both_ways() {
    pass(Path::OvsAfxdp);
}

/// With the programs in the driver no frame of the experiment takes the slow path.
#[test]
fn frames_of_known_stations_stay_in_the_driver() {
    let directory = tempfile::tempdir().unwrap();
    let (mut datapath, mut remote) = set_up(Path::TapXdp, directory.path()).unwrap();
    let slow = |datapath: &Datapath| datapath.drops().unwrap()[datapath::SLOW_PATH];
    let (before, bridged) = (slow(&datapath), datapath.bridged().unwrap());
    let redirected = datapath.redirected().unwrap();
    for direction in Direction::ALL {
        let seen = one_run::run(&mut datapath, &mut remote, what(direction, Load::Idle), None).unwrap();
        assert_eq!(seen.carried.receiving.arrivals.len() as u64, FRAMES, "{direction}");
    }
    // A stranger's broadcast may come by; measured frames are many more.
    assert!(slow(&datapath) - before < 10);
    assert!(datapath.bridged().unwrap() - bridged < 10);
    // Out of the guest they reach the uplink as the tap's driver has them: no skb was made of them before.
    assert!(datapath.redirected().unwrap() - redirected >= FRAMES);
}

/// The switch is killed while frames pass: the run ends with its error, at once, and nothing stays.
#[test]
fn a_killed_switch_is_an_error_and_nothing_stays() {
    let directory = tempfile::tempdir().unwrap();
    let Some((mut datapath, mut remote)) = set_up(Path::TapOvs, directory.path()) else { return };
    let namespaces = datapath.namespaces();
    datapath.kill_switch();
    let Err(error) = one_run::run(&mut datapath, &mut remote, what(Direction::Egress, Load::Idle), None)
    else {
        panic!("a run without a switch has no result")
    };
    assert!(error.to_string().contains("ovs"), "{error}");
    drop(datapath);
    assert!(!namespaces.iter().any(|name| exists(name)), "{namespaces:?}");
}

/// A tap that goes away under traffic ends the run with the kernel's word.
#[test]
fn a_deleted_tap_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (mut datapath, mut remote) = set_up(Path::TapBridge, directory.path()).unwrap();
    let [host, _] = datapath.namespaces();
    crate::command::run(None, &format!("ip -n {host} link del vm0")).unwrap();
    let begun = tai_now();
    let Err(error) = one_run::run(&mut datapath, &mut remote, what(Direction::Egress, Load::Idle), None)
    else {
        panic!("a run without a tap has no result")
    };
    assert!(error.to_string().contains("an end of the datapath"), "{error}");
    assert!(tai_now().since(begun).get() < 10_000_000_000, "it does not wait for frames that cannot come");
}

#[test]
fn names_that_are_too_long_are_refused_before_anything_is_made() {
    let long = "a-name-of-sixteen";
    assert_eq!(bridge::set_up("nowhere", long, &[]).unwrap_err().exit_status(), 2);
    assert_eq!(bridge::set_up("nowhere", "br0", &[long]).unwrap_err().exit_status(), 2);
    assert_eq!(macvtap::set_up("nowhere", "up0", long, "02:00:00:00:00:01").unwrap_err().exit_status(), 2);
}
