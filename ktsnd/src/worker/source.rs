// SPDX-License-Identifier: Apache-2.0
//! A source of frames: the ring of a client, or the frames that kernel capture took. It has a slot for each of its frames.
//!
//! In: a request for the next frame. Out: the frame with all that its program asked for, or why there is none; while the frame is
//! queued, its entry and private room for its payload. A source checks what it reads; it decides nothing about attachments, routes
//! or queues. All memory is allocated when the source is made.

use ktsn_model::DropReason;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::LinkError;
use ktsn_time::{Monotonic, TxTime};

use super::content::{Copies, FrameContent};
use crate::limits;

/// A frame that was just taken: what its program asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offered {
    pub slot: u16,
    pub attachment: AttachmentIndex,
    pub content: FrameContent,
    /// The index and token of the frame's stream in its client's region; zeros for a captured frame.
    pub stream: (u32, u32),
    pub tx_time: TxTime,
    /// When the program pushed it, or when the kernel captured it.
    pub pushed_at: Monotonic,
    pub payload_octets: u16,
    /// The priority of the program's socket.
    pub priority: u8,
    /// The transmit time is a deadline.
    pub is_deadline: bool,
    /// The program waited for a slot.
    pub has_waited: bool,
    /// The program wants a report or a timestamp.
    pub wants_report: bool,
}

/// One step of taking frames from a source.
#[derive(Debug)]
pub(super) enum Step {
    /// A frame.
    Frame(Offered),
    /// A frame that cannot be read, or has no slot: it is dropped.
    Refused { slot: Option<u16>, attachment: AttachmentIndex, reason: DropReason },
    /// Some links of a list were followed; frames may come next.
    Followed,
    /// The list of published slots is impossible.
    Broken(LinkError),
    /// There is nothing more to be taken now.
    Nothing,
}

/// How much work one intake from a source may do. Where slots are in no cache, following a link may take as long as taking a
/// frame does elsewhere. So the clock is read now and then.
#[derive(Debug)]
pub(super) struct IntakeWork {
    links_left: usize,
    work: usize,
}

impl IntakeWork {
    /// The work of an intake of at most `budget` frames.
    pub(super) fn new(budget: usize) -> Self {
        Self { links_left: 2 * budget, work: 0 }
    }

    /// True when the clock must be read before the next step.
    #[inline]
    pub(super) fn is_look_due(&mut self) -> bool {
        let is_due = self.work >= limits::WORK_A_LOOK;
        if is_due {
            self.work = 0;
        }
        is_due
    }

    /// Counts a frame that was taken.
    pub(super) fn count_frame(&mut self) {
        self.work += limits::WORK_OF_A_FRAME;
    }

    /// How many links may be followed before the clock is read again; `None`: the list goes on in the next pass.
    #[inline]
    pub(super) fn links(&mut self) -> Option<usize> {
        let some = self.links_left.min(limits::WORK_A_LOOK);
        (self.links_left, self.work) = (self.links_left - some, self.work + some);
        (some > 0).then_some(some)
    }
}

/// A source of frames.
pub(super) trait Source {
    /// Its slots.
    fn slots(&self) -> &Slots;
    /// Takes the next frame.
    fn next(&mut self, work: &mut IntakeWork) -> Step;
    /// Copies the payload of the frame that was taken last to its slot's room.
    fn fetch(&mut self, slot: u16, octets: u16);
    /// The frame that was taken last is queued from now on. Its payload was fetched.
    fn queue(&mut self, slot: u16, queued: Queued);
}

/// A queued frame: everything that is needed to send it, whatever happens to its stream or its capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub content: FrameContent,
    /// The port that has it in its queue.
    pub port: PortIndex,
    pub payload_octets: u16,
    pub copies: Copies,
    /// Its program waited for a slot.
    pub has_waited: bool,
    /// How often it has waited longer than until its time for the kernel's answer about its route.
    pub deferred_count: u8,
    /// How far it is on its way to the kernel.
    pub to_kernel: ToKernel,
    /// The index of its stream in its client's region; 0 for a captured frame.
    pub stream: u16,
}

/// How far a queued frame is on its way to the kernel. It waits in its queue all the same, and ends there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ToKernel {
    /// It is not the kernel's.
    #[default]
    No,
    /// Its slot is still to be read.
    Unread,
    /// Its slot was read.
    Read,
}

/// The slots of one client or of one capture.
#[derive(Debug)]
pub(super) struct Slots {
    queued: Box<[Option<Queued>]>,
    queued_count: usize,
    payloads: Box<[u8]>,
    payload_octets_max: usize,
}

impl Slots {
    /// `count` empty slots with room for `payload_octets_max` octets each.
    pub(super) fn new(count: usize, payload_octets_max: usize) -> Self {
        Self {
            queued: vec![None; count].into_boxed_slice(),
            queued_count: 0,
            payloads: vec![0; count * payload_octets_max].into_boxed_slice(),
            payload_octets_max,
        }
    }

    /// How many frames are queued.
    pub(super) fn queued_count(&self) -> usize {
        self.queued_count
    }

    /// The longest payload of a slot, in octets.
    pub(super) fn payload_octets_max(&self) -> usize {
        self.payload_octets_max
    }

    /// The entry of the slot's frame, if it is queued.
    pub(super) fn get(&self, slot: u16) -> Option<&Queued> {
        self.queued.get(usize::from(slot))?.as_ref()
    }

    /// The entry of the slot's frame, if it is queued, to be changed.
    pub(super) fn get_mut(&mut self, slot: u16) -> Option<&mut Queued> {
        self.queued.get_mut(usize::from(slot))?.as_mut()
    }

    /// The first octets of the slot's payload; `octets` is at most [`Self::payload_octets_max`].
    #[inline]
    pub(super) fn payload(&self, slot: u16, octets: u16) -> &[u8] {
        let start = usize::from(slot) * self.payload_octets_max;
        &self.payloads[start..start + usize::from(octets)]
    }

    /// Room for a payload of the slot; `octets` is at most [`Self::payload_octets_max`].
    #[inline]
    pub(super) fn room(&mut self, slot: u16, octets: u16) -> &mut [u8] {
        let start = usize::from(slot) * self.payload_octets_max;
        &mut self.payloads[start..start + usize::from(octets)]
    }

    /// The slot's frame is queued from now on.
    #[inline]
    pub(super) fn fill(&mut self, slot: u16, queued: Queued) {
        self.queued_count += 1;
        self.queued[usize::from(slot)] = Some(queued);
    }

    /// The slot's frame is not queued any more; the entry that it had, if any.
    #[inline]
    pub(super) fn clear(&mut self, slot: u16) -> Option<Queued> {
        let queued = self.queued.get_mut(usize::from(slot))?.take();
        self.queued_count -= usize::from(queued.is_some());
        queued
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ktsn_resolve::{AttachmentIndex, Flow, Marks};

    use super::*;

    #[test]
    fn a_slot_keeps_its_entry_and_its_payload_until_it_is_cleared() {
        let flow = Flow {
            is_connected: false,
            uid: 0,
            attachment: AttachmentIndex(0),
            bound: None,
            source_port: 1,
            destination: Ipv4Addr::LOCALHOST.into(),
            destination_port: 2,
            scope: 0,
            traffic_class: 0,
            hop_limit: 0,
            marks: Marks::default(),
        };
        let (content, copies) = (FrameContent::Datagram(flow, None), Copies::default());
        let mut slots = Slots::new(3, 8);
        for slot in [0, 2] {
            slots.room(slot, 3).fill(slot as u8 + 1);
            slots.fill(
                slot,
                Queued {
                    content,
                    port: PortIndex(4),
                    payload_octets: 3,
                    copies,
                    has_waited: false,
                    deferred_count: 0,
                    to_kernel: ToKernel::No,
                    stream: 0,
                },
            );
        }
        assert_eq!(
            (slots.queued_count(), slots.payload(0, 3), slots.payload(2, 3)),
            (2, &[1; 3][..], &[3; 3][..])
        );
        assert!(slots.get(1).is_none() && slots.get(9).is_none());
        assert!(slots.clear(0).is_some_and(|queued| queued.port == PortIndex(4)));
        assert!(slots.clear(0).is_none() && slots.get(2).is_some());
        assert_eq!(slots.queued_count(), 1);
    }
}
