// SPDX-License-Identifier: Apache-2.0
//! The wire: a serialising link behind one FIFO, and the port that hands frames to it.
//!
//! In: frames that the worker commits, and the kernel's best effort in `shared` mode. Out: the span in which each
//! frame's bits leave. Buffers come back when the last bit has left, so a burst meets back-pressure.
//!
//! ```text
//!  commit ──hand-over──► FIFO ──────────────► wire (one frame at a time)
//!  kernel ───────────────┘ at most `kernel_frames` of these at any time
//! ```

use crate::plan::{LinkPlan, Mode};
use crate::random::Random;

/// Octet times of a best-effort frame: 1,500 octets with MAC header, FCS, preamble and gap.
pub const FRAME_MAX_WIRE_OCTETS: u32 = 1_538;

/// The link.
#[derive(Debug)]
pub struct Link {
    plan: LinkPlan,
    random: Random,
    /// Carrier.
    pub up: bool,
    /// Counts how often the device was removed; ports of an older one are dead.
    pub device: u32,
    /// The number of commits in a thousand that fail.
    pub errors_permille: u32,
    /// When everything that is in the FIFO now has left.
    free_at: u64,
    entered_at: u64,
    /// Since when the kernel fills the link.
    kernel_since: Option<u64>,
    /// Frames of the kernel that left.
    pub kernel_count: u64,
}

impl Link {
    /// An idle link.
    #[must_use]
    pub fn new(plan: LinkPlan, random: Random) -> Self {
        Self {
            plan,
            random,
            up: true,
            device: 0,
            errors_permille: 0,
            free_at: 0,
            entered_at: 0,
            kernel_since: None,
            kernel_count: 0,
        }
    }

    /// How long so many octets take.
    #[must_use]
    pub fn span(&self, wire_octets: u32) -> u64 {
        let bits = i128::from(wire_octets) * 8 * 1_000_000_000 * 1_000_000;
        let speed = i128::from(self.plan.speed) * i128::from(1_000_000 + self.plan.ppm);
        (bits + speed - 1).div_euclid(speed) as u64
    }

    /// The kernel begins or stops to keep its share of the FIFO full.
    pub fn set_best_effort(&mut self, on: bool, now: u64) {
        self.fill(now);
        self.kernel_since = (on && self.plan.mode == Mode::Shared).then_some(now);
    }

    /// Lets the kernel put in whatever it would have by `now`.
    fn fill(&mut self, now: u64) {
        let Some(since) = self.kernel_since else { return };
        let frame = self.span(FRAME_MAX_WIRE_OCTETS);
        let others = frame * (self.plan.kernel_frames - 1);
        // The next one is put in when one of `kernel_frames` has left.
        while self.free_at.max(since) <= now + others {
            self.free_at = self.free_at.max(since) + frame;
            self.kernel_count += 1;
        }
    }

    /// Puts a frame into the FIFO: when its first bit and its last bit leave.
    pub fn transmit(&mut self, now: u64, wire_octets: u32) -> (u64, u64) {
        let hand_over = self.plan.hand_over + self.random.between(0, self.plan.hand_over_spread);
        // A queue to the device: never overtaking.
        self.entered_at = self.entered_at.max(now + hand_over);
        self.fill(self.entered_at);
        let from = self.free_at.max(self.entered_at);
        self.free_at = from + self.span(wire_octets);
        (from, self.free_at)
    }

    /// Whether the plan lets this commit fail.
    pub fn fails(&mut self) -> bool {
        self.errors_permille > 0 && self.random.chance(self.errors_permille)
    }

    /// One of several errors.
    pub fn which(&mut self, count: u64) -> u64 {
        self.random.between(0, count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(mode: Mode) -> LinkPlan {
        LinkPlan {
            mode,
            speed: 1_000_000_000,
            ppm: 0,
            hand_over: 1_000,
            hand_over_spread: 0,
            stages: 64,
            kernel_frames: 2,
        }
    }

    #[test]
    fn frames_leave_one_after_the_other() {
        let mut link = Link::new(plan(Mode::Dedicated), Random::new(1));
        link.set_best_effort(true, 0);
        assert_eq!(link.transmit(5_000, 125), (6_000, 7_000));
        assert_eq!(link.transmit(5_100, 125), (7_000, 8_000));
        assert_eq!(link.transmit(50_000, 1_538), (51_000, 51_000 + 12_304));
        assert_eq!(link.kernel_count, 0, "a dedicated link is ours alone");
    }

    #[test]
    fn the_kernel_is_never_more_than_its_frames_ahead() {
        let mut link = Link::new(plan(Mode::Shared), Random::new(1));
        link.set_best_effort(true, 0);
        for n in 1..1_000u64 {
            let now = n * 100_003;
            let (from, _) = link.transmit(now, 100);
            let waited = from - now - 1_000;
            assert!(waited > 12_304 - 12_304 && waited <= 2 * 12_304, "{waited}");
        }
        assert!(link.kernel_count > 8_000);
        link.set_best_effort(false, 100_000_000_000);
        assert_eq!(link.transmit(100_001_000_000, 125).0, 100_001_001_000);
    }

    #[test]
    fn a_fast_clock_on_the_far_side_shortens_frames() {
        let fast = Link::new(LinkPlan { ppm: 100, ..plan(Mode::Dedicated) }, Random::new(1));
        assert_eq!(fast.span(1_250_000), 9_999_001);
    }
}
