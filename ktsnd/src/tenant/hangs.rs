// SPDX-License-Identifier: Apache-2.0
//! Bounds the threads that a namespace may block, and counts those that the notifier left behind with a program's socket.
//!  
//! Each namespace has a bound of its own: blocked sockets of one namespace cost no other namespace a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Threads that one namespace may block at a time: a program that forks has any number of processes.
const OF_ONE_MAX: usize = 4;
/// When all namespaces together block this number, each may block one. So there are never more than these and one for each
/// namespace, and a namespace that blocks none always has a thread.
const OF_ALL_MANY: usize = 32;

/// Whether a namespace that blocks `of_one` of `of_all` threads may block no more.
pub(super) const fn is_full(of_one: usize, of_all: usize) -> bool {
    of_one >= if of_all < OF_ALL_MANY { OF_ONE_MAX } else { 1 }
}

/// Threads left behind, each with the namespace of its client.
#[derive(Default)]
pub(super) struct Hangs(Vec<(u64, Arc<AtomicBool>)>);

impl Hangs {
    /// Remembers a namespace with a blocked thread; `is_over` becomes true when the thread goes on.
    pub(super) fn add(&mut self, netns_cookie: u64, is_over: Arc<AtomicBool>) {
        self.0.push((netns_cookie, is_over));
    }

    /// Whether so many sockets of this namespace are blocked that no more may be touched.
    pub(super) fn is_full_of(&mut self, netns_cookie: u64) -> bool {
        self.0.retain(|(_, is_over)| !is_over.load(SeqCst));
        is_full(self.0.iter().filter(|(of, _)| *of == netns_cookie).count(), self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_has_none_may_have_one() {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut hangs = Hangs::default();
        let mut hang = |netns_cookie| {
            let may = !hangs.is_full_of(netns_cookie);
            if may {
                hangs.add(netns_cookie, is_over.clone());
            }
            may
        };
        for netns_cookie in 1..=8 {
            assert_eq!([(); 5].map(|()| hang(netns_cookie)), [true, true, true, true, false]);
        }
        for netns_cookie in 9..=12 {
            assert_eq!([(); 2].map(|()| hang(netns_cookie)), [true, false]);
        }
        is_over.store(true, SeqCst);
        assert!(hang(1));
    }
}
