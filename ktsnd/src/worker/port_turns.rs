// SPDX-License-Identifier: Apache-2.0
//! Turns of the ports: which port hands frames over, and how many.
//!
//! In: what the ports' schedulers decide. Out: hand-overs; the soonest frame that is not due, or a port that may have more.
//! Uplinks come first, up to [`limits::FRAMES_A_TURN`] frames each. What the kernel does in a hand-over by a pod's interface is the
//! pod's matter in part, so such an interface hands over one frame, and more only while no uplink has a frame that is due. The
//! interfaces take turns. So a frame of an uplink that is due waits for one hand-over of one pod's interface at most.

use ktsn_port::Port;
use ktsn_sched::{Decision, Strategy};
use ktsn_time::{Nanos, Now, TxTime};

use super::due::Chosen;
use super::transmit::Next;
use super::{Environment, Worker};
use crate::limits;

/// What is known so far in one turn of all ports.
struct Turn {
    now: Now,
    /// The soonest frame that is not due, of the ports that were asked.
    soonest: Option<Next>,
    /// A port that may have more that is due.
    more: Option<usize>,
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Hands over what is due. The soonest frame that is not due, and a port that may have more that is.
    pub(super) fn transmit_turn(&mut self) -> (Option<Next>, Option<usize>) {
        let mut turn = Turn { now: self.env.now(), soonest: None, more: None };
        let (mut from, mut has_pods) = (0, false);
        while let Some(port) = self.busy.next(from) {
            from = port + 1;
            if self.is_pods(port) {
                has_pods = true;
                continue;
            }
            let mut left = limits::FRAMES_A_TURN;
            while self.step(port, &mut turn) {
                left -= 1;
                if left == 0 {
                    turn.more = Some(port);
                    break;
                }
            }
        }
        if has_pods {
            self.pods_turn(&mut turn);
        }
        (turn.soonest, turn.more)
    }

    /// As [`Self::transmit_turn`]; what there is to wait for: at once, where more is due.
    pub(super) fn transmit_due(&mut self) -> Option<Next> {
        let (soonest, more) = self.transmit_turn();
        match more {
            None => soonest,
            Some(port) => Some(Next { at: TxTime::Monotonic(self.env.monotonic()), port }),
        }
    }

    fn is_pods(&self, port: usize) -> bool {
        self.ports[port].as_ref().is_some_and(|state| state.is_pods)
    }

    /// The pods' interfaces, after the uplinks. The turn ends when a frame of an uplink is due, and after one hand-over that is
    /// beyond its pod's budget.
    fn pods_turn(&mut self, turn: &mut Turn) {
        let uplinks = turn.soonest;
        let first = self.pods_from;
        for (mut from, end) in [(first, usize::MAX), (0, first)] {
            while let Some(port) = self.busy.next(from).filter(|port| *port < end) {
                from = port + 1;
                if !self.is_pods(port) {
                    continue;
                }
                let mut left = limits::FRAMES_A_TURN;
                while self.step(port, turn) {
                    left -= 1;
                    let is_slow =
                        self.ports[port].as_ref().is_some_and(|state| state.slow.is_slow(turn.now.monotonic));
                    let is_due = uplinks.is_some_and(|next| next.at.ahead_of(turn.now) <= Nanos::ZERO);
                    if turn.more.is_some() || is_due || is_slow {
                        self.pods_from = port + 1;
                        turn.more = turn.more.or(Some(port));
                        return;
                    }
                    if left == 0 {
                        turn.more = Some(port);
                        break;
                    }
                }
            }
        }
    }

    /// One frame of `port`: handed over, dropped, or, where none is due, waited for. True when there may be more that is due.
    fn step(&mut self, port: usize, turn: &mut Turn) -> bool {
        let Some(state) = self.ports[port].as_mut() else { return false };
        if state.sched.is_empty() && state.held.is_none() {
            self.busy.remove(port);
            return false;
        }
        if state.slow.is_slow(turn.now.monotonic) && self.is_postponed(port, turn.soonest, turn.now) {
            return false;
        }
        let Some(state) = self.ports[port].as_mut() else { return false };
        if state.held.is_some() {
            let again = self.try_held(port, turn.now);
            turn.await_frame(again);
            turn.now = self.env.now();
            return again.is_none();
        }
        match state.sched.decide(turn.now) {
            Decision::Transmit { frame, late, overrun, window } => {
                let now = turn.now;
                let chosen = Chosen { frame: &frame, late, overrun, window, decided: now, at: None };
                let ready = self.make_ready(port, &chosen);
                turn.now = if ready.is_some_and(|ready| self.hand_over(port, &ready, None)) {
                    // One clock is enough: should TAI have been set meanwhile, it is read before each hand-over.
                    let monotonic = self.env.monotonic();
                    let passed = monotonic.since(now.monotonic);
                    Now { tai: now.tai.saturating_add(passed), monotonic }
                } else {
                    self.env.now()
                };
                self.handed_over(turn.now);
                true
            }
            Decision::Drop { frame, reason } => {
                self.drop_frame(frame.id, frame.tenant, reason);
                true
            }
            Decision::WakeAt { at, .. } => {
                turn.await_frame(Some(Next { at, port }));
                false
            }
            Decision::Idle => false,
        }
    }
}

impl Turn {
    /// `next` is waited for, too.
    fn await_frame(&mut self, next: Option<Next>) {
        let Some(next) = next else { return };
        if self.soonest.is_none_or(|soonest| next.at.ahead_of(self.now) < soonest.at.ahead_of(self.now)) {
            self.soonest = Some(next);
        }
    }
}
