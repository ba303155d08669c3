// SPDX-License-Identifier: Apache-2.0
//! The frames that kernel capture took for one attachment: a source beside the clients' rings.
//!
//! In: a ring of whole frames as the pod's stack made them, with their transmit times. Out: the datagrams in them, as if a client
//! had sent them. Headers are built again, with the values that the pod's stack gave them. A GSO packet becomes its datagrams one by one,
//! so that taking over stays bounded. It must never allocate, wait, or trust a frame's content: a pod's raw sockets can write
//! anything.

use std::ops::Range;

use ktsn_bpf::{Clock, Counted, FRAME_OCTETS_MAX, Taken};
use ktsn_model::{DropReason, Priority};
use ktsn_resolve::{AttachmentIndex, Flow, Marks};
use ktsn_time::{Monotonic, Tai, TxTime};
use ktsn_wire::Ipv6Packet;
use ktsn_wire::ethernet::HEADER_OCTETS;
use rustix::fd::BorrowedFd;

use super::capture_ring::{CaptureRing, bypass_reason};
use super::content::FrameContent;
use super::source::{IntakeWork, Offered, Queued, Slots, Source, Step};
use crate::stats::{AttachmentStats, add};

/// The datagrams that are left of the frame that was taken last.
#[derive(Clone, Debug)]
struct Rest {
    flow: Flow,
    tx_time: TxTime,
    captured_at: Monotonic,
    payload: Range<usize>,
    /// The IPv4 identification of the next datagram.
    identification: u16,
    /// So many octets go into each datagram.
    segment_octets: usize,
}

/// One attachment's captured frames.
#[derive(Debug)]
pub struct Captured {
    attachment: AttachmentIndex,
    ring: Box<dyn CaptureRing>,
    /// Priority of datagrams whose DS field names none.
    priority: Priority,
    buffer: Box<[u8]>,
    rest: Option<Rest>,
    /// Where the payload of the datagram that was taken last begins in `buffer`.
    payload_at: usize,
    /// The slot of that datagram until it is queued or refused.
    offered: Option<u16>,
    pub(super) slots: Slots,
    free: Vec<u16>,
    /// The program's counters at the last look.
    counted: [u64; Counted::ALL.len()],
    /// Nothing new is taken; what is queued is still sent.
    is_closed: bool,
}

impl Captured {
    /// Room for `slots` datagrams of `payload_octets_max`. All that it will need is allocated here.
    #[must_use]
    pub fn new(
        attachment: AttachmentIndex,
        ring: Box<dyn CaptureRing>,
        priority: Priority,
        slots: u16,
        payload_octets_max: usize,
    ) -> Self {
        Self {
            attachment,
            ring,
            priority,
            buffer: vec![0; FRAME_OCTETS_MAX + 64].into_boxed_slice(),
            rest: None,
            payload_at: 0,
            offered: None,
            slots: Slots::new(usize::from(slots), payload_octets_max),
            free: (0..slots).rev().collect(),
            counted: [0; Counted::ALL.len()],
            is_closed: false,
        }
    }

    /// The attachment whose frames these are.
    pub(super) fn attachment(&self) -> AttachmentIndex {
        self.attachment
    }

    /// Can be read when a frame waits.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.ring.descriptor()
    }

    /// True when a frame waits to be taken.
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_closed && (self.rest.is_some() || self.ring.is_waiting())
    }

    /// True when nothing new is taken and nothing is queued.
    pub(super) fn is_over(&self) -> bool {
        self.is_closed && self.slots.queued_count() == 0
    }

    /// Nothing new is taken from now on; true the first time.
    pub(super) fn close(&mut self) -> bool {
        !std::mem::replace(&mut self.is_closed, true)
    }

    /// Adds what the program counted since the last look to its attachment.
    pub(super) fn count_program(&mut self, stats: &AttachmentStats) {
        if self.is_closed {
            return;
        }
        let counted = self.ring.counters();
        for which in Counted::ALL {
            let grown = counted[which as usize].saturating_sub(self.counted[which as usize]);
            if which == Counted::RingFull {
                add(&stats.dropped[usize::from(DropReason::QueueFull.number())], grown);
            } else if let Some(reason) = bypass_reason(which) {
                add(&stats.bypassed[usize::from(reason.number())], grown);
            }
        }
        self.counted = counted;
    }

    /// True when the slot has a datagram that can end: it is queued, or was just taken. A slot that is free is not released again.
    pub(super) fn is_taken(&self, slot: u16) -> bool {
        self.offered == Some(slot) || self.slots.get(slot).is_some()
    }

    /// A queued or refused datagram has ended; its entry, if it was queued.
    pub(super) fn end_frame(&mut self, slot: u16) -> Option<Queued> {
        let queued = self.slots.clear(slot);
        match queued {
            Some(_) => self.free.push(slot), // its capacity is the count of all slots
            None => self.offered = None,
        }
        queued
    }

    fn priority_of(&self, flow: &Flow) -> Priority {
        match flow.traffic_class >> 2 {
            0 => self.priority,
            // Class selector (RFC 2474 4.2.2): the upper three bits of the DS field.
            dscp => Priority::capped(u32::from(dscp >> 3)),
        }
    }
}

impl Source for Captured {
    fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The next datagram: of the frame at hand or, when that is used up, of the next one. A frame that cannot be read is our own
    /// fault: the program would not have taken it.
    fn next(&mut self, work: &mut IntakeWork) -> Step {
        if self.is_closed {
            return Step::Nothing;
        }
        let attachment = self.attachment;
        if self.rest.is_none() {
            let Some(taken) = self.ring.take(&mut self.buffer) else { return Step::Nothing };
            self.rest = read(&self.buffer[..taken.octets], &taken, attachment);
        }
        work.count_frame();
        let Some(rest) = &mut self.rest else {
            return Step::Refused { slot: None, attachment, reason: DropReason::Bug };
        };
        let Rest { flow, tx_time, captured_at, identification, .. } = *rest;
        let octets = rest.segment_octets.min(rest.payload.len());
        self.payload_at = rest.payload.start;
        rest.payload.start += octets;
        // As the kernel cuts up a GSO packet.
        rest.identification = identification.wrapping_add(1);
        if rest.payload.is_empty() {
            self.rest = None;
        }
        // It stays among the free ones until the datagram is queued.
        let Some(slot) = self.free.last().copied() else {
            return Step::Refused { slot: None, attachment, reason: DropReason::QueueFull };
        };
        self.offered = Some(slot);
        Step::Frame(Offered {
            slot,
            attachment,
            content: FrameContent::Datagram(flow, Some(identification)),
            stream: (0, 0),
            tx_time,
            pushed_at: captured_at,
            payload_octets: u16::try_from(octets).unwrap_or(u16::MAX),
            priority: self.priority_of(&flow).get(),
            is_deadline: false,
            has_waited: false,
            wants_report: false,
        })
    }

    fn fetch(&mut self, slot: u16, octets: u16) {
        let payload = &self.buffer[self.payload_at..self.payload_at + usize::from(octets)];
        self.slots.room(slot, octets).copy_from_slice(payload);
    }

    fn queue(&mut self, slot: u16, queued: Queued) {
        self.free.pop();
        self.offered = None;
        self.slots.fill(slot, queued);
    }
}

/// The flow of a captured frame, and the range of its payload.
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
    let (identification, marks) = read_marks(frame, inner.datagram.checksum());
    Some(Rest {
        flow: Flow {
            is_connected: false,
            uid: 0,
            attachment,
            bound: Some(inner.source),
            source_port: inner.datagram.source_port(),
            destination: inner.destination,
            destination_port: inner.datagram.destination_port(),
            scope: 0,
            traffic_class: inner.ds.0,
            hop_limit: inner.hop_limit,
            marks,
        },
        identification,
        tx_time,
        captured_at: Monotonic::from_nanos(taken.captured_at),
        payload: start..taken.octets,
        segment_octets: if taken.segment_octets == 0 { payload.len() } else { taken.segment_octets.into() },
    })
}

/// What the stack wrote into the network header, and whether the datagram has a UDP checksum. One that is still to be computed is
/// never 0 in the frame: it holds the sum of the pseudo header, which has a protocol number.
fn read_marks(frame: &[u8], udp_checksum: u16) -> (u16, Marks) {
    let packet = frame.get(HEADER_OCTETS..).unwrap_or_default();
    let mut marks = Marks { udp_checksum: udp_checksum != 0, ..Marks::default() };
    let mut identification = 0;
    match Ipv6Packet::new(packet) {
        Ok(packet) => marks.flow_label = packet.flow_label(),
        Err(_) => {
            if let Some(&[high, low, flags]) = packet.get(4..7) {
                (identification, marks.dont_fragment) = (u16::from_be_bytes([high, low]), flags & 0x40 != 0);
            }
        }
    }
    (identification, marks)
}
