// SPDX-License-Identifier: Apache-2.0
//! Captured frames on virtual clocks: like a client's, from a source that makes its own frames.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_bpf::{Clock, Counted, Taken};
use ktsn_model::{BypassReason, DropReason, Priority};
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::ClockId;
use ktsn_sched::policing::{
    FlowMeter, PolicingConfig, StreamFilter, StreamHandle, StreamIdentification, StreamIdentity, StreamMatch,
};
use ktsn_wire::template::Ends;
use ktsn_wire::{DsField, HeaderTemplate, MacAddress, Network, TemplateRepr, dissect};

use super::fake::Fake;
use super::world::{AHEAD, POD, REMOTE, World, policy, tables};
use super::{MS, US, payload};
use crate::worker::{AttachmentPolicy, Captured, Command, Policing, Returned};

/// A pod with captured frames.
struct Pod(Fake);

impl Pod {
    fn of(world: &mut World, slots: u16) -> Self {
        let ring = Fake::new();
        let captured =
            Captured::new(AttachmentIndex(0), Box::new(ring.clone()), Priority::capped(2), slots, 1450);
        world.outbox.send(Command::AddCaptured(Box::new(captured))).unwrap();
        world.worker.apply_commands();
        Self(ring)
    }

    /// What the program would have put into the ring.
    fn send(&self, clock: Clock, tx_time: u64, captured_at: u64, payload: &[u8], segment_octets: u16) {
        self.send_marked(DsField(0), clock, tx_time, captured_at, payload, segment_octets);
    }

    fn send_marked(
        &self,
        ds: DsField,
        clock: Clock,
        tx_time: u64,
        captured_at: u64,
        payload: &[u8],
        segment_octets: u16,
    ) {
        let mac = |last| MacAddress([2, 0, 0, 0, 7, last]);
        let network = Network::V4 { source: POD, destination: REMOTE, ttl: 64, ds, dont_fragment: true };
        let template = HeaderTemplate::new(&TemplateRepr {
            outer: None,
            ethernet: Ends { source: mac(1), destination: mac(2) },
            vlan: None,
            network,
            udp: Ends { source: 5000, destination: 6000 },
            udp_checksum: true,
        })
        .unwrap();
        let mut frame = vec![0; 70_000];
        let octets = template.write_frame(payload, &mut frame).unwrap();
        frame.truncate(octets);
        // As the kernel leaves it where the device is to compute it.
        frame[40..42].copy_from_slice(&[0x12, 0x34]);
        self.put(frame, clock, tx_time, captured_at, segment_octets);
    }

    /// A frame as it is.
    fn put(&self, frame: Vec<u8>, clock: Clock, tx_time: u64, captured_at: u64, segment_octets: u16) {
        let octets = frame.len();
        let taken = Taken { tx_time, clock, captured_at, octets, segment_octets };
        self.0.waiting.lock().unwrap().push_back((taken, frame));
    }
}

/// What the pod's stack wrote stays: don't-fragment, identification (counted on within a GSO packet), no UDP checksum.
#[test]
fn a_captured_frame_keeps_the_fields_of_its_header() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 64);
    let now = world.clocks.at();
    let cases = [(false, [0; 2], 0), (true, [0x12, 0x34], 4), (false, [9, 9], 0)];
    for (dont_fragment, udp_checksum, segment_octets) in cases {
        let network =
            Network::V4 { source: POD, destination: REMOTE, ttl: 64, ds: DsField(0), dont_fragment };
        let ethernet = Ends { source: MacAddress([2; 6]), destination: MacAddress([4; 6]) };
        let udp = Ends { source: 5000, destination: 6000 };
        let repr = TemplateRepr { outer: None, ethernet, vlan: None, network, udp, udp_checksum: true };
        let mut frame = vec![0; 50];
        HeaderTemplate::new(&repr).unwrap().write_frame(b"12345678", &mut frame).unwrap();
        // The header's checksum stays right: all ones are another zero.
        frame[18..20].copy_from_slice(&[0xff, 0xff]);
        frame[40..42].copy_from_slice(&udp_checksum);
        pod.put(frame, Clock::Monotonic, now + 300 * US, now, segment_octets);
    }
    world.run_until(50, |w| w.sent().len() == 4);
    let seen: Vec<_> = world
        .sent()
        .iter()
        .map(|(_, _, frame)| {
            let dissected = dissect(frame, Some(8472)).unwrap();
            let inner = &frame[50 + 14..];
            (inner[6], u16::from_be_bytes([inner[4], inner[5]]), dissected.inner.checksum())
        })
        .collect();
    use ktsn_wire::UdpChecksum::{Absent, Right};
    let expected = [(0, 0xffff, Absent), (0x40, 0xffff, Right), (0x40, 0, Right), (0, 0xffff, Right)];
    assert_eq!(seen, expected);
}

/// Else the program would go on taking frames that are never read.
#[test]
fn the_node_learns_of_a_source_that_cannot_be_waited_for() {
    let mut world = World::new(800);
    world.clocks.refuses_watch.store(true, SeqCst);
    let _pod = Pod::of(&mut world, 64);
    let refused = |back: &Returned<_>| matches!(back, Returned::CaptureRefused(AttachmentIndex(0)));
    assert_eq!(world.returned.try_iter().filter(refused).count(), 1);
}

#[test]
fn a_captured_frame_leaves_at_its_time_with_headers_of_its_way() {
    for clock in [Clock::Monotonic, Clock::Tai] {
        let mut world = World::new(800);
        let pod = Pod::of(&mut world, 64);
        let now = world.clocks.at();
        let ahead = if clock == Clock::Tai { AHEAD.unsigned_abs() } else { 0 };
        pod.send_marked(DsField(0xb8), clock, now + 300 * US + ahead, now, b"hello, listener.", 0);
        world.run_until(50, |w| !w.sent().is_empty());
        let sent = world.sent();
        let (at, _, frame) = &sent[0];
        assert!((now + 300 * US..now + 300 * US + 100).contains(at), "{clock:?} {at}");
        let dissected = dissect(frame, Some(8472)).unwrap();
        let inner = &dissected.inner;
        assert!(dissected.tunnel.is_some());
        assert_eq!(inner.checksum(), ktsn_wire::UdpChecksum::Right);
        assert_eq!((inner.source, inner.destination), (POD.into(), REMOTE.into()));
        assert_eq!((inner.datagram.source_port(), inner.datagram.destination_port()), (5000, 6000));
        // The router's hop is counted, the mark kept.
        assert_eq!((inner.hop_limit, inner.ds), (63, DsField(0xb8)));
        assert_eq!(inner.datagram.payload(), b"hello, listener.");
        assert_eq!(world.port_stats.frames[5].load(SeqCst), 1, "DSCP 46 asks for priority 5");
        assert_eq!((world.stats.taken.load(SeqCst), world.stats.sent.load(SeqCst)), (1, 1));
    }
}

#[test]
fn a_captured_frame_waits_for_its_next_hops_mac_address() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 64);
    world.outbox.send(Command::Tables(Arc::new(tables(2, false)))).unwrap();
    let now = world.clocks.at();
    pod.send(Clock::Monotonic, now + 3 * MS, now, b"who has", 0);
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 1);
    assert!(world.returned.try_iter().any(|back| matches!(back, Returned::NeighbourWanted(..))));
    world.outbox.send(Command::Tables(Arc::new(tables(3, true)))).unwrap();
    world.run_until(50, |w| !w.sent().is_empty());
    let (at, _, frame) = &world.sent()[0];
    assert!((now + 3 * MS..now + 3 * MS + 100).contains(at));
    assert_eq!(payload(frame), b"who has");
    pod.send(Clock::Monotonic, world.clocks.at() + 3 * MS, now, b"gone", 0);
    world.outbox.send(Command::Tables(Arc::new(tables(4, false)))).unwrap();
    world.run_until(50, |w| w.dropped(DropReason::NoNeighbour) == 1);
    assert_eq!((world.dropped(DropReason::NoNeighbour), world.sent().len()), (1, 1));
}

/// A slot that were released twice would be used for two frames at once.
#[test]
fn a_second_release_of_a_slot_is_a_bug_and_changes_nothing() {
    use crate::worker::owner::{Owner, frame_id};
    use crate::worker::requested_reports::End;

    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 2);
    let bugs = |world: &World| world.worker_stats.bugs.load(SeqCst);
    let now = world.clocks.at();
    // One leaves, and one is refused: a refused frame's slot was never used, and its release is none of a used slot.
    pod.send(Clock::Monotonic, now + 300 * US, now, b"first", 0);
    pod.send(Clock::Monotonic, now + 3_600_000 * MS, now, b"too far", 0);
    world.run_until(50, |w| !w.sent().is_empty() && w.dropped(DropReason::BeyondHorizon) == 1);
    assert_eq!((world.sent().len(), bugs(&world)), (1, 0));
    for slot in [0, 1] {
        world.worker.release(frame_id(Owner::Capture(AttachmentIndex(0)), slot), End::Sent(0));
        assert_eq!(bugs(&world), u64::from(slot) + 1);
    }
    // Still there are two slots, not four.
    let now = world.clocks.at();
    for payload in [b"one", b"two", b"six"] {
        pod.send(Clock::Monotonic, now + 300 * US, now, payload, 0);
    }
    world.run_until(50, |w| w.sent().len() == 3);
    assert_eq!((world.sent().len(), world.dropped(DropReason::QueueFull), bugs(&world)), (3, 1, 2));
}

#[test]
fn an_unmarked_frame_has_the_attachments_priority() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 64);
    let now = world.clocks.at();
    pod.send(Clock::Monotonic, now + 300 * US, now, b"", 0);
    world.run_until(50, |w| !w.sent().is_empty());
    assert_eq!(payload(&world.sent()[0].2), b"");
    assert_eq!(world.port_stats.frames[2].load(SeqCst), 1);
}

#[test]
fn a_gso_packet_becomes_its_datagrams() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 256);
    let now = world.clocks.at();
    let octets: Vec<u8> = (0..100 * 600 + 7).map(|n| (n / 7) as u8).collect();
    pod.send(Clock::Monotonic, now + 2 * MS, now, &octets, 600);
    world.run_until(500, |w| w.sent().len() == 101);
    let sent = world.sent();
    assert_eq!(sent.len(), 101);
    let together: Vec<u8> = sent.iter().flat_map(|(_, _, frame)| payload(frame)).collect();
    assert!(together == octets, "in order, nothing lost");
    assert!(sent.iter().all(|(at, _, _)| *at >= now + 2 * MS));
    assert_eq!(payload(&sent[100].2).len(), 7);
    assert_eq!(world.stats.sent.load(SeqCst), 101);
}

/// A client's frame that is due does not wait for a burst of captured ones.
#[test]
fn a_flood_of_captured_frames_delays_no_other() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 1024);
    let app = world.client(64);
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, now + 100 * US, now, b"due"));
    world.run_until(1, |_| false);
    for _ in 0..8 {
        pod.send(Clock::Monotonic, now + 50 * MS, now, &[0; 60_000], 500);
    }
    world.run_until(50, |w| !w.sent().is_empty());
    let (at, _, frame) = &world.sent()[0];
    assert_eq!(payload(frame), b"due");
    assert!(*at < now + 101 * US, "{} ns late", at - now - 100 * US);
    world.run_until(500, |w| w.sent().len() == 961);
    assert_eq!(world.sent().len(), 961);
}

#[test]
fn what_does_not_leave_is_named() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 4);
    let now = world.clocks.at();
    // No slot for the fifth.
    for _ in 0..5 {
        pod.send(Clock::Monotonic, now + 300 * US, now, b"x", 0);
    }
    world.run_until(100, |w| w.sent().len() == 4);
    assert_eq!((world.sent().len(), world.dropped(DropReason::QueueFull)), (4, 1));
    // Slots come back.
    let now = world.clocks.at();
    pod.send(Clock::Monotonic, now + 300 * US, now, b"x", 0);
    world.run_until(100, |w| w.sent().len() == 5);
    assert_eq!(world.sent().len(), 5);
    // Late in TAI: the etf rule drops it. Longer than the way allows. Beyond the horizon. No frame at all.
    let now = world.clocks.at();
    pod.send(Clock::Tai, now + AHEAD.unsigned_abs() - US, now, b"x", 0);
    pod.send(Clock::Monotonic, now + MS, now, &[0; 1423], 0);
    pod.send(Clock::Monotonic, now + 20_000 * MS, now, b"x", 0);
    let nonsense = Taken { tx_time: 1, clock: Clock::Tai, captured_at: now, octets: 60, segment_octets: 0 };
    pod.0.waiting.lock().unwrap().push_back((nonsense, vec![0xff; 60]));
    world.run_until(20, |_| false);
    let dropped = [DropReason::Missed, DropReason::TooLong, DropReason::BeyondHorizon, DropReason::Bug];
    assert_eq!(dropped.map(|reason| world.dropped(reason)), [1; 4]);
    assert_eq!(world.sent().len(), 5);
}

#[test]
fn the_programs_counters_become_the_attachments() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 4);
    pod.0.counters[Counted::RingFull as usize].store(3, SeqCst);
    pod.0.counters[Counted::Fragment as usize].store(4, SeqCst);
    pod.0.counters[Counted::OverMtu as usize].store(5, SeqCst);
    world.clocks.monotonic.fetch_add(300 * MS, SeqCst);
    world.run_until(1, |_| false);
    let stats = world.stats.clone();
    let over_mtu = &stats.bypassed[usize::from(BypassReason::OverMtu.number())];
    assert_eq!((world.dropped(DropReason::QueueFull), over_mtu.load(SeqCst)), (3, 9));
    pod.0.counters[Counted::RingFull as usize].store(4, SeqCst);
    world.clocks.monotonic.fetch_add(300 * MS, SeqCst);
    world.run_until(1, |_| false);
    assert_eq!((world.dropped(DropReason::QueueFull), over_mtu.load(SeqCst)), (4, 9));
}

#[test]
fn a_detached_attachments_frames_are_dropped_and_a_draining_worker_sends_them() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 64);
    let now = world.clocks.at();
    for _ in 0..3 {
        pod.send(Clock::Monotonic, now + 5 * MS, now, b"x", 0);
    }
    // Taken over first, as what was captured before.
    world.outbox.send(Command::RemoveAttachment(AttachmentIndex(0))).unwrap();
    world.run_until(10, |_| false);
    assert_eq!((world.dropped(DropReason::Detached), world.sent().len()), (3, 0));
    assert_eq!(world.worker.captures.count(), 0);

    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 64);
    let now = world.clocks.at();
    for _ in 0..3 {
        pod.send(Clock::Monotonic, now + 5 * MS, now, b"x", 0);
    }
    world.outbox.send(Command::Drain).unwrap();
    let mut passes = 0;
    while world.worker.pass() {
        passes += 1;
        assert!(passes < 100, "it ends");
    }
    assert_eq!((world.sent().len(), world.worker.captures.count()), (3, 0));
}

/// What lies in the ring and finds no room when the attachment goes is counted, each datagram of it.
#[test]
fn captured_frames_that_are_lost_at_detach_are_counted() {
    let mut world = World::new(800);
    let pod = Pod::of(&mut world, 4);
    let now = world.clocks.at();
    for _ in 0..200 {
        pod.send(Clock::Monotonic, now + 5 * MS, now, &[0; 100], 50);
    }
    world.outbox.send(Command::RemoveAttachment(AttachmentIndex(0))).unwrap();
    world.run_until(100, |w| w.worker.captures.count() == 0);
    let drops = [DropReason::Detached, DropReason::QueueFull].map(|reason| world.dropped(reason));
    assert!(drops[0] > 300 && world.sent().is_empty(), "{drops:?}");
    assert_eq!(drops[0] + drops[1], 400);
}

/// [802.1Q 8.6.5.5] A program that is captured is no way around its tenant's meter: every segment counts.
#[test]
fn clause_8_6_5_5_captured_frames_are_metered() {
    // 100 octets of payload, 92 of headers, 24 that every frame has.
    let meter = FlowMeter { committed_burst_size: 3 * (100 + 92 + 24), ..FlowMeter::default() };
    let (stream, matches) = (StreamHandle(4), StreamMatch::All { attachment: None });
    let policing = Policing::new(&PolicingConfig {
        stream_filters: vec![StreamFilter {
            stream: Some(stream),
            flow_meter: Some(0),
            ..StreamFilter::default()
        }],
        flow_meters: vec![meter],
        ..PolicingConfig::default()
    })
    .unwrap();
    let filters = policing.stats();
    let mut world = World::policed(800, World::time_aware(None), Some(policing));
    let streams = StreamIdentification::new(&[StreamIdentity { matches, stream }]).unwrap();
    let known = AttachmentPolicy { streams, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(known))).unwrap();
    let pod = Pod::of(&mut world, 64);
    let now = world.clocks.at();
    pod.send(Clock::Monotonic, now + 300 * US, now, &[7; 1000], 100);
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 10 && w.sent().len() == 3);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Policed)), (3, 7));
    assert_eq!((filters[0].counters().matching_frames, filters[0].counters().red_frames), (10, 7));
}

/// Frames 3.7 µs apart, all queued, and rings that are always full: what is captured is heard all the same.
#[test]
fn captured_frames_are_heard_where_frames_are_always_due_at_once() {
    let mut world = World::new(1000);
    let pod = Pod::of(&mut world, 64);
    let (dense, full) = (world.client(1024), world.client(256));
    let first = world.clocks.at() + 2 * MS;
    for number in 0..1000 {
        assert!(dense.push(ClockId::Monotonic, first + number * 3_700, world.clocks.at(), b"dense"));
    }
    let mut due = first + 500 * US;
    while world.clocks.at() < first + 3_700 * US {
        let now = world.clocks.at();
        // Beyond the horizon: each is dropped as soon as it is taken over.
        while full.push(ClockId::Monotonic, now + 20_000 * MS, now, b"full") {}
        if now >= due - 200 * US {
            pod.send(Clock::Monotonic, due, now, b"captured", 0);
            due += 500 * US;
        }
        world.worker.pass();
    }
    let captured: Vec<u64> = world
        .sent()
        .iter()
        .filter(|(_, _, frame)| payload(frame) == b"captured")
        .map(|sent| sent.0)
        .collect();
    assert!(captured.len() >= 6, "{} frames", captured.len());
    let late: Vec<u64> = captured.iter().map(|at| (at - first) % (500 * US)).collect();
    assert!(late.iter().all(|late| *late < 5 * US), "ns after their times: {late:?}");
}
