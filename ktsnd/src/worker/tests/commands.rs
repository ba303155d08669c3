// SPDX-License-Identifier: Apache-2.0
//! Commands beside frames: attachments come and go while others send.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_ring::ClockId;

use super::world::{World, tables};
use super::{MS, US};
use crate::worker::{Command, Returned};

/// How many of these tables were replaced.
fn replaced(world: &World) -> usize {
    world.returned.try_iter().filter(|back| matches!(back, Returned::Tables(_))).count()
}

#[test]
fn a_frame_that_is_due_soon_comes_before_commands() {
    let mut world = World::new(800);
    let app = world.client(64);
    let at = world.clocks.at() + 200 * US;
    assert!(app.push(ClockId::Monotonic, at, world.clocks.at(), b"soon"));
    world.run_until(5, |world| world.clocks.at() > at - 100 * US);
    assert!(world.sent().is_empty() && world.clocks.at() < at - 40 * US);
    world.clocks.monotonic.store(at - 40 * US, SeqCst);
    let _ = replaced(&world);
    for generation in 2..5 {
        world.outbox.send(Command::Tables(Arc::new(tables(generation, true)))).unwrap();
    }
    world.worker.pass();
    assert_eq!((world.sent().len(), replaced(&world)), (1, 0));
    world.worker.pass();
    assert_eq!(replaced(&world), 3);
}

/// Frames without a gap that a command would fit in: commands are applied all the same, and no frame is lost.
#[test]
fn commands_do_not_wait_for_ever() {
    let mut world = World::new(1000);
    let app = world.client(256);
    let at = world.clocks.at() + 200 * US;
    for i in 0..200 {
        assert!(app.push(ClockId::Monotonic, at + i * 30 * US, world.clocks.at(), b"flood"));
    }
    world.run_until(200, |world| world.sent().len() == 1);
    let began = world.clocks.at();
    for generation in 2..40 {
        world.outbox.send(Command::Tables(Arc::new(tables(generation, true)))).unwrap();
    }
    let mut count = replaced(&world);
    world.run_until(2_000, |world| {
        count += replaced(world);
        count == 38
    });
    let took = world.clocks.at() - began;
    assert!(count == 38 && took < 2_500 * US, "{count} after {took} ns");
    world.run_until(2_000, |world| world.sent().len() == 200);
    assert_eq!(world.sent().len(), 200);
}

/// The machine stalls between the look for which a command was put off and the frame's hand-over: nothing is left to wait for then,
/// and no doorbell rings for the command again. At each instant of a pass in turn.
#[test]
fn a_command_is_not_slept_over() {
    for stalls_after in (20..1_500).step_by(20) {
        let mut world = World::new(800);
        let app = world.client(64);
        let at = world.clocks.at() + 200 * US;
        assert!(app.push(ClockId::Monotonic, at, world.clocks.at(), b"soon"));
        world.run_until(5, |world| world.clocks.at() > at - 100 * US);
        world.clocks.monotonic.store(at - 2 * US, SeqCst);
        world.clocks.stall.store(5 * US, SeqCst);
        world.clocks.stall_at.store(at - 2 * US + stalls_after, SeqCst);
        let _ = replaced(&world);
        world.outbox.send(Command::Tables(Arc::new(tables(2, true)))).unwrap();
        let mut passes = 0;
        while replaced(&world) == 0 && passes < 5 {
            assert!(
                world.clocks.at() < at + MS,
                "stalls after {stalls_after} ns: slept, and the command waits"
            );
            world.worker.pass();
            passes += 1;
        }
        assert!(passes < 5 && world.sent().len() == 1, "stalls after {stalls_after} ns");
    }
}
