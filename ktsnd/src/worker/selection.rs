// SPDX-License-Identifier: Apache-2.0
//! The transmission selection of one port: one of the strategies of `ktsn_sched`, known by its type, so that the loop
//! pays a branch and no more.

use ktsn_sched::{
    CreditBased, Decision, EarliestTxTime, Frame, Refused, Strategy, StrictPriority, TimeAware,
};
use ktsn_time::{Nanos, Now};

/// A strategy with its queues. Made where allocating is allowed.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one of them a port, boxed as a whole")]
pub enum Selection {
    /// Gates; without a gate program the same decisions as `EarliestTxTime`.
    TimeAware(TimeAware),
    /// The earliest TxTime of the highest class.
    EarliestTxTime(EarliestTxTime),
    /// The highest class in order of arrival.
    StrictPriority(StrictPriority),
    /// Strict priority with credits.
    CreditBased(CreditBased),
}

macro_rules! each {
    ($selection:expr, $strategy:ident => $call:expr) => {
        match $selection {
            Selection::TimeAware($strategy) => $call,
            Selection::EarliestTxTime($strategy) => $call,
            Selection::StrictPriority($strategy) => $call,
            Selection::CreditBased($strategy) => $call,
        }
    };
}

impl Selection {
    /// Memory for all of its frames is there from now on. Those in order of arrival need little of it while their queues are short.
    pub(crate) fn touch(&mut self) {
        match self {
            Self::TimeAware(strategy) => strategy.touch(),
            Self::EarliestTxTime(strategy) => strategy.touch(),
            Self::StrictPriority(_) | Self::CreditBased(_) => {}
        }
    }

    /// The one with gates, if it is that one.
    pub(super) fn time_aware(&mut self) -> Option<&mut TimeAware> {
        match self {
            Self::TimeAware(strategy) => Some(strategy),
            _ => None,
        }
    }

    /// Whether a frame with a TxTime may leave within `span` of `now`. The strategies without gates do not tell; they never make
    /// a frame wait for the link either.
    pub(super) fn is_timed_within(&mut self, span: Nanos, now: Now) -> bool {
        self.time_aware().is_none_or(|gates| gates.is_timed_within(span, now))
    }
}

impl Strategy for Selection {
    fn offer(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        each!(self, strategy => strategy.offer(frame, now))
    }
    fn put_back(&mut self, frame: Frame, now: Now) -> Result<(), Refused> {
        each!(self, strategy => strategy.put_back(frame, now))
    }
    fn decide(&mut self, now: Now) -> Decision {
        each!(self, strategy => strategy.decide(now))
    }
    fn remove(&mut self, predicate: &mut dyn FnMut(&Frame) -> bool, out: &mut dyn FnMut(Frame)) {
        each!(self, strategy => strategy.remove(predicate, out));
    }
    fn remove_tenant(&mut self, tenant: u32, most: usize, out: &mut dyn FnMut(Frame)) -> bool {
        each!(self, strategy => strategy.remove_tenant(tenant, most, out))
    }
    fn len(&self) -> usize {
        each!(self, strategy => strategy.len())
    }
    fn capacity(&self) -> usize {
        each!(self, strategy => strategy.capacity())
    }
}
