// SPDX-License-Identifier: Apache-2.0
//! When a frame that left the scheduler may be handed over.
//!
//! In: a decision. Out: what the clocks say about it, as often as they are read.

use ktsn_sched::{Frame, Window};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

use super::environment::Environment;

/// The next frame of one port, which the worker waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub at: TxTime,
    pub port: usize,
}

/// Both clocks after `span`, if neither is set.
pub(super) fn after(now: Now, span: Nanos) -> Now {
    Now { tai: now.tai.saturating_add(span), monotonic: now.monotonic.saturating_add(span) }
}

/// A frame that the scheduler chose, and the instants before which it must not leave.
#[derive(Clone, Copy)]
pub(super) struct Due {
    pub frame: Frame,
    pub late: bool,
    /// No hand-over before these, by their own clocks: TxTime, opening of the gate, instant of the decision.
    monotonic_at: Option<Monotonic>,
    tai_at: Option<Tai>,
    /// The latest instant of hand-over with which it still ends inside its window.
    pub latest: Option<Tai>,
    /// Where a gate decided, the worker's lateness is counted from this instant.
    ready_at: Tai,
    /// Nothing but the TxTime, if there is one, decides when the frame leaves.
    is_plain: bool,
}

/// What the clocks say about a frame that lies ready.
pub(super) enum Moment {
    /// It is too early by this span.
    Early(Nanos),
    /// It may leave; `error` has passed since it first could have left.
    Now { error: Nanos, read: Option<TxTime> },
    /// Its window or its deadline has passed.
    Gone,
}

impl Due {
    /// The frame of a decision to transmit that holds for the instant `decided`. It must not leave before `at` either.
    #[inline]
    pub(super) fn new(
        frame: &Frame,
        late: bool,
        overrun: Nanos,
        window: Option<Window>,
        decided: Now,
        at: Option<TxTime>,
    ) -> Self {
        let frame = *frame;
        let deadline = frame.deadline();
        let due = if late { None } else { frame.not_before() };
        let mut new = Self {
            frame,
            late,
            monotonic_at: None,
            tai_at: window.map(|window| window.opens_at),
            latest: window.map(|window| window.latest),
            ready_at: decided.tai.saturating_sub(overrun),
            is_plain: window.is_none() && at.is_none() && deadline.is_none(),
        };
        if new.is_plain {
            return new;
        }
        // A deadline is read from its own clock, whatever else is.
        let deadline = deadline.map(|at| match at {
            TxTime::Tai(_) => TxTime::Tai(Tai::ZERO),
            TxTime::Monotonic(_) => TxTime::Monotonic(Monotonic::ZERO),
        });
        for at in [due, deadline, at].into_iter().flatten() {
            match at {
                TxTime::Tai(at) => new.tai_at = Some(new.tai_at.map_or(at, |other| other.max(at))),
                TxTime::Monotonic(at) => {
                    new.monotonic_at = Some(new.monotonic_at.map_or(at, |other| other.max(at)));
                }
            }
        }
        new
    }

    /// True when the frame has a TxTime to overrun. Zero on MONOTONIC means "at once", as for fq: there is nothing to be late
    /// for.
    pub(super) fn is_on_time(&self) -> bool {
        !self.late && self.frame.not_before().is_some_and(|at| at != TxTime::Monotonic(Monotonic::ZERO))
    }

    /// True when `error` is more than a frame on time may be late.
    pub(super) fn is_overrun(&self, error: Nanos) -> bool {
        self.is_on_time() && self.frame.overrun_max().is_some_and(|limit| error > limit)
    }

    /// Reads the clocks that matter, TAI last: gates follow TAI.
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
        match (self.frame.deadline(), monotonic, tai) {
            (Some(TxTime::Monotonic(at)), Some((_, now)), _) => now > at,
            (Some(TxTime::Tai(at)), _, Some((_, now))) => now > at,
            _ => false,
        }
    }
}
