// SPDX-License-Identifier: Apache-2.0
//! Head-end replication: datagrams and frames that leave as several, one for each tunnel end of a segment.
//!
//! In: a frame of which a copy left or could not. Out: the next copy in its port's queue, under the same name and from the same slot; or
//! the end of the frame. Gates, guard bands and queueMaxSDU judge each copy by its own length; rights, policing and class were judged
//! once, before the first. A copy after the first waits for no time of its own: the first was not early.

use ktsn_model::{DropReason, LatePolicy};
use ktsn_port::Port;
use ktsn_sched::Frame;
use ktsn_time::Nanos;

use super::Worker;
use super::attachments::attachment_of;
use super::content::Copies;
use super::entries::{queued, queued_mut};
use super::environment::Environment;
use super::requested_reports::End;
use super::source::Queued;
use crate::stats::count;

impl<P: Port, E: Environment> Worker<P, E> {
    /// A copy left at `stamp`: the next one is queued, or the frame ends.
    pub(super) fn sent_copy(&mut self, frame: &Frame, copies: Copies, stamp: u64) {
        let sent = copies.sent.unwrap_or(stamp);
        let copies = Copies { sent: Some(sent), ..copies };
        let Some((queued, _)) = queued(&self.clients, &self.captures, frame.id) else {
            return self.release(frame.id, End::Sent(sent));
        };
        let queued = Queued { copies, ..*queued };
        if let Err(lost) = self.offer_next_copy(frame, queued) {
            self.attachments.count_lost_copies(attachment_of(frame), lost);
            self.release(frame.id, End::Sent(sent));
        }
    }

    /// A frame does not leave: the next copy is tried where only this one has no route. Else, or where it was the last, the frame
    /// ends: as sent, if a copy left before.
    pub(super) fn drop_copy(&mut self, frame: &Frame, reason: DropReason) {
        let has_no_route = matches!(reason, DropReason::NoRoute | DropReason::NoNeighbour);
        if has_no_route
            && let Some((queued, _)) = queued(&self.clients, &self.captures, frame.id)
            && queued.copies.is_one_of_several()
            && let queued = *queued
            && self.offer_next_copy(frame, queued).is_ok()
        {
            return self.attachments.count_lost_copies(attachment_of(frame), 1);
        }
        self.drop_frame(frame.id, attachment_of(frame), reason);
    }

    /// Queues the next copy that can leave. Else, how many copies there were; then the frame ends.
    fn offer_next_copy(&mut self, frame: &Frame, mut queued: Queued) -> Result<(), u64> {
        let (attachment, mut lost) = (queued.content.attachment(), 0);
        while let Some(replica) = self.resolver.next_replica(attachment, queued.copies.replica) {
            queued.copies.replica = replica;
            if self.offer_copy(frame, &queued) {
                self.attachments.count_lost_copies(attachment_of(frame), lost);
                return Ok(());
            }
            lost += 1;
        }
        Err(lost)
    }

    fn offer_copy(&mut self, first: &Frame, copy: &Queued) -> bool {
        let now = self.env.now();
        let Some((_, payload)) = queued(&self.clients, &self.captures, first.id) else { return false };
        let Ok(outgoing) = copy.content.outgoing(&mut self.resolver, payload, copy.copies.replica) else {
            return false;
        };
        let (port, (wire_octets, sdu_octets)) = (outgoing.port(), outgoing.lengths(payload));
        let Some(state) = self.ports.at(port) else { return false };
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
        if state.selection.offer(frame, now).is_err() {
            return false;
        }
        self.ports.activate(usize::from(port.0));
        match queued_mut(&mut self.clients, &mut self.captures, first.id) {
            Some(entry) => (entry.port, entry.copies) = (port, copy.copies),
            None => count(&self.stats.bugs), // it was there a moment ago
        }
        true
    }

    /// How many copies the one at hand and those after it are.
    pub(super) fn copies_left(&self, queued: &Queued) -> u64 {
        let attachment = queued.content.attachment();
        let next = |replica: &_| self.resolver.next_replica(attachment, *replica);
        std::iter::successors(Some(queued.copies.replica), next).count() as u64
    }
}
