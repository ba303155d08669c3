// SPDX-License-Identifier: Apache-2.0
//! Gate, guard band, link and order.

use super::*;

#[test]
fn clause_8_6_8_4_waits_for_the_gate_and_waiting_is_no_overrun() {
    let mut s = gated();
    let f = frame(1, 7, Some(tai(150_000)));
    assert_eq!(s.offer(f, at(140_000)), Ok(()));
    // Due at 150 µs, gate from 200 µs on: the gate decides.
    assert_eq!(s.decide(at(140_000)), wake(tai(200_000), 1));
    assert_eq!(s.decide(at(199_999)), wake(tai(200_000), 1));
    assert_eq!(s.decide(at(200_003)), sent(f, 3, window(200_000)));
    assert_eq!(s.decide(at(200_003)), Decision::Idle);
}

#[test]
fn clause_8_6_8_4_due_inside_of_the_window_wakes_on_the_frames_own_clock() {
    for tx_time in [tai(205_000), mono(205_000)] {
        let mut s = gated();
        let f = frame(1, 7, Some(tx_time));
        assert_eq!(s.offer(f, at(140_000)), Ok(()));
        assert_eq!(s.decide(at(201_000)), wake(tx_time, 1));
        assert_eq!(s.decide(at(205_000)), sent(f, 0, window(200_000)));
    }
}

#[test]
fn clause_8_6_8_4_guard_band_to_the_nanosecond() {
    let mut s = gated();
    let f = frame(1, 7, Some(tai(110_000)));
    assert_eq!(s.offer(f, at(100_000)), Ok(()));
    // H + T = 1,500 before 120 µs: 118,500 is the last instant.
    assert_eq!(s.decide(at(118_501)), wake(tai(200_000), 1));
    let Decision::Drop { reason, .. } = s.decide(at(200_000)) else { panic!("slept through its window") };
    assert_eq!(reason, DropReason::Overrun);
    let patient = Frame { overrun_limit: Nanos::new(9_000), ..f };
    assert_eq!(s.offer(patient, at(200_001)), Ok(()));
    let mut s = gated();
    assert_eq!(s.offer(patient, at(100_000)), Ok(()));
    assert_eq!(s.decide(at(118_500)), sent(patient, 8_500, window(100_000)));
}

#[test]
fn clause_8_6_8_4_due_in_the_guard_band_waits_for_the_next_window() {
    let mut s = gated();
    let f = frame(1, 7, Some(tai(119_000)));
    assert_eq!(s.offer(f, at(101_000)), Ok(()));
    assert_eq!(s.decide(at(101_000)), wake(tai(200_000), 1));
    assert_eq!(s.decide(at(200_004)), sent(f, 4, window(200_000)), "it could not have left before");
}

#[test]
fn overrun_counts_from_the_first_window_that_it_slept_through() {
    let mut s = gated();
    let f = Frame { overrun_limit: Nanos::MAX, ..frame(1, 7, Some(tai(150_000))) };
    assert_eq!(s.offer(f, at(140_000)), Ok(()));
    assert_eq!(s.decide(at(400_000)), sent(f, 200_000, window(400_000)));
}

#[test]
fn a_frame_before_the_guard_band_of_a_lower_class_does_not_starve_it() {
    let mut s = gated();
    // Class 6 may leave now, class 7's gate is closed.
    for f in [frame(1, 7, Some(tai(130_000))), frame(2, 6, Some(tai(130_000)))] {
        assert_eq!(s.offer(f, at(125_000)), Ok(()));
    }
    assert_eq!(run(&mut s, 125_000, 300_000), [(130_000, 2), (200_000, 1)]);
}

#[test]
fn clause_8_6_8_1_highest_class_first_and_one_frame_at_a_time_on_the_link() {
    let mut s = gated();
    for (id, of_class) in [(1, 0), (2, 3), (3, 3), (4, 6)] {
        assert_eq!(s.offer(frame(id, of_class, None), at(130_000)), Ok(()));
    }
    // The wire is taken for 1,000 from 500 after the first hand-over; the next one may be handed over 500 before that ends.
    assert_eq!(run(&mut s, 130_000, 200_000), [(130_000, 4), (131_000, 2), (132_000, 3), (133_000, 1)]);
}

#[test]
fn a_higher_class_waits_for_one_frame_at_most() {
    let mut s = gated();
    // Hand-overs that take time would be waited out: guard.rs.
    s.set_hand_over(Nanos::ZERO);
    for id in 0..10 {
        assert_eq!(s.offer(frame(id, 0, None), at(130_000)), Ok(()));
    }
    let urgent = frame(99, 6, Some(tai(133_001)));
    assert_eq!(s.offer(urgent, at(130_000)), Ok(()));
    let order = run(&mut s, 130_000, 200_000);
    assert_eq!(order[3..6], [(133_000, 3), (134_000, 99), (135_000, 4)]);
}

#[test]
fn a_busy_link_is_waited_for_on_monotonic_drops_included() {
    let mut s = gated();
    assert_eq!(s.offer(frame(1, 6, None), at(130_000)), Ok(()));
    let hasty = Frame { overrun_limit: Nanos::new(10), ..frame(2, 6, Some(tai(130_400))) };
    assert_eq!(s.offer(hasty, at(130_000)), Ok(()));
    assert!(matches!(s.decide(at(130_000)), Decision::Transmit { .. }));
    assert_eq!(s.decide(at(130_500)), wake(mono(131_000), 2));
    let overrun = Decision::Drop { frame: hasty, reason: DropReason::Overrun };
    assert_eq!(s.decide(at(131_000)), overrun);
}

#[test]
fn a_link_without_speed_is_always_free_and_guards_the_hand_over_alone() {
    for link_speed in [None, Some(0)] {
        let mut s = gated();
        s.set_link_speed(link_speed);
        for id in 1..4 {
            let huge = Frame { wire_octets: u32::MAX, ..frame(id, 7, Some(tai(105_000))) };
            assert_eq!(s.offer(huge, at(104_000)), Ok(()));
        }
        assert_eq!(run(&mut s, 105_000, 200_000), [(105_000, 1), (105_000, 2), (105_000, 3)]);
        s.set_hand_over(Nanos::new(-3));
        let tiny = Frame { wire_octets: 0, ..frame(9, 7, Some(tai(119_999))) };
        assert_eq!(s.offer(tiny, at(105_000)), Ok(()));
        let latest = Tai::from_nanos(119_999);
        assert_eq!(
            s.decide(at(119_999)),
            sent(tiny, 0, Some(Window { opens_at: Tai::from_nanos(100_000), latest }))
        );
    }
}

#[test]
fn clause_8_6_8_4_longer_than_every_window_is_dropped_by_name_once_it_is_due() {
    let mut s = gated();
    // 20 µs hold 19,500 ns of frame beside the hand-over: 2,437.5 octets.
    let fits = Frame { wire_octets: 2_437, ..frame(1, 7, Some(tai(150_000))) };
    let never = Frame { wire_octets: 2_438, ..frame(2, 7, Some(tai(140_000))) };
    for f in [fits, never] {
        assert_eq!(s.offer(f, at(130_000)), Ok(()));
    }
    assert_eq!(s.decide(at(130_000)), wake(tai(140_000), 2));
    let dropped = Decision::Drop { frame: never, reason: DropReason::GateNeverFits };
    assert_eq!(s.decide(at(140_000)), dropped);
    assert_eq!(s.decide(at(140_000)), wake(tai(200_000), 1));
    assert!(matches!(s.decide(at(200_000)), Decision::Transmit { .. }));
}

#[test]
fn an_immense_frame_on_the_slowest_link_is_dropped_and_one_without_octets_leaves() {
    let mut s = gated();
    s.set_link_speed(Some(1));
    assert_eq!(s.offer(Frame { wire_octets: u32::MAX, ..frame(1, 7, None) }, at(110_000)), Ok(()));
    assert!(matches!(s.decide(at(110_000)), Decision::Drop { reason: DropReason::GateNeverFits, .. }));
    let nothing = Frame { wire_octets: 0, ..frame(2, 7, None) };
    assert_eq!(s.offer(nothing, at(110_000)), Ok(()));
    assert!(matches!(s.decide(at(119_500)), Decision::Transmit { .. }));
}

#[test]
fn clause_8_6_8_4_a_gate_that_never_opens() {
    let mut s = selection(GIGABIT, 0, ClassOptions::default());
    let closed = AdminPort { gate_states: GateStates::from_bits(0x7f), ..AdminPort::default() };
    s.set_admin(program(&closed), at(100_000));
    let (never, open) = (frame(1, 7, None), frame(2, 6, None));
    for f in [never, open] {
        assert_eq!(s.offer(f, at(100_000)), Ok(()));
    }
    let dropped = Decision::Drop { frame: never, reason: DropReason::GateNeverFits };
    assert_eq!(s.decide(at(100_000)), dropped);
    assert_eq!(s.decide(at(100_000)), sent(open, 0, None));
}

#[test]
fn only_the_head_may_leave_even_where_a_shorter_frame_behind_it_fits() {
    let mut s = gated();
    let long = Frame { wire_octets: 1_500, ..frame(1, 7, Some(tai(110_000))) };
    for f in [long, frame(2, 7, Some(tai(110_001)))] {
        assert_eq!(s.offer(f, at(101_000)), Ok(()));
    }
    assert_eq!(s.decide(at(110_001)), wake(tai(200_000), 1));
}

#[test]
fn in_tx_time_order_the_one_due_longest_leaves_on_either_clock() {
    let mut s = gated();
    for (id, tx_time) in [(1, tai(131_000)), (2, mono(130_500)), (3, tai(130_500)), (4, mono(130_400))] {
        assert_eq!(
            s.offer(Frame { overrun_limit: Nanos::MAX, ..frame(id, 3, Some(tx_time)) }, at(130_000)),
            Ok(())
        );
    }
    let ids: Vec<u64> = run(&mut s, 140_000, 200_000).into_iter().map(|sent| sent.1).collect();
    assert_eq!(ids, [4, 2, 3, 1]);
}

#[test]
fn in_order_of_arrival_a_frame_that_is_not_due_holds_up_its_class_alone() {
    let fifo = ClassOptions { order: Order::Fifo, ..ClassOptions::default() };
    let mut s = selection(None, 0, fifo);
    for (id, of_class, tx_time) in
        [(1, 3, Some(tai(150_000))), (2, 3, Some(mono(120_000))), (3, 3, None), (4, 2, Some(tai(130_000)))]
    {
        let f = Frame { overrun_limit: Nanos::MAX, ..frame(id, of_class, tx_time) };
        assert_eq!(s.offer(f, at(110_000)), Ok(()));
    }
    assert_eq!(s.decide(at(110_000)), wake(tai(130_000), 4));
    assert_eq!(run(&mut s, 110_000, 200_000), [(130_000, 4), (150_000, 1), (150_000, 2), (150_000, 3)]);
}

#[test]
fn clause_8_6_8_4_queue_max_sdu_is_a_limit_of_the_class() {
    let mut s = gated();
    let mut classes = [ClassOptions::default(); 8];
    classes[3].queue_max_sdu = Some(83);
    s.set_classes(classes);
    assert_eq!(s.offer(frame(1, 3, None), at(130_000)), Ok(()));
    // Named before its TxTime is looked at.
    let long = Frame { sdu_octets: 84, ..frame(2, 3, Some(tai(0))) };
    assert_eq!(s.offer(long, at(130_000)), Err(Refused { frame: long, reason: DropReason::TooLong }));
    assert_eq!(s.offer(Frame { sdu_octets: 84, ..frame(3, 4, None) }, at(130_000)), Ok(()));
}

#[test]
fn a_deadline_frame_leaves_at_once_and_never_after_its_tx_time() {
    let mut s = gated();
    let deadline = |id, tx_time| Frame { late: LatePolicy::Deadline, ..frame(id, 7, Some(tx_time)) };
    let (kept, lost) = (deadline(1, tai(201_000)), deadline(2, tai(200_999)));
    for f in [lost, kept] {
        assert_eq!(s.offer(f, at(130_000)), Ok(()));
    }
    assert_eq!(s.decide(at(130_000)), wake(tai(200_000), 2));
    assert_eq!(s.decide(at(201_000)), Decision::Drop { frame: lost, reason: DropReason::Overrun });
    assert_eq!(s.decide(at(201_000)), sent(kept, 1_000, window(200_000)));
    assert_eq!(s.offer(kept, at(202_000)), Ok(()), "it was pushed in time");
    assert_eq!(s.decide(at(203_000)), Decision::Drop { frame: kept, reason: DropReason::Overrun });
}

#[test]
fn a_full_queue_refuses_and_removal_gives_back() {
    let mut s = TimeAware::new(TimeAwareOptions::gates(1, 4));
    let f = frame(1, 0, None);
    assert_eq!(s.offer(f, at(100_000)), Ok(()));
    assert_eq!(s.offer(f, at(100_000)), Err(Refused { frame: f, reason: DropReason::QueueFull }));
    let mut out = Vec::new();
    s.remove(&mut |_| true, &mut |frame| out.push(frame));
    assert_eq!((out, s.len(), s.capacity()), (alloc::vec![f], 0, 1));
}
