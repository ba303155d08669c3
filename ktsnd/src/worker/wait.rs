// SPDX-License-Identifier: Apache-2.0
//! Waiting for the next event: sleep until `margin` before it, then spin. Before a long sleep's end the margin is a longer one: it is
//! followed by a short sleep.
//!
//! While it sleeps the worker has promised to every client when it looks again (`attention`); while it spins it
//! looks at one ring after the other between two readings of the clock, but for the last stretch, where the next frame lies
//! ready in the port's buffer and only its clock is read.

use ktsn_port::Port;
use ktsn_time::{Monotonic, Nanos, Now, Offset};
use rustix::fd::AsFd;
use rustix::net::{RecvFlags, recv};

use super::due::Moment;
use super::intake::intake_budget;
use super::transmit::{Next, Ready};
use super::{Environment, Worker};
use crate::limits;
use crate::stats::{add, count};

impl<P: Port, E: Environment> Worker<P, E> {
    pub(super) fn wait(&mut self, next: Option<Next>) {
        let now = self.env.now();
        if let Some(next) = next {
            let ahead = next.at.ahead_of(now);
            if ahead <= Nanos::ZERO {
                return;
            }
            let least = self.margin.get().saturating_add(self.more_if_cold(next, now));
            let least = least.saturating_add(limits::SLEEP_MIN).saturating_add(self.promises_cost());
            if ahead <= least {
                if self.may_spin(now, ahead) {
                    self.spin(next, now);
                } else {
                    count(&self.stats.spin_budget_spent);
                    self.sleep(now, now.monotonic.saturating_add(ahead.max(Nanos::ZERO)));
                }
                return;
            }
        }
        let bound = if self.clients_count + self.captured_count == 0 {
            limits::SLEEP_IDLE
        } else if !self.muted.is_empty() {
            limits::SLEEP_MUTED
        } else {
            limits::SLEEP_MAX
        };
        let bound = self.margin.practice().map_or(bound, |span| span.min(bound));
        let event = next.map(|next| {
            let ahead = next.at.ahead_of(now);
            ahead.saturating_sub(self.margin.of(ahead)).saturating_sub(self.more_if_cold(next, now))
        });
        let span = event.map_or(bound, |e| e.min(bound));
        self.sleep(now, now.monotonic.saturating_add(span));
    }

    /// Whether the budget lasts for a spin of `ahead`. A flood of frames without transmit time, each waiting for the link,
    /// must not use up what timed frames need: its last part is spent only where one of those would be overslept.
    fn may_spin(&mut self, now: Now, ahead: Nanos) -> bool {
        if self.budget.allows_untimed(now.monotonic) {
            return true;
        }
        let awake =
            ahead.max(Nanos::ZERO).saturating_add(self.margin.get()).saturating_add(limits::SLEEP_MIN);
        self.budget.allows(now.monotonic) && self.is_timed_within(awake, now)
    }

    /// Sleeps until `until` or news. The lateness of waking teaches the margin.
    fn sleep(&mut self, now: Now, until: Monotonic) {
        let span = until.since(now.monotonic);
        let looks_at = span.saturating_add(self.needed(span));
        let looks_at =
            Now { tai: now.tai.saturating_add(looks_at), monotonic: now.monotonic.saturating_add(looks_at) };
        if self.may_sleep_until(looks_at, now) {
            let mut woken = std::mem::take(&mut self.woken);
            let asleep = self.env.monotonic();
            self.cpu.awake(asleep);
            self.env.sleep(until, &mut woken);
            count(&self.stats.wake_ups);
            let awake = self.env.now();
            self.cpu.slept(awake.monotonic);
            if woken.timed_out && until > asleep {
                self.margin.observe(until.since(asleep), awake.monotonic.since(until));
            }
            self.hear_doorbells(&woken.doorbells, awake);
            self.woken = woken;
            self.heard_at = awake.monotonic;
            self.watch_for_steps(awake);
        }
    }

    /// Whether a timed frame may leave within `span`.
    fn is_timed_within(&mut self, span: Nanos, now: Now) -> bool {
        let mut from = 0;
        while let Some(at) = self.busy.next(from) {
            if self.ports[at].as_mut().is_some_and(|port| port.sched.is_timed_within(span, now)) {
                return true;
            }
            from = at + 1;
        }
        false
    }

    fn watch_for_steps(&mut self, now: Now) {
        let offset = Offset::between(now.tai, now.monotonic);
        if let Some(before) = self.offset {
            // Reading two clocks is not one instant; slewing moves neither. 100 µs is a step.
            if offset.span().saturating_sub(before.span()).abs() > Nanos::from_micros(100) {
                count(&self.stats.clock_steps);
                self.is_stepped = true;
            }
        }
        self.offset = Some(offset);
    }

    /// Reads doorbells and attends to the clients that rang. An attachment that rings more than
    /// [`limits::DOORBELLS_A_SECOND`] is not heard for the rest of the second: its rings are looked at in turns
    /// instead, [`limits::MUTED_LOOKS`] of them each [`limits::SLEEP_MUTED`].
    pub(super) fn hear_doorbells(&mut self, numbers: &[u64], now: Now) {
        for number in numbers {
            let index = *number as usize;
            // Awake, it looks at the rings of those that rang: more of the same ring for nothing.
            self.attend(index, now);
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            let mut rung = 0;
            let mut byte = [0u8; 1];
            for _ in 0..limits::DOORBELLS_A_PASS {
                match recv(&client.doorbell, &mut byte, RecvFlags::DONTWAIT) {
                    Ok((_, 0)) => {
                        // Every copy of the client's end is closed: the registrar will end the client.
                        self.env.unwatch(client.doorbell.as_fd());
                        break;
                    }
                    Ok(_) => rung += 1,
                    Err(_) => break,
                }
            }
            let Some(Some(policy)) = self.attachments.get_mut(usize::from(client.attachment.0)) else {
                continue;
            };
            add(&policy.stats.doorbells, u64::from(rung));
            let usage = &mut policy.usage;
            if now.monotonic.since(usage.bells_since) >= Nanos::from_seconds(1) {
                (usage.bells_since, usage.bells) = (now.monotonic, 0);
            }
            usage.bells = usage.bells.saturating_add(rung);
            if usage.bells > limits::DOORBELLS_A_SECOND && !client.muted {
                client.muted = true;
                client.muted_at = now.monotonic;
                self.muted.push(index as u16); // a place is below CLIENTS_MAX, and stands there once
                count(&self.stats.doorbells_muted);
                self.env.mute(client.doorbell.as_fd(), *number, true);
            }
        }
    }

    /// Hands over what is due and does nothing else for `span`: the worker has used its share of the CPU. False where it ended
    /// early, as there is more that is due.
    pub(super) fn rest(&mut self, span: Nanos) -> bool {
        count(&self.stats.cpu_budget_spent);
        self.is_resting = true;
        let until = self.env.monotonic().saturating_add(span);
        let is_whole = self.rest_until(until);
        self.is_resting = false;
        is_whole
    }

    /// Does nothing at all for `span`.
    pub(super) fn rest_at_all_costs(&mut self, span: Nanos) {
        count(&self.stats.cpu_budget_spent);
        let until = self.env.monotonic().saturating_add(span);
        self.doze(until);
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
            let ahead = until_next.saturating_sub(self.margin.of(until_next));
            match next {
                Some(next) if ahead <= limits::SLEEP_MIN => {
                    if self.may_spin(now, until_next) {
                        self.spin(next, now);
                    } else {
                        count(&self.stats.spin_budget_spent);
                        self.doze(now.monotonic.saturating_add(until_next.max(Nanos::ZERO)));
                    }
                }
                _ => self.doze(now.monotonic.saturating_add(left.min(ahead))),
            }
        }
    }

    /// Sleeps until `at`, whatever comes.
    fn doze(&mut self, at: Monotonic) {
        let now = self.env.monotonic();
        self.cpu.awake(now);
        self.env.rest(at);
        self.cpu.slept(self.env.monotonic());
    }

    /// Spins until `next` is due and hands it over, or returns early because something arrived.
    fn spin(&mut self, next: Next, began: Now) {
        let mut now = began;
        let mut nearest = next.at.ahead_of(began);
        let stretch = self.stretch(next.port, nearest, began.monotonic);
        let mut is_rehearsed = !self.is_rehearsed(next.port, nearest, began.monotonic);
        loop {
            let ahead = next.at.ahead_of(now);
            if ahead <= stretch {
                break;
            }
            if ahead > nearest.saturating_add(limits::LAST_STRETCH) {
                // The clock stepped back: something on the other clock may come first now.
                self.spent_spinning(began, now);
                return;
            }
            nearest = nearest.min(ahead);
            if !is_rehearsed && ahead <= limits::REHEARSAL {
                is_rehearsed = true;
                if self.rehearsal.is_wanted(ahead) {
                    self.env.rehearse();
                    now = self.env.now();
                    self.rehearsal.took(ahead.saturating_sub(next.at.ahead_of(now)));
                    self.rehearsed_at = now.monotonic;
                    continue;
                }
            }
            if self.is_to_listen(now.monotonic) && ahead >= limits::INTAKE_STOPS {
                self.spent_spinning(began, now);
                return;
            }
            if self.look_once(now, intake_budget(ahead)) {
                self.spent_spinning(began, now);
                return;
            }
            now = self.env.now();
        }
        if let Some(ready) = self.make_next_ready(next, now) {
            self.last_stretch(next, &ready, stretch);
        }
        let now = self.env.now();
        self.handed_over(now);
        self.spent_spinning(began, now);
    }

    /// How long before its time the next frame of `port` is made ready, which is due in `ahead`.
    fn stretch(&self, port: usize, ahead: Nanos, now: Monotonic) -> Nanos {
        let is_cold = self.pause_until(ahead, now) > limits::COLD_AFTER;
        if is_cold && self.is_made_ready(port, now) {
            limits::LAST_STRETCH_COLD
        } else {
            limits::LAST_STRETCH
        }
    }

    /// Whether a frame that goes nowhere is handed over before the next one of `port`, which is due in `ahead`.
    fn is_rehearsed(&self, port: usize, ahead: Nanos, now: Monotonic) -> bool {
        // A frame that is dropped when it is due counts too, and no frame has two.
        let since = now.since(self.rehearsed_at).saturating_add(ahead);
        let is_rare = self.pause_until(ahead, now).min(since) > limits::REHEARSE_AFTER;
        is_rare && self.env.can_rehearse() && self.is_made_ready(port, now)
    }

    /// How long nothing will have been handed over when a frame is due in `ahead`.
    fn pause_until(&self, ahead: Nanos, now: Monotonic) -> Nanos {
        now.since(self.handed_over_at).saturating_add(ahead)
    }

    /// A frame that the port did not take lies ready; a slow port's is not made ready.
    fn is_made_ready(&self, port: usize, now: Monotonic) -> bool {
        self.ports[port].as_ref().is_some_and(|state| state.held.is_none() && !state.slow.is_slow(now))
    }

    /// How much earlier the worker wakes for a frame after a pause.
    fn more_if_cold(&self, next: Next, now: Now) -> Nanos {
        let ahead = next.at.ahead_of(now);
        if self.is_rehearsed(next.port, ahead, now.monotonic) {
            return limits::REHEARSAL;
        }
        self.stretch(next.port, ahead, now.monotonic).saturating_sub(limits::LAST_STRETCH)
    }

    /// One ring and one source of captured frames between two readings of the clock, so that many do not blur it; whether
    /// something was taken over.
    fn look_once(&mut self, now: Now, budget: usize) -> bool {
        if self.is_resting {
            return false;
        }
        let budget = budget.min(limits::INTAKE_QUANTUM);
        if self.captured_count > 0 {
            if self.captured_turn >= self.captured_end {
                self.captured_turn = 0;
            }
            let at = self.captured_turn;
            self.captured_turn += 1;
            if self.is_captured_waiting(at) {
                self.intake_captured(at, budget);
                return true;
            }
        }
        let Some(index) = self.turns.next_of_any() else { return false };
        self.renew_promise(index, now.monotonic);
        let is_waiting = self.is_waiting(index);
        if is_waiting {
            self.intake(index, budget);
        }
        is_waiting
    }

    /// Only the clock, then the frame. A clock that steps back far leaves the frame to the queue again. The frame that the
    /// scheduler chose for `next.at` may be another one, on the other clock: its own time counts too.
    fn last_stretch(&mut self, next: Next, ready: &Ready, stretch: Nanos) {
        let (mut is_cold, mut is_warm) = (stretch > limits::LAST_STRETCH, false);
        loop {
            match ready.due.moment(&mut self.env) {
                Moment::Now { error, read } => {
                    if let Some(why) = self.commit(next.port, ready, error, read) {
                        self.hold(next.port, &ready.due, why, None);
                    }
                    return;
                }
                // More than that only after a step back: frames of the other clock may be due before this one now.
                Moment::Early(ahead) if ahead <= stretch.saturating_mul(2) => {
                    // The first call after a pause takes long itself, and leaves the caches warm for the last one.
                    if is_cold && ahead >= limits::WARM_UP_COLD {
                        self.warm_up_cold(next.port);
                    }
                    is_cold = false;
                    if !is_warm && ahead <= limits::LAST_STRETCH {
                        self.warm_up(next.port, ahead);
                        is_warm = true;
                    }
                }
                Moment::Early(_) => return self.put_back(next.port, ready),
                Moment::Gone => return self.missed_window(next.port, ready),
            }
            std::hint::spin_loop();
        }
    }

    /// Makes the way into the kernel warm for a frame that is due in `ahead`.
    fn warm_up(&mut self, port: usize, ahead: Nanos) {
        let Some(state) = self.ports[port].as_mut() else { return };
        if state.warm_up.is_wanted(ahead) {
            let began = self.env.monotonic();
            state.port.warm_up();
            state.warm_up.took(self.env.monotonic().since(began));
        }
    }

    /// The same after a pause. How long it takes says nothing of the next call.
    fn warm_up_cold(&mut self, port: usize) {
        if let Some(state) = self.ports[port].as_mut() {
            state.port.warm_up();
        }
    }

    fn spent_spinning(&mut self, began: Now, now: Now) {
        let span = now.monotonic.since(began.monotonic);
        self.budget.spend(span);
        add(&self.stats.spin_ns, span.get().unsigned_abs());
    }
}
