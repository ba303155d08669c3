// SPDX-License-Identifier: Apache-2.0
//! Datagrams that only the kernel can send: their fragments have one window.

use std::net::IpAddr;

use ktsn_model::{DropReason, Priority};
use ktsn_resolve::{AttachmentIndex, Flow, Marks};
use ktsn_sched::policing::{
    PolicingConfig, StreamFilter, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch,
};
use ktsn_time::{Monotonic, Tai, TxTime};

use super::gates::gated;
use super::world::{POD, REMOTE, World, policy};
use super::{MS, US};
use crate::queue::{Receiver, worker_to_thread};
use crate::worker::{AttachmentPolicy, Command, ForPasser, Judged, Judging, Policing};

/// A worker, and the thread that asks it.
struct Bench {
    world: World,
    passed: Receiver<ForPasser>,
    number: u64,
}

impl Bench {
    fn new(mut world: World) -> Self {
        let (passer, passed) = worker_to_thread(8).unwrap();
        world.worker.passer = Some(passer);
        Self { world, passed, number: 0 }
    }

    /// The answer to a datagram with these lengths of payload and segment.
    fn judge(&mut self, lengths: (u32, u16), source_port: u16, tx_time: TxTime, priority: u32) -> Judged {
        self.number += 1;
        let flow = Flow {
            attachment: AttachmentIndex(0),
            uid: 0,
            is_connected: false,
            bound: Some(IpAddr::V4(POD)),
            source_port,
            destination: IpAddr::V4(REMOTE),
            destination_port: 9,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        };
        let judging = Judging {
            netns_cookie: 5,
            number: self.number,
            flow,
            priority: Priority::capped(priority),
            payload_octets: lengths.0,
            segment_octets: lengths.1,
            tx_time,
        };
        self.world.outbox.send(Command::Judge(Box::new(judging))).unwrap();
        self.world.worker.apply_commands();
        match self.passed.try_recv() {
            Ok(ForPasser::Judged(5, of, judged)) if of == self.number => judged,
            other => panic!("{other:?}"),
        }
    }
}

/// Class 6 is open from 300 µs to 400 µs of each millisecond, at 1 Gbit/s; 20 µs go to the hand-over.
#[test]
fn clause_8_6_8_4_fragments_wait_for_a_window_that_holds_all_of_them() {
    let (world, start) = gated();
    let now = world.clocks.at();
    let mut bench = Bench::new(world);
    let mut judge = |octets, tx_time, priority| bench.judge((octets, 0), 5000, tx_time, priority);
    let tai = |at| TxTime::Tai(Tai::from_nanos(start + at));
    let opens = |at| Ok(Some(Tai::from_nanos(start + at)));
    // 8,000 octets take 69 µs, 9,000 take 77 and 10,000 take 86.
    assert_eq!(judge(8_000, tai(100 * US), 6), opens(300 * US));
    assert_eq!(judge(8_000, tai(305 * US), 6), Ok(None), "at its own time");
    assert_eq!(judge(8_000, tai(320 * US), 6), opens(MS + 300 * US), "the rest of the window is too short");
    assert_eq!(judge(8_000, TxTime::Monotonic(Monotonic::from_nanos(now + 100 * US)), 6), opens(300 * US));
    assert_eq!(judge(8_000, TxTime::Monotonic(Monotonic::ZERO), 6), opens(300 * US), "in the past");
    assert_eq!(judge(9_000, tai(0), 6), opens(300 * US));
    assert_eq!(judge(10_000, tai(0), 6), Err(DropReason::GateNeverFits));
    assert_eq!(judge(65_507, tai(100 * US), 0), Ok(None), "another class is always open");
}

/// Each segment is a datagram with headers of its own.
#[test]
fn udp_segment_counts_the_headers_of_each_segment() {
    let (world, start) = gated();
    let mut bench = Bench::new(world);
    let mut judge = |lengths| bench.judge(lengths, 5000, TxTime::Tai(Tai::from_nanos(start)), 6);
    let opens = Ok(Some(Tai::from_nanos(start + 300 * US)));
    // 70 segments of 100 octets take 121 µs, 7 of 1,000 take 62; whole, 7,000 octets take 60.
    assert_eq!(judge((7_000, 0)), opens);
    assert_eq!(judge((7_000, 1_000)), opens);
    assert_eq!(judge((7_000, 100)), Err(DropReason::GateNeverFits));
    // A last segment that is shorter has headers, too: 46 segments of 100 octets take 79.5 µs, one octet more 80.4.
    assert_eq!(judge((4_600, 100)), opens);
    assert_eq!(judge((4_601, 100)), Err(DropReason::GateNeverFits));
}

/// A stream is known by the datagram's own source port, and its longest segment is the service data unit.
#[test]
fn clause_8_6_5_3_a_stream_is_known_by_its_port_and_held_by_its_longest_segment() {
    let stream = StreamHandle(4);
    let matches = StreamMatch::Ip {
        attachment: None,
        source: None,
        destination: None,
        protocol: None,
        source_port: Some(5000),
        destination_port: None,
    };
    // What follows the outer MAC header: payload and 78 octets of headers.
    let filter =
        StreamFilter { stream: Some(stream), max_sdu_octets: Some(1_078), ..StreamFilter::default() };
    let policing =
        Policing::new(&PolicingConfig { stream_filters: vec![filter], ..PolicingConfig::default() }).unwrap();
    let mut world = World::policed(800, World::time_aware(None), Some(policing));
    let streams = StreamIdentification::new(&[StreamIdentity { matches, stream }]).unwrap();
    let policy = AttachmentPolicy { streams, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(policy))).unwrap();
    world.worker.apply_commands();
    let mut bench = Bench::new(world);
    let mut judge = |lengths, port| bench.judge(lengths, port, TxTime::Monotonic(Monotonic::ZERO), 0);
    assert_eq!(judge((8_000, 1_000), 5000), Ok(None));
    assert_eq!(judge((8_000, 1_001), 5000), Err(DropReason::Policed));
    assert_eq!(judge((8_000, 1_001), 5001), Ok(None), "another stream");
    assert_eq!(judge((8_000, 0), 5000), Err(DropReason::Policed), "fragments");
}
