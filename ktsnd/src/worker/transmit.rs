// SPDX-License-Identifier: Apache-2.0
//! Leaving: what the scheduler decides is built, checked against the clock once more, and committed.

use ktsn_model::{DropReason, LatePolicy};
use ktsn_port::{Port, SendError, StageError, StageId};
use ktsn_resolve::{PortIndex, Refusal};
use ktsn_sched::{Decision, Frame, FrameId, Strategy, Window};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

use super::captured::{captured_frame, captured_index};
use super::client::Client;
use super::copies::{Copies, Waiting};
use super::report::End;
use super::{Environment, Returned, Worker, split};
use crate::limits;
use crate::stats::{add, count};

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
    pub octets: usize,
    /// Which copy it is, where it is one of several.
    copies: Option<Copies>,
    stage: StageId,
    /// No hand-over before these, by their own clocks: TxTime, opening of the gate, instant of the decision.
    monotonic_at: Option<Monotonic>,
    tai_at: Option<Tai>,
    /// The latest instant of hand-over with which it still ends inside its window.
    latest: Option<Tai>,
    /// Where a gate had a say, the worker's lateness is counted from this instant.
    ready_at: Tai,
    /// Nothing but the TxTime, if there is one, has a say.
    is_plain: bool,
}

/// A decision to transmit.
struct Chosen<'a> {
    frame: &'a Frame,
    late: bool,
    overrun: Nanos,
    window: Option<Window>,
    /// The instant that was decided for.
    decided: Now,
    /// Not before this either.
    at: Option<TxTime>,
}

/// A frame in a port's buffer.
#[derive(Clone, Copy)]
struct Staged {
    stage: StageId,
    octets: usize,
    copies: Option<Copies>,
}

/// What the clocks say about a frame that lies ready.
pub(super) enum Moment {
    /// It is too early by so much.
    Early(Nanos),
    /// It may go; so much has passed since it first could have.
    Now { error: Nanos, read: Option<TxTime> },
    /// Its window or its deadline has passed.
    Gone,
}

/// A hand-over that began at `at`, if a clock was read before it.
pub(super) struct Kicked {
    port: usize,
    at: Option<TxTime>,
    wire_octets: u32,
}

impl Ready {
    #[inline]
    fn new(chosen: &Chosen<'_>, staged: Staged) -> Self {
        let frame = *chosen.frame;
        let is_deadline = frame.late == LatePolicy::Deadline;
        let due = if chosen.late { None } else { frame.not_before() };
        let mut ready = Self {
            frame,
            late: chosen.late,
            octets: staged.octets,
            copies: staged.copies,
            stage: staged.stage,
            monotonic_at: None,
            tai_at: chosen.window.map(|window| window.opens_at),
            latest: chosen.window.map(|window| window.latest),
            ready_at: chosen.decided.tai.saturating_sub(chosen.overrun),
            is_plain: chosen.window.is_none() && chosen.at.is_none() && !is_deadline,
        };
        if ready.is_plain {
            return ready;
        }
        // A deadline is read from its own clock, whatever else is.
        let deadline = frame.tx_time.filter(|_| is_deadline).map(|at| match at {
            TxTime::Tai(_) => TxTime::Tai(Tai::ZERO),
            TxTime::Monotonic(_) => TxTime::Monotonic(Monotonic::ZERO),
        });
        for at in [due, deadline, chosen.at].into_iter().flatten() {
            match at {
                TxTime::Tai(at) => ready.tai_at = Some(ready.tai_at.map_or(at, |other| other.max(at))),
                TxTime::Monotonic(at) => {
                    ready.monotonic_at = Some(ready.monotonic_at.map_or(at, |other| other.max(at)));
                }
            }
        }
        ready
    }

    /// Reads the clocks that matter, TAI last: it is what gates are held against.
    #[inline]
    pub(super) fn moment(&self, env: &mut impl Environment) -> Moment {
        if self.is_plain { self.own_moment(env) } else { self.gated_moment(env) }
    }

    #[inline]
    fn own_moment(&self, env: &mut impl Environment) -> Moment {
        let (error, read) = match self.frame.tx_time.filter(|_| !self.late) {
            None => return Moment::Now { error: Nanos::ZERO, read: None },
            Some(TxTime::Tai(at)) => {
                let now = env.tai();
                (now.since(at), TxTime::Tai(now))
            }
            Some(TxTime::Monotonic(at)) => {
                let now = env.monotonic();
                (now.since(at), TxTime::Monotonic(now))
            }
        };
        if error < Nanos::ZERO {
            return Moment::Early(Nanos::ZERO.saturating_sub(error));
        }
        Moment::Now { error, read: Some(read) }
    }

    fn gated_moment(&self, env: &mut impl Environment) -> Moment {
        let monotonic = self.monotonic_at.map(|at| (at, env.monotonic()));
        let tai = self.tai_at.map(|at| (at, env.tai()));
        let early_by_monotonic = monotonic.map_or(Nanos::ZERO, |(at, now)| at.since(now));
        let early_by_tai = tai.map_or(Nanos::ZERO, |(at, now)| at.since(now));
        let early = early_by_monotonic.max(early_by_tai);
        if early > Nanos::ZERO {
            return Moment::Early(early);
        }
        if let (Some(latest), Some((_, now))) = (self.latest, tai) {
            if now > latest || self.is_past_deadline(monotonic, tai) {
                return Moment::Gone;
            }
            return Moment::Now { error: now.since(self.ready_at), read: Some(TxTime::Tai(now)) };
        }
        if self.is_past_deadline(monotonic, tai) {
            return Moment::Gone;
        }
        let error = match (self.frame.tx_time, monotonic, tai) {
            (Some(TxTime::Monotonic(at)), Some((_, now)), _) => now.since(at),
            (Some(TxTime::Tai(at)), _, Some((_, now))) => now.since(at),
            _ => Nanos::ZERO,
        };
        let read = match (monotonic, tai) {
            (_, Some((_, now))) => Some(TxTime::Tai(now)),
            (Some((_, now)), None) => Some(TxTime::Monotonic(now)),
            (None, None) => None,
        };
        Moment::Now { error, read }
    }

    fn is_past_deadline(&self, monotonic: Option<(Monotonic, Monotonic)>, tai: Option<(Tai, Tai)>) -> bool {
        self.frame.late == LatePolicy::Deadline
            && match (self.frame.tx_time, monotonic, tai) {
                (Some(TxTime::Monotonic(at)), Some((_, now)), _) => now > at,
                (Some(TxTime::Tai(at)), _, Some((_, now))) => now > at,
                _ => false,
            }
    }
}

/// A client's queued frame: what is sent, the port it was queued for, and its payload.
pub(super) fn client_frame(
    clients: &[Option<Box<Client>>],
    index: usize,
    slot: u16,
) -> Option<(Waiting, PortIndex, &[u8])> {
    let client = clients.get(index)?.as_ref()?;
    let queued = (*client.queued.get(usize::from(slot))?)?;
    let waiting = Waiting { sending: queued.sending, copies: queued.copies };
    Some((waiting, queued.port, client.payload(slot, queued.payload_octets)))
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
        let mut from = 0;
        while let Some(port) = self.busy.next(from) {
            from = port + 1;
            if self.ports[port].as_ref().is_none_or(|p| p.sched.is_empty()) {
                self.busy.remove(port);
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
                    Decision::Transmit { frame, late, overrun, window } => {
                        let chosen = Chosen { frame: &frame, late, overrun, window, decided: now, at: None };
                        let ready = self.make_ready(port, &chosen);
                        now = if ready.is_some_and(|ready| self.hand_over(port, &ready)) {
                            // One clock is enough: should TAI have been set meanwhile, it is read before each hand-over.
                            let monotonic = self.env.monotonic();
                            let passed = monotonic.since(now.monotonic);
                            Now { tai: now.tai.saturating_add(passed), monotonic }
                        } else {
                            self.env.now()
                        };
                        self.handed_over(now);
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
            Decision::Transmit { frame, late, overrun, window } => {
                // Where something else than its own time decides when it leaves, that is waited for too.
                let at = Some(next.at).filter(|at| late || frame.not_before() != Some(*at));
                self.make_ready(
                    next.port,
                    &Chosen { frame: &frame, late, overrun, window, decided: then, at },
                )
            }
            Decision::Drop { frame, reason } => {
                self.drop_frame(frame.id, frame.tenant, reason);
                None
            }
            Decision::WakeAt { .. } | Decision::Idle => None,
        }
    }

    /// Builds a frame in the port's buffer.
    fn make_ready(&mut self, port: usize, chosen: &Chosen<'_>) -> Option<Ready> {
        let frame = chosen.frame;
        match self.stage(port, frame.id) {
            Ok(staged) => Some(Ready::new(chosen, staged)),
            Err(reason) => {
                self.drop_copy(frame, reason);
                None
            }
        }
    }

    fn stage(&mut self, port: usize, id: FrameId) -> Result<Staged, DropReason> {
        let (index, slot) = split(id);
        let (Waiting { sending, copies }, queued_for, payload) = match captured_index(index) {
            Some(at) => captured_frame(&self.captured, at, slot),
            None => client_frame(&self.clients, index, slot),
        }
        .ok_or(DropReason::Bug)?;
        let way = sending.way(&mut self.routes, &self.tables, payload, copies.replica);
        let way = way.map_err(|refusal| match refusal {
            Refusal::Bypass(_) => DropReason::NoRoute,
            Refusal::Drop(reason, _) => reason,
        })?;
        // A route that moved to another port while the frame waited is not followed: the other port has its own queue.
        if way.port() != queued_for || usize::from(queued_for.0) != port {
            return Err(DropReason::NoRoute);
        }
        let state = self.ports[port].as_mut().ok_or(DropReason::LinkDown)?;
        // Counts up like a router's; only used where the outer header may be fragmented (RFC 6864 4.2).
        self.identification = self.identification.wrapping_add(1);
        let identification = self.identification;
        let mut octets = 0;
        let mut build = |buffer: &mut [u8]| {
            octets = way.write(payload, identification, buffer)?;
            Some(octets)
        };
        let mut staged = state.port.stage(&mut build);
        if staged == Err(StageError::Full) {
            state.port.reap();
            staged = state.port.stage(&mut build);
        }
        match staged {
            Ok(stage) => Ok(Staged { stage, octets, copies: Some(copies).filter(|c| c.is_one_of_several()) }),
            Err(StageError::TooLong { .. }) => Err(DropReason::TooLong),
            Err(_) => Err(DropReason::PortError),
        }
    }

    /// Reads the clocks once more; commits when the frame's time has come (true), else queues it again.
    fn hand_over(&mut self, port: usize, ready: &Ready) -> bool {
        match ready.moment(&mut self.env) {
            Moment::Now { error, read } => {
                self.commit(port, ready, error, read);
                return true;
            }
            Moment::Early(_) => self.put_back(port, ready),
            Moment::Gone => self.missed_window(port, ready),
        }
        false
    }

    /// Commits a frame whose clock was just `read`: `error` after it first could have left.
    #[inline]
    pub(super) fn commit(&mut self, port: usize, ready: &Ready, error: Nanos, read: Option<TxTime>) {
        let (client, slot) = split(ready.frame.id);
        let stamp = self.stamp(client, slot);
        let Some(state) = self.ports[port].as_mut() else { return };
        self.kicked = Some(Kicked { port, at: read, wire_octets: ready.frame.wire_octets });
        let result = state.port.commit(ready.stage);
        match result {
            Ok(()) => {
                let class = ready.frame.class;
                count(&state.stats.frames[usize::from(class.get())]);
                if let Some(latest) = ready.latest {
                    let ended = self.env.tai();
                    // `latest` leaves room for the hand-over itself.
                    if ended > latest.saturating_add(state.hand_over.get())
                        && let Some(gates) = state.sched.time_aware()
                    {
                        gates.overran(class);
                        count(&state.stats.transmission_overrun[usize::from(class.get())]);
                    }
                }
                self.count_sent(ready, error);
                if let Some(copies) = ready.copies {
                    return self.sent_copy(&ready.frame, copies, stamp);
                }
                self.release(ready.frame.id, End::Sent(stamp));
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
        add(&stats.sent_octets, ready.octets as u64);
        if ready.copies.is_some_and(|copies| copies.sent.is_some()) {
            return count(&stats.copies);
        }
        count(&stats.sent);
        if ready.late {
            count(&stats.late);
        } else if ready.frame.not_before().is_some_and(|at| at != TxTime::Monotonic(Monotonic::ZERO)) {
            // Zero on MONOTONIC is fq's word for "at once": there is nothing to be late for.
            stats.transmit_error.record(error);
            if error > limits::OVERRUN_THRESHOLD {
                count(&stats.overrun);
            }
        }
    }

    /// The clock was read after a hand-over: that long it took at most, and the link is occupied from then on.
    #[inline]
    pub(super) fn handed_over(&mut self, now: Now) {
        let Some(Kicked { port, at, wire_octets }) = self.kicked.take() else { return };
        let took = at.map(|at| match at {
            TxTime::Tai(at) => now.tai.since(at),
            TxTime::Monotonic(at) => now.monotonic.since(at),
        });
        let Some(Some(state)) = self.ports.get_mut(port) else { return };
        if let Some(gates) = state.sched.time_aware() {
            // The machine may have stalled since the decision: the link is busy from here on.
            let ago = took.unwrap_or(Nanos::ZERO).max(Nanos::ZERO);
            gates.handed_over(now.monotonic.saturating_sub(ago), wire_octets);
        }
        if let Some(span) = took.and_then(|took| state.hand_over.observe(took)) {
            state.set_hand_over(span);
        }
    }

    /// The machine stalled between the decision and the hand-over: the frame waits for another window, or is dropped as
    /// the strategy sees fit. Outside of its window nothing leaves.
    pub(super) fn missed_window(&mut self, port: usize, ready: &Ready) {
        if let Some(state) = self.ports[port].as_ref() {
            count(&state.stats.put_back);
        }
        self.put_back(port, ready);
    }

    /// The clock stepped back under a frame that was ready: it waits again.
    pub(super) fn put_back(&mut self, port: usize, ready: &Ready) {
        let now = self.env.now();
        let Some(state) = self.ports[port].as_mut() else { return };
        state.port.abandon(ready.stage);
        // It was on time before, so it must not be judged late or beyond the horizon by the new clock.
        let frame = Frame { horizon: Nanos::MAX, ..ready.frame };
        self.busy.insert(port);
        if let Err(refused) = state.sched.offer(frame, now) {
            self.drop_frame(frame.id, frame.tenant, refused.reason);
        }
    }
}
