// SPDX-License-Identifier: Apache-2.0
//! Ports with hand-overs that take long: a pod's interface, where the pod's own rules run in the worker's thread.
//!
//! In: how long each hand-over took. Out: whether the next one may begin. A pod with CAP_NET_ADMIN in its namespace decides what
//! the kernel does with its frames (the egress hook of nftables, 20,000 rules: half a millisecond). So the longest
//! hand-over of a minute counts as what the next one takes, and none begins that might not end before the next frame of
//! another port. A frame that finds no such gap for [`limits::HELD_MAX`] is dropped as `port_error`. Ports with hand-overs within
//! [`SLOW`] are not concerned.

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_sched::{Decision, Strategy};
use ktsn_time::{Monotonic, Nanos, Now};

use super::transmit::Next;
use super::{Environment, Worker};
use crate::limits;

/// A hand-over that takes longer makes a port slow.
const SLOW: Nanos = Nanos::from_micros(100);
/// So long the longest hand-over counts.
const REMEMBERED: Nanos = Nanos::from_seconds(60);

/// What is known of a port's hand-overs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    longest: Nanos,
    at: Monotonic,
    /// Since when its frames find no gap.
    postponed_at: Option<Monotonic>,
}

impl Slow {
    pub(super) fn new() -> Self {
        Self { longest: Nanos::ZERO, at: Monotonic::ZERO, postponed_at: None }
    }

    /// A hand-over that ended at `now` took so long.
    pub(super) fn observe(&mut self, took: Nanos, now: Monotonic) {
        if took >= self.longest || now.since(self.at) > REMEMBERED {
            (self.longest, self.at) = (took, now);
        }
    }

    /// Whether the port is slow.
    pub(super) fn is_slow(&self) -> bool {
        self.longest > SLOW
    }

    /// How long its longest hand-over took.
    pub(super) fn longest(&self) -> Nanos {
        self.longest
    }

    /// Whether a hand-over may begin that ends before `next`, in `ahead`.
    fn fits(&self, ahead: Option<Nanos>) -> bool {
        let most = self.longest.saturating_add(limits::INTAKE_STOPS);
        ahead.is_none_or(|ahead| ahead > most)
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Whether a slow port must leave the CPU to `next`, the soonest frame of the others, for now. Frames that have waited for too
    /// long are dropped.
    #[cold]
    pub(super) fn is_postponed(&mut self, port: usize, next: Option<Next>, now: Now) -> bool {
        let Some(state) = self.ports[port].as_mut() else { return false };
        if !state.slow.is_slow() || state.slow.fits(next.map(|next| next.at.ahead_of(now))) {
            state.slow.postponed_at = None;
            return false;
        }
        let since = *state.slow.postponed_at.get_or_insert(now.monotonic);
        if now.monotonic.since(since) > limits::HELD_MAX {
            for _ in 0..limits::REMOVED_A_PASS {
                let Some(state) = self.ports[port].as_mut() else { break };
                match state.sched.decide(now) {
                    Decision::Transmit { frame, .. } => {
                        self.drop_frame(frame.id, frame.tenant, DropReason::PortError);
                    }
                    Decision::Drop { frame, reason } => self.drop_frame(frame.id, frame.tenant, reason),
                    Decision::WakeAt { .. } | Decision::Idle => break,
                }
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_hand_over_of_a_minute_counts() {
        let at = |seconds: i64| Monotonic::ZERO.saturating_add(Nanos::from_seconds(seconds));
        let mut slow = Slow::new();
        slow.observe(Nanos::from_micros(5), at(1));
        assert!(!slow.is_slow());
        slow.observe(Nanos::from_micros(500), at(2));
        slow.observe(Nanos::from_micros(5), at(61));
        assert!(slow.is_slow() && slow.longest() == Nanos::from_micros(500));
        assert!(!slow.fits(Some(Nanos::from_micros(510))) && slow.fits(Some(Nanos::from_micros(600))));
        assert!(slow.fits(None));
        slow.observe(Nanos::from_micros(5), at(63));
        assert!(!slow.is_slow());
    }
}
