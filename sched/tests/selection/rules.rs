// SPDX-License-Identifier: Apache-2.0
//! Each rule of the crate's first page once, with numbers that can be checked by eye.

use crate::world::{class, decide_all, frame, mono, now, tai, transmitted};
use ktsn_model::{DropReason, LatePolicy};
use ktsn_sched::{Decision, Frame, FrameId, Refused, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, TxTime};

/// TAI is 1,000 ahead of MONOTONIC in these tests unless it steps.
const AHEAD: u64 = 1_000;

fn pushed(id: u64, tx_time: TxTime, pushed_at: u64) -> Frame {
    Frame { pushed_at: Monotonic::from_nanos(pushed_at), ..frame(id, Some(tx_time)) }
}

fn refusal(frame: Frame, reason: DropReason) -> Result<(), Refused> {
    Err(Refused { frame, reason })
}

#[test]
fn a_future_frame_waits_and_leaves_at_its_txtime() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
    let f = pushed(1, tai(AHEAD + 50), 10);
    assert_eq!(s.offer(f, now(20, AHEAD + 20)), Ok(()));
    assert_eq!(s.decide(now(49, AHEAD + 49)), Decision::WakeAt { at: tai(AHEAD + 50), next: FrameId(1) });
    assert_eq!(
        s.decide(now(50, AHEAD + 50)),
        Decision::Transmit { frame: f, overrun: Nanos::ZERO, late: false, window: None }
    );
    assert_eq!(s.decide(now(50, AHEAD + 50)), Decision::Idle);
}

#[test]
fn late_by_clock_is_dropped_on_tai_and_sent_at_once_on_monotonic() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
    let at = now(20, AHEAD + 20);
    let on_tai = pushed(1, tai(AHEAD + 9), 10);
    assert_eq!(s.offer(on_tai, at), refusal(on_tai, DropReason::Missed));
    let on_mono = pushed(2, mono(9), 10);
    assert_eq!(s.offer(on_mono, at), Ok(()));
    // Due since it was sent: what it waited for us is ours.
    assert_eq!(
        s.decide(at),
        Decision::Transmit { frame: on_mono, overrun: Nanos::new(10), late: true, window: None }
    );
}

#[test]
fn a_txtime_equal_to_pushed_at_is_on_time_on_both_clocks() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
    let at = now(20, AHEAD + 20);
    for (id, tx_time) in [(1, tai(AHEAD + 10)), (2, mono(10))] {
        let f = Frame { late: LatePolicy::Drop, ..pushed(id, tx_time, 10) };
        assert_eq!(s.offer(f, at), Ok(()));
        assert_eq!(
            s.decide(at),
            Decision::Transmit { frame: f, overrun: Nanos::new(10), late: false, window: None }
        );
    }
}

#[test]
fn the_policies_drop_and_send_hold_for_both_clocks() {
    let at = now(20, AHEAD + 20);
    for tx_time in [tai(AHEAD + 9), mono(9)] {
        let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
        let dropped = Frame { late: LatePolicy::Drop, ..pushed(1, tx_time, 10) };
        assert_eq!(s.offer(dropped, at), refusal(dropped, DropReason::Missed));
        // An overrun limit of zero does not touch a late frame, however long it waits.
        let sent = Frame { late: LatePolicy::Send, overrun_limit: Nanos::ZERO, ..pushed(2, tx_time, 10) };
        assert_eq!(s.offer(sent, at), Ok(()));
        assert_eq!(
            s.decide(now(27, AHEAD + 27)),
            Decision::Transmit { frame: sent, overrun: Nanos::new(7), late: true, window: None }
        );
    }
}

#[test]
fn zero_is_invalid_on_tai_and_no_transmit_time_on_monotonic() {
    let at = now(20, AHEAD + 20);
    for late in [LatePolicy::ByClock, LatePolicy::Drop, LatePolicy::Send] {
        let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
        let on_tai = Frame { late, ..pushed(1, tai(0), 10) };
        assert_eq!(s.offer(on_tai, at), refusal(on_tai, DropReason::InvalidTime));
        let on_mono = Frame { late, ..pushed(2, mono(0), 10) };
        assert_eq!(s.offer(on_mono, at), Ok(()));
        assert_eq!(
            s.decide(at),
            Decision::Transmit { frame: on_mono, overrun: Nanos::new(10), late: false, window: None }
        );
    }
}

#[test]
fn pushed_at_in_the_future_counts_as_now() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
    let at = now(20, AHEAD + 20);
    // By its own word it was sent at 90 for 30: a lie, and not late.
    let lying = pushed(1, tai(AHEAD + 30), 90);
    assert_eq!(s.offer(lying, at), Ok(()));
    // The lie does not make a frame late that is due right now.
    assert_eq!(s.offer(pushed(2, tai(AHEAD + 20), 90), at), Ok(()));
    assert_eq!(transmitted(&decide_all(&mut s, at)), [2]);
    assert_eq!(transmitted(&decide_all(&mut s, now(30, AHEAD + 30))), [1]);
}

#[test]
fn pushed_at_in_the_far_past_only_makes_its_own_frame_an_overrun() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
    let at = now(5_000, AHEAD + 5_000);
    let lying = Frame { overrun_limit: Nanos::new(100), ..pushed(1, tai(AHEAD + 10), 0) };
    assert_eq!(s.offer(lying, at), Ok(()));
    assert_eq!(s.decide(at), Decision::Drop { frame: lying, reason: DropReason::Overrun });
}

#[test]
fn the_horizon_is_inclusive() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
    let at = now(20, AHEAD + 20);
    for (id, tx_time, beyond) in [(1, tai(AHEAD + 30), tai(AHEAD + 31)), (2, mono(30), mono(31))] {
        let far = Frame { horizon: Nanos::new(10), ..pushed(id, tx_time, 10) };
        assert_eq!(s.offer(far, at), Ok(()));
        let farther = Frame { tx_time: Some(beyond), ..far };
        assert_eq!(s.offer(farther, at), refusal(farther, DropReason::BeyondHorizon));
    }
    // 37 s: TAI asked for with UTC's offset forgotten.
    let utc = Frame { horizon: Nanos::from_seconds(10), ..pushed(3, tai(37_000_000_000), 10) };
    assert_eq!(s.offer(utc, at), refusal(utc, DropReason::BeyondHorizon));
}

#[test]
fn overrun_is_sent_up_to_the_limit_and_dropped_beyond() {
    let (on_tai, on_monotonic) = (tai(AHEAD + 50), mono(50));
    for (tx_time, late, is_limited) in [
        (on_tai, LatePolicy::ByClock, true),
        (on_tai, LatePolicy::Send, true),
        (on_tai, LatePolicy::Drop, true),
        // By fq's rule a frame on MONOTONIC is sent however late.
        (on_monotonic, LatePolicy::ByClock, false),
        (on_monotonic, LatePolicy::Send, false),
        (on_monotonic, LatePolicy::Drop, true),
    ] {
        for later in [100, 101] {
            let mut s = TimeAware::new(TimeAwareOptions::tx_time(4, 4));
            let f = Frame { late, overrun_limit: Nanos::new(100), ..pushed(1, tx_time, 10) };
            assert_eq!(s.offer(f, now(20, AHEAD + 20)), Ok(()));
            let expected = if later > 100 && is_limited {
                Decision::Drop { frame: f, reason: DropReason::Overrun }
            } else {
                Decision::Transmit { frame: f, overrun: Nanos::new(later), late: false, window: None }
            };
            let at = 50 + later.unsigned_abs();
            assert_eq!(s.decide(now(at, AHEAD + at)), expected, "{tx_time:?} {late:?}");
        }
    }
}

#[test]
fn late_and_untimed_frames_leave_in_order_of_sending_then_arrival_before_future_ones() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
    for f in [
        pushed(1, mono(21), 10),
        pushed(2, mono(9), 10),
        // Sent at 0, ten before the others.
        frame(3, None),
        pushed(4, mono(3), 10),
        pushed(5, mono(0), 10),
    ] {
        assert_eq!(s.offer(f, now(20, 0)), Ok(()));
    }
    assert_eq!(transmitted(&decide_all(&mut s, now(25, 0))), [3, 2, 4, 5, 1]);
}

/// A program that was held up sends what it missed and then goes on; the worker was held up too. What it sent late, or at
/// once, leaves before what it sent afterwards with a TxTime that has passed by now: a stream keeps its order.
#[test]
fn a_stream_keeps_its_order_through_a_stall_of_program_and_worker() {
    for clock in [mono as fn(u64) -> TxTime, |at| tai(AHEAD + at)] {
        for limit in [Nanos::new(100), Nanos::MAX] {
            let sent = |id, tx_time, at| Frame {
                late: LatePolicy::Send,
                overrun_limit: limit,
                ..pushed(id, tx_time, at)
            };
            let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
            let stream = [
                sent(1, clock(1_000), 1_950), // late
                sent(2, clock(1_960), 1_960), // on time
                sent(3, mono(0), 1_970),
                sent(4, clock(1_980), 1_975), // on time
                sent(5, clock(1_980), 1_985), // late
                sent(6, clock(1_990), 1_990), // on time
            ];
            for f in stream {
                assert_eq!(s.offer(f, now(2_000, AHEAD + 2_000)), Ok(()));
            }
            assert_eq!(transmitted(&decide_all(&mut s, now(2_010, AHEAD + 2_010))), [1, 2, 3, 4, 5, 6]);
        }
    }
}

/// Who claims to have sent long ago gains what a TxTime in the past gains, and no more.
#[test]
fn what_a_senders_word_gains_it_is_bounded_by_the_overrun_limit() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
    let honest = Frame { overrun_limit: Nanos::new(100), ..pushed(1, mono(1_899), 1_890) };
    let claims = [(2, Some(mono(5)), 6), (3, None, 0)].map(|(id, tx_time, at)| Frame {
        late: LatePolicy::Send,
        tx_time,
        overrun_limit: Nanos::new(100),
        ..pushed(id, mono(1), at)
    });
    for f in [honest].into_iter().chain(claims) {
        assert_eq!(s.offer(f, now(1_999, 0)), Ok(()));
    }
    assert_eq!(transmitted(&decide_all(&mut s, now(1_999, 0))), [1, 2, 3]);
}

#[test]
fn a_higher_class_goes_first_once_it_is_due_and_not_before() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
    for (id, at, of_class) in [(1, 30, 0), (2, 40, 7), (3, 25, 3)] {
        let f = Frame { class: class(of_class), ..pushed(id, mono(at), 10) };
        assert_eq!(s.offer(f, now(20, 0)), Ok(()));
    }
    assert_eq!(s.decide(now(24, 0)), Decision::WakeAt { at: mono(25), next: FrameId(3) });
    assert_eq!(transmitted(&decide_all(&mut s, now(30, 0))), [3, 1]);
    let low = pushed(4, mono(35), 30);
    assert_eq!(s.offer(low, now(30, 0)), Ok(()));
    assert_eq!(transmitted(&decide_all(&mut s, now(40, 0))), [2, 4]);
}

#[test]
fn wake_at_names_the_frame_that_will_be_chosen_among_equals() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
    let at = now(20, AHEAD + 20);
    for (id, tx_time, of_class) in [(1, mono(30), 0), (2, mono(30), 7), (3, tai(AHEAD + 30), 7)] {
        assert_eq!(s.offer(Frame { class: class(of_class), ..pushed(id, tx_time, 10) }, at), Ok(()));
    }
    assert_eq!(s.decide(at), Decision::WakeAt { at: mono(30), next: FrameId(2) });
    assert_eq!(transmitted(&decide_all(&mut s, now(30, AHEAD + 30))), [2, 3, 1]);
}

#[test]
fn a_step_of_tai_is_seen_by_the_next_decision() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
    let at = now(20, AHEAD + 20);
    let limited = Frame { overrun_limit: Nanos::new(500), ..pushed(1, tai(AHEAD + 60), 10) };
    assert_eq!(s.offer(limited, at), Ok(()));
    assert_eq!(s.offer(pushed(2, mono(50), 10), at), Ok(()));
    // Back by 100: the TAI frame is further away; MONOTONIC is untouched.
    assert_eq!(s.decide(now(30, AHEAD - 70)), Decision::WakeAt { at: mono(50), next: FrameId(2) });
    assert_eq!(transmitted(&decide_all(&mut s, now(60, AHEAD - 40))), [2]);
    assert_eq!(s.decide(now(60, AHEAD - 40)), Decision::WakeAt { at: tai(AHEAD + 60), next: FrameId(1) });
    // Forward over its TxTime by more than its limit: dropped with a word, not lost.
    assert_eq!(
        s.decide(now(61, AHEAD + 561)),
        Decision::Drop { frame: limited, reason: DropReason::Overrun }
    );
}

#[test]
fn a_late_tai_frame_is_not_early_after_a_step_back() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(8, 4));
    let f = Frame { late: LatePolicy::Send, ..pushed(1, tai(AHEAD + 5), 10) };
    assert_eq!(s.offer(f, now(20, AHEAD + 20)), Ok(()));
    // It waits until the instant of its sending comes round again, which is after its TxTime.
    assert_eq!(s.decide(now(21, AHEAD)), Decision::WakeAt { at: tai(AHEAD + 10), next: FrameId(1) });
    assert_eq!(transmitted(&decide_all(&mut s, now(31, AHEAD + 10))), [1]);
}

#[test]
fn a_full_queue_refuses_and_disturbs_nothing() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(2, 4));
    let at = now(20, 0);
    for f in [pushed(1, mono(30), 10), pushed(2, mono(40), 10)] {
        assert_eq!(s.offer(f, at), Ok(()));
    }
    let third = pushed(3, mono(25), 10);
    assert_eq!(s.offer(third, at), refusal(third, DropReason::QueueFull));
    // A frame's own fault is named before the queue's.
    let far = Frame { horizon: Nanos::ZERO, ..third };
    assert_eq!(s.offer(far, at), refusal(far, DropReason::BeyondHorizon));
    assert_eq!((s.len(), s.capacity()), (2, 2));
    assert_eq!(transmitted(&decide_all(&mut s, now(30, 0))), [1]);
    assert_eq!(s.offer(third, now(30, 0)), Ok(()));
    assert_eq!(transmitted(&decide_all(&mut s, now(40, 0))), [3, 2]);
    assert!(s.is_empty());
}

#[test]
fn a_queue_without_room_refuses_everything() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(0, 4));
    let f = frame(1, None);
    assert_eq!(s.offer(f, now(1, 1)), refusal(f, DropReason::QueueFull));
    assert_eq!(s.decide(now(1, 1)), Decision::Idle);
}

#[test]
fn remove_takes_what_is_named_and_keeps_the_order_of_the_rest() {
    let mut s = TimeAware::new(TimeAwareOptions::tx_time(64, 4));
    for id in 0..64 {
        let f = Frame { attachment: (id % 3) as u32, ..pushed(id, mono(1_000 - id * 7), 10) };
        assert_eq!(s.offer(f, now(20, 0)), Ok(()));
    }
    let (mut asked, mut taken) = (0, Vec::new());
    s.remove(
        &mut |f| {
            asked += 1;
            f.attachment == 1
        },
        &mut |f| taken.push(f.id.0),
    );
    taken.sort_unstable();
    assert_eq!(asked, 64);
    assert_eq!(taken, (0..64).filter(|id| id % 3 == 1).collect::<Vec<_>>());
    assert_eq!(s.len(), 64 - taken.len());
    let rest: Vec<u64> = (0..64).rev().filter(|id| id % 3 != 1).collect();
    assert_eq!(transmitted(&decide_all(&mut s, now(1_000, 0))), rest);
}

#[test]
fn a_refusal_reads_as_a_sentence() {
    let f = frame(1, Some(tai(0)));
    let refused = TimeAware::new(TimeAwareOptions::tx_time(1, 4)).offer(f, now(1, 1)).unwrap_err();
    assert_eq!(refused.to_string(), "refused: invalid_time");
}
