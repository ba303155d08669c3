// SPDX-License-Identifier: Apache-2.0
//! Strict priority (802.1Q-2022 clause 8.6.8.1): the highest class that has a frame to send; within a class attachments take
//! turns (the crate's first page, *Turns*), and the frames of each go first in first out.
//!
//! In: frames with due instants on two clocks. Out: among the attachments with a first frame that is due, of the highest
//! class, that frame of the one that has stood longest.
//! Never: a frame before its due instant, or before one of its class and attachment that was offered earlier. So a frame with a
//! distant TxTime holds up what its own attachment sent behind it in its class, as it would in a queue of 802.1Q, and nothing of others;
//! where frames of one class ask for times in any order, use [`EarliestTxTime`](crate::EarliestTxTime).

use crate::admission::admit;
use crate::earliest::decide;
use crate::frame::Frame;
use crate::queue::{Node, Queues};
use crate::strategy::{Decision, Refused, Strategy, queued};
use ktsn_time::Now;

/// Strict-priority transmission selection.
///
/// An on-time frame whose turn comes later after its TxTime than [`Frame::overrun_max`] is dropped as `overrun`,
/// also where a frame of its own class kept it waiting.
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
/// let mut selection = StrictPriority::new(1024, 1);
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
    queues: Queues,
}

impl StrictPriority {
    /// Room for `capacity` frames (at most 2^32 − 1), about 110 octets each, of `tenants` attachments that take turns (at most
    /// 65,536), about 800 octets each; an attachment from there on shares the turns of another. Nothing is allocated later.
    #[must_use]
    pub fn new(capacity: usize, tenants: usize) -> Self {
        Self { queues: Queues::new(capacity, tenants) }
    }
}

/// Where a frame waits.
pub(crate) fn node_of(frame: &Frame, now: Now) -> Result<Node, Refused> {
    let admission = admit(frame, now).map_err(|reason| Refused { frame: *frame, reason })?;
    let mut node = Node::new(&admission);
    node.place(usize::from(frame.class.get()), true);
    Ok(node)
}

impl Strategy for StrictPriority {
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
