// SPDX-License-Identifier: Apache-2.0
//! Turns between the attachments of a class.
//!
//! In: the first frame of each attachment's class, and which attachment was served when. Out: per class and clock, the attachment whose
//! turn it is.
//! Never: delays a frame; a turn only orders those that are due.
//!
//! An attachment stands at the later of two instants: when its first frame is due, and when it was last served. The attachment that has
//! stood longest is next. So an attachment with thousands of frames for one instant stands behind the others after each of these
//! frames.
//!
//! ```text
//!   lane    one attachment in one class: a heap of frames per clock, and its last turn
//!   stand   a lane's place in the queue of a class and clock, an array heap that knows where each lane is
//! ```

use super::node::{CLOCKS, Instant, NIL, Node, QUEUES};
use alloc::vec::Vec;
use core::array;
use ktsn_model::TrafficClass;

/// No place in a queue.
const NOWHERE: u32 = u32::MAX;
/// Numbers of turns are greater than those of arrivals: of two attachments that stand since one instant, the one that was not served
/// goes first.
const FIRST_TURN: u64 = 1 << 63;
/// More attachments than that share places.
const ATTACHMENTS_MAX: usize = 1 << 16;

/// When a lane was last served, on each clock, and the number of that turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Served {
    at: [Instant; CLOCKS],
    turn: u64,
}

/// The frames of one attachment in one class.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Heaps of frames: one per clock, or the first one for both.
    roots: [u32; CLOCKS],
    /// Where it stands in the queue of each clock.
    places: [u32; CLOCKS],
    served: Served,
}

const NEVER: Served = Served { at: [Instant::ZERO; CLOCKS], turn: 0 };
const EMPTY: Lane = Lane { roots: [NIL; CLOCKS], places: [NOWHERE; CLOCKS], served: NEVER };

/// A lane in the queue of a class and clock, with the properties of its first frame that are used most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stand {
    /// Since when it stands.
    pub(super) at: Instant,
    /// The arrival of its first frame, or the number of its last turn.
    pub(super) tie: u64,
    pub(super) due: Instant,
    pub(super) root: u32,
    pub(super) lane: u32,
}

const NO_STAND: Stand = Stand { at: Instant::ZERO, tie: 0, due: Instant::ZERO, root: NIL, lane: 0 };
const _: () = assert!(size_of::<Stand>() == 32 && size_of::<Lane>() == 40);

impl Stand {
    fn before(&self, other: &Self) -> bool {
        let key = |stand: &Self| u128::from(stand.at.0) << 64 | u128::from(stand.tie);
        key(self) < key(other)
    }
}

#[derive(Debug)]
pub(super) struct Turns {
    attachments: u32,
    /// Those of an attachment side by side.
    lanes: Vec<Lane>,
    /// Each made for as many lanes as can stand in it.
    queues: [Vec<Stand>; QUEUES],
    /// The number of the last turn, and of the last one that counts no more.
    turn: u64,
    forgotten: u64,
    /// When the last turn was, on each clock.
    latest: [Instant; CLOCKS],
}

impl Turns {
    pub(super) fn new(attachments: usize, capacity: usize) -> Self {
        let attachments = attachments.clamp(1, ATTACHMENTS_MAX);
        Self {
            attachments: attachments as u32,
            lanes: alloc::vec![EMPTY; attachments * TrafficClass::COUNT],
            queues: array::from_fn(|_| Vec::with_capacity(attachments.min(capacity))),
            turn: FIRST_TURN,
            forgotten: FIRST_TURN,
            latest: [Instant::ZERO; CLOCKS],
        }
    }

    pub(super) fn touch(&mut self) {
        for queue in &mut self.queues {
            let (used, most) = (queue.len(), queue.capacity());
            queue.resize(most, NO_STAND);
            queue.truncate(used);
        }
    }

    /// The lane of `attachment` in `class`.
    pub(super) fn lane(&self, attachment: u32, class: usize) -> usize {
        let place = if attachment < self.attachments { attachment } else { attachment % self.attachments };
        place as usize * TrafficClass::COUNT + class
    }

    pub(super) fn root(&self, lane: usize, heap: usize) -> u32 {
        self.lanes[lane].roots[heap]
    }

    /// The lane has to be settled afterwards.
    pub(super) fn set_root(&mut self, lane: usize, heap: usize, root: u32) {
        self.lanes[lane].roots[heap] = root;
    }

    /// The lane that is next in `queue`.
    pub(super) fn first(&self, queue: usize) -> Option<&Stand> {
        self.queues[queue].first()
    }

    /// `lane` has its turn `now`; gives back when it had the one before. It has to be settled afterwards.
    pub(super) fn serve(&mut self, lane: usize, now: [Instant; CLOCKS]) -> Served {
        self.turn += 1;
        self.latest = now;
        core::mem::replace(&mut self.lanes[lane].served, Served { at: now, turn: self.turn })
    }

    /// The last turn of `lane` was none: it is where `served` says, or as if it never had one. It has to be settled afterwards.
    pub(super) fn take_back(&mut self, lane: usize, served: Option<Served>) {
        self.lanes[lane].served = served.unwrap_or(NEVER);
    }

    /// Whether a clock shows an instant before the last turn.
    pub(super) fn is_before(&self, now: [Instant; CLOCKS]) -> bool {
        now[0] < self.latest[0] || now[1] < self.latest[1]
    }

    /// From now on as if no turn had been. O(n) for n lanes with frames.
    #[cold]
    pub(super) fn forget(&mut self, nodes: &[Node]) {
        (self.forgotten, self.latest) = (self.turn, [Instant::ZERO; CLOCKS]);
        for queue in 0..QUEUES {
            for place in 0..self.queues[queue].len() {
                let stand = &mut self.queues[queue][place];
                (stand.at, stand.tie) = (stand.due, nodes[stand.root as usize].arrival);
            }
            for place in (0..self.queues[queue].len() / 2).rev() {
                self.sink(queue, place);
            }
        }
    }

    /// No lane holds a frame, nor stands anywhere.
    pub(super) fn empty(&mut self) {
        for queue in &mut self.queues {
            for stand in queue.drain(..) {
                let lane = &mut self.lanes[stand.lane as usize];
                (lane.roots, lane.places) = ([NIL; CLOCKS], [NOWHERE; CLOCKS]);
            }
        }
    }

    /// A frame has come that is now the first of `lane` on its clock, where each clock has a heap of its own: it stands elsewhere there.
    pub(super) fn settle_first(&mut self, lane: usize, root: u32, nodes: &[Node]) {
        let node = &nodes[root as usize];
        self.stand(lane % TrafficClass::COUNT * CLOCKS + node.clock(), lane, root, node);
    }

    /// The first frames of `lane`, or its last turn, have changed: it stands elsewhere.
    pub(super) fn settle(&mut self, lane: usize, nodes: &[Node]) {
        let mut first = [NIL; CLOCKS];
        for root in self.lanes[lane].roots {
            if let Some(node) = nodes.get(root as usize) {
                first[node.clock()] = root;
            }
        }
        let class = lane % TrafficClass::COUNT;
        for (clock, root) in first.into_iter().enumerate() {
            let queue = class * CLOCKS + clock;
            match nodes.get(root as usize) {
                Some(node) => self.stand(queue, lane, root, node),
                None => self.leave(queue, lane),
            }
        }
    }

    /// `lane` stands in `queue` with the frame of `root`.
    fn stand(&mut self, queue: usize, lane: usize, root: u32, node: &Node) {
        let Lane { served, places, .. } = &self.lanes[lane];
        let (clock, due) = (queue % CLOCKS, node.due);
        let is_served = served.turn > self.forgotten && served.at[clock] >= due;
        let (at, tie) = if is_served { (served.at[clock], served.turn) } else { (due, node.arrival) };
        let stand = Stand { at, tie, due, root, lane: lane as u32 };
        let place = places[clock] as usize;
        let stands = &mut self.queues[queue];
        match stands.get_mut(place) {
            Some(there) => *there = stand,
            None => {
                self.lanes[lane].places[clock] = stands.len() as u32;
                // There is room: it is made for every lane that can have a frame.
                stands.push(stand);
            }
        }
        if stands.len() == 1 {
            // Alone, as most are.
            return;
        }
        let place = self.rise(queue, self.lanes[lane].places[clock] as usize);
        self.sink(queue, place);
    }

    /// `lane` no longer stands in `queue`.
    fn leave(&mut self, queue: usize, lane: usize) {
        let clock = queue % CLOCKS;
        let place = self.lanes[lane].places[clock] as usize;
        if place == NOWHERE as usize {
            return;
        }
        self.lanes[lane].places[clock] = NOWHERE;
        self.queues[queue].swap_remove(place);
        if let Some(moved) = self.queues[queue].get(place) {
            self.lanes[moved.lane as usize].places[clock] = place as u32;
            let place = self.rise(queue, place);
            self.sink(queue, place);
        }
    }

    fn rise(&mut self, queue: usize, mut place: usize) -> usize {
        while place > 0 {
            let above = (place - 1) / 2;
            if !self.queues[queue][place].before(&self.queues[queue][above]) {
                break;
            }
            self.swap(queue, place, above);
            place = above;
        }
        place
    }

    fn sink(&mut self, queue: usize, mut place: usize) {
        loop {
            let stands = &self.queues[queue];
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let Some(mut next) = stands.get(left) else { return };
            let mut below = left;
            if let Some(other) = stands.get(right).filter(|other| other.before(next)) {
                (next, below) = (other, right);
            }
            if !next.before(&stands[place]) {
                return;
            }
            self.swap(queue, place, below);
            place = below;
        }
    }

    fn swap(&mut self, queue: usize, one: usize, other: usize) {
        self.queues[queue].swap(one, other);
        for place in [one, other] {
            let lane = self.queues[queue][place].lane as usize;
            self.lanes[lane].places[queue % CLOCKS] = place as u32;
        }
    }
}

#[cfg(test)]
impl Turns {
    /// Every lane with frames stands where it should, with its own first frame, and no other does.
    pub(super) fn check(&self, nodes: &[Node]) {
        let mut count = 0;
        for (queue, stands) in self.queues.iter().enumerate() {
            for (place, stand) in stands.iter().enumerate() {
                let lane = &self.lanes[stand.lane as usize];
                assert_eq!(lane.places[queue % CLOCKS] as usize, place);
                assert_eq!(stand.lane as usize % TrafficClass::COUNT, queue / CLOCKS);
                let node = &nodes[stand.root as usize];
                assert!(lane.roots.contains(&stand.root) && node.clock() == queue % CLOCKS);
                assert_eq!(stand.due, node.due);
                assert!(
                    place == 0 || !stand.before(&stands[(place - 1) / 2]),
                    "it stands behind a later one"
                );
                count += 1;
            }
        }
        let roots = self.lanes.iter().flat_map(|lane| lane.roots).filter(|&root| root != NIL).count();
        assert_eq!(count, roots);
    }
}
