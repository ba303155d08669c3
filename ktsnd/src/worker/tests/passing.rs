// SPDX-License-Identifier: Apache-2.0
//! Frames that a worker has taken and that only the kernel can send.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::{BypassReason, DropReason};
use ktsn_resolve::{AttachmentIndex, InterfaceRoute, RouteAnswer};
use ktsn_ring::{ClockId, StreamCode, StreamStatus, stream_flags};
use ktsn_time::{Monotonic, TxTime};

use super::MS;
use super::routes::{answer, asking, by_router, wanted, world};
use super::world::{App, World};
use crate::queue::{Receiver, worker_to_thread};
use crate::worker::{Command, ForPasser, Passed, StreamInfo};

/// A world with a thread that gives frames to the kernel, and a client with a socket that is kept or not.
fn passing(is_kept: bool) -> (World, App, Receiver<ForPasser>) {
    let (mut world, app) = world(1);
    let (passer, passed) = worker_to_thread(64).unwrap();
    world.worker.passer = Some(passer);
    let flags = if is_kept { stream_flags::KEPT } else { 0 };
    let status = StreamStatus { token: 7, flags, code: StreamCode::Registered, ..StreamStatus::default() };
    let info = StreamInfo {
        interface: 0,
        uid: 0,
        token: 7,
        cookie: 1,
        attachment: AttachmentIndex(0),
        local: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 5000),
        peer: None,
        link: None,
        is_deadline: false,
        status,
    };
    world.outbox.send(Command::Register(app.key, 0, Box::new(info))).unwrap();
    world.worker.apply_commands();
    (world, app, passed)
}

fn frames(passed: &Receiver<ForPasser>) -> Vec<Passed> {
    let frames = passed.try_iter().filter_map(|told| match told {
        ForPasser::Passed(passed) => Some(passed),
        ForPasser::Settled(..) | ForPasser::Judged(..) => None,
    });
    frames.collect()
}

/// Taken, sent, passed, bypassed for this reason, and dropped.
fn counts(world: &World, reason: BypassReason) -> [u64; 5] {
    let stats = &world.stats;
    let dropped = stats.dropped.iter().map(|count| count.load(SeqCst)).sum();
    let bypassed = stats.bypassed[usize::from(reason.number())].load(SeqCst);
    [stats.taken.load(SeqCst), stats.sent.load(SeqCst), stats.passed.load(SeqCst), bypassed, dropped]
}

const RULES: BypassReason = BypassReason::RoutingRules;

#[test]
fn what_the_kernel_sends_by_another_device_is_passed_when_it_says_so() {
    let (mut world, app, passed) = passing(true);
    let (now, free) = (world.clocks.at(), app.producer.free_count());
    app.push(ClockId::Monotonic, now + 20 * MS, now, b"first");
    app.push(ClockId::Monotonic, now + 30 * MS, now, b"second");
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 2);
    let flow = wanted(&world)[0];
    assert_eq!(frames(&passed), [], "it waits for the answer");
    answer(&world, flow, 1, RouteAnswer::Elsewhere);
    world.worker.apply_commands();
    let told = frames(&passed);
    let at = |ms: u64| TxTime::Monotonic(Monotonic::from_nanos(now + ms * MS));
    let facts: Vec<_> = told.iter().map(|of| (of.payload_octets, of.tx_time, of.flow, of.client)).collect();
    assert_eq!(facts, [(5, at(20), flow, app.key), (6, at(30), flow, app.key)], "long before its time");
    // The next ones are passed when they are taken.
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 40 * MS, now, b"third");
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 3);
    let third = frames(&passed);
    assert_eq!(third.len(), 1);
    // The slot is free when it was read and its place in the queue is over, in any order.
    world.outbox.send(Command::Release(app.key, told[0].slot)).unwrap();
    world.run_until(500, |w| w.clocks.at() > now + 50 * MS);
    assert_eq!(app.producer.free_count(), free - 2);
    for slot in [told[1].slot, third[0].slot] {
        world.outbox.send(Command::Release(app.key, slot)).unwrap();
    }
    world.worker.apply_commands();
    assert_eq!(app.producer.free_count(), free);
    assert_eq!(counts(&world, RULES), [3, 0, 3, 3, 0]);
    assert_eq!(world.sent(), []);
}

#[test]
fn an_answer_that_does_not_come_is_no_loss() {
    // With its socket at hand the kernel gets the frame at its time.
    let (mut world, app, passed) = passing(true);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 5 * MS, now, b"kept");
    world.run_until(500, |w| w.clocks.at() > now + 8 * MS);
    let told = frames(&passed);
    assert_eq!((told.len(), counts(&world, RULES)), (1, [1, 0, 1, 1, 0]));
    // Else it waits a little longer.
    let (mut world, app, passed) = passing(false);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 5 * MS, now, b"not kept");
    world.run_until(500, |w| w.clocks.at() > now + 8 * MS);
    assert_eq!((frames(&passed), counts(&world, RULES)), (vec![], [1, 0, 0, 0, 0]));
    let flow = wanted(&world)[0];
    answer(&world, flow, 1, by_router());
    world.run_until(500, |w| w.sent().len() == 1);
    assert_eq!((frames(&passed), counts(&world, RULES)), (vec![], [1, 1, 0, 0, 0]));
}

#[test]
fn what_is_longer_than_its_route_allows_is_passed() {
    let (mut world, app, passed) = passing(true);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 5 * MS, now, &[1; 600]);
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 1);
    let RouteAnswer::Interface(route) = by_router() else { panic!("a route") };
    let flow = wanted(&world)[0];
    answer(&world, flow, 1, RouteAnswer::Interface(InterfaceRoute { mtu: Some(600), ..route }));
    world.run_until(500, |w| w.clocks.at() > now + 8 * MS);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 20 * MS, now, &[1; 572]);
    app.push(ClockId::Monotonic, now + 20 * MS, now, &[1; 573]);
    world.run_until(500, |w| w.clocks.at() > now + 25 * MS);
    let octets: Vec<u16> = frames(&passed).iter().map(|of| of.payload_octets).collect();
    assert_eq!((octets, world.sent().len()), (vec![600, 573], 1));
    assert_eq!(counts(&world, BypassReason::OverMtu), [3, 1, 2, 2, 0]);
}

#[test]
fn without_a_thread_for_it_such_a_frame_is_dropped() {
    let (mut world, app) = world(1);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 5 * MS, now, b"asks");
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 1);
    let flow = wanted(&world)[0];
    answer(&world, flow, 1, RouteAnswer::Elsewhere);
    world.run_until(500, |w| w.clocks.at() > now + 8 * MS);
    assert_eq!(counts(&world, RULES), [1, 0, 0, 0, 1]);
    assert_eq!(world.stats.dropped[usize::from(DropReason::NoRoute.number())].load(SeqCst), 1);
}

/// The routes change while a frame waits whose program has ended: its socket was let go, so it waits for the new answer.
#[test]
fn a_frame_outlives_its_program_and_its_answer() {
    let (mut world, app, passed) = passing(true);
    let now = world.clocks.at();
    app.push(ClockId::Monotonic, now + 5000 * MS, now, b"lasts");
    world.run_until(50, |w| w.stats.taken.load(SeqCst) == 1);
    let flow = wanted(&world)[0];
    answer(&world, flow, 1, by_router());
    world.outbox.send(Command::EndClient(app.key)).unwrap();
    (0..3).for_each(|_| assert!(world.worker.pass()));
    assert_eq!(passed.try_iter().collect::<Vec<_>>(), [ForPasser::Settled(app.key, None)]);
    world.outbox.send(Command::Tables(Arc::new(asking(3, 2)))).unwrap();
    world.run_until(500, |w| w.clocks.at() > now + 5002 * MS);
    assert_eq!((wanted(&world), frames(&passed), world.sent().len()), (vec![flow], vec![], 0));
    answer(&world, flow, 2, by_router());
    world.run_until(500, |w| w.sent().len() == 1);
    assert_eq!((frames(&passed), counts(&world, RULES)), (vec![], [1, 1, 0, 0, 0]));
}

/// A socket is let go when all frames of its stream are taken, and none of them waits for the kernel's answer.
#[test]
fn a_stream_settles_when_its_socket_is_not_needed() {
    for is_client in [false, true] {
        let (mut world, app, passed) = passing(true);
        let now = world.clocks.at();
        app.push(ClockId::Monotonic, now + 5000 * MS, now, b"asks");
        let (end, settled) = if is_client {
            (Command::EndClient(app.key), ForPasser::Settled(app.key, None))
        } else {
            (Command::Settle(app.key, 0), ForPasser::Settled(app.key, Some(0)))
        };
        world.outbox.send(end).unwrap();
        (0..3).for_each(|_| assert!(world.worker.pass()));
        assert_eq!(passed.try_iter().collect::<Vec<_>>(), [], "the kernel has not answered");
        let flow = wanted(&world)[0];
        answer(&world, flow, 1, RouteAnswer::Elsewhere);
        (0..3).for_each(|_| assert!(world.worker.pass()));
        let told: Vec<ForPasser> = passed.try_iter().collect();
        assert!(matches!(told[..], [ForPasser::Passed(_), last] if last == settled), "{told:?}");
    }
}
