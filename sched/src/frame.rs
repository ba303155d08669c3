// SPDX-License-Identifier: Apache-2.0
//! The properties of a frame that transmission selection needs.

use ktsn_model::{LatePolicy, TrafficClass};
use ktsn_time::{Monotonic, Nanos, TxTime};

/// The caller's name for a frame; never looked into here, and need not be unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameId(pub u64);

/// A frame as it is offered, and handed back unchanged with the decision about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The caller's name for it.
    pub id: FrameId,
    /// Index of the attachment it came from, for its turns and for removal when that goes away.
    pub attachment: u32,
    /// The queue it waits in (802.1Q 8.6.6).
    pub class: TrafficClass,
    /// The transmit time that the program asked for; the clock belongs to the value.
    pub tx_time: Option<TxTime>,
    /// When the program sent it, in the sender's own words.
    pub pushed_at: Monotonic,
    /// Octets on the wire, with everything that occupies the link.
    pub wire_octets: u32,
    /// Octets of its service data unit: what follows the MAC header and tag, without FCS (queueMaxSDU, 8.6.8.4).
    pub sdu_octets: u32,
    /// What happens if it was sent too late.
    pub late: LatePolicy,
    /// An on-time frame that is chosen later after its TxTime than this is dropped as `overrun` (negative
    /// counts as zero), where [`Self::overrun_max`] says so.
    pub overrun_limit: Nanos,
    /// The furthest that its TxTime may lie ahead when it is offered (negative counts as zero).
    pub horizon: Nanos,
}

impl Frame {
    /// A frame of no octets, of attachment 0 and the lowest class, without a TxTime.
    #[must_use]
    pub fn empty() -> Self {
        Self {
            id: FrameId(0),
            attachment: 0,
            class: TrafficClass::default(),
            tx_time: None,
            pushed_at: Monotonic::ZERO,
            wire_octets: 0,
            sdu_octets: 0,
            late: LatePolicy::default(),
            overrun_limit: Nanos::ZERO,
            horizon: Nanos::ZERO,
        }
    }

    /// How much later than its TxTime an on-time frame may leave; `None`: any time later. By fq's rule a frame on MONOTONIC
    /// is sent however late it is, unless the policy drops late ones.
    #[must_use]
    pub fn overrun_max(&self) -> Option<Nanos> {
        let is_sent = matches!(self.tx_time, Some(TxTime::Monotonic(_))) && self.late != LatePolicy::Drop;
        (!is_sent).then(|| self.overrun_limit.max(Nanos::ZERO))
    }

    /// The TxTime that it may not leave before: none without TxTime, and none where that is a deadline.
    #[must_use]
    pub fn not_before(&self) -> Option<TxTime> {
        if self.late == LatePolicy::Deadline { None } else { self.tx_time }
    }

    /// The TxTime that it may not leave after: where that is a deadline. Zero on MONOTONIC means "at once", as for fq, and is none.
    #[must_use]
    pub fn deadline(&self) -> Option<TxTime> {
        let is_deadline = self.late == LatePolicy::Deadline;
        self.tx_time.filter(|at| is_deadline && *at != TxTime::Monotonic(Monotonic::ZERO))
    }
}
