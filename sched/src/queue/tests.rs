// SPDX-License-Identifier: Apache-2.0
//! The shape that the bounds rest on, checked node by node after every operation.

use super::*;
use alloc::vec::Vec;
use proptest::prelude::*;

type Two = Queues<2>;

/// Checks the subtree at `slot` and gives its weight.
fn check(queues: &Two, queue: usize, slot: u32) -> u32 {
    let Some(node) = queues.nodes.get(slot as usize) else { return 0 };
    assert_ne!(node.weight, VACANT);
    assert_eq!(usize::from(node.queue), queue);
    for child in node.children {
        if let Some(child) = queues.nodes.get(child as usize) {
            assert!(node.before(child), "a child is due before its parent");
        }
    }
    let [left, right] = node.children.map(|child| check(queues, queue, child));
    assert!(left >= right, "the right subtree is the heavier one");
    assert_eq!(node.weight, 1 + left + right);
    node.weight
}

/// Checks all queues, the free slots and the counts.
fn check_all(queues: &Two) {
    let held: u32 = (0..2).map(|queue| check(queues, queue, queues.roots[queue])).sum();
    assert_eq!(held as usize, queues.len);
    let (mut free, mut slot) = (0, queues.free);
    while slot != NIL {
        assert_eq!(queues.nodes[slot as usize].weight, VACANT);
        (free, slot) = (free + 1, queues.nodes[slot as usize].children[LEFT]);
        assert!(free <= queues.nodes.len(), "the free slots go in a circle");
    }
    assert_eq!(held as usize + free, queues.nodes.len());
}

fn spine(queues: &Two, queue: usize) -> u32 {
    let (mut count, mut slot) = (0, queues.roots[queue]);
    while let Some(node) = queues.nodes.get(slot as usize) {
        (count, slot) = (count + 1, node.children[RIGHT]);
    }
    count
}

fn push(queues: &mut Two, queue: usize, due: u64, tenant: u32) -> bool {
    let node = Node { due, queue: queue as u8, on_time: true, ..NO_NODE };
    queues.insert(node, &Frame { tenant, ..no_frame() })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_shape_holds_after_every_operation(
        operations in prop::collection::vec((0u8..12, 0usize..2, 0u64..40, 0u32..4), 0..150),
    ) {
        let mut queues = Two::new(40);
        for (what, queue, due, tenant) in operations {
            match what {
                0..8 => {
                    let full = queues.len == 40;
                    prop_assert_eq!(push(&mut queues, queue, due, tenant), !full);
                }
                8..10 => {
                    let head = queues.head(queue).map(|node| (node.due, node.arrival));
                    prop_assert_eq!(queues.pop(queue).map(|(node, _)| (node.due, node.arrival)), head);
                }
                10 => {
                    if let Some((node, frame)) = queues.pop(queue) {
                        let again =
                            Node { on_time: due < 20, due: node.due + u64::from(due >= 20), children: [NIL; 2], ..node };
                        let is_in = queues.put_back(again, &frame);
                        prop_assert!(is_in);
                        check_all(&queues);
                        let head = queues.pop(queue).unwrap().0;
                        prop_assert!(head.arrival < FIRST_ARRIVAL, "another one came first");
                    }
                }
                _ => queues.remove(&mut |frame| frame.tenant == tenant, &mut |_| ()),
            }
            check_all(&queues);
        }
    }
}

#[test]
fn right_spines_stay_short_however_frames_arrive() {
    const COUNT: u64 = 4_095;
    for due in [|i: u64| i, |i: u64| COUNT - i, |i: u64| i % 64, |i: u64| i * 2_654_435_761 % 4_093, |_| 0] {
        let mut queues = Two::new(COUNT as usize);
        for i in 0..COUNT {
            assert!(push(&mut queues, 1, due(i), 0));
            assert!(spine(&queues, 1) <= (i + 2).ilog2());
        }
        let mut popped = Vec::new();
        while let Some((node, _)) = queues.pop(1) {
            popped.push((node.due, node.arrival));
            assert!(spine(&queues, 1) <= (queues.len as u64 + 1).ilog2());
        }
        assert!(popped.is_sorted() && popped.len() == COUNT as usize);
    }
}
