// SPDX-License-Identifier: Apache-2.0
//! The life of a frame in the worker, but for its hand-over (`hand_over`) and its copies (`copies`): taken over, dropped, released.
//!
//! In: sources with frames; frames that left or could not. Out: frames in the ports' queues (`frame_admission`); slots that go
//! back to their owners; counters, reports and notifications. Clients and captures share every line of this.

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::LinkError;
use ktsn_sched::FrameId;
use ktsn_time::{Monotonic, Now};

use super::Worker;
use super::command::Returned;
use super::entries::queued;
use super::environment::Environment;
use super::expecting::note_queued;
use super::frame_admission::{Accepted, FrameAdmission};
use super::owner::{Owner, frame_id, owner_of};
use super::pacing::IntakeCause;
use super::requested_reports::End;
use super::resolver::Missing;
use super::source::{IntakeWork, Offered, Source, Step, ToKernel};
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

    pub(super) fn time_for_intake(&mut self, intake: IntakeCause) -> Option<usize> {
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
        let (mut taken, mut work, mut read) = (0, IntakeWork::new(budget), None);
        while taken < budget {
            if work.is_look_due() && self.pacing.is_next_within(limits::INTAKE_STOPS, &mut self.env) {
                break;
            }
            let step = match owner {
                Owner::Client(at) => self.clients.get_mut(at).map(|client| client.next(&mut work)),
                Owner::Capture(of) => self.captures.get_mut(of).map(|captured| captured.next(&mut work)),
            };
            let step = match step {
                Some(Step::Followed) => continue,
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
