// SPDX-License-Identifier: Apache-2.0
//! A port with hand-overs that take too long: a pod's interface, where the pod's own rules run in the worker's thread.
//!
//! In: how long each hand-over took. Out: whether the node is to be notified that a pod is beyond its budget ([`HandOverAccount`]), and
//! whether the next hand-over may begin. The node opens the interface again, with a thread of its own, and replaces the port.
//! Until then the longest hand-over of a minute counts as what the next one takes, and none begins that might not end before the
//! next frame of another port. A frame that finds no such gap for [`limits::RETRY_MAX`] is dropped as `port_error`. Ports within
//! the budget are not concerned.

use ktsn_time::{Monotonic, Nanos};

use crate::hand_over_account::{HandOverAccount, REMEMBERED};
use crate::limits;

/// The record of one port's hand-overs: whether they are within the budget, and since when not.
#[derive(Clone, Copy, Debug)]
pub(super) struct HandOverBudget {
    account: HandOverAccount,
    /// When they were beyond the budget last.
    beyond_at: Option<Monotonic>,
    /// When the node was notified last.
    notified_at: Monotonic,
    /// Since when its frames find no gap.
    postponed_at: Option<Monotonic>,
}

impl HandOverBudget {
    pub(super) fn new() -> Self {
        Self {
            account: HandOverAccount::new(),
            beyond_at: None,
            notified_at: Monotonic::ZERO,
            postponed_at: None,
        }
    }

    /// Counts a hand-over that took so long and ended at `now`. True when the node is to be notified that the port is beyond its
    /// budget.
    pub(super) fn observe(&mut self, took: Nanos, now: Monotonic) -> bool {
        if self.account.charge(took, now) {
            return false;
        }
        self.beyond_at = Some(now);
        let should_notify = now.since(self.notified_at) >= limits::NEWS_PAUSE;
        if should_notify {
            self.notified_at = now;
        }
        should_notify
    }

    /// True when the next hand-over is to be measured in CPU time, too: the last one may have been long because the thread did not
    /// run.
    pub(super) fn is_suspect(&self, now: Monotonic) -> bool {
        self.account.is_charged(now)
    }

    /// True when the port is slow: beyond its budget within the last minute.
    pub(super) fn is_slow(&self, now: Monotonic) -> bool {
        self.beyond_at.is_some_and(|at| now.since(at) <= REMEMBERED)
    }

    /// How long its longest hand-over took.
    pub(super) fn longest(&self) -> Nanos {
        self.account.longest()
    }

    /// How long hand-overs have been postponed for the next frame of the other ports, which is due in `ahead`; `None`: the next
    /// hand-over may begin.
    pub(super) fn postpone(&mut self, ahead: Option<Nanos>, now: Monotonic) -> Option<Nanos> {
        if !self.is_slow(now) || self.fits(ahead) {
            self.postponed_at = None;
            return None;
        }
        Some(now.since(*self.postponed_at.get_or_insert(now)))
    }

    /// True when a hand-over may begin that ends before the next frame, which is due in `ahead`.
    fn fits(&self, ahead: Option<Nanos>) -> bool {
        let most = self.longest().saturating_add(limits::INTAKE_STOPS);
        ahead.is_none_or(|ahead| ahead > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_beyond_its_budget_is_slow_for_a_minute_and_the_node_hears_of_it_at_a_bounded_rate() {
        let at = |millis: i64| Monotonic::ZERO.saturating_add(Nanos::from_millis(millis));
        let mut budget = HandOverBudget::new();
        assert!(!budget.observe(Nanos::from_micros(500), at(1_000)) && !budget.is_slow(at(1_000)));
        assert!(budget.observe(Nanos::from_micros(500), at(1_001)) && budget.is_slow(at(1_001)));
        let notified =
            (1_002..1_101).filter(|millis| budget.observe(Nanos::from_micros(400), at(*millis))).count();
        assert_eq!(notified, 9);
        assert!(!budget.fits(Some(Nanos::from_micros(510))) && budget.fits(Some(Nanos::from_micros(600))));
        assert!(budget.fits(None));
        // Where no hand-over begins, the minute passes all the same.
        assert!(budget.is_slow(at(61_000)) && !budget.is_slow(at(61_200)));
    }
}
