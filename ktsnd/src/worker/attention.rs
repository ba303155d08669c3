// SPDX-License-Identifier: Apache-2.0
//! The promise to poll one client's ring: until when the worker may sleep without a poll.
//!
//! In: instants, and frames as they are taken. Out: promises in the client's region; whether the ring needs a poll before a
//! sleep. Idle clients cost nothing: a client whose ring stays empty for [`QUIET_AFTER`] becomes *quiet*. Its promise is
//! [`NEVER`] then, so its next frame rings the doorbell whatever its transmit time is.
//!
//! A promise that reaches further than the next poll needs no renewal, and the ring no poll before a sleep: a frame for an
//! earlier instant would have rung. So a wake-up by one client's doorbell does not cost a poll of every ring.
//!
//! ```text
//!            frame taken                 QUIET_AFTER without one
//!   active ──────────────► active ─────────────────────────────────► quiet (promise: NEVER)
//!     ▲  promise: the end of each sleep                                │
//!     └───────────────── doorbell, or the poll of quiet rings ─────────┘
//! ```

use ktsn_ring::Consumer;
use ktsn_time::{Monotonic, Now};

use crate::limits::{EARLY_FOR, PROMISE_AGE, QUIET_AFTER};

/// The promise of a quiet ring: every transmit time is before it.
const NEVER: u64 = u64::MAX;

/// When rings are polled after a sleep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Polls {
    /// At the end of the sleep, for which an expected frame may be the reason.
    pub at: Now,
    /// No later than this if no frame is expected: what the other clients are promised. An earlier poll is no breach.
    pub unexpected: Now,
}

/// The last promise, and when the ring last had a frame.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attention {
    /// When the ring had a frame last.
    busy_at: Monotonic,
    /// The instant of the last promise; `None`: there is none.
    promised: Option<Monotonic>,
    /// The promise was renewed, and the ring was not polled since.
    is_renewed: bool,
    /// The ring was found empty after the promise. A frame that came later and rang no doorbell can wait for that long.
    is_settled: bool,
    /// When a frame of the client was expected last.
    expected_at: Option<Monotonic>,
    /// When a frame was taken last that is wanted as early as possible.
    early_at: Option<Monotonic>,
}

impl Attention {
    /// The client's next frame is expected.
    #[inline]
    pub(super) fn note_expected(&mut self, now: Monotonic) {
        self.expected_at = Some(now);
    }

    /// A frame was taken that is wanted as early as possible: the next one of its stream is, too.
    pub(super) fn note_wanted_early(&mut self, now: Monotonic) {
        self.early_at = Some(now);
    }

    /// True when the client's promise follows expectations: it has a stream with an expected frame, and none of its frames is wanted
    /// early.
    fn is_expected(&self, now: Monotonic) -> bool {
        let is_since = |at: Option<Monotonic>, span| at.is_some_and(|at| now.since(at) <= span);
        is_since(self.expected_at, QUIET_AFTER) && !is_since(self.early_at, EARLY_FOR)
    }
}

/// What a poll after the promises of a sleep found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Polled {
    /// The ring needs no poll before the sleep ends, or it is empty.
    Nothing,
    /// A frame was published.
    Frame,
    /// The ring is quiet or closed: it is not polled any more.
    Inactive,
}

/// The promises of one client, with the ring that they are written to.
pub(super) struct Promises<'a> {
    pub attention: &'a mut Attention,
    pub consumer: &'a Consumer,
}

impl Promises<'_> {
    /// The ring is polled from now on.
    pub(super) fn activate(&mut self, now: Now) {
        self.attention.busy_at = now.monotonic;
        self.promise(now);
    }

    /// A frame was taken from the ring at `now`.
    pub(super) fn note_taken(&mut self, now: Monotonic) {
        self.attention.busy_at = now;
    }

    /// Frames are about to be taken: until all of them are, the ring cannot wait for the promised instant.
    pub(super) fn unsettle(&mut self) {
        self.attention.is_settled = false;
    }

    /// Promises to poll the ring no later than at this instant.
    pub(super) fn promise(&mut self, polled_at: Now) {
        self.attention.promised = Some(polled_at.monotonic);
        self.attention.is_settled = false;
        self.consumer.promise_poll_by(polled_at.monotonic.as_nanos(), polled_at.tai.as_nanos());
    }

    /// True when the promise is out of date at `now`: a worker that is awake for long renews the promise "now".
    pub(super) fn is_old(&self, now: Monotonic) -> bool {
        self.attention.promised.is_some_and(|at| now.since(at) > PROMISE_AGE)
    }

    /// Before a sleep: promises to poll the ring after it, or, for a quiet ring, never. A promise that reaches further is kept,
    /// unless `is_forced`.
    pub(super) fn promise_sleep(&mut self, polls: &Polls, now: Monotonic, is_muted: bool, is_forced: bool) {
        let Attention { busy_at, promised, is_settled, .. } = *self.attention;
        let polled_at = if self.attention.is_expected(now) { polls.at } else { polls.unexpected };
        let reaches = is_settled && promised.is_some_and(|at| at >= polled_at.monotonic);
        self.attention.is_renewed = is_forced || !reaches;
        if is_muted || now.since(busy_at) > QUIET_AFTER {
            self.attention.promised = None;
            self.consumer.promise_poll_by(NEVER, NEVER);
            self.attention.is_renewed = true;
        } else if self.attention.is_renewed {
            self.promise(polled_at);
        }
    }

    /// Polls the ring after [`Self::promise_sleep`] and a fence.
    pub(super) fn poll(&mut self) -> Polled {
        if !self.attention.is_renewed {
            return Polled::Nothing;
        }
        if self.consumer.published() {
            return Polled::Frame;
        }
        if self.attention.promised.is_none() {
            return Polled::Inactive;
        }
        self.attention.is_settled = true;
        Polled::Nothing
    }
}
