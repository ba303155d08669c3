// SPDX-License-Identifier: Apache-2.0
//! The steps of `closing`: how clients, captures, attachments and ports end.
//!
//! In: what is being closed, and how far it is. Out: frames that are taken over or dropped, and the next step. Each step is bounded, and
//! frames that are due come first.

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_sched::Frame;

use super::Worker;
use super::attachments::attachment_of;
use super::closing::{Drain, Removal, Stage};
use super::environment::Environment;
use super::owner::Owner;
use super::pacing::IntakeCause;
use super::port_state::PortState;
use super::retry::Retry;
use crate::limits;

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
