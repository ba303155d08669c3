// SPDX-License-Identifier: Apache-2.0
//! Talker, listener and tap across a veth between two network namespaces: what one sends is what the others saw.
//! Needs root; without it the test says so and proves nothing.

use ktsn_measure::clock::{RealTime, ScheduleClock};
use ktsn_measure::listener::{self, ListenerOptions, Wait};
use ktsn_measure::records::join;
use ktsn_measure::results::Series;
use ktsn_measure::series::{Facts, untapped};
use ktsn_measure::talker::{self, Mode};
use ktsn_measure::{records::RunRecords, tap};
use ktsn_time::Nanos;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;

const PORT: u16 = 7788;
const FRAMES: u64 = 50;

static COUNTER: AtomicU32 = AtomicU32::new(0);

/// Two namespaces joined by a veth; removed whatever happens.
struct Pair {
    names: [String; 2],
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is installed");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Pair {
    fn new() -> Self {
        let unique = format!("{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let pair = Self { names: [format!("kmt-{unique}"), format!("kml-{unique}")] };
        let [talker, listener] = &pair.names;
        ip(&format!("netns add {talker}"));
        ip(&format!("netns add {listener}"));
        ip(&format!("link add wire netns {talker} type veth peer name wire netns {listener}"));
        for (name, host) in [(talker, 1), (listener, 2)] {
            ip(&format!("-n {name} address add 10.71.0.{host}/24 dev wire"));
            ip(&format!("-n {name} link set wire up"));
        }
        pair
    }

    /// Moves the calling thread into one of the namespaces.
    fn enter(&self, index: usize) {
        let file = File::open(format!("/run/netns/{}", self.names[index])).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not have been made; the other one must still go.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

fn run_over(pair: &Pair, mode: Mode) {
    let (ready, readied) = mpsc::channel();
    let stop = AtomicBool::new(false);
    let (talked, listened, tapped) = std::thread::scope(|scope| {
        let ready_too = ready.clone();
        let listening = scope.spawn(move || {
            pair.enter(1);
            let local = format!("10.71.0.2:{PORT}").parse().unwrap();
            let timeout = Some(Nanos::from_seconds(5));
            let (wait, real_time) = (Wait::Receive, RealTime::default());
            let options = ListenerOptions { local, ports: 1, wait, count: FRAMES, timeout, real_time };
            listener::run(&options, |_| ready_too.send(()).unwrap(), &|| false).unwrap()
        });
        let stop = &stop;
        let tapping = scope.spawn(move || {
            pair.enter(1);
            let options = tap::TapOptions {
                interface: "wire".into(),
                port: PORT,
                vxlan_port: Some(tap::VXLAN_PORT),
                count: 0,
                timeout: None,
                outgoing: false,
            };
            tap::run(&options, || ready.send(()).unwrap(), &|| stop.load(Ordering::Relaxed)).unwrap()
        });
        let talking = scope.spawn(move || {
            pair.enter(0);
            for _ in 0..2 {
                readied.recv().unwrap();
            }
            let options = talker::TalkerOptions {
                destination: format!("10.71.0.2:{PORT}").parse().unwrap(),
                mode,
                ask_later: Nanos::ZERO,
                clock: ScheduleClock::Tai,
                period: Nanos::from_millis(1),
                gaps: talker::Gaps::Equal,
                payload_octets: 64,
                count: FRAMES,
                first_sequence: 1_000,
                start_at: None,
                priority: Some(6),
                real_time: RealTime::default(),
            };
            talker::run(&options, || (), &|| false).unwrap()
        });
        let (talked, listened) = (talking.join().unwrap(), listening.join().unwrap());
        stop.store(true, Ordering::Relaxed);
        (talked, listened, tapping.join().unwrap())
    });
    assert_eq!((talked.summary.frames_sent, listened.summary.frames_received), (FRAMES, FRAMES));
    assert_eq!((tapped.summary.frames_seen, tapped.summary.tunnelled), (FRAMES, 0));
    assert_eq!((tapped.summary.kernel_drops, tapped.summary.unstamped), (0, 0));
    let handed = !matches!(mode, Mode::TxTime { .. });
    let (records, counts) = join(&talked.records, &tapped.records, &listened.records, handed);
    assert_eq!(counts, ktsn_measure::records::JoinCounts::default());
    assert_eq!(untapped(&records), 0);
    for (index, record) in records.iter().enumerate() {
        assert_eq!(record.sequence, 1_000 + index as u64);
        let (wire, received) = (record.wire_at.unwrap(), record.received_at.unwrap());
        assert!(wire <= received, "{record:?}");
        if handed {
            assert!(record.handed_at.unwrap() <= wire, "{record:?}");
        }
    }
    let run = RunRecords { path: "bare".into(), payload_octets: 64, load: None, round: 1, records };
    let series = Series::of_run(&run, &Facts { frames_intended: FRAMES, counts, ..Facts::default() });
    assert_eq!((series.lost, series.duplicates, series.reordered), (Some(0), Some(0), Some(0)));
    // Nothing on this path keeps a transmit time, so frames sent ahead are early, each of them, and only those.
    assert_eq!(series.early == Some(0), handed, "{series:?}");
    assert!(series.latency_ns.is_some() && series.wire_jitter_ns.is_some());
}

#[test]
fn every_frame_is_seen_once_in_order_at_every_point() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP root_missing: network namespaces need root");
        return;
    }
    let pair = Pair::new();
    run_over(&pair, Mode::Sleep);
    run_over(&pair, Mode::Spin { margin: talker::SPIN_MARGIN });
    run_over(&pair, Mode::TxTime { lead: Nanos::from_micros(300) });
}
