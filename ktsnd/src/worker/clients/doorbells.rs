// SPDX-License-Identifier: Apache-2.0
//! Doorbells, quiet clients and sleep.
//!
//! In: doorbells, instants, how long the worker wants to sleep. Out: which rings are polled, the promises of a sleep, and whether the
//! worker may sleep.

use std::ops::Range;

use ktsn_time::{Monotonic, Nanos, Now};

use super::Clients;
use crate::limits;
use crate::stats::{WorkerStats, count};
use crate::worker::attachments::Attachments;
use crate::worker::attention::{Polled, Polls};
use crate::worker::client::Client;
use crate::worker::environment::{Environment, Woken};

impl Clients {
    /// True when doorbells of quiet clients must be read now: the worker has not slept for a while.
    pub(in crate::worker) fn is_listen_due(&self, now: Monotonic) -> bool {
        self.count > self.turns.len() && now.since(self.listened_at) >= limits::LISTEN_AFTER
    }

    /// True when the worker has not listened for so long that a frame that is due must wait for it.
    pub(in crate::worker) fn is_listen_overdue(&self, now: Monotonic) -> bool {
        now.since(self.listened_at) >= limits::LISTEN_AFTER_ALL
    }

    /// Room for the news of a sleep; [`Self::listen`] takes it back.
    pub(in crate::worker) fn take_woken(&mut self) -> Woken {
        std::mem::take(&mut self.woken)
    }

    /// Reads the doorbells that rang and polls their rings from now on. An attachment that rings more than
    /// [`limits::DOORBELLS_A_SECOND`] is not listened to for the rest of the second: its rings are polled in turns instead,
    /// [`limits::MUTED_LOOKS`] of them each [`limits::SLEEP_MUTED`].
    pub(in crate::worker) fn listen(
        &mut self,
        woken: Woken,
        now: Now,
        attachments: &mut Attachments,
        env: &mut impl Environment,
        stats: &WorkerStats,
    ) {
        self.listened_at = now.monotonic;
        for number in &woken.doorbells {
            let at = *number as usize; // a capture's number is no client's place
            // Awake, the worker polls the rings that rang: more of the same ring for nothing.
            self.activate(at, now);
            let Some(client) = self.get_mut(at) else { continue };
            let (rung, is_hung_up) = client.read_doorbell();
            if is_hung_up {
                // Every copy of the client's end is closed: the registrar will end the client.
                env.unwatch(client.doorbell());
            }
            let Some(policy) = attachments.get_mut(client.attachment) else { continue };
            if policy.count_doorbells(rung, now.monotonic) && client.mute(now.monotonic) {
                env.mute(client.doorbell(), *number, true);
                count(&stats.doorbells_muted);
                self.muted.push(at as u16); // a place is below CLIENTS_MAX, and stands there once
            }
        }
        self.woken = woken;
    }

    /// True while doorbells are not listened to.
    pub(in crate::worker) fn has_muted(&self) -> bool {
        !self.muted.is_empty()
    }

    /// Polls the rings of some muted clients, each [`limits::SLEEP_MUTED`].
    pub(in crate::worker) fn poll_muted(&mut self, now: Monotonic, env: &mut impl Environment) {
        if self.muted.is_empty() || now.since(self.muted_at) < limits::SLEEP_MUTED {
            return;
        }
        self.muted_at = now;
        for _ in 0..self.muted.len().min(limits::MUTED_LOOKS) {
            self.muted_turn = (self.muted_turn + 1) % self.muted.len();
            self.poll_quiet(usize::from(self.muted[self.muted_turn]), env);
        }
    }

    /// Activates a quiet client with a frame in its ring: its doorbell was lost, or is not listened to.
    pub(super) fn poll_quiet(&mut self, at: usize, env: &mut impl Environment) {
        let is_found = !self.turns.contains(at)
            && self.get(at).is_some_and(|client| client.is_open() && client.is_waiting());
        if is_found {
            self.activate(at, env.now());
        }
    }

    /// Promises to poll the rings of active clients after a sleep, and lets quiet clients go. True when no ring needs a poll before
    /// that, so that the worker may sleep; else the next poll is of a ring that does. `is_stepped`: a clock stepped, so all promises
    /// are void. A nearer promise saves a client its doorbell, and the worker a wake-up: [`limits::PROMISES_MADE_NEARER`] rings get
    /// one before each sleep, by turns, and so does the client of [`Self::make_nearer`].
    pub(in crate::worker) fn may_sleep_until(&mut self, polls: &Polls, now: Now, is_stepped: bool) -> bool {
        let (nearer, its) = (self.promises_made_nearer(), self.nearer.take());
        for place in 0..self.turns.len() {
            let at = self.turns.at(place).unwrap_or_default();
            let is_forced = is_stepped || nearer.contains(&place) || its == Some(at);
            if let Some(client) = self.get_mut(at) {
                client.promise_sleep(polls, now.monotonic, is_forced);
            }
        }
        // One for all: each promise comes before each poll.
        ktsn_ring::sleep_fence();
        let mut is_empty = true;
        // From the last one on: a removal moves the last one, which was polled.
        for place in (0..self.turns.len()).rev() {
            let at = self.turns.at(place).unwrap_or_default();
            match self.get_mut(at).map_or(Polled::Inactive, Client::poll_before_sleep) {
                Polled::Nothing => {}
                Polled::Inactive => self.turns.remove(at),
                Polled::Frame => {
                    is_empty = false;
                    self.turns.point_at(at);
                }
            }
        }
        is_empty
    }

    /// The next sleep is for a frame of the client in this place.
    pub(in crate::worker) fn make_nearer(&mut self, at: usize) {
        self.nearer = Some(at);
    }

    /// True when the ring of the client in this place is polled in each pass: it is neither quiet nor muted nor closed.
    pub(in crate::worker) fn is_polled(&self, at: usize) -> bool {
        self.turns.contains(at)
    }

    /// Chooses rings that get a new promise before this sleep although the old one reaches beyond it; returns their places.
    fn promises_made_nearer(&mut self) -> Range<usize> {
        let begin = if self.nearer_turn < self.turns.len() { self.nearer_turn } else { 0 };
        self.nearer_turn = begin + limits::PROMISES_MADE_NEARER;
        begin..self.nearer_turn
    }

    /// How long the promises before a sleep may take.
    pub(in crate::worker) fn promises_cost(&self) -> Nanos {
        limits::PROMISE_COST.saturating_mul(self.turns.len().saturating_sub(1) as i64) // at most CLIENTS_MAX
    }
}
