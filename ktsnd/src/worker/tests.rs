// SPDX-License-Identifier: Apache-2.0
//! The shipped loop on virtual clocks: never early, conservation, the late rules, ends of every kind.
#![allow(clippy::cast_possible_truncation)]

mod attention;
mod captured;
mod clock;
mod commands;
mod copies;
mod expected;
mod fake;
mod flood;
mod gates;
mod held;
mod isolation;
mod judged;
mod late;
mod link;
mod neighbours;
mod passing;
mod policing;
mod reports;
mod routes;
mod slow;
mod world;

use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::DropReason;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::{ClockId, RegionState};
use ktsn_time::Nanos;
use ktsn_wire::dissect;
use proptest::prelude::*;

use super::*;
use crate::limits;
pub(super) use fake::Fake;
use world::{AHEAD, World, tables};
pub(super) use world::{App, Clocks, policy};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;

/// A scheduler without gates.
pub(super) fn time_aware() -> ktsn_sched::TimeAware {
    World::time_aware(None)
}

/// The payload of a VXLAN frame.
fn payload(frame: &[u8]) -> Vec<u8> {
    dissect(frame, Some(8472)).unwrap().payload().to_vec()
}

#[test]
fn a_frame_leaves_at_its_time_on_the_overlay() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, now + 300 * US, now, b"hello, listener."));
    world.run_until(50, |w| !w.sent().is_empty());
    let sent = world.sent();
    assert_eq!(sent.len(), 1);
    let (at, _, frame) = &sent[0];
    assert!((now + 300 * US..now + 300 * US + 100).contains(at), "{} ns after", at - now - 300 * US);
    assert_eq!(payload(frame), b"hello, listener.");
    assert_eq!(world.stats.sent.load(SeqCst), 1);
    assert_eq!(world.stats.transmit_error.snapshot().len(), 1);
    // Its slot is free again: all of them can be pushed.
    let pushed = (0..64).filter(|_| app.push(ClockId::Monotonic, world.clocks.at(), now, b"")).count();
    assert_eq!(pushed, 64);
}

#[test]
fn a_clock_that_steps_back_in_the_last_stretch_does_not_make_a_frame_early() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    let at = (now + MS).saturating_add_signed(AHEAD);
    app.push(ClockId::Tai, at, now, b"stepped");
    // 2 µs before its time, when the frame lies ready and only the clock is read.
    world.clocks.step_back.store(5 * MS as i64, SeqCst);
    world.clocks.step_at.store(now + MS - 2 * US, SeqCst);
    world.run_until(50, |w| !w.sent().is_empty());
    let (monotonic, tai, _) = world.sent()[0].clone();
    assert!(tai >= at, "early by {} ns", at - tai);
    assert!(monotonic >= now + 6 * MS);
}

#[test]
fn the_port_is_warmed_up_shortly_before_a_frame() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    let at = |number: u64| now + number * MS;
    app.push(ClockId::Monotonic, at(1), now, b"the first one");
    app.push(ClockId::Monotonic, at(2), now, b"in time");
    world.run_until(40, |w| w.sent().len() == 2);
    let warmed = world.warmed.lock().unwrap().clone();
    // After a pause twice: the first call takes long.
    assert_eq!(warmed.len(), 3, "{warmed:?}");
    assert!((at(1) - 40 * US..at(1) - 30 * US).contains(&warmed[0]), "{} before", at(1) - warmed[0]);
    for (number, warmed) in [(1, warmed[1]), (2, warmed[2])] {
        assert!(
            (at(number) - 10 * US..=at(number) - 6 * US).contains(&warmed),
            "{} before",
            at(number) - warmed
        );
    }
    app.push(ClockId::Monotonic, 0, world.clocks.at(), b"at once");
    world.run_until(20, |w| w.sent().len() == 3);
    assert_eq!(world.warmed.lock().unwrap().len(), 3, "a frame that is due does not wait for it");
}

#[test]
fn a_port_that_is_slow_to_warm_up_is_left_alone() {
    let mut world = World::new(800);
    let app = world.client(64);
    world.clocks.warm_up.store(8 * US, SeqCst);
    let mut late = 0;
    for number in 1..=60 {
        let now = world.clocks.at();
        app.push(ClockId::Monotonic, now + MS, now, b"");
        world.run_until(40, |w| w.sent().len() == number);
        late += usize::from(world.sent()[number - 1].0 > now + MS + US);
    }
    // And once before the first frame, after the pause: that says nothing of the port.
    assert_eq!(world.warmed.lock().unwrap().len(), 17);
    assert!(late <= 16, "{late} frames late");
}

#[test]
fn frames_of_a_process_that_ended_are_sent_and_then_it_goes() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    for i in 0..10 {
        app.push(ClockId::Monotonic, now + (i + 1) * MS, now, &[i as u8; 16]);
    }
    // Nothing was taken over yet when the process ends.
    world.outbox.send(Command::EndClient(app.key)).unwrap();
    world.run_until(200, |w| w.sent().len() == 10);
    let sent: Vec<_> = world.sent().iter().map(|(_, _, f)| payload(f)[0]).collect();
    assert_eq!(sent, (0..10).collect::<Vec<u8>>());
    let handed_back = world.returned.try_iter().any(|r| matches!(r, Returned::Client(c) if c.key == app.key));
    assert!(handed_back);
    // A program that lives on, and has only closed its connection, finds out: what it publishes now it takes back.
    assert_eq!(app.producer.state(), RegionState::Detached);
    app.push(ClockId::Monotonic, now + MS, now, b"too late");
    assert_eq!((app.producer.take_back(), app.producer.free_count()), (1, 64));
}

/// A list longer than one pass takes is walked to its end, or the client would hold its last frames for ever.
#[test]
fn a_full_region_of_a_process_that_was_killed() {
    let mut world = World::new(800);
    let app = world.client(1024);
    let now = world.clocks.at();
    for i in 0..1024 {
        assert!(app.push(ClockId::Monotonic, now + MS + i * US, now, b"the last words.."));
    }
    world.outbox.send(Command::EndClient(app.key)).unwrap();
    world.run_until(5000, |w| w.sent().len() == 1024);
    assert_eq!(world.sent().len(), 1024);
    assert!(world.returned.try_iter().any(|r| matches!(r, Returned::Client(c) if c.key == app.key)));
}

#[test]
fn detaching_drops_what_is_queued_and_marks_the_region() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    for _ in 0..5 {
        app.push(ClockId::Monotonic, now + 9_000 * MS, now, b"far ahead");
    }
    world.run_until(2, |_| false);
    world.outbox.send(Command::RemoveAttachment(AttachmentIndex(0))).unwrap();
    world.run_until(20, |w| w.dropped(DropReason::Detached) == 5);
    assert_eq!(world.dropped(DropReason::Detached), 5);
    assert_eq!(app.producer.state(), RegionState::Detached);
    world.outbox.send(Command::EndClient(app.key)).unwrap();
    world.run_until(2, |_| false);
    assert!(world.returned.try_iter().any(|r| matches!(r, Returned::Client(_))));
}

#[test]
fn draining_sends_what_is_queued_and_takes_nothing_new() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 50 * MS, now, b"queued");
    world.outbox.send(Command::Drain).unwrap();
    let mut passes = 0;
    while world.worker.pass() {
        passes += 1;
        assert!(passes < 1000);
    }
    assert_eq!(world.sent().len(), 1);
    assert!(world.sent()[0].0 >= now + 50 * MS);
    assert_eq!(app.producer.state(), RegionState::Detached);
}

#[test]
fn a_class_that_is_not_granted_is_policed_and_a_wrong_token_is_corrupt() {
    let mut world = World::new(800);
    let app = world.client(64);
    let only_low = AttachmentPolicy { classes: 0b1, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(only_low))).unwrap();
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"class 6");
    let stale = ktsn_ring::SlotFrame { token: 8, ..App::frame(ClockId::Monotonic, now + MS, now) };
    app.push_frame(&stale, b"another token");
    let nowhere = ktsn_ring::SlotFrame { port: 0, ..App::frame(ClockId::Monotonic, now + MS, now) };
    app.push_frame(&nowhere, b"port 0");
    world.run_until(3, |_| false);
    assert_eq!(world.dropped(DropReason::Policed), 1);
    assert_eq!(world.dropped(DropReason::PeerCorrupt), 2);
    assert!(world.sent().is_empty());
}

#[test]
fn the_spin_budget_holds_and_frames_still_leave_never_early() {
    let mut world = World::new(100);
    let app = world.client(64);
    let began = world.clocks.at();
    let mut due = Vec::new();
    // 5,000 frames a second, 60 µs of spin each: 30 % wanted, 10 % allowed.
    for i in 0..5000u64 {
        let at = began + MS + i * 200 * US;
        world.clocks.monotonic.fetch_max(at - 100 * US, SeqCst);
        if app.push(ClockId::Monotonic, at, world.clocks.at(), &i.to_be_bytes()) {
            due.push(at);
        }
        world.run_until(10, |w| w.sent().len() == due.len());
    }
    world.run_until(10_000, |w| w.sent().len() == due.len());
    let sent = world.sent();
    assert_eq!(sent.len(), due.len());
    assert!(sent.iter().zip(&due).all(|((at, _, _), due)| at >= due));
    let spun = world.worker_stats.spin_ns.load(SeqCst);
    let seconds = (world.clocks.at() - began).div_ceil(1_000 * MS) + 1;
    assert!(spun <= seconds * 101 * MS, "{spun} ns in {seconds} s");
    assert!(world.worker_stats.spin_budget_spent.load(SeqCst) > 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// Whatever is pushed, every frame is sent or dropped once, none early, equal times in order.
    #[test]
    fn conservation_and_never_early(
        frames in proptest::collection::vec((0u64..3_000, any::<bool>(), 0usize..600, 0u8..2), 1..200),
        lateness in 0u64..200_000,
    ) {
        let mut world = World::new(800);
        world.clocks.lateness.store(lateness, SeqCst);
        let apps = [world.client(64), world.client(64)];
        let began = world.clocks.at();
        let mut pushed = 0u64;
        for (number, (ahead, tai, octets, who)) in frames.iter().enumerate() {
            let now = world.clocks.at();
            let at = began + ahead * US;
            let (clock, tx_time) =
                if *tai { (ClockId::Tai, at.saturating_add_signed(AHEAD)) } else { (ClockId::Monotonic, at) };
            let mut payload = vec![0; 16 + octets];
            payload[..8].copy_from_slice(&(number as u64).to_be_bytes());
            payload[8..16].copy_from_slice(&at.to_be_bytes());
            if apps[usize::from(*who)].push(clock, tx_time, now, &payload) {
                pushed += 1;
            }
            if number % 7 == 0 {
                world.worker.pass();
            }
        }
        for _ in 0..2_000 {
            world.worker.pass();
        }
        let sent = world.sent();
        for (at, _, frame) in &sent {
            let due = u64::from_be_bytes(payload(frame)[8..16].try_into().unwrap());
            prop_assert!(*at >= due, "early by {}", due - at);
        }
        let dropped: u64 = DropReason::ALL.iter().map(|r| world.dropped(*r)).sum();
        prop_assert_eq!(sent.len() as u64 + dropped, pushed);
        prop_assert_eq!(world.worker_stats.bugs.load(SeqCst), 0);
        // All slots are free again.
        let now = world.clocks.at();
        for app in &apps {
            let free = (0..65).filter(|_| app.push(ClockId::Monotonic, now, now, b"")).count();
            prop_assert_eq!(free, 64);
        }
    }
}

/// ring may not know model; both number the bypass reasons, and the counters are matched by number.
#[test]
fn ring_and_model_number_the_bypass_reasons_alike() {
    use ktsn_model::BypassReason;
    use ktsn_ring::bypass;
    let pairs = [
        (bypass::NO_TXTIME, BypassReason::NoTxtime),
        (bypass::NOT_ATTACHED, BypassReason::NotAttached),
        (bypass::NOT_ALLOWED, BypassReason::NotAllowed),
        (bypass::OWN_ADDRESS, BypassReason::OwnAddress),
        (bypass::OVER_MTU, BypassReason::OverMtu),
        (bypass::UNSUPPORTED_OPTION, BypassReason::UnsupportedOption),
        (bypass::UNSUPPORTED_FAMILY, BypassReason::UnsupportedFamily),
        (bypass::ROUTING_RULES, BypassReason::RoutingRules),
    ];
    assert_eq!(pairs.len(), BypassReason::COUNT);
    for (number, reason) in pairs {
        assert_eq!(number, reason.number());
    }
}

#[test]
fn a_broken_list_retires_the_region_but_not_what_it_had_reached() {
    let mut world = World::new(800);
    let app = world.client(64);
    let other = world.client(64);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"good");
    world.run_until(1, |w| w.stats.taken.load(SeqCst) == 1);
    // The head names a slot that does not exist.
    app.poke(ktsn_ring::layout::HEAD, 4096);
    app_and_other_go_on(&mut world, &other, now);
    assert_eq!(app.producer.state(), RegionState::Retired);
    assert_eq!(world.worker_stats.regions_retired.load(SeqCst), 1);
    world.outbox.send(Command::EndClient(app.key)).unwrap();
    world.run_until(5, |_| false);
    assert!(world.returned.try_iter().any(|r| matches!(r, Returned::Client(c) if c.key == app.key)));
}

fn app_and_other_go_on(world: &mut World, other: &App, now: u64) {
    other.push(ClockId::Monotonic, now + 2 * MS, now, b"another tenant");
    world.run_until(200, |w| w.sent().len() == 2);
    let sent: Vec<_> = world.sent().iter().map(|(_, _, f)| payload(f)).collect();
    assert_eq!(sent, [b"good".to_vec(), b"another tenant".to_vec()]);
}

/// More commands than one pass applies must not be slept over: no doorbell rings for them again.
#[test]
fn many_commands_are_applied_without_sleeping_between() {
    let mut world = World::new(800);
    let began = world.clocks.at();
    let count = limits::COMMANDS_A_PASS as u64 * 5 + 3;
    for generation in 2..2 + count {
        world.outbox.send(Command::Tables(Arc::new(tables(generation, true)))).unwrap();
    }
    for _ in 0..5 {
        world.worker.pass();
    }
    assert!(world.clocks.at() - began < limits::SLEEP_MAX.get() as u64, "slept with commands left");
    world.worker.pass();
    let returned = world.returned.try_iter().filter(|r| matches!(r, Returned::Tables(_))).count();
    assert_eq!(returned as u64, count);
}

/// A client that pushes on and on after the daemon said that it ends does not keep it from ending.
#[test]
fn a_client_that_pushes_on_does_not_hold_up_the_drain() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"queued");
    world.outbox.send(Command::Drain).unwrap();
    let mut passes = 0;
    while world.worker.pass() {
        let now = world.clocks.at();
        app.push(ClockId::Monotonic, now + MS, now, b"more");
        passes += 1;
        assert!(passes < 100);
    }
    // The list that was begun last may hold a frame that came after the command.
    assert!((1..=2).contains(&world.sent().len()), "{} frames", world.sent().len());
}

/// The walk over a long list takes more than one step; nothing of it may be lost when the client ends, its stream goes,
/// its attachment goes or the daemon ends.
#[test]
fn a_backlog_longer_than_one_step_is_taken_whole() {
    for count in [33u64, 64, 100] {
        for end in 0..3 {
            let mut world = World::new(800);
            let app = world.client(100);
            let now = world.clocks.at();
            for i in 0..count {
                assert!(app.push(ClockId::Monotonic, now + MS + i * 10 * US, now, &i.to_be_bytes()));
            }
            let command = match end {
                0 => Command::EndClient(app.key),
                1 => Command::Unregister(app.key, 0),
                _ => Command::Drain,
            };
            world.outbox.send(command).unwrap();
            world.run_until(2_000, |w| w.sent().len() as u64 == count);
            assert_eq!(world.sent().len() as u64, count, "end {end}");
            if end == 0 {
                assert!(world.returned.try_iter().any(|r| matches!(r, Returned::Client(_))));
            }
        }
    }
}

/// Reading two clocks is not one instant: a frame of the one clock must not leave by the other's reading.
#[test]
fn two_clocks_read_apart_make_no_frame_early() {
    let mut world = World::new(800);
    let app = world.client(64);
    for round in 0..50u64 {
        let now = world.clocks.at();
        let due = now + 200 * US;
        // Equal but for less than what lies between two readings of the clocks.
        app.push(ClockId::Tai, due.saturating_add_signed(AHEAD), now, &due.to_be_bytes());
        let other = due + US + round * 20;
        app.push(ClockId::Monotonic, other, now, &other.to_be_bytes());
        // An interrupt between the two readings, while the worker spins.
        world.clocks.gap_at.store(due - 5 * US + round, SeqCst);
        world.run_until(100, |w| w.sent().len() as u64 == 2 * (round + 1));
    }
    for (at, _, frame) in world.sent() {
        let due = u64::from_be_bytes(payload(&frame).try_into().unwrap());
        assert!(at >= due, "early by {} ns", due - at);
    }
}

#[test]
fn a_step_back_in_the_spin_ends_the_spin() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    app.push(ClockId::Tai, (now + MS).saturating_add_signed(AHEAD), now, b"stepped");
    world.clocks.step_back.store(2_000 * MS as i64, SeqCst);
    world.clocks.step_at.store(now + MS - 30 * US, SeqCst);
    world.run_until(100, |w| !w.sent().is_empty());
    let spun = world.worker_stats.spin_ns.load(SeqCst);
    assert!(spun < 2 * MS, "spun {spun} ns");
    assert_eq!(world.sent().len(), 1);
}

/// A frame on TAI lies ready or is spun for when TAI is set back by less than a millisecond: a frame on MONOTONIC that is
/// due before it now must not wait for it.
#[test]
fn a_small_step_back_does_not_hold_up_the_other_clock() {
    for before in [2 * US, 30 * US] {
        let mut world = World::new(800);
        let app = world.client(64);
        let now = world.clocks.at();
        app.push(ClockId::Tai, (now + MS).saturating_add_signed(AHEAD), now, b"on TAI");
        app.push(ClockId::Monotonic, now + MS + 50 * US, now, b"on MONOTONIC");
        world.clocks.step_back.store(300 * US as i64, SeqCst);
        world.clocks.step_at.store(now + MS - before, SeqCst);
        world.run_until(100, |w| w.sent().len() == 2);
        let sent = world.sent();
        assert_eq!(
            sent.iter().map(|(_, _, f)| payload(f)).collect::<Vec<_>>(),
            [&b"on MONOTONIC"[..], b"on TAI"]
        );
        let error = sent[0].0 - (now + MS + 50 * US);
        assert!(error < US, "stepped {before} ns before: {error} ns late");
    }
}

#[test]
fn one_attachment_cannot_fill_the_queue_of_all() {
    let mut world = World::new(800);
    world.outbox.send(Command::SetAttachment(AttachmentIndex(1), Box::new(policy(&world.stats)))).unwrap();
    let app = world.client(64);
    let now = world.clocks.at();
    // As if most of its share were queued already.
    let attachment = world.worker.attachments.get_mut(AttachmentIndex(0)).unwrap();
    (0..limits::ATTACHMENT_QUEUED_MAX - 2).for_each(|_| attachment.count_queued());
    for _ in 0..5 {
        app.push(ClockId::Monotonic, now + MS, now, b"share");
    }
    world.run_until(100, |w| w.sent().len() == 2);
    assert_eq!(world.sent().len(), 2);
    assert_eq!(world.dropped(DropReason::QueueFull), 3);
    // What left gives its share back.
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + MS, now, b"share");
    world.run_until(100, |w| w.sent().len() == 3);
    assert_eq!(world.sent().len(), 3);
}
