// SPDX-License-Identifier: Apache-2.0
//! Credit under gates.

use super::*;
use crate::CreditOptions;

/// Class 5 with a quarter of 1 Gbit/s; no hand-over latency.
fn shaped() -> TimeAware {
    let mut s = selection(GIGABIT, 0, ClassOptions::default());
    let mut classes = [ClassOptions::default(); 8];
    classes[5].shaper = Shaper::CreditBased(CreditOptions::new(250_000_000));
    s.set_classes(classes);
    s
}

#[test]
fn clause_8_6_8_2_a_quarter_of_the_link_and_lower_classes_fill_the_rest() {
    let mut s = shaped();
    for id in 0..3 {
        assert_eq!(s.offer(frame(id, 5, None), at(100_000)), Ok(()));
    }
    for id in 10..18 {
        assert_eq!(s.offer(frame(id, 0, None), at(100_000)), Ok(()));
    }
    // 1,000 bits in 1 µs leave a debt of 750, gained in 3 µs: one frame in four.
    let ids: Vec<u64> = run(&mut s, 100_000, 200_000).into_iter().map(|sent| sent.1).collect();
    assert_eq!(ids, [0, 10, 11, 12, 1, 13, 14, 15, 2, 16, 17]);
}

#[test]
fn clause_8_6_8_2_alone_it_waits_for_credit_on_monotonic() {
    let mut s = shaped();
    for id in 0..3 {
        assert_eq!(s.offer(frame(id, 5, None), at(100_000)), Ok(()));
    }
    assert!(matches!(s.decide(at(100_000)), Decision::Transmit { .. }));
    assert_eq!(s.decide(at(100_000)), wake(mono(104_000), 1));
    assert_eq!(run(&mut s, 100_000, 200_000), [(104_000, 1), (108_000, 2)]);
}

#[test]
fn clause_8_6_8_2_credit_rests_while_the_gate_is_closed() {
    let mut s = shaped();
    let half = port(100_000, 20_000, &[(0x20, 10_000), (0xdf, 10_000)]);
    s.set_admin(program(&half), at(100_000));
    for id in 0..3 {
        assert_eq!(s.offer(frame(id, 5, None), at(107_000)), Ok(()));
    }
    // 107 to 108 on the wire, 2 µs of credit until 110, the third microsecond from 120 on.
    assert_eq!(run(&mut s, 107_000, 200_000), [(107_000, 0), (121_000, 1), (125_000, 2)]);
}

#[test]
fn clause_8_6_8_2_nothing_is_saved_up_before_a_frame_is_due() {
    let mut s = shaped();
    for id in 0..3 {
        let f = Frame { overrun_limit: Nanos::MAX, ..frame(id, 5, Some(tai(150_000))) };
        assert_eq!(s.offer(f, at(100_000)), Ok(()));
    }
    assert_eq!(s.decide(at(100_000)), wake(tai(150_000), 0));
    assert_eq!(run(&mut s, 100_000, 200_000), [(150_000, 0), (154_000, 1), (158_000, 2)]);
}

#[test]
fn clause_8_6_8_2_credit_is_saved_up_behind_higher_classes() {
    let mut s = shaped();
    for (id, of_class) in [(0, 5), (1, 5), (2, 5), (10, 7), (11, 7), (12, 7), (13, 7)] {
        assert_eq!(s.offer(frame(id, of_class, None), at(100_000)), Ok(()));
    }
    // Four frames of class 7 take 4 µs: 1,000 bits. Two frames follow at once, the third after 2,000 bits of debt are gained.
    let order = run(&mut s, 100_000, 200_000);
    assert_eq!(order[4..], [(104_000, 0), (105_000, 1), (108_000, 2)]);
}

#[test]
fn clause_8_6_8_2_credit_across_a_change_of_program() {
    let mut s = shaped();
    s.set_admin(program(&port(100_000, 20_000, &[(0xff, 20_000)])), at(100_000));
    for id in 0..2 {
        assert_eq!(s.offer(frame(id, 5, None), at(109_000)), Ok(()));
    }
    assert!(matches!(s.decide(at(109_000)), Decision::Transmit { .. }));
    // From 111 on the gate is open in the second half of each 10 µs alone: 1 µs gained before, 2 µs from 116 on.
    s.set_admin(program(&port(111_000, 10_000, &[(0xdf, 5_000), (0x20, 5_000)])), at(109_500));
    assert_eq!(s.decide(at(109_500)), wake(mono(118_000), 1));
    assert_eq!(s.decide(at(113_000)), wake(mono(118_000), 1));
    assert!(matches!(s.decide(at(118_000)), Decision::Transmit { .. }));
}

#[test]
fn clause_8_6_8_2_nothing_is_saved_up_before_a_frame_is_there() {
    let mut s = shaped();
    // Pushed at 90 µs, due at 92 µs, taken over at 100 µs: on time, and it has waited for nothing yet.
    for id in 0..2 {
        let pushed_at = Monotonic::from_nanos(90_000 - BEHIND);
        let f = Frame { pushed_at, overrun_limit: Nanos::MAX, ..frame(id, 5, Some(mono(92_000))) };
        assert_eq!(s.offer(f, at(100_000)), Ok(()));
    }
    assert_eq!(run(&mut s, 100_000, 200_000), [(100_000, 0), (104_000, 1)]);
}

#[test]
fn clause_8_6_8_2_credit_is_lost_with_the_last_frame_that_waits() {
    for is_removed in [false, true] {
        let mut s = shaped();
        // It saves up 1,000 bits behind class 7 and then does not leave.
        let hasty = Frame { overrun_limit: Nanos::ZERO, ..frame(0, 5, Some(tai(100_000))) };
        assert_eq!(s.offer(hasty, at(100_000)), Ok(()));
        for id in 10..14 {
            assert_eq!(s.offer(frame(id, 7, None), at(100_000)), Ok(()));
        }
        if is_removed {
            assert_eq!(run(&mut s, 100_000, 103_500).len(), 4);
            s.remove(&mut |frame| frame.class == class(5), &mut |frame| assert_eq!(frame, hasty));
        } else {
            assert_eq!(run(&mut s, 100_000, 200_000).len(), 4, "dropped once its turn came");
        }
        for id in 1..3 {
            assert_eq!(s.offer(frame(id, 5, None), at(110_000)), Ok(()));
        }
        assert_eq!(run(&mut s, 110_000, 200_000), [(110_000, 1), (114_000, 2)]);
    }
}
