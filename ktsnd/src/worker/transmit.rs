// SPDX-License-Identifier: Apache-2.0
//! Leaving: what the scheduler decides is built, checked against the clock once more, and committed.

use ktsn_model::DropReason;
use ktsn_port::{Port, SendError, StageError, StageId};
use ktsn_resolve::{PortIndex, Refusal};
use ktsn_sched::{Decision, Frame, FrameId, Strategy};
use ktsn_time::{Monotonic, Nanos, Now, TxTime};

use super::captured::{captured_frame, captured_index};
use super::client::Client;
use super::copies::{Copies, Waiting};
use super::due::{Chosen, Due, Moment};
use super::held::Tries;
use super::report::End;
use super::{Environment, Returned, Worker, split};
use crate::limits;
use crate::stats::{PortRefusal, add, count};

/// What to wait for: the next frame of one port.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub at: TxTime,
    pub port: usize,
}

/// A frame that left the scheduler and lies in a port's buffer.
pub(super) struct Ready {
    pub due: Due,
    pub octets: usize,
    /// Which copy it is, where it is one of several.
    copies: Option<Copies>,
    stage: StageId,
}

/// A frame in a port's buffer.
#[derive(Clone, Copy)]
pub(super) struct Staged {
    stage: StageId,
    octets: usize,
    copies: Option<Copies>,
}

/// Why a frame does not lie in a port's buffer.
pub(super) enum NotStaged {
    /// All of them are under way: one comes back soon.
    Full,
    /// It is dropped.
    For(DropReason),
}

/// A hand-over that began at `at`, if a clock was read before it.
pub(super) struct Kicked {
    port: usize,
    at: Option<TxTime>,
    /// The same on a pod's interface, always.
    began: Option<Monotonic>,
    /// The thread's CPU time then, where a hand-over before was long.
    cpu: Option<Nanos>,
    wire_octets: u32,
}

impl Ready {
    #[inline]
    pub(super) fn new(due: Due, staged: Staged) -> Self {
        let Staged { stage, octets, copies } = staged;
        Self { due, octets, copies, stage }
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
    /// Takes the frame that will be due at `next` out of the queue and builds it, a moment ahead of its time.
    pub(super) fn make_next_ready(&mut self, next: Next, now: Now) -> Option<Ready> {
        let ahead = next.at.ahead_of(now);
        let then = Now { tai: now.tai.saturating_add(ahead), monotonic: now.monotonic.saturating_add(ahead) };
        let state = self.ports[next.port].as_mut().filter(|state| state.held.is_none())?;
        if state.slow.is_slow(now.monotonic) {
            // Whether there is a gap for it is decided when all other ports have been asked.
            return None;
        }
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
    pub(super) fn make_ready(&mut self, port: usize, chosen: &Chosen<'_>) -> Option<Ready> {
        if self.waits_for_clock(port, chosen.frame, chosen.window.is_some()) {
            return None;
        }
        let due = Due::new(chosen);
        match self.stage(port, due.frame.id) {
            Ok(staged) => return Some(Ready::new(due, staged)),
            Err(NotStaged::Full) => self.hold(port, &due, PortRefusal::NoBuffer, None),
            Err(NotStaged::For(reason)) => self.drop_copy(&due.frame, reason),
        }
        None
    }

    pub(super) fn stage(&mut self, port: usize, id: FrameId) -> Result<Staged, NotStaged> {
        if let Some(state) = self.ports[port].as_mut().filter(|state| state.successor.is_some()) {
            let before = state.succeed().ok_or(NotStaged::Full)?;
            self.inbox.give(Returned::Port(PortIndex(port as u16), Some(before)));
        }
        let (index, slot) = split(id);
        let (Waiting { sending, copies }, queued_for, payload) = match captured_index(index) {
            Some(at) => captured_frame(&self.captured, at, slot),
            None => client_frame(&self.clients, index, slot),
        }
        .ok_or(NotStaged::For(DropReason::Bug))?;
        let way = sending.way(&mut self.routes, &self.tables, payload, copies.replica);
        let way = way.map_err(|refusal| match refusal {
            Refusal::Bypass(_) => NotStaged::For(DropReason::NoRoute),
            Refusal::Drop(reason, _) => NotStaged::For(reason),
        })?;
        // A route that moved to another port while the frame waited is not followed: the other port has its own queue.
        if way.port() != queued_for || usize::from(queued_for.0) != port {
            return Err(NotStaged::For(DropReason::NoRoute));
        }
        let state = self.ports[port].as_mut().ok_or(NotStaged::For(DropReason::LinkDown))?;
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
            Err(StageError::Full) => Err(NotStaged::Full),
            Err(StageError::TooLong { .. }) => Err(NotStaged::For(DropReason::TooLong)),
            Err(StageError::NotBuilt | StageError::TooShort { .. }) => {
                Err(NotStaged::For(DropReason::PortError))
            }
        }
    }

    /// Reads the clocks once more; hands over when the frame's time has come (true), else queues it again. `before`: the port
    /// did not take it the last time.
    pub(super) fn hand_over(&mut self, port: usize, ready: &Ready, before: Option<Tries>) -> bool {
        match ready.due.moment(&mut self.env) {
            Moment::Now { error, .. } if before.is_some() && ready.due.is_overrun(error) => {
                self.abandon(port, ready);
                self.drop_frame(ready.due.frame.id, ready.due.frame.tenant, DropReason::PortError);
                return true;
            }
            Moment::Now { error, read } => {
                if let Some(why) = self.commit(port, ready, error, read) {
                    self.hold(port, &ready.due, why, before);
                } else if before.is_some() {
                    self.was_held(port);
                }
                return true;
            }
            Moment::Early(_) => self.put_back(port, ready),
            Moment::Gone => self.missed_window(port, ready),
        }
        false
    }

    /// Commits a frame whose clock was just `read`: `error` after it first could have left. Why the port will take it later
    /// only, if so; else it has left or is dropped.
    #[inline]
    pub(super) fn commit(
        &mut self,
        port: usize,
        ready: &Ready,
        error: Nanos,
        read: Option<TxTime>,
    ) -> Option<PortRefusal> {
        let frame = &ready.due.frame;
        let (client, slot) = split(frame.id);
        let stamp = self.stamp(client, slot);
        let state = self.ports[port].as_mut()?;
        let began = state.is_pods.then(|| self.env.monotonic());
        let is_suspect = began.is_some_and(|now| state.slow.is_suspect(now));
        let cpu = if is_suspect { self.env.cpu_time() } else { None };
        self.kicked = Some(Kicked { port, at: read, began, cpu, wire_octets: frame.wire_octets });
        match state.port.commit(ready.stage) {
            Ok(()) => {
                count(&state.stats.frames[usize::from(frame.class.get())]);
                if let Some(latest) = ready.due.latest {
                    let ended = self.env.tai();
                    // `latest` leaves room for the hand-over itself.
                    if ended > latest.saturating_add(state.hand_over.get())
                        && let Some(gates) = state.sched.time_aware()
                    {
                        gates.overran(frame.class);
                        count(&state.stats.transmission_overrun[usize::from(frame.class.get())]);
                    }
                }
                self.count_sent(ready, error);
                match ready.copies {
                    Some(copies) => self.sent_copy(frame, copies, stamp),
                    None => self.release(frame.id, End::Sent(stamp)),
                }
                None
            }
            Err(send_error) => self.not_taken(port, frame, send_error),
        }
    }

    /// The port did not take a frame: why it will later, if so; else the frame is dropped.
    #[cold]
    fn not_taken(&mut self, port: usize, frame: &Frame, error: SendError) -> Option<PortRefusal> {
        let state = self.ports[port].as_mut()?;
        let (why, reason) = match error {
            SendError::Busy => (PortRefusal::Busy, None),
            SendError::NoMemory => (PortRefusal::NoMemory, None),
            // It works again when the link does.
            SendError::LinkDown => (PortRefusal::LinkDown, Some(DropReason::LinkDown)),
            SendError::DeviceGone => {
                let now = self.env.monotonic();
                if now.since(state.failure_told_at) >= limits::NEWS_PAUSE {
                    state.failure_told_at = now;
                    self.inbox.give(Returned::PortFailed(PortIndex(port as u16)));
                }
                (PortRefusal::DeviceGone, Some(DropReason::LinkDown))
            }
            SendError::TooLong => (PortRefusal::TooLong, Some(DropReason::TooLong)),
            SendError::NotStaged => {
                count(&self.stats.bugs);
                (PortRefusal::Other, Some(DropReason::Bug))
            }
            SendError::Dropped => (PortRefusal::Dropped, Some(DropReason::PortError)),
            SendError::Os { .. } => (PortRefusal::Other, Some(DropReason::PortError)),
        };
        let Some(reason) = reason else {
            // Nothing was handed over: the link is as free as before.
            self.kicked = None;
            return Some(why);
        };
        count(&state.stats.refused[why as usize]);
        self.drop_frame(frame.id, frame.tenant, reason);
        None
    }

    fn count_sent(&self, ready: &Ready, error: Nanos) {
        let Some(Some(policy)) = self.attachments.get(ready.due.frame.tenant as usize) else { return };
        let stats = &policy.stats;
        add(&stats.sent_octets, ready.octets as u64);
        if ready.copies.is_some_and(|copies| copies.sent.is_some()) {
            return count(&stats.copies);
        }
        count(&stats.sent);
        if ready.due.late {
            count(if self.has_waited(ready.due.frame.id) { &stats.waited } else { &stats.late });
        } else if ready.due.is_on_time() {
            stats.transmit_error.record(error);
            if error > limits::OVERRUN_THRESHOLD {
                count(&stats.overrun);
            }
        }
    }

    /// Whether a frame's program had to wait for a slot.
    fn has_waited(&self, id: FrameId) -> bool {
        let (index, slot) = split(id);
        let client = self.clients.get(index).and_then(Option::as_ref);
        client
            .and_then(|client| client.queued[usize::from(slot)].as_ref())
            .is_some_and(|queued| queued.has_waited)
    }

    /// The clock was read after a hand-over: that long it took at most, and the link is occupied from then on.
    #[inline]
    pub(super) fn handed_over(&mut self, now: Now) {
        let Some(Kicked { port, at, began, cpu, wire_octets }) = self.kicked.take() else { return };
        self.handed_over_at = now.monotonic;
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
        if let Some(began) = began {
            self.account(port, now.monotonic.since(began), cpu, now.monotonic);
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
        self.abandon(port, ready);
        self.queue_again(port, &ready.due.frame);
    }

    fn abandon(&mut self, port: usize, ready: &Ready) {
        if let Some(state) = self.ports[port].as_mut() {
            state.port.abandon(ready.stage);
        }
    }

    /// Back to where it was chosen from, in front of those that it was chosen before.
    pub(super) fn queue_again(&mut self, port: usize, frame: &Frame) {
        let now = self.env.now();
        let Some(state) = self.ports[port].as_mut() else { return };
        // It was on time before, so it must not be judged late or beyond the horizon by the new clock.
        let frame = Frame { horizon: Nanos::MAX, ..*frame };
        self.busy.insert(port);
        if let Err(refused) = state.sched.put_back(frame, now) {
            self.drop_frame(frame.id, frame.tenant, refused.reason);
        }
    }
}
