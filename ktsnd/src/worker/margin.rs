// SPDX-License-Identifier: Apache-2.0
//! When to stop sleeping: the spin margin and the spin budget.
//!
//! In: how late each timed wake-up was, how long each spin took. Out: the margin to wake ahead of an event, and
//! whether spinning is still allowed in this second.
//!
//! ```text
//!        sleep                       spin               hand over
//! ───────────────────────┬─lateness─┬─────────────────┬──►
//!                   wake target   awake             TxTime
//!                        └────────── margin ──────────┘
//! ```

use ktsn_time::{Monotonic, Nanos};

use super::decaying::Decaying;
use crate::config::SpinMargin;

/// After so many wake-ups the margin is computed anew and older ones count a quarter less.
const SAMPLES_A_ROUND: u32 = 128;
/// Wake-ups that the margin should cover, in parts per thousand.
const COVERED_PERMILLE: u64 = 990;
const SMALLEST: Nanos = Nanos::from_micros(8);
const LARGEST: Nanos = Nanos::from_micros(120);
const RESERVE: Nanos = Nanos::from_micros(2);
const AT_START: Nanos = Nanos::from_micros(60);

/// How long before an event the worker wakes.
#[derive(Debug)]
pub struct Margin {
    /// In buckets of 1 µs.
    lateness: Decaying,
    since_update: u32,
    current: Nanos,
    adaptive: bool,
}

impl Margin {
    /// A margin by configuration.
    #[must_use]
    pub fn new(choice: SpinMargin) -> Self {
        let (current, adaptive) = match choice {
            SpinMargin::Adaptive => (AT_START, true),
            SpinMargin::Fixed(margin) => (margin, false),
        };
        Self { lateness: Decaying::new(), since_update: 0, current, adaptive }
    }

    /// The margin now.
    #[must_use]
    pub fn get(&self) -> Nanos {
        self.current
    }

    /// Tells how late a timed wake-up was.
    pub fn observe(&mut self, lateness: Nanos) {
        self.lateness.count(lateness.get() / 1000);
        self.since_update += 1;
        if self.since_update >= SAMPLES_A_ROUND {
            self.since_update = 0;
            self.update();
        }
    }

    fn update(&mut self) {
        if let Some(covered) = self.lateness.covered(COVERED_PERMILLE).filter(|_| self.adaptive) {
            let margin = Nanos::from_micros(covered).saturating_add(RESERVE);
            self.current = margin.clamp(SMALLEST, LARGEST);
        }
    }
}

/// How much of each second may be spent spinning.
#[derive(Debug)]
pub struct SpinBudget {
    a_second: Nanos,
    second_began: Monotonic,
    spent: Nanos,
}

impl SpinBudget {
    /// A budget of `permille` thousandths of each second.
    #[must_use]
    pub fn new(permille: u32) -> Self {
        let a_second = Nanos::from_micros(1000).saturating_mul(i64::from(permille));
        Self { a_second, second_began: Monotonic::ZERO, spent: Nanos::ZERO }
    }

    /// Whether a spin may begin at `now`.
    pub fn allows(&mut self, now: Monotonic) -> bool {
        if now.since(self.second_began) >= Nanos::from_seconds(1) {
            self.second_began = now;
            self.spent = Nanos::ZERO;
        }
        self.spent < self.a_second
    }

    /// Whether a spin may begin at `now` that only frames without transmit time gain from: the last quarter is not theirs.
    pub fn allows_untimed(&mut self, now: Monotonic) -> bool {
        self.allows(now) && self.spent.saturating_mul(4) < self.a_second.saturating_mul(3)
    }

    /// Tells how long a spin took.
    pub fn spend(&mut self, span: Nanos) {
        self.spent = self.spent.saturating_add(span);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// The adaptive margin covers what it promises and stays in its bounds, whatever the latenesses were.
        #[test]
        fn covers_the_latenesses_seen(late in proptest::collection::vec(-5_000i64..400_000, 128)) {
            let mut margin = Margin::new(SpinMargin::Adaptive);
            for l in &late {
                margin.observe(Nanos::new(*l));
            }
            let m = margin.get();
            prop_assert!(m >= SMALLEST && m <= LARGEST);
            let uncovered = late.iter().filter(|l| Nanos::new(**l) > m).count();
            prop_assert!(m == LARGEST || uncovered <= 2, "{uncovered} of 128 above {m}");
        }
    }

    #[test]
    fn a_fixed_margin_stays() {
        let mut margin = Margin::new(SpinMargin::Fixed(Nanos::from_micros(33)));
        for _ in 0..1000 {
            margin.observe(Nanos::from_micros(150));
        }
        assert_eq!(margin.get(), Nanos::from_micros(33));
    }

    #[test]
    fn the_margin_shrinks_again_when_the_machine_calms_down() {
        let mut margin = Margin::new(SpinMargin::Adaptive);
        for _ in 0..256 {
            margin.observe(Nanos::from_micros(100));
        }
        assert!(margin.get() > Nanos::from_micros(100));
        for _ in 0..128 * 40 {
            margin.observe(Nanos::from_micros(10));
        }
        assert_eq!(margin.get(), Nanos::from_micros(13));
    }

    #[test]
    fn the_budget_is_per_second() {
        let at = |ms: u64| Monotonic::from_nanos(10_000_000_000 + ms * 1_000_000);
        let mut budget = SpinBudget::new(800);
        assert!(budget.allows(at(0)));
        budget.spend(Nanos::from_millis(799));
        assert!(budget.allows(at(900)));
        budget.spend(Nanos::from_millis(1));
        assert!(!budget.allows(at(999)));
        assert!(budget.allows(at(1000)));
        assert!(!SpinBudget::new(0).allows(at(5000)));
        let mut budget = SpinBudget::new(800);
        assert!(budget.allows_untimed(at(0)));
        budget.spend(Nanos::from_millis(600));
        assert!(!budget.allows_untimed(at(900)) && budget.allows(at(900)));
        assert!(budget.allows_untimed(at(1000)));
    }
}
