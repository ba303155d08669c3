// SPDX-License-Identifier: Apache-2.0
//! What transmission selection answers.

use crate::frame::{Frame, FrameId};
use ktsn_model::DropReason;
use ktsn_time::{Nanos, Tai, TxTime};

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
    /// `missed`, `invalid_time`, `beyond_horizon` or `queue_full`.
    pub reason: DropReason,
}

/// The answer when a queue took `frame`, or had no room.
pub(crate) fn queued(is_queued: bool, frame: Frame) -> Result<(), Refused> {
    if is_queued { Ok(()) } else { Err(Refused { frame, reason: DropReason::QueueFull }) }
}
