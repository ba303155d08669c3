// SPDX-License-Identifier: Apache-2.0
//! The one way from a source into a port's queue: policy → clock gate → time → packet filter → route → class → police → share →
//! queue.
//!
//! In: a frame that was taken from a client or from a capture. Out: the frame in a port's queue, or why it is not. A frame that is
//! refused before it is queued costs no copy of its payload: a flood of them leaves the caches to others.

use ktsn_model::{BypassReason, DropReason};
use ktsn_port::Port;
use ktsn_resolve::Refusal;
use ktsn_sched::{Frame, judge_time};
use ktsn_time::Now;

use super::attachments::Attachments;
use super::clock_gate::ClockGate;
use super::closing::Closing;
use super::content::FrameContent;
use super::owner::{Owner, frame_id};
use super::ports::Ports;
use super::resolver::{Missing, Resolver};
use super::source::{Offered, Queued, Source, ToKernel};
use crate::stats::count;

/// The parts of the worker that decide whether a frame is queued.
pub(super) struct FrameAdmission<'a, P> {
    pub attachments: &'a mut Attachments,
    pub closing: &'a Closing,
    pub clock: &'a ClockGate,
    pub resolver: &'a mut Resolver,
    pub ports: &'a mut Ports<P>,
}

/// A frame was queued.
pub(super) struct Accepted {
    pub port: usize,
    /// Copies before the first one that has a route.
    pub skipped: u16,
    /// What must come before the frame leaves.
    pub missing: Option<Missing>,
}

impl<P: Port> FrameAdmission<'_, P> {
    /// Queues a frame that was taken from `source`, with its payload.
    ///
    /// # Errors
    /// [`Refusal`]; then nothing is kept of the frame.
    #[inline]
    pub(super) fn queue<S: Source>(
        &mut self,
        owner: Owner,
        source: &mut S,
        offered: &Offered,
        now: Now,
    ) -> Result<Accepted, Refusal> {
        let Offered { slot, attachment, tx_time, pushed_at, payload_octets, has_waited, .. } = *offered;
        let refuse = |reason| Refusal::Drop(reason, None);
        let policy = self.attachments.get_mut(attachment).ok_or(refuse(DropReason::Detached))?;
        count(&policy.stats.taken);
        if self.closing.is_removed(attachment) {
            return Err(refuse(DropReason::Detached));
        }
        if matches!(owner, Owner::Capture(_)) {
            policy.stats.capture_lag.record(now.monotonic.since(pushed_at));
        }
        if self.clock.refuses(tx_time) {
            return Err(refuse(DropReason::Unsynchronised));
        }
        let timed = Frame { tx_time: Some(tx_time), pushed_at, ..policy.frame(offered.is_deadline) };
        judge_time(&timed, now).map_err(|reason| refuse(cause_of(reason, has_waited)))?;
        // A captured frame has passed the pod's packet filter already. A client should have known.
        if matches!(owner, Owner::Client(_)) && offered.content.is_filtered(self.resolver.tables()) {
            return Err(Refusal::Bypass(BypassReason::RoutingRules));
        }
        // The route of a packet socket's frame depends on its headers, that of a datagram on its length only.
        let is_fetched = matches!(offered.content, FrameContent::Link(_));
        if is_fetched {
            source.fetch(slot, payload_octets);
        }
        let has_room = usize::from(payload_octets) <= source.slots().payload_octets_max();
        // Of a datagram, which is fetched below, the length alone is valid.
        let payload = source.slots().payload(slot, if has_room { payload_octets } else { 0 });
        let (outgoing, missing) = offered.content.outgoing_ahead(self.resolver, payload)?;
        if !has_room {
            return Err(refuse(DropReason::TooLong));
        }
        let (port, priority) = (outgoing.port(), outgoing.priority(offered.priority));
        let ((copies, skipped), (wire_octets, sdu_octets)) = (outgoing.copies(), outgoing.lengths(payload));
        let pair = outgoing.address_pair();
        let state = self.ports.at(port).ok_or(refuse(DropReason::LinkDown))?;
        let class = state.class_for(policy.classes, priority, missing, |policing| {
            let stream = offered.content.stream(self.resolver, payload, &policy.streams);
            policing.judge(stream, priority, sdu_octets, wire_octets, now)
        })?;
        if state.has_had_share(policy.queued()) {
            return Err(refuse(DropReason::QueueFull));
        }
        let id = frame_id(owner, slot);
        let frame =
            Frame { id, attachment: u32::from(attachment.0), class, wire_octets, sdu_octets, ..timed };
        state.selection.offer(frame, now).map_err(|refused| refuse(refused.reason))?;
        self.ports.activate(usize::from(port.0));
        policy.count_queued();
        if !is_fetched {
            source.fetch(slot, payload_octets);
        }
        // All copies of a datagram have one identification.
        let content = offered.content.identified(pair, self.ports.identifications());
        let stream = offered.stream.0 as u16; // below STREAMS_MAX
        let (deferred_count, to_kernel) = (0, ToKernel::No);
        let queued =
            Queued { content, port, payload_octets, copies, has_waited, deferred_count, to_kernel, stream };
        source.queue(slot, queued);
        Ok(Accepted { port: usize::from(port.0), skipped, missing })
    }
}

/// A frame that missed its time because its program had to wait for a slot is dropped as `waited`.
fn cause_of(reason: DropReason, has_waited: bool) -> DropReason {
    if reason == DropReason::Missed && has_waited { DropReason::Waited } else { reason }
}
