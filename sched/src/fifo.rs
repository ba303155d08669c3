// SPDX-License-Identifier: Apache-2.0
//! One first-in-first-out queue per traffic class over one shared store.
//!
//! In: a frame with what admission found about it. Out: per class, the frame that arrived first.
//! Never: allocates after `new`, or lets a frame overtake another of its class.

use crate::admission::{Admission, chosen};
use crate::frame::Frame;
use crate::strategy::Decision;
use alloc::vec::Vec;
use ktsn_model::TrafficClass;
use ktsn_time::Now;

/// No slot.
const NIL: u32 = u32::MAX;

/// A queued frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) frame: Frame,
    pub(crate) admission: Admission,
    /// The one that arrived next in its class, or the next free slot.
    next: u32,
}

impl Waiting {
    pub(crate) fn overdue(&self, now: Now) -> Result<u64, u64> {
        self.admission.overdue(now)
    }

    /// What becomes of it, now that it is chosen.
    pub(crate) fn decision(self, now: Now) -> Decision {
        chosen(self.frame, self.admission, now)
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    first: u32,
    last: u32,
}

const EMPTY: Ends = Ends { first: NIL, last: NIL };

/// Eight queues in one store.
#[derive(Debug)]
pub(crate) struct Fifos {
    /// Made for `capacity` and never grown beyond.
    slots: Vec<Waiting>,
    capacity: usize,
    queues: [Ends; TrafficClass::COUNT],
    free: u32,
    len: usize,
}

impl Fifos {
    /// Room for `capacity` frames (at most 2^32 − 1).
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.min(NIL as usize);
        let slots = Vec::with_capacity(capacity);
        Self { slots, capacity, queues: [EMPTY; TrafficClass::COUNT], free: NIL, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Queue `frame` in its class; `false`, and nothing has changed, when every slot is taken.
    pub(crate) fn push(&mut self, frame: Frame, admission: Admission) -> bool {
        let Some(slot) = self.fill(frame, admission) else { return false };
        self.append(usize::from(frame.class.get()), slot);
        true
    }

    /// As `push`, in front of all others of its class.
    pub(crate) fn put_back(&mut self, frame: Frame, admission: Admission) -> bool {
        let Some(slot) = self.fill(frame, admission) else { return false };
        let class = usize::from(frame.class.get());
        let first = core::mem::replace(&mut self.queues[class].first, slot);
        self.slots[slot as usize].next = first;
        if first == NIL {
            self.queues[class].last = slot;
        }
        true
    }

    fn fill(&mut self, frame: Frame, admission: Admission) -> Option<u32> {
        let waiting = Waiting { frame, admission, next: NIL };
        let slot = self.free;
        let slot = if let Some(free) = self.slots.get_mut(slot as usize) {
            self.free = free.next;
            *free = waiting;
            slot
        } else if self.slots.len() < self.capacity {
            self.slots.push(waiting);
            (self.slots.len() - 1) as u32
        } else {
            return None;
        };
        self.len += 1;
        Some(slot)
    }

    /// The frame of `class` that arrived first.
    pub(crate) fn head(&self, class: usize) -> Option<&Waiting> {
        // The slot NIL is beyond every store.
        self.slots.get(self.queues[class].first as usize)
    }

    /// Take out the frame of `class` that arrived first.
    pub(crate) fn pop(&mut self, class: usize) -> Option<Waiting> {
        let slot = self.queues[class].first;
        let waiting = *self.slots.get(slot as usize)?;
        self.queues[class].first = waiting.next;
        if waiting.next == NIL {
            self.queues[class].last = NIL;
        }
        self.release(slot);
        Some(waiting)
    }

    /// Take out every frame that `predicate` names; one visit per queued frame.
    pub(crate) fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        for class in 0..TrafficClass::COUNT {
            // Emptied first: should the caller's code unwind, no queue holds a released slot.
            let mut slot = core::mem::replace(&mut self.queues[class], EMPTY).first;
            while let Some(waiting) = self.slots.get_mut(slot as usize) {
                let next = core::mem::replace(&mut waiting.next, NIL);
                let frame = waiting.frame;
                if predicate(&frame) {
                    self.release(slot);
                    out(frame);
                } else {
                    self.append(class, slot);
                }
                slot = next;
            }
        }
    }

    fn append(&mut self, class: usize, slot: u32) {
        let ends = &mut self.queues[class];
        match self.slots.get_mut(ends.last as usize) {
            Some(last) => last.next = slot,
            None => ends.first = slot,
        }
        ends.last = slot;
    }

    fn release(&mut self, slot: u32) {
        self.slots[slot as usize].next = self.free;
        self.free = slot;
        self.len -= 1;
    }
}
