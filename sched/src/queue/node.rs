// SPDX-License-Identifier: Apache-2.0
//! The part of a queued frame that orders it, and the instants and heaps that it is ordered by.

use crate::decision::Admission;
use ktsn_model::TrafficClass;
use ktsn_time::{Monotonic, Now, Span, Tai, TxTime};

/// One heap per clock, so that a step of TAI re-sorts nothing. An attachment's class in order of arrival has one for both.
pub(crate) const CLOCKS: usize = 2;
/// Heaps in which attachments stand: one per class and clock.
pub(crate) const QUEUES: usize = TrafficClass::COUNT * CLOCKS;
pub(super) const TAI: usize = 0;
pub(super) const MONOTONIC: usize = 1;

/// An instant on one of the clocks, the one of the heap that it stands in. It orders frames of that heap and is compared with `now` there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Instant(pub(super) u64);

impl Instant {
    pub(super) const ZERO: Self = Self(0);
    pub(super) const MAX: Self = Self(u64::MAX);

    /// The time since `earlier` on the same clock; no time where that comes later.
    pub(super) fn span_since(self, earlier: Self) -> Span {
        Span::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// `now` on each clock.
pub(super) fn clocks(now: Now) -> [Instant; CLOCKS] {
    [Instant(now.tai.as_nanos()), Instant(now.monotonic.as_nanos())]
}

/// No slot.
pub(super) const NIL: u32 = u32::MAX;
/// Weight of a slot that holds no frame.
pub(super) const VACANT: u32 = 0;
pub(super) const LEFT: usize = 0;
pub(super) const RIGHT: usize = 1;

/// The part of a queued frame that orders it. It is apart from the rest, so that walks stay in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The due instant, on its clock.
    pub(super) due: Instant,
    /// Ascending in the order of insertion; of those that were put back, descending.
    pub(crate) arrival: u64,
    /// Left and right; the left one of a free slot links the free slots.
    pub(super) children: [u32; 2],
    /// Count of nodes from here down, this one included; VACANT if the slot is free.
    pub(super) weight: u32,
    /// Class and heap of its attachment, as `class * CLOCKS + heap`.
    pub(super) heap: u8,
    pub(crate) late: bool,
    pub(crate) on_time: bool,
    pub(super) marks: u8,
}

/// The node goes by arrival alone.
pub(super) const BY_ARRIVAL: u8 = 1;
/// The due instant is one of TAI, for heaps that hold both clocks.
pub(super) const ON_TAI: u8 = 2;

impl Node {
    /// A frame with what admission found about it.
    pub(crate) fn new(admission: &Admission) -> Self {
        let (due, marks) = match admission.due {
            TxTime::Tai(at) => (Instant(at.as_nanos()), ON_TAI),
            TxTime::Monotonic(at) => (Instant(at.as_nanos()), 0),
        };
        Self { due, late: admission.late, on_time: admission.on_time, marks, ..NO_NODE }
    }

    pub(crate) fn due(&self) -> TxTime {
        if self.clock() == TAI {
            TxTime::Tai(Tai::from_nanos(self.due.0))
        } else {
            TxTime::Monotonic(Monotonic::from_nanos(self.due.0))
        }
    }

    #[inline]
    pub(super) fn clock(&self) -> usize {
        if self.marks & ON_TAI != 0 { TAI } else { MONOTONIC }
    }

    /// Put it in `class`, by arrival or by due instant; the same for every node of a class.
    pub(crate) fn place(&mut self, class: usize, by_arrival: bool) {
        self.heap = (class * CLOCKS + if by_arrival { 0 } else { self.clock() }) as u8;
        self.marks = self.marks & ON_TAI | if by_arrival { BY_ARRIVAL } else { 0 };
    }

    #[inline]
    pub(super) fn before(&self, other: &Self) -> bool {
        // One wide comparison: which of two frames is due first cannot be predicted, so no branch on it.
        self.key() < other.key()
    }

    #[inline]
    fn key(&self) -> u128 {
        // All ones, or none where only arrival counts.
        let mask = u64::from(self.marks & BY_ARRIVAL).wrapping_sub(1);
        u128::from(self.due.0 & mask) << 64 | u128::from(self.arrival)
    }
}

/// This and `Frame::empty` fill slots that were never used; they are never handed out.
pub(super) const NO_NODE: Node = Node {
    due: Instant::ZERO,
    arrival: 0,
    children: [NIL; 2],
    weight: VACANT,
    heap: 0,
    late: false,
    on_time: false,
    marks: 0,
};
const _: () = assert!(size_of::<Node>() == 32);
