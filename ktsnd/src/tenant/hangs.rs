// SPDX-License-Identifier: Apache-2.0
//! Threads that were left behind with a program's socket, and whose.
//!
//! In: such threads. Out: whether a namespace may have one more. There is a bound for each namespace, whatever the others do:
//! those whose sockets hang take nobody's place.

use super::helper::{Behind, Hang};

/// Sockets of one namespace that may hang at a time: a program that forks has as many processes as it likes.
const OF_ONE_MAX: usize = 4;
/// Where so many of all namespaces hang, a namespace may have one. So there are never more than these and one for each
/// namespace, and whoever has none is always heard.
const OF_ALL_MANY: usize = 32;

/// One of them; 0 = nobody knows whose.
struct Hanging {
    pid: u32,
    netns_cookie: u64,
    hang: Hang,
}

/// See the module.
#[derive(Default)]
pub(super) struct Hangs(Vec<Hanging>);

impl Hangs {
    /// Remembers whose socket hangs. Without a namespace it counts among the closers that hang.
    pub(super) fn add<J>(&mut self, pid: u32, netns_cookie: u64, behind: Behind<J>) {
        let hang = if netns_cookie == 0 { behind.into_hang() } else { behind.into_bounded_hang() };
        self.0.push(Hanging { pid, netns_cookie, hang });
    }

    /// Whether a socket of this process hangs.
    pub(super) fn has_of(&mut self, pid: u32) -> bool {
        self.forget();
        pid != 0 && self.0.iter().any(|hanging| hanging.pid == pid)
    }

    /// Whether so many sockets of this namespace hang that no more are to be touched.
    pub(super) fn is_full_of(&mut self, netns_cookie: u64) -> bool {
        self.forget();
        let of_all = self.0.iter().filter(|hanging| hanging.netns_cookie != 0).count();
        let of_one = self.0.iter().filter(|hanging| hanging.netns_cookie == netns_cookie).count();
        of_one >= if of_all < OF_ALL_MANY { OF_ONE_MAX } else { 1 }
    }

    fn forget(&mut self) {
        self.0.retain(|hanging| !hanging.hang.is_over());
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
                assert!(helper.is_ready(), "those that hang take no closer's place");
                let Err(Some(behind)) = helper.ask(netns_cookie) else { panic!("it hangs") };
                hangs.add(7, netns_cookie, behind);
            }
            may
        };
        for netns_cookie in 1..=8 {
            assert_eq!([(); 5].map(|()| hang(&mut hangs, netns_cookie)), [true, true, true, true, false]);
        }
        for netns_cookie in 9..=12 {
            assert_eq!([(); 2].map(|()| hang(&mut hangs, netns_cookie)), [true, false]);
        }
        assert!(hangs.has_of(7) && !hangs.has_of(8));
        drop(release);
        let began = std::time::Instant::now();
        while hangs.has_of(7) {
            assert!(began.elapsed() < std::time::Duration::from_secs(5));
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert!(!hangs.is_full_of(1));
    }
}
