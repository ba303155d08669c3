// SPDX-License-Identifier: Apache-2.0
//! What a port's time-aware transmission selection is made from.

use ktsn_model::TrafficClass;
use ktsn_time::Nanos;

/// The order of frames within a class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Of an attachment's frames the one that has been due longest leaves first; one that is not due yet holds up nothing.
    #[default]
    TxTime,
    /// Of an attachment's frames the one that arrived first leaves first; while it is not due, nothing of that attachment leaves in this class.
    Fifo,
}

/// The transmission selection algorithm of one class (802.1Q-2022 table 8-6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Shaper {
    /// Clause 8.6.8.1.
    #[default]
    StrictPriority,
    /// Clause 8.6.8.2: a frame leaves while credit is not negative.
    CreditBased {
        /// `idleSlope` in bit/s: what is gained while frames wait and the gate is open.
        idle_slope: u64,
    },
}

/// One class of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ClassOptions {
    /// The order of its frames.
    pub order: Order,
    /// queueMaxSDU (8.6.8.4) in octets: longer service data units are refused as `too_long`. `None`: no limit.
    pub queue_max_sdu: Option<u32>,
    /// Its transmission selection algorithm.
    pub shaper: Shaper,
}

/// What [`TimeAware`](crate::TimeAware) is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeAwareOptions {
    /// How many frames may be queued (at most 2^32 − 1).
    pub capacity: usize,
    /// How many attachments take turns within a class (at most 65,536), about 800 octets each; one from there on shares the turns of
    /// another: attachment n has those of n modulo this number.
    pub tenants: usize,
    /// The link's speed in bit/s. `None` (or 0): unknown, frames take no time and the link is always free.
    pub link_speed: Option<u64>,
    /// From the hand-over to the port to the start on the wire; below 0 counts as 0.
    pub hand_over: Nanos,
    /// The classes, class 0 first.
    pub classes: [ClassOptions; TrafficClass::COUNT],
}
