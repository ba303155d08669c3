// SPDX-License-Identifier: Apache-2.0
//! Tells a thread that is blocked by a program from one that waits for a CPU.
//!  
//! In: how long the thread has been at a job, and its number. Out: whether it waits for a program, for example for the lock of a
//! socket that the program holds (a page under its `sendmsg` that faults slowly). Time that a thread waits for a CPU does not
//! count, up to a second.

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::sync::{Arc, mpsc};
    use std::thread::JoinHandle;
    use std::time::Instant;

    /// A thread that runs `job` until it is over, and its number.
    fn thread(job: impl FnOnce() + Send + 'static) -> (JoinHandle<()>, i32) {
        let (tell, number) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
            job();
        });
        (thread, number.recv().unwrap())
    }

    /// Whether `state` comes within ten seconds: a thread may be on its way to where the test wants it.
    fn comes(state: impl Fn() -> bool) -> bool {
        let end = Instant::now() + Duration::from_secs(10);
        while !state() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        state()
    }

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
        assert!(comes(|| !waits(number)), "it runs, or waits for a CPU");
        is_over.store(true, SeqCst);
        runner.join().unwrap();
        let (wake, sleeps) = mpsc::channel::<()>();
        let (sleeper, number) = thread(move || assert!(sleeps.recv().is_err()));
        assert!(comes(|| waits(number)), "it sleeps");
        drop(wake);
        sleeper.join().unwrap();
    }
}
