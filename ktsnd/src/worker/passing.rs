// SPDX-License-Identifier: Apache-2.0
//! Frames that a worker has taken and that only the kernel can send.
//!
//! In: a frame that is refused, and why. Out: a note for the thread that gives it to the kernel at its transmit time, through its
//! program's socket. The slot holds the datagram until that thread has read it. A frame that no program's socket can send (kernel
//! capture) is dropped. Frames that wait for the kernel's answer beyond their time, and have no socket at hand, wait a moment longer.

use ktsn_model::{BypassReason, DropReason, LatePolicy};
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, Flow, Refusal, RouteAnswer};
use ktsn_ring::stream_flags;
use ktsn_sched::{Frame, FrameId};
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::Worker;
use super::attachments::attachment_of;
use super::client::{Client, ClientKey};
use super::command::{Command, Judged, Returned};
use super::content::{FrameContent, reason_of};
use super::due::Due;
use super::entries::{queued, queued_mut};
use super::environment::Environment;
use super::owner::{Owner, frame_id, owner_of};
use super::port_state::NotStaged;
use super::requested_reports::End;
use super::retry::Tries;
use super::source::{Offered, Queued, ToKernel};
use crate::limits::{PASSED_OF_CLIENT_MAX, UNANSWERED_NOTED, UNANSWERED_WAIT, UNANSWERED_WAITS};
use crate::stats::{PortRefusal, count};

/// A frame in a client's region that is the kernel's. The slot is the reader's until [`super::Command::Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Passed {
    /// The client.
    pub client: ClientKey,
    /// The attachment by which the frame was to leave.
    pub attachment: AttachmentIndex,
    /// The slot.
    pub slot: u16,
    /// The index of its stream in the client's region.
    pub stream: u16,
    /// Its addresses and marks, as they were checked.
    pub flow: Flow,
    /// Octets of its payload.
    pub payload_octets: u16,
    /// Not before this instant.
    pub tx_time: TxTime,
}

/// What a worker says to the thread that gives frames to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForPasser {
    /// A frame that is the kernel's.
    Passed(Passed),
    /// All frames of a stream that ends, or of a client that has ended (`None`), are taken, and none waits for the kernel's answer.
    Settled(ClientKey, Option<u32>),
    /// The datagram with this number in the namespace with this cookie.
    Judged(u64, u64, Judged),
}

/// A stream or a client that ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settling {
    client: ClientKey,
    /// The stream's index, and how many lists of published slots were begun when it ended.
    stream: Option<(u32, u64)>,
}

/// What the kernel needs to know of a frame besides its place.
#[derive(Clone, Copy)]
pub(super) struct ForKernel {
    pub attachment: AttachmentIndex,
    pub stream: u16,
    pub content: FrameContent,
    pub payload_octets: u16,
    /// `None`: at once.
    pub tx_time: Option<TxTime>,
}

impl Client {
    /// The slot's frame is the kernel's from now on: it has no report. A queued frame goes on waiting in its queue; else the slot is held
    /// until [`Self::release_passed`].
    pub(super) fn pass(&mut self, slot: u16) {
        self.take_requested_reports(slot);
        self.passed_count += 1;
        if let Some(queued) = self.slots.get_mut(slot) {
            queued.to_kernel = ToKernel::Unread;
        }
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// A frame is not queued. Where its attachment is not served any more, it counts for the attachment of its client.
    pub(super) fn refuse_offered(&mut self, owner: Owner, offered: &Offered, refusal: Refusal, now: Now) {
        let (reason, missing) = reason_of(refusal);
        let attachment = match owner {
            Owner::Client(at) if !self.attachments.is_served(offered.attachment) => {
                self.clients.attachment_at(at)
            }
            _ => Some(offered.attachment),
        };
        let Some(attachment) = attachment else { return };
        self.request(attachment, missing, &offered.content);
        if reason == DropReason::BeyondHorizon
            && self.attachments.should_notify_horizon(attachment, self.env.monotonic())
        {
            self.inbox.notify(Returned::BeyondHorizon(attachment, offered.tx_time.ahead_of(now)));
        }
        let id = frame_id(owner, offered.slot);
        let is_passed = refusal.bypass_reason().is_some_and(|bypass| {
            let Offered { content, payload_octets, is_deadline, .. } = *offered;
            let tx_time = Some(offered.tx_time).filter(|_| !is_deadline);
            let stream = offered.stream.0 as u16; // below STREAMS_MAX
            let of = ForKernel { attachment, stream, content, payload_octets, tx_time };
            self.pass_to_kernel(id, &of, bypass)
        });
        if is_passed {
            self.end_if_over(owner);
        } else {
            self.drop_frame(id, attachment, reason);
        }
    }

    /// Passes a frame to the kernel, which gets it at its transmit time, and counts it. False: it cannot be, and the caller drops it.
    #[cold]
    pub(super) fn pass_to_kernel(&mut self, id: FrameId, of: &ForKernel, reason: BypassReason) -> bool {
        let (Owner::Client(at), slot) = owner_of(id) else { return false };
        let FrameContent::Datagram(flow, _) = of.content else { return false };
        let (Some(client), Some(passer)) = (self.clients.get_mut(at), &mut self.passer) else { return false };
        // Of several copies one has left: the kernel would send it again.
        let has_left = client.slots.get(slot).is_some_and(|queued| queued.copies.sent.is_some());
        if has_left || client.passed_count >= PASSED_OF_CLIENT_MAX {
            return false;
        }
        let &ForKernel { attachment, stream, payload_octets, tx_time, .. } = of;
        let tx_time = tx_time.unwrap_or(TxTime::Monotonic(Monotonic::ZERO));
        let passed = Passed { client: client.key, attachment, slot, stream, flow, payload_octets, tx_time };
        if passer.try_send(ForPasser::Passed(passed)).is_err() {
            return false;
        }
        client.pass(slot);
        if let Some(policy) = self.attachments.get(attachment) {
            count(&policy.stats.passed);
            count(&policy.stats.bypassed[usize::from(reason.number())]);
        }
        true
    }

    /// A client or one of its streams ends: [`ForPasser::Settled`] comes when its sockets are not needed any more.
    pub(super) fn begin_settling(&mut self, client: ClientKey, stream: Option<u32>) {
        if self.passer.is_none() || self.settling.len() == self.settling.capacity() {
            if let Some(index) = stream {
                self.clients.apply(Command::Unregister(client, index), &mut self.inbox, &self.stats);
            }
            return;
        }
        let lists_begun =
            self.clients.find(client).and_then(|at| self.clients.get(at)).map(Client::lists_begun);
        let stream = stream.map(|index| (index, lists_begun.unwrap_or_default()));
        self.settling.push(Settling { client, stream });
    }

    /// Tells which clients and streams have settled.
    #[cold]
    pub(super) fn settle(&mut self) {
        for at in (0..self.settling.len()).rev() {
            let Some(&settling) = self.settling.get(at) else { continue };
            if !self.is_settled(settling) {
                continue;
            }
            let Settling { client, stream } = settling;
            let settled = ForPasser::Settled(client, stream.map(|(index, _)| index));
            if self.passer.as_mut().is_none_or(|passer| passer.try_send(settled).is_ok()) {
                self.settling.swap_remove(at);
            }
        }
    }

    fn is_settled(&self, Settling { client, stream }: Settling) -> bool {
        let Some(at) = self.clients.find(client) else { return true };
        let is_taken = self.clients.get(at).is_none_or(|client| match stream {
            Some((_, lists_begun)) => client.is_taken_since(lists_begun),
            None => client.has_ended(),
        });
        let is_its = |id: FrameId| {
            let entry = queued(&self.clients, &self.captures, id).map(|(entry, _)| entry);
            owner_of(id).0 == Owner::Client(at)
                && entry.is_some_and(|entry| {
                    entry.to_kernel == ToKernel::No
                        && stream.is_none_or(|(index, _)| index == u32::from(entry.stream))
                })
        };
        is_taken && !self.unanswered.iter().any(|(id, _)| is_its(*id))
    }

    /// A frame that waits for the kernel's answer about its route: it is passed to the kernel as soon as that says so, while its
    /// program has the socket.
    pub(super) fn note_unanswered(&mut self, id: FrameId, tx_time: TxTime) {
        if self.unanswered.len() == UNANSWERED_NOTED {
            self.unanswered.pop_front();
        }
        self.unanswered.push_back((id, tx_time));
    }

    /// The kernel has answered about a flow: what waits of it is the kernel's, where the answer says so.
    pub(super) fn note_answer(&mut self, flow: &Flow, answer: RouteAnswer) {
        for _ in 0..self.unanswered.len() {
            let Some((id, tx_time)) = self.unanswered.pop_front() else { return };
            let Some((entry, _)) = queued(&self.clients, &self.captures, id) else { continue };
            let &Queued { content, stream, payload_octets, to_kernel, .. } = entry;
            if !matches!(content, FrameContent::Datagram(of, _) if of == *flow) {
                self.unanswered.push_back((id, tx_time));
            } else if answer == RouteAnswer::Elsewhere && to_kernel == ToKernel::No {
                let (attachment, tx_time) = (flow.attachment, Some(tx_time));
                let of = ForKernel { attachment, stream, content, payload_octets, tx_time };
                // What cannot be passed now ends at its time.
                let _ = self.pass_to_kernel(id, &of, BypassReason::RoutingRules);
            }
        }
    }

    /// A frame does not lie in a port's buffer: it is tried again, is the kernel's, waits for the kernel's answer, or is dropped.
    /// `before`: the port did not take it the last time.
    #[cold]
    pub(super) fn end_unstaged(&mut self, port: usize, due: &Due, why: NotStaged, before: Option<Tries>) {
        let refusal = match why {
            NotStaged::Full => return self.retry_later(port, due, PortRefusal::NoBuffer, before),
            NotStaged::Dropped(reason) => return self.drop_copy(&due.frame, reason),
            NotStaged::Refused(refusal) => refusal,
            NotStaged::ToKernel => return self.release(due.frame.id, End::ByKernel),
        };
        let (frame, (reason, missing)) = (&due.frame, reason_of(refusal));
        let entry = queued(&self.clients, &self.captures, frame.id).map(|(entry, _)| *entry);
        let Some(entry) = entry else { return self.drop_copy(frame, reason) };
        self.request(attachment_of(frame), missing, &entry.content);
        let is_timed = frame.late != LatePolicy::Deadline;
        let is_passed = refusal.bypass_reason().is_some_and(|bypass| {
            if refusal == Refusal::Unanswered
                && !self.is_kept(frame.id, entry.stream)
                && self.defer(port, frame)
            {
                return true;
            }
            let of = ForKernel {
                attachment: attachment_of(frame),
                stream: entry.stream,
                content: entry.content,
                payload_octets: entry.payload_octets,
                tx_time: frame.tx_time.filter(|_| is_timed),
            };
            let is_passed = self.pass_to_kernel(frame.id, &of, bypass);
            if is_passed {
                self.release(frame.id, End::ByKernel);
            }
            is_passed
        });
        if !is_passed {
            self.drop_copy(frame, reason);
        }
    }

    /// Whether the socket of a client's frame is at hand.
    fn is_kept(&self, id: FrameId, stream: u16) -> bool {
        let (Owner::Client(at), _) = owner_of(id) else { return false };
        // Those of a client that has ended are let go ([`Self::settle`]).
        let client = self.clients.get(at).filter(|client| !client.has_ended());
        let stream = client.and_then(|client| client.stream(u32::from(stream)));
        stream.is_some_and(|stream| stream.status.flags & stream_flags::KEPT != 0)
    }

    /// Queues a frame again that the kernel has not answered for, a little later than its time. False: it has waited enough.
    fn defer(&mut self, port: usize, frame: &Frame) -> bool {
        let now = self.env.now();
        let Some(state) = self.ports.get_mut(port) else { return false };
        let Some(entry) = queued_mut(&mut self.clients, &mut self.captures, frame.id) else { return false };
        if entry.deferred_count >= UNANSWERED_WAITS
            || entry.copies.is_one_of_several()
            || frame.late == LatePolicy::Deadline
        {
            return false;
        }
        let later = TxTime::Monotonic(now.monotonic.saturating_add(UNANSWERED_WAIT));
        let again = Frame { tx_time: Some(later), horizon: Nanos::MAX, ..*frame };
        if state.selection.offer(again, now).is_err() {
            return false;
        }
        entry.deferred_count += 1;
        self.ports.activate(port);
        true
    }
}
