// SPDX-License-Identifier: Apache-2.0
//! A frame that was chosen and did not leave comes back to its place, by every strategy.

use crate::world::{class, decide_all, frame, mono, now, tai, transmitted};
use ktsn_model::LatePolicy;
use ktsn_sched::{ClassOptions, Decision, Frame, FrameId, Order, TimeAware, TimeAwareOptions};
use ktsn_time::Nanos;

const ROOM: usize = 16;

fn time_aware(order: Order) -> TimeAware {
    TimeAware::new(TimeAwareOptions {
        classes: [ClassOptions { order, ..ClassOptions::default() }; 8],
        ..TimeAwareOptions::gates(ROOM, 4)
    })
}

fn strategies() -> [TimeAware; 5] {
    [
        time_aware(Order::Fifo),
        time_aware(Order::TxTime),
        TimeAware::new(TimeAwareOptions::tx_time(ROOM, 4)),
        TimeAware::new(TimeAwareOptions::strict_priority(ROOM, 4)),
        TimeAware::new(TimeAwareOptions::credit_based(ROOM, 4, None, [None; 8])),
    ]
}

/// Frames of each kind that go by arrival among themselves.
fn kinds() -> [Vec<Frame>; 5] {
    let numbered = |of: &dyn Fn(u64) -> Frame| (1..=4).map(of).collect::<Vec<_>>();
    [
        numbered(&|id| frame(id, Some(tai(150)))),
        numbered(&|id| frame(id, Some(mono(150)))),
        // On time, and longer due than a limit that does not hold for it.
        numbered(&|id| Frame { overrun_limit: Nanos::new(5), ..frame(id, Some(mono(20 + id))) }),
        numbered(&|id| Frame { overrun_limit: Nanos::new(5), ..frame(id, None) }),
        numbered(&|id| Frame {
            late: LatePolicy::Send,
            pushed_at: now(100, 0).monotonic,
            overrun_limit: Nanos::new(5),
            ..frame(id, Some(mono(20 - id)))
        }),
    ]
}

#[test]
fn it_is_chosen_again_before_those_that_it_was_chosen_before() {
    for frames in kinds() {
        for mut strategy in strategies() {
            for (at, frame) in (101..).zip(&frames) {
                strategy.offer(*frame, now(at, at)).unwrap();
            }
            let higher = Frame { class: class(1), id: FrameId(9), ..frame(9, None) };
            // Some time passes until it comes back, twice; meanwhile a frame of a higher class comes, and one of its own.
            for at in [150, 160] {
                let Decision::Transmit { frame, .. } = strategy.decide(now(at, at)) else { panic!() };
                assert_eq!(frame.id, FrameId(1));
                let again = Frame { overrun_limit: Nanos::new(100), ..frame };
                strategy.put_back(again, now(at + 7, at + 7)).unwrap();
            }
            strategy.offer(higher, now(170, 170)).unwrap();
            strategy
                .offer(
                    Frame { id: FrameId(5), pushed_at: now(170, 170).monotonic, ..frame(5, None) },
                    now(170, 170),
                )
                .unwrap();
            assert_eq!(transmitted(&decide_all(&mut strategy, now(171, 171)))[..5], [9, 1, 2, 3, 4]);
        }
    }
}

#[test]
fn without_room_it_is_refused() {
    for mut strategy in strategies() {
        let full = (1..=ROOM as u64).map(|id| strategy.offer(frame(id, None), now(100, 100)));
        assert!(full.last().unwrap().is_ok());
        let refused = strategy.put_back(frame(17, None), now(100, 100)).unwrap_err();
        assert_eq!((refused.frame.id, refused.reason), (FrameId(17), ktsn_model::DropReason::QueueFull));
        assert_eq!(strategy.len(), ROOM);
    }
}
