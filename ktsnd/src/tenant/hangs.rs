// SPDX-License-Identifier: Apache-2.0
//! How many threads a namespace may hold up, and those that the notifier left behind with a program's socket.
//!
//! There is a bound for each namespace, whatever the others do: those whose sockets hang take nobody's place.

use super::helper::Hang;

/// Threads that one namespace may hold up at a time: a program that forks has as many processes as it likes.
const OF_ONE_MAX: usize = 4;
/// Where all namespaces together hold up so many, each may hold up one. So there are never more than these and one for
/// each namespace, and whoever holds up none is always heard.
const OF_ALL_MANY: usize = 32;

/// Whether a namespace that holds up `of_one` of `of_all` threads may hold up no more.
pub(super) const fn is_full(of_one: usize, of_all: usize) -> bool {
    of_one >= if of_all < OF_ALL_MANY { OF_ONE_MAX } else { 1 }
}

/// Threads left behind, each with the namespace that it was left for.
#[derive(Default)]
pub(super) struct Hangs(Vec<(u64, Hang)>);

impl Hangs {
    /// Remembers whose socket hangs.
    pub(super) fn add(&mut self, netns_cookie: u64, hang: Hang) {
        self.0.push((netns_cookie, hang));
    }

    /// Whether so many sockets of this namespace hang that no more are to be touched.
    pub(super) fn is_full_of(&mut self, netns_cookie: u64) -> bool {
        self.0.retain(|(_, hang)| !hang.is_over());
        is_full(self.0.iter().filter(|(of, _)| *of == netns_cookie).count(), self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::helper::Helper;
    use super::*;
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex};

    /// Jobs that hang until they are released, one for each of these namespaces where it may have one more.
    #[test]
    fn whoever_has_none_may_have_one() {
        let (release, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let mut helper = Helper::new("ktsn-test", move |_: u64| drop(held.lock().map(|held| held.recv())));
        let mut hangs = Hangs::default();
        let mut hang = |hangs: &mut Hangs, netns_cookie| {
            let may = !hangs.is_full_of(netns_cookie);
            if may {
                assert!(helper.is_ready());
                let Err(Some(hang)) = helper.ask(netns_cookie) else { panic!("it hangs") };
                hangs.add(netns_cookie, hang);
            }
            may
        };
        for netns_cookie in 1..=8 {
            assert_eq!([(); 5].map(|()| hang(&mut hangs, netns_cookie)), [true, true, true, true, false]);
        }
        for netns_cookie in 9..=12 {
            assert_eq!([(); 2].map(|()| hang(&mut hangs, netns_cookie)), [true, false]);
        }
        drop(release);
        let began = std::time::Instant::now();
        while hangs.is_full_of(1) {
            assert!(began.elapsed() < std::time::Duration::from_secs(5));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
