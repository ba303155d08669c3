// SPDX-License-Identifier: Apache-2.0
//! One port of the worker: its device, its queue, and what was measured of its hand-overs.
//!
//! In: frames for its queue, instants. Out: the scheduler's decisions; frames in the device's buffers, committed by name. It
//! reads no clock. A frame that waits for its retry comes before all that is queued.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::{DropReason, Priority, PriorityMap, TrafficClass};
use ktsn_port::{Port, SendError, StageError, StageId};
use ktsn_resolve::{PortIndex, Refusal};
use ktsn_sched::policing::StreamHandle;
use ktsn_sched::{Frame, TimeAware};
use ktsn_time::{Monotonic, Nanos, Now};
use ktsn_wire::Identifications;

use super::command::{Inbox, NewPort};
use super::content::{Copies, Outgoing};
use super::due::Due;
use super::hand_over_budget::HandOverBudget;
use super::hand_over_latency::{self, HandOverLatency};
use super::policing::Policing;
use super::resolver::Missing;
use super::retry::Retry;
use super::warm_up::WarmUp;
use crate::limits;
use crate::stats::{PortRefusal, PortStats, add, count};

/// A frame in a port's buffer.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    pub stage: StageId,
    pub octets: usize,
    /// Which copy it is, where it is one of several.
    pub copies: Option<Copies>,
}

/// A frame that left the scheduler and lies in its port's buffer.
pub(super) struct Ready {
    pub due: Due,
    pub staged: Staged,
}

/// Why a frame does not lie in a port's buffer.
#[derive(Clone, Copy)]
pub(super) enum NotStaged {
    /// All buffers are in use: one comes back soon.
    Full,
    /// The frame is dropped for this reason.
    Dropped(DropReason),
    /// The frame has no route.
    Refused(Refusal),
    /// The kernel sends the frame.
    ToKernel,
}

/// One port with its queue.
pub(super) struct PortState<P> {
    pub port: Box<P>,
    /// Takes the port's place as soon as all that was committed has left.
    pub successor: Option<Box<P>>,
    /// How many successors have come: the generation of the newest port.
    pub generation: u64,
    pub selection: Box<TimeAware>,
    pub priority_map: PriorityMap,
    /// In front of the queue.
    policing: Option<Box<Policing>>,
    pub hand_over: HandOverLatency,
    warm_up: WarmUp,
    /// True for a pod's interface: the pod's rules run in its hand-overs.
    pub is_pod_interface: bool,
    pub budget: HandOverBudget,
    pub retry: Option<Retry>,
    pub stats: Arc<PortStats>,
    /// Of the frames that the port has lost after their hand-over, those that are counted.
    lost: u64,
    /// When the node was notified of a failure last.
    failure_notified_at: Monotonic,
}

impl<P: Port> PortState<P> {
    /// The port as a command brings it.
    pub(super) fn new(new: NewPort<P>) -> Self {
        let NewPort { port, priority_map, selection, policing, stats, is_pod_interface } = new;
        let mut state = Self {
            port,
            successor: None,
            generation: 0,
            selection,
            priority_map,
            policing,
            hand_over: HandOverLatency::new(),
            warm_up: WarmUp::for_port(),
            is_pod_interface,
            budget: HandOverBudget::new(),
            retry: None,
            stats,
            lost: 0,
            failure_notified_at: Monotonic::ZERO,
        };
        state.set_hand_over(hand_over_latency::AT_START);
        state
    }

    /// Hands everything back when the port is given up.
    pub(super) fn hand_back(self, index: PortIndex, inbox: &mut Inbox<P>) {
        inbox.hand_back_port(index, [Some(self.port), self.successor], self.selection, self.policing);
    }
}

/// The queue.
impl<P: Port> PortState<P> {
    /// The class that a frame enters: that of the priority it asks for, which its attachment must have been granted, or, where
    /// policing passes it with another priority (IPV), of that one. While the next hop or the route is `missing` its stream is
    /// unknown, so policing cannot judge it.
    #[inline]
    pub(super) fn class_for(
        &mut self,
        granted: u8,
        asked: Priority,
        missing: Option<Missing>,
        judge: impl FnOnce(&mut Policing) -> Result<Priority, DropReason>,
    ) -> Result<TrafficClass, Refusal> {
        let class = self.priority_map.class(asked);
        if granted & (1 << class.get()) == 0 {
            return Err(Refusal::Drop(DropReason::Policed, None));
        }
        match (&mut self.policing, missing) {
            (None, _) => Ok(class),
            (Some(_), Some(Missing::Neighbour(hop))) => {
                Err(Refusal::Drop(DropReason::NoNeighbour, Some(hop)))
            }
            (Some(_), Some(Missing::Route)) => Err(Refusal::Unanswered),
            (Some(policing), None) => match judge(policing) {
                Ok(priority) => Ok(self.priority_map.class(priority)),
                Err(reason) => Err(Refusal::Drop(reason, None)),
            },
        }
    }

    /// How long after `now` frames may leave that do not go through this port's queue: `ahead` at least. `lengths`: octet times of all,
    /// octets of the longest service data unit.
    pub(super) fn judge_burst(
        &mut self,
        stream: Option<StreamHandle>,
        mut priority: Priority,
        lengths: (u32, u32),
        ahead: Nanos,
        now: Now,
    ) -> Result<Nanos, DropReason> {
        if let Some(policing) = &mut self.policing {
            priority = policing.judge(stream, priority, lengths.1, lengths.0, now)?;
        }
        self.selection.burst_in(self.priority_map.class(priority), lengths, ahead, now)
    }

    /// True when an attachment with `queued` frames has had its share: [`limits::ATTACHMENT_QUEUED_MAX`] and, of a queue that
    /// others use too, a part of what is still free. However many flood it, there is room for the next one's first frames.
    #[inline]
    pub(super) fn has_had_share(&self, queued: usize) -> bool {
        let len = self.selection.len();
        queued >= limits::ATTACHMENT_QUEUED_MAX
            || len > queued && queued >= self.selection.capacity().saturating_sub(len) / limits::SHARE_OF_FREE
    }

    /// True when nothing is queued and nothing waits for a retry.
    pub(super) fn is_idle(&self) -> bool {
        self.selection.is_empty() && self.retry.is_none()
    }

    /// Removes all frames.
    pub(super) fn remove_all(&mut self, mut out: impl FnMut(Frame)) {
        self.selection.remove(&mut |_| true, &mut out);
    }

    /// Removes some frames of an attachment; true when there may be more.
    pub(super) fn remove_attachment(&mut self, attachment: u32, mut out: impl FnMut(Frame)) -> bool {
        self.selection.remove_attachment(attachment, limits::REMOVED_A_PASS, &mut out)
    }
}

/// The device.
impl<P: Port> PortState<P> {
    /// Puts the successor in the port's place; the port that it replaces. A pod's port first sends what was committed, so that no
    /// frame overtakes another: `None` until then.
    pub(super) fn succeed(&mut self) -> Option<Box<P>> {
        if self.is_pod_interface {
            self.port.reap();
            if self.port.occupancy().in_flight > 0 {
                return None;
            }
        }
        let successor = self.successor.take()?;
        self.budget = HandOverBudget::new();
        Some(std::mem::replace(&mut self.port, successor))
    }

    /// Builds a frame in one of the device's buffers.
    #[inline]
    pub(super) fn write_to_buffer(
        &mut self,
        outgoing: &Outgoing<'_>,
        payload: &[u8],
        numbers: Identifications,
        copies: Copies,
    ) -> Result<Staged, NotStaged> {
        let mut octets = 0;
        let mut build = |buffer: &mut [u8]| {
            octets = outgoing.write(payload, numbers, buffer)?;
            Some(octets)
        };
        let mut staged = self.port.stage(&mut build);
        if staged == Err(StageError::Full) {
            self.port.reap();
            staged = self.port.stage(&mut build);
        }
        match staged {
            Ok(stage) => Ok(Staged { stage, octets, copies: Some(copies).filter(|c| c.is_one_of_several()) }),
            Err(StageError::Full) => Err(NotStaged::Full),
            Err(StageError::TooLong { .. }) => Err(NotStaged::Dropped(DropReason::TooLong)),
            Err(StageError::NotBuilt | StageError::TooShort { .. }) => {
                Err(NotStaged::Dropped(DropReason::PortError))
            }
        }
    }

    /// What this error of the device counts as, and the reason for which the frame is dropped; `None`: it is tried again.
    pub(super) fn judge_error(error: SendError) -> (PortRefusal, Option<DropReason>) {
        match error {
            SendError::Busy => (PortRefusal::Busy, None),
            SendError::NoMemory => (PortRefusal::NoMemory, None),
            // It works again when the link does.
            SendError::LinkDown => (PortRefusal::LinkDown, Some(DropReason::LinkDown)),
            SendError::DeviceGone => (PortRefusal::DeviceGone, Some(DropReason::LinkDown)),
            SendError::TooLong => (PortRefusal::TooLong, Some(DropReason::TooLong)),
            SendError::NotStaged => (PortRefusal::Other, Some(DropReason::Bug)),
            SendError::Dropped => (PortRefusal::Dropped, Some(DropReason::PortError)),
            SendError::Os { .. } => (PortRefusal::Other, Some(DropReason::PortError)),
        }
    }

    /// Counts a refusal of the device.
    pub(super) fn count_refused(&self, why: PortRefusal) {
        count(&self.stats.refused[why as usize]);
    }

    /// Counts the frames that the port has lost after their hand-over.
    pub(super) fn count_lost(&mut self) {
        let all = self.port.counters().lost_count;
        add(&self.stats.refused[PortRefusal::Lost as usize], all.saturating_sub(self.lost));
        self.lost = all;
    }

    /// True when the node is to be notified that the device is gone: once in [`limits::NEWS_PAUSE`].
    pub(super) fn should_notify_failure(&mut self, now: Monotonic) -> bool {
        let is_due = now.since(self.failure_notified_at) >= limits::NEWS_PAUSE;
        if is_due {
            self.failure_notified_at = now;
        }
        is_due
    }

    /// Warms up the way into the kernel; `clock` is read around the call. Left out where it usually takes too long.
    pub(super) fn warm_up(&mut self, ahead: Nanos, mut clock: impl FnMut() -> Monotonic) {
        if self.warm_up.is_worth(ahead) {
            let began = clock();
            self.port.warm_up();
            self.warm_up.took(clock().since(began));
        }
    }
}

/// Measured hand-overs.
impl<P: Port> PortState<P> {
    /// True when the next frame can be made ready ahead of its time: no frame waits for a retry, and the port is not slow.
    pub(super) fn makes_ready(&self, now: Monotonic) -> bool {
        self.retry.is_none() && !self.budget.is_slow(now)
    }

    /// Charges a hand-over that took `took` and ended at `now`. Returns the longest one where the node is to be notified that they
    /// take too long.
    pub(super) fn charge(&mut self, took: Nanos, now: Monotonic) -> Option<Nanos> {
        let should_notify = self.budget.observe(took, now);
        let longest = Some(self.budget.longest()).filter(|_| self.budget.is_slow(now))?;
        self.show_hand_over(longest);
        should_notify.then_some(longest)
    }

    /// A hand-over that began after `read` was read from a clock ended `took` later, at `now`. The link is busy from then on.
    #[inline]
    pub(super) fn measure_hand_over(&mut self, took: Option<Nanos>, now: Monotonic, wire_octets: u32) {
        // The machine may have stalled since the decision: the link is busy from here on.
        let ago = took.unwrap_or(Nanos::ZERO).max(Nanos::ZERO);
        self.selection.handed_over(now.saturating_sub(ago), wire_octets);
        if let Some(span) = took.and_then(|took| self.hand_over.observe(took)) {
            self.set_hand_over(span);
        }
    }

    /// A second has passed.
    pub(super) fn tick(&mut self) {
        if let Some(span) = self.hand_over.tick() {
            self.set_hand_over(span);
        }
    }

    /// Guard bands are computed with `span` from now on.
    fn set_hand_over(&mut self, span: Nanos) {
        self.show_hand_over(span);
        self.selection.set_hand_over(span);
    }

    /// Publishes how long a hand-over takes.
    fn show_hand_over(&self, span: Nanos) {
        self.stats.hand_over_ns.store(span.get().unsigned_abs(), Relaxed);
    }
}
