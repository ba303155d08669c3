// SPDX-License-Identifier: Apache-2.0
//! How frames leave: turns of the ports, and the hand-over of one frame.
//!
//! In: what the ports' schedulers decide. Out: hand-overs; the soonest frame that is not due, or a port that may have more. What the
//! scheduler decides is built, checked against the clock once more, and handed to the port. Uplinks come first, up to
//! [`limits::FRAMES_A_TURN`] frames each. What the kernel does in a hand-over by a pod's interface is the pod's matter in part, so
//! such an interface hands over one frame, and more only while no uplink has a frame that is due. The interfaces take turns. So a
//! frame of an uplink that is due waits for one hand-over of one pod's interface at most.

use ktsn_model::DropReason;
use ktsn_port::{Port, SendError};
use ktsn_resolve::PortIndex;
use ktsn_sched::{Decision, Frame, FrameId};
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::Worker;
use super::attachments::attachment_of;
use super::clock_gate::Aside;
use super::command::Returned;
use super::due::{Due, Moment, Next, after};
use super::entries::queued;
use super::environment::Environment;
use super::owner::{Owner, owner_of};
use super::port_state::{NotStaged, PortState, Ready, Staged};
use super::ports::HandOverBegun;
use super::requested_reports::End;
use super::retry::{Retry, Tries};
use crate::limits;
use crate::stats::{PortRefusal, count};

/// What is known so far in one turn of all ports.
struct Turn {
    now: Now,
    /// The soonest frame that is not due, of the ports that were asked.
    soonest: Option<Next>,
    /// A port that may have more that is due.
    more: Option<usize>,
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

/// Turns of the ports.
impl<P: Port, E: Environment> Worker<P, E> {
    /// Hands over due frames. Returns the soonest frame that is not due yet, and a port that may have more due frames.
    pub(super) fn transmit_turn(&mut self) -> (Option<Next>, Option<usize>) {
        let mut turn = Turn { now: self.env.now(), soonest: None, more: None };
        let (mut from, mut has_pods) = (0, false);
        while let Some(port) = self.ports.next_active(from) {
            from = port + 1;
            if self.ports.is_pod_interface(port) {
                has_pods = true;
                continue;
            }
            let mut left = limits::FRAMES_A_TURN;
            while self.serve_port_once(port, &mut turn) {
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

    /// Hands over due frames. Returns the instant to wait for: now, where more frames are due.
    pub(super) fn transmit_due(&mut self) -> Option<Next> {
        let (soonest, more) = self.transmit_turn();
        match more {
            None => soonest,
            Some(port) => Some(Next { at: TxTime::Monotonic(self.env.monotonic()), port }),
        }
    }

    /// The pods' interfaces, after the uplinks. The turn ends when a frame of an uplink is due, and after one hand-over that is
    /// beyond its pod's budget.
    fn pods_turn(&mut self, turn: &mut Turn) {
        let uplinks = turn.soonest;
        let first = self.ports.pods_turn();
        for (mut from, end) in [(first, usize::MAX), (0, first)] {
            while let Some(port) = self.ports.next_active(from).filter(|port| *port < end) {
                from = port + 1;
                if !self.ports.is_pod_interface(port) {
                    continue;
                }
                let mut left = limits::FRAMES_A_TURN;
                while self.serve_port_once(port, turn) {
                    left -= 1;
                    let is_slow =
                        self.ports.get(port).is_some_and(|state| state.budget.is_slow(turn.now.monotonic));
                    let is_due = uplinks.is_some_and(|next| next.at.ahead_of(turn.now) <= Nanos::ZERO);
                    if turn.more.is_some() || is_due || is_slow {
                        self.ports.pass_pods_turn(port);
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

    /// Serves one frame of `port`: hands it over, drops it, or notes when it is due. True when the port may have another due frame.
    fn serve_port_once(&mut self, port: usize, turn: &mut Turn) -> bool {
        let Some(state) = self.ports.get_mut(port) else { return false };
        if state.is_idle() {
            self.ports.deactivate(port);
            return false;
        }
        if state.budget.is_slow(turn.now.monotonic) && self.is_postponed(port, turn.soonest, turn.now) {
            return false;
        }
        let Some(state) = self.ports.get_mut(port) else { return false };
        if state.retry.is_some() {
            let again = self.try_again(port, turn.now);
            turn.await_frame(again);
            turn.now = self.env.now();
            return again.is_none();
        }
        match state.selection.decide(turn.now) {
            Decision::Transmit { frame, late, overrun, window } => {
                let now = turn.now;
                let ready = self.make_ready(port, Due::new(&frame, late, overrun, window, now, None));
                turn.now = if ready.is_some_and(|ready| self.hand_over(port, &ready, None)) {
                    // One clock is enough: should TAI have been set meanwhile, it is read before each hand-over.
                    let monotonic = self.env.monotonic();
                    let passed = monotonic.since(now.monotonic);
                    Now { tai: now.tai.saturating_add(passed), monotonic }
                } else {
                    self.env.now()
                };
                self.note_hand_over_end(turn.now);
                true
            }
            Decision::Drop { frame, reason } => {
                self.drop_frame(frame.id, attachment_of(&frame), reason);
                true
            }
            Decision::WakeAt { at, .. } => {
                turn.await_frame(Some(Next { at, port }));
                false
            }
            Decision::Idle => false,
        }
    }

    /// True when a slow port must leave the CPU to `next`, the soonest frame of the others, for now. Frames that have waited for
    /// too long are dropped.
    #[cold]
    fn is_postponed(&mut self, port: usize, next: Option<Next>, now: Now) -> bool {
        let ahead = next.map(|next| next.at.ahead_of(now));
        let state = self.ports.get_mut(port);
        let Some(waited) = state.and_then(|state| state.budget.postpone(ahead, now.monotonic)) else {
            return false;
        };
        if waited > limits::RETRY_MAX {
            for _ in 0..limits::REMOVED_A_PASS {
                let (frame, reason) = match self.ports.get_mut(port).map(|state| state.selection.decide(now))
                {
                    Some(Decision::Transmit { frame, .. }) => (frame, DropReason::PortError),
                    Some(Decision::Drop { frame, reason }) => (frame, reason),
                    _ => break,
                };
                self.drop_frame(frame.id, attachment_of(&frame), reason);
            }
        }
        true
    }
}

/// The hand-over of one frame.
impl<P: Port, E: Environment> Worker<P, E> {
    /// Takes the frame that will be due at `next` out of the queue and builds it, a moment ahead of its time.
    pub(super) fn make_next_ready(&mut self, next: Next, now: Now) -> Option<Ready> {
        let ahead = next.at.ahead_of(now);
        let then = after(now, ahead);
        // A slow port's frame needs a gap: that is decided when all other ports have been asked.
        let state = self.ports.get_mut(next.port).filter(|state| state.makes_ready(now.monotonic))?;
        match state.selection.decide(then) {
            Decision::Transmit { frame, late, overrun, window } => {
                // Where something else than its own time decides when it leaves, that is waited for too.
                let at = Some(next.at).filter(|at| late || frame.not_before() != Some(*at));
                self.make_ready(next.port, Due::new(&frame, late, overrun, window, then, at))
            }
            Decision::Drop { frame, reason } => {
                self.drop_frame(frame.id, attachment_of(&frame), reason);
                None
            }
            Decision::WakeAt { .. } | Decision::Idle => None,
        }
    }

    /// Builds a frame in the port's buffer.
    fn make_ready(&mut self, port: usize, due: Due) -> Option<Ready> {
        if self.waits_for_clock(port, &due.frame, due.latest.is_some()) {
            return None;
        }
        match self.stage_queued(port, due.frame.id) {
            Ok(staged) => return Some(Ready { due, staged }),
            Err(why) => self.end_unstaged(port, &due, why, None),
        }
        None
    }

    fn stage_queued(&mut self, port: usize, id: FrameId) -> Result<Staged, NotStaged> {
        let entry = queued(&self.clients, &self.captures, id);
        self.ports.resolve_and_stage(port, entry, &mut self.resolver, &mut self.inbox)
    }

    /// Reads the clocks once more. Hands over when the frame's time has come (true), else queues it again. `before`: the port did
    /// not take the frame the last time.
    fn hand_over(&mut self, port: usize, ready: &Ready, before: Option<Tries>) -> bool {
        match ready.due.moment(&mut self.env) {
            Moment::Now { error, .. } if before.is_some() && ready.due.is_overrun(error) => {
                let frame = self.abandon(port, ready);
                self.drop_frame(frame.id, attachment_of(frame), DropReason::PortError);
                return true;
            }
            Moment::Now { error, read } => {
                if let Some(why) = self.hand_to_port(port, ready, error, read) {
                    self.retry_later(port, &ready.due, why, before);
                } else if before.is_some()
                    && let Some(state) = self.ports.get(port)
                {
                    count(&state.stats.retried);
                }
                return true;
            }
            Moment::Early(_) => self.put_back(port, ready),
            Moment::Gone => self.missed_window(port, ready),
        }
        false
    }

    /// Hands a ready frame to the port, right after its clock was `read`; `error` is the span since it first could have left.
    /// Returns why the frame must be retried, or `None`: it was sent or dropped.
    #[inline]
    pub(super) fn hand_to_port(
        &mut self,
        port: usize,
        ready: &Ready,
        error: Nanos,
        read: Option<TxTime>,
    ) -> Option<PortRefusal> {
        let frame = &ready.due.frame;
        let stamp = self.stamp(frame.id);
        let state = self.ports.get_mut(port)?;
        let began = state.is_pod_interface.then(|| self.env.monotonic());
        let is_suspect = began.is_some_and(|now| state.budget.is_suspect(now));
        let cpu = if is_suspect { self.env.cpu_time() } else { None };
        let begun = HandOverBegun { port, read, began, cpu, wire_octets: frame.wire_octets };
        if let Err(error) = self.ports.begin_hand_over(begun, &ready.staged) {
            return self.not_taken(port, frame, error);
        }
        let state = self.ports.get_mut(port)?;
        count(&state.stats.frames[usize::from(frame.class.get())]);
        if let Some(latest) = ready.due.latest {
            let ended = self.env.tai();
            // `latest` leaves room for the hand-over itself.
            if ended > latest.saturating_add(state.hand_over.get()) {
                state.selection.overran(frame.class);
                count(&state.stats.transmission_overrun[usize::from(frame.class.get())]);
            }
        }
        self.count_sent(ready, error);
        match ready.staged.copies {
            Some(copies) => self.sent_copy(frame, copies, stamp),
            None => self.release(frame.id, End::Sent(stamp)),
        }
        None
    }

    /// The instant for a software stamp, if this frame wants one: read right before the hand-over.
    #[inline]
    fn stamp(&mut self, id: FrameId) -> u64 {
        let (Owner::Client(at), slot) = owner_of(id) else { return 0 };
        let wants_stamp = self.clients.get(at).is_some_and(|client| client.wants_stamp(slot));
        if wants_stamp { self.env.realtime() } else { 0 }
    }

    /// The port did not take a frame. Returns why it must be retried; `None`: it is dropped.
    #[cold]
    fn not_taken(&mut self, port: usize, frame: &Frame, error: SendError) -> Option<PortRefusal> {
        let (why, reason) = PortState::<P>::judge_error(error);
        let Some(reason) = reason else {
            self.ports.forget_hand_over();
            return Some(why);
        };
        let state = self.ports.get_mut(port)?;
        if why == PortRefusal::DeviceGone && state.should_notify_failure(self.env.monotonic()) {
            let generation = state.generation;
            self.inbox.hand_back(Returned::PortFailed(PortIndex(port as u16), generation));
        }
        if reason == DropReason::Bug {
            count(&self.stats.bugs);
        }
        state.count_refused(why);
        self.drop_frame(frame.id, attachment_of(frame), reason);
        None
    }

    fn count_sent(&self, ready: &Ready, error: Nanos) {
        let Ready { due, staged } = ready;
        let Some(policy) = self.attachments.get(attachment_of(&due.frame)) else { return };
        let is_further_copy = staged.copies.is_some_and(|copies| copies.sent.is_some());
        policy.count_sent(due, staged.octets, error, is_further_copy, || {
            let entry = queued(&self.clients, &self.captures, due.frame.id);
            entry.is_some_and(|(queued, _)| queued.has_waited)
        });
    }

    /// The clocks were read after a hand-over, if there was one.
    #[inline]
    pub(super) fn note_hand_over_end(&mut self, now: Now) {
        let Some(HandOverBegun { port, began, cpu, .. }) = self.ports.end_hand_over(now) else { return };
        self.pacing.note_handed_over(now.monotonic);
        if let Some(began) = began {
            self.account(port, now.monotonic.since(began), cpu, now.monotonic);
        }
    }

    /// Charges a hand-over by a pod's interface that took `took`. `cpu`: the thread's CPU time when it began, where it matters.
    fn account(&mut self, port: usize, took: Nanos, cpu: Option<Nanos>, now: Monotonic) {
        let used = cpu.and_then(|began| Some(self.env.cpu_time()?.saturating_sub(began)));
        let took = used.map_or(took, |used| used.min(took));
        let Some(state) = self.ports.get_mut(port) else { return };
        if let Some(longest) = state.charge(took, now) {
            self.inbox.notify(Returned::PortSlow(PortIndex(port as u16), longest));
        }
    }

    /// The machine stalled, and the frame's window is over: it waits for another one, or transmission selection drops it.
    pub(super) fn missed_window(&mut self, port: usize, ready: &Ready) {
        if let Some(state) = self.ports.get(port) {
            count(&state.stats.put_back);
        }
        self.put_back(port, ready);
    }

    /// A frame that was ready waits again: the clock stepped back, or its window is over.
    pub(super) fn put_back(&mut self, port: usize, ready: &Ready) {
        let frame = self.abandon(port, ready);
        self.queue_again(port, frame);
    }

    fn abandon<'a>(&mut self, port: usize, ready: &'a Ready) -> &'a Frame {
        self.ports.get_mut(port).into_iter().for_each(|state| state.port.abandon(ready.staged.stage));
        &ready.due.frame
    }

    /// Queues a frame again, in front of those that it was chosen before.
    fn queue_again(&mut self, port: usize, frame: &Frame) {
        let now = self.env.now();
        // It was on time before, so it must not be judged late or beyond the horizon by the new clock.
        let frame = Frame { horizon: Nanos::MAX, ..*frame };
        if let Some(Err(refused)) = self.ports.put_back(port, frame, now) {
            self.drop_frame(frame.id, attachment_of(&frame), refused.reason);
        }
    }
}

/// Frames that wait for the port or for the clock, and the drain.
impl<P: Port, E: Environment> Worker<P, E> {
    /// The port will take a frame later; `before`: it said so the last time, too.
    #[cold]
    pub(super) fn retry_later(&mut self, port: usize, due: &Due, why: PortRefusal, before: Option<Tries>) {
        let now = self.env.monotonic();
        let Some(state) = self.ports.get_mut(port) else { return };
        state.count_refused(why);
        let Some(tries) = Tries::after(before, now) else {
            return self.drop_frame(due.frame.id, attachment_of(&due.frame), DropReason::PortError);
        };
        state.retry = Some(Retry { due: *due, tries });
        self.ports.activate(port);
    }

    /// Tries the port's frame again if it is time to; `None`: it left, is dropped, or waits in another place.
    #[cold]
    fn try_again(&mut self, port: usize, now: Now) -> Option<Next> {
        let state = self.ports.get_mut(port)?;
        let again_at = state.retry.as_ref()?.tries.again_at;
        if now.monotonic < again_at {
            return Some(Next { at: TxTime::Monotonic(again_at), port });
        }
        let Retry { due, tries } = state.retry.take()?;
        if self.waits_for_clock(port, &due.frame, due.latest.is_some()) {
            return None;
        }
        match self.stage_queued(port, due.frame.id) {
            Ok(staged) => {
                if self.hand_over(port, &Ready { due, staged }, Some(tries)) {
                    let now = self.env.now();
                    self.note_hand_over_end(now);
                }
            }
            Err(why) => self.end_unstaged(port, &due, why, Some(tries)),
        }
        None
    }

    /// Other gates hold from now on: the frame that was chosen by the old ones is queued again.
    pub(super) fn queue_retry(&mut self, port: PortIndex) {
        if let Some(retry) = self.ports.at(port).and_then(|state| state.retry.take()) {
            self.queue_again(usize::from(port.0), &retry.due.frame);
        }
    }

    /// Puts a chosen frame aside, or drops it, where the clock says so; true: it is not sent now. `is_gated`: a gate decides when
    /// it leaves.
    #[inline]
    fn waits_for_clock(&mut self, port: usize, frame: &Frame, is_gated: bool) -> bool {
        let waits = !self.clock.lets_pass(frame, is_gated);
        if waits {
            self.put_aside(port, frame);
        }
        waits
    }

    #[cold]
    fn put_aside(&mut self, port: usize, frame: &Frame) {
        let attachment = attachment_of(frame);
        match self.attachments.get(attachment).map(|policy| policy.horizon) {
            Some(horizon) if self.clock.has_room() && !self.closing.is_draining() => {
                let until = self.env.monotonic().saturating_add(horizon);
                self.clock.put_aside(Aside { frame: *frame, port, until });
            }
            _ => self.drop_frame(frame.id, attachment, DropReason::Unsynchronised),
        }
    }

    /// Judges some of the frames that were put aside: those that may leave are queued again, those that waited too long are
    /// dropped. True when more are to be judged right away.
    pub(super) fn attend_to_clock(&mut self) -> bool {
        !self.clock.is_empty() && self.judge_aside()
    }

    #[cold]
    fn judge_aside(&mut self) -> bool {
        let now = self.env.monotonic();
        let is_draining = self.closing.is_draining();
        for _ in 0..self.clock.begin_judging(now, is_draining) {
            let Some(aside) = self.clock.next_to_judge() else { break };
            let (frame, attachment) = (aside.frame, attachment_of(&aside.frame));
            let is_served = self.attachments.is_served(attachment)
                && !self.closing.is_removed(attachment)
                && self.ports.get(aside.port).is_some();
            if !is_served {
                self.drop_frame(frame.id, attachment, DropReason::Detached);
            } else if self.clock.is_good() {
                self.queue_again(aside.port, &frame);
            } else if is_draining || now >= aside.until {
                self.drop_frame(frame.id, attachment, DropReason::Unsynchronised);
            } else {
                self.clock.put_aside(aside);
            }
        }
        self.clock.has_more_to_judge()
    }

    /// True when nothing is left to wait for. Frames in front of gates that stay closed for longer than any program may ask ahead
    /// are given up.
    pub(super) fn is_drained(&mut self) -> bool {
        if self.closing.is_at_work() {
            return false;
        }
        let now = self.env.now();
        let ahead = self.pacing.next().map(|next| next.at.ahead_of(now));
        let is_over = ahead.is_none_or(|ahead| ahead > limits::HORIZON_MAX);
        if is_over && ahead.is_some() {
            for port in 0..self.ports.end() {
                let Some(mut state) = self.ports.lend(port) else { continue };
                self.empty_queue(&mut state);
                self.ports.put(port, state);
            }
        }
        is_over && self.clock.is_empty()
    }
}
