// SPDX-License-Identifier: Apache-2.0
//! A frame on time is not kept waiting by a hand-over of a lower class that began just before it.

use super::*;
use proptest::prelude::{ProptestConfig, prop, prop_assert, prop_assert_eq, proptest};

/// No link speed, no program; a hand-over takes 8 µs.
fn open() -> TimeAware {
    selection(None, 8_000, ClassOptions::default())
}

fn offered(s: &mut TimeAware, frames: &[Frame], now: u64) {
    for frame in frames {
        assert_eq!(s.offer(Frame { overrun_limit: Nanos::MAX, ..*frame }, at(now)), Ok(()));
    }
}

#[test]
fn no_hand_over_of_a_lower_class_begins_that_would_still_be_under_way() {
    for (due, order) in [
        (107_999, [(107_999, 1), (107_999, 2)]),
        // It has ended by then.
        (108_000, [(100_000, 2), (108_000, 1)]),
    ] {
        let mut s = open();
        offered(&mut s, &[frame(1, 7, Some(tai(due))), frame(2, 3, None)], 100_000);
        assert_eq!(run(&mut s, 100_000, 200_000), order);
    }
}

#[test]
fn a_frame_that_will_be_due_is_held_back_as_well() {
    let mut s = open();
    offered(&mut s, &[frame(1, 7, Some(mono(110_000))), frame(2, 3, Some(tai(102_001)))], 100_000);
    assert_eq!(s.decide(at(100_000)), wake(mono(110_000), 1));
    let mut s = open();
    offered(&mut s, &[frame(1, 7, Some(mono(110_000))), frame(2, 3, Some(tai(102_000)))], 100_000);
    assert_eq!(s.decide(at(100_000)), wake(tai(102_000), 2));
}

#[test]
fn the_own_class_and_lower_ones_hold_nothing_back() {
    for of_class in [3, 2] {
        let mut s = open();
        offered(&mut s, &[frame(1, of_class, Some(tai(101_000))), frame(2, 3, None)], 100_000);
        assert_eq!(run(&mut s, 100_000, 200_000), [(100_000, 2), (101_000, 1)]);
    }
}

#[test]
fn only_what_is_on_time_holds_back() {
    // Class 7 opens at 105 µs.
    let gate = port(100_000, 100_000, &[(0x7f, 5_000), (0xff, 95_000)]);
    let pushed_at = at(100_000).monotonic;
    let late = Frame { late: LatePolicy::Send, pushed_at, ..frame(1, 7, Some(tai(99_000))) };
    let deadline = Frame { late: LatePolicy::Deadline, ..frame(1, 7, Some(tai(190_000))) };
    let on_time = frame(1, 7, Some(tai(101_000)));
    for (higher, first) in [(late, 9), (deadline, 9), (frame(1, 7, None), 9), (on_time, 1)] {
        let mut s = open();
        s.set_admin(program(&gate), at(100_000));
        offered(&mut s, &[higher, frame(9, 3, None)], 100_000);
        assert_eq!(run(&mut s, 100_000, 200_000)[0].1, first, "{higher:?}");
    }
}

#[test]
fn its_gate_counts() {
    let mut s = selection(None, 8_000, ClassOptions::default());
    s.set_admin(program(&port(100_000, 100_000, &[(0x7f, 50_000), (0xff, 50_000)])), at(100_000));
    offered(&mut s, &[frame(1, 7, Some(tai(101_000))), frame(2, 3, None), frame(3, 3, None)], 100_000);
    assert!(matches!(s.decide(at(100_000)), Decision::Transmit { .. }), "the gate opens in 50 µs");
    assert_eq!(s.decide(at(142_001)), wake(tai(150_000), 1));
    assert_eq!(run(&mut s, 150_000, 200_000), [(150_000, 1), (150_000, 3)]);
}

#[test]
fn it_is_20_us_at_most() {
    for (due, first) in [(119_999, 1), (120_000, 2)] {
        let mut s = selection(None, 1_000_000, ClassOptions::default());
        offered(&mut s, &[frame(1, 7, Some(tai(due))), frame(2, 3, None)], 100_000);
        assert_eq!(run(&mut s, 100_000, 200_000)[0].1, first);
    }
}

/// A stream with less time between its frames than a hand-over may take does not stop the lower classes.
#[test]
fn what_was_held_back_once_goes_before_it_is_held_back_again() {
    let mut s = open();
    for id in 0..4 {
        let dense = frame(id, 7, Some(tai(101_000 + id * 3_000)));
        offered(&mut s, &[dense, frame(10 + id, 3, None)], 100_000);
    }
    let order = [(101_000, 0), (101_000, 10), (104_000, 1), (104_000, 11), (107_000, 2), (107_000, 12)];
    assert_eq!(run(&mut s, 100_000, 200_000)[..6], order);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever waits for whatever, everything leaves, and each class waits for its due instant, for the link, and for as many hand-overs as
    /// higher classes have frames.
    #[test]
    fn everything_leaves(
        hand_over in 0i64..30_000,
        frames in prop::collection::vec((0u8..8, prop::option::of(0u64..60_000)), 0..40),
    ) {
        let mut s = selection(None, hand_over, ClassOptions::default());
        let guard = hand_over.min(20_000).unsigned_abs();
        for (id, &(of_class, due)) in frames.iter().enumerate() {
            let f = frame(id as u64, of_class, due.map(|due| tai(100_000 + due)));
            prop_assert_eq!(s.offer(Frame { overrun_limit: Nanos::MAX, ..f }, at(100_000)), Ok(()));
        }
        let order = run(&mut s, 100_000, 1_000_000);
        prop_assert_eq!(order.len(), frames.len());
        for (left, id) in order {
            let (of_class, due) = frames[id as usize];
            let higher = frames.iter().filter(|(other, due)| *other > of_class && due.is_some()).count() as u64;
            let due = 100_000 + due.unwrap_or(0);
            prop_assert!(left >= due && left - due <= higher * guard, "{} left at {}", id, left);
        }
    }
}
