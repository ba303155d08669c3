// SPDX-License-Identifier: Apache-2.0
//! Frames that depend on TAI while TAI cannot be trusted: sent, held or dropped, as the port's `unsynchronised` says.
//!
//! In: whether the clock is good (a command; the worker decides nothing about clocks), frames that are due. Out:
//! frames put aside, then queued again or dropped as `unsynchronised`. A frame depends on TAI when its TxTime is TAI, or when
//! a gate decides when it leaves. It is put aside when its turn comes, in room that was made beforehand; so frames that do not depend on
//! TAI go on leaving. It waits no longer than its attachment's horizon, then it is dropped. When the clock is good again it
//! goes back to its queue and is judged by the good clock like any other frame. Every pass does a bounded part of that.

use std::collections::VecDeque;

use ktsn_model::UnsynchronisedPolicy;
use ktsn_resolve::AttachmentIndex;
use ktsn_sched::Frame;
use ktsn_time::{Monotonic, TxTime};

use super::attachments::attachment_of;
use crate::limits;

/// Frames put aside that one pass judges.
const JUDGED_A_PASS: usize = 64;

/// A frame that waits for the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aside {
    pub frame: Frame,
    pub port: usize,
    /// When it is given up.
    pub until: Monotonic,
}

/// The frames that wait for the clock, and the policy for them.
#[derive(Debug)]
pub struct ClockGate {
    policy: UnsynchronisedPolicy,
    is_good: bool,
    aside: VecDeque<Aside>,
    /// How many of them each attachment has.
    counts: Box<[u32]>,
    /// How many of the frames put aside are still to be judged in this round.
    left: usize,
    judged_at: Monotonic,
}

impl ClockGate {
    /// The policy of a port, with the room that it needs.
    #[must_use]
    pub fn new(policy: UnsynchronisedPolicy, is_good: bool) -> Self {
        let is_hold = policy == UnsynchronisedPolicy::Hold;
        let aside = VecDeque::with_capacity(if is_hold { limits::QUEUE_MAX } else { 0 });
        let counts = vec![0; if is_hold { limits::ATTACHMENTS_MAX } else { 0 }].into_boxed_slice();
        Self { policy, is_good, aside, counts, left: 0, judged_at: Monotonic::ZERO }
    }

    /// The clock is good from now on, or is not.
    pub(super) fn set(&mut self, is_good: bool) {
        self.is_good = is_good;
    }

    /// True when a frame with this TxTime is refused right away.
    pub(super) fn refuses(&self, tx_time: TxTime) -> bool {
        !self.is_good && self.policy == UnsynchronisedPolicy::Drop && matches!(tx_time, TxTime::Tai(_))
    }

    /// True when no frame waits.
    pub(super) fn is_empty(&self) -> bool {
        self.aside.is_empty()
    }

    /// True when frames of an attachment that is being removed wait; they are judged in the passes that follow.
    pub(super) fn has_of(&mut self, attachment: AttachmentIndex) -> bool {
        let has = self.counts.get(usize::from(attachment.0)).is_some_and(|count| *count > 0);
        if has {
            self.left = self.aside.len();
        }
        has
    }

    /// True when a chosen frame may leave as far as the clock is concerned. `is_gated`: a gate decides when it leaves.
    #[inline]
    pub(super) fn lets_pass(&self, frame: &Frame, is_gated: bool) -> bool {
        self.is_good
            || self.policy == UnsynchronisedPolicy::Send
            || !(is_gated || matches!(frame.tx_time, Some(TxTime::Tai(_))))
    }

    /// True when the clock is good.
    pub(super) fn is_good(&self) -> bool {
        self.is_good
    }

    /// True when one more frame can be put aside.
    pub(super) fn has_room(&self) -> bool {
        self.aside.len() < self.aside.capacity()
    }

    /// Puts a frame aside, where [`Self::has_room`].
    pub(super) fn put_aside(&mut self, aside: Aside) {
        if let Some(count) = self.counts.get_mut(usize::from(attachment_of(&aside.frame).0)) {
            *count += 1;
        }
        self.aside.push_back(aside);
    }

    /// Begins a round if one is due; how many frames this pass judges. `is_draining`: no frame waits any longer.
    pub(super) fn begin_judging(&mut self, now: Monotonic, is_draining: bool) -> usize {
        if self.is_good || is_draining {
            self.left = self.aside.len();
        } else if self.left == 0 && now.since(self.judged_at) >= limits::SLEEP_MAX {
            self.judged_at = now;
            self.left = self.aside.len();
        }
        JUDGED_A_PASS.min(self.left)
    }

    /// The next frame to judge. One that goes on waiting is put aside again.
    pub(super) fn next_to_judge(&mut self) -> Option<Aside> {
        self.left = self.left.saturating_sub(1);
        let aside = self.aside.pop_front()?;
        if let Some(count) = self.counts.get_mut(usize::from(attachment_of(&aside.frame).0)) {
            *count -= 1;
        }
        Some(aside)
    }

    /// True when more frames are to be judged right away.
    pub(super) fn has_more_to_judge(&self) -> bool {
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::{Nanos, Tai};

    fn on_tai(attachment: u32) -> Frame {
        Frame { attachment, tx_time: Some(TxTime::Tai(Tai::from_nanos(7))), ..Frame::empty() }
    }

    #[test]
    fn only_frames_that_depend_on_tai_wait_for_the_clock() {
        let mut gate = ClockGate::new(UnsynchronisedPolicy::Hold, false);
        assert!(!gate.lets_pass(&on_tai(0), false));
        assert!(gate.lets_pass(&Frame::empty(), false) && !gate.lets_pass(&Frame::empty(), true));
        assert!(ClockGate::new(UnsynchronisedPolicy::Send, false).lets_pass(&on_tai(0), true));
        gate.set(true);
        assert!(gate.lets_pass(&on_tai(0), true));
    }

    #[test]
    fn frames_are_judged_in_bounded_rounds_in_order() {
        let mut gate = ClockGate::new(UnsynchronisedPolicy::Hold, false);
        let at = |millis| Monotonic::ZERO.saturating_add(Nanos::from_millis(millis));
        for attachment in 0..100 {
            assert!(gate.has_room());
            gate.put_aside(Aside { frame: on_tai(attachment), port: 0, until: at(9_000) });
        }
        assert_eq!(gate.begin_judging(at(1_000), false), JUDGED_A_PASS);
        for attachment in 0..JUDGED_A_PASS as u32 {
            let aside = gate.next_to_judge().unwrap();
            assert_eq!(aside.frame.attachment, attachment);
            gate.put_aside(aside);
        }
        assert!(gate.has_more_to_judge());
        assert_eq!(gate.begin_judging(at(1_001), false), 100 - JUDGED_A_PASS);
        assert!((JUDGED_A_PASS..100).all(|_| gate.next_to_judge().is_some()));
        assert!(!gate.has_more_to_judge() && gate.begin_judging(at(1_100), false) == 0);
        assert!(gate.has_of(AttachmentIndex(3)) && !gate.has_of(AttachmentIndex(99)));
        assert!(gate.begin_judging(at(1_101), false) > 0, "one that is being removed is judged at once");
    }
}
