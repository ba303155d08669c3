// SPDX-License-Identifier: Apache-2.0
//! When a program blocks a thread, and how many threads a namespace may block.
//!
//! In: a thread and how long it has been at its job; blocked threads. Out: whether the thread waits for a program (for example for the
//! lock of a socket that the program holds: a page under its `sendmsg` that faults slowly), and whether the namespace may block one
//! more. Time that a thread waits for a CPU does not count, up to a second. Each namespace has a bound of its own: blocked sockets of
//! one namespace cost no other namespace a thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// How long a marker may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// How long any job may take, with the time that it waits for a CPU.
pub(super) const CPU_PATIENCE: Duration = Duration::from_secs(1);

/// Whether this thread sleeps. A thread that runs, or waits for a CPU, does not. 0: it has not begun.
pub(super) fn waits(thread: i32) -> bool {
    // `PID (NAME) STATE …`; a thread whose state cannot be read counts as sleeping.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    thread != 0 && !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

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
    use ktsn_eventually::eventually;
    use std::sync::mpsc;
    use std::thread::JoinHandle;

    /// A thread that runs `job` until it is over, and its number.
    fn thread(job: impl FnOnce() + Send + 'static) -> (JoinHandle<()>, i32) {
        let (tell, number) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            job();
        });
        (thread, number.recv().unwrap())
    }

    /// A thread may be on its way to where the test wants it.
    const SOON: Duration = Duration::from_secs(10);

    #[test]
    fn a_thread_that_sleeps_waits_and_one_that_runs_does_not() {
        assert!(!waits(0));
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let (runner, number) = thread(move || {
            while !over.load(SeqCst) {
                std::hint::black_box(());
            }
        });
        eventually("it runs, or waits for a CPU", SOON, || !waits(number));
        is_over.store(true, SeqCst);
        runner.join().unwrap();
        let (wake, sleeps) = mpsc::channel::<()>();
        let (sleeper, number) = thread(move || assert!(sleeps.recv().is_err()));
        eventually("it sleeps", SOON, || waits(number));
        drop(wake);
        sleeper.join().unwrap();
    }

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
