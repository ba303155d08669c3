// SPDX-License-Identifier: Apache-2.0
//! Periodic streams are expected: one wake-up for each of their frames, and no doorbell.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use ktsn_model::DropReason;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::{ClockId, SlotFlags};

use super::world::{App, World, tables};
use super::{MS, US};
use crate::limits;
use crate::worker::Command;

/// Frames until a stream is surely expected.
const LEARNS: u64 = 30;
/// The worker's wake-ups are so late; its margin is 60 µs.
const LATENESS: u64 = 25 * US;

/// When a program sends, and for when.
#[derive(Clone, Copy)]
struct Loop {
    /// TxTime of the first frame.
    first: u64,
    period: u64,
    /// From the program's wake-up to the TxTime.
    lead: u64,
    /// The program wakes up to so much later.
    jitter: u64,
    /// TxTimes follow the wake-up, not a grid.
    follows: bool,
    /// One frame in so many is left out, by chance; 0 = none.
    skips: u64,
    flags: SlotFlags,
}

impl Loop {
    /// 1 kHz on a grid, 300 µs ahead.
    fn grid(first: u64) -> Self {
        Self {
            first,
            period: MS,
            lead: 300 * US,
            jitter: 0,
            follows: false,
            skips: 0,
            flags: SlotFlags::NONE,
        }
    }
}

/// What a program has done.
#[derive(Clone, Default)]
struct Done {
    sent: Arc<AtomicU64>,
    rung: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
}

impl Done {
    fn counts(&self) -> (u64, u64) {
        (self.sent.load(SeqCst), self.rung.load(SeqCst))
    }
}

/// Starts a program that sends as `how` says.
fn start(world: &World, app: &App, place: u64, how: Loop) -> Done {
    let done = Done::default();
    let its = done.clone();
    let (producer, ringing) = (app.producer, world.clocks.ringing.clone());
    let (mut number, mut random) = (0u64, 1 + place);
    let wakes_at = move |number: u64, random: &mut u64| {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        how.first + number * how.period - how.lead + (*random >> 33) % (how.jitter + 1)
    };
    let begin = wakes_at(0, &mut random);
    let happening = move |now: u64| {
        if its.ends.load(SeqCst) {
            return None;
        }
        let tx_time = if how.follows { now + how.lead } else { how.first + number * how.period };
        if how.skips == 0 || !(random >> 20).is_multiple_of(how.skips) {
            let frame =
                ktsn_ring::SlotFrame { flags: how.flags, ..App::frame(ClockId::Monotonic, tx_time, now) };
            let claim = producer.claim().expect("a free slot");
            producer.fill(&claim, &frame, [&tx_time.to_be_bytes()[..]].into_iter()).unwrap();
            producer.publish(claim);
            its.sent.fetch_add(1, SeqCst);
            if let Some(bell) = producer.bell(ClockId::Monotonic, tx_time, now) {
                ringing.lock().unwrap().push(place);
                producer.rung(bell);
                its.rung.fetch_add(1, SeqCst);
            }
        }
        number += 1;
        Some(wakes_at(number, &mut random).max(now + 1))
    };
    world.clocks.happens.lock().unwrap().push((begin, Box::new(happening)));
    done
}

/// Passes until the clock shows `until`.
fn run(world: &mut World, until: u64) {
    while world.clocks.at() < until {
        assert!(world.worker.pass());
    }
}

fn wake_ups(world: &World) -> u64 {
    world.worker_stats.wake_ups.load(SeqCst)
}

/// All frames were sent on time, none was early, and none is lost.
fn check_all_on_time(world: &World, sent: u64) {
    let wire = world.sent();
    assert!(wire.len() as u64 + 1 >= sent, "{} of {sent}", wire.len());
    let errors = world.stats.transmit_error.snapshot();
    assert!(errors.max() < 2 * US, "{} ns late", errors.max());
    for (at, _, frame) in &wire {
        let due = u64::from_be_bytes(super::payload(frame).try_into().unwrap());
        assert!(*at >= due, "early by {} ns", due - at);
    }
    assert_eq!((world.stats.late.load(SeqCst), world.worker_stats.bugs.load(SeqCst)), (0, 0));
}

fn world() -> World {
    let world = World::new(1000);
    world.clocks.lateness.store(LATENESS, SeqCst);
    world
}

#[test]
fn a_grid_costs_one_wake_up_a_frame_and_no_doorbell() {
    let mut world = world();
    let app = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let done = start(&world, &app, 0, Loop::grid(first));
    run(&mut world, first + LEARNS * MS);
    let ((sent, rung), woken) = (done.counts(), wake_ups(&world));
    let expected = world.worker_stats.expected_frames.load(SeqCst);
    run(&mut world, first + (LEARNS + 500) * MS);
    let frames = done.counts().0 - sent;
    assert_eq!((done.counts().1 - rung, frames), (0, 500), "doorbells and frames");
    assert_eq!(wake_ups(&world) - woken, frames);
    assert_eq!(world.worker_stats.expected_frames.load(SeqCst) - expected, frames);
    assert_eq!(world.worker_stats.empty_wake_ups.load(SeqCst), 0);
    check_all_on_time(&world, done.counts().0);
}

/// Today's usual control loop: the program wakes 5 to 50 µs late and sends for "now + lead".
#[test]
fn a_loop_of_now_plus_lead_rings_seldom() {
    let mut world = world();
    let app = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let how = Loop { jitter: 45 * US, follows: true, ..Loop::grid(first) };
    let done = start(&world, &app, 0, how);
    run(&mut world, first + LEARNS * MS);
    let (sent, rung) = done.counts();
    run(&mut world, first + (LEARNS + 1_000) * MS);
    let (frames, rung) = (done.counts().0 - sent, done.counts().1 - rung);
    assert!(rung * 20 <= frames, "{rung} doorbells for {frames} frames");
    assert!(world.worker_stats.empty_wake_ups.load(SeqCst) * 50 <= frames);
    check_all_on_time(&world, done.counts().0);
}

#[test]
fn ten_streams_with_unrelated_phases_ring_seldom() {
    let mut world = world();
    let apps: Vec<App> = (0..10).map(|_| world.client(64)).collect();
    let first = world.clocks.at() + 10 * MS;
    let all: Vec<Done> = (0..)
        .zip(&apps)
        .map(|(place, app)| {
            let how = Loop { period: MS + place * 1_300, ..Loop::grid(first + place * 97_300) };
            start(&world, app, place, how)
        })
        .collect();
    run(&mut world, first + LEARNS * MS);
    let sum = |of: fn((u64, u64)) -> u64| all.iter().map(|done| of(done.counts())).sum::<u64>();
    let (sent, rung, woken) = (sum(|it| it.0), sum(|it| it.1), wake_ups(&world));
    run(&mut world, first + (LEARNS + 300) * MS);
    let (frames, rung) = (sum(|it| it.0) - sent, sum(|it| it.1) - rung);
    assert!(frames > 2_900 && rung * 50 <= frames, "{rung} doorbells for {frames} frames");
    assert!(wake_ups(&world) - woken <= frames, "more than one wake-up for a frame");
    assert_eq!(world.stats.late.load(SeqCst), 0);
}

#[test]
fn a_stream_that_ends_costs_a_few_empty_wake_ups() {
    let mut world = world();
    let app = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let done = start(&world, &app, 0, Loop::grid(first));
    run(&mut world, first + 200 * MS);
    done.ends.store(true, SeqCst);
    run(&mut world, first + 250 * MS);
    let empty = world.worker_stats.empty_wake_ups.load(SeqCst);
    assert!((1..=u64::from(limits::EMPTY_IN_A_ROW)).contains(&empty), "{empty}");
    // From then on only the polls that a worker with clients makes anyway.
    let woken = wake_ups(&world);
    run(&mut world, first + 3_250 * MS);
    assert_eq!(world.worker_stats.empty_wake_ups.load(SeqCst), empty);
    assert!(wake_ups(&world) - woken <= 13, "{} wake-ups in 3 s", wake_ups(&world) - woken);
    // It comes back with another phase.
    let first = world.clocks.at() + 10 * MS + 333 * US;
    let again = start(&world, &app, 0, Loop::grid(first));
    run(&mut world, first + 100 * MS);
    let rung = again.counts().1;
    run(&mut world, first + 300 * MS);
    assert_eq!(again.counts().1, rung, "it is expected again");
    check_all_on_time(&world, done.counts().0 + again.counts().0);
}

/// A program that is less ahead than the worker wakes is served as before: its doorbell wakes the worker.
#[test]
fn a_program_that_sends_too_late_for_the_wake_up_rings() {
    let mut world = world();
    world.clocks.lateness.store(US, SeqCst);
    let app = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let done = start(&world, &app, 0, Loop { lead: 50 * US, ..Loop::grid(first) });
    run(&mut world, first + 1_000 * MS);
    let (sent, rung) = done.counts();
    assert!(rung * 10 >= sent * 9, "{rung} doorbells for {sent} frames");
    let empty = world.worker_stats.empty_wake_ups.load(SeqCst);
    assert!((1..=15).contains(&empty), "{empty} empty wake-ups for {sent} frames");
    check_all_on_time(&world, sent);
}

/// A frame that asks for a report is taken over at once, as its report says when that was; so is each of its stream.
#[test]
fn frames_that_ask_for_reports_ring() {
    for flags in [SlotFlags::REPORT, SlotFlags::STAMP_SCHED, SlotFlags::STAMP_SOFTWARE] {
        let mut world = world();
        let app = world.client(256);
        let first = world.clocks.at() + 10 * MS;
        let done = start(&world, &app, 0, Loop { flags, ..Loop::grid(first) });
        // Another stream is expected: that does not change the first one's promise.
        let other = world.client(64);
        start(&world, &other, 1, Loop::grid(first + 333 * US));
        run(&mut world, first + 60 * MS);
        let (sent, rung) = done.counts();
        assert!(sent >= 60 && rung + 1 >= sent, "{rung} doorbells for {sent} frames");
    }
}

/// A next hop without MAC address is asked for when the frame is taken over: early is better.
#[test]
fn frames_to_an_unknown_neighbour_ring() {
    let mut world = world();
    let app = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let done = start(&world, &app, 0, Loop::grid(first));
    run(&mut world, first + 60 * MS);
    let rung = done.counts().1;
    run(&mut world, first + 100 * MS);
    assert_eq!(done.counts().1, rung, "it is expected");
    world.outbox.send(Command::Tables(Arc::new(tables(2, false)))).unwrap();
    run(&mut world, first + 110 * MS);
    let before = done.counts();
    run(&mut world, first + 160 * MS);
    let after = done.counts();
    assert_eq!(after.0 - before.0, after.1 - before.1, "a frame did not ring");
    assert!(world.dropped(DropReason::NoNeighbour) >= 50);
}

/// A clock that is set takes along what was learnt of its transmit times, and no frame.
#[test]
fn a_step_of_tai_voids_what_is_expected() {
    let mut world = world();
    let app = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let done = start(&world, &app, 0, Loop::grid(first));
    run(&mut world, first + 100 * MS);
    let rung = done.counts().1;
    world.clocks.tai_ahead.fetch_sub(40 * MS as i64, SeqCst);
    run(&mut world, first + 200 * MS);
    assert!(world.worker_stats.clock_steps.load(SeqCst) > 0);
    assert!(done.counts().1 - rung <= 2, "the stream is on MONOTONIC");
    check_all_on_time(&world, done.counts().0);
}

/// Streams that leave one frame in four out stay expected. Their attachment may wake the worker for nothing so often a second; the
/// frames of another one are on time all the while.
#[test]
fn an_attachment_has_a_budget_of_empty_wake_ups() {
    let mut world = world();
    world
        .outbox
        .send(Command::SetAttachment(AttachmentIndex(1), Box::new(super::policy(&Arc::default()))))
        .unwrap();
    world.outbox.send(Command::Tables(Arc::new(super::world::tables_of(2, true, 2)))).unwrap();
    let good = world.client(64);
    let first = world.clocks.at() + 10 * MS;
    let done = start(&world, &good, 0, Loop { period: 10 * MS, ..Loop::grid(first) });
    let bad: Vec<App> = (0..16).map(|_| world.client_of(AttachmentIndex(1), 64)).collect();
    for (place, app) in (1..).zip(&bad) {
        let grid = Loop::grid(first + place * 613 * US);
        start(&world, app, place, Loop { period: 10 * MS, skips: 4, ..grid });
    }
    let seconds = 3;
    run(&mut world, first + seconds * 1_000 * MS);
    let empty = world.worker_stats.empty_wake_ups.load(SeqCst);
    let most = (seconds + 1) * u64::from(limits::EMPTY_WAKE_UPS_A_SECOND);
    assert!((most / 3..=most).contains(&empty), "{empty} empty wake-ups");
    assert_eq!(world.stats.late.load(SeqCst), 0);
    let errors = world.stats.transmit_error.snapshot();
    assert!(errors.max() < 5 * US, "{} ns late", errors.max());
    assert!(done.counts().0 >= 299);
}
