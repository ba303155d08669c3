// SPDX-License-Identifier: Apache-2.0
//! Frames that kernel capture took: the other way into the scheduler, beside clients' rings.
//!
//! In: a source of frames for each attachment that has capture on, with their transmit times. Out: the datagrams in them,
//! queued as if a client had sent them. The source holds whole frames as the pod's stack made them; only the flow and the
//! payload are kept, headers are built anew. A GSO packet becomes its datagrams one by one, so that taking over stays
//! bounded. Must never allocate, wait, or trust what a frame says: a pod's raw sockets can write anything.

mod source;

use std::ops::Range;

use ktsn_bpf::{Clock, Counted, FRAME_OCTETS_MAX, Taken};
use ktsn_model::{DropReason, Priority};
use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, Flow, PortIndex, Refusal};
use ktsn_sched::{Frame, FrameId, Strategy, admit};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

use super::command::{AttachmentPolicy, Returned};
use super::copies::{Copies, Waiting};
use super::intake::is_too_greedy;
use super::sending::Sending;
use super::{Environment, Worker, frame_id};
use crate::limits;
use crate::stats::{add, count};
use source::bypass_reason;
pub use source::{Ring, Source};

/// A datagram of the frame that was taken last.
#[derive(Clone, Copy, Debug)]
struct Piece {
    flow: Flow,
    tx_time: TxTime,
    captured_at: Monotonic,
    at: usize,
    octets: usize,
}

/// What is left of the frame that was taken last.
#[derive(Clone, Debug)]
struct Rest {
    flow: Flow,
    tx_time: TxTime,
    captured_at: Monotonic,
    payload: Range<usize>,
    /// So much goes into each datagram.
    segment_octets: usize,
}

#[derive(Clone, Copy, Debug)]
struct Queued {
    flow: Flow,
    port: PortIndex,
    payload_octets: u16,
    copies: Copies,
}

/// Why a datagram was not queued.
#[derive(Clone, Copy, Debug)]
enum Blocked {
    Route(Refusal),
    By(DropReason),
}

/// One attachment's captured frames.
#[derive(Debug)]
pub struct Captured {
    attachment: AttachmentIndex,
    source: Box<dyn Source>,
    /// Priority of datagrams whose DS field names none.
    priority: Priority,
    buffer: Box<[u8]>,
    rest: Option<Rest>,
    payloads: Box<[u8]>,
    payload_octets_max: usize,
    queued: Box<[Option<Queued>]>,
    free: Vec<u16>,
    counted: [u64; Counted::ALL.len()],
    /// Nothing new is taken; what is queued is still sent.
    is_closed: bool,
}

impl Captured {
    /// Room for `slots` datagrams of `payload_octets_max`. All that it will need is allocated here.
    #[must_use]
    pub fn new(
        attachment: AttachmentIndex,
        source: Box<dyn Source>,
        priority: Priority,
        slots: u16,
        payload_octets_max: usize,
    ) -> Self {
        Self {
            attachment,
            source,
            priority,
            buffer: vec![0; FRAME_OCTETS_MAX + 64].into_boxed_slice(),
            rest: None,
            payloads: vec![0; usize::from(slots) * payload_octets_max].into_boxed_slice(),
            payload_octets_max,
            queued: vec![None; usize::from(slots)].into_boxed_slice(),
            free: (0..slots).rev().collect(),
            counted: [0; Counted::ALL.len()],
            is_closed: false,
        }
    }

    fn is_waiting(&self) -> bool {
        !self.is_closed && (self.rest.is_some() || self.source.is_waiting())
    }

    fn queued_count(&self) -> usize {
        self.queued.len() - self.free.len()
    }

    /// The next datagram: of the frame at hand or, when that is used up, of the next one. A frame that cannot be read (the
    /// program would not have taken it: our own fault) is an error.
    fn next(&mut self) -> Option<Result<Piece, DropReason>> {
        if self.rest.is_none() {
            let taken = self.source.take(&mut self.buffer)?;
            self.rest = read(&self.buffer[..taken.octets], &taken, self.attachment);
        }
        let Some(rest) = &mut self.rest else { return Some(Err(DropReason::Bug)) };
        let (at, octets) = (rest.payload.start, rest.segment_octets.min(rest.payload.len()));
        let piece =
            Piece { flow: rest.flow, tx_time: rest.tx_time, captured_at: rest.captured_at, at, octets };
        rest.payload.start += octets;
        if rest.payload.is_empty() {
            self.rest = None;
        }
        Some(Ok(piece))
    }

    fn priority_of(&self, flow: &Flow) -> Priority {
        match flow.traffic_class >> 2 {
            0 => self.priority,
            // Class selector (RFC 2474 4.2.2): the upper three bits of the DS field.
            dscp => Priority::capped(u32::from(dscp >> 3)),
        }
    }

    /// The port that a slot is queued for, and which copy of it.
    pub(super) fn place(&mut self, slot: u16) -> Option<(&mut PortIndex, &mut Copies)> {
        let queued = self.queued.get_mut(usize::from(slot))?.as_mut()?;
        Some((&mut queued.port, &mut queued.copies))
    }

    fn payload(&self, slot: u16, octets: u16) -> &[u8] {
        let start = usize::from(slot) * self.payload_octets_max;
        &self.payloads[start..start + usize::from(octets)]
    }
}

/// The flow of a captured frame, and where its payload lies.
fn read(frame: &[u8], taken: &Taken, attachment: AttachmentIndex) -> Option<Rest> {
    let inner = ktsn_wire::dissect(frame, None).ok()?.inner;
    let payload = inner.datagram.payload();
    // `payload` is a part of `frame`, behind its headers.
    let start = taken.octets.checked_sub(payload.len())?;
    let tx_time = match taken.clock {
        Clock::Tai => TxTime::Tai(Tai::from_nanos(taken.tx_time)),
        Clock::Monotonic => TxTime::Monotonic(Monotonic::from_nanos(taken.tx_time)),
    };
    if inner.hop_limit == 0 || inner.datagram.destination_port() == 0 {
        return None;
    }
    Some(Rest {
        flow: Flow {
            attachment,
            bound: Some(inner.source),
            source_port: inner.datagram.source_port(),
            destination: inner.destination,
            destination_port: inner.datagram.destination_port(),
            scope: 0,
            traffic_class: inner.ds.0,
            hop_limit: inner.hop_limit,
        },
        tx_time,
        captured_at: Monotonic::from_nanos(taken.captured_at),
        payload: start..taken.octets,
        segment_octets: if taken.segment_octets == 0 { payload.len() } else { taken.segment_octets.into() },
    })
}

/// Captured frames are numbered behind all clients.
const FIRST: usize = limits::CLIENTS_MAX;

/// Which attachment a frame's number means, if it was captured.
pub(super) fn captured_index(index: usize) -> Option<usize> {
    index.checked_sub(FIRST)
}

/// A queued datagram: what is sent, the port it was queued for, and its payload.
pub(super) fn captured_frame(
    all: &[Option<Box<Captured>>],
    at: usize,
    slot: u16,
) -> Option<(Waiting, PortIndex, &[u8])> {
    let captured = all.get(at)?.as_ref()?;
    let queued = (*captured.queued.get(usize::from(slot))?)?;
    let waiting = Waiting { sending: Sending::Datagram(queued.flow), copies: queued.copies };
    Some((waiting, queued.port, captured.payload(slot, queued.payload_octets)))
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// The attachment's captured frames are taken from this source from now on.
    pub(super) fn add_captured(&mut self, new: Box<Captured>) {
        let at = usize::from(new.attachment.0);
        let served = self.attachments.get(at).is_some_and(Option::is_some);
        let is_new = self.captured.get(at).is_some_and(Option::is_none);
        let served = served && !self.closing.is_removed(new.attachment);
        let number = (FIRST + at) as u64;
        // An attachment that is gone has taken its program with it.
        if !served || !is_new || self.draining {
            return self.inbox.give(Returned::Boxed(new));
        }
        if self.env.watch(new.source.descriptor(), number).is_err() {
            self.inbox.give(Returned::CaptureRefused(new.attachment));
            return self.inbox.give(Returned::Boxed(new));
        }
        self.captured[at] = Some(new);
        self.captured_count += 1;
        self.captured_end = self.captured_end.max(at + 1);
    }

    /// Takes some of what was captured over, as far as there is time for it, or counts it with the reason for which it is not
    /// taken. How many more frames are taken of the at most `most`; `None`: it is empty or that many were taken, and closed.
    pub(super) fn empty_captured(&mut self, attachment: AttachmentIndex, most: usize) -> Option<usize> {
        let at = usize::from(attachment.0);
        if most > 0 && self.is_captured_waiting(at) {
            let Some(budget) = self.time_for_intake(self.captured_at) else { return Some(most) };
            let budget = budget.min(limits::INTAKE_QUANTUM).min(most);
            self.intake_captured(at, budget);
            return Some(most - budget);
        }
        if let Some(Some(captured)) = self.captured.get_mut(at) {
            count_captured(captured, &self.attachments);
            if !captured.is_closed {
                captured.is_closed = true;
                self.env.unwatch(captured.source.descriptor());
            }
            self.end_captured_if_over(at);
        }
        None
    }

    /// Hands the source back when it is closed and nothing of it is queued.
    fn end_captured_if_over(&mut self, at: usize) {
        let over = self.captured[at].as_ref().is_some_and(|c| c.is_closed && c.queued_count() == 0);
        if !over {
            return;
        }
        if let Some(captured) = self.captured[at].take() {
            self.captured_count -= 1;
            self.inbox.give(Returned::Boxed(captured));
        }
        while self.captured_end > 0 && self.captured[self.captured_end - 1].is_none() {
            self.captured_end -= 1;
        }
    }

    /// Whether the source number `at` has something to be taken over.
    pub(super) fn is_captured_waiting(&self, at: usize) -> bool {
        self.captured.get(at).and_then(Option::as_ref).is_some_and(|c| c.is_waiting())
    }

    /// Whether any has.
    pub(super) fn is_any_captured_waiting(&self) -> bool {
        (0..self.captured_end).any(|at| self.is_captured_waiting(at))
    }

    /// Takes over from every source in turn, by the same rules as from clients and at most so many datagrams in a pass.
    pub(super) fn intake_all_captured(&mut self) -> bool {
        let mut left = limits::INTAKE_A_PASS;
        for _ in 0..self.captured_end {
            if self.captured_turn >= self.captured_end {
                self.captured_turn = 0;
            }
            let at = self.captured_turn;
            if self.is_captured_waiting(at) && !self.is_attachment_to_wait(AttachmentIndex(at as u16)) {
                let Some(budget) = self.time_for_intake(self.captured_at) else { break };
                let budget = budget.min(limits::INTAKE_QUANTUM).min(left);
                self.intake_captured(at, budget);
                left -= budget;
            }
            self.captured_turn += 1;
            if left == 0 {
                break;
            }
        }
        left < limits::INTAKE_A_PASS
    }

    /// Takes over at most `budget` datagrams of one source.
    pub(super) fn intake_captured(&mut self, at: usize, budget: usize) {
        let mut now = None;
        for _ in 0..budget {
            let Some(Some(captured)) = self.captured.get_mut(at) else { return };
            if captured.is_closed {
                return;
            }
            let Some(piece) = captured.next() else { return };
            let now = *now.get_or_insert_with(|| self.env.now());
            self.captured_at = now.monotonic;
            let attachment = captured.attachment;
            match piece {
                Ok(piece) => self.take_over_captured(at, &piece, now),
                Err(reason) => {
                    count(&self.stats.bugs);
                    self.drop_captured(attachment, reason);
                }
            }
        }
    }

    fn take_over_captured(&mut self, at: usize, piece: &Piece, now: Now) {
        let Some(Some(captured)) = self.captured.get_mut(at) else { return };
        let attachment = captured.attachment;
        let asked = captured.priority_of(&piece.flow);
        let Some(slot) = captured.free.pop() else {
            return self.drop_captured(attachment, DropReason::QueueFull);
        };
        let offered = self.offer_captured(at, slot, asked, piece, now);
        let Some(Some(captured)) = self.captured.get_mut(at) else { return };
        match offered {
            Ok((port, copies)) => {
                let start = usize::from(slot) * captured.payload_octets_max;
                captured.payloads[start..start + piece.octets]
                    .copy_from_slice(&captured.buffer[piece.at..piece.at + piece.octets]);
                let payload_octets = piece.octets as u16; // no more than payload_max, which is a u16
                captured.queued[usize::from(slot)] =
                    Some(Queued { flow: piece.flow, port, payload_octets, copies });
            }
            Err(blocked) => {
                captured.free.push(slot);
                let reason = self.tell_blocked(attachment, blocked, piece.tx_time.ahead_of(now));
                self.drop_captured(attachment, reason);
            }
        }
    }

    /// Into the queue of the port that it leaves by.
    fn offer_captured(
        &mut self,
        at: usize,
        slot: u16,
        asked: Priority,
        piece: &Piece,
        now: Now,
    ) -> Result<(PortIndex, Copies), Blocked> {
        let attachment = piece.flow.attachment;
        let is_removed = self.closing.is_removed(attachment);
        let Some(Some(policy)) = self.attachments.get_mut(usize::from(attachment.0)) else {
            return Err(Blocked::By(DropReason::Detached));
        };
        count(&policy.stats.taken);
        if is_removed {
            return Err(Blocked::By(DropReason::Detached));
        }
        policy.stats.capture_lag.record(now.monotonic.since(piece.captured_at));
        if self.clock.refuses(piece.tx_time) {
            return Err(Blocked::By(DropReason::Unsynchronised));
        }
        let timed =
            Frame { tx_time: Some(piece.tx_time), pushed_at: piece.captured_at, ..policy.frame(false) };
        admit(&timed, now).map_err(Blocked::By)?;
        let room = self.captured[at].as_ref().map_or(0, |c| c.payload_octets_max);
        let found = self.routes.find_ahead(&self.tables, &piece.flow);
        let (way, wanted) = found.map_err(Blocked::Route)?;
        if piece.octets > usize::from(way.payload_max).min(room) {
            return Err(Blocked::By(DropReason::TooLong));
        }
        let (port, wire_octets) = (way.port, way.template.wire_octets(piece.octets));
        let sdu_octets = way.template.sdu_octets(piece.octets);
        let (copies, skipped) = (Copies::of(way.replica), way.skipped);
        let Some(Some(state)) = self.ports.get_mut(usize::from(port.0)) else {
            return Err(Blocked::By(DropReason::LinkDown));
        };
        let judged = state.admit(policy.classes, asked, wanted, |policing| {
            let stream = self.routes.stream(&self.tables, &piece.flow, &policy.streams);
            policing.judge(stream, asked, sdu_octets, wire_octets, now)
        });
        let class = judged.map_err(Blocked::Route)?;
        if is_too_greedy(policy.usage.queued, &*state.sched) {
            return Err(Blocked::By(DropReason::QueueFull));
        }
        let offered = Frame {
            id: frame_id(FIRST + at, slot),
            tenant: u32::from(attachment.0),
            class,
            wire_octets,
            sdu_octets,
            ..timed
        };
        state.sched.offer(offered, now).map_err(|refused| Blocked::By(refused.reason))?;
        self.busy.insert(usize::from(port.0));
        policy.usage.queued += 1;
        self.count_lost(u32::from(attachment.0), u64::from(skipped));
        self.want_neighbour(attachment, wanted);
        Ok((port, copies))
    }

    /// Passes news on; the drop's reason.
    fn tell_blocked(&mut self, attachment: AttachmentIndex, blocked: Blocked, ahead: Nanos) -> DropReason {
        match blocked {
            // The program's table may be older than ours.
            Blocked::Route(Refusal::Bypass(_)) => DropReason::NoRoute,
            Blocked::Route(Refusal::Drop(reason, wanted)) => {
                self.want_neighbour(attachment, wanted);
                reason
            }
            Blocked::By(DropReason::BeyondHorizon) => {
                self.tell_horizon(attachment, ahead);
                DropReason::BeyondHorizon
            }
            Blocked::By(reason) => reason,
        }
    }

    fn drop_captured(&mut self, attachment: AttachmentIndex, reason: DropReason) {
        if let Some(Some(policy)) = self.attachments.get(usize::from(attachment.0)) {
            policy.stats.drop_frame(reason);
        }
    }

    /// Ends a captured frame's life.
    pub(super) fn release_captured(&mut self, at: usize, id: FrameId) {
        let slot = id.0 as u16;
        let Some(Some(captured)) = self.captured.get_mut(at) else {
            return count(&self.stats.bugs);
        };
        let Some(queued) = captured.queued.get_mut(usize::from(slot)).and_then(Option::take) else {
            return count(&self.stats.bugs);
        };
        captured.free.push(slot); // its capacity is the count of all slots
        if let Some(Some(policy)) = self.attachments.get_mut(usize::from(queued.flow.attachment.0)) {
            policy.usage.queued = policy.usage.queued.saturating_sub(1);
        }
        self.end_captured_if_over(at);
    }

    /// Adds what the programs counted since the last look; a few at a time, so that many take no frame's time.
    pub(super) fn tend_captured(&mut self) {
        for _ in 0..self.captured_end.min(limits::CAPTURED_TENDED) {
            self.captured_tended = (self.captured_tended + 1) % self.captured_end;
            if let Some(captured) = &mut self.captured[self.captured_tended] {
                count_captured(captured, &self.attachments);
            }
        }
    }
}

fn count_captured(captured: &mut Captured, attachments: &[Option<Box<AttachmentPolicy>>]) {
    let Some(Some(policy)) = attachments.get(usize::from(captured.attachment.0)) else { return };
    if captured.is_closed {
        return;
    }
    let counted = captured.source.counters();
    for which in Counted::ALL {
        let grown = counted[which as usize].saturating_sub(captured.counted[which as usize]);
        if which == Counted::RingFull {
            add(&policy.stats.dropped[usize::from(DropReason::QueueFull.number())], grown);
        } else if let Some(reason) = bypass_reason(which) {
            add(&policy.stats.bypassed[usize::from(reason.number())], grown);
        }
    }
    captured.counted = counted;
}
