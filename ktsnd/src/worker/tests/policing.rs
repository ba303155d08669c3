// SPDX-License-Identifier: Apache-2.0
//! Policing in front of a port's queue (802.1Q-2022 8.6.5), in the shipped loop.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::Priority;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::ClockId;
use ktsn_sched::policing::{
    FlowMeter, PolicingConfig, StreamFilter, StreamGate, StreamGateEntry, StreamGateState, StreamHandle,
    StreamIdentification, StreamIdentity, StreamMatch,
};
use ktsn_time::Tai;

use super::world::{App, World, policy, tables_of};
use super::*;
use crate::stats::{AttachmentStats, StreamFilterStats};

/// Octets on the wire of a frame with 100 octets of payload: 92 of headers, 24 that every frame has.
const WIRE: u32 = 100 + 92 + 24;
const HANDLE: StreamHandle = StreamHandle(4);

fn all_of_one(stream: StreamHandle) -> StreamIdentification {
    let matches = StreamMatch::All { attachment: None };
    StreamIdentification::new(&[StreamIdentity { matches, stream }]).unwrap()
}

/// A world where attachment 0 is the stream `HANDLE`.
fn world(config: &PolicingConfig) -> (World, Arc<[StreamFilterStats]>) {
    let policing = Policing::new(config).unwrap();
    let filters = policing.stats();
    let mut world = World::policed(800, World::time_aware(None), Some(policing));
    let known = AttachmentPolicy { streams: all_of_one(HANDLE), ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(known))).unwrap();
    world.worker.apply_commands();
    (world, filters)
}

fn filter() -> StreamFilter {
    StreamFilter { stream: Some(HANDLE), ..StreamFilter::default() }
}

/// So many frames that may leave at once; passes until all are taken.
fn push(world: &mut World, app: &App, count: usize, octets: usize) {
    let taken = world.stats.taken.load(SeqCst) + count as u64;
    for _ in 0..count {
        assert!(app.push(ClockId::Monotonic, 0, world.clocks.at(), &vec![7; octets]));
    }
    world.run_until(100, |w| w.stats.taken.load(SeqCst) == taken);
}

#[test]
fn clause_8_6_5_5_a_meter_lets_pass_its_burst_and_then_its_rate() {
    let meter = FlowMeter {
        committed_information_rate: 8 * u64::from(WIRE) * 1_000,
        committed_burst_size: 3 * WIRE,
        ..FlowMeter::default()
    };
    let (mut world, filters) = world(&PolicingConfig {
        stream_filters: vec![StreamFilter { flow_meter: Some(0), ..filter() }],
        flow_meters: vec![meter],
        ..PolicingConfig::default()
    });
    let app = world.client(64);
    push(&mut world, &app, 10, 100);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Policed)), (3, 7));
    // One frame a millisecond: after ten of them there is no more than the burst.
    world.clocks.monotonic.fetch_add(10 * MS, SeqCst);
    push(&mut world, &app, 5, 100);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Policed)), (6, 9));
    let seen = filters[0].counters();
    assert_eq!((seen.matching_frames, seen.passing_frames, seen.red_frames), (15, 15, 9));
    // Slots of what was dropped are free again.
    let again = (0..64).filter(|_| app.push(ClockId::Monotonic, 0, world.clocks.at(), b"")).count();
    assert_eq!(again, 64);
}

#[test]
fn clause_8_6_5_3_longer_frames_are_dropped_and_block_their_filter() {
    let (mut world, filters) = world(&PolicingConfig {
        stream_filters: vec![StreamFilter {
            // What follows the outer MAC header: payload and 78 octets of headers.
            max_sdu_octets: Some(178),
            blocked_due_to_oversize_frame_enabled: true,
            ..filter()
        }],
        ..PolicingConfig::default()
    });
    let app = world.client(64);
    push(&mut world, &app, 2, 100);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Policed)), (2, 0));
    assert!(!filters[0].tripped().blocked_due_to_oversize_frame);
    push(&mut world, &app, 1, 101);
    push(&mut world, &app, 1, 100);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Policed)), (2, 2));
    let seen = filters[0].counters();
    assert_eq!((seen.passing_sdu, seen.not_passing_sdu), (2, 2));
    assert!(filters[0].tripped().blocked_due_to_oversize_frame);
}

/// Open for the first half of each millisecond of TAI.
fn gate() -> StreamGate {
    let entry = |state, ipv| StreamGateEntry {
        state,
        ipv,
        interval: Nanos::from_micros(500),
        interval_octet_max: None,
    };
    StreamGate {
        gate_enabled: true,
        base_time: Tai::from_nanos(0),
        cycle_time: Nanos::from_millis(1),
        control_list: vec![
            entry(StreamGateState::Open, Some(Priority::capped(2))),
            entry(StreamGateState::Closed, None),
        ],
        ..StreamGate::default()
    }
}

/// The priority that a gate gives decides about the class; the one that was asked for, whether it may be asked for.
#[test]
fn clause_8_6_5_4_a_gate_drops_while_closed_and_moves_frames_to_another_class() {
    let (mut world, filters) = world(&PolicingConfig {
        stream_filters: vec![StreamFilter { stream_gate: Some(0), ..filter() }],
        stream_gates: vec![gate()],
        ..PolicingConfig::default()
    });
    let app = world.client(64);
    let into = |world: &World, offset: u64| {
        let rest = MS - world.clocks.tai_now() % MS;
        world.clocks.monotonic.fetch_add(rest + offset, SeqCst);
    };
    into(&world, 100 * US);
    push(&mut world, &app, 2, 100);
    let frames = |world: &World| [2, 6].map(|class: usize| world.port_stats.frames[class].load(SeqCst));
    assert_eq!(frames(&world), [2, 0]);
    into(&world, 600 * US);
    push(&mut world, &app, 3, 100);
    assert_eq!((frames(&world), world.dropped(DropReason::Policed)), ([2, 0], 3));
    let seen = filters[0].counters();
    assert_eq!((seen.passing_frames, seen.not_passing_frames), (2, 3));
    // Class 6 was asked for: an attachment without it cannot enter by the gate's class either.
    let low = AttachmentPolicy { classes: 1 << 2, streams: all_of_one(HANDLE), ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(low))).unwrap();
    into(&world, 100 * US);
    push(&mut world, &app, 1, 100);
    assert_eq!((frames(&world), world.dropped(DropReason::Policed)), ([2, 0], 4));
    assert_eq!(filters[0].counters(), seen, "it never came to the filter");
}

/// One tenant is metered, the other one is not: no filter speaks of its frames. A policy with other streams holds from then on,
/// also for destinations that were known before.
#[test]
fn clause_6_7_streams_follow_the_attachment_and_its_policy() {
    let (mut world, filters) = world(&PolicingConfig {
        stream_filters: vec![StreamFilter { flow_meter: Some(0), ..filter() }],
        flow_meters: vec![FlowMeter { committed_burst_size: WIRE, ..FlowMeter::default() }],
        ..PolicingConfig::default()
    });
    world.outbox.send(Command::Tables(Arc::new(tables_of(2, true, 2)))).unwrap();
    let other = Arc::new(AttachmentStats::default());
    let unknown = AttachmentPolicy { streams: StreamIdentification::default(), ..policy(&other) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(1), Box::new(unknown))).unwrap();
    world.worker.apply_commands();
    let (metered, free) = (world.client(64), world.client_of(AttachmentIndex(1), 64));
    for _ in 0..20 {
        assert!(free.push(ClockId::Monotonic, 0, world.clocks.at(), &[1; 100]));
    }
    push(&mut world, &metered, 5, 100);
    world.run_until(20, |_| other.sent.load(SeqCst) == 20);
    assert_eq!((other.sent.load(SeqCst), world.stats.sent.load(SeqCst)), (20, 1));
    assert_eq!(filters[0].counters().matching_frames, 5);
    // The destination is known by now; the new policy says that its frames are another stream.
    let moved = AttachmentPolicy { streams: all_of_one(StreamHandle(5)), ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(moved))).unwrap();
    push(&mut world, &metered, 5, 100);
    assert_eq!((world.stats.sent.load(SeqCst), filters[0].counters().matching_frames), (6, 5));
}

/// With any frames, at any instants: what left conforms to the meter over every span, and each frame is counted once.
#[test]
fn clause_12_31_2_counters_add_up_and_no_span_carries_more_than_the_meter() {
    // The worker sleeps for 250 ms after each push.
    let (rate, burst) = (20_000u64, 2_000u32);
    let (mut world, filters) = world(&PolicingConfig {
        stream_filters: vec![StreamFilter { max_sdu_octets: Some(700), flow_meter: Some(0), ..filter() }],
        flow_meters: vec![FlowMeter {
            committed_information_rate: rate,
            committed_burst_size: burst,
            ..FlowMeter::default()
        }],
        ..PolicingConfig::default()
    });
    let app = world.client(64);
    let mut random = 0x2545_f491_4f6c_dd1du64;
    for _ in 0..400 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        push(&mut world, &app, (random % 4) as usize, 20 + (random >> 8) as usize % 800);
        world.clocks.monotonic.fetch_add(random % (2 * MS), SeqCst);
    }
    let seen = filters[0].counters();
    let (taken, sent) = (world.stats.taken.load(SeqCst), world.stats.sent.load(SeqCst));
    assert_eq!((seen.matching_frames, seen.passing_frames - seen.red_frames), (taken, sent));
    assert_eq!(seen.passing_sdu + seen.not_passing_sdu, taken);
    assert_eq!(seen.not_passing_sdu + seen.red_frames, world.dropped(DropReason::Policed));
    assert!(seen.red_frames > 20 && seen.not_passing_sdu > 20 && sent > 100, "{seen:?}");
    // Frames leave right after they were judged: a few passes, a few hundred nanoseconds each.
    let slack = 20 * US;
    let wire: Vec<(u64, u64)> = world.sent().iter().map(|(at, _, f)| (*at, f.len() as u64 + 24)).collect();
    for first in 0..wire.len() {
        let mut octets = 0;
        for (at, length) in &wire[first..] {
            octets += length;
            let span = at - wire[first].0 + slack;
            let most = u64::from(burst) + rate * span / 8_000_000_000 + 1;
            assert!(octets <= most, "{octets} octets in {span} ns, {most} allowed");
        }
    }
}
