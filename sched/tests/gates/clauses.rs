// SPDX-License-Identifier: Apache-2.0
//! The rules by example, one clause each, with numbers that can be worked out by hand; and what the random
//! worlds must have shown to count.

use crate::cases::{self, fixed};
use crate::engine::engine;
use crate::port::{ClassSetup, Port, Setup, now};
use crate::world::{BEGIN, FAST, List, Sent, What, any_world, begin, run};
use ktsn_model::{DropReason, LatePolicy};
use ktsn_sched::{Decision, Frame, Window};
use ktsn_time::{Nanos, Now, Tai, TxTime};
use proptest::prelude::*;

fn setup() -> Setup {
    Setup { capacity: 8, link_speed: Some(FAST), hand_over: 0, classes: [ClassSetup::default(); 8] }
}

/// `after` nanoseconds after the beginning, on both clocks.
fn at(after: u64) -> Now {
    now(begin().monotonic.as_nanos() + after, BEGIN + after)
}

fn tai(after: u64) -> Tai {
    Tai::from_nanos(BEGIN + after)
}

/// Class 0 is open for 10 ns, then class 7 for 10 ns.
fn halves(base_in: i64) -> List {
    List {
        enabled: true,
        initial: 0,
        base_in,
        cycle: 20,
        extension: 0,
        entries: vec![(0x01, 10), (0x80, 10)],
    }
}

/// An untimed frame of as many nanoseconds as octets, sent at `at`.
fn frame(id: u64, class: u8, octets: u32, at: Now) -> Frame {
    let sent = Sent {
        class,
        attachment: 0,
        tx_time_in: None,
        age: 0,
        octets,
        sdu_octets: octets,
        late: LatePolicy::ByClock,
        overrun_limit: 5,
        horizon: i64::MAX,
    };
    sent.frame(id, at)
}

fn configured(list: &List) -> Box<dyn Port> {
    let mut port = engine(&setup());
    port.set_admin(&list.admin(begin()), begin());
    port
}

fn wakes(decision: Decision) -> TxTime {
    match decision {
        Decision::WakeAt { at, .. } => at,
        other => panic!("{other:?}"),
    }
}

/// Change time after the beginning, for a list configured at the beginning.
fn change_time(base_in: i64) -> i128 {
    let mut port = configured(&halves(base_in));
    port.status(begin()).config_change_time.unwrap() - i128::from(BEGIN)
}

#[test]
fn clause_8_6_9_3_base_time_now_is_not_in_the_past() {
    assert_eq!((change_time(0), change_time(1), change_time(57)), (0, 1, 57));
}

#[test]
fn clause_8_6_9_3_base_time_in_the_past_waits_for_the_next_whole_cycle() {
    assert_eq!((change_time(-1), change_time(-19), change_time(-21)), (19, 1, 19));
}

#[test]
fn clause_8_6_9_3_a_base_whole_cycles_ago_changes_exactly_now() {
    assert_eq!((change_time(-20), change_time(-40), change_time(-2_000_000)), (0, 0, 0));
}

#[test]
fn clause_8_6_9_3_config_change_error_counts_while_gates_run() {
    let mut port = configured(&halves(-7));
    assert_eq!(port.status(begin()).config_change_error, 0, "no gates ran");
    port.set_admin(&halves(-7).admin(at(100)), at(100));
    assert_eq!(port.status(at(100)).config_change_error, 1);
    port.set_admin(&halves(7).admin(at(200)), at(200));
    assert_eq!(port.status(at(200)).config_change_error, 1, "in the future");
}

/// The last cycle before a change: extended by up to the extension, cut where the change comes sooner.
#[test]
fn clause_8_6_9_1_the_last_cycle_is_extended_or_cut() {
    for (change_in, extension, open_at_42) in [(45, 5, 0x80), (45, 4, 0x01), (41, 0, 0x40), (60, 0, 0x01)] {
        let mut port = configured(&List { extension, ..halves(0) });
        let after = List { entries: vec![(0x40, 20)], ..halves(change_in) };
        port.set_admin(&after.admin(begin()), begin());
        let states = port.status(at(42)).states.bits();
        assert_eq!(states, open_at_42, "change in {change_in}, extension {extension}");
    }
}

#[test]
fn clause_8_6_9_2_a_list_longer_than_its_cycle_is_cut_off() {
    let mut port = configured(&List { cycle: 15, ..halves(0) });
    let states = [9, 10, 14, 15, 24, 25].map(|after| port.status(at(after)).states.bits());
    assert_eq!(states, [0x01, 0x80, 0x80, 0x01, 0x01, 0x80]);
}

#[test]
fn clause_8_6_9_2_the_last_entry_holds_until_the_cycle_ends() {
    let mut port = configured(&List { cycle: 25, ..halves(0) });
    let states = [10, 20, 24, 25, 35].map(|after| port.status(at(after)).states.bits());
    assert_eq!(states, [0x80, 0x80, 0x80, 0x01, 0x80]);
}

/// A frame may end with its window, not a nanosecond later.
#[test]
fn clause_8_6_8_4_guard_band() {
    let mut port = configured(&halves(0));
    port.offer(frame(1, 0, 4, at(6)), at(6)).unwrap();
    let window = Some(Window { opens_at: tai(0), latest: tai(6) });
    let decision = port.decide(at(6));
    assert!(matches!(decision, Decision::Transmit { window: seen, .. } if seen == window), "{decision:?}");
    port.offer(frame(2, 0, 4, at(27)), at(27)).unwrap();
    assert_eq!(wakes(port.decide(at(27))), TxTime::Tai(tai(40)));
}

#[test]
fn clause_8_6_8_4_a_frame_longer_than_every_window_is_dropped() {
    let mut port = configured(&halves(0));
    let long = frame(1, 0, 11, begin());
    port.offer(long, begin()).unwrap();
    let dropped = Decision::Drop { frame: long, reason: DropReason::GateNeverFits };
    assert_eq!(port.decide(begin()), dropped);
    // With a wider list pending it waits for that.
    port.set_admin(&List { entries: vec![(0x01, 20)], ..halves(33) }.admin(begin()), begin());
    port.offer(long, begin()).unwrap();
    assert_eq!(wakes(port.decide(begin())), TxTime::Tai(tai(33)));
}

/// Waiting for the gate is no overrun; being waited for is.
#[test]
fn overrun_counts_from_the_first_chance() {
    let mut port = configured(&halves(0));
    let timed = |id| Frame { tx_time: Some(TxTime::Tai(tai(3))), ..frame(id, 7, 2, begin()) };
    port.offer(timed(1), begin()).unwrap();
    port.offer(timed(2), begin()).unwrap();
    let decision = port.decide(at(13));
    assert!(
        matches!(decision, Decision::Transmit { overrun, .. } if overrun == Nanos::new(3)),
        "{decision:?}"
    );
    let decision = port.decide(at(16));
    let overrun = Decision::Drop { frame: timed(2), reason: DropReason::Overrun };
    assert_eq!(decision, overrun, "6 ns after the gate opened, with a limit of 5");
}

/// The wire time is rounded up, at any speed and length: read off the latest hand-over before a change.
#[test]
fn clause_8_6_8_4_wire_time_is_rounded_up() {
    let speeds = prop_oneof![
        prop::sample::select(vec![10_000_000u64, 100_000_000, 1_000_000_000, 2_500_000_000, 400_000_000_000]),
        1_000_000u64..800_000_000_000,
    ];
    cases::check(5, (speeds, 1u32..70_000, 0u64..100_000), |(speed, octets, hand_over)| {
        let mut port = engine(&Setup { link_speed: Some(speed), hand_over, ..setup() });
        let change_in = 2_000_000_000_000;
        port.set_admin(&halves(change_in).admin(begin()), begin());
        port.offer(frame(1, 3, octets, begin()), begin()).unwrap();
        let duration = (u128::from(octets) * 8_000_000_000).div_ceil(speed.into()) as u64;
        let latest = tai(change_in as u64 - hand_over - duration);
        match port.decide(begin()) {
            Decision::Transmit { window: Some(window), .. } => prop_assert_eq!(window.latest, latest),
            other => prop_assert!(false, "{:?}", other),
        }
        // The wire is ours until then: the next is chosen a hand-over earlier.
        port.offer(frame(2, 3, octets, begin()), begin()).unwrap();
        let free = TxTime::Monotonic(begin().monotonic).saturating_add(Nanos::new(duration as i64));
        prop_assert_eq!(wakes(port.decide(begin())), free);
        Ok(())
    });
}

/// The random worlds are worth their name: every kind of answer occurs often.
#[test]
fn random_worlds_show_every_kind_of_answer() {
    let mut seen = std::collections::BTreeMap::<&str, u32>::new();
    for world in fixed(1_000, &any_world()) {
        for step in run(engine(&world.setup).as_mut(), &world) {
            let kind = match step.what {
                What::Offered(_, Ok(())) => "queued",
                What::Offered(_, Err(refused)) => refused.reason.word(),
                What::Decided(Decision::Transmit { late: true, .. }) => "transmitted late",
                What::Decided(Decision::Transmit { window: Some(_), .. }) => "transmitted in a window",
                What::Decided(Decision::Transmit { overrun, .. }) if overrun > Nanos::ZERO => "overrun",
                What::Decided(Decision::Transmit { .. }) => "transmitted",
                What::Decided(Decision::Drop { reason: DropReason::Overrun, .. }) => "dropped: overrun",
                What::Decided(Decision::Drop { .. }) => "dropped: never fits",
                What::Decided(Decision::WakeAt { at: TxTime::Tai(_), .. }) => "waits on TAI",
                What::Decided(Decision::WakeAt { .. }) => "waits on MONOTONIC",
                _ => continue,
            };
            *seen.entry(kind).or_default() += 1;
        }
    }
    for (kind, least) in [
        ("queued", 5_000),
        ("transmitted", 150),
        ("transmitted in a window", 500),
        ("transmitted late", 50),
        ("overrun", 100),
        ("dropped: overrun", 50),
        ("dropped: never fits", 200),
        ("waits on TAI", 1_000),
        ("waits on MONOTONIC", 500),
        ("missed", 200),
        ("too_long", 200),
        ("queue_full", 100),
        ("beyond_horizon", 20),
    ] {
        let count = seen.get(kind).copied().unwrap_or(0);
        assert!(count >= least, "{kind}: {count} of {least}, {seen:?}");
    }
}
