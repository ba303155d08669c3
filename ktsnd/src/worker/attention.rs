// SPDX-License-Identifier: Apache-2.0
//! Which rings the worker looks at, and until when it has promised to.
//!
//! In: doorbells, frames taken, instants. Out: promises in the clients' regions, and whether the worker may sleep. A pass
//! costs what the clients cost that send: whose ring was empty for [`limits::QUIET_AFTER`] is told that nobody will look
//! ([`NEVER`]), so that its next frame rings whatever its transmit time is, and is left alone until it does. Doorbells are heard
//! after each sleep, and by a worker that does not sleep each [`limits::LISTEN_AFTER`]. Should one be lost, the look at everybody a few times a second ([`limits::SLEEP_MAX`]) finds the frame.
//!
//! ```text
//!            frame taken                 QUIET_AFTER without one
//!   active ──────────────► active ─────────────────────────────────► quiet (promise: NEVER)
//!     ▲  promise: the end of each sleep                                │
//!     └───────────────── doorbell, or the look at everybody ───────────┘
//! ```

use ktsn_port::Port;
use ktsn_time::{Monotonic, Nanos, Now};

use super::client::Client;
use super::{Environment, Worker};
use crate::limits;

/// The promise to those at whose rings nobody looks: every transmit time is before it.
const NEVER: u64 = u64::MAX;

/// What a client's ring was promised and gave last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attended {
    /// It is among those that are looked at.
    pub is_active: bool,
    /// When its ring had something last.
    pub busy_at: Monotonic,
    /// The instant that was promised last; `None`: never.
    promised: Option<Monotonic>,
}

impl Client {
    /// Promises to look at its ring no later than at this instant.
    pub(super) fn promise(&mut self, looks_at: Now) {
        self.attended.promised = Some(looks_at.monotonic);
        self.consumer.look_at(looks_at.monotonic.as_nanos(), looks_at.tai.as_nanos());
    }

    /// While the worker is awake for long, the promise "now" must not grow old. Whether it is by `now`.
    pub(super) fn is_promise_old(&self, now: Monotonic) -> bool {
        self.attended.promised.is_some_and(|at| now.since(at) > limits::PROMISE_AGE)
    }

    /// Whether its ring may be left alone from now on. A muted one's doorbells are not heard.
    fn is_quiet(&self, now: Monotonic) -> bool {
        !self.muted && now.since(self.attended.busy_at) > limits::QUIET_AFTER
    }

    /// Nobody looks from now on.
    fn leave(&mut self) {
        self.attended.promised = None;
        self.consumer.look_at(NEVER, NEVER);
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// From now on the client's ring is looked at.
    pub(super) fn attend(&mut self, index: usize, now: Now) {
        let Some(Some(client)) = self.clients.get_mut(index) else { return };
        client.attended.busy_at = now.monotonic;
        client.promise(now);
        if !client.attended.is_active {
            client.attended.is_active = true;
            self.active.push(index as u16); // a place is below CLIENTS_MAX
        }
    }

    /// The client at this place is no more.
    pub(super) fn forget_active(&mut self, index: usize) {
        self.active.retain(|active| usize::from(*active) != index);
    }

    /// Whether somebody may have rung whom nobody has heard for long: nobody looks at every ring, and the worker does not sleep.
    pub(super) fn is_to_listen(&self, now: Monotonic) -> bool {
        self.clients_count > self.active.len() && now.since(self.heard_at) >= limits::LISTEN_AFTER
    }

    /// A worker that has not slept for a while hears who rang, not too many at once; a frame that is due right away comes
    /// first, but not for ever.
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

    /// A few times a second, everybody: a doorbell may have been lost, a promise may be missing.
    pub(super) fn look_at_quiet(&mut self) {
        for index in 0..self.clients_end {
            let found = self.clients[index].as_ref().is_some_and(|client| {
                !client.attended.is_active && !client.closed && (client.muted || client.consumer.published())
            });
            if found {
                let now = self.env.now();
                self.attend(index, now);
            }
        }
    }

    /// Promises to look at the rings of active clients no later than at `looks_at`, and lets those go that were quiet for
    /// long. Whether nothing has come by then, so that the worker may sleep.
    pub(super) fn may_sleep_until(&mut self, looks_at: Now, now: Now) -> bool {
        for index in &self.active {
            let Some(Some(client)) = self.clients.get_mut(usize::from(*index)) else { continue };
            if client.is_quiet(now.monotonic) {
                client.leave();
            } else {
                client.promise(looks_at);
            }
        }
        // One for all: each promise comes before each look.
        ktsn_ring::sleep_fence();
        let mut nothing_came = true;
        let clients = &mut self.clients;
        self.active.retain(|index| {
            let Some(Some(client)) = clients.get_mut(usize::from(*index)) else { return false };
            let is_empty = client.closed || !client.consumer.published();
            nothing_came &= is_empty;
            let stays = !client.closed && (!is_empty || client.attended.promised.is_some());
            client.attended.is_active = stays;
            stays
        });
        nothing_came && !self.is_any_captured_waiting()
    }

    /// How many rings a pass looks at: of many only some where a frame is due soon, as the worker looks at the others while it
    /// spins, or in the passes after it.
    pub(super) fn looks_a_pass(&mut self) -> usize {
        let count = self.active.len();
        if count <= limits::LOOKS_A_PASS {
            return count;
        }
        let soon = self.margin.get().saturating_add(limits::SLEEP_MIN);
        match self.next {
            Some(next) if next.at.ahead_of(self.env.now()) <= soon => limits::LOOKS_A_PASS,
            _ => count,
        }
    }

    /// The client whose turn it is to be looked at; its promise is kept young.
    pub(super) fn next_turn(
        &mut self,
        now: impl FnOnce(&mut E) -> Now,
        monotonic: Monotonic,
    ) -> Option<usize> {
        if self.intake_turn >= self.active.len() {
            self.intake_turn = 0;
        }
        let index = usize::from(*self.active.get(self.intake_turn)?);
        self.intake_turn += 1;
        if let Some(Some(client)) = self.clients.get_mut(index)
            && client.is_promise_old(monotonic)
        {
            client.promise(now(&mut self.env));
        }
        Some(index)
    }

    /// Whether there is something to be taken over from a client.
    pub(super) fn is_waiting(&self, index: usize) -> bool {
        self.clients[index].as_ref().is_some_and(|client| !client.closed && client.consumer.published())
    }

    /// What the worker needs from its waking to a transmit time.
    pub(super) fn needed(&self) -> Nanos {
        self.margin.get().saturating_add(limits::INTAKE_COST)
    }
}
