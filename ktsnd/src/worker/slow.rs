// SPDX-License-Identifier: Apache-2.0
//! Ports with hand-overs that take too long: a pod's interface, where the pod's own rules run in the worker's thread.
//!
//! In: how long each hand-over took. Out: news for the node when a pod is beyond its budget ([`HandOvers`]), and whether the next
//! hand-over may begin. The node opens the interface again, with a thread of its own, and replaces the port. Until then the
//! longest hand-over of a minute counts as what the next one takes, and none begins that might not end before the next frame
//! of another port. A frame that finds no such gap for [`limits::HELD_MAX`] is dropped as `port_error`. Ports within the budget
//! are not concerned.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_resolve::PortIndex;
use ktsn_sched::{Decision, Strategy};
use ktsn_time::{Monotonic, Nanos, Now};

use super::command::Returned;
use super::transmit::Next;
use super::{Environment, PortState, Worker};
use crate::hand_overs::{HandOvers, REMEMBERED};
use crate::limits;

/// What is known of a port's hand-overs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slow {
    account: HandOvers,
    /// When they were beyond the budget last.
    beyond_at: Option<Monotonic>,
    /// When the last news went to the node.
    told_at: Monotonic,
    /// Since when its frames find no gap.
    postponed_at: Option<Monotonic>,
}

impl Slow {
    pub(super) fn new() -> Self {
        Self { account: HandOvers::new(), beyond_at: None, told_at: Monotonic::ZERO, postponed_at: None }
    }

    /// A hand-over that ended at `now` took so long. True when the node needs the news that the port is beyond its budget.
    pub(super) fn observe(&mut self, took: Nanos, now: Monotonic) -> bool {
        if self.account.charge(took, now) {
            return false;
        }
        self.beyond_at = Some(now);
        let is_to_tell = now.since(self.told_at) >= limits::NEWS_PAUSE;
        if is_to_tell {
            self.told_at = now;
        }
        is_to_tell
    }

    /// Whether the next hand-over is to be measured in CPU time, too: the last one may have been long as the thread did not run.
    pub(super) fn is_suspect(&self, now: Monotonic) -> bool {
        self.account.is_charged(now)
    }

    /// Whether the port is slow: beyond its budget within the last minute.
    #[inline]
    pub(super) fn is_slow(&self, now: Monotonic) -> bool {
        self.beyond_at.is_some_and(|at| now.since(at) <= REMEMBERED)
    }

    /// How long its longest hand-over took.
    pub(super) fn longest(&self) -> Nanos {
        self.account.longest()
    }

    /// Whether a hand-over may begin that ends before `next`, in `ahead`.
    fn fits(&self, ahead: Option<Nanos>) -> bool {
        let most = self.longest().saturating_add(limits::INTAKE_STOPS);
        ahead.is_none_or(|ahead| ahead > most)
    }
}

impl<P: Port> PortState<P> {
    /// Puts the successor in the port's place; the port that it replaces. A pod's port first sends what was committed, so that no
    /// frame overtakes another: `None` until then.
    pub(super) fn succeed(&mut self) -> Option<Box<P>> {
        if self.is_pods {
            self.port.reap();
            if self.port.occupancy().in_flight > 0 {
                return None;
            }
        }
        let successor = self.successor.take()?;
        self.slow = Slow::new();
        Some(std::mem::replace(&mut self.port, successor))
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// A hand-over by a pod's interface took `took`. `cpu`: the thread's CPU time when it began, where it matters.
    pub(super) fn account(&mut self, port: usize, took: Nanos, cpu: Option<Nanos>, now: Monotonic) {
        let used = cpu.and_then(|began| Some(self.env.cpu_time()?.saturating_sub(began)));
        let took = used.map_or(took, |used| used.min(took));
        let Some(Some(state)) = self.ports.get_mut(port) else { return };
        let is_to_tell = state.slow.observe(took, now);
        if state.slow.is_slow(now) {
            let longest = state.slow.longest();
            state.stats.hand_over_ns.store(longest.get().unsigned_abs(), Relaxed);
            if is_to_tell {
                self.inbox.tell(Returned::PortSlow(PortIndex(port as u16), longest));
            }
        }
    }

    /// Whether a slow port must leave the CPU to `next`, the soonest frame of the others, for now. Frames that have waited for too
    /// long are dropped.
    #[cold]
    pub(super) fn is_postponed(&mut self, port: usize, next: Option<Next>, now: Now) -> bool {
        let Some(state) = self.ports[port].as_mut() else { return false };
        if !state.slow.is_slow(now.monotonic) || state.slow.fits(next.map(|next| next.at.ahead_of(now))) {
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
    fn a_port_beyond_its_budget_is_slow_for_a_minute_and_told_of_at_a_bounded_rate() {
        let at = |millis: i64| Monotonic::ZERO.saturating_add(Nanos::from_millis(millis));
        let mut slow = Slow::new();
        assert!(!slow.observe(Nanos::from_micros(500), at(1_000)) && !slow.is_slow(at(1_000)));
        assert!(slow.observe(Nanos::from_micros(500), at(1_001)) && slow.is_slow(at(1_001)));
        let told = (1_002..1_101).filter(|millis| slow.observe(Nanos::from_micros(400), at(*millis))).count();
        assert_eq!(told, 9);
        assert!(!slow.fits(Some(Nanos::from_micros(510))) && slow.fits(Some(Nanos::from_micros(600))));
        assert!(slow.fits(None));
        // Where no hand-over begins, the minute passes all the same.
        assert!(slow.is_slow(at(61_000)) && !slow.is_slow(at(61_200)));
    }
}
