// SPDX-License-Identifier: Apache-2.0
//! The shipped loop with gates: nothing is handed over outside of a window, whatever stalls, steps or changes.

use std::sync::atomic::Ordering::SeqCst;

use ktsn_model::{AdminPort, DropReason, GateControlEntry, GateOperation, GateStates, LatePolicy};
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::ClockId;
use ktsn_sched::GateProgram;
use ktsn_time::{Nanos, Tai};

use super::world::{AHEAD, App, World, policy};
use super::{MS, US, payload};
use crate::worker::{AttachmentPolicy, Command, GateView, HAND_OVER_AT_START, Returned};

/// The class that every frame of these tests has.
const OURS: u8 = 1 << 6;
const PORT: PortIndex = PortIndex(0);

/// A cycle of 1 ms from `base_time` on in which class 6 is open from `opens` µs to `closes` µs, and the others all the time.
fn cycle(base_time: u64, opens: i64, closes: i64) -> AdminPort {
    let entry = |states, micros: i64| GateControlEntry {
        operation: GateOperation::SetGateStates,
        states: GateStates::from_bits(states),
        interval: Nanos::from_micros(micros),
    };
    let control_list = vec![entry(!OURS, opens), entry(0xff, closes - opens), entry(!OURS, 1_000 - closes)];
    AdminPort {
        gate_enabled: true,
        base_time: Tai::from_nanos(base_time),
        cycle_time: Nanos::from_millis(1),
        control_list,
        ..AdminPort::default()
    }
}

fn change(world: &World, admin: &AdminPort) {
    let program = Box::new(GateProgram::new(admin).unwrap());
    world.outbox.send(Command::ChangeSchedule(PORT, program)).unwrap();
}

/// A world with 1 Gbit/s, where class 6 is open from 300 µs to 400 µs of each millisecond, at the start of a cycle; TAI of that.
pub(super) fn gated() -> (World, u64) {
    let mut world = World::with(800, World::time_aware(Some(1_000_000_000)));
    let patient = AttachmentPolicy { overrun_limit: Nanos::from_seconds(1), ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(patient))).unwrap();
    change(&world, &cycle(0, 300, 400));
    world.worker.apply_commands();
    let now = world.clocks.tai_now();
    let start = now.next_multiple_of(MS);
    world.clocks.monotonic.fetch_add(start - now, SeqCst);
    (world, start)
}

fn push_tai(app: &App, at: u64, now: u64, text: &[u8]) {
    assert!(app.push(ClockId::Tai, at, now, text));
}

/// Offset in the cycle of everything that was handed over, in µs.
pub(super) fn offsets(world: &World) -> Vec<u64> {
    world.sent().iter().map(|(_, tai, _)| tai % MS / US).collect()
}

#[test]
fn clause_8_6_8_4_a_gate_that_opens_after_the_tx_time_is_waited_for() {
    let (mut world, start) = gated();
    let app = world.client(64);
    let now = world.clocks.at();
    push_tai(&app, start + 100 * US, now, b"on TAI");
    assert!(app.push(ClockId::Monotonic, now + 150 * US, now, b"on MONOTONIC"));
    world.run_until(50, |w| w.sent().len() == 2);
    let sent = world.sent();
    assert_eq!(
        sent.iter().map(|(_, _, f)| payload(f)).collect::<Vec<_>>(),
        [&b"on TAI"[..], b"on MONOTONIC"]
    );
    let opens = start + 300 * US;
    assert!((opens..opens + 200).contains(&sent[0].1), "{} ns after the gate opened", sent[0].1 - opens);
    assert!(sent[1].1 < opens + 5 * US, "the second follows when the link is free");
    // The worker was on time: waiting for a gate is not being late.
    assert_eq!(world.stats.transmit_error.snapshot().len(), 2);
    assert!(world.stats.transmit_error.snapshot().min() < 200);
    assert_eq!(world.port_stats.frames[6].load(SeqCst), 2);
}

#[test]
fn clause_8_6_8_4_a_tx_time_inside_the_window_is_kept_and_one_in_the_guard_band_waits() {
    let (mut world, start) = gated();
    let app = world.client(64);
    let now = world.clocks.at();
    push_tai(&app, start + 333 * US, now, b"inside");
    // 20 µs to the wire and about 1 µs on it do not fit before 400.
    push_tai(&app, start + 380 * US, now, b"guard band");
    world.run_until(50, |w| w.sent().len() == 2);
    let sent = world.sent();
    let at = start + 333 * US;
    assert!((at..at + 200).contains(&sent[0].1));
    let next = start + MS + 300 * US;
    assert!((next..next + 200).contains(&sent[1].1), "{}", sent[1].1 as i64 - next as i64);
}

/// The machine stalls in the last stretch and wakes when the window is over: the frame waits for the next one.
#[test]
fn a_stall_past_the_window_puts_the_frame_back() {
    let (mut world, start) = gated();
    let app = world.client(64);
    let now = world.clocks.at();
    push_tai(&app, start + 100 * US, now, b"stalled");
    world.clocks.stall.store(120 * US, SeqCst);
    world.clocks.stall_at.store(now + 298 * US, SeqCst);
    world.run_until(100, |w| !w.sent().is_empty());
    let sent = world.sent();
    let next = start + MS + 300 * US;
    assert!((next..next + 200).contains(&sent[0].1), "{}", sent[0].1 as i64 - next as i64);
    assert_eq!(world.port_stats.put_back.load(SeqCst), 1);
    assert_eq!(world.port_stats.transmission_overrun[6].load(SeqCst), 0);
    assert_eq!(sent.len(), 1);
}

/// As before at every instant around the window: nothing leaves outside of it.
#[test]
fn whenever_it_stalls_nothing_leaves_outside_the_window() {
    for stalled in (250..420).step_by(3) {
        let (mut world, start) = gated();
        let app = world.client(64);
        let now = world.clocks.at();
        for i in 0..4 {
            push_tai(&app, start + (100 + i * 90) * US, now, b"stalled");
        }
        world.clocks.stall.store(57 * US, SeqCst);
        world.clocks.stall_at.store(now + stalled * US, SeqCst);
        world.run_until(200, |w| w.sent().len() == 4);
        assert_eq!(world.sent().len(), 4, "stalled at {stalled} µs");
        // 400 − 20 (hand-over) − the frame's own time.
        assert!(
            offsets(&world).iter().all(|at| (300..=379).contains(at)),
            "{stalled}: {:?}",
            offsets(&world)
        );
        assert_eq!(world.worker_stats.bugs.load(SeqCst), 0);
    }
}

#[test]
fn clause_12_29_1_1_2_a_hand_over_that_ends_after_its_window_is_counted() {
    let (mut world, start) = gated();
    let app = world.client(64);
    let now = world.clocks.at();
    world.clocks.hand_over.store(15 * US, SeqCst);
    push_tai(&app, start + 310 * US, now, b"in time");
    world.run_until(50, |w| w.sent().len() == 1);
    assert_eq!(world.port_stats.transmission_overrun[6].load(SeqCst), 0);
    // The system call hangs for longer than the rest of the window.
    world.clocks.hand_over.store(90 * US, SeqCst);
    push_tai(&app, start + MS + 320 * US, world.clocks.at(), b"hangs");
    world.run_until(50, |w| w.sent().len() == 2);
    assert_eq!(world.port_stats.transmission_overrun[6].load(SeqCst), 1);
    assert!(offsets(&world).iter().all(|at| (300..=379).contains(at)));
}

#[test]
fn what_the_port_takes_becomes_the_guard_band() {
    let (mut world, start) = gated();
    let app = world.client(64);
    assert_eq!(world.port_stats.hand_over_ns.load(SeqCst), HAND_OVER_AT_START.get() as u64);
    world.clocks.hand_over.store(5 * US, SeqCst);
    for i in 0..300 {
        push_tai(&app, start + i * MS + 310 * US, world.clocks.at(), b"measured");
        world.run_until(100, |w| w.sent().len() as u64 == i + 1);
    }
    let span = world.port_stats.hand_over_ns.load(SeqCst);
    assert!((5_000..6_000).contains(&span), "{span}");
    // What had no room before 400 µs beside 20 µs has some beside 5 µs.
    let at = start + 301 * MS + 390 * US;
    push_tai(&app, at, world.clocks.at(), b"late in the window");
    world.run_until(100, |w| w.sent().len() == 301);
    let sent = world.sent()[300].1;
    assert!((at..at + 200).contains(&sent), "{}", sent as i64 - at as i64);
}

/// Frames are pushed all the time while the schedule changes again and again: every one is sent, and inside the window
/// of the schedule that was in force then.
#[test]
fn clause_8_6_9_3_a_change_under_load_loses_nothing() {
    let (mut world, start) = gated();
    let apps = [world.client(64), world.client(64)];
    let mut pushed = 0u64;
    // From each of these instants on class 6 is open from here to 100 µs later.
    let changes = [(10, 600), (20, 50), (21, 800), (40, 450)];
    for step in 0..60u64 {
        if let Some((_, opens)) = changes.iter().find(|(at, _)| *at == step + 3) {
            change(&world, &cycle(start + (step + 3) * MS, *opens, opens + 100));
        }
        for (i, app) in apps.iter().enumerate() {
            let now = world.clocks.at();
            let at = world.clocks.tai_now() + 200 * US + i as u64 * 40 * US;
            pushed += u64::from(app.push(ClockId::Tai, at, now, &at.to_be_bytes()));
        }
        let then = start + (step + 1) * MS;
        world.run_until(1_000, |w| w.clocks.tai_now() >= then);
    }
    world.run_until(2_000, |w| w.sent().len() as u64 == pushed);
    assert_eq!(world.sent().len() as u64, pushed);
    assert!(pushed >= 119, "{pushed}");
    for (_, tai, frame) in world.sent() {
        let due = u64::from_be_bytes(payload(&frame).try_into().unwrap());
        assert!(tai >= due, "early by {}", due - tai);
        let in_force = changes.iter().rfind(|(at, _)| start + *at * MS <= tai);
        let opens = in_force.map_or(300, |(_, opens)| *opens as u64);
        let at = tai % MS / US;
        assert!((opens..opens + 80).contains(&at), "{at} µs, open from {opens} µs");
    }
    // Every program but the last two came back to be freed elsewhere.
    world.run_until(50, |_| false);
    let freed = world.returned.try_iter().filter(
        |r| matches!(r, Returned::Boxed(b) if (**b).is::<Box<GateProgram>>() || (**b).is::<GateProgram>()),
    );
    assert!(freed.count() >= changes.len() - 1);
}

/// TAI steps while a frame lies ready or waits: what counts is the window of the new time.
#[test]
fn steps_of_tai_move_the_windows() {
    for (step_back, step_at) in
        [(5 * MS as i64, 299), (250 * US as i64, 299), (-400 * US as i64, 200), (50, 299)]
    {
        let (mut world, start) = gated();
        let app = world.client(64);
        let now = world.clocks.at();
        push_tai(&app, start + 100 * US, now, b"stepped");
        world.clocks.step_back.store(step_back, SeqCst);
        world.clocks.step_at.store(now + step_at * US, SeqCst);
        world.run_until(200, |w| !w.sent().is_empty());
        assert_eq!(world.sent().len(), 1, "step back by {step_back}");
        let (_, tai, _) = world.sent()[0].clone();
        assert!(tai >= start + 100 * US);
        assert!((300..=379).contains(&(tai % MS / US)), "step back by {step_back}: {}", tai % MS / US);
    }
}

/// TAI steps back between the decision and the hand-over: the gate is not open yet by the new time.
#[test]
fn a_step_back_in_front_of_the_hand_over_closes_the_gate_again() {
    let mut put_back = 0;
    for after in (0..600).step_by(10) {
        let (mut world, start) = gated();
        let app = world.client(64);
        let now = world.clocks.at();
        push_tai(&app, start + 100 * US, now, b"stepped");
        // It wakes when the gate is open, so that the frame is chosen without a last stretch.
        world.clocks.lateness.store(60 * US + 100, SeqCst);
        world.clocks.step_back.store(50 * US as i64, SeqCst);
        let began = start.saturating_add_signed(-AHEAD);
        world.clocks.step_at.store(began + 300 * US + after, SeqCst);
        world.run_until(200, |w| !w.sent().is_empty());
        assert!(
            (300..=379).contains(&(world.sent()[0].1 % MS / US)),
            "step {after} ns after the gate opened"
        );
        put_back += usize::from(world.sent()[0].0 >= began + 350 * US);
    }
    assert!((1..60).contains(&put_back), "{put_back} of 60 steps came in time");
}

#[test]
fn a_frame_that_no_window_holds_is_dropped_by_name() {
    let (mut world, start) = gated();
    change(&world, &cycle(start + MS, 300, 315));
    let app = world.client(64);
    push_tai(&app, start + 5 * MS, world.clocks.at(), b"20 us of hand-over alone are too long");
    world.run_until(50, |w| w.dropped(DropReason::GateNeverFits) == 1);
    assert_eq!(world.dropped(DropReason::GateNeverFits), 1);
    assert!(world.sent().is_empty());
}

#[test]
fn a_deadline_frame_leaves_as_soon_as_it_may_or_is_missed() {
    let (mut world, start) = gated();
    let urgent = AttachmentPolicy { late: LatePolicy::Deadline, ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(urgent))).unwrap();
    let app = world.client(64);
    let now = world.clocks.at();
    push_tai(&app, start + 2 * MS, now, b"the next window is early enough");
    push_tai(&app, start + 200 * US, now, b"no window before the deadline");
    world.run_until(100, |w| w.sent().len() == 1 && w.dropped(DropReason::Overrun) == 1);
    assert_eq!(offsets(&world), [300]);
    assert_eq!(world.sent()[0].1 / MS, start / MS);
    assert_eq!(world.dropped(DropReason::Overrun), 1);
    // A deadline is no transmit time: there is no error against it.
    assert_eq!(world.stats.transmit_error.snapshot().len(), 0);
    // Without gates it leaves at once.
    change(&world, &AdminPort::default());
    let now = world.clocks.at();
    assert!(app.push(ClockId::Monotonic, now + 9 * MS, now, b"at once"));
    world.run_until(50, |w| w.sent().len() == 2);
    assert!(world.sent()[1].0 < now + MS);
}

#[test]
fn each_time_with_each_policy_comes_to_an_end_behind_gates() {
    super::late::each_time_comes_to_an_end(|| {
        let (world, start) = gated();
        change(&world, &cycle(start + MS, 300, 500));
        world
    });
}

#[test]
fn draining_does_not_wait_for_gates_that_never_open() {
    let (mut world, start) = gated();
    let closed = AdminPort {
        gate_states: GateStates::ALL_CLOSED,
        ..cycle(start + 400 * 365 * 86_400 * 1_000 * MS / 100, 300, 400)
    };
    // Disabled gates hold their states at once; then a list that begins in four years.
    change(
        &world,
        &AdminPort { gate_enabled: false, gate_states: GateStates::ALL_CLOSED, ..AdminPort::default() },
    );
    change(&world, &closed);
    let app = world.client(64);
    push_tai(&app, start + MS, world.clocks.at(), b"waits for years");
    world.run_until(3, |_| false);
    world.outbox.send(Command::Drain).unwrap();
    let mut passes = 0;
    while world.worker.pass() {
        passes += 1;
        assert!(passes < 1_000);
    }
    assert!(world.sent().is_empty());
    assert_eq!(world.dropped(DropReason::Detached) + world.dropped(DropReason::GateNeverFits), 1);
}

#[test]
fn clause_12_29_1_the_gates_can_be_looked_at() {
    let (mut world, start) = gated();
    let first = cycle(0, 300, 400);
    let second = cycle(start + 10 * MS, 600, 700);
    change(&world, &second);
    let look = |world: &mut World, number| {
        world.outbox.send(Command::LookAtGates(PORT, Box::new(GateView::new(number)))).unwrap();
        world.run_until(1, |_| false);
        let mut found = None;
        for item in world.returned.try_iter() {
            if let Returned::Gates(PORT, view) = item {
                assert_eq!(view.number, number);
                found = view.status;
            }
        }
        found.expect("an answer")
    };
    let view = look(&mut world, 7);
    assert_eq!((view.oper.as_deref(), view.admin.as_deref()), (Some(&first), Some(&second)));
    assert!(view.config_pending);
    assert_eq!(view.config_change_time, Some(Tai::from_nanos(start + 10 * MS)));
    world.clocks.monotonic.fetch_add(11 * MS + 650 * US, SeqCst);
    let view = look(&mut world, 8);
    assert_eq!((view.oper.as_deref(), view.admin.as_deref()), (Some(&second), Some(&second)));
    assert!(!view.config_pending);
    // A base time that has passed while gates run.
    change(&world, &first);
    assert_eq!(look(&mut world, 9).config_change_error, 1);
}

/// `AHEAD` is what the tests' instants rest on.
#[test]
fn cycles_begin_at_whole_milliseconds() {
    let (world, start) = gated();
    assert_eq!(start % MS, 0);
    assert_eq!(world.clocks.tai_now() as i64 - world.clocks.at() as i64, AHEAD);
}
