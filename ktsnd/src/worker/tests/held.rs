// SPDX-License-Identifier: Apache-2.0
//! Frames that the port does not take at once: they leave later, in order, in their window, or are dropped with their reason.

use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::DropReason;
use ktsn_port::SendError;
use ktsn_port::memory::{Completion, Memory};
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::ClockId;

use super::gates::{gated, offsets};
use super::world::World;
use super::{AHEAD, MS, US, payload};
use crate::limits;
use crate::stats::PortRefusal;
use crate::worker::Command;

fn port(world: &mut World) -> &mut Memory {
    &mut world.worker.ports.get_mut(0).unwrap().port
}

fn refuse(world: &mut World, error: SendError, times: usize) {
    port(world).set_refusals(std::iter::repeat_n(error, times));
}

fn refused(world: &World, why: PortRefusal) -> u64 {
    world.port_stats.refused[why as usize].load(SeqCst)
}

fn retried(world: &World) -> u64 {
    world.port_stats.retried.load(SeqCst)
}

/// Runs until so many were dropped for the port's sake; the instant before the pass in which the last one was.
fn run_until_given_up(world: &mut World, count: u64) -> u64 {
    let mut before = world.clocks.at();
    for _ in 0..10_000 {
        if world.dropped(DropReason::PortError) == count {
            return before;
        }
        before = world.clocks.at();
        assert!(world.worker.pass());
    }
    panic!("it was never given up");
}

fn payloads(world: &World) -> Vec<Vec<u8>> {
    world.sent().iter().map(|(_, _, frame)| payload(frame)).collect()
}

#[test]
fn a_frame_that_is_refused_for_now_leaves_a_little_later_and_nothing_overtakes_it() {
    for (error, why) in [(SendError::Busy, PortRefusal::Busy), (SendError::NoMemory, PortRefusal::NoMemory)] {
        let mut world = World::new(800);
        let app = world.client(64);
        let now = world.clocks.at();
        for (after, text) in [(300, b"first"), (305, b"secnd"), (306, b"third")] {
            assert!(app.push(ClockId::Monotonic, now + after * US, now, text));
        }
        refuse(&mut world, error, 3);
        world.run_until(1_000, |w| w.sent().len() == 3);
        assert_eq!(payloads(&world), [b"first", b"secnd", b"third"]);
        // 10 + 20 + 40 µs, and what a pass takes.
        let late = world.sent()[0].0 - (now + 300 * US);
        assert!((70 * US..80 * US).contains(&late), "{late}");
        assert!(world.sent()[2].0 - world.sent()[0].0 < 5 * US, "the others were waiting");
        assert_eq!((refused(&world, why), retried(&world)), (3, 1));
        // Told as the delay that it is.
        assert_eq!(world.stats.overrun.load(SeqCst), 3);
        assert_eq!(world.stats.sent.load(SeqCst), 3);
        assert_eq!(world.stats.dropped.iter().map(|n| n.load(SeqCst)).sum::<u64>(), 0);
        let free = ktsn_port::Port::occupancy(port(&mut world)).free;
        assert_eq!(free, 64, "the port keeps nothing of a frame that it refused");
    }
}

#[test]
fn a_port_without_a_free_buffer_is_waited_for() {
    let mut world = World::new(800);
    let app = world.client(128);
    port(&mut world).set_completion(Completion::AtReap { at_most: 0 });
    let now = world.clocks.at();
    for i in 0..70_u8 {
        assert!(app.push(ClockId::Monotonic, now + 300 * US, now, &[i; 8]));
    }
    world.run_until(100, |w| w.sent().len() == 64 && refused(w, PortRefusal::NoBuffer) > 1);
    assert_eq!(world.sent().len(), 64, "so many buffers the port has");
    port(&mut world).set_completion(Completion::AtReap { at_most: 64 });
    world.run_until(100, |w| w.sent().len() == 70);
    assert_eq!(payloads(&world), (0..70).map(|i| vec![i; 8]).collect::<Vec<_>>());
    assert_eq!((retried(&world), world.dropped(DropReason::PortError)), (1, 0));
}

#[test]
fn a_port_that_takes_nothing_for_long_costs_the_frame_and_not_the_worker() {
    // On time: no later than its limit, 1 ms.
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    assert!(app.push(ClockId::Tai, (now + 300 * US).saturating_add_signed(AHEAD), now, b"timed"));
    refuse(&mut world, SendError::Busy, 100);
    let late = run_until_given_up(&mut world, 1) - (now + 300 * US);
    assert!((MS..2 * MS).contains(&late), "{late}");
    assert!(refused(&world, PortRefusal::Busy) < 10);
    // Without a time: for as long as anything is held.
    refuse(&mut world, SendError::Busy, 1_000);
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, 0, now, b"untimed"));
    let held = run_until_given_up(&mut world, 2) - now;
    let most = limits::RETRY_MAX.get().unsigned_abs();
    assert!((most..most + MS).contains(&held), "{held}");
    assert!(refused(&world, PortRefusal::Busy) < 60, "{}", refused(&world, PortRefusal::Busy));
    // And the next one leaves.
    refuse(&mut world, SendError::Busy, 0);
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, now + 300 * US, now, b"next"));
    world.run_until(100, |w| !w.sent().is_empty());
    assert_eq!((payloads(&world), retried(&world)), (vec![b"next".to_vec()], 0));
}

#[test]
fn what_the_device_threw_away_is_not_sent_again() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    refuse(&mut world, SendError::Dropped, 1);
    for (after, text) in [(300, b"first"), (305, b"secnd")] {
        assert!(app.push(ClockId::Monotonic, now + after * US, now, text));
    }
    world.run_until(100, |w| w.sent().len() == 1);
    assert_eq!(payloads(&world), [b"secnd"]);
    assert_eq!((refused(&world, PortRefusal::Dropped), retried(&world)), (1, 0));
    assert_eq!(world.dropped(DropReason::PortError), 1);
}

#[test]
fn a_frame_in_retry_that_loses_its_window_waits_for_the_next_one_in_front_of_the_others() {
    let (mut world, start) = gated();
    let app = world.client(64);
    let now = world.clocks.at();
    for text in [b"first", b"secnd", b"third"] {
        assert!(app.push(ClockId::Tai, start + 350 * US, now, text));
    }
    // After 10 + 20 µs what is left of the window, up to 400 µs, is too short for a hand-over of 20 µs.
    refuse(&mut world, SendError::Busy, 2);
    world.run_until(1_000, |w| w.sent().len() == 3);
    assert_eq!(payloads(&world), [b"first", b"secnd", b"third"]);
    assert_eq!(offsets(&world)[0], 300, "the next window's beginning");
    assert!(offsets(&world).iter().all(|offset| (300..400).contains(offset)), "{:?}", offsets(&world));
    assert!(world.sent()[0].1 > start + MS);
    assert_eq!((world.port_stats.put_back.load(SeqCst), refused(&world, PortRefusal::Busy)), (1, 2));
}

#[test]
fn a_held_frame_goes_with_its_attachment_or_its_port() {
    for command in
        [|| Command::RemoveAttachment(AttachmentIndex(0)), || Command::<Memory>::RemovePort(PortIndex(0))]
    {
        let mut world = World::new(800);
        let app = world.client(64);
        let now = world.clocks.at();
        assert!(app.push(ClockId::Monotonic, 0, now, b"held"));
        refuse(&mut world, SendError::Busy, 1_000);
        world.run_until(100, |w| refused(w, PortRefusal::Busy) > 0);
        world.outbox.send(command()).unwrap();
        // It is tried again so often that commands are put off for a moment.
        world.run_until(100, |w| w.dropped(DropReason::Detached) > 0);
        assert_eq!(world.dropped(DropReason::Detached), 1);
        assert_eq!((world.sent().len(), world.worker_stats.bugs.load(SeqCst)), (0, 0));
    }
}

#[test]
fn a_daemon_that_ends_waits_for_a_held_frame() {
    let mut world = World::new(800);
    let app = world.client(64);
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, 0, now, b"held"));
    refuse(&mut world, SendError::Busy, 3);
    world.run_until(100, |w| refused(w, PortRefusal::Busy) > 0);
    world.outbox.send(Command::Drain).unwrap();
    // A frame that waits for a retry is not built ahead: the last stretch before it is passes.
    world.run_until(1_000, |_| false);
    assert_eq!(payloads(&world), [b"held"]);
}
