// SPDX-License-Identifier: Apache-2.0
//! The earliest of many instants that change one by one.
//!
//! In: an instant for a place, or none. Out: the place with the earliest one, and how many come up to an instant. It is a tournament
//! tree: a change costs one comparison for each level (ten for a thousand places), the earliest costs as many. Memory is allocated
//! when it is made.

use ktsn_time::Monotonic;

/// No instant.
const NONE: Monotonic = Monotonic::MAX;

/// Instants by place.
#[derive(Debug)]
pub(super) struct Earliest {
    /// Node n is the earlier of nodes 2n and 2n + 1; the places are the last half.
    nodes: Box<[Monotonic]>,
}

impl Earliest {
    /// Room for `count` instants, rounded up to a power of two; none is set.
    pub(super) fn new(count: usize) -> Self {
        Self { nodes: vec![NONE; 2 * count.next_power_of_two()].into_boxed_slice() }
    }

    fn half(&self) -> usize {
        self.nodes.len() / 2
    }

    /// Sets the instant of a place; `None`: it has none.
    pub(super) fn set(&mut self, place: usize, at: Option<Monotonic>) {
        let mut node = self.half() + place;
        if node >= self.nodes.len() {
            return;
        }
        self.nodes[node] = at.unwrap_or(NONE);
        while node > 1 {
            let earlier = self.nodes[node].min(self.nodes[node ^ 1]);
            node /= 2;
            if self.nodes[node] == earlier {
                return;
            }
            self.nodes[node] = earlier;
        }
    }

    /// The place with the earliest instant, and that instant; `None`: no place has one.
    #[inline]
    pub(super) fn first(&self) -> Option<(usize, Monotonic)> {
        let at = self.nodes[1];
        if at == NONE {
            return None;
        }
        let mut node = 1;
        while node < self.half() {
            node = 2 * node + usize::from(self.nodes[2 * node] != at);
        }
        Some((node - self.half(), at))
    }

    /// How many places have an instant up to `until`, `most` at most. It costs a few comparisons for each that is counted.
    pub(super) fn count_until(&self, until: Monotonic, most: usize) -> usize {
        let mut count = 0;
        self.add_until(1, until, most, &mut count);
        count
    }

    /// Adds the places below `node`. It is as deep as the tree: ten steps for a thousand places.
    fn add_until(&self, node: usize, until: Monotonic, most: usize, count: &mut usize) {
        if *count >= most || self.nodes[node] > until || self.nodes[node] == NONE {
            return;
        }
        if node >= self.half() {
            *count += 1;
            return;
        }
        self.add_until(2 * node, until, most, count);
        self.add_until(2 * node + 1, until, most, count);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is set in whatever order, the answers are those of a list that is searched from one end to the other.
        #[test]
        fn answers_as_a_plain_list(
            count in 1usize..40,
            changes in proptest::collection::vec((0usize..40, proptest::option::of(0u64..60)), 0..200),
            until in 0u64..70,
            most in 0usize..20,
        ) {
            let (mut tree, mut list) = (Earliest::new(count), vec![None; count]);
            for (place, at) in changes {
                let (place, at) = (place % count, at.map(Monotonic::from_nanos));
                tree.set(place, at);
                list[place] = at;
                let earliest = list.iter().flatten().min().copied();
                let first = tree.first();
                prop_assert_eq!(first.map(|(_, at)| at), earliest);
                prop_assert!(first.is_none_or(|(place, at)| list[place] == Some(at)));
            }
            let until = Monotonic::from_nanos(until);
            let counted = list.iter().flatten().filter(|at| **at <= until).count();
            prop_assert_eq!(tree.count_until(until, most), counted.min(most));
        }
    }

    #[test]
    fn a_place_beyond_the_last_one_is_ignored() {
        let mut tree = Earliest::new(3);
        tree.set(4, Some(Monotonic::ZERO));
        assert_eq!(tree.first(), None);
        tree.set(2, Some(Monotonic::ZERO));
        assert_eq!((tree.first(), tree.count_until(NONE, 9)), (Some((2, Monotonic::ZERO)), 1));
    }
}
