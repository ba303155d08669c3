// SPDX-License-Identifier: Apache-2.0
//! What a hostile attachment does to the frames of another one: nothing that its counters or its transmit error would show.
//!
//! Clocks are virtual: reading one takes 420 ns here and each hand-over 3 µs, so an error is work that was done first.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::DropReason;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::{ClockId, RegionState};
use ktsn_time::Nanos;

use super::flood::attach_floods;
use super::world::{App, World, policy};
use super::{MS, US};
use crate::limits;
use crate::stats::AttachmentStats;
use crate::worker::{AttachmentPolicy, Command, Returned};

/// A stream of the world's own attachment: a frame each millisecond, pushed `lead` ahead, 5 ms at first.
pub(super) struct Innocent {
    app: App,
    lead: u64,
    next: u64,
    pushed: u64,
}

impl Innocent {
    fn new(world: &mut World) -> Self {
        let app = world.client(256);
        let next = world.clocks.at() + 2 * MS;
        let mut innocent = Self { app, lead: 5 * MS, next, pushed: 0 };
        innocent.push(world);
        innocent
    }

    pub(super) fn push(&mut self, world: &World) {
        while world.clocks.at() + self.lead >= self.next {
            assert!(self.app.push(ClockId::Monotonic, self.next, world.clocks.at(), b"innocent"));
            self.next += MS;
            self.pushed += 1;
        }
    }

    /// All frames but those on the way have left, none of them later than `most`.
    fn judge(&self, world: &World, most: u64) {
        let sent = world.stats.sent.load(SeqCst);
        assert!(self.pushed > 50 && sent + 7 >= self.pushed, "{sent} of {} were sent", self.pushed);
        assert_eq!((world.stats.late.load(SeqCst), world.dropped(DropReason::Missed)), (0, 0));
        assert_eq!((world.stats.waited.load(SeqCst), world.dropped(DropReason::Overrun)), (0, 0));
        let errors = world.stats.transmit_error.snapshot();
        assert!(errors.max() < most, "{} ns late", errors.max());
    }
}

/// A world with one hostile attachment, number 1, of `count` clients.
pub(super) fn world(count: usize, slots: u32) -> (World, Innocent, Vec<App>, Arc<AttachmentStats>) {
    let mut world = World::with(1000, World::time_aware_for(limits::QUEUE_MAX, None));
    world.clocks.hand_over.store(3 * US, SeqCst);
    world.clocks.slowness.store(400, SeqCst);
    let stats = attach_floods(&mut world, 1);
    let hostile = (0..count).map(|_| world.client_of(AttachmentIndex(1), slots)).collect();
    let innocent = Innocent::new(&mut world);
    (world, innocent, hostile, stats)
}

/// The priority says nothing at intake: the hostile frames claim the highest class when `priority` is 7.
fn fill(app: &App, now: u64, tx_time: u64, priority: u8) {
    let frame = ktsn_ring::SlotFrame { priority, ..App::frame(ClockId::Monotonic, tx_time, now) };
    while app.push_frame(&frame, b"flood") {}
}

#[test]
fn rings_that_are_kept_full_cost_their_own_attachment_only() {
    // Refused at once: beyond the horizon. Or valid: due now.
    for (count, is_refused) in [(1, true), (64, true), (64, false), (256, true)] {
        let (mut world, mut innocent, hostile, stats) = world(count, 64);
        let began = world.clocks.at();
        while world.clocks.at() < began + 100 * MS {
            let now = world.clocks.at();
            for app in &hostile {
                fill(app, now, if is_refused { now + 3_600_000 * MS } else { 0 }, 0);
            }
            innocent.push(&world);
            world.worker.pass();
        }
        // At most one hand-over that was under way, and the readings around it.
        innocent.judge(&world, 7 * US);
        assert!(stats.taken.load(SeqCst) > 5_000, "the flood is served, too");
    }
}

/// A worker that always has work rests by itself, before the kernel stops it.
#[test]
fn a_flood_leaves_the_worker_its_rests() {
    let (mut world, mut innocent, hostile, _) = world(8, 1024);
    let began = (world.clocks.at(), world.clocks.cpu.load(SeqCst));
    while world.clocks.at() < began.0 + 1_000 * MS {
        let now = world.clocks.at();
        for app in &hostile {
            fill(app, now, now + 3_600_000 * MS, 0);
        }
        innocent.push(&world);
        world.worker.pass();
    }
    let (passed, used) = (world.clocks.at() - began.0, world.clocks.cpu.load(SeqCst) - began.1);
    assert!(used * 1000 < passed * 945 && used * 100 > passed * 80, "{used} of {passed} ns");
    assert!(world.worker_stats.cpu_budget_spent.load(SeqCst) > 100);
    innocent.judge(&world, 5 * US);
}

#[test]
fn registrations_on_full_rings_do_not_empty_them_in_one_go() {
    let (mut world, mut innocent, hostile, stats) = world(8, 1024);
    let began = world.clocks.at();
    while world.clocks.at() < began + 100 * MS {
        let now = world.clocks.at();
        for app in &hostile {
            fill(app, now, now + 3_600_000 * MS, 0);
            world.outbox.send(Command::Unregister(app.key, 5)).unwrap();
        }
        innocent.push(&world);
        for _ in 0..8 {
            world.worker.pass();
        }
    }
    innocent.judge(&world, 5 * US);
    assert!(stats.taken.load(SeqCst) > 10_000);
}

/// An attachment with many clients goes while their rings are full: each frame of theirs is counted, and none of another's is late.
#[test]
fn an_attachment_with_many_full_rings_goes_in_steps() {
    let (mut world, mut innocent, hostile, stats) = world(64, 64);
    let began = world.clocks.at();
    let mut is_removed = false;
    let mut pushed = 0;
    while world.clocks.at() < began + 100 * MS {
        let now = world.clocks.at();
        if !is_removed && now > began + 20 * MS {
            is_removed = true;
            for app in &hostile {
                while app.push(ClockId::Monotonic, now + 2_000 * MS, now, b"far ahead") {
                    pushed += 1;
                }
            }
            world.outbox.send(Command::RemoveAttachment(AttachmentIndex(1))).unwrap();
        }
        innocent.push(&world);
        world.worker.pass();
    }
    innocent.judge(&world, 5 * US);
    assert_eq!(pushed, 64 * 64);
    assert_eq!(stats.dropped[usize::from(DropReason::Detached.number())].load(SeqCst), pushed);
    assert!(hostile.iter().all(|app| app.producer.state() == RegionState::Detached));
    let policies = world.returned.try_iter().filter(|back| matches!(back, Returned::Boxed(_))).count();
    assert!(policies > 0 && !world.worker.attachments.is_served(AttachmentIndex(1)));
}

/// While an attachment with full rings goes, and its interface after it, others come and register.
#[test]
fn others_come_while_an_attachment_with_many_full_rings_goes() {
    let (mut world, _innocent, hostile, _) = world(64, 64);
    let now = world.clocks.at();
    for app in &hostile {
        fill(app, now, now + 3_000 * MS, 0);
    }
    world.outbox.send(Command::RemoveAttachment(AttachmentIndex(1))).unwrap();
    world.outbox.send(Command::RemovePort(PortIndex(5))).unwrap();
    let comes = world.client(64);
    assert!(comes.push(ClockId::Monotonic, now + 2 * MS, now, b"comes"));
    for _ in 0..8 {
        world.worker.pass();
    }
    let is_on_its_way = world.worker.closing.is_removed(AttachmentIndex(1));
    assert!(is_on_its_way && world.worker.clients.find(comes.key).is_some());
    world.run_until(200, |w| !w.worker.closing.is_removed(AttachmentIndex(1)));
}

/// 8,192 frames for one instant, of the innocent frame's own class: it waits for one of them.
#[test]
fn thousands_of_frames_for_one_instant_come_one_before_anothers() {
    let (mut world, mut innocent, hostile, stats) = world(8, 1024);
    let began = world.clocks.at();
    let instant = innocent.next + 40 * MS;
    for app in &hostile {
        fill(app, began, instant, 6);
    }
    while world.clocks.at() < began + 100 * MS {
        innocent.push(&world);
        world.worker.pass();
    }
    // Its own turn, the hand-over under way, and what a pass does between two turns. All of the 8,192 are sent by fq's rule, over 25 ms:
    // more of the innocent frames meet them than the few that were sent before their limit passed.
    innocent.judge(&world, 13 * US);
    assert!(stats.sent.load(SeqCst) > 200, "{}", stats.sent.load(SeqCst));
}

/// Rings that are kept full with frames that are due now, and more work than the worker's share of the CPU is: it rests in sleeps
/// that end when a frame of another attachment is due.
#[test]
fn rests_beside_full_rings_make_no_frame_late() {
    let (mut world, mut innocent, hostile, _) = world(64, 64);
    world.clocks.hand_over.store(5 * US, SeqCst);
    let began = world.clocks.at();
    while world.clocks.at() < began + 1_000 * MS {
        let now = world.clocks.at();
        for app in &hostile {
            fill(app, now, 0, 0);
        }
        innocent.push(&world);
        world.worker.pass();
    }
    innocent.judge(&world, 20 * US);
    assert!(world.worker_stats.cpu_budget_spent.load(SeqCst) > 100);
}

/// 8,192 frames for one instant again and again, so much that the worker's share of the CPU is used up while frames are due: the innocent ring is read
/// all the same.
#[test]
fn instant_after_instant_leaves_the_other_rings_their_intake() {
    let (mut world, mut innocent, hostile, stats) = world(8, 1024);
    world.clocks.hand_over.store(5 * US, SeqCst);
    let patient = AttachmentPolicy { overrun_limit: Nanos::from_seconds(1), ..policy(&stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(1), Box::new(patient))).unwrap();
    let began = world.clocks.at();
    let mut instant = began + 40 * MS;
    while world.clocks.at() < began + 2_000 * MS {
        innocent.push(&world);
        let now = world.clocks.at();
        if now + 30 * MS > instant {
            instant += 55 * MS;
        }
        for app in &hostile {
            fill(app, now, instant, 6);
        }
        world.worker.pass();
    }
    innocent.judge(&world, 50 * US);
    assert!(
        world.worker_stats.cpu_budget_spent.load(SeqCst) > 100 && stats.sent.load(SeqCst) > 200_000,
        "{}",
        stats.sent.load(SeqCst)
    );
}

/// An attachment that is granted a higher class keeps its rings full: one of a lower class is read all the same.
#[test]
fn a_higher_class_leaves_intake_to_a_lower_one() {
    let (mut world, mut innocent, hostile, _) = world(8, 1024);
    innocent.lead = MS / 2;
    let low = AttachmentPolicy { classes: 0x7f, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(low))).unwrap();
    let began = world.clocks.at();
    while world.clocks.at() < began + 200 * MS {
        innocent.push(&world);
        let now = world.clocks.at();
        for app in &hostile {
            // Beyond the horizon: refused, so between two frames of the stream there is none to wait for.
            fill(app, now, now + 7_200_000 * MS, 7);
        }
        world.worker.pass();
    }
    innocent.judge(&world, 250 * US);
}

/// The attachments' shares do not depend on how many clients they have.
#[test]
fn many_clients_buy_no_intake() {
    let (mut world, _idle, many, many_stats) = world(32, 64);
    let one = world.client(1024);
    let began = world.clocks.at();
    while world.clocks.at() < began + 20 * MS {
        let now = world.clocks.at();
        for app in &many {
            fill(app, now, now + 3_600_000 * MS, 7);
        }
        fill(&one, now, now + 3_600_000 * MS, 0);
        world.worker.pass();
    }
    let (many, one) = (many_stats.taken.load(SeqCst), world.stats.taken.load(SeqCst));
    // The walk along a longer list costs turns, too.
    assert!(one * 10 > many * 7 && many * 10 > one * 7, "{many} of 32 clients, {one} of one");
}

/// Frames keep the registration that they were published under, whatever the stream's index means by the time they are taken.
#[test]
fn a_frame_keeps_the_registration_that_it_was_published_under() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    for i in 0..3 {
        assert!(app.push(ClockId::Monotonic, now + (i + 1) * MS, now, b"before"));
    }
    world.outbox.send(Command::Unregister(app.key, 0)).unwrap();
    world.run_until(50, |w| w.sent().len() == 3);
    assert_eq!((world.sent().len(), world.dropped(DropReason::PeerCorrupt)), (3, 0));
    // What comes after the end is no registered stream's.
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, now + MS, now, b"after"));
    world.run_until(50, |w| w.dropped(DropReason::PeerCorrupt) == 1);
    assert_eq!((world.sent().len(), world.dropped(DropReason::PeerCorrupt)), (3, 1));
}
