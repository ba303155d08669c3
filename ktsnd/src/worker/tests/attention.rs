// SPDX-License-Identifier: Apache-2.0
//! Clients that were quiet are heard beside those that keep the worker awake.

use std::sync::atomic::Ordering::SeqCst;

use ktsn_ring::ClockId;

use super::world::{App, World};
use super::{MS, US, payload};

/// Pushes a frame, and rings where the ring asks for it; whether it did.
fn send(world: &World, app: &App, place: u64, tx_time: u64, text: &[u8]) -> bool {
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, tx_time, now, text));
    let bell = app.producer.bell(ClockId::Monotonic, tx_time, now);
    if let Some(bell) = bell {
        world.clocks.ringing.lock().unwrap().push(place);
        app.producer.rung(bell);
    }
    bell.is_some()
}

/// How late the frames left, in nanoseconds. Their payload is their transmit time.
fn lateness(world: &World) -> Vec<u64> {
    let tx_time = |frame: &[u8]| payload(frame).try_into().ok().map(u64::from_be_bytes);
    world.sent().iter().filter_map(|(at, _, frame)| Some(at - tx_time(frame)?)).collect()
}

/// After a silence, a stream with a frame each `period`, always queued ahead; into it a program that was silent for longer
/// sends one frame, a millisecond ahead. None of either leaves after its time. How often the worker slept meanwhile.
fn quiet_beside_stream(period: u64) -> u64 {
    let mut world = World::new(1000);
    let (stream, quiet) = (world.client(1024), world.client(64));
    let mut slept = 0;
    for round in 0..5u64 {
        let silent_until = world.clocks.at() + 700 * MS;
        while world.clocks.at() < silent_until {
            world.worker.pass();
        }
        let began = world.clocks.at();
        let (mut next, mut due) = (began + MS, began + 10 * MS + round * 37 * US);
        let wake_ups = world.worker_stats.wake_ups.load(SeqCst);
        while world.clocks.at() < began + 20 * MS {
            let now = world.clocks.at();
            while next < now + 2 * MS {
                send(&world, &stream, 0, next, b"stream");
                next += period;
            }
            if now >= due {
                assert!(
                    send(&world, &quiet, 1, now + MS, &(now + MS).to_be_bytes()),
                    "a quiet client has to ring"
                );
                due = u64::MAX;
            }
            world.worker.pass();
        }
        slept += world.worker_stats.wake_ups.load(SeqCst) - wake_ups;
    }
    let late = lateness(&world);
    assert_eq!(late.len(), 5);
    assert!(late.iter().all(|late| *late < 2 * US), "ns after their times: {late:?}");
    assert_eq!(world.stats.late.load(SeqCst), 0);
    let errors = world.stats.transmit_error.snapshot();
    assert!(errors.max() < 2 * US, "{} ns late", errors.max());
    slept
}

#[test]
fn a_quiet_client_is_heard_while_the_worker_spins_for_a_stream() {
    // The margin is 60 µs: at 20 kHz it does not sleep, at 10 kHz it does between frames.
    assert!(quiet_beside_stream(50 * US) < 30);
    assert!(quiet_beside_stream(100 * US) > 900);
}

/// A frame that is always due right away comes before doorbells, but not for ever.
#[test]
fn a_quiet_client_is_heard_where_a_frame_is_always_close() {
    assert!(quiet_beside_stream(10 * US) < 30);
}

/// Forty programs send while a frame leaves; the next one is due soon after it, long before all of them could be taken over.
#[test]
fn what_comes_while_a_frame_leaves_does_not_delay_the_next_one() {
    let mut world = World::new(1000);
    let stream = world.client(64);
    let others: Vec<App> = (0..40).map(|_| world.client(64)).collect();
    let first = world.clocks.at() + MS;
    let second = first + 30 * US;
    for due in [first, second] {
        send(&world, &stream, 0, due, &due.to_be_bytes());
    }
    // Taking a frame over reads the clock four times.
    world.clocks.slowness.store(US / 2, SeqCst);
    while world.sent().is_empty() {
        world.worker.pass();
    }
    for (place, app) in (1..).zip(&others) {
        send(&world, app, place, second + 5 * MS, b"later");
    }
    while world.sent().len() < 2 {
        world.worker.pass();
    }
    let (at, _, frame) = &world.sent()[1];
    assert_eq!(payload(frame), second.to_be_bytes());
    assert!(at - second < 5 * US, "{} ns late", at - second);
    while world.sent().len() < 2 + others.len() {
        world.worker.pass();
    }
    assert!(world.sent()[2..].iter().all(|(_, _, frame)| payload(frame) == b"later"));
}

/// A thousand frames are queued 4 µs apart; a stream sends one each 500 µs, 200 µs ahead.
#[test]
fn a_stream_is_heard_where_frames_are_always_due_at_once() {
    let mut world = World::new(1000);
    let (stream, dense) = (world.client(64), world.client(1024));
    let first = world.clocks.at() + 2 * MS;
    for number in 0..1000 {
        send(&world, &dense, 1, first + number * 4 * US, b"dense");
    }
    let mut due = first + 500 * US;
    while world.clocks.at() < first + 5 * MS {
        if world.clocks.at() >= due - 200 * US {
            send(&world, &stream, 0, due, &due.to_be_bytes());
            due += 500 * US;
        }
        world.worker.pass();
    }
    let late = lateness(&world);
    assert!(late.len() >= 8, "{} frames", late.len());
    assert!(late.iter().all(|late| *late < 5 * US), "ns after their times: {late:?}");
}

/// A ring that was promised a look in 250 ms gets a nearer promise with the next short sleep: its frame for an instant after that
/// sleep needs no doorbell.
#[test]
fn a_far_promise_is_made_nearer_before_a_short_sleep() {
    let mut world = World::new(1000);
    let (stream, other) = (world.client(64), world.client(64));
    for (place, app) in [(0, &stream), (1, &other)] {
        let soon = world.clocks.at() + MS;
        send(&world, app, place, soon, b"first");
    }
    while world.sent().len() < 2 {
        world.worker.pass();
    }
    // Nothing is queued: all are promised a look in 250 ms. A doorbell ends that sleep at once.
    world.clocks.ringing.lock().unwrap().push(0);
    let before = world.clocks.at();
    while !world.clocks.ringing.lock().unwrap().is_empty() {
        world.worker.pass();
    }
    assert!(world.clocks.at() < before + MS, "it slept");
    send(&world, &stream, 0, world.clocks.at() + 300 * US, b"stream");
    world.worker.pass();
    let ahead = world.clocks.at() + 300 * US;
    assert!(!send(&world, &other, 1, ahead, b"other"), "it rang for a frame after the next look");
    while world.sent().len() < 4 {
        world.worker.pass();
    }
    assert_eq!(world.sent()[3].0 / US, ahead / US);
}
