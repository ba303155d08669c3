// SPDX-License-Identifier: Apache-2.0
//! Priority queues of frames over one shared store.
//!
//! In: a frame, the number of its queue and its due instant. Out: per queue, the frame that is due first,
//! equal instants in the order of insertion. Nothing is allocated after `new`.
//!
//! The queues are leftist heaps whose links are slot indices: sixteen queues share `capacity` slots, where
//! sixteen array heaps would each need room for all (the daemon's memory is locked, so unused room costs).
//! Insertion and removal of the head walk right spines only, and a right spine of n frames has at most
//! log2(n + 1) nodes: worst case, not amortised.

use crate::frame::{Frame, FrameId};
use alloc::boxed::Box;
use alloc::vec;
use ktsn_model::{LatePolicy, TrafficClass};
use ktsn_time::{Monotonic, Nanos};

/// No slot.
const NIL: u32 = u32::MAX;
/// Rank of a slot that holds no frame.
const VACANT: u8 = 0;
/// Two right spines of at most 32 nodes each are merged at a time.
const SPINES_MAX: usize = 64;

/// The part of a queued frame that ordering needs, apart from the rest so that walks stay in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The due instant, on the clock that the queue stands for.
    pub(crate) due: u64,
    /// Count of insertions before this one.
    pub(crate) arrival: u64,
    left: u32,
    right: u32,
    /// 1 + the rank of the right child; VACANT if the slot is free, `left` then links the free slots.
    rank: u8,
    queue: u8,
    pub(crate) late: bool,
    pub(crate) on_time: bool,
}

impl Node {
    fn before(&self, other: &Self) -> bool {
        (self.due, self.arrival) < (other.due, other.arrival)
    }
}

/// This and `no_frame` fill slots that were never used; they are never handed out.
const NO_NODE: Node =
    Node { due: 0, arrival: 0, left: NIL, right: NIL, rank: VACANT, queue: 0, late: false, on_time: false };
const _: () = assert!(size_of::<Node>() == 32);

fn no_frame() -> Frame {
    Frame {
        id: FrameId(0),
        tenant: 0,
        class: TrafficClass::default(),
        tx_time: None,
        pushed_at: Monotonic::ZERO,
        wire_octets: 0,
        late: LatePolicy::default(),
        overrun_limit: Nanos::ZERO,
        horizon: Nanos::ZERO,
    }
}

/// `QUEUES` priority queues in one store.
#[derive(Debug)]
pub(crate) struct Queues<const QUEUES: usize> {
    nodes: Box<[Node]>,
    frames: Box<[Frame]>,
    roots: [u32; QUEUES],
    free: u32,
    /// Slots from here on were never used.
    used: usize,
    len: usize,
    arrivals: u64,
}

impl<const QUEUES: usize> Queues<QUEUES> {
    pub(crate) fn new(capacity: usize) -> Self {
        const { assert!(QUEUES <= 1 << u8::BITS) };
        let capacity = capacity.min(NIL as usize);
        Self {
            nodes: vec![NO_NODE; capacity].into_boxed_slice(),
            frames: vec![no_frame(); capacity].into_boxed_slice(),
            roots: [NIL; QUEUES],
            free: NIL,
            used: 0,
            len: 0,
            arrivals: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// Queue `frame`; `false`, and nothing has changed, when every slot is taken.
    pub(crate) fn push(&mut self, queue: usize, due: u64, late: bool, on_time: bool, frame: &Frame) -> bool {
        let slot = if self.free != NIL {
            let slot = self.free;
            self.free = self.nodes[slot as usize].left;
            slot
        } else if self.used < self.nodes.len() {
            self.used += 1;
            (self.used - 1) as u32
        } else {
            return false;
        };
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.len += 1;
        self.frames[slot as usize] = *frame;
        self.nodes[slot as usize] =
            Node { due, arrival, left: NIL, right: NIL, rank: 1, queue: queue as u8, late, on_time };
        self.roots[queue] = self.merge(self.roots[queue], slot);
        true
    }

    /// The node that is due first in `queue`.
    pub(crate) fn head(&self, queue: usize) -> Option<&Node> {
        // The slot NIL is beyond every store.
        self.nodes.get(self.roots[queue] as usize)
    }

    /// The frame that is due first in `queue`.
    pub(crate) fn head_frame(&self, queue: usize) -> Option<&Frame> {
        self.frames.get(self.roots[queue] as usize)
    }

    /// Take out the frame that is due first in `queue`.
    pub(crate) fn pop(&mut self, queue: usize) -> Option<(Node, Frame)> {
        let slot = self.roots[queue];
        let node = *self.nodes.get(slot as usize)?;
        self.roots[queue] = self.merge(node.left, node.right);
        self.release(slot);
        Some((node, self.frames[slot as usize]))
    }

    /// Take out every frame that `predicate` names. One visit per slot that was ever used, and one insertion
    /// per frame that stays.
    pub(crate) fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        // Emptied first: should the caller's code unwind, no queue holds a released slot.
        self.roots = [NIL; QUEUES];
        for slot in 0..self.used {
            if self.nodes[slot].rank == VACANT {
                continue;
            }
            if predicate(&self.frames[slot]) {
                self.release(slot as u32);
                out(self.frames[slot]);
                continue;
            }
            let node = &mut self.nodes[slot];
            (node.left, node.right, node.rank) = (NIL, NIL, 1);
            let queue = usize::from(node.queue);
            self.roots[queue] = self.merge(self.roots[queue], slot as u32);
        }
    }

    fn release(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        node.rank = VACANT;
        node.left = self.free;
        self.free = slot;
        self.len -= 1;
    }

    fn rank(&self, slot: u32) -> u8 {
        self.nodes.get(slot as usize).map_or(VACANT, |node| node.rank)
    }

    /// The heap of all nodes of two heaps: down along both right spines in order, then up again, swapping
    /// children where the right one would be the deeper.
    fn merge(&mut self, mut a: u32, mut b: u32) -> u32 {
        let mut spine = [NIL; SPINES_MAX];
        let mut depth = 0;
        while a != NIL && b != NIL {
            if self.nodes[b as usize].before(&self.nodes[a as usize]) {
                core::mem::swap(&mut a, &mut b);
            }
            spine[depth] = a;
            depth += 1;
            a = self.nodes[a as usize].right;
        }
        let mut below = if a == NIL { b } else { a };
        for &slot in spine[..depth].iter().rev() {
            let (left, right) = (self.nodes[slot as usize].left, below);
            let (left_rank, right_rank) = (self.rank(left), self.rank(right));
            let node = &mut self.nodes[slot as usize];
            if left_rank < right_rank {
                (node.left, node.right, node.rank) = (right, left, left_rank + 1);
            } else {
                (node.left, node.right, node.rank) = (left, right, right_rank + 1);
            }
            below = slot;
        }
        below
    }
}
