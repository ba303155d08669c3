// SPDX-License-Identifier: Apache-2.0
//! What a transmission selection algorithm does for the frames of a port (802.1Q-2022 table 8-6).
//!
//! ktsnd's worker uses `TimeAware` directly, not this trait: it also calls methods that only `TimeAware` has.
//! docs/guide/writing-a-strategy.md lists them.

use crate::frame::{Frame, FrameId};
use ktsn_model::DropReason;
use ktsn_time::{Nanos, Now, Tai, TxTime};

/// A span in which a gate is open (8.6.8.4), as far as it matters for one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// No hand-over before.
    pub opens_at: Tai,
    /// The latest instant of hand-over with which the frame still ends inside.
    pub latest: Tai,
}

/// What to do at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Hand this frame to the port now. It is no longer queued.
    Transmit {
        /// The frame.
        frame: Frame,
        /// How long it has been due: since its TxTime, or since its arrival if it was late or untimed.
        overrun: Nanos,
        /// Whether its TxTime had already passed when it was sent, and its policy keeps such frames.
        late: bool,
        /// The window of its class in which it was chosen; `None` where no gate limits it.
        window: Option<Window>,
    },
    /// Report this frame as dropped. It is no longer queued.
    Drop {
        /// The frame.
        frame: Frame,
        /// Why.
        reason: DropReason,
    },
    /// Nothing may leave before `at`, if nothing is offered or removed and no clock steps.
    WakeAt {
        /// The instant to decide again, on the clock that fixes it (the frame's own, or TAI for a gate).
        at: TxTime,
        /// The frame that will be chosen then, so that it can be made ready.
        next: FrameId,
    },
    /// Nothing is queued.
    Idle,
}

/// A frame that was not taken into the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("refused: {reason}")]
pub struct Refused {
    /// The frame, handed back.
    pub frame: Frame,
    /// `missed`, `invalid_time`, `beyond_horizon` or `queue_full`; other strategies may add theirs.
    pub reason: DropReason,
}

/// A transmission selection algorithm over the queues of one port.
///
/// The caller offers what arrived, then asks [`decide`](Self::decide) until it answers
/// [`WakeAt`](Decision::WakeAt) or [`Idle`](Decision::Idle), with a fresh `now` each time: the clock is the
/// caller's, and the last reading before a hand-over is what *never early* rests on. Every frame offered
/// comes out exactly once: refused, transmitted, dropped or removed.
///
/// No method allocates, and each is bounded by the count of queued frames, or by less where it says so.
pub trait Strategy {
    /// Queue a frame.
    ///
    /// # Errors
    /// [`Refused`] hands the frame back with the reason; nothing else has changed then.
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused>;

    /// Queue a frame that was the last one to be transmitted and did not leave: in front of those that it was chosen before.
    ///
    /// # Errors
    /// [`Refused`] hands the frame back with the reason; nothing else has changed then.
    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused>;

    /// What to do at `now`.
    fn decide(&mut self, now: Now) -> Decision;

    /// Take out every frame that `predicate` names (asked once per queued frame) and hand it to `out`, in no
    /// particular order. The order of those that stay does not change.
    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame));

    /// Take out at most `most` frames of attachment `tenant` and hand them to `out`, in no particular order, in O(most log n) for n queued
    /// frames; whether more of them may be left. So a caller removes an attachment in steps that it bounds itself.
    ///
    /// Where attachments share a place, as the strategy's options say, it may take out more at once.
    fn remove_tenant(&mut self, tenant: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool;

    /// How many frames are queued.
    fn len(&self) -> usize;

    /// How many frames can be queued.
    fn capacity(&self) -> usize;

    /// Whether nothing is queued.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a strategy answers when a queue took `frame`, or had no room.
pub(crate) fn queued(is_queued: bool, frame: Frame) -> Result<(), Refused> {
    if is_queued { Ok(()) } else { Err(Refused { frame, reason: DropReason::QueueFull }) }
}
