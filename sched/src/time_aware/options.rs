// SPDX-License-Identifier: Apache-2.0
//! Options of a port's transmission selection, and its presets.

use crate::credit::CreditOptions;
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
    CreditBased(CreditOptions),
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

/// Options of [`TimeAware`](crate::TimeAware). The constructors are its presets; each field can be changed afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeAwareOptions {
    /// How many frames may be queued (at most 2^32 − 1), about 110 octets each.
    pub capacity: usize,
    /// How many attachments take turns within a class (at most 65,536), about 800 octets each. Attachment n takes the turns of
    /// n modulo this number.
    pub attachments: usize,
    /// The link's speed in bit/s. `None` (or 0): unknown, frames take no time and the link is always free.
    pub link_speed: Option<u64>,
    /// From the hand-over to the port to the start on the wire; below 0 counts as 0.
    pub hand_over: Nanos,
    /// Whether the port can run a gate program. `false`: gate programs are refused and the hand-over latency stays as it is here, so
    /// with a latency of 0 no class is held back for another.
    pub has_gates: bool,
    /// The classes, class 0 first.
    pub classes: [ClassOptions; TrafficClass::COUNT],
}

impl TimeAwareOptions {
    /// Gates (8.6.8.4): every gate is open until a program is set. No link speed, no hand-over latency, every class in TxTime order.
    #[must_use]
    pub const fn gates(capacity: usize, attachments: usize) -> Self {
        const CLASS: ClassOptions =
            ClassOptions { order: Order::TxTime, queue_max_sdu: None, shaper: Shaper::StrictPriority };
        Self {
            capacity,
            attachments,
            link_speed: None,
            hand_over: Nanos::ZERO,
            has_gates: true,
            classes: [CLASS; TrafficClass::COUNT],
        }
    }

    /// The earliest TxTime of the highest class, without gates: what an etf or fq child under a strict-priority parent does.
    #[must_use]
    pub const fn tx_time(capacity: usize, attachments: usize) -> Self {
        Self { has_gates: false, ..Self::gates(capacity, attachments) }
    }

    /// The highest class in order of arrival, without gates (8.6.8.1). A frame with a distant TxTime holds up the later frames of its
    /// own attachment and class, and no others.
    #[must_use]
    pub fn strict_priority(capacity: usize, attachments: usize) -> Self {
        let fifo = ClassOptions { order: Order::Fifo, ..ClassOptions::default() };
        Self { classes: [fifo; TrafficClass::COUNT], ..Self::tx_time(capacity, attachments) }
    }

    /// Strict priority where a class with `credits` leaves only while its credit is not negative (8.6.8.2).
    #[must_use]
    pub fn credit_based(
        capacity: usize,
        attachments: usize,
        link_speed: Option<u64>,
        credits: [Option<CreditOptions>; TrafficClass::COUNT],
    ) -> Self {
        let class = |credit: Option<CreditOptions>| ClassOptions {
            order: Order::Fifo,
            queue_max_sdu: None,
            shaper: credit.map_or(Shaper::StrictPriority, Shaper::CreditBased),
        };
        Self { link_speed, classes: credits.map(class), ..Self::tx_time(capacity, attachments) }
    }
}
