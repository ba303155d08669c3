// SPDX-License-Identifier: Apache-2.0
//! Changes of program, options and clocks under load; status.

use super::*;

/// The program of `gated`, but with class 7's window in the last fifth.
fn moved(base_time: u64) -> Box<GateProgram> {
    program(&port(base_time, 100_000, &[(0x7f, 80_000), (0x80, 20_000)]))
}

#[test]
fn clause_8_6_9_3_nothing_crosses_the_change_and_nothing_is_lost() {
    let mut s = gated();
    for id in 1..4 {
        assert_eq!(s.offer(frame(id, 7, Some(tai(210_000))), at(205_000)), Ok(()));
    }
    // The change comes 2,400 ns after they are due: one frame fits, the second would end behind it.
    assert!(s.set_admin(moved(212_400), at(206_000)).is_none());
    let Decision::Transmit { window: Some(window), .. } = s.decide(at(210_000)) else { panic!("fits") };
    assert_eq!(window, Window { opens_at: Tai::from_nanos(200_000), latest: Tai::from_nanos(210_900) });
    assert_eq!(s.decide(at(210_000)), wake(tai(292_400), 2), "the window of the program to come");
    assert_eq!(run(&mut s, 210_000, 400_000), [(292_400, 2), (293_400, 3)]);
    assert_eq!(s.take_retired().unwrap().admin().control_list.len(), 2);
}

/// A class is not stopped by one long frame until a change that lies far ahead.
#[test]
fn clause_8_6_9_3_a_frame_that_fits_nowhere_does_not_wait_for_a_change_beyond_its_horizon() {
    let mut s = gated();
    let horizon = Nanos::new(100_000);
    let long = |id, due| Frame { wire_octets: 5_000, horizon, ..frame(id, 7, Some(tai(due))) };
    let short = frame(3, 7, Some(tai(150_100)));
    for f in [long(1, 150_000), short, long(2, 220_000)] {
        assert_eq!(s.offer(f, at(140_000)), Ok(()));
    }
    s.set_admin(moved(300_000), at(140_000));
    let dropped = Decision::Drop { frame: long(1, 150_000), reason: DropReason::GateNeverFits };
    assert_eq!(s.decide(at(140_000)), wake(tai(150_000), 1), "when it is due, not at the change");
    assert_eq!(s.decide(at(150_000)), dropped);
    assert_eq!(s.decide(at(150_000)), wake(tai(200_000), 3));
    assert!(matches!(s.decide(at(200_000)), Decision::Transmit { .. }));
    // 80 µs before the change the next one is due: it waits.
    assert_eq!(s.decide(at(215_000)), wake(tai(300_000), 2));
    assert_eq!(s.decide(at(220_000)), wake(tai(300_000), 2));
}

#[test]
fn clause_8_6_9_3_a_frame_that_fits_nowhere_waits_for_the_change() {
    let mut s = gated();
    let long = Frame { wire_octets: 5_000, overrun_limit: Nanos::MAX, ..frame(1, 7, Some(tai(150_000))) };
    assert_eq!(s.offer(long, at(140_000)), Ok(()));
    s.set_admin(moved(300_000), at(140_000));
    assert_eq!(s.decide(at(160_000)), wake(tai(300_000), 1));
    assert_eq!(s.decide(at(300_000)), Decision::Drop { frame: long, reason: DropReason::GateNeverFits });
    assert_eq!(s.offer(long, at(300_000)), Ok(()));
    let wide = port(320_000, 100_000, &[(0xff, 60_000), (0x7f, 40_000)]);
    s.set_admin(program(&wide), at(300_000));
    assert_eq!(run(&mut s, 300_000, 500_000), [(320_000, 1)]);
}

#[test]
fn before_the_first_change_every_gate_is_open_but_nothing_crosses_it() {
    let mut s = selection(GIGABIT, 500, ClassOptions::default());
    s.set_admin(moved(200_000), at(100_000));
    let f = frame(1, 7, Some(tai(198_000)));
    assert_eq!(s.offer(f, at(150_000)), Ok(()));
    let window = Some(Window { opens_at: Tai::ZERO, latest: Tai::from_nanos(198_500) });
    assert_eq!(s.decide(at(198_500)), sent(f, 500, window));
    assert_eq!(s.offer(frame(2, 7, None), at(198_600)), Ok(()));
    assert_eq!(s.decide(at(199_600)), wake(tai(280_000), 2));
}

#[test]
fn a_step_of_tai_is_seen_by_the_next_decision_and_leaves_nothing_in_a_closed_window() {
    let mut s = gated();
    let f = Frame { overrun_limit: Nanos::MAX, ..frame(1, 7, Some(mono(201_000))) };
    assert_eq!(s.offer(f, at(150_000)), Ok(()));
    assert_eq!(s.decide(at(200_500)), wake(mono(201_000), 1));
    // TAI steps by 30 µs to either side: MONOTONIC says due, the gate of the new time is closed.
    let stepped = |nanos: u64, tai_nanos: u64| Now { tai: Tai::from_nanos(tai_nanos), ..at(nanos) };
    assert_eq!(s.decide(stepped(201_000, 231_000)), wake(tai(300_000), 1));
    assert_eq!(s.decide(stepped(201_000, 171_000)), wake(tai(200_000), 1));
    // 10 µs back, and the gate opens 9 µs later; due for 9 µs of MONOTONIC by then, but ready only now.
    assert_eq!(s.decide(stepped(210_000, 200_000)), sent(f, 0, window(200_000)));
}

#[test]
fn a_step_back_before_the_first_cycle_leaves_the_initial_states() {
    let mut s = selection(None, 0, ClassOptions::default());
    let admin = AdminPort {
        gate_states: GateStates::from_bits(0x01),
        ..port(200_000, 100_000, &[(0x80, 50_000), (0x01, 50_000)])
    };
    s.set_admin(program(&admin), at(200_000));
    assert_eq!(s.status(at(150_000)).oper_gate_states, GateStates::from_bits(0x01));
    for (id, of_class) in [(1, 7), (2, 0)] {
        assert_eq!(s.offer(frame(id, of_class, None), at(150_000)), Ok(()));
    }
    let window = Some(Window { opens_at: Tai::ZERO, latest: Tai::from_nanos(199_999) });
    assert_eq!(s.decide(at(160_000)), sent(frame(2, 0, None), 0, window), "no overrun before oper starts");
    assert_eq!(s.decide(at(160_000)), wake(tai(200_000), 1));
}

#[test]
fn clause_12_29_status_names_what_is_and_what_is_to_come() {
    let mut s = selection(GIGABIT, 500, ClassOptions::default());
    let status = s.status(at(50_000));
    assert_eq!((status.oper, status.admin, status.config_change_time), (None, None, None));
    assert_eq!((status.oper_gate_states, status.config_pending), (GateStates::ALL_OPEN, false));
    let (first, second) =
        (port(60_000, 10_000, &[(3, 4_000), (5, 6_000)]), port(70_000, 20_000, &[(9, 20_000)]));
    s.set_admin(program(&first), at(50_000));
    let status = s.status(at(59_999));
    assert_eq!(
        (status.oper.as_deref(), status.admin.as_deref(), status.config_pending),
        (None, Some(&first), true)
    );
    assert_eq!(status.config_change_time, Some(Tai::from_nanos(60_000)));
    assert_eq!(status.current_cycle_start, None);
    s.overran(class(6));
    let status = s.status(at(75_000));
    assert_eq!(
        (status.oper.as_deref(), status.admin.as_deref(), status.config_pending),
        (Some(&first), Some(&first), false)
    );
    assert_eq!(status.current_cycle_start, Some(Tai::from_nanos(70_000)));
    assert_eq!(status.oper_gate_states, GateStates::from_bits(5));
    assert_eq!(status.transmission_overrun, [0, 0, 0, 0, 0, 0, 1, 0]);
    s.set_admin(program(&second), at(75_000));
    let status = s.status(at(75_000));
    assert_eq!(
        (status.oper.as_deref(), status.admin.as_deref(), status.config_change_error),
        (Some(&first), Some(&second), 1)
    );
    assert_eq!(status.config_change_time, Some(Tai::from_nanos(90_000)));
}

#[test]
fn a_new_order_sorts_what_is_queued_anew() {
    let mut s = selection(None, 0, ClassOptions::default());
    for (id, tx_time) in [(1, tai(130_000)), (2, mono(120_000)), (3, tai(110_000))] {
        let f = Frame { overrun_limit: Nanos::MAX, ..frame(id, 3, Some(tx_time)) };
        assert_eq!(s.offer(f, at(100_000)), Ok(()));
    }
    let mut fifo = [ClassOptions::default(); 8];
    fifo[3].order = Order::Fifo;
    s.set_classes(fifo);
    assert_eq!(s.decide(at(125_000)), wake(tai(130_000), 1));
    s.set_classes([ClassOptions::default(); 8]);
    assert_eq!(s.decide(at(100_000)), wake(tai(110_000), 3));
    s.set_classes(fifo);
    assert_eq!(run(&mut s, 100_000, 200_000), [(130_000, 1), (130_000, 2), (130_000, 3)]);
}

#[test]
fn instants_near_the_ends_of_both_clocks() {
    let both = |nanos| Now { tai: Tai::from_nanos(nanos), monotonic: Monotonic::from_nanos(nanos) };
    for begin in [0, u64::MAX - 400_000] {
        let mut s = selection(GIGABIT, 500, ClassOptions::default());
        s.set_admin(program(&port(begin, 100_000, &[(0x80, 20_000), (0x7f, 80_000)])), both(begin));
        let tx_time = TxTime::Tai(Tai::from_nanos(begin + 130_000));
        assert_eq!(s.offer(frame(1, 7, Some(tx_time)), both(begin)), Ok(()));
        assert_eq!(s.decide(both(begin)), wake(tai(begin + 200_000), 1));
        assert!(matches!(s.decide(both(begin + 200_000)), Decision::Transmit { .. }));
        assert_eq!(s.offer(frame(2, 7, None), both(begin + 390_000)), Ok(()));
        let at_the_end = s.decide(both(begin + 390_000));
        assert_eq!(at_the_end, wake(tai(begin + 400_000), 2));
        assert!(matches!(s.decide(both(begin + 400_000)), Decision::Transmit { .. }));
    }
}
