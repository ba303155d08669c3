// SPDX-License-Identifier: Apache-2.0
//! Priority queues of frames over one shared store.
//!
//! In: a frame, the number of its queue and its due instant. Out: per queue, the frame that is due first,
//! equal instants in the order of insertion; where a queue's frames are said to go by arrival, the one that was inserted
//! first. Nothing is allocated after `new`; a slot's memory is first written when a frame needs it, unless [`Queues::touch`] did.
//!
//! The queues are weight-biased leftist heaps whose links are slot indices: sixteen queues share `capacity`
//! slots, where sixteen array heaps would each need room for all (the daemon's memory is locked, so unused
//! room costs). A left subtree never holds fewer nodes than its right sibling, so the right spine of a heap
//! of n nodes has at most log2(n + 1). Merging walks right spines only, once and downwards: a bound for each
//! call, not an average.

use crate::frame::{Frame, FrameId};
use alloc::vec::Vec;
use ktsn_model::{LatePolicy, TrafficClass};
use ktsn_time::{Monotonic, Nanos, TxTime};

/// No slot.
const NIL: u32 = u32::MAX;
/// Weight of a slot that holds no frame.
const VACANT: u32 = 0;
const LEFT: usize = 0;
const RIGHT: usize = 1;

/// The part of a queued frame that ordering needs, apart from the rest so that walks stay in the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    /// The due instant, on the clock that the queue stands for.
    pub(crate) due: u64,
    /// Ascending in the order of insertion; of those that were put back, descending.
    pub(crate) arrival: u64,
    /// Left and right; the left one of a free slot links the free slots.
    children: [u32; 2],
    /// Count of nodes from here down, this one included; VACANT if the slot is free.
    weight: u32,
    queue: u8,
    pub(crate) late: bool,
    pub(crate) on_time: bool,
    marks: u8,
}

/// The node goes by arrival alone.
const BY_ARRIVAL: u8 = 1;
/// The due instant is one of TAI, for queues that hold both clocks.
const ON_TAI: u8 = 2;

impl Node {
    /// A frame due at `due`.
    pub(crate) fn new(due: TxTime, late: bool, on_time: bool) -> Self {
        let (due, marks) = match due {
            TxTime::Tai(at) => (at.as_nanos(), ON_TAI),
            TxTime::Monotonic(at) => (at.as_nanos(), 0),
        };
        Self { due, late, on_time, marks, ..NO_NODE }
    }
    pub(crate) fn is_on_tai(&self) -> bool {
        self.marks & ON_TAI != 0
    }
    /// Put it in `queue`, by arrival or by due instant; the same for every node of a queue.
    pub(crate) fn place(&mut self, queue: usize, by_arrival: bool) {
        self.queue = queue as u8;
        self.marks = self.marks & ON_TAI | if by_arrival { BY_ARRIVAL } else { 0 };
    }
    fn before(&self, other: &Self) -> bool {
        // One wide comparison: which of two frames is due first cannot be predicted, so no branch on it.
        self.key() < other.key()
    }
    fn key(&self) -> u128 {
        // All ones, or none where only arrival counts.
        let mask = u64::from(self.marks & BY_ARRIVAL).wrapping_sub(1);
        u128::from(self.due & mask) << 64 | u128::from(self.arrival)
    }
}

/// The middle of all numbers: both ends are out of reach.
const FIRST_ARRIVAL: u64 = 1 << 63;

/// This and `no_frame` fill slots that were never used; they are never handed out.
const NO_NODE: Node = Node {
    due: 0,
    arrival: 0,
    children: [NIL; 2],
    weight: VACANT,
    queue: 0,
    late: false,
    on_time: false,
    marks: 0,
};
const _: () = assert!(size_of::<Node>() == 32);

fn no_frame() -> Frame {
    Frame {
        id: FrameId(0),
        tenant: 0,
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

/// `QUEUES` priority queues in one store.
#[derive(Debug)]
pub(crate) struct Queues<const QUEUES: usize> {
    /// Made for `capacity` and never grown beyond; as long as slots were ever used.
    nodes: Vec<Node>,
    frames: Vec<Frame>,
    capacity: usize,
    roots: [u32; QUEUES],
    free: u32,
    len: usize,
    arrivals: u64,
    /// The number of the next one that was taken out and comes back: before all that have arrived.
    front: u64,
}

impl<const QUEUES: usize> Queues<QUEUES> {
    pub(crate) fn new(capacity: usize) -> Self {
        const { assert!(QUEUES <= 1 << u8::BITS) };
        let capacity = capacity.min(NIL as usize);
        Self {
            nodes: Vec::with_capacity(capacity),
            frames: Vec::with_capacity(capacity),
            capacity,
            roots: [NIL; QUEUES],
            free: NIL,
            len: 0,
            arrivals: FIRST_ARRIVAL,
            front: FIRST_ARRIVAL - 1,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Writes every slot once, so that its memory is there before a frame needs it.
    pub(crate) fn touch(&mut self) {
        let used = self.nodes.len();
        self.nodes.resize(self.capacity, NO_NODE);
        self.frames.resize(self.capacity, no_frame());
        self.nodes.truncate(used);
        self.frames.truncate(used);
    }

    /// Queue `frame` with the queue and its order in `node`; `false`, and nothing has changed, when every slot is taken.
    pub(crate) fn insert(&mut self, node: Node, frame: &Frame) -> bool {
        let is_in = self.insert_as(self.arrivals, node, frame);
        self.arrivals += u64::from(is_in);
        is_in
    }

    /// As `insert`, for the frame that was taken out last: in front of those that it was in front of. One without a time to be
    /// on has waited since an instant that is reckoned anew, which must not put it behind others.
    pub(crate) fn put_back(&mut self, mut node: Node, frame: &Frame) -> bool {
        if !node.on_time
            && let Some(head) = self.head(usize::from(node.queue))
        {
            node.due = node.due.min(head.due);
        }
        let is_in = self.insert_as(self.front, node, frame);
        self.front -= u64::from(is_in);
        is_in
    }

    fn insert_as(&mut self, arrival: u64, node: Node, frame: &Frame) -> bool {
        let queue = usize::from(node.queue);
        let node = Node { arrival, weight: 1, ..node };
        let slot = if self.free != NIL {
            let slot = self.free;
            self.free = self.nodes[slot as usize].children[LEFT];
            self.frames[slot as usize] = *frame;
            self.nodes[slot as usize] = node;
            slot
        } else if self.nodes.len() < self.capacity {
            self.frames.push(*frame);
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            return false;
        };
        self.len += 1;
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
        self.roots[queue] = self.merge(node.children[LEFT], node.children[RIGHT]);
        self.release(slot);
        Some((node, self.frames[slot as usize]))
    }

    /// Take out every frame that `predicate` names. One visit per slot that was ever used, and one insertion
    /// per frame that stays.
    pub(crate) fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        // Emptied first: should the caller's code unwind, no queue holds a released slot.
        self.roots = [NIL; QUEUES];
        for slot in 0..self.nodes.len() {
            if self.nodes[slot].weight == VACANT {
                continue;
            }
            if predicate(&self.frames[slot]) {
                self.release(slot as u32);
                out(self.frames[slot]);
                continue;
            }
            let node = &mut self.nodes[slot];
            (node.children, node.weight) = ([NIL; 2], 1);
            let queue = usize::from(node.queue);
            self.roots[queue] = self.merge(self.roots[queue], slot as u32);
        }
    }

    /// Ask `place` to put every frame in its queue anew. One visit per slot that was ever used, and one insertion per frame.
    pub(crate) fn rearrange(&mut self, place: &mut dyn FnMut(&mut Node, &Frame)) {
        self.roots = [NIL; QUEUES];
        for slot in 0..self.nodes.len() {
            let node = &mut self.nodes[slot];
            if node.weight == VACANT {
                continue;
            }
            place(node, &self.frames[slot]);
            (node.children, node.weight) = ([NIL; 2], 1);
            let queue = usize::from(node.queue);
            self.roots[queue] = self.merge(self.roots[queue], slot as u32);
        }
    }

    fn release(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        node.weight = VACANT;
        node.children[LEFT] = self.free;
        self.free = slot;
        self.len -= 1;
    }

    fn weight(&self, slot: u32) -> u32 {
        self.nodes.get(slot as usize).map_or(VACANT, |node| node.weight)
    }

    /// The heap of all nodes of two heaps. Each step settles the earlier root and goes on with its right
    /// subtree and the other heap; how much the result will weigh is known beforehand, so the side that it
    /// must hang on is too, and nothing has to be done on the way back up.
    fn merge(&mut self, a: u32, b: u32) -> u32 {
        if a == NIL || b == NIL {
            return if a == NIL { b } else { a };
        }
        let (root, mut other) = self.ordered(a, b);
        let mut settled = root;
        loop {
            let other_weight = self.weight(other);
            let [left, rest] = self.nodes[settled as usize].children;
            let left_weight = self.weight(left);
            let node = &mut self.nodes[settled as usize];
            let merged_weight = node.weight - 1 - left_weight + other_weight;
            node.weight += other_weight;
            let side = if left_weight < merged_weight { LEFT } else { RIGHT };
            // When the result goes left, the left child makes room on the right; else it stays.
            node.children[1 - side] = left;
            if rest == NIL {
                node.children[side] = other;
                return root;
            }
            let (next, later) = self.ordered(rest, other);
            self.nodes[settled as usize].children[side] = next;
            (settled, other) = (next, later);
        }
    }

    /// The two roots, the one due first in front.
    fn ordered(&self, a: u32, b: u32) -> (u32, u32) {
        if self.nodes[b as usize].before(&self.nodes[a as usize]) { (b, a) } else { (a, b) }
    }
}

#[cfg(test)]
mod tests;
