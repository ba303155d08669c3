// SPDX-License-Identifier: Apache-2.0
//! Decides which connection the registrar reads next.
//!  
//! In: connections with something to read, and the CPU time that each turn took. Out: one connection of the namespace that has
//! used the least lately. A namespace that keeps the registrar busy delays its own connections, however many it has; another
//! namespace's message is read next.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// After this time what was used counts half.
const WINDOW: Duration = Duration::from_millis(100);

/// The connections with something to read, by namespace.
#[derive(Debug)]
pub(super) struct Turns {
    ready: BTreeMap<u64, VecDeque<u64>>,
    spent: BTreeMap<u64, Duration>,
    since: Instant,
}

impl Turns {
    pub(super) fn new(now: Instant) -> Self {
        Self { ready: BTreeMap::new(), spent: BTreeMap::new(), since: now }
    }

    /// Adds a connection with something to read.
    pub(super) fn add(&mut self, netns_cookie: u64, number: u64) {
        self.ready.entry(netns_cookie).or_default().push_back(number);
    }

    /// The connection of the next turn, with its namespace.
    pub(super) fn next(&mut self) -> Option<(u64, u64)> {
        let netns_cookie = *self.ready.keys().min_by_key(|of| self.spent(**of))?;
        let line = self.ready.get_mut(&netns_cookie)?;
        let number = line.pop_front();
        if line.is_empty() {
            self.ready.remove(&netns_cookie);
        }
        Some((netns_cookie, number?))
    }

    /// The time that a namespace has used lately.
    pub(super) fn spent(&self, netns_cookie: u64) -> Duration {
        self.spent.get(&netns_cookie).copied().unwrap_or_default()
    }

    /// Accounts for a turn.
    pub(super) fn spend(&mut self, netns_cookie: u64, took: Duration, now: Instant) {
        while now.duration_since(self.since) >= WINDOW {
            self.since += WINDOW;
            self.spent.retain(|_, spent| {
                *spent /= 2;
                *spent > Duration::from_micros(1)
            });
            if self.spent.is_empty() {
                self.since = now;
            }
        }
        *self.spent.entry(netns_cookie).or_default() += took.max(Duration::from_nanos(1));
    }

    /// Forgets which connections had something to read: the registrar polls again.
    pub(super) fn clear(&mut self) {
        self.ready.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_micros(10);

    /// A thousand connections of one namespace, and one of another that comes later.
    #[test]
    fn who_has_used_little_comes_next() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        (1..=1000).for_each(|number| turns.add(7, number));
        for number in 1..=10 {
            assert_eq!(turns.next(), Some((7, number)));
            turns.spend(7, STEP, now);
        }
        turns.add(8, 5000);
        turns.add(8, 5001);
        assert_eq!(turns.next(), Some((8, 5000)));
        turns.spend(8, STEP * 20, now);
        // Time counts, not turns.
        for number in 11..=20 {
            assert_eq!(turns.next(), Some((7, number)));
            turns.spend(7, STEP, now);
        }
        turns.spend(7, STEP, now);
        assert_eq!(turns.next(), Some((8, 5001)));
        turns.clear();
        assert_eq!(turns.next(), None);
    }

    #[test]
    fn what_was_used_is_forgotten() {
        let now = Instant::now();
        let mut turns = Turns::new(now);
        turns.spend(7, Duration::from_secs(1), now);
        turns.spend(8, STEP, now + WINDOW * 1000);
        assert_eq!(turns.spent.len(), 1);
        turns.add(8, 1);
        turns.add(7, 2);
        assert_eq!(turns.next(), Some((7, 2)));
    }
}
