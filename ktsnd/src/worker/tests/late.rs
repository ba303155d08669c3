// SPDX-License-Identifier: Apache-2.0
//! Frames that come late: by their program, by the worker, or by waiting for a slot.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::{DropReason, LatePolicy};
use ktsn_ring::ClockId;

use ktsn_resolve::AttachmentIndex;

use super::world::{AHEAD, App, World, policy, tables};
use super::{MS, US, payload};
use crate::worker::{AttachmentPolicy, Command};

#[test]
fn late_frames_follow_their_clock() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    app.push(ClockId::Tai, (now - MS).saturating_add_signed(AHEAD), now, b"etf drops");
    app.push(ClockId::Monotonic, now - MS, now, b"fq sends");
    app.push(ClockId::Monotonic, 0, now, b"zero is at once");
    app.push(ClockId::Tai, 0, now, b"zero is no TAI");
    app.push(ClockId::Monotonic, now + 11_000 * MS, now, b"too far");
    // TAI given as UTC of a clock 37 s behind would be 37 s off: the mistake that `horizon` is for.
    app.push(ClockId::Tai, (now + 37_000 * MS).saturating_add_signed(AHEAD), now, b"37 s");
    world.run_until(10, |w| w.sent().len() == 2 && w.dropped(DropReason::BeyondHorizon) == 2);
    let sent: Vec<_> = world.sent().iter().map(|(_, _, f)| payload(f)).collect();
    assert_eq!(sent, [b"fq sends".to_vec(), b"zero is at once".to_vec()]);
    assert_eq!(world.dropped(DropReason::Missed), 1);
    assert_eq!(world.dropped(DropReason::InvalidTime), 1);
    assert_eq!(world.dropped(DropReason::BeyondHorizon), 2);
    assert_eq!(world.stats.late.load(SeqCst), 1);
}

/// Whatever a program asks for, its frame leaves or is dropped: none is chosen again and again, and none holds up the frames behind it.
pub(super) fn each_time_comes_to_an_end(make: impl Fn() -> World) {
    for late in [LatePolicy::ByClock, LatePolicy::Drop, LatePolicy::Send, LatePolicy::Deadline] {
        for clock in [ClockId::Monotonic, ClockId::Tai] {
            let mut world = make();
            let app = world.client(64);
            let asked = AttachmentPolicy { late, ..policy(&world.stats) };
            world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(asked))).unwrap();
            let now = world.clocks.at();
            let here = if matches!(clock, ClockId::Tai) { now.saturating_add_signed(AHEAD) } else { now };
            let near = [here - 1000 * MS, here - MS, here - 1, here, here + 1, here + MS];
            let times = [[0, 1, 1 << 63, u64::MAX].as_slice(), &near].concat();
            for &at in &times {
                assert!(app.push(clock, at, now, b"any"));
            }
            let ended = |w: &World| {
                let dropped: u64 = DropReason::ALL.iter().map(|reason| w.dropped(*reason)).sum();
                w.sent().len() as u64 + dropped
            };
            world.run_until(100, |w| ended(w) == times.len() as u64);
            assert_eq!(ended(&world), times.len() as u64, "{late:?} on {clock:?}");
        }
    }
}

#[test]
fn each_time_with_each_policy_comes_to_an_end() {
    each_time_comes_to_an_end(|| World::new(800));
}

#[test]
fn an_overslept_frame_is_sent_and_counted_up_to_the_limit() {
    let mut world = World::new(800);
    let app = world.client(64);
    // Oversleeps by 500 µs: within the limit of 1 ms.
    world.clocks.lateness.store(500 * US, SeqCst);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 2 * MS, now, b"late by us");
    world.run_until(10, |w| !w.sent().is_empty());
    assert_eq!(world.stats.overrun.load(SeqCst), 1);
    // And by 3 ms: on TAI dropped, with its reason; on MONOTONIC sent, as by fq.
    world.clocks.lateness.store(3 * MS, SeqCst);
    let now = world.clocks.at();
    app.push(ClockId::Tai, (now + 2 * MS).saturating_add_signed(AHEAD), now, b"too late");
    app.push(ClockId::Monotonic, now + 2 * MS, now, b"late by us");
    world.run_until(10, |w| w.dropped(DropReason::Overrun) == 1 && w.sent().len() == 2);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Overrun)), (2, 1));
    assert_eq!((world.stats.overrun.load(SeqCst), world.stats.late.load(SeqCst)), (2, 0));
    assert_eq!(world.dropped(DropReason::Missed), 0);
}

/// The default loses no frame to stalls that a busy virtual machine has: such frames leave at once, counted.
#[test]
fn a_stall_of_20_ms_costs_no_frame_by_default() {
    let mut world = World::new(800);
    let app = world.client(64);
    let default = crate::limits::OVERRUN_LIMIT_DEFAULT;
    let usual = AttachmentPolicy { overrun_limit: default, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(usual))).unwrap();
    world.clocks.lateness.store(20 * MS, SeqCst);
    let now = world.clocks.at();
    for at in 1..=10 {
        app.push(ClockId::Tai, (now + at * MS).saturating_add_signed(AHEAD), now, b"on TAI");
    }
    world.run_until(10, |w| w.sent().len() == 10);
    assert_eq!((world.sent().len(), world.stats.overrun.load(SeqCst)), (10, 10));
    assert_eq!(world.dropped(DropReason::Overrun), 0);
}

/// Its program waited for a slot: that is neither the program's fault nor the worker's.
#[test]
fn a_frame_that_is_late_by_waiting_for_a_slot_has_its_own_word() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    let waited = |clock, tx_time| {
        app.push_frame(
            &ktsn_ring::SlotFrame { has_waited: true, ..App::frame(clock, tx_time, now) },
            b"waited",
        )
    };
    assert!(waited(ClockId::Tai, (now - MS).saturating_add_signed(AHEAD)));
    assert!(waited(ClockId::Monotonic, now - MS));
    // In time all the same.
    assert!(waited(ClockId::Monotonic, now + MS));
    world.run_until(10, |w| w.sent().len() == 2 && w.dropped(DropReason::Waited) == 1);
    assert_eq!((world.stats.waited.load(SeqCst), world.stats.late.load(SeqCst)), (1, 0));
    assert_eq!((world.dropped(DropReason::Waited), world.dropped(DropReason::Missed)), (1, 0));
}

/// After a pause of 20 ms a frame that goes nowhere is handed over first, 150 µs before the next one's time; not where the worker wakes too late
/// for it, and not between frames that follow each other.
#[test]
fn a_rare_frame_is_rehearsed() {
    let mut world = World::new(800);
    let app = world.client(64);
    world.clocks.rehearsal.store(40 * US, SeqCst);
    let (mut number, mut wakes_late) = (0, false);
    for (pause, lateness, is_rehearsed) in [
        (50 * MS, 0, true),
        (MS, 0, false),
        (19 * MS, 0, false),
        (25 * MS, 0, true),
        (500 * MS, 0, true),
        (500 * MS, 400 * US, false),
    ] {
        world.clocks.lateness.store(lateness, SeqCst);
        wakes_late |= lateness > 0;
        let now = world.clocks.at();
        let at = world.sent().last().map_or(now, |sent| sent.0) + pause;
        app.push(ClockId::Monotonic, at, now, b"rare");
        number += 1;
        world.run_until(400, |w| w.sent().len() == number);
        let rehearsed = std::mem::take(&mut *world.clocks.rehearsed.lock().unwrap());
        let ahead: Vec<u64> = rehearsed.iter().map(|began| at.saturating_sub(*began)).collect();
        assert_eq!(ahead.len(), usize::from(is_rehearsed), "{pause}: {ahead:?}");
        assert!(ahead.iter().all(|ahead| (90 * US..=150 * US).contains(ahead)), "{pause}: {ahead:?}");
        let off = world.sent()[number - 1].0.cast_signed() - at.cast_signed();
        assert!(wakes_late || (0..US.cast_signed()).contains(&off), "{pause}: {off} ns");
    }
    // The machine stalls in a rehearsal: the frame is late by what is left of that, and leaves.
    world.clocks.lateness.store(0, SeqCst);
    world.clocks.rehearsal.store(200 * US, SeqCst);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 50 * MS, now, b"stalled");
    world.run_until(400, |w| w.sent().len() == number + 1);
    let off = world.sent()[number].0 - (now + 50 * MS);
    assert!((50 * US..60 * US).contains(&off), "{off}");
}

/// Frames that are dropped when they are due are not rehearsed one by one.
#[test]
fn dropped_frames_have_one_rehearsal_in_20_ms() {
    let mut world = World::new(800);
    let app = world.client(128);
    world.clocks.rehearsal.store(40 * US, SeqCst);
    world.outbox.send(Command::Tables(Arc::new(tables(2, false)))).unwrap();
    let now = world.clocks.at();
    for number in 1..=100 {
        app.push(ClockId::Monotonic, now + 20 * MS + number * MS, now, b"no way");
    }
    world.run_until(4_000, |w| w.dropped(DropReason::NoNeighbour) == 100);
    assert_eq!((world.sent().len(), world.dropped(DropReason::NoNeighbour)), (0, 100));
    let rehearsed = world.clocks.rehearsed.lock().unwrap().len();
    assert!((1..=6).contains(&rehearsed), "{rehearsed}");
}

/// Where rehearsals take longer than what is left, they end after a few frames.
#[test]
fn slow_rehearsals_are_left_out() {
    let mut world = World::new(800);
    let app = world.client(64);
    world.clocks.rehearsal.store(200 * US, SeqCst);
    let mut late = 0;
    for number in 0..40 {
        let now = world.clocks.at();
        app.push(ClockId::Monotonic, now + 50 * MS, now, b"rare");
        world.run_until(400, |w| w.sent().len() == number + 1);
        late += usize::from(world.sent()[number].0 > now + 50 * MS + US);
    }
    let rehearsed = world.clocks.rehearsed.lock().unwrap().len();
    assert_eq!((rehearsed, late), (4, 4));
}
