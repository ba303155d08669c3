// SPDX-License-Identifier: Apache-2.0
//! What transmission selection decides: of a frame that is offered whether it may be queued, and from when on it may leave; of an
//! instant what leaves then.

use crate::frame::{Frame, FrameId};
use ktsn_model::{DropReason, LatePolicy};
use ktsn_time::{Monotonic, Nanos, Now, Span, Tai, TxTime};

/// The result for a frame that may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// The instant from which on the frame may leave; never before its TxTime.
    pub due: TxTime,
    /// Whether its TxTime had passed when it was sent.
    pub late: bool,
    /// Whether it has a TxTime to overrun: neither late nor untimed.
    pub on_time: bool,
}

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
        /// How long it could have left, if it were alone: since its due instant, and since its gate is open for long enough. The due
        /// instant is its TxTime; if it is late or untimed, when it was sent.
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

/// Judge `frame`, offered at `now`; the rules are the module's (see the crate's first page).
///
/// etf refuses a TxTime before now, and fq sends one at once (0 means none there). The kernel judges inside
/// the program's own call; here the instant of that call is `pushed_at`, so that our own delay is never the
/// program's fault. 0 cannot be a TxTime on TAI under any policy.
///
/// # Errors
/// [`DropReason::InvalidTime`], [`DropReason::Missed`] (late, and the policy drops it) or
/// [`DropReason::BeyondHorizon`].
pub fn judge_time(frame: &Frame, now: Now) -> Result<Admission, DropReason> {
    let age = now.monotonic.span_since(frame.pushed_at);
    // The claimed age, but no older than a frame on time may become: a false claim gains a bounded span.
    let waited = age.min(Span::not_negative(frame.overrun_limit));
    let (tx_time, at, here, by_clock_drops) = match frame.tx_time {
        None | Some(TxTime::Monotonic(Monotonic::ZERO)) => return Ok(untimed(now, waited)),
        Some(TxTime::Tai(Tai::ZERO)) => return Err(DropReason::InvalidTime),
        Some(tx_time @ TxTime::Monotonic(at)) => (tx_time, at.as_nanos(), now.monotonic.as_nanos(), false),
        Some(tx_time @ TxTime::Tai(at)) => (tx_time, at.as_nanos(), now.tai.as_nanos(), true),
    };
    // When the sender sent it, on the TxTime's clock.
    let sent_at = || {
        let sent_at = here.saturating_sub(waited.as_nanos());
        match tx_time {
            TxTime::Tai(_) => TxTime::Tai(Tai::from_nanos(sent_at)),
            TxTime::Monotonic(_) => TxTime::Monotonic(Monotonic::from_nanos(sent_at)),
        }
    };
    if at < here.saturating_sub(age.as_nanos()) {
        let dropped = match frame.late {
            LatePolicy::ByClock => by_clock_drops,
            LatePolicy::Drop | LatePolicy::Deadline => true,
            LatePolicy::Send => false,
        };
        if dropped {
            return Err(DropReason::Missed);
        }
        return Ok(Admission { due: sent_at(), late: true, on_time: false });
    }
    if exceeds(Span::from_nanos(at.saturating_sub(here)), frame.horizon) {
        return Err(DropReason::BeyondHorizon);
    }
    if frame.late == LatePolicy::Deadline {
        return Ok(untimed(now, waited));
    }
    // One that is never dropped for its overrun is due no longer than the others may be.
    let is_old = frame.overrun_max().is_none() && at < here.saturating_sub(waited.as_nanos());
    let due = if is_old { sent_at() } else { tx_time };
    Ok(Admission { due, late: false, on_time: true })
}

/// Whether `span` is longer than `limit` (a negative limit counts as zero).
pub(crate) fn exceeds(span: Span, limit: Nanos) -> bool {
    span > Span::not_negative(limit)
}

/// Whether an on-time frame that has been due for `overdue` is dropped for it.
pub(crate) fn is_overrun(frame: &Frame, overdue: Span) -> bool {
    frame.overrun_max().is_some_and(|limit| exceeds(overdue, limit))
}

/// Whether the frame's TxTime is a deadline that has passed at `now`.
pub(crate) fn is_past_deadline(frame: &Frame, now: Now) -> bool {
    frame.deadline().is_some_and(|at| at.ahead_of(now).is_negative())
}

fn untimed(now: Now, waited: Span) -> Admission {
    Admission { due: TxTime::Monotonic(now.monotonic.before(waited)), late: false, on_time: false }
}

/// The answer when a queue took `frame`, or had no room.
pub(crate) fn queued(is_queued: bool, frame: Frame) -> Result<(), Refused> {
    if is_queued { Ok(()) } else { Err(Refused { frame, reason: DropReason::QueueFull }) }
}
