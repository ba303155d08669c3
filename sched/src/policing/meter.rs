// SPDX-License-Identifier: Apache-2.0
//! A flow meter (802.1Q-2022 clause 8.6.5.5): the two-rate bandwidth profile of MEF 10.3, colour-blind.
//!
//! In: octets and MONOTONIC instants. Out: whether it passes: green, or yellow where that may.
//! Never: gives more than CIR · t + CBS green and EIR · t + EBS yellow octets in any span t (with the coupling flag both
//! together), whatever is offered; drifts; overflows.
//!
//! # Exact
//! Tokens are billionths of a bit: a rate of n bit/s adds n of them in a nanosecond, an octet on the wire takes 8 · 10^9. Nothing is
//! rounded. A rate times a span, both up to 2^64, fits into 128 bits, and buckets are at most 2^32 octets.

use super::config::FlowMeter;
use ktsn_time::{Monotonic, Span};

/// Tokens for an octet.
const OCTET: u128 = 8_000_000_000;

/// A bucket of tokens.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    rate: u64,
    size: u128,
    tokens: u128,
}

impl Bucket {
    fn full(rate: u64, octets: u32) -> Self {
        let size = u128::from(octets) * OCTET;
        Self { rate, size, tokens: size }
    }

    /// Adds the tokens of `span` and `more`. Returns the tokens that overflow.
    fn fill(&mut self, span: Span, more: u128) -> u128 {
        let sum = (u128::from(self.rate) * u128::from(span.as_nanos()))
            .saturating_add(more)
            .saturating_add(self.tokens);
        self.tokens = sum.min(self.size);
        sum - self.tokens
    }

    fn take(&mut self, tokens: u128) -> bool {
        let rest = self.tokens.checked_sub(tokens);
        self.tokens = rest.unwrap_or(self.tokens);
        rest.is_some()
    }
}

/// A flow meter in operation. Both buckets are full at first.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    config: FlowMeter,
    committed: Bucket,
    excess: Bucket,
    /// The last instant that counted.
    last: Monotonic,
    all_frames_red: bool,
}

impl Meter {
    pub(super) fn new(config: FlowMeter) -> Self {
        Self {
            config,
            committed: Bucket::full(config.committed_information_rate, config.committed_burst_size),
            excess: Bucket::full(config.excess_information_rate, config.excess_burst_size),
            last: Monotonic::ZERO,
            all_frames_red: false,
        }
    }

    /// Whether a frame that comes at `now` passes. An instant before the last one counts as that.
    pub(super) fn judge(&mut self, wire_octets: u32, now: Monotonic) -> bool {
        let span = now.span_since(self.last);
        self.last = now.max(self.last);
        let overflow = self.committed.fill(span, 0);
        self.excess.fill(span, if self.config.coupling_flag { overflow } else { 0 });
        if self.all_frames_red {
            return false;
        }
        let tokens = u128::from(wire_octets) * OCTET;
        let is_green = self.committed.take(tokens);
        let is_yellow = !is_green && self.excess.take(tokens);
        if !is_green && !is_yellow {
            self.all_frames_red = self.config.mark_all_frames_red_enabled;
        }
        is_green || (is_yellow && !self.config.drop_on_yellow)
    }

    /// `mark-all-frames-red`.
    pub(super) fn are_all_frames_red(&self) -> bool {
        self.all_frames_red
    }

    pub(super) fn clear(&mut self) {
        self.all_frames_red = false;
    }
}
