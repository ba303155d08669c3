// SPDX-License-Identifier: Apache-2.0
//! A strategy of one's own: tenants take turns, whatever their classes are.
//!
//! In: frames, each with the index of the attachment it came from. Out: of the tenants whose first frame is due, the next one in turn.
//! Never: a frame before its due instant; nothing is allocated after `new`. What each part is for:
//! docs/guide/writing-a-strategy.md.

use ktsn_model::DropReason;
use ktsn_sched::{Admission, Decision, Frame, Refused, Strategy, chosen, judge_time};
use ktsn_time::{Now, Span};
use std::collections::VecDeque;

/// One queue per tenant, served in turns.
pub struct RoundRobin {
    queues: Vec<VecDeque<(Frame, Admission)>>,
    /// The tenant that is asked first.
    turn: usize,
    capacity: usize,
    len: usize,
}

impl RoundRobin {
    /// Room for `capacity` frames of `tenants` tenants, which one of them may take alone.
    pub fn new(tenants: usize, capacity: usize) -> Self {
        let queues = (0..tenants.max(1)).map(|_| VecDeque::with_capacity(capacity)).collect();
        Self { queues, turn: 0, capacity, len: 0 }
    }

    /// The queue that `frame` belongs in, with room for it.
    fn room_for(&mut self, frame: Frame) -> Result<&mut VecDeque<(Frame, Admission)>, Refused> {
        if self.len == self.capacity {
            return Err(Refused { frame, reason: DropReason::QueueFull });
        }
        self.len += 1;
        let tenant = frame.tenant as usize % self.queues.len();
        Ok(&mut self.queues[tenant])
    }
}

impl Strategy for RoundRobin {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let admission = judge_time(&frame, now).map_err(|reason| Refused { frame, reason })?;
        self.room_for(frame)?.push_back((frame, admission));
        Ok(())
    }

    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let admission = judge_time(&frame, now).map_err(|reason| Refused { frame, reason })?;
        self.room_for(frame)?.push_front((frame, admission));
        self.turn = frame.tenant as usize;
        Ok(())
    }

    fn decide(&mut self, now: Now) -> Decision {
        let mut soonest: Option<(Span, Decision)> = None;
        for tenant in (0..self.queues.len()).map(|n| (self.turn + n) % self.queues.len()) {
            let Some(&(frame, admission)) = self.queues[tenant].front() else { continue };
            match admission.overdue(now) {
                Ok(_) => {
                    self.queues[tenant].pop_front();
                    self.len -= 1;
                    self.turn = tenant + 1;
                    return chosen(frame, admission, now);
                }
                Err(wait) if soonest.is_none_or(|(shortest, _)| wait < shortest) => {
                    soonest = Some((wait, Decision::WakeAt { at: admission.due, next: frame.id }));
                }
                Err(_) => {}
            }
        }
        soonest.map_or(Decision::Idle, |(_, wake)| wake)
    }

    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        for queue in &mut self.queues {
            queue.retain(|(frame, _)| {
                let goes = predicate(frame);
                if goes {
                    self.len -= 1;
                    out(*frame);
                }
                !goes
            });
        }
    }

    fn remove_tenant(&mut self, tenant: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool {
        let place = tenant as usize % self.queues.len();
        let queue = &mut self.queues[place];
        let is_its = |(frame, _): &(Frame, Admission)| frame.tenant == tenant;
        for _ in 0..most {
            // Its own ones lie at the end, unless it shares the queue.
            let Some((frame, _)) = queue.iter().rposition(is_its).and_then(|last| queue.remove(last)) else {
                return false;
            };
            self.len -= 1;
            out(frame);
        }
        queue.iter().any(is_its)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn capacity(&self) -> usize {
        self.capacity
    }
}

fn main() {
    let sent = tests_of_the_page::run();
    println!("sent in this order: {sent:?}");
}

/// What the page promises, run by `cargo test` and by the example itself.
mod tests_of_the_page {
    use super::RoundRobin;
    use ktsn_model::{LatePolicy, TrafficClass};
    use ktsn_sched::{Decision, Frame, FrameId, Strategy};
    use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

    fn at(nanos: u64) -> Now {
        Now { tai: Tai::from_nanos(nanos), monotonic: Monotonic::from_nanos(nanos) }
    }

    fn frame(id: u64, tenant: u32, tx_time: u64) -> Frame {
        Frame {
            id: FrameId(id),
            tenant,
            class: TrafficClass::default(),
            tx_time: Some(TxTime::Tai(Tai::from_nanos(tx_time))),
            pushed_at: Monotonic::from_nanos(0),
            wire_octets: 134,
            sdu_octets: 92,
            late: LatePolicy::ByClock,
            overrun_limit: Nanos::from_millis(1),
            horizon: Nanos::from_seconds(1),
        }
    }

    /// Plays the worker: offers, then decides until nothing is queued, and jumps to each wake-up.
    pub(super) fn run() -> Vec<u64> {
        let mut strategy = RoundRobin::new(2, 16);
        for (id, tenant, tx_time) in [(0, 0, 500), (1, 0, 500), (2, 0, 500), (3, 1, 500), (4, 1, 900)] {
            strategy.offer(frame(id, tenant, tx_time), at(100)).expect("there is room");
        }
        let (mut now, mut sent) = (at(100), Vec::new());
        loop {
            match strategy.decide(now) {
                Decision::Transmit { frame, .. } => {
                    assert!(frame.not_before().is_none_or(|tx_time| tx_time.ahead_of(now) <= Nanos::ZERO));
                    sent.push(frame.id.0);
                }
                Decision::WakeAt { at: TxTime::Tai(wake), .. } => now = at(wake.as_nanos()),
                Decision::WakeAt { at: TxTime::Monotonic(wake), .. } => now = at(wake.as_nanos()),
                Decision::Drop { frame, reason } => panic!("{frame:?}: {reason}"),
                Decision::Idle => return sent,
            }
        }
    }

    #[test]
    fn tenants_take_turns() {
        assert_eq!(run(), [0, 3, 1, 2, 4]);
    }

    #[test]
    fn each_frame_comes_out_once() {
        let mut strategy = RoundRobin::new(3, 4);
        for id in 0..6 {
            let refused = strategy.offer(frame(id, id as u32, 500), at(100)).err();
            assert_eq!(refused.map(|refused| refused.frame.id.0), (id >= 4).then_some(id));
        }
        let mut removed = Vec::new();
        strategy.remove(&mut |frame| frame.tenant == 0, &mut |frame| removed.push(frame.id.0));
        assert_eq!((removed, strategy.len()), (vec![0], 3));
        let mut taken = Vec::new();
        assert!(strategy.remove_tenant(1, 0, &mut |frame| taken.push(frame.id.0)));
        assert!(!strategy.remove_tenant(1, 1, &mut |frame| taken.push(frame.id.0)));
        assert_eq!((taken, strategy.len()), (vec![1], 2));
        let mut sent = Vec::new();
        while let Decision::Transmit { frame, .. } = strategy.decide(at(500)) {
            sent.push(frame.id.0);
        }
        sent.sort_unstable();
        assert_eq!((sent, strategy.is_empty()), (vec![2, 3], true));
    }
}
