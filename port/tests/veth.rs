// SPDX-License-Identifier: Apache-2.0
//! Real frames over real veth pairs, through every adapter that has a device.

mod support;

use std::thread::sleep;
use std::time::{Duration, Instant};

use ktsn_eventually::eventually;
use ktsn_port::af_packet::AfPacket;
use ktsn_port::af_xdp::AfXdp;
use ktsn_port::{
    AnyPort, Device, Occupancy, OpenError, Options, Port, SendError, StageError, link_info, link_speed, open,
};
use support::{Bed, NEAR, frame, unsupported};

/// A limit for what comes at all.
const SOON: Duration = Duration::from_secs(20);

const STAGE_COUNT: u16 = 256;
const ADAPTERS: [&str; 2] = ["af_xdp", "af_packet"];

fn try_open(adapter: &str, bed: &Bed) -> Result<AnyPort, OpenError> {
    let options = Options { stage_count: STAGE_COUNT, queue: 0 };
    bed.with_device(|device| match adapter {
        "af_xdp" => AfXdp::open(device, &options).map(AnyPort::from),
        _ => AfPacket::open(device, &options).map(AnyPort::from),
    })
}

/// The adapter's port; `None`, said aloud, where the kernel has no such socket family.
fn open_or_skip(adapter: &str, bed: &Bed) -> Option<AnyPort> {
    match try_open(adapter, bed) {
        Ok(port) => Some(port),
        Err(error) if unsupported(&error) => {
            println!("SKIP {adapter}: {error}");
            None
        }
        Err(error) => panic!("{adapter}: {error}"),
    }
}

fn each_adapter(test: impl Fn(&Bed, AnyPort)) {
    for adapter in ADAPTERS {
        let bed = Bed::new();
        if let Some(port) = open_or_skip(adapter, &bed) {
            assert_eq!(port.capabilities().adapter, adapter);
            test(&bed, port);
        }
    }
}

fn reap_until_idle(port: &mut AnyPort) {
    let until = Instant::now() + Duration::from_secs(20);
    while port.occupancy().in_flight > 0 && Instant::now() < until {
        port.reap();
    }
}

const ALL_FREE: Occupancy = Occupancy { free: STAGE_COUNT as usize, staged: 0, in_flight: 0 };

#[test]
fn a_thousand_frames_arrive_whole_and_in_order() {
    each_adapter(|bed, mut port| {
        let receiver = bed.receiver();
        let frames: Vec<_> = (0..1000).map(|n| frame(n, 18 + (n as usize * 7) % 1497)).collect();
        // Opened in another namespace by another thread, used from a third.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                support::keep_to_one_cpu();
                let mut rest = &frames[..];
                // One frame staged at a time, and many.
                for batch in [1, 1, 3, 100, 32, 33, 64, 250].into_iter().cycle() {
                    let (now, later) = rest.split_at(batch.min(rest.len()));
                    let stages: Vec<_> = now.iter().map(|frame| port.stage_copy(frame).unwrap()).collect();
                    assert_eq!(port.occupancy().staged, now.len());
                    for (stage, frame) in stages.into_iter().zip(now) {
                        assert_eq!(port.staged_frame(stage), Some(&frame[..]));
                        port.commit(stage).unwrap();
                    }
                    reap_until_idle(&mut port);
                    assert_eq!(port.occupancy(), ALL_FREE);
                    rest = later;
                    if rest.is_empty() {
                        break;
                    }
                }
            });
        });
        let arrived = receiver.drain(frames.len());
        assert_eq!(arrived.len(), frames.len());
        assert!(arrived == frames, "the octets and their order");
        let counters = port.counters();
        assert_eq!((counters.staged_count, counters.committed_count), (1000, 1000));
        assert_eq!((counters.completed_count, counters.failed_count), (1000, 0));
        assert_eq!((counters.deferred_count, counters.stray_completion_count), (0, 0));
    });
}

#[test]
fn a_staged_frame_never_leaves_without_its_commit() {
    each_adapter(|bed, mut port| {
        let receiver = bed.receiver();
        let stages: Vec<_> = (0..4).map(|n| port.stage_copy(&frame(n, 64)).unwrap()).collect();
        port.reap();
        port.warm_up();
        assert!(receiver.drain(0).is_empty());
        port.commit(stages[2]).unwrap();
        port.abandon(stages[0]);
        port.reap();
        assert_eq!(receiver.drain(1), [frame(2, 64)]);
        assert_eq!(port.commit(stages[0]), Err(SendError::NotStaged), "abandoned");
        assert_eq!(port.commit(stages[2]), Err(SendError::NotStaged), "committed before");
        assert_eq!(port.occupancy(), Occupancy { free: 254, staged: 2, in_flight: 0 });
        drop(port);
        assert!(receiver.drain(0).is_empty());
    });
}

#[test]
fn a_full_port_says_so_and_recovers() {
    each_adapter(|bed, mut port| {
        let receiver = bed.receiver();
        let stages: Vec<_> = (0..256).map(|n| port.stage_copy(&frame(n, 64)).unwrap()).collect();
        assert_eq!(port.stage_copy(&frame(0, 64)), Err(StageError::Full));
        assert!(stages.into_iter().all(|stage| port.commit(stage).is_ok()));
        reap_until_idle(&mut port);
        assert_eq!((port.occupancy(), receiver.drain(256).len()), (ALL_FREE, 256));
        assert_eq!(port.stage(&mut |_| None), Err(StageError::NotBuilt));
        assert_eq!(port.stage(&mut |_| Some(13)), Err(StageError::TooShort { octets: 13 }));
        assert_eq!(port.occupancy(), ALL_FREE);
    });
}

/// A link beyond the veth takes 3 s for what is sent in one instant: the kernel keeps every frame, and its buffer, until it
/// has left there. Full is a state that passes; nothing is lost.
#[test]
fn buffers_that_a_slow_link_further_on_holds_come_back() {
    let bed = Bed::new();
    let Some(mut port) = open_or_skip("af_xdp", &bed) else { return };
    bed.far("link add out0 type veth peer name end0");
    bed.far("link add br0 type bridge");
    for device in [support::FAR, "out0", "br0", "end0"] {
        bed.far(&format!("link set {device} up"));
    }
    for device in [support::FAR, "out0"] {
        bed.far(&format!("link set {device} master br0"));
    }
    bed.far_run("tc qdisc add dev out0 root tbf rate 683kbit burst 2kb limit 1mb");
    let states = "cat /sys/class/net/br0/brif/far0/state /sys/class/net/br0/brif/out0/state";
    eventually("the bridge forwards", SOON, || bed.far_run(states) == "3\n3\n");
    // To a station that the bridge does not know: what it also took itself it would copy.
    let to_station = |serial| {
        let mut frame = frame(serial, 986);
        frame[..6].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
        frame
    };
    let commit = |port: &mut AnyPort, serial| {
        let stage = port.stage_copy(&to_station(serial)).unwrap();
        port.commit(stage)
    };
    for serial in 0..u32::from(STAGE_COUNT) {
        assert_eq!(commit(&mut port, serial), Ok(()));
    }
    port.reap();
    let staged = std::iter::from_fn(|| port.stage_copy(&to_station(0)).ok()).collect::<Vec<_>>();
    assert!(staged.len() < 100, "{} buffers are free", staged.len());
    assert_eq!(port.stage_copy(&to_station(0)), Err(StageError::Full));
    eventually("a buffer comes back", SOON, || port.reap() > 0);
    assert_eq!(commit(&mut port, 256), Ok(()));
    staged.iter().for_each(|stage| port.abandon(*stage));
    eventually("all buffers come back", SOON, || {
        port.reap();
        port.occupancy() == ALL_FREE
    });
    // The bridge may say a word of its own, which is shorter than any of these.
    let arrived = bed.far_run("cat /sys/class/net/end0/statistics/rx_bytes");
    assert_eq!(arrived.trim().parse::<u64>().unwrap() / 986, 257, "each once");
}

#[test]
fn the_second_bind_of_a_queue_is_named_and_auto_falls_back() {
    let bed = Bed::new();
    let Some(first) = open_or_skip("af_xdp", &bed) else { return };
    let busy = OpenError::QueueBusy { ifname: NEAR.to_owned(), queue: 0 };
    assert_eq!(try_open("af_xdp", &bed).err(), Some(busy.clone()));
    let mut second = bed.with_device(|device| open(device, &Options::default())).unwrap();
    assert_eq!((second.port.capabilities().adapter, second.fallback), ("af_packet", Some(busy)));
    let receiver = bed.receiver();
    let stage = second.port.stage_copy(&frame(1, 64)).unwrap();
    second.port.commit(stage).unwrap();
    assert_eq!(receiver.drain(1), [frame(1, 64)]);
    drop(first);
    let again = bed.with_device(|device| open(device, &Options::default())).unwrap();
    assert_eq!((again.port.capabilities().adapter, again.fallback), ("af_xdp", None));
    let no_queue =
        bed.with_device(|device| AfXdp::open(device, &Options { queue: 77, ..Options::default() }));
    assert_eq!(no_queue.err(), Some(OpenError::NoQueue { ifname: NEAR.to_owned(), queue: 77 }));
}

#[test]
fn a_link_that_is_down_refuses_and_nothing_stale_leaves_later() {
    each_adapter(|bed, mut port| {
        let receiver = bed.receiver();
        assert!(port.link_up());
        let commit = |port: &mut AnyPort, serial| {
            let stage = port.stage_copy(&frame(serial, 64)).unwrap();
            port.commit(stage)
        };
        bed.near(&format!("link set {NEAR} down"));
        assert!(!port.link_up());
        assert_eq!(commit(&mut port, 1), Err(SendError::LinkDown), "administratively down");
        assert!((2..40).all(|n| commit(&mut port, n) == Err(SendError::LinkDown)));
        bed.near(&format!("link set {NEAR} up"));
        bed.far(&format!("link set {} down", support::FAR));
        // Linux announces a lost carrier within a second. Until then a refused frame has no reason.
        assert!(matches!(commit(&mut port, 41), Err(SendError::LinkDown | SendError::Dropped)));
        eventually("the lost carrier is announced", SOON, || !port.link_up());
        assert_eq!(commit(&mut port, 42), Err(SendError::LinkDown), "no carrier");
        assert!((43..50).all(|n| commit(&mut port, n).is_err()));
        bed.far(&format!("link set {} up", support::FAR));
        eventually("the carrier is announced", SOON, || port.link_up());
        assert_eq!(commit(&mut port, 50), Ok(()));
        assert_eq!(receiver.drain(1), [frame(50, 64)]);
        reap_until_idle(&mut port);
        assert_eq!(port.occupancy(), ALL_FREE);
        assert_eq!((port.counters().failed_count, port.counters().committed_count), (48, 1));
    });
}

#[test]
fn a_removed_device_is_gone_and_can_be_opened_anew() {
    each_adapter(|bed, mut port| {
        let adapter = port.capabilities().adapter;
        let stage = port.stage_copy(&frame(1, 64)).unwrap();
        port.commit(stage).unwrap();
        let staged = [port.stage_copy(&frame(2, 64)).unwrap(), port.stage_copy(&frame(3, 64)).unwrap()];
        bed.near(&format!("link del {NEAR}"));
        assert_eq!(staged.map(|stage| port.commit(stage)), [Err(SendError::DeviceGone); 2]);
        assert!(!port.link_up());
        port.reap();
        assert_eq!(port.occupancy(), ALL_FREE);
        let no_device = OpenError::NoDevice { ifname: NEAR.to_owned() };
        assert_eq!(try_open(adapter, bed).err(), Some(no_device.clone()));
        assert_eq!(bed.with_device(|device| open(device, &Options::default())).err(), Some(no_device));
        bed.make_pair();
        assert_eq!(
            port.stage_copy(&frame(4, 64)).map(|stage| port.commit(stage)),
            Ok(Err(SendError::DeviceGone))
        );
        let receiver = bed.receiver();
        let mut port = try_open(adapter, bed).unwrap();
        let stage = port.stage_copy(&frame(5, 64)).unwrap();
        port.commit(stage).unwrap();
        assert_eq!(receiver.drain(1), [frame(5, 64)]);
    });
}

/// A pod may change its own interface without end, and others' devices change beside it.
#[test]
fn announcements_without_end_are_not_the_state_of_another_device() {
    each_adapter(|bed, port| {
        bed.near("link add other0 type veth peer name other1");
        for _ in 0..10 {
            bed.near("link set other0 up");
            bed.near("link set other0 down");
        }
        assert!(port.link_up(), "the other device's announcements are none of this port's");
        for n in 0..200 {
            bed.near(&format!("link set {NEAR} txqueuelen {}", 100 + n));
        }
        bed.near(&format!("link set {NEAR} down"));
        // Sixteen announcements a question at most: the state is known once they are read.
        eventually("the state is known", SOON, || !port.link_up());
        bed.near(&format!("link set {NEAR} up"));
        eventually("the state is known", SOON, || port.link_up());
    });
}

#[test]
fn the_mtu_bounds_a_frame() {
    each_adapter(|bed, mut port| {
        let receiver = bed.receiver();
        assert_eq!(port.capabilities().frame_octets_max, 1518);
        let longest = frame(1, 1514);
        let stage = port.stage_copy(&longest).unwrap();
        port.commit(stage).unwrap();
        assert_eq!(
            port.stage_copy(&frame(2, 1515)),
            Err(StageError::TooLong { octets: 1515, octets_max: 1514 })
        );
        assert!(matches!(port.stage(&mut |buffer| Some(buffer.len() + 1)), Err(StageError::TooLong { .. })));
        let mut tagged = frame(3, 1518);
        tagged[12..16].copy_from_slice(&[0x81, 0, 0xc0, 1]);
        tagged[16..18].copy_from_slice(&support::ETHERTYPE);
        let stage = port.stage_copy(&tagged).unwrap();
        port.commit(stage).unwrap();
        let arrived = receiver.drain(2);
        assert_eq!(arrived.len(), 2);
        assert!(arrived[0] == longest);
        // The receiving kernel takes the tag off before taps see the frame.
        assert!(arrived[1][..12] == tagged[..12] && arrived[1][12..] == tagged[16..]);
        // The device's MTU shrinks behind our back.
        bed.near(&format!("link set {NEAR} mtu 1000"));
        bed.far(&format!("link set {} mtu 1000", support::FAR));
        let stage = port.stage_copy(&frame(4, 1514)).unwrap();
        let refused = port.commit(stage);
        assert!(matches!(refused, Err(SendError::TooLong | SendError::Dropped)), "{refused:?}");
        assert!(receiver.drain(0).is_empty());
    });
}

#[test]
fn a_large_mtu_takes_larger_buffers_or_the_other_adapter() {
    let bed = Bed::new();
    let set = |mtu: usize| {
        bed.near(&format!("link set {NEAR} mtu {mtu}"));
        bed.far(&format!("link set {} mtu {mtu}", support::FAR));
    };
    for (mtu, adapter) in [(3000, "af_xdp"), (4078, "af_xdp"), (4079, "af_packet"), (9000, "af_packet")] {
        set(mtu);
        let receiver = bed.receiver();
        let mut opened = bed.with_device(|device| open(device, &Options::default())).unwrap();
        if let Some(error) = &opened.fallback
            && unsupported(error)
        {
            println!("SKIP af_xdp: {error}");
            return;
        }
        assert_eq!(opened.port.capabilities().adapter, adapter);
        let refused =
            OpenError::MtuTooLong { ifname: NEAR.to_owned(), mtu_octets: mtu, mtu_octets_max: 4078 };
        assert_eq!(opened.fallback, (adapter == "af_packet").then_some(refused));
        let long = frame(1, mtu + 14);
        let stage = opened.port.stage_copy(&long).unwrap();
        opened.port.commit(stage).unwrap();
        assert!(receiver.drain(1) == [long], "MTU {mtu}");
    }
}

#[test]
fn a_dropped_port_lets_its_namespace_go() {
    each_adapter(|bed, port| {
        bed.delete_near();
        // It would go meanwhile.
        sleep(Duration::from_millis(300));
        assert!(bed.far_exists(), "an open port holds its namespace: that is why it must be dropped");
        drop(port);
        eventually("the namespace goes with the port", SOON, || !bed.far_exists());
    });
}

#[test]
fn a_device_is_described() {
    let bed = Bed::new();
    bed.near(&format!("link set {NEAR} address 02:00:00:00:aa:01"));
    bed.with_device(|device| {
        let info = link_info(device).unwrap();
        assert_eq!((info.mac, info.mtu_octets), ([2, 0, 0, 0, 0xaa, 1], 1500));
        assert_eq!(link_speed(device), Some(10_000_000_000), "what a veth claims");
        assert_eq!(
            link_info(&Device { ifname: NEAR, netns: None }).err(),
            Some(OpenError::NoDevice { ifname: NEAR.to_owned() }),
            "not in this namespace"
        );
    });
}
