// SPDX-License-Identifier: Apache-2.0
//! The shape that the bounds rest on, checked node by node after every operation.

use super::node::ON_TAI;
use super::*;
use alloc::vec::Vec;
use ktsn_time::{Monotonic, Tai};
use proptest::prelude::*;

/// Checks the subtree at `slot` of `lane` and gives its weight.
fn check(queues: &Queues, lane: usize, slot: u32) -> u32 {
    let Some(node) = queues.nodes.get(slot as usize) else { return 0 };
    assert_ne!(node.weight, VACANT);
    assert_eq!(queues.lane_of(queues.frames[slot as usize].attachment, node).0, lane);
    for child in node.children {
        if let Some(child) = queues.nodes.get(child as usize) {
            assert!(node.before(child), "a child is due before its parent");
        }
    }
    let [left, right] = node.children.map(|child| check(queues, lane, child));
    assert!(left >= right, "the right subtree is the heavier one");
    assert_eq!(node.weight, 1 + left + right);
    node.weight
}

/// Checks all lanes, their places in the queues, the free slots and the counts.
fn check_all(queues: &Queues) {
    let roots = (0..ATTACHMENTS * TrafficClass::COUNT).flat_map(|lane| [0, 1].map(|heap| (lane, heap)));
    let held: u32 = roots.map(|(lane, heap)| check(queues, lane, queues.turns.root(lane, heap))).sum();
    assert_eq!(held as usize, queues.len);
    queues.turns.check(&queues.nodes);
    let (mut free, mut slot) = (0, queues.free);
    while slot != NIL {
        assert_eq!(queues.nodes[slot as usize].weight, VACANT);
        (free, slot) = (free + 1, queues.nodes[slot as usize].children[LEFT]);
        assert!(free <= queues.nodes.len(), "the free slots go in a circle");
    }
    assert_eq!(held as usize + free, queues.nodes.len());
}

fn spine(queues: &Queues, lane: usize, heap: usize) -> u32 {
    let (mut count, mut slot) = (0, queues.turns.root(lane, heap));
    while let Some(node) = queues.nodes.get(slot as usize) {
        (count, slot) = (count + 1, node.children[RIGHT]);
    }
    count
}

const ATTACHMENTS: usize = 3;

/// Class 0, on the clock of `queue`.
fn push(queues: &mut Queues, queue: usize, due: u64, attachment: u32, by_arrival: bool) -> bool {
    let marks = if queue == TAI { ON_TAI } else { 0 };
    let mut node = Node { due: Instant(due), on_time: true, marks, ..NO_NODE };
    node.place(0, by_arrival);
    queues.insert(node, &Frame { attachment, ..Frame::empty() })
}

fn at(nanos: u64) -> Now {
    Now { tai: Tai::from_nanos(nanos), monotonic: Monotonic::from_nanos(nanos) }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_shape_holds_after_every_operation(
        operations in prop::collection::vec((0u8..14, 0usize..2, 0u64..40, 0u32..4), 0..150),
    ) {
        let (mut queues, mut by_arrival) = (Queues::new(40, ATTACHMENTS), false);
        for (what, queue, due, attachment) in operations {
            match what {
                0..8 => {
                    let full = queues.len == 40;
                    prop_assert_eq!(push(&mut queues, queue, due, attachment, by_arrival), !full);
                }
                8..10 => {
                    let first = queues.first(queue).map(|(node, _)| (node.due, node.arrival));
                    queues.forget_turns_if_clock_stepped(at(due));
                    let first = queues.first(queue).map(|(node, _)| (node.due, node.arrival)).filter(|_| first.is_some());
                    prop_assert_eq!(queues.pop(queue, at(due)).map(|(node, _)| (node.due, node.arrival)), first);
                }
                10 => {
                    if let Some((node, frame)) = queues.pop(queue, at(due)) {
                        let again =
                            Node { on_time: due < 20, due: Instant(node.due.0 + u64::from(due >= 20)), children: [NIL; 2], ..node };
                        let is_in = queues.put_back(again, &frame);
                        prop_assert!(is_in);
                        check_all(&queues);
                        let head = queues.pop(queue, at(due)).unwrap().0;
                        prop_assert!(head.arrival < FIRST_ARRIVAL, "another one came first");
                    }
                }
                11 => {
                    let mut count = 0;
                    queues.remove_attachment(attachment, due as usize % 4, &mut |frame| {
                        assert_eq!(frame.attachment, attachment);
                        count += 1;
                    });
                    // Attachments 0 and 3 share.
                    prop_assert!(count <= due % 4 || matches!(attachment, 0 | 3));
                }
                12 => {
                    by_arrival = due % 2 == 0;
                    queues.rearrange(&mut |node, _| node.place(0, by_arrival));
                }
                _ => queues.remove(&mut |frame| frame.attachment == attachment, &mut |_| ()),
            }
            check_all(&queues);
        }
    }
}

#[test]
fn right_spines_stay_short_however_frames_arrive() {
    const COUNT: u64 = 4_095;
    for due in [|i: u64| i, |i: u64| COUNT - i, |i: u64| i % 64, |i: u64| i * 2_654_435_761 % 4_093, |_| 0] {
        let mut queues = Queues::new(COUNT as usize, 1);
        for i in 0..COUNT {
            assert!(push(&mut queues, 1, due(i), 0, false));
            assert!(spine(&queues, 0, 1) <= (i + 2).ilog2());
        }
        let mut popped = Vec::new();
        while let Some((node, _)) = queues.pop(1, at(0)) {
            popped.push((node.due, node.arrival));
            assert!(spine(&queues, 0, 1) <= (queues.len as u64 + 1).ilog2());
        }
        assert!(popped.is_sorted() && popped.len() == COUNT as usize);
    }
}
