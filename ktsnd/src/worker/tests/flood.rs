// SPDX-License-Identifier: Apache-2.0
//! What one program's flood does to another one's frames.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::DropReason;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::ClockId;

use super::world::{App, World, policy, tables_of};
use super::{MS, US};
use crate::limits;
use crate::stats::AttachmentStats;
use crate::worker::Command;

/// Attachments 1 to `count` beside the world's own one; what all of them count.
pub(super) fn attach_floods(world: &mut World, count: u16) -> Arc<AttachmentStats> {
    world.outbox.send(Command::Tables(Arc::new(tables_of(2, true, usize::from(count) + 1)))).unwrap();
    let stats = Arc::new(AttachmentStats::default());
    for index in 1..=count {
        world.outbox.send(Command::SetAttachment(AttachmentIndex(index), Box::new(policy(&stats)))).unwrap();
    }
    world.worker.apply_commands();
    stats
}

/// Frames without transmit time that wait for a link of 1 Gbit/s must not use up the time that timed frames are spun for.
#[test]
fn an_untimed_flood_leaves_the_spin_budget_to_timed_frames() {
    let mut world = World::with(800, World::time_aware(Some(1_000_000_000)));
    let (timed, flood) = (world.client(256), world.client(1024));
    world.clocks.lateness.store(55 * US, SeqCst);
    let began = world.clocks.at();
    let mut next = began + MS;
    while world.clocks.at() < began + 1_000 * MS {
        let now = world.clocks.at();
        while next < now + 20 * MS {
            assert!(timed.push(ClockId::Monotonic, next, now, b"timed"));
            next += MS;
        }
        let untimed = ktsn_ring::SlotFrame { priority: 0, ..App::frame(ClockId::Monotonic, 0, now) };
        while flood.push_frame(&untimed, &[0; 1400]) {}
        world.worker.pass();
    }
    let errors = world.stats.transmit_error.snapshot();
    assert!(errors.len() > 900, "{} timed frames", errors.len());
    // One frame of 1,400 octets is on the wire for 12 µs.
    assert!(errors.max() < 14 * US, "{} ns late", errors.max());
    // It does use what is its own, up to its part of the budget.
    assert!(world.worker_stats.spin_ns.load(SeqCst) > 590 * MS);
}

/// However many attachments fill the queue with what has to wait, the next one's frames find room.
#[test]
fn attachments_that_flood_leave_room_in_the_queue_to_others() {
    const FLOODS: u16 = 6;
    let mut world = World::with(800, World::time_aware_for(limits::QUEUE_MAX, None));
    let stats = attach_floods(&mut world, FLOODS);
    let ahead = |world: &World| world.clocks.at() + 9_000 * MS;
    for index in 1..=FLOODS {
        let apps = [(); 2].map(|()| world.client_of(AttachmentIndex(index), 4096));
        for app in &apps {
            while app.push(ClockId::Monotonic, ahead(&world), world.clocks.at(), b"flood") {}
        }
        world.run_until(3_000, |_| stats.taken.load(SeqCst) == u64::from(index) * 8192);
    }
    // One alone gets a quarter; the more there are, the less each of them.
    let refused = stats.dropped[usize::from(DropReason::QueueFull.number())].load(SeqCst);
    let queued = u64::from(FLOODS) * 8192 - refused;
    assert!((8192 * 3..31_000).contains(&queued), "{queued} of {} are queued", limits::QUEUE_MAX);

    let app = world.client(256);
    let at = world.clocks.at() + 5 * MS;
    for i in 0..200 {
        assert!(app.push(ClockId::Monotonic, at + i * 10 * US, world.clocks.at(), b"scheduled"));
    }
    world.run_until(1_000, |w| w.stats.sent.load(SeqCst) == 200);
    assert_eq!((world.stats.sent.load(SeqCst), world.dropped(DropReason::QueueFull)), (200, 0));
}

/// Twenty programs of other attachments send more than the link takes, each frame as soon as it can leave; a stream sends one
/// each 500 µs, 200 µs ahead. It is heard in time, and waits for the frame on the wire alone.
#[test]
fn a_stream_is_heard_beside_a_flood_that_waits_for_the_link() {
    const FLOODS: u16 = 4;
    let mut world = World::with(1000, World::time_aware(Some(1_000_000_000)));
    let stats = attach_floods(&mut world, FLOODS);
    let stream = world.client(64);
    let flood: Vec<App> =
        (0..20).map(|number| world.client_of(AttachmentIndex(1 + number % FLOODS), 256)).collect();
    let began = world.clocks.at();
    let mut due = began + MS;
    while world.clocks.at() < began + 10 * MS {
        let untimed =
            ktsn_ring::SlotFrame { priority: 0, ..App::frame(ClockId::Monotonic, 0, world.clocks.at()) };
        for app in &flood {
            while app.push_frame(&untimed, b"flood") {}
        }
        if world.clocks.at() >= due - 200 * US {
            assert!(stream.push(ClockId::Monotonic, due, world.clocks.at(), b"stream"));
            due += 500 * US;
        }
        world.worker.pass();
    }
    let errors = world.stats.transmit_error.snapshot();
    assert!(errors.len() >= 17, "{} frames", errors.len());
    assert_eq!(world.stats.late.load(SeqCst), 0);
    assert!(errors.max() < 3 * US, "{} ns late", errors.max());
    assert!(stats.sent.load(SeqCst) > 5_000, "{} frames of the flood", stats.sent.load(SeqCst));
}
