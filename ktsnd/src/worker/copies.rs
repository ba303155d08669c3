// SPDX-License-Identifier: Apache-2.0
//! Head-end replication: datagrams and frames that leave as several, one for each tunnel end of a segment.
//!
//! In: a copy that left, or that could not. Out: the next one, in the queue of the port that it leaves by, under the same name
//! and from the same slot. So a slot stands in one queue only, however many copies it makes; gates, guard bands and
//! queueMaxSDU judge each copy by its own length; and rights, policing and class were judged once, before the first.
//! A copy after the first waits for no time of its own: the first was not early. Must never allocate; how many copies
//! there are is bounded by the tables ([`ktsn_resolve::limits::FLOOD_MAX`]).

use ktsn_model::{DropReason, LatePolicy};
use ktsn_port::Port;
use ktsn_resolve::{Replica, next_replica};
use ktsn_sched::{Frame, FrameId, Strategy};
use ktsn_time::Nanos;

use super::captured::{captured_frame, captured_index};
use super::report::End;
use super::sending::Sending;
use super::transmit::client_frame;
use super::{Environment, Worker, split};
use crate::stats::{add, count};

/// Which copy a slot is queued for, and what became of those before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// The copy.
    pub replica: Replica,
    /// Once one has left: when, as it is told to the program (0: it did not ask).
    pub sent: Option<u64>,
}

impl Copies {
    /// The first of what may be several.
    pub(super) fn of(replica: Option<Replica>) -> Self {
        Self { replica: replica.unwrap_or_default(), sent: None }
    }

    /// Whether there may be more.
    pub(super) fn is_one_of_several(self) -> bool {
        self.replica != Replica::First
    }
}

/// What is queued under a name.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub sending: Sending,
    pub copies: Copies,
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// What is queued under this name.
    pub(super) fn waiting(&self, id: FrameId) -> Option<Waiting> {
        let (index, slot) = split(id);
        let (waiting, _, _) = match captured_index(index) {
            Some(at) => captured_frame(&self.captured, at, slot),
            None => client_frame(&self.clients, index, slot),
        }?;
        Some(waiting)
    }

    /// Copies that cannot leave, for want of a way.
    pub(super) fn count_lost(&self, tenant: u32, copies_count: u64) {
        if copies_count > 0
            && let Some(Some(policy)) = self.attachments.get(tenant as usize)
        {
            add(&policy.stats.copies_lost, copies_count);
        }
    }

    /// After a copy, or instead of one that cannot leave: queues the next one that can. Else, how many there were; then the
    /// slot's life ends.
    pub(super) fn offer_next_copy(&mut self, frame: &Frame, waiting: Waiting) -> Result<(), u64> {
        let attachment = waiting.sending.attachment();
        let (mut copies, mut lost) = (waiting.copies, 0);
        while let Some(replica) = next_replica(&self.tables, attachment, copies.replica) {
            copies.replica = replica;
            if self.offer_copy(frame, waiting.sending, copies) {
                self.count_lost(frame.tenant, lost);
                return Ok(());
            }
            lost += 1;
        }
        Err(lost)
    }

    fn offer_copy(&mut self, first: &Frame, sending: Sending, copies: Copies) -> bool {
        let now = self.env.now();
        let (index, slot) = split(first.id);
        let found = match captured_index(index) {
            Some(at) => captured_frame(&self.captured, at, slot),
            None => client_frame(&self.clients, index, slot),
        };
        let Some((_, _, payload)) = found else { return false };
        let Ok(way) = sending.way(&mut self.routes, &self.tables, payload, copies.replica) else {
            return false;
        };
        let (port, (wire_octets, sdu_octets)) = (way.port(), way.lengths(payload));
        let Some(Some(state)) = self.ports.get_mut(usize::from(port.0)) else { return false };
        let is_deadline = first.late == LatePolicy::Deadline;
        let frame = Frame {
            // A deadline holds for every copy.
            tx_time: first.tx_time.filter(|_| is_deadline),
            // The first was due when it was sent, the others are when their turn comes.
            pushed_at: if is_deadline { first.pushed_at } else { now.monotonic },
            wire_octets,
            sdu_octets,
            horizon: Nanos::MAX,
            ..*first
        };
        if state.sched.offer(frame, now).is_err() {
            return false;
        }
        self.busy.insert(usize::from(port.0));
        let queued = match captured_index(index) {
            Some(at) => self.captured.get_mut(at).and_then(Option::as_mut).and_then(|c| c.place(slot)),
            None => self.clients.get_mut(index).and_then(Option::as_mut).and_then(|c| c.place(slot)),
        };
        match queued {
            Some((in_port, of_slot)) => (*in_port, *of_slot) = (port, copies),
            None => count(&self.stats.bugs), // it was there a moment ago
        }
        true
    }

    /// A copy left: the next one is queued, or what was queued ends.
    pub(super) fn sent_copy(&mut self, frame: &Frame, copies: Copies, stamp: u64) {
        let sent = copies.sent.unwrap_or(stamp);
        let copies = Copies { sent: Some(sent), ..copies };
        let Some(waiting) = self.waiting(frame.id) else { return self.release(frame.id, End::Sent(sent)) };
        if let Err(lost) = self.offer_next_copy(frame, Waiting { copies, ..waiting }) {
            self.count_lost(frame.tenant, lost);
            self.release(frame.id, End::Sent(sent));
        }
    }

    /// A frame that does not leave: the next copy is tried where only this one has no way; else, or where it was the last,
    /// what is queued ends: as sent, if a copy left before.
    pub(super) fn drop_copy(&mut self, frame: &Frame, reason: DropReason) {
        let has_no_way = matches!(reason, DropReason::NoRoute | DropReason::NoNeighbour);
        if has_no_way
            && let Some(waiting) = self.waiting(frame.id).filter(|waiting| waiting.copies.is_one_of_several())
            && self.offer_next_copy(frame, waiting).is_ok()
        {
            return self.count_lost(frame.tenant, 1);
        }
        self.drop_frame(frame.id, frame.tenant, reason);
    }

    /// How many copies the one at hand and those after it are.
    pub(super) fn copies_left(&self, waiting: Waiting) -> u64 {
        let attachment = waiting.sending.attachment();
        let after = std::iter::successors(Some(waiting.copies.replica), |&replica| {
            next_replica(&self.tables, attachment, replica)
        });
        after.count() as u64
    }
}
