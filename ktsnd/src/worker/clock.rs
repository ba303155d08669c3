// SPDX-License-Identifier: Apache-2.0
//! What depends on TAI while TAI is not to be trusted: sent, held or dropped, as the port's `unsynchronised` says.
//!
//! In: whether the clock is good (a command; the worker decides nothing about clocks), frames whose turn has come. Out:
//! frames put aside, then queued again or dropped as `unsynchronised`. A frame depends on TAI when its TxTime is TAI, or when
//! a gate has a say. It is put aside when its turn comes, in room that was made beforehand; so frames that do not depend on
//! TAI go on leaving. It waits no longer than its attachment's horizon, then it is dropped. When the clock is good again it
//! goes back to its queue and is judged by the good clock like any other frame. Every pass does a bounded part of that.

use std::collections::VecDeque;

use ktsn_model::{DropReason, UnsynchronisedPolicy};
use ktsn_port::Port;
use ktsn_resolve::AttachmentIndex;
use ktsn_sched::Frame;
use ktsn_time::{Monotonic, TxTime};

use super::{Environment, Worker};
use crate::limits;

/// Frames put aside that one pass looks at.
const LOOKED_A_PASS: usize = 64;

/// A frame that waits for the clock.
#[derive(Clone, Copy, Debug)]
struct Aside {
    frame: Frame,
    port: usize,
    /// When it is given up.
    until: Monotonic,
}

/// See the module.
#[derive(Debug)]
pub struct ClockGate {
    policy: UnsynchronisedPolicy,
    is_good: bool,
    aside: VecDeque<Aside>,
    /// How many of them each attachment has.
    counts: Box<[u32]>,
    /// Of those put aside, how many are still to be looked at in this round.
    to_look: usize,
    looked_at: Monotonic,
}

impl ClockGate {
    /// The policy of a port, with the room that it needs.
    #[must_use]
    pub fn new(policy: UnsynchronisedPolicy, is_good: bool) -> Self {
        let is_hold = policy == UnsynchronisedPolicy::Hold;
        let aside = VecDeque::with_capacity(if is_hold { limits::QUEUE_MAX } else { 0 });
        let counts = vec![0; if is_hold { limits::ATTACHMENTS_MAX } else { 0 }].into_boxed_slice();
        Self { policy, is_good, aside, counts, to_look: 0, looked_at: Monotonic::ZERO }
    }

    /// The clock is good or not from now on.
    pub(super) fn set(&mut self, is_good: bool) {
        self.is_good = is_good;
    }

    /// Whether a frame with this TxTime is refused right away.
    #[inline]
    pub(super) fn refuses(&self, tx_time: TxTime) -> bool {
        !self.is_good && self.policy == UnsynchronisedPolicy::Drop && matches!(tx_time, TxTime::Tai(_))
    }

    /// Whether no frame waits.
    pub(super) fn is_empty(&self) -> bool {
        self.aside.is_empty()
    }

    /// Whether frames of an attachment that is on its way out wait; they are looked at in the passes that follow.
    pub(super) fn has_of(&mut self, attachment: AttachmentIndex) -> bool {
        let has = self.counts.get(usize::from(attachment.0)).is_some_and(|count| *count > 0);
        if has {
            self.to_look = self.aside.len();
        }
        has
    }

    fn push(&mut self, aside: Aside) {
        if let Some(count) = self.counts.get_mut(aside.frame.tenant as usize) {
            *count += 1;
        }
        self.aside.push_back(aside);
    }

    fn pop(&mut self) -> Option<Aside> {
        let aside = self.aside.pop_front()?;
        if let Some(count) = self.counts.get_mut(aside.frame.tenant as usize) {
            *count -= 1;
        }
        Some(aside)
    }

    #[inline]
    fn lets_pass(&self, frame: &Frame, is_gated: bool) -> bool {
        self.is_good
            || self.policy == UnsynchronisedPolicy::Send
            || !(is_gated || matches!(frame.tx_time, Some(TxTime::Tai(_))))
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Puts a chosen frame aside, or drops it, where the clock says so; true: it is not to be sent now. `is_gated`: a gate
    /// has a say.
    #[inline]
    pub(super) fn waits_for_clock(&mut self, port: usize, frame: &Frame, is_gated: bool) -> bool {
        if self.clock.lets_pass(frame, is_gated) {
            return false;
        }
        self.put_aside(port, frame);
        true
    }

    #[cold]
    fn put_aside(&mut self, port: usize, frame: &Frame) {
        let has_room = self.clock.aside.len() < self.clock.aside.capacity();
        let horizon =
            self.attachments.get(frame.tenant as usize).and_then(Option::as_ref).map(|of| of.horizon);
        match horizon {
            Some(horizon) if has_room && !self.draining => {
                let until = self.env.monotonic().saturating_add(horizon);
                self.clock.push(Aside { frame: *frame, port, until });
            }
            _ => self.drop_frame(frame.id, frame.tenant, DropReason::Unsynchronised),
        }
    }

    /// Looks at some of the frames that were put aside: those that may go are queued again, those that waited too long are
    /// dropped. Whether more are to be looked at right away.
    #[inline]
    pub(super) fn attend_to_clock(&mut self) -> bool {
        !self.clock.aside.is_empty() && self.look_at_aside()
    }

    #[cold]
    fn look_at_aside(&mut self) -> bool {
        let now = self.env.monotonic();
        if self.clock.is_good || self.draining {
            self.clock.to_look = self.clock.aside.len();
        } else if self.clock.to_look == 0 && now.since(self.clock.looked_at) >= limits::SLEEP_MAX {
            self.clock.looked_at = now;
            self.clock.to_look = self.clock.aside.len();
        }
        for _ in 0..LOOKED_A_PASS.min(self.clock.to_look) {
            self.clock.to_look -= 1;
            let Some(aside) = self.clock.pop() else { break };
            let Aside { frame, port, until } = aside;
            let is_served = self.attachments.get(frame.tenant as usize).is_some_and(Option::is_some)
                && !self.closing.is_removed(AttachmentIndex(frame.tenant as u16)) // tenants are attachments
                && self.ports.get(port).is_some_and(Option::is_some);
            if !is_served {
                self.drop_frame(frame.id, frame.tenant, DropReason::Detached);
            } else if self.clock.is_good {
                self.queue_again(port, &frame);
            } else if self.draining || now >= until {
                self.drop_frame(frame.id, frame.tenant, DropReason::Unsynchronised);
            } else {
                self.clock.push(aside);
            }
        }
        self.clock.to_look > 0
    }
}
