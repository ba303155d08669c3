// SPDX-License-Identifier: Apache-2.0
//! The last answer about each class's windows, for as long as it stays true.
//!
//! In: where a frame length was found to fit. Out: the same answer for other instants that it holds for. Never: an answer that the
//! gates would not give. Between two decisions most classes wait with the same head for the same window.
//!
//! ```text
//!    asked_at            begin        latest
//!  ─────┼──────────────────┼────────────┼──────────  TAI
//!       └── first fit ────►┴─ here too ─┘            one answer covers all three
//! ```

use crate::gate::Fit;
use ktsn_model::TrafficClass;
use ktsn_time::{Span, Tai};

/// An answer, in instants of TAI. It is as good at every instant it covers, whatever steps the clock has made.
#[derive(Clone, Copy, Debug)]
struct Known {
    wire_octets: u32,
    asked_at: Tai,
    begin: Tai,
    latest: Tai,
}

/// Covers no instant.
const NOTHING: Known = Known { wire_octets: 0, asked_at: Tai::MAX, begin: Tai::ZERO, latest: Tai::ZERO };

/// What is known of each class.
#[derive(Debug)]
pub(super) struct Fits([Known; TrafficClass::COUNT]);

impl Fits {
    pub(super) fn new() -> Self {
        Self([NOTHING; TrafficClass::COUNT])
    }

    /// A program, the link's speed or the hand-over latency has changed.
    pub(super) fn forget(&mut self) {
        *self = Self::new();
    }

    /// Time from `at` until `wire_octets` fit into a window of `class`, if that is known.
    pub(super) fn after(&self, class: usize, wire_octets: u32, at: Tai) -> Option<Span> {
        let known = &self.0[class];
        let is_covered = known.wire_octets == wire_octets && known.asked_at <= at && at <= known.latest;
        is_covered.then(|| known.begin.span_since(at))
    }

    /// Asked at `at`, `wire_octets` that need `need` were found to fit as `fit` says.
    pub(super) fn learn(&mut self, class: usize, wire_octets: u32, at: Tai, fit: Fit, need: Span) {
        self.0[class] = match at.checked_after(fit.after) {
            Some(begin) => {
                let latest = begin.after(fit.rest - need);
                Known { wire_octets, asked_at: at, begin, latest }
            }
            None => NOTHING,
        };
    }
}
