// SPDX-License-Identifier: Apache-2.0
//! Strict priority (802.1Q-2022 clause 8.6.8.1): the highest class that has a frame to send, first in first out
//! within a class.
//!
//! In: frames with due instants on two clocks. Out: among the classes whose first frame is due, that frame of the
//! highest one.
//! Never: a frame before its due instant, or before one of its class that was offered earlier. So a frame with a
//! distant TxTime holds up its class behind it, as it would in a queue of 802.1Q; where frames of one class
//! ask for times in any order, use [`EarliestTxTime`](crate::EarliestTxTime).

use crate::admission::admit;
use crate::fifo::Fifos;
use crate::frame::Frame;
use crate::strategy::{Decision, Refused, Strategy, queued};
use ktsn_model::TrafficClass;
use ktsn_time::Now;

/// Strict-priority transmission selection.
///
/// An on-time frame whose turn comes more than its `overrun_limit` after its TxTime is dropped as `missed`, whoever kept it
/// waiting, a frame of its own class included.
///
/// # Examples
/// ```
/// use ktsn_model::{LatePolicy, TrafficClass};
/// use ktsn_sched::{Decision, Frame, FrameId, Strategy, StrictPriority};
/// use ktsn_time::{Monotonic, Nanos, Now, Tai};
///
/// let now = Now { tai: Tai::from_nanos(37_000), monotonic: Monotonic::from_nanos(1_000) };
/// let frame = |id, class| {
///     Ok::<_, ktsn_model::OutOfRange>(Frame {
///         id: FrameId(id),
///         tenant: 0,
///         class: TrafficClass::new(class)?,
///         tx_time: None,
///         pushed_at: now.monotonic,
///         wire_octets: 134,
///         sdu_octets: 92,
///         late: LatePolicy::ByClock,
///         overrun_limit: Nanos::from_millis(1),
///         horizon: Nanos::from_seconds(10),
///     })
/// };
/// let mut selection = StrictPriority::new(1024);
/// for (id, class) in [(1, 0), (2, 6), (3, 6)] {
///     selection.offer(frame(id, class)?, now)?;
/// }
/// for expected in [2, 3, 1] {
///     assert!(matches!(selection.decide(now), Decision::Transmit { frame, .. } if frame.id == FrameId(expected)));
/// }
/// assert_eq!(selection.decide(now), Decision::Idle);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StrictPriority {
    queues: Fifos,
}

impl StrictPriority {
    /// Room for `capacity` frames (at most 2^32 − 1), about 130 octets each. Nothing is allocated later.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        Self { queues: Fifos::new(capacity) }
    }
}

impl Strategy for StrictPriority {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let admission = admit(&frame, now).map_err(|reason| Refused { frame, reason })?;
        queued(self.queues.push(frame, admission), frame)
    }

    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        let admission = admit(&frame, now).map_err(|reason| Refused { frame, reason })?;
        queued(self.queues.put_back(frame, admission), frame)
    }

    fn decide(&mut self, now: Now) -> Decision {
        let mut soonest: Option<(u64, Decision)> = None;
        for class in (0..TrafficClass::COUNT).rev() {
            let Some(head) = self.queues.head(class) else { continue };
            match head.overdue(now) {
                Ok(_) => {
                    let chosen = self.queues.pop(class);
                    return chosen.map_or(Decision::Idle, |waiting| waiting.decision(now));
                }
                // A class further down does not win a tie.
                Err(wait) if soonest.is_none_or(|(shortest, _)| wait < shortest) => {
                    soonest = Some((wait, Decision::WakeAt { at: head.admission.due, next: head.frame.id }));
                }
                Err(_) => {}
            }
        }
        soonest.map_or(Decision::Idle, |(_, wake)| wake)
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
