// SPDX-License-Identifier: Apache-2.0
//! How much of each second may be spent spinning.
//!
//! In: how long each spin took. Out: whether another one may begin. Threads can share a budget without a lock: where two of them
//! begin a second at the same instant, the spins that they count at that instant may fall into either second.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use ktsn_time::{Monotonic, Nanos, Span};

const SECOND: Span = Span::from_nanos(1_000_000_000);
/// A share is in parts per thousand of a second: so many nanoseconds each.
const PERMILLE_NANOS: u64 = 1_000_000;

/// A share of each second for spinning.
#[derive(Debug)]
pub struct SpinBudget {
    permille: AtomicU32,
    second_began: AtomicU64,
    spent: AtomicU64,
}

impl SpinBudget {
    /// A budget of `permille` thousandths of each second.
    #[must_use]
    pub const fn new(permille: u32) -> Self {
        Self { permille: AtomicU32::new(permille), second_began: AtomicU64::new(0), spent: AtomicU64::new(0) }
    }

    /// Sets the share to `permille` thousandths of each second, this one included.
    pub fn set(&self, permille: u32) {
        self.permille.store(permille, Relaxed);
    }

    /// How long spins may still take in the second that `now` is in.
    #[must_use]
    pub fn left(&self, now: Monotonic) -> Span {
        let began = self.second_began.load(Relaxed);
        // A second that began later than `now` was begun by another thread just before.
        let is_over = now.span_since(Monotonic::from_nanos(began)) >= SECOND;
        if is_over && self.second_began.compare_exchange(began, now.as_nanos(), Relaxed, Relaxed).is_ok() {
            self.spent.store(0, Relaxed);
        }
        self.a_second().saturating_sub(Span::from_nanos(self.spent.load(Relaxed)))
    }

    /// True when a spin may begin at `now`.
    #[must_use]
    pub fn allows(&self, now: Monotonic) -> bool {
        self.left(now) > Span::ZERO
    }

    /// True when a spin may begin at `now` that only frames without transmit time gain from. The last quarter of the budget is not
    /// for them.
    #[must_use]
    pub fn allows_untimed(&self, now: Monotonic) -> bool {
        self.left(now).as_nanos() > self.a_second().as_nanos() >> 2
    }

    /// Counts a spin that took so long. A negative span counts as none.
    pub fn spend(&self, span: Nanos) {
        let more = Span::not_negative(span).as_nanos();
        let _ = self.spent.fetch_update(Relaxed, Relaxed, |spent| Some(spent.saturating_add(more)));
    }

    fn a_second(&self) -> Span {
        Span::from_nanos(u64::from(self.permille.load(Relaxed)) * PERMILLE_NANOS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Monotonic {
        Monotonic::from_nanos(10_000_000_000 + ms * 1_000_000)
    }

    #[test]
    fn the_budget_is_per_second() {
        let budget = SpinBudget::new(800);
        assert!(budget.allows(at(0)));
        budget.spend(Nanos::from_millis(799));
        assert!(budget.allows(at(900)));
        assert_eq!(budget.left(at(900)), Span::from_nanos(1_000_000));
        budget.spend(Nanos::from_millis(1));
        assert!(!budget.allows(at(999)));
        assert!(budget.allows(at(1000)));
        assert!(!SpinBudget::new(0).allows(at(5000)));
        assert!(!SpinBudget::new(0).allows_untimed(at(5000)));
        let budget = SpinBudget::new(800);
        assert!(budget.allows_untimed(at(0)));
        budget.spend(Nanos::from_millis(600));
        assert!(!budget.allows_untimed(at(900)) && budget.allows(at(900)));
        assert!(budget.allows_untimed(at(1000)));
    }

    #[test]
    fn a_share_that_changes_counts_at_once() {
        let budget = SpinBudget::new(0);
        assert!(!budget.allows(at(0)));
        budget.set(100);
        assert_eq!(budget.left(at(1)), Span::from_nanos(100_000_000));
        budget.spend(Nanos::from_millis(60));
        budget.set(50);
        assert!(!budget.allows(at(2)));
        budget.spend(Nanos::from_millis(-60));
        assert!(!budget.allows(at(3)));
    }

    proptest! {
        /// In one second no spin begins once the share is spent, and the next second has all of it again, up to the ends of the clock.
        #[test]
        fn no_second_spends_more_than_its_share(
            permille in 0u32..=1_000,
            began in any::<u64>(),
            spins in proptest::collection::vec((0u64..50_000_000, any::<i64>()), 1..50),
        ) {
            let budget = SpinBudget::new(permille);
            let (mut now, mut second, mut spent) = (Monotonic::from_nanos(began), Monotonic::ZERO, 0u128);
            for (pause, span) in spins {
                now = now.after(Span::from_nanos(pause));
                if now.as_nanos() - second.as_nanos() >= 1_000_000_000 {
                    (second, spent) = (now, 0);
                }
                let share = u128::from(permille) * 1_000_000;
                prop_assert_eq!(budget.allows(now), spent < share);
                prop_assert_eq!(u128::from(budget.left(now).as_nanos()), share.saturating_sub(spent));
                budget.spend(Nanos::new(span));
                spent += u128::from(span.max(0).unsigned_abs());
            }
        }
    }
}
