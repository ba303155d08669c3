// SPDX-License-Identifier: Apache-2.0
//! The queued frames of a port: one shared store, a heap of frames for each attachment, class and clock, and turns between the
//! attachments of a class.
//!
//! In: a frame with its class and its due instant. Out: per class, the frame whose turn it is. Within an attachment that is the one
//! due first, equal instants in the order of insertion; where a class goes by arrival, the one that was inserted first. Nothing is
//! allocated after `new`; a slot's memory is first written when a frame needs it, unless [`Queues::touch`] did.
//!
//! The heaps of frames are weight-biased leftist heaps whose links are slot indices: all of them share `capacity`
//! slots, where array heaps would each need room for all (the daemon's memory is locked, so unused
//! room costs). A left subtree never holds fewer nodes than its right sibling, so the right spine of a heap
//! of n nodes has at most log2(n + 1). Merging walks right spines only, once and downwards: a bound for each
//! call, not an average. Who is next among the attachments is the matter of [`turns`].

mod node;
mod turns;

use crate::frame::{Frame, FrameId};
use alloc::vec::Vec;
use core::cmp::Ordering;
use ktsn_model::TrafficClass;
use ktsn_time::{Now, Span, TxTime};
use node::{BY_ARRIVAL, Instant, LEFT, MONOTONIC, NIL, NO_NODE, RIGHT, TAI, VACANT, clocks};
pub(crate) use node::{CLOCKS, Node, QUEUES};
use turns::{Served, Turns};

/// A quarter of all numbers: zero is out of reach, and so are the numbers of turns.
const FIRST_ARRIVAL: u64 = 1 << 62;

/// The frame of a class that leaves next, whatever else happens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Where it is found and taken out.
    pub(crate) queue: usize,
    /// Time until it is due, or since: one of them is 0.
    pub(crate) wait: Span,
    pub(crate) overdue: Span,
}

/// The state before the last frame was taken out, for putting it back.
#[derive(Clone, Copy, Debug)]
struct Undo {
    id: FrameId,
    lane: usize,
    due: Instant,
    served: Served,
}

/// The queues of all classes and attachments in one store.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Made for `capacity` and never grown beyond; as long as slots were ever used.
    nodes: Vec<Node>,
    frames: Vec<Frame>,
    capacity: usize,
    turns: Turns,
    free: u32,
    len: usize,
    arrivals: u64,
    /// The number of the next one that was taken out and comes back: before all that have arrived.
    front: u64,
    undo: Option<Undo>,
}

impl Queues {
    /// Room for `capacity` frames of `attachments` attachments; an attachment from there on shares the place of `attachment % attachments`.
    pub(crate) fn new(capacity: usize, attachments: usize) -> Self {
        const { assert!(QUEUES <= 1 << u8::BITS) };
        let capacity = capacity.min(NIL as usize);
        Self {
            nodes: Vec::with_capacity(capacity),
            frames: Vec::with_capacity(capacity),
            capacity,
            turns: Turns::new(attachments, capacity),
            free: NIL,
            len: 0,
            arrivals: FIRST_ARRIVAL,
            front: FIRST_ARRIVAL - 1,
            undo: None,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Writes all room once, so that its memory is there before a frame needs it.
    pub(crate) fn touch(&mut self) {
        let used = self.nodes.len();
        self.nodes.resize(self.capacity, NO_NODE);
        self.frames.resize(self.capacity, Frame::empty());
        self.nodes.truncate(used);
        self.frames.truncate(used);
        self.turns.touch();
    }

    /// Forgets all turns if a clock stepped back: it reads `now`, and a turn is later.
    pub(crate) fn forget_turns_if_clock_stepped(&mut self, now: Now) {
        if self.turns.is_before(clocks(now)) {
            self.turns.forget(&self.nodes);
        }
    }

    /// Queue `frame` with its class and order in `node`; `false`, and nothing has changed, when every slot is taken.
    pub(crate) fn insert(&mut self, node: Node, frame: &Frame) -> bool {
        let is_in = self.insert_as(self.arrivals, node, frame);
        self.arrivals += u64::from(is_in);
        is_in
    }

    /// Queues the frame that was taken out last, in front of the frames that it was in front of. Its attachment has its turn again. The due
    /// instant of a late or untimed frame, and of a frame that may leave any time later, is computed from its arrival; the new arrival
    /// must not put it behind others. `false`, and nothing has changed, when every slot is taken.
    pub(crate) fn put_back(&mut self, mut node: Node, frame: &Frame) -> bool {
        if self.len == self.capacity {
            return false;
        }
        let (lane, heap) = self.lane_of(frame.attachment, &node);
        let undo = self.undo.take().filter(|undo| undo.lane == lane && undo.id == frame.id);
        self.turns.take_back(lane, undo.map(|undo| undo.served));
        let not_before = match frame.tx_time {
            Some(TxTime::Monotonic(at)) if node.on_time && frame.overrun_max().is_none() => {
                Some(Instant(at.as_nanos()))
            }
            _ => (!node.on_time).then_some(Instant::ZERO),
        };
        if let Some(not_before) = not_before {
            let head = self.nodes.get(self.turns.root(lane, heap) as usize);
            // By arrival it is in front of them anyway, and their clock may be another one.
            let head = head.filter(|_| node.marks & BY_ARRIVAL == 0).map_or(Instant::MAX, |head| head.due);
            node.due = node.due.min(head).min(undo.map_or(Instant::MAX, |undo| undo.due)).max(not_before);
        }
        let is_in = self.insert_as(self.front, node, frame);
        self.front -= u64::from(is_in);
        // Its turn is there again for what waited behind it, too.
        self.turns.settle(lane, &self.nodes);
        is_in
    }

    fn insert_as(&mut self, arrival: u64, node: Node, frame: &Frame) -> bool {
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
        self.enter(slot);
        true
    }

    /// The lane of an attachment's class, and the heap there, that `node` belongs in.
    fn lane_of(&self, attachment: u32, node: &Node) -> (usize, usize) {
        let heap = usize::from(node.heap);
        (self.turns.lane(attachment, heap / CLOCKS), heap % CLOCKS)
    }

    /// Put the node of `slot`, which has no children, where it belongs.
    fn enter(&mut self, slot: u32) {
        let (lane, heap) = self.lane_of(self.frames[slot as usize].attachment, &self.nodes[slot as usize]);
        let before = self.turns.root(lane, heap);
        let root = self.merge(before, slot);
        if root == before {
            return;
        }
        self.turns.set_root(lane, heap, root);
        if self.nodes[root as usize].marks & BY_ARRIVAL == 0 {
            self.turns.settle_first(lane, root, &self.nodes);
        } else {
            self.turns.settle(lane, &self.nodes);
        }
    }

    /// The frame of `class` whose turn it is, or will be first.
    // In registers: handed over in memory, it is read back before it has been written, which costs half of a decision.
    #[inline(always)]
    pub(crate) fn head(&self, class: usize, now: Now) -> Option<Head> {
        let now = clocks(now);
        let queue = |clock| class * CLOCKS + clock;
        let head = |due: Instant, clock: usize| {
            let (wait, overdue) = (due.span_since(now[clock]), now[clock].span_since(due));
            Head { queue: queue(clock), wait, overdue }
        };
        match (self.turns.first(queue(TAI)), self.turns.first(queue(MONOTONIC))) {
            (None, None) => None,
            (Some(first), None) => Some(head(first.due, TAI)),
            (None, Some(second)) => Some(head(second.due, MONOTONIC)),
            (Some(first), Some(second)) => {
                let (one, other) = (head(first.due, TAI), head(second.due, MONOTONIC));
                // Two that are not due yet seldom wait equally long: one comparison then.
                let is_second = if one.wait == other.wait {
                    let stood = [now[TAI].span_since(first.at), now[MONOTONIC].span_since(second.at)];
                    let arrival = |slot: u32| self.nodes[slot as usize].arrival;
                    // The tie of two turns: they are the same attachment's.
                    match (stood[TAI], second.tie).cmp(&(stood[MONOTONIC], first.tie)) {
                        Ordering::Less => true,
                        Ordering::Greater => false,
                        Ordering::Equal => {
                            (one.overdue, arrival(second.root)) < (other.overdue, arrival(first.root))
                        }
                    }
                } else {
                    other.wait < one.wait
                };
                Some(if is_second { other } else { one })
            }
        }
    }

    /// The node and the frame whose turn it is in `queue`, one class on one clock.
    pub(crate) fn first(&self, queue: usize) -> Option<(&Node, &Frame)> {
        let slot = self.turns.first(queue)?.root as usize;
        Some((&self.nodes[slot], &self.frames[slot]))
    }

    /// Take out the frame whose turn it is in `queue`: its attachment has had its turn at `now`.
    pub(crate) fn pop(&mut self, queue: usize, now: Now) -> Option<(Node, Frame)> {
        let first = self.turns.first(queue)?;
        let (slot, lane) = (first.root, first.lane as usize);
        let (node, frame) = (self.nodes[slot as usize], self.frames[slot as usize]);
        self.unlink(slot, lane);
        let served = self.turns.serve(lane, clocks(now));
        self.undo = Some(Undo { id: frame.id, lane, due: node.due, served });
        self.turns.settle(lane, &self.nodes);
        Some((node, frame))
    }

    /// Take the root `slot` out of its heap in `lane`, which is settled afterwards.
    fn unlink(&mut self, slot: u32, lane: usize) {
        let Node { children, heap, .. } = self.nodes[slot as usize];
        let root = self.merge(children[LEFT], children[RIGHT]);
        self.turns.set_root(lane, usize::from(heap) % CLOCKS, root);
        self.release(slot);
    }

    /// Take out every frame that `predicate` names. One visit per slot that was ever used, and one insertion
    /// per frame that stays.
    pub(crate) fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        // Emptied first: should the caller's code unwind, no queue holds a released slot.
        self.turns.empty();
        for slot in 0..self.nodes.len() {
            if self.nodes[slot].weight == VACANT {
                continue;
            }
            if predicate(&self.frames[slot]) {
                self.release(slot as u32);
                out(self.frames[slot]);
                continue;
            }
            self.enter_again(slot);
        }
    }

    /// Take out at most `most` frames of `attachment`, in O(most log n); whether more of them may be left. Where it shares its place
    /// with others that have frames there, all of its frames at once.
    pub(crate) fn remove_attachment(
        &mut self,
        attachment: u32,
        most: usize,
        out: &mut dyn FnMut(Frame),
    ) -> bool {
        let mut count = 0;
        for class in 0..TrafficClass::COUNT {
            let lane = self.turns.lane(attachment, class);
            for heap in 0..CLOCKS {
                loop {
                    let slot = self.turns.root(lane, heap);
                    let Some(&frame) = self.frames.get(slot as usize) else { break };
                    if count == most {
                        return true;
                    }
                    if frame.attachment != attachment {
                        self.remove(&mut |frame| frame.attachment == attachment, out);
                        return false;
                    }
                    self.unlink(slot, lane);
                    self.turns.settle(lane, &self.nodes);
                    count += 1;
                    out(frame);
                }
            }
        }
        false
    }

    /// Asks `place` to put every frame in its queue again. One visit per slot that was ever used, and one insertion per frame.
    pub(crate) fn rearrange(&mut self, place: &mut dyn FnMut(&mut Node, &Frame)) {
        self.turns.empty();
        self.undo = None;
        for slot in 0..self.nodes.len() {
            let node = &mut self.nodes[slot];
            if node.weight == VACANT {
                continue;
            }
            place(node, &self.frames[slot]);
            self.enter_again(slot);
        }
    }

    fn enter_again(&mut self, slot: usize) {
        let node = &mut self.nodes[slot];
        (node.children, node.weight) = ([NIL; 2], 1);
        self.enter(slot as u32);
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
