// SPDX-License-Identifier: Apache-2.0
//! Decides which client is notified next of changed tables, and how much of it at once.
//!  
//! In: clients for which something may have changed, by namespace, and the time. Out: one client of the namespace that has used
//! the least lately, while the limits of its namespace and of all namespaces hold. A *look* is the tables of one client, or the
//! comparison of one stream. A client has up to 1,024 streams and a pod 128 clients, and the pod's root can change the tables
//! at any rate.

use std::collections::{BTreeMap, VecDeque};
use std::time::Instant;

use super::pace::WINDOW;

/// Looks of one namespace in a [`WINDOW`]: 64 clients with one connected stream each.
pub(super) const LOOKS_OF_ONE: usize = 128;
/// Looks of all namespaces in a [`WINDOW`]. Each can become a command. A worker that always has a frame to send applies 320 in that
/// time, so its queue does not fill with these.
pub(super) const LOOKS_OF_ALL: usize = 256;
/// Looks at one client before the next client's turn.
pub(super) const LOOKS_OF_A_CLIENT: usize = 16;

/// The clients that wait to be notified.
#[derive(Debug)]
pub(super) struct Following {
    lines: BTreeMap<u64, VecDeque<u64>>,
    /// Looks of each namespace since `since`.
    looks: BTreeMap<u64, usize>,
    looks_of_all: usize,
    since: Instant,
}

impl Following {
    pub(super) fn new(now: Instant) -> Self {
        Self { lines: BTreeMap::new(), looks: BTreeMap::new(), looks_of_all: 0, since: now }
    }

    /// Adds a client that must be notified. It must not be in line yet.
    pub(super) fn add(&mut self, netns_cookie: u64, number: u64) {
        self.lines.entry(netns_cookie).or_default().push_back(number);
    }

    /// Whether no client waits.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The next client, its namespace and the most looks that it may have; of the namespace with the least `spent`.
    pub(super) fn next<T: Ord>(
        &mut self,
        now: Instant,
        spent: impl Fn(u64) -> T,
    ) -> Option<(u64, u64, usize)> {
        if now.duration_since(self.since) >= WINDOW {
            (self.since, self.looks_of_all) = (now, 0);
            self.looks.clear();
        }
        let left = |of: u64| LOOKS_OF_ONE.saturating_sub(self.looks.get(&of).copied().unwrap_or(0));
        let of_all = LOOKS_OF_ALL.saturating_sub(self.looks_of_all);
        let may_go_on = self.lines.keys().copied().filter(|of| of_all > 0 && left(*of) > 0);
        let netns_cookie = may_go_on.min_by_key(|of| spent(*of))?;
        let most = left(netns_cookie).min(of_all).min(LOOKS_OF_A_CLIENT);
        let line = self.lines.get_mut(&netns_cookie)?;
        let number = line.pop_front();
        if line.is_empty() {
            self.lines.remove(&netns_cookie);
        }
        Some((netns_cookie, number?, most))
    }

    /// Counts the looks that were needed.
    pub(super) fn spend(&mut self, netns_cookie: u64, looks: usize) {
        *self.looks.entry(netns_cookie).or_default() += looks;
        self.looks_of_all += looks;
    }
}

/// Which streams of a client are still to be compared: a whole round, from where the last round stopped. So a round that is begun
/// again and again reaches each stream all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Round {
    next: u32,
    /// Indices from `next` on, and then from 0 on.
    left: u32,
}

impl Round {
    /// Begins a round over `count` indices.
    pub(super) fn begin(&mut self, count: u32) {
        self.left = count;
    }

    /// Whether no index is left.
    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// The next index in use, of `count`; `first_from` finds the first index in use from an index on.
    pub(super) fn next(&mut self, count: u32, first_from: impl Fn(u32) -> Option<u32>) -> Option<u32> {
        while self.left > 0 {
            let found = first_from(self.next).filter(|index| *index < count);
            let passed = found.map_or(count, |index| index + 1) - self.next;
            if passed - u32::from(found.is_some()) >= self.left {
                // It lies behind the round's end.
                self.next = (self.next + self.left) % count;
                self.left = 0;
                return None;
            }
            self.next = (self.next + passed) % count;
            self.left -= passed;
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A namespace with many clients has its part of a window, and another one's client comes before its further ones.
    #[test]
    fn so_many_looks_in_a_window() {
        let began = Instant::now();
        let mut following = Following::new(began);
        (0..100).for_each(|number| following.add(7, number));
        let mut spent = BTreeMap::from([(7, 0), (8, 0), (9, 0)]);
        let mut go = |following: &mut Following, now| {
            let (netns_cookie, number, most) = following.next(now, |of| spent[&of])?;
            following.spend(netns_cookie, most);
            *spent.get_mut(&netns_cookie).unwrap() += most;
            following.add(netns_cookie, number);
            Some((netns_cookie, number))
        };
        assert_eq!(go(&mut following, began), Some((7, 0)));
        following.add(8, 1_000);
        assert_eq!(go(&mut following, began), Some((8, 1_000)));
        let rest = std::iter::from_fn(|| go(&mut following, began)).count();
        assert_eq!(rest, (2 * LOOKS_OF_ONE).min(LOOKS_OF_ALL) / LOOKS_OF_A_CLIENT - 2);
        following.add(9, 2_000);
        assert_eq!(go(&mut following, began + WINDOW / 2), None, "all of them together have used their part");
        assert_eq!(go(&mut following, began + WINDOW), Some((9, 2_000)));
        assert!(!following.is_empty());
    }

    proptest! {
        /// A round meets each index in use once, wherever it begins, and one that is begun again goes on behind the last one.
        #[test]
        fn a_round_meets_each_once(there in proptest::collection::btree_set(0u32..40, 0..40), after in 0usize..60) {
            let first_from = |from: u32| there.range(from..).next().copied();
            let mut round = Round::default();
            prop_assert!(round.is_over() && round.next(40, first_from).is_none());
            round.begin(40);
            let first: Vec<u32> = std::iter::from_fn(|| round.next(40, first_from)).take(after).collect();
            round.begin(40);
            let all: Vec<u32> = std::iter::from_fn(|| round.next(40, first_from)).collect();
            prop_assert!(round.is_over());
            prop_assert_eq!(&all.iter().copied().collect::<BTreeSet<_>>(), &there);
            prop_assert_eq!(all.len(), there.len());
            if let [.., last] = first[..] && first.len() < there.len() {
                prop_assert_eq!(all.first().copied(), first_from(last + 1).or(first_from(0)));
            }
        }
    }
}
