// SPDX-License-Identifier: Apache-2.0
//! Whether a frame may be queued, and from when on it may leave. The same for every strategy.

use crate::frame::Frame;
use crate::strategy::Decision;
use ktsn_model::{DropReason, LatePolicy};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

/// What was found about a frame that may be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admission {
    /// From when on it may leave; never before its TxTime.
    pub due: TxTime,
    /// Whether its TxTime had passed when it was sent.
    pub late: bool,
    /// Whether it has a TxTime to overrun: neither late nor untimed.
    pub on_time: bool,
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
pub fn admit(frame: &Frame, now: Now) -> Result<Admission, DropReason> {
    // Unsigned and exact: `Nanos` would be held at ±292 years, and the values are a stranger's.
    let age = now.monotonic.as_nanos().saturating_sub(frame.pushed_at.as_nanos());
    // As old as it says, but no older than a frame on time may become: what a sender's word can gain it is bounded.
    let waited = age.min(frame.overrun_limit.get().max(0).unsigned_abs());
    let (tx_time, at, now_there, by_clock_drops) = match frame.tx_time {
        None => return Ok(untimed(now, waited)),
        Some(TxTime::Monotonic(Monotonic::ZERO)) => return Ok(untimed(now, waited)),
        Some(TxTime::Tai(Tai::ZERO)) => return Err(DropReason::InvalidTime),
        Some(tx_time @ TxTime::Monotonic(at)) => (tx_time, at.as_nanos(), now.monotonic.as_nanos(), false),
        Some(tx_time @ TxTime::Tai(at)) => (tx_time, at.as_nanos(), now.tai.as_nanos(), true),
    };
    if at < now_there.saturating_sub(age) {
        let dropped = match frame.late {
            LatePolicy::ByClock => by_clock_drops,
            LatePolicy::Drop | LatePolicy::Deadline => true,
            LatePolicy::Send => false,
        };
        if dropped {
            return Err(DropReason::Missed);
        }
        let due = on_its_clock(tx_time, now_there.saturating_sub(waited));
        return Ok(Admission { due, late: true, on_time: false });
    }
    if exceeds(at.saturating_sub(now_there), frame.horizon) {
        return Err(DropReason::BeyondHorizon);
    }
    if frame.late == LatePolicy::Deadline {
        return Ok(untimed(now, waited));
    }
    // One that is never dropped for its overrun is due no longer than the others may be.
    let is_old = frame.overrun_max().is_none() && at < now_there.saturating_sub(waited);
    let due = if is_old { on_its_clock(tx_time, now_there.saturating_sub(waited)) } else { tx_time };
    Ok(Admission { due, late: false, on_time: true })
}

/// The instant `at` on the clock of `like`.
fn on_its_clock(like: TxTime, at: u64) -> TxTime {
    match like {
        TxTime::Tai(_) => TxTime::Tai(Tai::from_nanos(at)),
        TxTime::Monotonic(_) => TxTime::Monotonic(Monotonic::from_nanos(at)),
    }
}

/// What becomes of a frame that is chosen at `now`, the same for every strategy: `Drop` as `overrun` if it is on time and has been due for
/// longer than [`Frame::overrun_max`], or if its deadline has passed; else `Transmit`.
#[must_use]
pub fn chosen(frame: Frame, admission: Admission, now: Now) -> Decision {
    let overdue = admission.overdue(now).unwrap_or(0);
    if (admission.on_time && is_overrun(&frame, overdue)) || is_past_deadline(&frame, now) {
        return Decision::Drop { frame, reason: DropReason::Overrun };
    }
    let overrun = Nanos::new(i64::try_from(overdue).unwrap_or(i64::MAX));
    Decision::Transmit { frame, overrun, late: admission.late, window: None }
}

impl Admission {
    /// Nanoseconds for which the frame has been due at `now`.
    ///
    /// # Errors
    /// The nanoseconds until it is due.
    pub fn overdue(&self, now: Now) -> Result<u64, u64> {
        let (due, there) = match self.due {
            TxTime::Tai(due) => (due.as_nanos(), now.tai.as_nanos()),
            TxTime::Monotonic(due) => (due.as_nanos(), now.monotonic.as_nanos()),
        };
        there.checked_sub(due).ok_or(due.saturating_sub(there))
    }
}

/// Whether `span` nanoseconds are more than `limit` (a negative limit counts as zero).
pub(crate) fn exceeds(span: u64, limit: Nanos) -> bool {
    span > limit.get().max(0).unsigned_abs()
}

/// Whether an on-time frame that has been due for `overdue` nanoseconds is dropped for it.
pub(crate) fn is_overrun(frame: &Frame, overdue: u64) -> bool {
    frame.overrun_max().is_some_and(|limit| exceeds(overdue, limit))
}

/// Whether the frame's TxTime is a deadline that has passed at `now`.
pub(crate) fn is_past_deadline(frame: &Frame, now: Now) -> bool {
    let is_past = |at: TxTime| at != TxTime::Monotonic(Monotonic::ZERO) && at.ahead_of(now).is_negative();
    frame.late == LatePolicy::Deadline && frame.tx_time.is_some_and(is_past)
}

fn untimed(now: Now, waited: u64) -> Admission {
    let sent_at = Monotonic::from_nanos(now.monotonic.as_nanos().saturating_sub(waited));
    Admission { due: TxTime::Monotonic(sent_at), late: false, on_time: false }
}
