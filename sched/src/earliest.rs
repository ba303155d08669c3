// SPDX-License-Identifier: Apache-2.0
//! Earliest TxTime first, per class: what an etf or fq child under a strict-priority parent would do.
//!
//! In: frames with due instants on two clocks. Out: among the frames that are due, those of the highest
//! class; among these the one that has been due longest; among equals the one offered first.
//! Never: a frame before its due instant, or a wait while any frame is due.

use crate::admission::{admit, exceeds, is_past_deadline};
use crate::frame::Frame;
use crate::queue::{Node, Queues};
use crate::strategy::{Decision, Refused, Strategy, queued};
use ktsn_model::{DropReason, TrafficClass};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

/// One queue per class and clock, so that a step of TAI re-sorts nothing.
const CLOCKS: usize = 2;
const QUEUES: usize = TrafficClass::COUNT * CLOCKS;
const TAI: usize = 0;
const MONOTONIC: usize = 1;

/// Earliest-TxTime-first transmission selection.
///
/// An on-time frame whose turn comes more than its `overrun_limit` after its TxTime is dropped as `missed`,
/// be it that the worker overslept, TAI stepped forward or higher classes kept it waiting. Late and untimed
/// frames have no TxTime to overrun and leave however long they waited.
///
/// # Examples
/// ```
/// use ktsn_model::{LatePolicy, TrafficClass};
/// use ktsn_sched::{Decision, EarliestTxTime, Frame, FrameId, Strategy};
/// use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};
///
/// let now = Now { tai: Tai::from_nanos(37_000), monotonic: Monotonic::from_nanos(1_000) };
/// let at = TxTime::Tai(Tai::from_nanos(38_000));
/// let mut selection = EarliestTxTime::new(1024);
/// let frame = Frame {
///     id: FrameId(1),
///     tenant: 0,
///     class: TrafficClass::new(6)?,
///     tx_time: Some(at),
///     pushed_at: now.monotonic,
///     wire_octets: 134,
///     sdu_octets: 92,
///     late: LatePolicy::ByClock,
///     overrun_limit: Nanos::from_millis(1),
///     horizon: Nanos::from_seconds(10),
/// };
/// selection.offer(frame, now)?;
/// assert_eq!(selection.decide(now), Decision::WakeAt { at, next: FrameId(1) });
/// let then = Now { tai: Tai::from_nanos(38_004), monotonic: Monotonic::from_nanos(2_004) };
/// assert_eq!(selection.decide(then), Decision::Transmit { frame, overrun: Nanos::new(4), late: false, window: None });
/// assert_eq!(selection.decide(then), Decision::Idle);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct EarliestTxTime {
    queues: Queues<QUEUES>,
}

/// The soonest frame that is not due yet: what `WakeAt` will name.
struct Soonest {
    wait: u64,
    class: usize,
    arrival: u64,
    queue: usize,
    due: u64,
}

impl EarliestTxTime {
    /// Room for `capacity` frames (at most 2^32 − 1), about 110 octets each. Nothing is allocated later.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { queues: Queues::new(capacity) }
    }

    /// Writes all of its room once, so that no frame waits for memory: for a port that many use.
    pub fn touch(&mut self) {
        self.queues.touch();
    }

    /// The queue of `class` whose head has been due longest, if any is due; else `soonest` is kept current.
    fn due_in(&self, class: usize, now: [u64; CLOCKS], soonest: &mut Option<Soonest>) -> Option<usize> {
        let mut best: Option<(u64, u64, usize)> = None;
        for (clock, now) in now.into_iter().enumerate() {
            let queue = class * CLOCKS + clock;
            let Some(head) = self.queues.head(queue) else { continue };
            if let Some(overdue) = now.checked_sub(head.due) {
                if best.is_none_or(|(most, arrival, _)| {
                    overdue > most || (overdue == most && head.arrival < arrival)
                }) {
                    best = Some((overdue, head.arrival, queue));
                }
                continue;
            }
            let wait = head.due - now;
            // Classes are looked at from the highest down: an equal one further down never wins.
            if soonest.as_ref().is_none_or(|s| {
                wait < s.wait || (wait == s.wait && class == s.class && head.arrival < s.arrival)
            }) {
                *soonest = Some(Soonest { wait, class, arrival: head.arrival, queue, due: head.due });
            }
        }
        best.map(|(_, _, queue)| queue)
    }

    fn take(&mut self, queue: usize, now: Now) -> Option<Decision> {
        let (node, frame) = self.queues.pop(queue)?;
        let there = if queue % CLOCKS == TAI { now.tai.as_nanos() } else { now.monotonic.as_nanos() };
        let overdue = there.saturating_sub(node.due);
        let is_missed = node.on_time && exceeds(overdue, frame.overrun_limit);
        Some(if is_missed || is_past_deadline(&frame, now) {
            Decision::Drop { frame, reason: DropReason::Missed }
        } else {
            let overrun = Nanos::new(i64::try_from(overdue).unwrap_or(i64::MAX));
            Decision::Transmit { frame, overrun, late: node.late, window: None }
        })
    }

    fn wake(&self, soonest: &Soonest) -> Option<Decision> {
        let next = self.queues.head_frame(soonest.queue)?.id;
        let at = if soonest.queue % CLOCKS == TAI {
            TxTime::Tai(Tai::from_nanos(soonest.due))
        } else {
            TxTime::Monotonic(Monotonic::from_nanos(soonest.due))
        };
        Some(Decision::WakeAt { at, next })
    }
}

/// Where a frame waits.
fn node_of(frame: &Frame, now: Now) -> Result<Node, Refused> {
    let admission = admit(frame, now).map_err(|reason| Refused { frame: *frame, reason })?;
    let mut node = Node::new(admission.due, admission.late, admission.on_time);
    let clock = if node.is_on_tai() { TAI } else { MONOTONIC };
    node.place(usize::from(frame.class.get()) * CLOCKS + clock, false);
    Ok(node)
}

impl Strategy for EarliestTxTime {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let node = node_of(&frame, now)?;
        queued(self.queues.insert(node, &frame), frame)
    }

    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let node = node_of(&frame, now)?;
        queued(self.queues.put_back(node, &frame), frame)
    }

    fn decide(&mut self, now: Now) -> Decision {
        let clocks = [now.tai.as_nanos(), now.monotonic.as_nanos()];
        let mut soonest = None;
        let decision = if self.queues.len() == 0 {
            None
        } else {
            match (0..TrafficClass::COUNT).rev().find_map(|class| self.due_in(class, clocks, &mut soonest)) {
                Some(queue) => self.take(queue, now),
                None => soonest.and_then(|soonest| self.wake(&soonest)),
            }
        };
        decision.unwrap_or(Decision::Idle)
    }

    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        self.queues.remove(predicate, out);
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn capacity(&self) -> usize {
        self.queues.capacity()
    }
}
