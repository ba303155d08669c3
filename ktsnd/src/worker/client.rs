// SPDX-License-Identifier: Apache-2.0
//! One process: its region, its streams, and private copies of what it has queued.
//!
//! In: frames in the region's ring, doorbells, registrations. Out: frames with all that their program asked for; promises in the
//! region. It must never trust the region: every number is checked by the ring's consumer, and the payload is copied.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ktsn_model::{BypassReason, DropReason};
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::completion::Completion;
use ktsn_ring::{ClockId, Consumer, RegionState, SlotError, StreamStatus, Taken};
use ktsn_time::{Monotonic, Nanos, Tai, TxTime};
use rustix::net::{RecvFlags, recv};

use super::attention::{Attention, Polled, Polls, Promises};
use super::content::FrameContent;
use super::expectations::{self, Mark};
use super::registrations::{Registrations, StreamInfo};
use super::requested_reports::RequestedReports;
use super::source::{IntakeWork, Offered, Queued, Slots, Source, Step, ToKernel};
use crate::limits::{DOORBELLS_A_PASS, NOTICES_A_SECOND, STREAMS_MAX};
use crate::now::{monotonic_now, tai_now};
use crate::stats::{AttachmentStats, add_claimed};

/// The tables in a client's region that the worker writes and the client reads: where the client may send.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientTables {
    /// Interfaces of the namespace's other attachments.
    pub others: Vec<u32>,
    /// Prefixes for datagrams, longest first, and MAC addresses for packet sockets.
    pub table: Vec<ktsn_ring::Destination>,
    /// The interface, for packet sockets.
    pub link: ktsn_ring::LinkFacts,
    /// The interface's IPv4 address where it has one only, else zeros.
    pub sole_v4: [u8; 4],
}

/// Names one client for as long as the daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientKey(pub u64);

/// One process at one attachment.
#[derive(Debug)]
pub struct Client {
    /// Its name.
    pub key: ClientKey,
    /// The attachment of its first socket: what its limits and counters belong to.
    pub attachment: AttachmentIndex,
    consumer: Consumer,
    doorbell: OwnedFd,
    registrations: Registrations,
    pub(super) slots: Slots,
    /// What is expected of each stream.
    marks: Box<[Mark]>,
    /// The reports that the program asked for, by slot.
    requested: Box<[RequestedReports]>,
    /// Index of the pod's interface, for reports; 0 = unknown.
    pub(super) interface: u32,
    life: Life,
    /// Its ring was given up as its links were impossible; the node knows.
    pub(super) is_retired: bool,
    /// Notices of the second that began at `notices_since`.
    notices: u32,
    notices_since: Monotonic,
    /// Since when its doorbell is not listened to; `None`: it is.
    pub(super) muted_at: Option<Monotonic>,
    attention: Attention,
    /// Slots with frames that are the kernel's and have not been read yet.
    pub(super) passed_count: usize,
    /// The client's own counters at the last look.
    counters_seen: [u64; 32],
}

/// How far a client is on its way out.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    /// Its ring is emptied, then closed: how many lists of published slots had begun when that was decided.
    closing: Option<u64>,
    /// Its process is gone; it ends when its ring is closed.
    ends: bool,
    /// The region is not read any more: its links were impossible and all that they reached is taken, its attachment is gone, or
    /// its process is.
    is_closed: bool,
    /// The process is gone, and the ring is closed. The client is handed back when no frame of it is queued.
    is_ended: bool,
}

impl Client {
    /// A client whose region was just made.
    ///
    /// `slots` and `payload_octets_max` are those of the region's layout.
    #[must_use]
    pub fn new(
        key: ClientKey,
        attachment: AttachmentIndex,
        consumer: Consumer,
        doorbell: OwnedFd,
        slots: usize,
        payload_octets_max: usize,
    ) -> Self {
        Self {
            key,
            attachment,
            consumer,
            doorbell,
            registrations: Registrations::new(),
            slots: Slots::new(slots, payload_octets_max),
            marks: expectations::marks(),
            requested: vec![RequestedReports::default(); slots].into_boxed_slice(),
            interface: 0,
            life: Life::default(),
            is_retired: false,
            notices: 0,
            notices_since: Monotonic::ZERO,
            muted_at: None,
            attention: Attention::default(),
            passed_count: 0,
            counters_seen: [0; 32],
        }
    }

    /// Octets of private memory that a client with so many slots has at most in its worker, whatever number of streams it has. The
    /// last term of a slot is what the ring's consumer remembers of it.
    #[must_use]
    pub const fn private_octets(slots: usize, payload_octets_max: usize) -> usize {
        let of_slot = payload_octets_max + size_of::<Option<Queued>>() + size_of::<RequestedReports>() + 64;
        let of_streams = STREAMS_MAX as usize * (size_of::<StreamStatus>() + size_of::<Mark>());
        size_of::<Self>() + slots * of_slot + of_streams + Registrations::OCTETS
    }

    /// Seals the region against holes and makes its pages present. From then on no access to it waits for the program;
    /// before, no worker may have the client. Sealing itself may wait for the program.
    ///
    /// # Errors
    /// Those of [`Consumer::seal`].
    pub fn seal(&mut self, memfd: &OwnedFd) -> Result<(), ktsn_ring::RegionError> {
        self.promise_to_begin();
        self.consumer.seal(memfd)
    }

    /// Promises that the worker polls the ring soon: a program that waits for the answer to its first registration does not
    /// take the daemon for dead.
    pub fn promise_to_begin(&self) {
        let soon = Nanos::from_seconds(1);
        let (monotonic, tai) = (monotonic_now().saturating_add(soon), tai_now().saturating_add(soon));
        self.consumer.promise_poll_by(monotonic.as_nanos(), tai.as_nanos());
    }

    /// The index of the pod's interface, which reports name.
    #[must_use]
    pub fn on_interface(mut self, interface: u32) -> Self {
        self.interface = interface;
        self
    }

    /// The stream of this index, if it is registered.
    pub(super) fn stream(&self, index: u32) -> Option<&StreamInfo> {
        self.registrations.get(index)
    }

    /// The socket is the stream `index` from now on. False: the index is impossible, though the registrar checked it.
    pub(super) fn register(&mut self, index: u32, info: &StreamInfo) -> bool {
        self.registrations.set(index, Some(info.clone()), self.consumer.published());
        self.consumer.set_stream(index, info.status).is_ok()
    }

    /// The stream `index` is closed, or cannot be served: then `status` is the answer.
    pub(super) fn unregister(&mut self, index: u32, status: Option<StreamStatus>) {
        self.registrations.set(index, None, self.consumer.published());
        // The registrar checked the index.
        let _ = match status {
            Some(status) => self.consumer.set_stream(index, status),
            None => self.consumer.clear_stream(index),
        };
    }

    /// Writes the tables into the region. False: the table of destinations is impossible.
    pub(super) fn set_client_tables(&mut self, client_tables: &ClientTables) -> bool {
        self.consumer.set_others(&client_tables.others);
        self.consumer.set_link(&client_tables.link);
        self.consumer.set_sole_v4(client_tables.sole_v4);
        self.consumer.set_destinations(&client_tables.table).is_ok()
    }

    /// The region's state, for the program to see.
    pub(super) fn set_state(&self, state: RegionState) {
        self.consumer.set_state(state);
    }

    /// The metadata of a frame that was taken, checked against the stream that it names.
    #[inline]
    fn offered(&mut self, taken: &Taken) -> Result<Offered, AttachmentIndex> {
        let (slot, frame) = (taken.slot, &taken.frame);
        let stream = self.registrations.at_push(frame.stream_index, frame.token).ok_or(self.attachment)?;
        let attachment = stream.attachment;
        let content = FrameContent::from_slot(stream, frame).ok_or(attachment)?;
        let requested = RequestedReports::from_slot(taken, stream.cookie, content);
        let tx_time = match taken.clock {
            ClockId::Tai => TxTime::Tai(Tai::from_nanos(frame.tx_time)),
            ClockId::Monotonic => TxTime::Monotonic(Monotonic::from_nanos(frame.tx_time)),
        };
        let offered = Offered {
            slot,
            attachment,
            content,
            stream: (frame.stream_index, frame.token),
            tx_time,
            pushed_at: Monotonic::from_nanos(frame.pushed_at),
            payload_octets: taken.payload_octets as u16, // it fits into a slot
            priority: frame.priority,
            is_deadline: stream.is_deadline,
            has_waited: frame.has_waited,
            wants_report: requested.is_some(),
        };
        if let Some(requested) = requested
            && let Some(place) = self.requested.get_mut(usize::from(slot))
        {
            *place = requested;
        }
        Ok(offered)
    }

    /// Notes the instant at which the slot's frame was taken over, for a report (`CLOCK_REALTIME`, ns).
    #[inline]
    pub(super) fn set_scheduled_at(&mut self, slot: u16, realtime: u64) {
        if let Some(requested) = self.requested.get_mut(usize::from(slot)) {
            requested.scheduled_at = realtime;
        }
    }

    /// Takes the reports that the program requested for the slot's frame. `None`: it requested none.
    #[inline]
    pub(super) fn take_requested_reports(&mut self, slot: u16) -> Option<RequestedReports> {
        let requested = self.requested.get_mut(usize::from(slot)).filter(|requested| requested.is_any())?;
        Some(std::mem::take(requested))
    }

    /// True when the slot's frame asked for the instant of its hand-over.
    pub(super) fn wants_stamp(&self, slot: u16) -> bool {
        self.requested.get(usize::from(slot)).is_some_and(RequestedReports::wants_stamp)
    }

    /// True when the program has room for one more completion.
    pub(super) fn has_room_for_completion(&mut self) -> bool {
        self.consumer.has_room_to_tell()
    }

    /// Writes a completion into the slot, which belongs to the program from now on; its number. `None`: there is no room.
    pub(super) fn complete(&mut self, slot: u16, completion: &Completion) -> Option<u32> {
        self.consumer.complete(slot, completion)
    }

    /// Counts a notice; false when the client has had its share of this second.
    pub(super) fn count_notice(&mut self, now: Monotonic) -> bool {
        if now.since(self.notices_since) >= Nanos::from_seconds(1) {
            (self.notices_since, self.notices) = (now, 0);
        }
        self.notices = self.notices.saturating_add(1);
        self.notices <= NOTICES_A_SECOND
    }

    /// A queued or refused frame has ended; its entry, if it was queued. The slot goes back to the ring, unless it holds a
    /// completion for the program.
    #[inline]
    pub(super) fn end_frame(&mut self, slot: u16, is_reported: bool) -> Option<Queued> {
        let queued = self.slots.clear(slot);
        // A slot that is still to be read is released then.
        if !is_reported && queued.is_none_or(|queued| queued.to_kernel != ToKernel::Unread) {
            self.consumer.release(slot);
        }
        queued
    }

    /// The slot's datagram was read.
    pub(super) fn release_passed(&mut self, slot: u16) {
        let Some(count) = self.passed_count.checked_sub(1) else { return };
        self.passed_count = count;
        match self.slots.get_mut(slot) {
            Some(queued) => queued.to_kernel = ToKernel::Read,
            None => self.consumer.release(slot),
        }
    }

    /// Adds what the client counted since the last look to its attachment. A client can write any numbers.
    pub(super) fn count_claims(&mut self, stats: &AttachmentStats) {
        let counters = self.consumer.counters();
        let grown = |i: usize| counters[i].saturating_sub(self.counters_seen[i]);
        for reason in BypassReason::ALL {
            let number = usize::from(reason.number());
            add_claimed(&stats.bypassed[number], grown(number));
        }
        let absent = grown(ktsn_ring::counter::DAEMON_ABSENT);
        add_claimed(&stats.dropped[usize::from(DropReason::DaemonAbsent.number())], absent);
        add_claimed(&stats.ring_full, grown(ktsn_ring::counter::RING_FULL));
        self.counters_seen = counters;
    }
}

/// The client's way out.
impl Client {
    /// Begins to empty the ring, to be closed then. `ends`: the process is gone. False when there is nothing to be emptied: the ring
    /// is closed, or it is being emptied already.
    pub(super) fn begin_close(&mut self, ends: bool) -> bool {
        self.life.ends |= ends;
        if self.life.is_closed {
            self.life.is_ended |= ends;
            return false;
        }
        let begins = self.life.closing.is_none();
        if begins {
            self.life.closing = Some(self.registrations.lists_begun());
        }
        begins
    }

    /// True when all that was published when closing began has been taken.
    pub(super) fn is_emptied(&self) -> bool {
        self.life.closing.is_some_and(|lists_begun| self.is_taken_since(lists_begun))
    }

    /// The region is not read any more.
    pub(super) fn close(&mut self) {
        (self.life.is_closed, self.life.is_ended) = (true, self.life.ends);
    }

    /// All that was published at some instant has been taken: nothing is in hand or published, or one whole list that was
    /// begun after the first `lists_begun` ones has been.
    pub(super) fn is_taken_since(&self, lists_begun: u64) -> bool {
        let is_through = !self.consumer.is_busy()
            && (self.registrations.lists_begun() > lists_begun || !self.consumer.published());
        self.life.is_closed || self.consumer.broken().is_some() && !self.consumer.published() || is_through
    }

    /// How many lists of published slots were begun.
    pub(super) fn lists_begun(&self) -> u64 {
        self.registrations.lists_begun()
    }

    /// True when the region is not read any more.
    pub(super) fn is_closed(&self) -> bool {
        self.life.is_closed
    }

    /// True when the process is gone and the ring is closed.
    pub(super) fn has_ended(&self) -> bool {
        self.life.is_ended
    }

    /// True when the client has ended and no slot of it is in use.
    pub(super) fn is_over(&self) -> bool {
        self.life.is_ended && self.slots.queued_count() == 0 && self.passed_count == 0
    }
}

/// Promises to poll the ring, and its doorbell.
impl Client {
    /// True when there is a frame to be taken.
    pub(super) fn is_waiting(&self) -> bool {
        !self.life.is_closed && self.consumer.published()
    }

    /// True when the ring is to be polled with those of other clients: it is neither closed nor being emptied.
    pub(super) fn is_open(&self) -> bool {
        !self.life.is_closed && self.life.closing.is_none()
    }

    /// The promises to poll the ring, with the words in the region that the program reads.
    pub(super) fn attention(&mut self) -> Promises<'_> {
        Promises { attention: &mut self.attention, consumer: &self.consumer }
    }

    /// Before a sleep: promises to poll the ring after it, or, where the client is quiet, never.
    pub(super) fn promise_sleep(&mut self, polls: &Polls, now: Monotonic, is_forced: bool) {
        // A muted client's ring is polled by itself.
        let is_muted = self.muted_at.is_some();
        self.attention().promise_sleep(polls, now, is_muted, is_forced);
    }

    /// What is expected of the stream `index`, and whether the client is promised to be polled for it.
    #[inline]
    pub(super) fn expected(&mut self, index: u32) -> (Option<&mut Mark>, &mut Attention) {
        (self.marks.get_mut(index as usize), &mut self.attention)
    }

    /// What is expected of all its streams.
    pub(super) fn marks_mut(&mut self) -> &mut [Mark] {
        &mut self.marks
    }

    /// Polls the ring after the promises of [`Self::promise_sleep`] and a fence.
    pub(super) fn poll_before_sleep(&mut self) -> Polled {
        if self.life.is_closed { Polled::Inactive } else { self.attention().poll() }
    }

    /// The descriptor of the doorbell.
    pub(super) fn doorbell(&self) -> BorrowedFd<'_> {
        self.doorbell.as_fd()
    }

    /// Reads some messages of the doorbell: how many, and whether every copy of the client's end is closed.
    pub(super) fn read_doorbell(&self) -> (u32, bool) {
        let (mut rung, mut byte) = (0, [0u8; 1]);
        for _ in 0..DOORBELLS_A_PASS {
            match recv(&self.doorbell, &mut byte, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return (rung, true),
                Ok(_) => rung += 1,
                Err(_) => break,
            }
        }
        (rung, false)
    }

    /// The doorbell is not listened to from now on. False: it is not anyway.
    pub(super) fn mute(&mut self, now: Monotonic) -> bool {
        let is_new = self.muted_at.is_none();
        if is_new {
            self.muted_at = Some(now);
        }
        is_new
    }

    /// The doorbell is listened to again if it was muted for a second; true when it is so from now on.
    pub(super) fn unmute(&mut self, now: Monotonic) -> bool {
        let is_over = self.muted_at.is_some_and(|at| now.since(at) >= Nanos::from_seconds(1));
        if is_over {
            self.muted_at = None;
        }
        is_over
    }
}

impl Source for Client {
    fn slots(&self) -> &Slots {
        &self.slots
    }

    #[inline]
    fn next(&mut self, work: &mut IntakeWork) -> Step {
        if self.life.is_closed {
            return Step::Nothing;
        }
        let registrations = &self.registrations;
        let taken = self.consumer.take_metadata(|index, token| registrations.earlier(index, token).is_some());
        let (slot, attachment) = match taken {
            Some(Ok(taken)) => {
                work.count_frame();
                match self.offered(&taken) {
                    Ok(offered) => return Step::Frame(offered),
                    Err(attachment) => (taken.slot, attachment),
                }
            }
            Some(Err(SlotError { slot, .. })) => {
                work.count_frame();
                (slot, self.attachment)
            }
            None => return self.follow_links(work),
        };
        Step::Refused { slot: Some(slot), attachment, reason: DropReason::PeerCorrupt }
    }

    fn fetch(&mut self, slot: u16, octets: u16) {
        self.consumer.read_payload(slot, self.slots.room(slot, octets));
    }

    fn queue(&mut self, slot: u16, queued: Queued) {
        self.slots.fill(slot, queued);
    }
}

impl Client {
    /// The list in hand is at its end: follows some links of a new one.
    fn follow_links(&mut self, work: &mut IntakeWork) -> Step {
        if !self.consumer.published() {
            // What a broken list had reached is taken by now.
            self.life.is_closed = self.consumer.broken().is_some();
            return Step::Nothing;
        }
        if self.life.closing.is_some_and(|lists_begun| self.is_taken_since(lists_begun)) {
            return Step::Nothing;
        }
        let Some(links) = work.links() else { return Step::Nothing };
        if !self.consumer.is_busy() {
            self.registrations.begin_list();
        }
        match self.consumer.collect(links) {
            Ok(_) => Step::Followed,
            Err(error) => Step::Broken(error),
        }
    }
}
