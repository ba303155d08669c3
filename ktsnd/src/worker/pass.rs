// SPDX-License-Identifier: Apache-2.0
//! The worker's loop: commands, one pass, and the wait for the next event.
//!
//! In: commands, doorbells, the clocks. Out: calls of everything that is to be done now, in bounded steps; then at most one wait.
//! The worker sleeps until the margin before the next event, then it spins. Before a sleep every client gets a promise when its
//! ring is polled again (`attention`).
//!
//! A frame leaves in one of two ways. Both end in `hand_to_port` (`hand_over`).
//!
//! 1. The pass's turn: `transmit` → `transmit_due` → `transmit_turn` → `serve_port_once` → `hand_over`. The turn hands over each
//!    frame that is due when it reaches the frame's port. A frame leaves in this way when the worker was busy at its transmit time
//!    or did not spin, when it is tried again, and when its port is slow.
//! 2. The last stretch of the spin: `wait` → `spin` → `spin_until` → `last_stretch`. The spin first polls one ring after the other
//!    between two readings of the clock. Then it builds the next frame in its port's buffer. In the last stretch it reads only the
//!    frame's clock, and it commits the frame when the transmit time has come. A frame on time usually leaves in this way.

use ktsn_port::Port;
use ktsn_resolve::{AttachmentIndex, PortIndex};
use ktsn_ring::RegionState;
use ktsn_time::{Monotonic, Nanos, Now};

use super::Worker;
use super::attachments::AttachmentPolicy;
use super::attention::Polls;
use super::captured::Captured;
use super::client::Client;
use super::command::{Command, NewPort, Returned};
use super::cpu_budget::Allowed;
use super::due::{Moment, Next, after};
use super::environment::{Environment, Woken};
use super::expecting::{ExpectedSleep, Expecting};
use super::owner::Owner;
use super::pacing::{Pacing, Preparation};
use super::port_state::Ready;
use crate::limits;
use crate::stats::{add, count};
use crate::supervise;

impl<P: Port, E: Environment> Worker<P, E> {
    /// Runs until it has drained.
    pub fn run(&mut self) {
        while self.pass() {
            count(&self.stats.passes);
            supervise::test_fault_point(supervise::WORKER);
        }
        self.inbox.hand_back(Returned::Ended);
    }

    /// One pass: a bounded step of everything that can be done now, then at most one wait. False when the worker has drained.
    pub fn pass(&mut self) -> bool {
        if self.must_rest() {
            return true;
        }
        let more_commands = self.apply_commands() | self.attend_to_clock();
        let now = self.env.monotonic();
        // Due frames first: the next one limits how long all other work may take.
        self.transmit();
        let more_housekeeping = self.housekeeping(now);
        self.listen(now);
        if self.close_some() | self.intake_all(now) {
            self.transmit();
        }
        if !self.settling.is_empty() {
            self.settle();
        }
        if self.closing.is_draining() && self.is_drained() {
            return false;
        }
        let is_more =
            more_commands || more_housekeeping || self.closing.is_at_work() || self.has_command_due();
        if !is_more || self.pacing.is_close(limits::INTAKE_STOPS, &mut self.env) {
            self.wait();
        }
        true
    }

    /// Hands over due frames, and sets the next frame to wait for.
    fn transmit(&mut self) {
        let next = self.transmit_due();
        self.pacing.set_next(next);
    }

    /// Rests where the worker has used its share of the CPU; true when the pass is over. Where so much is due that a rest saves
    /// nothing, the worker is behind, and attachments with few frames must not wait for the others.
    fn must_rest(&mut self) -> bool {
        match self.pacing.begin_pass(&mut self.env) {
            Allowed::Work => false,
            Allowed::Due(span) => self.rest(span),
            Allowed::Nothing(span) => {
                count(&self.stats.cpu_budget_spent);
                let until = self.env.monotonic().saturating_add(span);
                self.pacing.doze(until, &mut self.env);
                true
            }
        }
    }

    /// Does the work that is due every few hundred milliseconds: for all ports at once, for a few clients in each pass. True when
    /// clients are left.
    fn housekeeping(&mut self, now: Monotonic) -> bool {
        if self.clients.begin_housekeeping(now) {
            self.pacing.show_margins(&self.stats);
            self.ports.housekeeping(now, &mut self.inbox);
            self.captures.housekeeping(&self.attachments);
            self.clients.expectations().housekeeping(now);
        }
        if !self.clients.is_housekeeping() || self.pacing.is_close(limits::COMMANDS_STOP, &mut self.env) {
            return false;
        }
        self.clients.housekeeping(now, &self.attachments, &mut self.env)
    }

    fn is_listen_due(&self, now: Monotonic) -> bool {
        !self.pacing.is_resting() && self.clients.is_listen_due(now)
    }

    /// Reads some of the doorbells in a worker that has not slept for a while, and polls muted rings. A frame that is due at once
    /// comes first, but only for [`limits::LISTEN_AFTER_ALL`].
    fn listen(&mut self, began: Monotonic) {
        if self.is_listen_due(began) {
            let now = self.env.now();
            let ahead = self.pacing.next().map(|next| next.at.ahead_of(now));
            let is_close = ahead.is_some_and(|ahead| ahead < limits::INTAKE_STOPS);
            if !is_close || self.clients.is_listen_overdue(now.monotonic) {
                let mut woken = self.clients.take_woken();
                self.env.read_doorbells(limits::DOORBELLS_AT_ONCE, &mut woken);
                self.hear(woken, now);
            }
        }
        self.clients.poll_muted(began, &mut self.env);
    }

    fn hear(&mut self, woken: Woken, now: Now) {
        let Self { clients, attachments, env, stats, .. } = self;
        clients.listen(woken, now, attachments, env, stats);
    }
}

/// Commands. Each takes a bounded, short time: what takes longer is only begun here (`closing`).
impl<P: Port, E: Environment> Worker<P, E> {
    /// Applies what waits, a bounded number a pass; true when there may be more. A frame that is due before the next command would
    /// be applied comes first, but not for ever.
    pub(super) fn apply_commands(&mut self) -> bool {
        for _ in 0..limits::COMMANDS_A_PASS {
            let Some(command) = self.inbox.next() else {
                self.inbox.end_deferral();
                return false;
            };
            // What was waited for last may have left.
            self.transmit();
            let now = self.env.now();
            let ahead = self.pacing.next().map(|next| next.at.ahead_of(now));
            if self.inbox.must_defer(ahead, now.monotonic) || self.closing.must_wait(&command) {
                self.inbox.defer(command);
                return false;
            }
            self.apply(command);
        }
        self.inbox.end_deferral();
        true
    }

    /// True when a command was deferred for a frame that has left meanwhile: nothing would wake the worker for the command again.
    fn has_command_due(&mut self) -> bool {
        self.inbox.has_deferred()
            && self.pacing.ahead(&mut self.env).is_none_or(|ahead| ahead >= limits::COMMANDS_STOP)
    }

    fn apply(&mut self, command: Command<P>) {
        match command {
            Command::AddPort(index, new) => self.add_port(index, new),
            Command::RemovePort(index) => {
                if !self.closing.remove_port(index) {
                    self.remove_port(index);
                }
            }
            Command::SetAttachment(index, policy) => self.set_attachment(index, policy),
            Command::RemoveAttachment(index) => {
                if self.attachments.is_served(index) {
                    self.closing.remove_attachment(index);
                }
            }
            Command::AddCaptured(captured) => self.add_captured(captured),
            Command::AddClient(client) => self.add_client(client),
            Command::Register(..)
            | Command::Unregister(..)
            | Command::Refuse(..)
            | Command::SetClientTables(..) => {
                self.clients.apply(command, &mut self.inbox, &self.stats);
            }
            Command::Settle(key, index) => self.begin_settling(key, Some(index)),
            Command::Release(key, slot) => {
                if let Some(at) = self.clients.find(key) {
                    self.clients.get_mut(at).into_iter().for_each(|client| client.release_passed(slot));
                    self.end_if_over(Owner::Client(at));
                }
            }
            Command::Judge(judging) => {
                self.judge(&judging);
                self.inbox.hand_back_boxed([judging]);
            }
            Command::EndClient(key) => {
                if let Some(at) = self.clients.find(key) {
                    self.close_client(at, true);
                    self.begin_settling(key, None);
                }
            }
            Command::Tables(tables) => {
                self.inbox.hand_back(Returned::Tables(self.resolver.set_tables(tables)));
            }
            Command::Route(news) => {
                self.resolver.set_answer(&news.flow, news.revision, news.answer);
                self.note_answer(&news.flow, news.answer);
                self.inbox.hand_back_boxed([news]);
            }
            Command::ChangeSchedule(index, _) | Command::SetClasses(index, _) => {
                self.queue_retry(index);
                self.ports.apply(command, &mut self.env, &mut self.inbox);
            }
            Command::ReplacePort(..)
            | Command::SetLinkSpeed(..)
            | Command::SetPriorityMap(..)
            | Command::LookAtGates(..) => self.ports.apply(command, &mut self.env, &mut self.inbox),
            Command::ClockIsGood(is_good) => self.clock.set(is_good),
            Command::Drain => self.closing.begin_drain(),
        }
    }

    fn add_port(&mut self, index: PortIndex, new: NewPort<P>) {
        if !self.ports.has_place(index) || self.closing.is_draining() {
            let NewPort { port, selection, policing, .. } = new;
            return self.inbox.hand_back_port(index, [Some(port), None], selection, policing);
        }
        self.remove_port(index);
        self.ports.add(index, new);
    }

    fn set_attachment(&mut self, index: AttachmentIndex, policy: Box<AttachmentPolicy>) {
        // Another policy may know other streams.
        self.resolver.forget(index);
        self.clients.set_level(index, policy.classes);
        self.inbox.hand_back_boxed(self.attachments.set(index, policy));
    }

    /// True when something may come to this attachment: it is served and stays, and the worker does not drain. It may have gone
    /// while its client or its capture was being made.
    fn is_open(&self, attachment: AttachmentIndex) -> bool {
        self.attachments.is_served(attachment)
            && !self.closing.is_removed(attachment)
            && !self.closing.is_draining()
    }

    fn add_client(&mut self, client: Box<Client>) {
        let added = if self.is_open(client.attachment) {
            self.clients.add(client, &mut self.env)
        } else {
            Err(client)
        };
        match added {
            Ok(at) => self.clients.activate(at, self.env.now()),
            Err(client) => {
                client.set_state(RegionState::Detached);
                self.inbox.hand_back(Returned::Client(client));
            }
        }
    }

    fn add_captured(&mut self, new: Box<Captured>) {
        let attachment = new.attachment();
        if self.is_open(attachment) && self.captures.has_room(attachment) {
            let number = Owner::Capture(attachment).number();
            if self.env.watch(new.descriptor(), number).is_ok() {
                return self.captures.add(new);
            }
            self.inbox.hand_back(Returned::CaptureRefused(attachment));
        }
        self.inbox.hand_back_boxed([new]);
    }
}

/// Waiting.
impl<P: Port, E: Environment> Worker<P, E> {
    fn wait(&mut self) {
        let (now, next) = (self.env.now(), self.pacing.next());
        let bound = if self.clients.count() + self.captures.count() == 0 {
            limits::SLEEP_IDLE
        } else if self.clients.has_muted() {
            limits::SLEEP_MUTED
        } else {
            limits::SLEEP_MAX
        };
        let mut span = self.pacing.sleep_bound(bound);
        if let Some(next) = next {
            let ahead = next.at.ahead_of(now);
            if ahead <= Nanos::ZERO {
                return;
            }
            let more =
                self.pacing.more_if_cold(ahead, now.monotonic, self.preparation(next.port, now.monotonic));
            let least = self.pacing.sleep_least().saturating_add(more);
            if ahead <= least.saturating_add(self.clients.promises_cost()) {
                if self.may_spin(now, ahead) {
                    return self.spin(next, now);
                }
                count(&self.stats.spin_budget_spent);
                span = ahead;
            } else {
                span = span.min(self.pacing.sleep_span(ahead).saturating_sub(more));
            }
        }
        match self.expected_sleep().choose(now, span) {
            Expecting::Awake => {}
            Expecting::Sleep(expected) => self.sleep(now, expected, span),
            Expecting::Nothing => self.sleep(now, span, span),
        }
    }

    /// The parts that a sleep for an expected frame follows from.
    fn expected_sleep(&mut self) -> ExpectedSleep<'_, P> {
        let Self { clients, attachments, ports, pacing, stats, env, .. } = self;
        ExpectedSleep { clients, attachments, ports, pacing, stats, can_rehearse: env.can_rehearse() }
    }

    /// What this port can do ahead of its next frame.
    fn preparation(&self, port: usize, now: Monotonic) -> Preparation {
        self.ports.preparation(port, now, self.env.can_rehearse())
    }

    fn may_spin(&mut self, now: Now, ahead: Nanos) -> bool {
        self.pacing.may_spin(now.monotonic, ahead, |span| self.ports.is_timed_within(span, now))
    }

    /// Sleeps for `span` from `now` on, or until something happens; for `unexpected`, if no frame were expected.
    fn sleep(&mut self, now: Now, span: Nanos, unexpected: Nanos) {
        let until = now.monotonic.saturating_add(span);
        let cost = if span < unexpected { limits::EXPECTED_COST } else { limits::INTAKE_COST };
        let polls = Polls {
            at: self.polled_after(span, cost, now),
            unexpected: self.polled_after(unexpected, limits::INTAKE_COST, now),
        };
        let is_stepped = self.pacing.take_stepped();
        if is_stepped {
            self.clients.expectations().note_step();
        }
        if !self.clients.may_sleep_until(&polls, now, is_stepped) || self.captures.is_any_waiting() {
            return;
        }
        let mut woken = self.clients.take_woken();
        let awake = self.pacing.sleep(until, &mut self.env, &mut woken, &self.stats);
        self.hear(woken, awake);
    }

    /// The instant that can be promised where the worker sleeps for `span` from `now` on, and the intake then takes `cost`.
    fn polled_after(&self, span: Nanos, cost: Nanos, now: Now) -> Now {
        let span = now.monotonic.saturating_add(span).since(now.monotonic);
        after(now, span.saturating_add(self.pacing.needed_after(span, cost)))
    }

    /// Hands over due frames and does nothing else for `span`: the worker has used its share of the CPU. Returns false if it ended
    /// early because more frames are due.
    fn rest(&mut self, span: Nanos) -> bool {
        count(&self.stats.cpu_budget_spent);
        let until = self.env.monotonic().saturating_add(span);
        self.pacing.set_resting(true);
        let is_whole = self.rest_until(until);
        self.pacing.set_resting(false);
        is_whole
    }

    fn rest_until(&mut self, until: Monotonic) -> bool {
        loop {
            let (next, more) = self.transmit_turn();
            if more.is_some() {
                return false;
            }
            let now = self.env.now();
            let left = until.since(now.monotonic);
            if left <= Nanos::ZERO {
                return true;
            }
            let until_next = next.map_or(Nanos::MAX, |next| next.at.ahead_of(now));
            let ahead = self.pacing.sleep_span(until_next);
            match next {
                Some(next) if ahead <= limits::SLEEP_MIN => {
                    if self.may_spin(now, until_next) {
                        self.spin(next, now);
                    } else {
                        count(&self.stats.spin_budget_spent);
                        let until = now.monotonic.saturating_add(until_next.max(Nanos::ZERO));
                        self.pacing.doze(until, &mut self.env);
                    }
                }
                _ => self.pacing.doze(now.monotonic.saturating_add(left.min(ahead)), &mut self.env),
            }
        }
    }

    /// Spins until `next` is due and hands it over, or returns early because something arrived.
    fn spin(&mut self, next: Next, began: Now) {
        let ended = self.spin_until(next, began);
        let span = ended.monotonic.since(began.monotonic);
        self.pacing.spent_spinning(span);
        add(&self.stats.spin_ns, span.get().unsigned_abs());
    }

    /// Spins until `next` is due and hands it over. Returns the instant at which the spin ended.
    fn spin_until(&mut self, next: Next, began: Now) -> Now {
        let mut now = began;
        let mut nearest = next.at.ahead_of(began);
        let port = self.preparation(next.port, began.monotonic);
        let stretch = self.pacing.stretch(nearest, began.monotonic, port);
        let mut is_rehearsed = !self.pacing.is_rehearsed(nearest, began.monotonic, port);
        loop {
            let ahead = next.at.ahead_of(now);
            if ahead <= stretch {
                break;
            }
            if ahead > nearest.saturating_add(limits::LAST_STRETCH) {
                // The clock stepped back: something on the other clock may come first now.
                return now;
            }
            nearest = nearest.min(ahead);
            if !is_rehearsed && ahead <= limits::REHEARSAL {
                is_rehearsed = true;
                if let Some(after) = self.pacing.rehearse(next, ahead, &mut self.env) {
                    now = after;
                    continue;
                }
            }
            if self.is_listen_due(now.monotonic) && ahead >= limits::INTAKE_STOPS {
                return now;
            }
            if self.poll_once(now.monotonic, Pacing::intake_in_spin(ahead)) {
                return now;
            }
            now = self.env.now();
        }
        if let Some(ready) = self.make_next_ready(next, now) {
            self.last_stretch(next, &ready, stretch);
        }
        let now = self.env.now();
        self.note_hand_over_end(now);
        now
    }

    /// Polls one ring and one source of captured frames between two readings of the clock, so that many do not blur it; true when
    /// something was taken over.
    fn poll_once(&mut self, now: Monotonic, budget: usize) -> bool {
        if self.pacing.is_resting() {
            return false;
        }
        let owner = match self.captures.poll_one() {
            Some(attachment) => Some(Owner::Capture(attachment)),
            None => self.clients.poll_one(now, &mut self.env).map(Owner::Client),
        };
        if let Some(owner) = owner {
            self.intake(owner, budget);
        }
        owner.is_some()
    }

    /// Only the clock, then the frame. A clock that steps back far leaves the frame to the queue again. The frame that the
    /// scheduler chose for `next.at` may be another one, on the other clock: its own time counts too.
    fn last_stretch(&mut self, next: Next, ready: &Ready, stretch: Nanos) {
        let (mut is_cold, mut is_warm) = (stretch > limits::LAST_STRETCH, false);
        loop {
            match ready.due.moment(&mut self.env) {
                Moment::Now { error, read } => {
                    if let Some(why) = self.hand_to_port(next.port, ready, error, read) {
                        self.retry_later(next.port, &ready.due, why, None);
                    }
                    return;
                }
                // More than that only after a step back: frames of the other clock may be due before this one now.
                Moment::Early(ahead) if ahead <= stretch.saturating_mul(2) => {
                    if let Some(state) = self.ports.get_mut(next.port) {
                        // The first call after a pause takes long itself, and leaves the caches warm for the last one.
                        if is_cold && ahead >= limits::WARM_UP_COLD {
                            state.port.warm_up();
                        } else if !is_warm && ahead <= limits::LAST_STRETCH {
                            state.warm_up(ahead, || self.env.monotonic());
                            is_warm = true;
                        }
                    }
                    is_cold = false;
                }
                Moment::Early(_) => return self.put_back(next.port, ready),
                Moment::Gone => return self.missed_window(next.port, ready),
            }
            std::hint::spin_loop();
        }
    }
}
