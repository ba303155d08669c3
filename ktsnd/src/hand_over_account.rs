// SPDX-License-Identifier: Apache-2.0
//! What the hand-overs by one pod's interface cost, and whether that is within the budget.
//!
//! In: how long each hand-over took. Out: the longest one of the last minute, and whether the pod used more than
//! [`limits::HAND_OVER_BUDGET`]. A pod with CAP_NET_ADMIN in its namespace decides what the kernel does with its frames: the egress
//! hook of nftables with 20,000 rules takes half a millisecond. Only time beyond [`limits::HAND_OVER_USUAL`] is charged, so
//! ordinary frames are free, however many there are. It never allocates: workers use it.

use ktsn_time::{Monotonic, Nanos};

use crate::limits;

/// The span for which the longest hand-over is remembered.
pub(crate) const REMEMBERED: Nanos = Nanos::from_seconds(60);
/// The budget comes back within a second: this part of the elapsed time.
const REFILL: i64 = 1_000_000_000 / limits::HAND_OVER_BUDGET.get();

/// The account of one interface.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOverAccount {
    longest: Nanos,
    longest_at: Monotonic,
    left: Nanos,
    left_at: Monotonic,
}

impl HandOverAccount {
    /// Nothing was charged yet.
    pub(crate) fn new() -> Self {
        Self {
            longest: Nanos::ZERO,
            longest_at: Monotonic::ZERO,
            left: limits::HAND_OVER_BUDGET,
            left_at: Monotonic::ZERO,
        }
    }

    /// Charges a hand-over that took `took` and ended at `now`. False: it was beyond the budget.
    pub(crate) fn charge(&mut self, took: Nanos, now: Monotonic) -> bool {
        if took >= self.longest || now.since(self.longest_at) > REMEMBERED {
            (self.longest, self.longest_at) = (took, now);
        }
        let excess = took.saturating_sub(limits::HAND_OVER_USUAL);
        if excess <= Nanos::ZERO {
            return true;
        }
        // One alone does not use up the budget: the machine may have stalled.
        let excess = excess.min(limits::HAND_OVER_CHARGE_MAX);
        let refill = Nanos::new(now.since(self.left_at).get().max(0) / REFILL);
        let left = self.left.saturating_add(refill).min(limits::HAND_OVER_BUDGET).saturating_sub(excess);
        (self.left, self.left_at) = (left.max(Nanos::ZERO), now);
        left >= Nanos::ZERO
    }

    /// Whether a hand-over was charged within the last second: the next one should be measured in CPU time.
    pub(crate) fn is_charged(&self, now: Monotonic) -> bool {
        self.left < limits::HAND_OVER_BUDGET && now.since(self.left_at) < Nanos::from_seconds(1)
    }

    /// How long the longest hand-over of the last minute took.
    pub(crate) fn longest(&self) -> Nanos {
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Monotonic {
        Monotonic::ZERO.saturating_add(Nanos::from_micros(micros))
    }

    /// After how many hand-overs of `took` microseconds, one each `every`, the budget is used up.
    fn count(took: i64, every: i64) -> Option<i64> {
        let mut account = HandOverAccount::new();
        (1..100_000).find(|i| !account.charge(Nanos::from_micros(took), at(1_000_000 + i * every.max(took))))
    }

    #[test]
    fn ordinary_hand_overs_are_free_and_long_ones_are_not() {
        assert_eq!(count(20, 20), None, "as fast as they go");
        assert_eq!(count(500, 1_000), Some(2));
        assert_eq!(count(50_000, 50_000), Some(2));
        // Just below what would be postponed, at a high rate; and a little above the usual.
        assert_eq!(count(99, 1_000), Some(7));
        assert!(count(22, 22).is_some_and(|n| n < 300));
        // What the budget leaves: some five of a thousand frames of others may meet one.
        assert_eq!(count(99, 200_000), None);
    }

    #[test]
    fn a_stall_alone_is_forgiven_and_the_next_one_a_second_later_too() {
        let mut account = HandOverAccount::new();
        for second in 1..100 {
            assert!(account.charge(Nanos::from_millis(30), at(second * 1_000_000)));
        }
        assert!(!account.charge(Nanos::from_millis(30), at(99_100_000)));
    }

    #[test]
    fn a_charge_is_known_for_a_second() {
        let mut account = HandOverAccount::new();
        account.charge(Nanos::from_micros(20), at(1_000_000));
        assert!(!account.is_charged(at(1_000_000)));
        account.charge(Nanos::from_micros(30), at(2_000_000));
        assert!(account.is_charged(at(2_900_000)) && !account.is_charged(at(3_000_000)));
    }

    #[test]
    fn the_longest_of_a_minute_counts() {
        let mut account = HandOverAccount::new();
        account.charge(Nanos::from_micros(500), at(2_000_000));
        account.charge(Nanos::from_micros(5), at(61_000_000));
        assert_eq!(account.longest(), Nanos::from_micros(500));
        account.charge(Nanos::from_micros(5), at(63_000_000));
        assert_eq!(account.longest(), Nanos::from_micros(5));
    }
}
