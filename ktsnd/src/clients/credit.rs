// SPDX-License-Identifier: Apache-2.0
//! CPU time of the examiner's threads, accounted by namespace.
//!  
//! In: what a job took. Out: whether its namespace may begin another one. Time that a job sleeps blocks only threads of its own
//! namespace, and is not accounted; nor is time that it waits for a CPU.

use std::time::{Duration, Instant};

/// What a namespace may use at once: some hundred programs that start together.
const MAX: Duration = Duration::from_millis(200);
/// What it gets back: one part of the elapsed time in this many.
const SHARE: u32 = 5;

/// The credit that one namespace has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    /// May be below zero: a job is never cut short.
    left_nanos: i64,
    at: Instant,
}

fn nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).unwrap_or(i64::MAX)
}

impl Credit {
    pub(super) fn full(now: Instant) -> Self {
        Self { left_nanos: nanos(MAX), at: now }
    }

    pub(super) fn refill(&mut self, now: Instant) {
        let more = nanos(now.duration_since(self.at) / SHARE);
        self.left_nanos = self.left_nanos.saturating_add(more).min(nanos(MAX));
        self.at = now;
    }

    pub(super) fn spend(&mut self, spent: Duration) {
        self.left_nanos = self.left_nanos.saturating_sub(nanos(spent));
    }

    pub(super) fn has_some(&self) -> bool {
        self.left_nanos > 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.left_nanos >= nanos(MAX)
    }
}

/// The CPU time of this thread.
pub(super) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_up_comes_back_slowly() {
        let began = Instant::now();
        let mut credit = Credit::full(began);
        assert!(credit.has_some() && credit.is_full());
        credit.spend(MAX * 2);
        assert!(!credit.has_some());
        credit.refill(began + MAX * SHARE);
        assert!(!credit.has_some(), "what was used beyond it has to come back, too");
        credit.refill(began + MAX * SHARE * 3 / 2);
        assert!(credit.has_some() && !credit.is_full());
        credit.refill(began + MAX * SHARE * 100);
        assert!(credit.is_full());
    }
}
