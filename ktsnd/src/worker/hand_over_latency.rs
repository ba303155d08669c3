// SPDX-License-Identifier: Apache-2.0
//! Hand-over latency: how long it takes from the kick to the wire, as the guard band needs it.
//!
//! In: for each frame, the instant right before `commit` and one right after it returned. Out: a span that some 99.9 % of
//! the last hundreds of frames stayed below: a lone longer one counts for 256 frames. The system call's return is the latest that a frame can have reached the
//! device, so the guard band errs on the safe side.
//!
//! Where nothing was measured yet, or nothing for long, the span is [`AT_START`]. A machine that stalls cannot make a guard band longer than
//! [`LARGEST`], or short windows would never be used again and nothing would be measured any more.

use ktsn_time::Nanos;

use super::decaying::Decaying;

/// Width of a bucket in nanoseconds; the last one holds all that is above 64 µs.
const BUCKET: i64 = 250;
/// After so many frames the span is computed again, and older frames count a quarter less: about 1,000 count.
const SAMPLES_A_ROUND: u32 = 256;
/// Where frames are rare, a round ends after so many seconds.
const SECONDS_A_ROUND: u32 = 10;
/// Frames that the span should cover, in parts per thousand.
const COVERED_PERMILLE: u64 = 999;
/// What a system call into a device usually takes, rounded up generously.
pub const AT_START: Nanos = Nanos::from_micros(20);
const SMALLEST: Nanos = Nanos::from_micros(1);
const LARGEST: Nanos = Nanos::from_micros(64);

/// The hand-over latency of one port.
#[derive(Debug)]
pub(super) struct HandOverLatency {
    spans: Decaying,
    since_update: u32,
    seconds: u32,
    measured: bool,
    current: Nanos,
}

impl HandOverLatency {
    pub(super) fn new() -> Self {
        Self { spans: Decaying::new(), since_update: 0, seconds: 0, measured: false, current: AT_START }
    }

    /// The span that counts now.
    pub(super) fn get(&self) -> Nanos {
        self.current
    }

    /// Counts how long one hand-over took; the new span when it was computed again.
    #[inline]
    pub(super) fn observe(&mut self, span: Nanos) -> Option<Nanos> {
        self.spans.count(span.get() / BUCKET);
        self.since_update += 1;
        if self.since_update < SAMPLES_A_ROUND {
            return None;
        }
        self.measured = true;
        Some(self.update())
    }

    /// A second has passed; a span that nothing was measured for goes back to where it began. A few frames that do leave
    /// must not hold up that: a span that is too long may be what keeps the others back.
    pub(super) fn tick(&mut self) -> Option<Nanos> {
        self.seconds += 1;
        let is_over = self.since_update == 0 || self.seconds >= SECONDS_A_ROUND;
        if !is_over {
            return None;
        }
        self.seconds = 0;
        self.measured.then(|| self.update())
    }

    fn update(&mut self) -> Nanos {
        (self.since_update, self.seconds) = (0, 0);
        let covered = self.spans.covered(COVERED_PERMILLE);
        self.spans.age();
        self.measured = covered.is_some();
        self.current =
            covered.map_or(AT_START, |covered| Nanos::new(covered * BUCKET).clamp(SMALLEST, LARGEST));
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What was measured is covered: at most one of a thousand above, up to the bound.
        #[test]
        fn covers_what_it_has_seen(spans in proptest::collection::vec(-1_000i64..100_000, 256)) {
            let mut port = HandOverLatency::new();
            let mut last = None;
            for span in &spans {
                last = port.observe(Nanos::new(*span)).or(last);
            }
            let covered = last.unwrap();
            prop_assert!((SMALLEST..=LARGEST).contains(&covered));
            prop_assert_eq!(covered, port.current);
            prop_assert!(covered == LARGEST || spans.iter().all(|span| Nanos::new(*span) < covered));
        }
    }

    #[test]
    fn follows_the_device_and_forgets_stalls() {
        let mut port = HandOverLatency::new();
        let mut updates = 0;
        for _ in 0..SAMPLES_A_ROUND * 2 {
            updates += usize::from(port.observe(Nanos::from_micros(2)).is_some());
        }
        assert_eq!((updates, port.current), (2, Nanos::new(2_250)));
        // Two stalls in a thousand count, and are forgotten after a few thousand frames.
        for _ in 0..4 {
            port.observe(Nanos::from_millis(3));
        }
        for _ in 0..SAMPLES_A_ROUND {
            port.observe(Nanos::from_micros(2));
        }
        assert_eq!(port.current, LARGEST);
        for _ in 0..SAMPLES_A_ROUND * 20 {
            port.observe(Nanos::from_micros(2));
        }
        assert_eq!(port.current, Nanos::new(2_250));
    }

    /// A span that keeps every frame from leaving must not stay for ever.
    #[test]
    fn comes_back_to_the_start_when_nothing_leaves() {
        let mut port = HandOverLatency::new();
        assert_eq!(port.tick(), None);
        for _ in 0..SAMPLES_A_ROUND {
            port.observe(Nanos::from_millis(1));
        }
        assert_eq!(port.current, LARGEST);
        let seconds = (1..60).find(|_| port.tick().is_some_and(|span| span == AT_START));
        assert!(seconds.is_some_and(|s| s <= 30), "{seconds:?}");
        assert_eq!(port.tick(), None);
    }

    /// A span that keeps most frames back comes down while a class with an open gate sends a frame now and then.
    #[test]
    fn comes_down_while_frames_are_rare() {
        let mut port = HandOverLatency::new();
        for i in 0..SAMPLES_A_ROUND {
            port.observe(Nanos::from_micros(if i < 2 { 1_000 } else { 2 }));
        }
        assert_eq!(port.current, LARGEST);
        let seconds = (1..600).find(|_| {
            port.observe(Nanos::from_micros(2));
            port.tick();
            port.current < Nanos::from_micros(3)
        });
        assert!(seconds.is_some_and(|s| s <= 30), "{seconds:?}");
    }
}
