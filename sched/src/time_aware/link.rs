// SPDX-License-Identifier: Apache-2.0
//! How long a frame occupies the link, and until when the link is occupied.
//!
//! In: the link's speed, the hand-over latency, and what was handed over when. Out: nanoseconds, rounded up.
//!
//! ```text
//!   hand-over ── H ──► start on the wire ──── T ────► busy_until        the next hand-over: busy_until − H
//! ```

use ktsn_time::{Monotonic, Nanos, Span};

/// Nanoseconds that one octet takes at 1 bit/s.
const OCTET_NANOS: u64 = 8_000_000_000;

/// A hand-over that takes longer than this is not waited out for a frame of a higher class.
const GUARD_MAX: Span = Span::from_nanos(20_000);

/// The link as its frames see it.
#[derive(Debug)]
pub(super) struct Link {
    speed: Option<Speed>,
    hand_over: Span,
    busy_until: WireInstant,
}

impl Link {
    pub(super) fn new(link_speed: Option<u64>, hand_over: Nanos) -> Self {
        let mut link = Self { speed: None, hand_over: Span::ZERO, busy_until: WireInstant::default() };
        link.set_speed(link_speed);
        link.set_hand_over(hand_over);
        link
    }

    pub(super) fn set_speed(&mut self, link_speed: Option<u64>) {
        self.speed = link_speed.filter(|&speed| speed > 0).map(Speed::new);
        if self.speed.is_none() {
            self.busy_until = WireInstant::default();
        }
    }

    pub(super) fn set_hand_over(&mut self, hand_over: Nanos) {
        self.hand_over = Span::not_negative(hand_over);
    }

    /// The span before a frame on time in which no hand-over of a lower class begins. This is not the guard band of a gate.
    pub(super) fn hand_over_span(&self) -> Span {
        self.hand_over.min(GUARD_MAX)
    }

    /// How long `wire_octets` occupy the link.
    pub(super) fn transmission_time(&self, wire_octets: u32) -> Span {
        self.speed.as_ref().map_or(Span::ZERO, |speed| speed.span(wire_octets))
    }

    /// How much of a window a hand-over needs in front of it: latency and transmission, and never nothing, so that nothing is handed over in
    /// the instant in which a gate closes.
    pub(super) fn need(&self, wire_octets: u32) -> Span {
        self.hand_over.saturating_add(self.transmission_time(wire_octets)).max(Span::from_nanos(1))
    }

    /// When a frame that is handed over at `at` starts on the wire if the link is free.
    fn start(&self, at: Monotonic) -> WireInstant {
        WireInstant(at.as_nanos().into()).after(self.hand_over)
    }

    /// How long until a frame may be handed over.
    pub(super) fn wait(&self, now: Monotonic) -> Span {
        Span::from_wide(self.busy_until.0.saturating_sub(self.start(now).0))
    }

    /// A frame is handed over at `now`.
    pub(super) fn transmit(&mut self, now: Monotonic, wire_octets: u32) {
        if self.speed.is_some() {
            self.busy_until = self.busy_until.max(self.start(now)).after(self.transmission_time(wire_octets));
        }
    }

    /// The frame that was transmitted last is handed over at `at` only.
    pub(super) fn handed_over(&mut self, at: Monotonic, wire_octets: u32) {
        if self.speed.is_some() {
            let end = self.start(at).after(self.transmission_time(wire_octets));
            self.busy_until = self.busy_until.max(end);
        }
    }
}

/// An instant on the wire: nanoseconds of MONOTONIC, wide enough for frames at the end of the clock's range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct WireInstant(u128);

impl WireInstant {
    fn after(self, span: Span) -> Self {
        Self(self.0 + u128::from(span.as_nanos()))
    }
}

impl super::TimeAware {
    /// The chosen frame is handed over at `at`. If the machine stalled after the decision, the link is occupied for longer than the
    /// decision assumed, and the next decision must know that.
    pub fn handed_over(&mut self, at: Monotonic, wire_octets: u32) {
        self.link.handed_over(at, wire_octets);
    }
}

/// `8 · 10^9 / speed` as a reduced fraction, divided by with a multiplication wherever that is exact.
#[derive(Debug)]
struct Speed {
    numerator: u64,
    denominator: u64,
    /// `⌈2^64 / denominator⌉`.
    reciprocal: u128,
    /// Up to this many octets the multiplication is exact.
    octets_max: u64,
}

impl Speed {
    fn new(speed: u64) -> Self {
        let (mut a, mut b) = (OCTET_NANOS, speed);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let (numerator, denominator) = (OCTET_NANOS / a, speed / a);
        // The product errs by less than dividend · denominator / 2^64 of one divisor's part.
        let dividend_max = u64::MAX / denominator;
        let octets_max = dividend_max.saturating_sub(denominator) / numerator;
        Self { numerator, denominator, reciprocal: (1u128 << 64).div_ceil(denominator.into()), octets_max }
    }

    /// `⌈octets · numerator / denominator⌉`, at most 2^64 − 1.
    fn span(&self, wire_octets: u32) -> Span {
        let octets = u64::from(wire_octets);
        if octets <= self.octets_max {
            let dividend = octets * self.numerator + (self.denominator - 1);
            return Span::from_nanos(((u128::from(dividend) * self.reciprocal) >> 64) as u64);
        }
        let nanos = (u128::from(octets) * u128::from(self.numerator)).div_ceil(self.denominator.into());
        Span::from_wide(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(nanos: u64) -> Span {
        Span::from_nanos(nanos)
    }

    fn expected(octets: u32, speed: u64) -> Span {
        let nanos = (u128::from(octets) * u128::from(OCTET_NANOS)).div_ceil(speed.into());
        Span::from_wide(nanos)
    }

    proptest! {
        #[test]
        fn transmission_time_is_rounded_up_exactly(
            octets in prop_oneof![0u32..20_000, any::<u32>()],
            speed in prop_oneof![
                prop::sample::select(&[1, 10_000_000, 1_000_000_000, 2_500_000_000, 10_000_000_000, 400_000_000_000][..]),
                1u64..100_000,
                any::<u64>().prop_map(|speed| speed.max(1)),
            ],
        ) {
            let link = Link::new(Some(speed), Nanos::ZERO);
            prop_assert_eq!(link.transmission_time(octets), expected(octets, speed));
        }
    }

    #[test]
    fn a_frame_occupies_the_link_from_its_start_on_the_wire() {
        let at = Monotonic::from_nanos;
        let mut link = Link::new(Some(1_000_000_000), Nanos::new(50));
        assert_eq!((link.need(125), link.wait(at(0))), (span(1_050), span(0)));
        link.transmit(at(100), 125);
        // On the wire from 150 to 1,150: the next may be handed over at 1,100.
        assert_eq!(
            (link.wait(at(100)), link.wait(at(1_099)), link.wait(at(1_100))),
            (span(1_000), span(1), span(0))
        );
        link.set_hand_over(Nanos::new(-1));
        assert_eq!((link.wait(at(1_100)), link.need(0)), (span(50), span(1)));
    }

    #[test]
    fn a_hand_over_after_a_stall_occupies_the_link_for_longer() {
        let at = Monotonic::from_nanos;
        let mut link = Link::new(Some(1_000_000_000), Nanos::new(50));
        link.transmit(at(100), 125);
        link.handed_over(at(100), 125);
        assert_eq!(link.wait(at(100)), span(1_000));
        link.handed_over(at(13_000), 125);
        assert_eq!(link.wait(at(13_000)), span(1_000));
        // A frame that was decided on while the link was busy keeps its place behind the other.
        link.transmit(at(13_500), 125);
        link.handed_over(at(13_500), 125);
        assert_eq!(link.wait(at(14_000)), span(1_000));
    }

    #[test]
    fn without_a_speed_the_link_is_always_free() {
        for speed in [None, Some(0)] {
            let mut link = Link::new(Some(1), Nanos::MAX);
            link.transmit(Monotonic::MAX, u32::MAX);
            assert_eq!(link.wait(Monotonic::MAX), Span::ENDLESS);
            link.set_speed(speed);
            link.transmit(Monotonic::ZERO, u32::MAX);
            assert_eq!((link.wait(Monotonic::ZERO), link.transmission_time(u32::MAX)), (span(0), span(0)));
        }
    }
}
