// SPDX-License-Identifier: Apache-2.0
//! Leaving: what the scheduler decides is built, checked against the clock once more, and committed.

use std::sync::atomic::Ordering::Relaxed;

use ktsn_model::DropReason;
use ktsn_port::{Port, SendError, StageError, StageId};
use ktsn_resolve::{PortIndex, Refusal};
use ktsn_sched::{Decision, Frame, FrameId, Strategy};
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::{Environment, Returned, Worker, split};
use crate::limits;
use crate::stats::count;

/// What to wait for: the next frame of one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub at: TxTime,
    pub port: usize,
}

/// A frame that left the scheduler and lies in a port's buffer.
pub(super) struct Ready {
    pub frame: Frame,
    pub late: bool,
    pub stage: StageId,
    pub octets: usize,
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Hands over everything that is due; returns the soonest of what is not. Ports take turns.
    pub(super) fn transmit_due(&mut self) -> Option<Next> {
        loop {
            let (soonest, more) = self.transmit_turn();
            if !more {
                return soonest;
            }
        }
    }

    /// One turn of every port; whether there may be more that is due.
    fn transmit_turn(&mut self) -> (Option<Next>, bool) {
        let mut soonest: Option<Next> = None;
        let mut more = false;
        let mut now = self.env.now();
        for port in 0..self.ports_end {
            if self.ports[port].as_ref().is_none_or(|p| p.sched.is_empty()) {
                continue;
            }
            let mut left = limits::FRAMES_A_TURN;
            while let Some(state) = self.ports[port].as_mut() {
                if left == 0 {
                    more = true;
                    break;
                }
                left -= 1;
                match state.sched.decide(now) {
                    Decision::Transmit { frame, late, .. } => {
                        if let Some(ready) = self.make_ready(port, frame, late) {
                            self.hand_over(port, &ready);
                        }
                        now = self.env.now();
                    }
                    Decision::Drop { frame, reason } => self.drop_frame(frame.id, frame.tenant, reason),
                    Decision::WakeAt { at, .. } => {
                        if soonest.is_none_or(|s| at.ahead_of(now) < s.at.ahead_of(now)) {
                            soonest = Some(Next { at, port });
                        }
                        break;
                    }
                    Decision::Idle => break,
                }
            }
        }
        (soonest, more)
    }

    /// Takes the frame that will be due at `next` out of the queue and builds it, a moment ahead of its time.
    pub(super) fn make_next_ready(&mut self, next: Next, now: Now) -> Option<Ready> {
        let ahead = next.at.ahead_of(now);
        let then = Now { tai: now.tai.saturating_add(ahead), monotonic: now.monotonic.saturating_add(ahead) };
        let state = self.ports[next.port].as_mut()?;
        match state.sched.decide(then) {
            Decision::Transmit { frame, late, .. } => self.make_ready(next.port, frame, late),
            Decision::Drop { frame, reason } => {
                self.drop_frame(frame.id, frame.tenant, reason);
                None
            }
            Decision::WakeAt { .. } | Decision::Idle => None,
        }
    }

    /// Builds a frame in the port's buffer.
    fn make_ready(&mut self, port: usize, frame: Frame, late: bool) -> Option<Ready> {
        match self.stage(port, frame.id) {
            Ok((stage, octets)) => Some(Ready { frame, late, stage, octets }),
            Err(reason) => {
                self.drop_frame(frame.id, frame.tenant, reason);
                None
            }
        }
    }

    fn stage(&mut self, port: usize, id: FrameId) -> Result<(StageId, usize), DropReason> {
        let (index, slot) = split(id);
        let client = self.clients.get(index).and_then(Option::as_ref).ok_or(DropReason::Bug)?;
        let queued = client.queued.get(usize::from(slot)).copied().flatten().ok_or(DropReason::Bug)?;
        let way = self.routes.find(&self.tables, &queued.flow).map_err(|refusal| match refusal {
            Refusal::Bypass(_) => DropReason::NoRoute,
            Refusal::Drop(reason, _) => reason,
        })?;
        if queued.payload_octets > way.payload_max {
            return Err(DropReason::TooLong);
        }
        // A route that moved to another port while the frame waited is not followed: the other port has its own queue.
        if way.port != queued.port || usize::from(way.port.0) != port {
            return Err(DropReason::NoRoute);
        }
        let payload = client.payload(slot, queued.payload_octets);
        let state = self.ports[port].as_mut().ok_or(DropReason::LinkDown)?;
        // Counts up like a router's; only used where the outer header may be fragmented (RFC 6864 4.2).
        self.identification = self.identification.wrapping_add(1);
        let identification = self.identification;
        let mut octets = 0;
        let mut build = |buffer: &mut [u8]| {
            octets = way.template.write_frame_identified(payload, identification, buffer).ok()?;
            Some(octets)
        };
        let mut staged = state.port.stage(&mut build);
        if staged == Err(StageError::Full) {
            state.port.reap();
            staged = state.port.stage(&mut build);
        }
        match staged {
            Ok(stage) => Ok((stage, octets)),
            Err(StageError::TooLong { .. }) => Err(DropReason::TooLong),
            Err(_) => Err(DropReason::PortError),
        }
    }

    /// Reads the frame's own clock once more; commits when its time has come, else queues it again.
    pub(super) fn hand_over(&mut self, port: usize, ready: &Ready) {
        let early = match ready.frame.not_before() {
            None => Nanos::ZERO,
            Some(TxTime::Tai(at)) => at.since(self.env.tai()),
            Some(TxTime::Monotonic(at)) => at.since(self.env.monotonic()),
        };
        if early > Nanos::ZERO && !ready.late {
            self.put_back(port, ready);
        } else {
            self.commit(port, ready, Nanos::ZERO.saturating_sub(early));
        }
    }

    /// Commits a frame whose clock was just read: `error` after its transmit time.
    #[inline]
    pub(super) fn commit(&mut self, port: usize, ready: &Ready, error: Nanos) {
        let Some(state) = self.ports[port].as_mut() else { return };
        let result = state.port.commit(ready.stage);
        match result {
            Ok(()) => {
                self.count_sent(ready, error);
                self.release(ready.frame.id);
            }
            Err(send_error) => {
                let reason = match send_error {
                    // It works again when the link does.
                    SendError::LinkDown => DropReason::LinkDown,
                    SendError::DeviceGone => {
                        let now = self.env.monotonic();
                        if now.since(state.failure_told_at) >= limits::NEWS_PAUSE {
                            state.failure_told_at = now;
                            self.inbox.give(Returned::PortFailed(PortIndex(port as u16)));
                        }
                        DropReason::LinkDown
                    }
                    SendError::TooLong => DropReason::TooLong,
                    SendError::NotStaged => {
                        count(&self.stats.bugs);
                        DropReason::Bug
                    }
                    SendError::Busy | SendError::Dropped | SendError::Os { .. } => DropReason::PortError,
                };
                self.drop_frame(ready.frame.id, ready.frame.tenant, reason);
            }
        }
    }

    fn count_sent(&self, ready: &Ready, error: Nanos) {
        let Some(Some(policy)) = self.attachments.get(ready.frame.tenant as usize) else { return };
        let stats = &policy.stats;
        count(&stats.sent);
        stats.sent_octets.fetch_add(ready.octets as u64, Relaxed);
        if ready.late {
            count(&stats.late);
        } else if ready.frame.tx_time.is_some_and(|at| at != TxTime::Monotonic(Monotonic::ZERO)) {
            // Zero on MONOTONIC is fq's word for "at once": there is nothing to be late for.
            stats.transmit_error.record(error);
            if error > limits::OVERRUN_THRESHOLD {
                count(&stats.overrun);
            }
        }
    }

    /// The clock stepped back under a frame that was ready: it waits again.
    pub(super) fn put_back(&mut self, port: usize, ready: &Ready) {
        let now = self.env.now();
        let Some(state) = self.ports[port].as_mut() else { return };
        state.port.abandon(ready.stage);
        // It was on time before, so it must not be judged late or beyond the horizon by the new clock.
        let frame = Frame { horizon: Nanos::MAX, ..ready.frame };
        if let Err(refused) = state.sched.offer(frame, now) {
            self.drop_frame(frame.id, frame.tenant, refused.reason);
        }
    }
}
