// SPDX-License-Identifier: Apache-2.0
//! The worker's environment in the simulation: virtual clocks, a sleep that jumps, doorbells that are real sockets.
//!
//! Reading a clock takes time, and everything that is planned for that time happens while it is read. So programs
//! push, processes die and clocks step while the worker spins, as on a machine, but in one thread and in one order.

use std::cell::RefCell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::rc::Rc;

use ktsn_time::{Monotonic, Tai};
use ktsnd::worker::{Environment, Woken};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::world::World;

/// Doorbells reported in one call, as many as ktsnd's own host reports.
const BELLS_A_WAKE: usize = 64;

#[derive(Debug)]
struct Watched {
    number: u64,
    /// The worker's descriptor, to know it again.
    theirs: RawFd,
    ours: OwnedFd,
    muted: bool,
}

/// The environment.
#[derive(Debug)]
pub struct VirtualHost {
    world: Rc<RefCell<World>>,
    watched: Vec<Watched>,
}

impl VirtualHost {
    /// The environment of `world`.
    #[must_use]
    pub fn new(world: Rc<RefCell<World>>) -> Self {
        Self { world, watched: Vec::new() }
    }

    /// Numbers of the doorbells that can be read, at most 64.
    fn ringing(&self) -> Vec<u64> {
        let audible = || self.watched.iter().filter(|w| !w.muted);
        let mut fds: Vec<_> = audible().map(|w| PollFd::new(&w.ours, PollFlags::IN)).collect();
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut fds, Some(&zero)) {
            Ok(0) | Err(_) => Vec::new(),
            Ok(_) => audible()
                .zip(&fds)
                .filter(|(_, fd)| !fd.revents().is_empty())
                .map(|(w, _)| w.number)
                .take(BELLS_A_WAKE)
                .collect(),
        }
    }

    /// Tells what happened.
    fn tell(&self, most: usize, woken: &mut Woken) {
        woken.doorbells.extend(self.ringing().into_iter().take(most));
        let mut world = self.world.borrow_mut();
        (world.news.command, world.news.clock_set) = (false, false);
    }

    /// Whether there is news.
    fn is_news(&self) -> bool {
        let mut world = self.world.borrow_mut();
        if world.news.command || world.news.clock_set {
            return true;
        }
        if !world.news.bell {
            return false;
        }
        let any = !self.ringing().is_empty();
        // Nothing can be read any more: the sockets need not be read again before a client rings.
        world.news.bell = any;
        any
    }
}

impl Environment for VirtualHost {
    fn monotonic(&mut self) -> Monotonic {
        let mut world = self.world.borrow_mut();
        world.read_clock();
        let now = world.clocks.at() + world.broken.clock_ahead();
        Monotonic::from_nanos(now)
    }

    fn tai(&mut self) -> Tai {
        let mut world = self.world.borrow_mut();
        world.read_clock();
        let now = world.clocks.now().tai.as_nanos() + world.broken.clock_ahead();
        Tai::from_nanos(now)
    }

    fn sleep(&mut self, until: Monotonic, woken: &mut Woken) {
        let until = until.as_nanos();
        woken.clear();
        let mut news = self.is_news();
        while !news && self.world.borrow_mut().one_event_until(until) {
            news = self.is_news();
        }
        self.world.borrow_mut().wake(until, news);
        woken.timed_out = !news;
        if news {
            self.tell(BELLS_A_WAKE, woken);
        }
    }

    fn doze(&mut self, until: Monotonic) {
        let until = until.as_nanos();
        while self.world.borrow_mut().one_event_until(until) {}
        self.world.borrow_mut().wake(until, false);
    }

    fn read_doorbells(&mut self, most: usize, woken: &mut Woken) {
        woken.clear();
        if self.is_news() {
            self.tell(most, woken);
        }
    }

    fn watch(&mut self, doorbell: BorrowedFd<'_>, number: u64) -> Result<(), Errno> {
        let ours = rustix::io::fcntl_dupfd_cloexec(doorbell, 0)?;
        self.watched.push(Watched { number, theirs: doorbell.as_raw_fd(), ours, muted: false });
        self.watched.sort_by_key(|w| w.number);
        self.world.borrow_mut().news.bell = true;
        Ok(())
    }

    fn mute(&mut self, doorbell: BorrowedFd<'_>, _: u64, muted: bool) {
        for watched in self.watched.iter_mut().filter(|w| w.theirs == doorbell.as_fd().as_raw_fd()) {
            watched.muted = muted;
        }
        self.world.borrow_mut().news.bell = true;
    }

    fn unwatch(&mut self, doorbell: BorrowedFd<'_>) {
        self.watched.retain(|w| w.theirs != doorbell.as_raw_fd());
    }
}
