// SPDX-License-Identifier: Apache-2.0
//! When a thread that works on programs' sockets is taken for one that hangs.
//!
//! In: how long it has been at a job, and its number. Out: whether it waits for a program: one that holds the lock of a socket
//! for ever, for example (a page that faults slowly under its `sendmsg`). Time that a thread waits for a CPU is not held
//! against anybody, up to a second.

use std::time::Duration;

/// How long a marker may take.
pub(super) const PATIENCE: Duration = Duration::from_millis(50);
/// How long any job may take with what it waits for a CPU, before it begins or in its midst.
pub(super) const CPU_PATIENCE: Duration = Duration::from_secs(1);

/// Whether this thread sleeps: what runs, or could if there were a CPU, does not. 0: it has not begun.
pub(super) fn waits(thread: i32) -> bool {
    // `PID (NAME) STATE …`; one that cannot be read is taken for one that waits.
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    thread != 0 && !stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('R'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

    #[test]
    fn who_sleeps_waits_and_who_is_at_work_does_not() {
        assert!(!waits(0));
        let (tid, is_over) = (Arc::new(AtomicI32::new(0)), Arc::new(AtomicBool::new(false)));
        let (own, over) = (tid.clone(), is_over.clone());
        let thread = std::thread::spawn(move || {
            own.store(rustix::thread::gettid().as_raw_nonzero().get(), SeqCst);
            while !over.load(SeqCst) {
                std::hint::black_box(());
            }
        });
        while tid.load(SeqCst) == 0 {
            std::thread::yield_now();
        }
        assert!(!waits(tid.load(SeqCst)), "it runs, or waits for a CPU");
        is_over.store(true, SeqCst);
        thread.join().unwrap();
        // Linux: the first thread of a process has its number; it waits for this one here.
        assert!(waits(i32::try_from(std::process::id()).unwrap()));
    }
}
