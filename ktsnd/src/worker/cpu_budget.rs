// SPDX-License-Identifier: Apache-2.0
//! How much of its CPU the worker may take.
//!
//! In: how long the worker was awake and how long it slept. Out: whether it may take on more work, or must rest first.
//! A worker that is awake all the time is stopped by the kernel (`sched_rt_runtime_us`, 950 ms of each second by default): for
//! 50 ms at once, and every frame that falls due in them is late. So the worker rests by itself, a tenth of a millisecond at a time.
//!
//! ```text
//!  tokens
//!    FULL ┤ any work
//!       0 ┤ rest: frames that are due are handed over, nothing new is taken over, until RESUME (while always more are due: of those alone
//!         │       that have few queued)
//!  -FULL  ┤ rest for a fixed span, even where a frame is due: it leaves late, counted
//! ```
//!
//! The worker gains [`SHARE_PERMILLE`] of each span and spends what it is awake. In a span T it is awake for at most
//! `SHARE · T + 2 · FULL`: 910 ms of any second.

use ktsn_time::{Monotonic, Nanos};

/// Share of its CPU that the worker may take, in parts per thousand.
pub(super) const SHARE_PERMILLE: i64 = 900;
/// The most that is saved, and the most that is owed.
pub(super) const FULL: Nanos = Nanos::from_millis(5);
/// A rest ends with so much saved: enough for a millisecond of work.
const RESUME: Nanos = Nanos::from_micros(100);
/// No rest is shorter. A rest that hands frames over all the time would gain nothing, and the next one would begin at once.
const REST_MIN: Nanos = Nanos::from_micros(20);
/// A rest that frames must wait for.
const FORCED_REST: Nanos = Nanos::from_micros(200);

/// What the worker may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowed {
    /// Anything.
    Work,
    /// Hand over due frames, and do nothing else for this span.
    Due(Nanos),
    /// Nothing for this span.
    Nothing(Nanos),
}

/// The account of the worker's CPU time.
#[derive(Debug)]
pub(super) struct CpuBudget {
    tokens: Nanos,
    /// What was counted as awake since `used`, a reading of the thread's CPU time.
    awake: Nanos,
    used: Option<Nanos>,
    /// When time was counted last.
    at: Monotonic,
    is_resting: bool,
}

impl CpuBudget {
    /// A full budget.
    pub(super) fn new() -> Self {
        Self { tokens: FULL, awake: Nanos::ZERO, used: None, at: Monotonic::ZERO, is_resting: false }
    }

    /// True where [`Self::allowed`] last said that the worker should rest.
    pub(super) fn should_rest(&self) -> bool {
        self.is_resting
    }

    /// Counts the time until `now`, which the worker was awake for.
    pub(super) fn awake(&mut self, now: Monotonic) {
        let span = self.since(now);
        self.awake = self.awake.saturating_add(span);
        let net = Nanos::new(span.get() / 1000 * (1000 - SHARE_PERMILLE));
        self.tokens = self.tokens.saturating_sub(net);
    }

    /// True when the thread's CPU time matters now ([`Self::correct`]).
    pub(super) fn is_spent(&self) -> bool {
        self.tokens <= Nanos::ZERO
    }

    /// Gives back what was counted as awake while the thread did not run, because the machine stalled or another thread had the
    /// CPU: the kernel does not count that either. `used`: the thread's CPU time.
    pub(super) fn correct(&mut self, used: Option<Nanos>) {
        if let Some(used) = used {
            // Nothing is known of the time before the first reading.
            let before = self.used.unwrap_or(used);
            let idle = self.awake.saturating_sub(used.saturating_sub(before)).max(Nanos::ZERO);
            self.tokens = self.tokens.saturating_add(idle).min(FULL);
        }
        (self.used, self.awake) = (used, Nanos::ZERO);
        // What is owed beyond this is forgiven: the kernel has stopped the thread for it already.
        self.tokens = self.tokens.max(Nanos::ZERO.saturating_sub(FULL.saturating_mul(2)));
    }

    /// Counts the time until `now`, which the worker slept for.
    pub(super) fn slept(&mut self, now: Monotonic) {
        let span = self.since(now);
        let gained = Nanos::new(span.get() / 1000 * SHARE_PERMILLE);
        self.tokens = self.tokens.saturating_add(gained).min(FULL);
    }

    /// Whole microseconds since the last count.
    fn since(&mut self, now: Monotonic) -> Nanos {
        let passed = now.since(self.at);
        if self.at == Monotonic::ZERO || passed.is_negative() {
            self.at = now;
            return Nanos::ZERO;
        }
        let span = Nanos::new(passed.get() / 1000 * 1000);
        self.at = self.at.saturating_add(span);
        span
    }

    /// What the worker may do now.
    pub(super) fn allowed(&mut self) -> Allowed {
        if self.tokens <= Nanos::ZERO {
            self.is_resting = true;
        } else if self.tokens >= RESUME {
            self.is_resting = false;
        }
        if !self.is_resting {
            return Allowed::Work;
        }
        if self.tokens <= Nanos::ZERO.saturating_sub(FULL) {
            return Allowed::Nothing(FORCED_REST);
        }
        let missing = RESUME.saturating_sub(self.tokens).get();
        // Handing over during the rest takes time, too: one rest is enough.
        Allowed::Due(Nanos::new(missing * 1000 / SHARE_PERMILLE + 1_000).max(REST_MIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_quiet_worker_never_rests() {
        let (mut budget, mut now) = (CpuBudget::new(), SECOND);
        for _ in 0..10_000 {
            now += 100_000;
            budget.awake(Monotonic::from_nanos(now));
            assert_eq!(budget.allowed(), Allowed::Work);
            now += 100_000;
            budget.slept(Monotonic::from_nanos(now));
        }
    }

    #[test]
    fn a_machine_that_stands_still_owes_nothing() {
        let (mut budget, mut now) = (CpuBudget::new(), SECOND);
        budget.awake(Monotonic::from_nanos(now));
        budget.correct(Some(Nanos::from_millis(7)));
        now += 300_000_000;
        budget.awake(Monotonic::from_nanos(now));
        assert!(budget.is_spent());
        budget.correct(Some(Nanos::from_millis(8)));
        assert_eq!((budget.tokens, budget.allowed()), (FULL, Allowed::Work));
    }

    proptest! {
        /// Whatever work comes, of any second at most 915 ms are spent awake, if rests are kept.
        #[test]
        fn no_second_is_used_up(steps in proptest::collection::vec((1_000u64..150_000, any::<bool>()), 40_000)) {
            let (mut budget, mut now) = (CpuBudget::new(), SECOND);
            // Spans awake: (begin, end).
            let mut awake: Vec<(u64, u64)> = Vec::new();
            for (span, is_due) in steps {
                let rest = match budget.allowed() {
                    Allowed::Work => None,
                    Allowed::Due(rest) => Some(rest).filter(|_| !is_due),
                    Allowed::Nothing(rest) => Some(rest),
                };
                match rest {
                    Some(rest) => {
                        now += rest.get().unsigned_abs();
                        budget.slept(Monotonic::from_nanos(now));
                    }
                    None => {
                        awake.push((now, now + span));
                        now += span;
                        budget.awake(Monotonic::from_nanos(now));
                    }
                }
            }
            let (mut first, mut sum) = (0, 0);
            for last in 0..awake.len() {
                sum += awake[last].1 - awake[last].0;
                while awake[first].0 + SECOND < awake[last].1 {
                    sum -= awake[first].1 - awake[first].0;
                    first += 1;
                }
                prop_assert!(sum <= 915_000_000, "{sum} ns awake in a second");
            }
        }
    }

    /// Frames that are handed over during a rest take some of it.
    #[test]
    fn a_rest_comes_to_its_end_though_the_worker_does_something_in_it() {
        let takes = Nanos::from_micros(3);
        let mut now = Monotonic::from_nanos(SECOND);
        let mut budget = CpuBudget::new();
        budget.awake(now);
        while budget.allowed() == Allowed::Work {
            now = now.saturating_add(Nanos::from_millis(1));
            budget.awake(now);
        }
        let mut rests = 0;
        while let Allowed::Due(span) = budget.allowed() {
            now = now.saturating_add(takes);
            budget.awake(now);
            now = now.saturating_add(span.saturating_sub(takes).max(Nanos::ZERO));
            budget.slept(now);
            rests += 1;
            assert!(rests < 4, "{budget:?}");
        }
        assert_eq!(budget.allowed(), Allowed::Work);
    }
}
