// SPDX-License-Identifier: Apache-2.0
//! Which rings the worker looks at, and until when it has promised to.
//!
//! In: doorbells, frames taken, instants. Out: promises in the clients' regions, and whether the worker may sleep. Idle clients
//! cost nothing: a client with an empty ring for [`limits::QUIET_AFTER`] becomes *quiet*. Its promise is [`NEVER`] then, so
//! its next frame rings the doorbell whatever its transmit time is. Doorbells are read after each sleep, and each
//! [`limits::LISTEN_AFTER`] by a worker that does not sleep. A doorbell may be lost: a look at the quiet rings each
//! [`limits::SLEEP_MAX`] finds the frame.
//!
//! A promise that reaches further than the next look needs no renewal, and its ring no look before a sleep: a frame for an
//! earlier instant would have rung. So a wake-up by one client's doorbell does not cost a look at every ring. A nearer promise
//! saves that client its doorbell, though, and the worker a wake-up: [`limits::PROMISES_MADE_NEARER`] rings get one before each
//! sleep, by turns.
//!
//! ```text
//!            frame taken                 QUIET_AFTER without one
//!   active ──────────────► active ─────────────────────────────────► quiet (promise: NEVER)
//!     ▲  promise: the end of each sleep                                │
//!     └───────────────── doorbell, or the look at quiet rings ─────────┘
//! ```

use std::ops::Range;

use ktsn_port::Port;
use ktsn_time::{Monotonic, Nanos, Now};

use super::client::Client;
use super::{Environment, Worker};
use crate::limits;

/// The promise of a quiet ring: every transmit time is before it.
const NEVER: u64 = u64::MAX;

/// What a client's ring was promised and gave last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attended {
    /// When its ring had something last.
    pub busy_at: Monotonic,
    /// The instant that was promised last; `None`: never.
    promised: Option<Monotonic>,
    /// The promise was renewed, and the ring not looked at since.
    is_renewed: bool,
    /// Its ring was found empty after the promise: all that came later and rang for nothing can wait for that long.
    pub is_settled: bool,
}

impl Client {
    /// Promises to look at its ring no later than at this instant.
    pub(super) fn promise(&mut self, looks_at: Now) {
        self.attended.promised = Some(looks_at.monotonic);
        self.attended.is_settled = false;
        self.consumer.look_at(looks_at.monotonic.as_nanos(), looks_at.tai.as_nanos());
    }

    /// Whether the promise is out of date at `now`: a worker that is awake for long renews the promise "now".
    pub(super) fn is_promise_old(&self, now: Monotonic) -> bool {
        self.attended.promised.is_some_and(|at| now.since(at) > limits::PROMISE_AGE)
    }

    /// Whether what its ring may hold can wait until `looks_at`.
    fn is_promised_beyond(&self, looks_at: Now) -> bool {
        self.attended.is_settled && self.attended.promised.is_some_and(|at| at >= looks_at.monotonic)
    }

    /// Whether its ring may be left alone from now on, once it is empty. A muted client's ring is looked at by itself.
    fn is_quiet(&self, now: Monotonic) -> bool {
        self.muted || now.since(self.attended.busy_at) > limits::QUIET_AFTER
    }

    /// Promises no look.
    fn leave(&mut self) {
        self.attended.promised = None;
        self.consumer.look_at(NEVER, NEVER);
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// From now on the client's ring is looked at.
    pub(super) fn attend(&mut self, index: usize, now: Now) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        if client.closed || client.closing.is_some() {
            return;
        }
        client.attended.busy_at = now.monotonic;
        client.promise(now);
        self.turns.insert(index, usize::from(client.attachment.0));
    }

    /// Whether doorbells of quiet clients are to be read now: the worker has not slept for a while.
    pub(super) fn is_to_listen(&self, now: Monotonic) -> bool {
        !self.is_resting
            && self.clients_count > self.turns.len()
            && now.since(self.heard_at) >= limits::LISTEN_AFTER
    }

    /// Reads some of the doorbells in a worker that has not slept for a while. A frame that is due at once comes first, but only
    /// for [`limits::LISTEN_AFTER_ALL`].
    pub(super) fn listen(&mut self, now: Monotonic) {
        if !self.is_to_listen(now) {
            return;
        }
        let now = self.env.now();
        let is_close = self.next.is_some_and(|next| next.at.ahead_of(now) < limits::INTAKE_STOPS);
        if is_close && now.monotonic.since(self.heard_at) < limits::LISTEN_AFTER_ALL {
            return;
        }
        self.heard_at = now.monotonic;
        let mut woken = std::mem::take(&mut self.woken);
        self.env.news(limits::HEARD_AT_ONCE, &mut woken);
        self.hear_doorbells(&woken.doorbells, now);
        self.woken = woken;
    }

    /// Looks at the rings of some muted clients, each [`limits::SLEEP_MUTED`].
    pub(super) fn look_at_muted(&mut self, now: Monotonic) {
        if self.muted.is_empty() || now.since(self.muted_at) < limits::SLEEP_MUTED {
            return;
        }
        self.muted_at = now;
        for _ in 0..self.muted.len().min(limits::MUTED_LOOKS) {
            self.muted_turn = (self.muted_turn + 1) % self.muted.len();
            self.look_at_quiet(usize::from(self.muted[self.muted_turn]));
        }
    }

    /// Attends to a quiet client with a frame in its ring: its doorbell was lost, or is not heard.
    pub(super) fn look_at_quiet(&mut self, index: usize) {
        let found = !self.turns.contains(index)
            && self.clients.get(index).and_then(Option::as_ref).is_some_and(|client| {
                !client.closed && client.closing.is_none() && client.consumer.published()
            });
        if found {
            let now = self.env.now();
            self.attend(index, now);
        }
    }

    /// Promises to look at the rings of active clients no later than at `looks_at`, and lets quiet clients go. True when no ring
    /// needs a look before that, so that the worker may sleep; else the next look is at a ring that does.
    pub(super) fn may_sleep_until(&mut self, looks_at: Now, now: Now) -> bool {
        let is_stepped = std::mem::take(&mut self.is_stepped);
        let nearer = self.promises_made_nearer();
        for place in 0..self.turns.len() {
            let index = self.turns.at(place).unwrap_or_default();
            let Some(Some(client)) = self.clients.get_mut(index) else { continue };
            client.attended.is_renewed =
                is_stepped || nearer.contains(&place) || !client.is_promised_beyond(looks_at);
            if client.is_quiet(now.monotonic) {
                client.leave();
                client.attended.is_renewed = true;
            } else if client.attended.is_renewed {
                client.promise(looks_at);
            }
        }
        // One for all: each promise comes before each look.
        ktsn_ring::sleep_fence();
        let mut nothing_came = true;
        // From the last one on: a removal moves the last one, which was looked at.
        for place in (0..self.turns.len()).rev() {
            let index = self.turns.at(place).unwrap_or_default();
            let Some(Some(client)) = self.clients.get_mut(index) else {
                self.turns.remove(index);
                continue;
            };
            if client.closed {
                self.turns.remove(index);
            } else if client.attended.is_renewed {
                if client.consumer.published() {
                    nothing_came = false;
                    self.turns.point_at(index);
                } else if client.attended.promised.is_none() {
                    self.turns.remove(index);
                } else {
                    client.attended.is_settled = true;
                }
            }
        }
        nothing_came && !self.is_any_captured_waiting()
    }

    /// Chooses the rings whose promises are renewed before this sleep although they reach beyond it; returns their places.
    fn promises_made_nearer(&mut self) -> Range<usize> {
        let begin = if self.nearer_turn < self.turns.len() { self.nearer_turn } else { 0 };
        self.nearer_turn = begin + limits::PROMISES_MADE_NEARER;
        begin..self.nearer_turn
    }

    /// Keeps the client's promise young.
    pub(super) fn renew_promise(&mut self, index: usize, monotonic: Monotonic) {
        if let Some(Some(client)) = self.clients.get_mut(index)
            && client.is_promise_old(monotonic)
        {
            client.promise(self.env.now());
        }
    }

    /// Whether there is something to be taken over from a client.
    pub(super) fn is_waiting(&self, index: usize) -> bool {
        let client = self.clients.get(index).and_then(Option::as_ref);
        client.is_some_and(|client| !client.closed && client.consumer.published())
    }

    /// What the worker needs from the end of a sleep of `span` to a transmit time.
    pub(super) fn needed(&self, span: Nanos) -> Nanos {
        self.margin.of(span).saturating_add(limits::INTAKE_COST)
    }

    /// What the promises before a sleep may take.
    pub(super) fn promises_cost(&self) -> Nanos {
        limits::PROMISE_COST.saturating_mul(self.turns.len().saturating_sub(1) as i64) // at most CLIENTS_MAX
    }
}
