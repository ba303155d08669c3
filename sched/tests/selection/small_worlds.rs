// SPDX-License-Identifier: Apache-2.0
//! All worlds up to a size, not a sample: every decision equals the reference's.

use crate::reference::Reference;
use crate::sequences::sequences;
use crate::world::{class, mono, now, tai};
use ktsn_model::LatePolicy;
use ktsn_sched::{Decision, Frame, TimeAware, TimeAwareOptions};
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

/// Instants of the small clocks; frames arrive at 2, so that 0 and 1 are past and 3 and 4 to come.
const ARRIVAL: u64 = 2;
const LAST: u64 = 4;

/// Each frame that a small world can hold.
fn frames(policies: &[LatePolicy]) -> Vec<Frame> {
    let mut all = Vec::new();
    for at in 0..=LAST {
        for of_class in [0, 7] {
            for tx_time in [tai(at), mono(at)] {
                for &late in policies {
                    all.push(Frame {
                        class: class(of_class),
                        late,
                        pushed_at: Monotonic::from_nanos(ARRIVAL),
                        overrun_limit: Nanos::new(1),
                        ..crate::world::frame(0, Some::<TxTime>(tx_time))
                    });
                }
            }
        }
    }
    all
}

struct Pair {
    ours: TimeAware,
    reference: Reference,
}

impl Pair {
    fn new(capacity: usize) -> Self {
        Self {
            ours: TimeAware::new(TimeAwareOptions::tx_time(capacity, 4)),
            reference: Reference::new(capacity, 4),
        }
    }
    fn offer(&mut self, frame: Frame, now: Now) {
        assert_eq!(self.ours.offer(frame, now), self.reference.offer(frame, now));
    }
    fn decide_all(&mut self, now: Now) {
        loop {
            let decision = self.ours.decide(now);
            assert_eq!(decision, self.reference.decide(now), "at {now:?}");
            if matches!(decision, Decision::WakeAt { .. } | Decision::Idle) {
                return;
            }
        }
    }
}

fn pick(frames: &[Frame], index: usize, id: usize) -> Frame {
    Frame { id: ktsn_sched::FrameId(id as u64), ..frames[index] }
}

#[test]
fn four_frames_at_every_instant() {
    let frames = frames(&[LatePolicy::ByClock]);
    let mut worlds = 0;
    for length in 0..=4 {
        worlds += sequences(frames.len(), length, |picks| {
            let mut pair = Pair::new(4);
            for (id, &index) in picks.iter().enumerate() {
                pair.offer(pick(&frames, index, id), now(ARRIVAL, ARRIVAL));
            }
            for at in ARRIVAL..=LAST {
                pair.decide_all(now(at, at));
            }
            assert!(pair.ours.is_empty());
        });
    }
    assert_eq!(worlds, 1 + 20 + 400 + 8_000 + 160_000);
}

#[test]
fn four_frames_overslept_and_more_than_fit() {
    let frames = frames(&[LatePolicy::ByClock]);
    sequences(frames.len(), 4, |picks| {
        let mut pair = Pair::new(3);
        for (id, &index) in picks.iter().enumerate() {
            pair.offer(pick(&frames, index, id), now(ARRIVAL, ARRIVAL));
        }
        // 5 is one after the last TxTime and two after the one before: sent and dropped by the limit of 1.
        pair.decide_all(now(LAST + 1, LAST + 1));
        assert!(pair.ours.is_empty());
    });
}

#[test]
fn two_frames_with_every_policy_and_every_step_of_tai() {
    let policies = [LatePolicy::ByClock, LatePolicy::Drop, LatePolicy::Send];
    let frames = frames(&policies);
    sequences(frames.len(), 2, |picks| {
        for step_at in ARRIVAL..=LAST {
            for ahead in 0..=4 {
                let tai_at = |at: u64| if at < step_at { at } else { (at + ahead).saturating_sub(2) };
                let mut pair = Pair::new(2);
                for (id, &index) in picks.iter().enumerate() {
                    let at = ARRIVAL + id as u64;
                    pair.offer(pick(&frames, index, id), now(at, tai_at(at)));
                    pair.decide_all(now(at, tai_at(at)));
                }
                for at in ARRIVAL + 2..=LAST + 4 {
                    pair.decide_all(now(at, tai_at(at)));
                }
                assert!(pair.ours.is_empty());
            }
        }
    });
}

#[test]
fn three_frames_with_any_of_them_removed() {
    let frames = frames(&[LatePolicy::ByClock]);
    sequences(frames.len(), 3, |picks| {
        for removed in 0..8u64 {
            let mut pair = Pair::new(3);
            for (id, &index) in picks.iter().enumerate() {
                pair.offer(pick(&frames, index, id), now(ARRIVAL, ARRIVAL));
            }
            let named = |frame: &Frame| removed >> frame.id.0 & 1 == 1;
            let (mut ours, mut theirs) = (0u64, 0u64);
            pair.ours.remove(&mut { named }, &mut |frame| ours |= 1 << frame.id.0);
            pair.reference.remove(&mut { named }, &mut |frame| theirs |= 1 << frame.id.0);
            assert_eq!((ours, pair.ours.len()), (theirs, pair.reference.len()));
            // A slot that came free is good for another frame.
            pair.offer(pick(&frames, picks[0], 9), now(ARRIVAL, ARRIVAL));
            for at in ARRIVAL..=LAST {
                pair.decide_all(now(at, at));
            }
        }
    });
}
