// SPDX-License-Identifier: Apache-2.0
//! What the intake needs from a source of frames: the ring of a client, or the frames that kernel capture took.
//!
//! In: a request for the next frame. Out: the frame with all that its program asked for, or why there is none. A source checks
//! what it reads; it decides nothing about attachments, routes or queues.

use ktsn_model::DropReason;
use ktsn_resolve::AttachmentIndex;
use ktsn_ring::LinkError;
use ktsn_time::{Monotonic, TxTime};

use super::content::FrameContent;
use super::slots::{Queued, Slots};
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
    Walked,
    /// The list of published slots is impossible.
    Broken(LinkError),
    /// There is nothing more to be taken now.
    Nothing,
}

/// How much work one intake from a source may do. Where slots are in no cache, following a link may take as long as taking a
/// frame does elsewhere. So the clock is read now and then.
#[derive(Debug)]
pub(super) struct Walk {
    links_left: usize,
    work: usize,
}

impl Walk {
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
    fn next(&mut self, walk: &mut Walk) -> Step;
    /// Copies the payload of the frame that was taken last to its slot's room.
    fn fetch(&mut self, slot: u16, octets: u16);
    /// The frame that was taken last is queued from now on. Its payload was fetched.
    fn queue(&mut self, slot: u16, queued: Queued);
}
