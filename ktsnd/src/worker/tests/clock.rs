// SPDX-License-Identifier: Apache-2.0
//! `unsynchronised`: what depends on TAI is sent, held or dropped while the clock is not good, nothing else is touched, and no
//! frame is lost without a reason. The clock's state is a command here: no test looks at the machine's clock.

use ktsn_model::UnsynchronisedPolicy;

use super::gates::gated;
use super::*;
use crate::worker::clock_gate::ClockGate;

fn with(mut world: World, policy: UnsynchronisedPolicy) -> World {
    world.worker.clock = ClockGate::new(policy, true);
    world
}

/// A worker that is never too late, so that only the clock has a say.
fn patient(policy_of: UnsynchronisedPolicy) -> World {
    let world = with(World::new(800), policy_of);
    let patient = AttachmentPolicy { overrun_limit: Nanos::from_seconds(100), ..policy(&world.stats) };
    world.outbox.send(Command::SetAttachment(AttachmentIndex(0), Box::new(patient))).unwrap();
    world
}

fn is_good(world: &World, is_good: bool) {
    world.outbox.send(Command::ClockIsGood(is_good)).unwrap();
}

fn tai(at: u64) -> u64 {
    at.saturating_add_signed(AHEAD)
}

fn texts(world: &World) -> Vec<Vec<u8>> {
    world.sent().iter().map(|(_, _, frame)| payload(frame)).collect()
}

/// Runs until `at`, and a little longer.
fn run_past(world: &mut World, at: u64) {
    world.run_until(2000, |world| world.clocks.at() > at);
    world.run_until(3, |_| false);
}

#[test]
fn send_sends() {
    let mut world = with(World::new(800), UnsynchronisedPolicy::Send);
    let app = world.client(64);
    is_good(&world, false);
    let now = world.clocks.at();
    app.push(ClockId::Tai, tai(now + MS), now, b"by TAI");
    run_past(&mut world, now + MS);
    assert_eq!(texts(&world), [b"by TAI"]);
}

#[test]
fn drop_drops_what_depends_on_tai_queued_or_new_and_nothing_else() {
    let mut world = with(World::new(800), UnsynchronisedPolicy::Drop);
    let app = world.client(64);
    let now = world.clocks.at();
    app.push(ClockId::Tai, tai(now + 2 * MS), now, b"queued before");
    world.run_until(1, |_| false);
    is_good(&world, false);
    app.push(ClockId::Tai, tai(now + 1_000 * MS), now, b"refused at once");
    app.push(ClockId::Monotonic, now + 3 * MS, now, b"by MONOTONIC");
    world.run_until(20, |world| world.dropped(DropReason::Unsynchronised) == 2);
    assert_eq!(world.dropped(DropReason::Unsynchronised), 2);
    assert!(world.clocks.at() < now + 900 * MS, "what is refused need not wait for its time");
    run_past(&mut world, now + 3 * MS);
    assert_eq!(texts(&world), [b"by MONOTONIC"]);
    is_good(&world, true);
    app.push(ClockId::Tai, tai(now + 3_000 * MS), now, b"good again");
    run_past(&mut world, now + 3_000 * MS);
    assert_eq!(texts(&world).len(), 2);
}

#[test]
fn hold_holds_until_the_clock_is_good_and_lets_others_pass() {
    let mut world = patient(UnsynchronisedPolicy::Hold);
    let app = world.client(64);
    let now = world.clocks.at();
    is_good(&world, false);
    app.push(ClockId::Tai, tai(now + MS), now, b"1");
    app.push(ClockId::Tai, tai(now + 2 * MS), now, b"2");
    app.push(ClockId::Monotonic, now + 3 * MS, now, b"by MONOTONIC");
    app.push(ClockId::Tai, tai(now + 5_000 * MS), now, b"3");
    run_past(&mut world, now + 500 * MS);
    assert_eq!(texts(&world), [b"by MONOTONIC".to_vec()]);
    assert_eq!(world.dropped(DropReason::Unsynchronised), 0);
    is_good(&world, true);
    world.run_until(20, |world| world.sent().len() == 3);
    assert_eq!(texts(&world), [b"by MONOTONIC".to_vec(), b"1".to_vec(), b"2".to_vec()]);
    // The frame that was not due leaves at its time.
    run_past(&mut world, now + 5_000 * MS);
    let sent = world.sent();
    assert!(sent.len() == 4 && sent[3].1 >= tai(now + 5_000 * MS), "{sent:?}");
}

/// Once the clock is good, a frame is judged by it like any other.
#[test]
fn a_frame_that_was_held_past_its_overrun_limit_is_dropped_for_it() {
    let mut world = with(World::new(800), UnsynchronisedPolicy::Hold);
    let app = world.client(64);
    let now = world.clocks.at();
    is_good(&world, false);
    app.push(ClockId::Tai, tai(now + MS), now, b"stale");
    run_past(&mut world, now + 50 * MS);
    is_good(&world, true);
    let until = world.clocks.at() + MS;
    run_past(&mut world, until);
    assert_eq!((world.sent().len(), world.dropped(DropReason::Overrun)), (0, 1));
}

#[test]
fn a_frame_is_held_for_no_longer_than_its_horizon() {
    let mut world = patient(UnsynchronisedPolicy::Hold);
    let app = world.client(64);
    let now = world.clocks.at();
    is_good(&world, false);
    app.push(ClockId::Tai, tai(now + MS), now, b"given up");
    run_past(&mut world, now + 8_500 * MS);
    assert_eq!(world.dropped(DropReason::Unsynchronised), 0, "its horizon is 10 s from its time on");
    run_past(&mut world, now + 11_000 * MS);
    assert_eq!(world.dropped(DropReason::Unsynchronised), 1);
    // Its slot is free again.
    let now = world.clocks.at();
    assert_eq!((0..64).filter(|_| app.push(ClockId::Monotonic, now, now, b"")).count(), 64);
}

/// A gate opens by TAI, so all that waits for one depends on it.
#[test]
fn behind_gates_every_frame_is_held() {
    let (world, start) = gated();
    let mut world = with(world, UnsynchronisedPolicy::Hold);
    let app = world.client(64);
    let now = world.clocks.at();
    is_good(&world, false);
    app.push(ClockId::Monotonic, now + 100 * US, now, b"by MONOTONIC");
    run_past(&mut world, now + 5 * MS);
    assert_eq!(world.sent().len(), 0);
    is_good(&world, true);
    run_past(&mut world, now + 8 * MS);
    let sent = world.sent();
    assert_eq!(sent.len(), 1, "after {start}");
    assert!((300..400).contains(&(sent[0].1 % MS / US)), "inside its window");
}

#[test]
fn what_is_held_goes_with_its_attachment() {
    let mut world = patient(UnsynchronisedPolicy::Hold);
    let app = world.client(64);
    let now = world.clocks.at();
    is_good(&world, false);
    for i in 0..40 {
        app.push(ClockId::Tai, tai(now + MS + i), now, b"");
    }
    run_past(&mut world, now + 2 * MS);
    world.outbox.send(Command::RemoveAttachment(AttachmentIndex(0))).unwrap();
    world.outbox.send(Command::EndClient(app.key)).unwrap();
    run_past(&mut world, now + 800 * MS);
    let is_back =
        world.returned.try_iter().any(|back| matches!(back, Returned::Client(c) if c.key == app.key));
    assert!(is_back, "no frame of it is left");
    assert_eq!(world.dropped(DropReason::Detached), 40);
    assert_eq!(world.sent().len(), 0);
}

#[test]
fn a_worker_that_drains_does_not_wait_for_the_clock() {
    let mut world = patient(UnsynchronisedPolicy::Hold);
    let app = world.client(256);
    let now = world.clocks.at();
    is_good(&world, false);
    for i in 0..200 {
        app.push(ClockId::Tai, tai(now + MS + i), now, b"");
    }
    run_past(&mut world, now + 2 * MS);
    world.outbox.send(Command::Drain).unwrap();
    let has_ended = (0..200).any(|_| !world.worker.pass());
    assert!(has_ended);
    assert_eq!(world.dropped(DropReason::Unsynchronised), 200);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    /// Whatever the clock does: no frame is lost without a reason, none leaves before its time, and none that depends on TAI
    /// leaves while it is not good.
    #[test]
    fn frames_are_conserved_whatever_the_clock_does(
        steps in proptest::collection::vec((any::<bool>(), 0u64..4000, 0u8..6), 1..60),
        is_hold in any::<bool>(),
    ) {
        let policy = if is_hold { UnsynchronisedPolicy::Hold } else { UnsynchronisedPolicy::Drop };
        let mut world = patient(policy);
        // No frame may be given up: the steps sleep for up to 75 s in all.
        world.worker.apply_commands();
        world.worker.attachments.get_mut(AttachmentIndex(0)).unwrap().horizon = Nanos::from_seconds(1_000);
        let app = world.client(1024);
        let mut pushed = 0u64;
        let mut is_bad = false;
        for (is_tai, ahead, what) in steps {
            let now = world.clocks.at();
            match what {
                0 => {
                    is_bad = !is_bad;
                    is_good(&world, !is_bad);
                    world.worker.apply_commands();
                }
                1 => run_past(&mut world, now + ahead * US),
                _ => {
                    let (clock, at) = if is_tai { (ClockId::Tai, tai(now + ahead * US)) } else { (ClockId::Monotonic, now + ahead * US) };
                    pushed += u64::from(app.push(clock, at, now, &[u8::from(is_tai); 16]));
                }
            }
            let before = world.sent().len();
            world.run_until(2, |_| false);
            let sent = world.sent();
            if is_bad {
                prop_assert!(sent[before..].iter().all(|(_, _, frame)| payload(frame)[0] == 0));
            }
        }
        is_good(&world, true);
        let now = world.clocks.at();
        run_past(&mut world, now + 20 * MS);
        let dropped: u64 = world.stats.dropped.iter().map(|n| n.load(SeqCst)).sum();
        prop_assert_eq!(world.sent().len() as u64 + dropped, pushed);
        prop_assert!(!is_hold || world.dropped(DropReason::Unsynchronised) == 0);
    }
}
