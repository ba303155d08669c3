// SPDX-License-Identifier: Apache-2.0
//! The life of a frame in the worker, but for its hand-over: taken over, copied, dropped, released. And how its owners end.
//!
//! In: sources with frames; frames that left or could not. Out: frames in the ports' queues (`frame_admission`); slots that go
//! back to their owners; counters, reports and notifications. Clients and captures share every line of this.

use ktsn_model::{DropReason, LatePolicy};
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::LinkError;
use ktsn_sched::{Frame, FrameId};
use ktsn_time::{Monotonic, Nanos, Now};

use super::Worker;
use super::attachments::attachment_of;
use super::closing::{Drain, Removal, Stage};
use super::command::Returned;
use super::content::Copies;
use super::entries::{queued, queued_mut};
use super::environment::Environment;
use super::expecting::note_queued;
use super::frame_admission::{Accepted, FrameAdmission};
use super::owner::{Owner, frame_id, owner_of};
use super::pacing::IntakeCause;
use super::port_state::PortState;
use super::requested_reports::End;
use super::resolver::Missing;
use super::retry::Retry;
use super::source::{Offered, Queued, Source, Step, ToKernel, Walk};
use crate::limits;
use crate::stats::count;

/// Taking over.
impl<P: Port, E: Environment> Worker<P, E> {
    /// Takes frames over from the clients and from the captures in turn, a bounded number each and in all. It stops short of the
    /// next frame that is due, and goes on in the next pass. True when it took any.
    pub(super) fn intake_all(&mut self, now: Monotonic) -> bool {
        self.intake_clients(now) | self.intake_captures()
    }

    fn intake_clients(&mut self, now: Monotonic) -> bool {
        let (mut left, quantum) = (limits::INTAKE_A_PASS, self.clients.quantum());
        let mut round = self.clients.begin_round();
        while left > 0 {
            let Self { clients, attachments, pacing, env, .. } = self;
            let may_take = |of| !pacing.is_behind() || !attachments.has_queued_enough(of);
            let Some(at) = clients.next_waiting(&mut round, now, env, may_take) else { break };
            let Some(budget) = self.time_for_intake(IntakeCause::Rings) else { break };
            left -= self.intake(Owner::Client(at), budget.min(quantum).min(left));
            self.clients.pass_turn(&mut round);
        }
        let has_taken = left < limits::INTAKE_A_PASS;
        self.clients.end_round(has_taken);
        has_taken
    }

    fn intake_captures(&mut self) -> bool {
        let (mut left, mut polls) = (limits::INTAKE_A_PASS, self.captures.end());
        while left > 0 {
            let Self { captures, attachments, pacing, .. } = self;
            let may_take = |of| !pacing.is_behind() || !attachments.has_queued_enough(of);
            let Some(attachment) = captures.next_waiting(&mut polls, may_take) else { break };
            let Some(budget) = self.time_for_intake(IntakeCause::Captures) else { break };
            left -= self.intake(Owner::Capture(attachment), budget.min(limits::INTAKE_QUANTUM).min(left));
            self.captures.pass_turn();
        }
        left < limits::INTAKE_A_PASS
    }

    fn time_for_intake(&mut self, intake: IntakeCause) -> Option<usize> {
        let Self { pacing, ports, env, .. } = self;
        pacing.time_for_intake(intake, env, |port, now| {
            ports
                .get_mut(port)
                .is_some_and(|state| state.selection.is_timed_within(limits::INTAKE_STOPS, now))
        })
    }

    /// Takes over at most `budget` frames of one source. Returns how many it took.
    pub(super) fn intake(&mut self, owner: Owner, budget: usize) -> usize {
        if let Owner::Client(at) = owner
            && let Some(client) = self.clients.get_mut(at)
        {
            client.attention().unsettle();
        }
        let (mut taken, mut walk, mut read) = (0, Walk::new(budget), None);
        while taken < budget {
            if walk.is_look_due() && self.pacing.is_next_within(limits::INTAKE_STOPS, &mut self.env) {
                break;
            }
            let step = match owner {
                Owner::Client(at) => self.clients.get_mut(at).map(|client| client.next(&mut walk)),
                Owner::Capture(of) => self.captures.get_mut(of).map(|captured| captured.next(&mut walk)),
            };
            let step = match step {
                Some(Step::Walked) => continue,
                Some(Step::Broken(error)) => {
                    self.retire(owner, error);
                    continue;
                }
                Some(Step::Nothing) | None => break,
                Some(step) => step,
            };
            taken += 1;
            let now = *read.get_or_insert_with(|| self.env.now());
            match step {
                Step::Frame(offered) => self.take_over(owner, &offered, now),
                Step::Refused { slot, attachment, reason } => self.refuse(owner, slot, attachment, reason),
                _ => {}
            }
        }
        match (owner, read) {
            (Owner::Client(at), Some(now)) => {
                self.pacing.note_taken(IntakeCause::Rings, now.monotonic);
                self.clients.note_taken(at, now.monotonic);
            }
            (Owner::Capture(_), Some(now)) => self.pacing.note_taken(IntakeCause::Captures, now.monotonic),
            (_, None) => {}
        }
        taken
    }

    fn take_over(&mut self, owner: Owner, offered: &Offered, now: Now) {
        let Self { attachments, closing, clock, resolver, ports, .. } = self;
        let mut admission = FrameAdmission { attachments, closing, clock, resolver, ports };
        let result = match owner {
            Owner::Client(at) => {
                let Some(client) = self.clients.get_mut(at) else { return };
                if offered.wants_report {
                    client.set_scheduled_at(offered.slot, self.env.realtime());
                }
                admission.queue(owner, client, offered, now)
            }
            Owner::Capture(attachment) => {
                let Some(captured) = self.captures.get_mut(attachment) else { return };
                admission.queue(owner, captured, offered, now)
            }
        };
        match result {
            Ok(accepted) => {
                let Accepted { port, skipped, missing } = accepted;
                self.pacing.note_sooner(offered.tx_time, port, now);
                if let Owner::Client(at) = owner {
                    note_queued(&mut self.clients, &self.stats, at, offered, &accepted, now);
                }
                self.attachments.count_lost_copies(offered.attachment, u64::from(skipped));
                self.request(offered.attachment, missing, &offered.content);
                if missing == Some(Missing::Route) && !offered.is_deadline {
                    self.note_unanswered(frame_id(owner, offered.slot), offered.tx_time);
                }
            }
            Err(refusal) => self.refuse_offered(owner, offered, refusal, now),
        }
    }

    /// A frame cannot be read, or there is no slot for it.
    fn refuse(&mut self, owner: Owner, slot: Option<u16>, attachment: AttachmentIndex, reason: DropReason) {
        if reason == DropReason::Bug {
            count(&self.stats.bugs);
        }
        match slot {
            Some(slot) => self.drop_frame(frame_id(owner, slot), attachment, reason),
            None => self.attachments.count_dropped(attachment, reason),
        }
    }

    /// The list of published slots is impossible: the client gets a new region at its next send. The consumer has marked the
    /// region.
    fn retire(&mut self, owner: Owner, error: LinkError) {
        let Owner::Client(at) = owner else { return };
        if let Some((key, attachment)) = self.clients.retire(at, &mut self.env) {
            count(&self.stats.regions_retired);
            self.attachments.count_dropped(attachment, DropReason::PeerCorrupt);
            self.inbox.hand_back(Returned::Retired(key, error));
        }
    }
}

/// The end of a frame.
impl<P: Port, E: Environment> Worker<P, E> {
    /// Ends a frame: its slot goes back, with a report where its program asked; and its owner, where this was the last frame of it.
    #[inline]
    pub(super) fn release(&mut self, id: FrameId, end: End) {
        let (owner, slot) = owner_of(id);
        let ended = match owner {
            Owner::Client(at) => self.clients.get_mut(at).map(|client| {
                let Self { reporter, resolver, env, stats, .. } = self;
                let is_reported = reporter.report(client, slot, end, resolver, env, stats);
                client.end_frame(slot, is_reported)
            }),
            Owner::Capture(of) => {
                let captured = self.captures.get_mut(of).filter(|captured| captured.is_taken(slot));
                captured.map(|captured| captured.end_frame(slot))
            }
        };
        match ended {
            Some(Some(queued)) => self.attachments.count_ended(queued.content.attachment()),
            Some(None) => {}
            None => return count(&self.stats.bugs),
        }
        self.end_if_over(owner);
    }

    /// Hands an owner back that has ended and has nothing queued.
    #[inline]
    pub(super) fn end_if_over(&mut self, owner: Owner) {
        match owner {
            Owner::Client(at) => {
                if let Some(client) = self.clients.take_if_over(at, &mut self.env) {
                    self.inbox.hand_back(Returned::Client(client));
                }
            }
            Owner::Capture(attachment) => {
                self.inbox.hand_back_boxed(self.captures.take_if_over(attachment));
            }
        }
    }

    /// Counts a frame that does not leave, then releases it. Where a copy of it left before, the frame counts as sent. One that is the
    /// kernel's is counted.
    pub(super) fn drop_frame(&mut self, id: FrameId, attachment: AttachmentIndex, reason: DropReason) {
        let entry = queued(&self.clients, &self.captures, id).map(|(entry, _)| entry);
        if entry.is_some_and(|entry| entry.to_kernel != ToKernel::No) {
            return self.release(id, End::ByKernel);
        }
        if let Some(queued) = entry
            && queued.copies.is_one_of_several()
            && let Some(at) = queued.copies.sent
        {
            let queued = *queued;
            self.attachments.count_lost_copies(attachment, self.copies_left(&queued));
            return self.release(id, End::Sent(at));
        }
        self.attachments.count_dropped(attachment, reason);
        self.release(id, End::Dropped(reason));
    }
}

/// Head-end replication: datagrams and frames that leave as several, one for each tunnel end of a segment. The next copy is queued
/// when one left, or could not, under the same name and from the same slot. Gates, guard bands and queueMaxSDU judge each copy by
/// its own length; rights, policing and class were judged once, before the first. A copy after the first waits for no time of its
/// own: the first was not early.
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
    fn copies_left(&self, queued: &Queued) -> u64 {
        let attachment = queued.content.attachment();
        let next = |replica: &_| self.resolver.next_replica(attachment, *replica);
        std::iter::successors(Some(queued.copies.replica), next).count() as u64
    }
}

/// The steps of `closing`.
impl<P: Port, E: Environment> Worker<P, E> {
    /// Empties the client's ring in further passes, then closes it; `ends`: its process is gone.
    pub(super) fn close_client(&mut self, at: usize, ends: bool) {
        if self.clients.begin_close(at, ends) {
            self.closing.push_ring(at);
        }
        self.end_if_over(Owner::Client(at));
    }

    /// One step of all that is being closed, as far as there is time before the next frame. True when it took frames over.
    pub(super) fn close_some(&mut self) -> bool {
        if !self.closing.is_at_work() {
            return false;
        }
        let has_taken = self.empty_some_rings();
        if let Some(drain) = self.closing.drain() {
            let next = self.drain_some(drain);
            self.closing.set_drain(next);
        }
        match self.closing.removal() {
            Some(Removal::Attachment(attachment, stage)) => {
                let next = self.remove_some(attachment, stage);
                self.closing.set_removal(next.map(|stage| Removal::Attachment(attachment, stage)));
                if next.is_none() {
                    self.inbox.hand_back_boxed(self.attachments.remove(attachment));
                }
            }
            Some(Removal::Port(port)) => {
                self.closing.set_removal(None);
                self.remove_port(port);
            }
            None => {}
        }
        has_taken
    }

    /// Takes some frames over from the rings that are closed next.
    fn empty_some_rings(&mut self) -> bool {
        let mut has_taken = false;
        for _ in 0..self.closing.rings_count().min(limits::CLOSED_A_PASS) {
            let Some(budget) = self.time_for_intake(IntakeCause::Closing) else { break };
            let Some(at) = self.closing.pop_ring() else { break };
            has_taken |= self.intake(Owner::Client(at), budget.min(limits::INTAKE_QUANTUM)) > 0;
            self.pacing.note_taken(IntakeCause::Closing, self.env.monotonic());
            if self.clients.try_close(at, &self.attachments) {
                self.end_if_over(Owner::Client(at));
            } else {
                self.closing.push_ring(at);
            }
        }
        has_taken
    }

    /// One step of a drain; the next one.
    fn drain_some(&mut self, drain: Drain) -> Option<Drain> {
        let first = Drain::Captured(AttachmentIndex(0), limits::CAPTURED_LEFT_MAX);
        match drain {
            Drain::Clients(from) => {
                Some(self.clients.close_from(from, |_| true, &mut self.closing).map_or(first, Drain::Clients))
            }
            Drain::Captured(of, _) if usize::from(of.0) >= self.captures.end() => None,
            Drain::Captured(of, most) => Some(match self.empty_captured(of, most) {
                Some(most) => Drain::Captured(of, most),
                None => Drain::Captured(AttachmentIndex(of.0 + 1), limits::CAPTURED_LEFT_MAX),
            }),
        }
    }

    /// One step of the removal of an attachment; the next one.
    fn remove_some(&mut self, attachment: AttachmentIndex, stage: Stage) -> Option<Stage> {
        match stage {
            Stage::Clients(from) => {
                let next = self.clients.close_from(from, |of| of == attachment, &mut self.closing);
                Some(next.map_or(Stage::Rings, Stage::Clients))
            }
            Stage::Rings => {
                let has_rings =
                    self.closing.has_ring(|at| self.clients.attachment_at(at) == Some(attachment));
                Some(if has_rings { Stage::Rings } else { Stage::Captured(limits::CAPTURED_LEFT_MAX) })
            }
            Stage::Captured(most) => {
                Some(self.empty_captured(attachment, most).map_or(Stage::Queues, Stage::Captured))
            }
            Stage::Queues => {
                (self.remove_queued(attachment) || self.clock.has_of(attachment)).then_some(Stage::Queues)
            }
        }
    }

    /// Takes some captured frames over, as far as there is time, or counts them with the reason for which they are not taken.
    /// Returns how many more of the at most `most` frames are taken; `None`: that is done, and the capture is closed.
    fn empty_captured(&mut self, attachment: AttachmentIndex, most: usize) -> Option<usize> {
        if most > 0 && self.captures.is_waiting(attachment) {
            let Some(budget) = self.time_for_intake(IntakeCause::Captures) else { return Some(most) };
            let budget = budget.min(limits::INTAKE_QUANTUM).min(most);
            let taken = self.intake(Owner::Capture(attachment), budget);
            return Some(most - taken.clamp(1, budget));
        }
        if let Some(captured) = self.captures.get_mut(attachment) {
            if let Some(policy) = self.attachments.get(attachment) {
                captured.count_program(&policy.stats);
            }
            if captured.close() {
                self.env.unwatch(captured.descriptor());
            }
            self.end_if_over(Owner::Capture(attachment));
        }
        None
    }

    /// Drops some queued frames of an attachment; true when there may be more. Its frames wait at two of a thousand ports.
    pub(super) fn remove_queued(&mut self, attachment: AttachmentIndex) -> bool {
        let mut from = 0;
        while let Some(port) = self.ports.next_active(from) {
            from = port + 1;
            let Some(mut state) = self.ports.lend(port) else { continue };
            self.drop_retry(&mut state, |frame| attachment_of(frame) == attachment);
            let is_more = state.remove_attachment(u32::from(attachment.0), |frame| {
                self.drop_frame(frame.id, attachment, DropReason::Detached);
            });
            self.ports.put(port, state);
            if is_more {
                return true;
            }
        }
        false
    }

    /// Gives up a port; what waits for it is dropped. A port of a pod has nothing queued by then: its attachment went before.
    pub(super) fn remove_port(&mut self, index: PortIndex) {
        let Some(mut state) = self.ports.remove(index) else { return };
        self.drop_retry(&mut state, |_| true);
        self.empty_queue(&mut state);
        state.hand_back(index, &mut self.inbox);
    }

    /// Drops all that is queued for a port.
    pub(super) fn empty_queue(&mut self, state: &mut PortState<P>) {
        state.remove_all(|frame| self.drop_frame(frame.id, attachment_of(&frame), DropReason::Detached));
    }

    /// Drops the frame that waits for a retry, if it is one of `which`.
    fn drop_retry(&mut self, state: &mut PortState<P>, which: impl Fn(&Frame) -> bool) {
        if let Some(Retry { due, .. }) = state.retry.take_if(|retry| which(&retry.due.frame)) {
            self.drop_frame(due.frame.id, attachment_of(&due.frame), DropReason::Detached);
        }
    }
}
