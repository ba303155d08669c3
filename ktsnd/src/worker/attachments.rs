// SPDX-License-Identifier: Apache-2.0
//! The attachments of one worker: what each may do, what it uses now, and where its frames are counted.
//!
//! In: policies by command; frames as they are queued and end; doorbells. Out: whether an attachment has had its share, and whether
//! the node is to be notified. Memory is allocated when the worker is made.

use std::sync::Arc;

use ktsn_model::{DropReason, LatePolicy};
use ktsn_resolve::{AttachmentIndex, NextHop};
use ktsn_sched::Frame;
use ktsn_sched::policing::StreamIdentification;
use ktsn_time::{Monotonic, Nanos};

use super::due::Due;
use super::neighbour_requests::{NeighbourRequests, RouteRequests};
use crate::limits;
use crate::stats::{AttachmentStats, add, count};

/// What a worker must know of an attachment, apart from its tables.
#[derive(Debug, Clone)]
pub struct AttachmentPolicy {
    /// Bit n = class n may be used.
    pub classes: u8,
    /// Late frames.
    pub late: LatePolicy,
    /// Greatest oversleep at which a frame is still sent.
    pub overrun_limit: Nanos,
    /// Furthest transmit time ahead.
    pub horizon: Nanos,
    /// The streams that its frames belong to; empty where nothing is policed.
    pub streams: StreamIdentification,
    /// Where its frames are counted.
    pub stats: Arc<AttachmentStats>,
    /// What it uses of the worker. Only the worker changes it.
    pub usage: Usage,
}

/// What an attachment uses of its worker, and what the node was notified of; all zero at first.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Frames that are queued now.
    queued: usize,
    /// Which missing neighbours were requested, and when.
    neighbour_requests: NeighbourRequests,
    /// How many routes the kernel was asked about lately.
    route_requests: RouteRequests,
    /// When the node was notified of a TxTime beyond the horizon last.
    horizon_notified_at: Monotonic,
    /// Doorbells of all its clients since `bells_since`.
    bells: u32,
    /// When that count began.
    bells_since: Monotonic,
    /// Wake-ups since `empties_since` for frames of it that were expected and not there.
    empties: u32,
    /// When that count began.
    empties_since: Monotonic,
}

impl AttachmentPolicy {
    /// A frame with what the attachment says of all its frames, and its stream's socket of the transmit time. The taker fills in
    /// the rest.
    #[inline]
    pub(super) fn frame(&self, is_deadline: bool) -> Frame {
        let late = if is_deadline { LatePolicy::Deadline } else { self.late };
        let (overrun_limit, horizon) = (self.overrun_limit, self.horizon);
        Frame { late, overrun_limit, horizon, ..Frame::empty() }
    }

    /// Frames that are queued now.
    pub(super) fn queued(&self) -> usize {
        self.usage.queued
    }

    /// A frame was queued.
    pub(super) fn count_queued(&mut self) {
        self.usage.queued += 1;
    }

    /// Counts a frame that was handed to a port with `octets`, `error` after it first could have left. `has_waited`: its program
    /// waited for a slot.
    #[inline]
    pub(super) fn count_sent(
        &self,
        due: &Due,
        octets: usize,
        error: Nanos,
        is_further_copy: bool,
        has_waited: impl FnOnce() -> bool,
    ) {
        let stats = &self.stats;
        add(&stats.sent_octets, octets as u64);
        if is_further_copy {
            return count(&stats.copies);
        }
        count(&stats.sent);
        if due.late {
            count(if has_waited() { &stats.waited } else { &stats.late });
        } else if due.is_on_time() {
            stats.transmit_error.record(error);
            if error > limits::OVERRUN_THRESHOLD {
                count(&stats.overrun);
            }
        }
    }

    /// Counts doorbells; true when the attachment has rung more than [`limits::DOORBELLS_A_SECOND`].
    pub(super) fn count_doorbells(&mut self, rung: u32, now: Monotonic) -> bool {
        add(&self.stats.doorbells, u64::from(rung));
        let usage = &mut self.usage;
        if now.since(usage.bells_since) >= Nanos::from_seconds(1) {
            (usage.bells_since, usage.bells) = (now, 0);
        }
        usage.bells = usage.bells.saturating_add(rung);
        usage.bells > limits::DOORBELLS_A_SECOND
    }
}

/// The attachment of a frame.
#[inline]
pub(super) fn attachment_of(frame: &Frame) -> AttachmentIndex {
    AttachmentIndex(frame.attachment as u16) // every such number is an attachment's index
}

/// All attachments of one worker.
#[derive(Debug)]
pub(super) struct Attachments(Vec<Option<Box<AttachmentPolicy>>>);

impl Attachments {
    /// No attachments.
    pub(super) fn new() -> Self {
        Self((0..limits::ATTACHMENTS_MAX).map(|_| None).collect())
    }

    /// The attachment with this index.
    pub(super) fn get(&self, index: AttachmentIndex) -> Option<&AttachmentPolicy> {
        self.0.get(usize::from(index.0))?.as_deref()
    }

    /// The attachment with this index, to count for it.
    pub(super) fn get_mut(&mut self, index: AttachmentIndex) -> Option<&mut AttachmentPolicy> {
        self.0.get_mut(usize::from(index.0))?.as_deref_mut()
    }

    /// True when the worker may wake for frames that are expected of the attachment: fewer than [`limits::EMPTY_WAKE_UPS_A_SECOND`]
    /// such wake-ups found none in this second.
    pub(super) fn may_expect(&mut self, index: AttachmentIndex, now: Monotonic) -> bool {
        let Some(AttachmentPolicy { usage, .. }) = self.get_mut(index) else { return false };
        if now.since(usage.empties_since) >= Nanos::from_seconds(1) {
            (usage.empties_since, usage.empties) = (now, 0);
        }
        usage.empties < limits::EMPTY_WAKE_UPS_A_SECOND
    }

    /// The worker woke for a frame that was expected of the attachment and was not there.
    pub(super) fn count_empty_wake_up(&mut self, index: AttachmentIndex) {
        if let Some(policy) = self.get_mut(index) {
            policy.usage.empties = policy.usage.empties.saturating_add(1);
        }
    }

    /// True when there is such an attachment.
    pub(super) fn is_served(&self, index: AttachmentIndex) -> bool {
        self.get(index).is_some()
    }

    /// Sets a new or changed policy, and keeps what the attachment uses. Returns the old policy.
    pub(super) fn set(
        &mut self,
        index: AttachmentIndex,
        mut policy: Box<AttachmentPolicy>,
    ) -> Option<Box<AttachmentPolicy>> {
        let place = self.0.get_mut(usize::from(index.0))?;
        if let Some(old) = place {
            std::mem::swap(&mut policy.usage, &mut old.usage);
        }
        place.replace(policy)
    }

    /// Removes an attachment; its policy.
    pub(super) fn remove(&mut self, index: AttachmentIndex) -> Option<Box<AttachmentPolicy>> {
        self.0.get_mut(usize::from(index.0))?.take()
    }

    /// A queued frame of the attachment has ended.
    #[inline]
    pub(super) fn count_ended(&mut self, index: AttachmentIndex) {
        if let Some(policy) = self.get_mut(index) {
            policy.usage.queued = policy.usage.queued.saturating_sub(1);
        }
    }

    /// Counts a frame that does not leave.
    pub(super) fn count_dropped(&self, index: AttachmentIndex, reason: DropReason) {
        if let Some(policy) = self.get(index) {
            policy.stats.drop_frame(reason);
        }
    }

    /// Counts copies that cannot leave for want of a route.
    #[inline]
    pub(super) fn count_lost_copies(&self, index: AttachmentIndex, count: u64) {
        if count > 0
            && let Some(policy) = self.get(index)
        {
            add(&policy.stats.copies_lost, count);
        }
    }

    /// True when the attachment has so many frames queued that a worker that is behind takes no more of it.
    pub(super) fn has_queued_enough(&self, index: AttachmentIndex) -> bool {
        self.get(index).is_some_and(|policy| policy.usage.queued >= limits::QUEUED_BEHIND)
    }

    /// True when the node is to be asked for this missing neighbour: a flood of frames must not become a flood of requests.
    pub(super) fn should_request(&mut self, index: AttachmentIndex, hop: NextHop, now: Monotonic) -> bool {
        self.get_mut(index).is_some_and(|policy| policy.usage.neighbour_requests.should_request(hop, now))
    }

    /// True when the kernel may be asked about one more route of this attachment: a flood of flows must not become a flood of
    /// questions.
    pub(super) fn may_ask_route(&mut self, index: AttachmentIndex, now: Monotonic) -> bool {
        self.get_mut(index).is_some_and(|policy| policy.usage.route_requests.may_ask(now))
    }

    /// The kernel is asked about a route of this attachment.
    pub(super) fn count_asked_route(&mut self, index: AttachmentIndex) {
        if let Some(policy) = self.get_mut(index) {
            policy.usage.route_requests.count();
        }
    }

    /// True when the node is to be notified of a TxTime beyond the horizon: once in [`limits::HINT_PAUSE`].
    pub(super) fn should_notify_horizon(&mut self, index: AttachmentIndex, now: Monotonic) -> bool {
        let Some(policy) = self.get_mut(index) else { return false };
        let is_due = now.since(policy.usage.horizon_notified_at) >= limits::HINT_PAUSE;
        if is_due {
            policy.usage.horizon_notified_at = now;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: AttachmentIndex = AttachmentIndex(3);

    fn policy() -> Box<AttachmentPolicy> {
        Box::new(AttachmentPolicy {
            classes: 0xff,
            late: LatePolicy::ByClock,
            overrun_limit: Nanos::from_millis(1),
            horizon: Nanos::from_seconds(10),
            streams: StreamIdentification::default(),
            stats: Arc::default(),
            usage: Usage::default(),
        })
    }

    #[test]
    fn a_changed_policy_keeps_what_the_attachment_uses() {
        let mut all = Attachments::new();
        assert!(all.set(INDEX, policy()).is_none() && all.is_served(INDEX));
        (0..limits::QUEUED_BEHIND).for_each(|_| all.get_mut(INDEX).unwrap().count_queued());
        assert!(all.set(INDEX, policy()).is_some_and(|old| old.queued() == 0));
        assert!(all.has_queued_enough(INDEX));
        all.count_ended(INDEX);
        assert!(!all.has_queued_enough(INDEX));
        assert!(all.remove(INDEX).is_some() && !all.is_served(INDEX));
        // A frame that ends after its attachment is nothing to count.
        all.count_ended(INDEX);
        all.count_dropped(INDEX, DropReason::Detached);
    }

    #[test]
    fn doorbells_are_counted_by_second() {
        let (mut all, begin) = (Attachments::new(), Monotonic::from_nanos(1_000_000_000));
        all.set(INDEX, policy());
        let ring = |all: &mut Attachments, at| all.get_mut(INDEX).unwrap().count_doorbells(2, at);
        let half = limits::DOORBELLS_A_SECOND / 2;
        assert!((0..half).all(|_| !ring(&mut all, begin)));
        assert!(ring(&mut all, begin));
        assert!(!ring(&mut all, begin.saturating_add(Nanos::from_seconds(1))));
    }

    #[test]
    fn a_programs_mistake_is_reported_now_and_then() {
        let (mut all, begin) = (Attachments::new(), Monotonic::from_nanos(100_000_000_000));
        all.set(INDEX, policy());
        let notified = (0..100).filter(|second| {
            all.should_notify_horizon(INDEX, begin.saturating_add(Nanos::from_seconds(*second)))
        });
        assert_eq!(notified.count(), 10);
    }
}
