// SPDX-License-Identifier: Apache-2.0
//! Earliest TxTime first, per class: what an etf or fq child under a strict-priority parent would do.
//!
//! In: frames with due instants on two clocks. Out: among the frames that are due, those of the highest
//! class; among these the one of the attachment that has stood longest (the crate's first page, *Turns*): of one attachment the
//! one that has been due longest, among equals the one offered first.
//! Never: a frame before its due instant, or a wait while any frame is due.

use crate::admission::admit;
use crate::frame::Frame;
use crate::queue::{Head, Node, Queues};
use crate::strategy::{Decision, Refused, Strategy, queued};
use ktsn_model::TrafficClass;
use ktsn_time::Now;

/// Earliest-TxTime-first transmission selection.
///
/// An on-time frame whose turn comes later after its TxTime than [`Frame::overrun_max`] is dropped as `overrun`,
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
/// let mut selection = EarliestTxTime::new(1024, 1);
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
    queues: Queues,
}

impl EarliestTxTime {
    /// Room for `capacity` frames (at most 2^32 − 1), about 110 octets each, of `tenants` attachments that take turns (at most
    /// 65,536), about 800 octets each; an attachment from there on shares the turns of another. Nothing is allocated later.
    #[must_use]
    pub fn new(capacity: usize, tenants: usize) -> Self {
        Self { queues: Queues::new(capacity, tenants) }
    }

    /// Writes all of its room once, so that no frame waits for memory: for a port that many use.
    pub fn touch(&mut self) {
        self.queues.touch();
    }
}

/// Where a frame waits.
fn node_of(frame: &Frame, now: Now) -> Result<Node, Refused> {
    let admission = admit(frame, now).map_err(|reason| Refused { frame: *frame, reason })?;
    let mut node = Node::new(&admission);
    node.place(usize::from(frame.class.get()), false);
    Ok(node)
}

/// The highest class that has a frame to send: that frame, or else the soonest.
pub(crate) fn decide(queues: &mut Queues, now: Now) -> Decision {
    let mut soonest: Option<Head> = None;
    for class in (0..TrafficClass::COUNT).rev() {
        let Some(head) = queues.head(class, now) else { continue };
        if head.wait == 0 {
            return queues.take(head.queue, now);
        }
        // A class further down does not win a tie.
        if soonest.is_none_or(|soonest| head.wait < soonest.wait) {
            soonest = Some(head);
        }
    }
    soonest.map_or(Decision::Idle, |head| queues.wake(head.queue))
}

impl Strategy for EarliestTxTime {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        self.queues.see(now);
        let node = node_of(&frame, now)?;
        queued(self.queues.insert(node, &frame), frame)
    }

    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        self.queues.see(now);
        let node = node_of(&frame, now)?;
        queued(self.queues.put_back(node, &frame), frame)
    }

    fn decide(&mut self, now: Now) -> Decision {
        self.queues.see(now);
        decide(&mut self.queues, now)
    }

    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        self.queues.remove(predicate, out);
    }

    fn remove_tenant(&mut self, tenant: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool {
        self.queues.remove_tenant(tenant, most, out)
    }

    fn len(&self) -> usize {
        self.queues.len()
    }

    fn capacity(&self) -> usize {
        self.queues.capacity()
    }
}
