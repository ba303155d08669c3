// SPDX-License-Identifier: Apache-2.0
//! Ports of DPDK's own drivers: frames over a veth pair by `net_af_packet`, the rate of `net_null`, back-pressure of `net_memif`.

mod support;

use std::time::{Duration, Instant};

use ktsn_eventually::eventually;
use ktsn_port::dpdk::Dpdk;
use ktsn_port::{AnyPort, Device, Occupancy, OpenError, Options, Port, SendError, StageError};
use support::{Bed, NEAR, frame};

const STAGES: usize = 256;
const ALL_FREE: Occupancy = Occupancy { free: STAGES, staged: 0, in_flight: 0 };

fn options() -> Options {
    Options { stage_count: STAGES as u16, queue: 0 }
}

fn bare(devargs: &str) -> Dpdk {
    Dpdk::open(None, devargs, &options()).unwrap_or_else(|error| panic!("{error}"))
}

/// A DPDK device with a name of its own: a process may use a name once at a time, and tests run beside each other.
fn af_packet(number: u32) -> String {
    format!("net_af_packet{number},iface={NEAR},qdisc_bypass=1")
}

#[test]
fn frames_arrive_whole_and_in_order_and_the_device_is_given_back() {
    let bed = Bed::new();
    let receiver = bed.receiver();
    // Opened again with the same name: the one before gave it back.
    for round in 0..2_u32 {
        let port = bed.with_device(|device| Dpdk::open(Some(device), &af_packet(0), &options()));
        let mut port = AnyPort::from(port.unwrap());
        let capabilities = port.capabilities();
        assert_eq!((capabilities.adapter, capabilities.mtu_octets), ("dpdk", 1500));
        assert!(capabilities.ifindex > 0 && capabilities.mac != [0; 6]);
        assert!(port.link_up());
        let frames: Vec<_> =
            (0..1000).map(|n| frame(round * 1000 + n, 18 + (n as usize * 7) % 1497)).collect();
        std::thread::scope(|scope| {
            // Opened by one thread, used by another.
            scope.spawn(|| {
                support::keep_to_one_cpu();
                for batch in frames.chunks(37) {
                    let stages: Vec<_> = batch.iter().map(|frame| port.stage_copy(frame).unwrap()).collect();
                    assert_eq!(port.staged_frame(stages[0]), Some(&batch[0][..]));
                    assert!(stages.into_iter().all(|stage| port.commit(stage).is_ok()));
                }
            });
        });
        assert_eq!(receiver.drain(frames.len()), frames, "each once, in order");
        assert_eq!(port.occupancy(), ALL_FREE);
        assert_eq!((port.counters().staged_count, port.counters().committed_count), (1000, 1000));
    }
}

#[test]
fn what_is_abandoned_or_too_long_never_leaves() {
    let bed = Bed::new();
    let receiver = bed.receiver();
    let mut port = bed.with_device(|device| Dpdk::open(Some(device), &af_packet(1), &options())).unwrap();
    let stage = port.stage_copy(&frame(1, 100)).unwrap();
    port.abandon(stage);
    assert_eq!(port.commit(stage), Err(SendError::NotStaged));
    assert_eq!(port.stage(&mut |_| None), Err(StageError::NotBuilt));
    let too_long = StageError::TooLong { octets: 1515, octets_max: 1514 };
    assert_eq!(port.stage(&mut |_| Some(1515)), Err(too_long));
    let stages: Vec<_> = (0..STAGES).map(|_| port.stage_copy(&frame(2, 60)).unwrap()).collect();
    assert_eq!(port.stage_copy(&frame(3, 60)), Err(StageError::Full));
    for stage in stages {
        port.abandon(stage);
    }
    assert_eq!(port.occupancy(), ALL_FREE);
    assert!(receiver.drain(0).is_empty());
    bed.near(&format!("link set {NEAR} down"));
    assert!(!port.link_up());
}

#[test]
fn what_cannot_be_opened_is_named_and_holds_nothing() {
    let open = |devargs: &str, options: Options| Dpdk::open(None, devargs, &options).err();
    assert!(matches!(open("", options()), Some(OpenError::Devargs { .. })));
    let unknown = open("net_nothing_of_the_kind", options()).unwrap();
    assert!(matches!(unknown, OpenError::Dpdk { step: "rte_dev_probe", .. }), "{unknown}");
    assert!(unknown.to_string().contains("net_nothing_of_the_kind"), "{unknown}");
    let no_interface = open("net_af_packet2,iface=none-such", options()).unwrap();
    assert!(matches!(no_interface, OpenError::Dpdk { .. }), "{no_interface}");
    let stages = open("net_null9", Options { stage_count: 3, queue: 0 });
    assert_eq!(stages, Some(OpenError::StageCount { stage_count: 3 }));
    let missing = Device { ifname: "none-such", netns: None };
    let missing = Dpdk::open(Some(&missing), "net_null9", &options()).err();
    assert_eq!(missing, Some(OpenError::NoDevice { ifname: "none-such".to_owned() }));
    // The name is free, whatever failed before.
    assert!(bare("net_null9").link_up());
}

#[test]
fn net_null_takes_a_million_frames_and_loses_no_buffer() {
    let mut port = bare("net_null0");
    let frame = frame(1, 60);
    let begun = Instant::now();
    for _ in 0..1_000_000 {
        let stage = port.stage_copy(&frame).unwrap();
        port.commit(stage).unwrap();
    }
    println!("net_null: {:.0} ns a frame", begun.elapsed().as_nanos() as f64 / 1e6);
    assert_eq!((port.occupancy(), port.counters().committed_count), (ALL_FREE, 1_000_000));
    // DPDK left nothing of this process's on disk.
    let directory = format!("/var/run/dpdk/ktsn-{}", std::process::id());
    assert!(!std::path::Path::new(&directory).exists(), "{directory}");
}

/// A memif pair within this process whose far end reads nothing: its ring fills, and the port says so.
#[test]
fn net_memif_connects_and_its_full_ring_is_back_pressure() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("memif.sock");
    let devargs = |name: &str, role: &str| {
        format!("{name},role={role},id=0,socket-abstract=no,socket={},rsize=8", socket.display())
    };
    let _far = bare(&devargs("net_memif0", "server"));
    let mut port = bare(&devargs("net_memif1", "client"));
    eventually("the two ends find each other", Duration::from_secs(5), || port.link_up());
    let mut taken = 0;
    let refused = loop {
        let stage = port.stage_copy(&frame(taken, 60)).unwrap();
        match port.commit(stage) {
            Ok(()) => taken += 1,
            Err(error) => break error,
        }
        assert!(taken < 10_000, "a ring of 256 takes no more");
    };
    assert_eq!(refused, SendError::Busy);
    assert!(taken >= 128, "{taken}");
    assert_eq!((port.occupancy(), port.counters().failed_count), (ALL_FREE, 1));
}
