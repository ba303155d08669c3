// SPDX-License-Identifier: Apache-2.0
//! How the guest's `CLOCK_REALTIME` is steered to the follower's time.
//!
//! In: the clock's offset, a few times a second. Out: a [`Command`] for the kernel. Pure. The clock is never set back, except once at the
//! start when that is allowed: afterwards it runs slower until it agrees.

use crate::follower::Backward;
use ktsn_time::Nanos;

/// A larger offset forward is stepped.
const STEP_MIN: Nanos = Nanos::from_micros(100);
/// The kernel's limits of its rate, by frequency and by tick together: a tenth.
const RATE_MAX: f64 = 0.0995;
/// How long an offset takes to shrink, in s. Longer than the time between two commands.
const SETTLE: f64 = 0.8;
/// The share of a new frequency error that is believed.
const LEARN: f64 = 0.3;
/// No oscillator is further off: what moved the offset was a step.
const LEARN_MAX: f64 = 1e-3;

/// What the kernel's clock has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Command {
    /// Jump by this, and run at this rate relative to its own.
    Step(Nanos, f64),
    /// Run faster by this share of a second in a second.
    Rate(f64),
}

/// The state of the steering.
#[derive(Clone, Copy, Debug)]
pub struct Servo {
    backward: Backward,
    may_set_back: bool,
    /// The kernel's frequency error that was learned, with its sign turned.
    base: f64,
    /// The rate that was commanded last.
    rate: f64,
    before: Option<f64>,
}

impl Servo {
    /// `rate`: what the kernel's clock runs at now. `may_set_back`: the first command may set the clock back.
    #[must_use]
    pub const fn new(backward: Backward, may_set_back: bool, rate: f64) -> Self {
        Self { backward, may_set_back, base: rate, rate, before: None }
    }

    /// The rate at which the clock goes on alone: no offset is worked off, because nothing would show when that is done.
    pub const fn coast(&mut self) -> f64 {
        (self.rate, self.before) = (self.base, None);
        self.base
    }

    /// `offset`: true time − the clock, `passed`: seconds since the last command.
    pub fn steer(&mut self, offset: Nanos, passed: f64) -> Command {
        let seconds = offset.get() as f64 * 1e-9;
        // What moved the offset besides the commanded rate is the frequency's error. The first look teaches nothing.
        if let Some(before) = self.before
            && passed > 0.01
        {
            let off = self.rate + (seconds - before) / passed - self.base;
            if off.abs() < LEARN_MAX {
                self.base += LEARN * off;
            }
        }
        let is_large = offset.get() > STEP_MIN.get()
            || (std::mem::take(&mut self.may_set_back) && offset.get() < -STEP_MIN.get());
        if is_large {
            self.before = Some(0.0);
            self.rate = self.base;
            return Command::Step(offset, self.rate);
        }
        self.before = Some(seconds);
        let slowest = match self.backward {
            Backward::Slew(share) => -share.min(RATE_MAX),
            Backward::Hold => -RATE_MAX,
        };
        let wanted = seconds / SETTLE;
        self.rate = (self.base + wanted.max(slowest)).clamp(-RATE_MAX, RATE_MAX);
        Command::Rate(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A clock with a frequency error that obeys; offsets in ns after each command.
    fn run(servo: &mut Servo, mut offset: f64, frequency: f64, every: f64, times: usize) -> Vec<f64> {
        let mut offsets = Vec::new();
        let mut passed = 0.0;
        for _ in 0..times {
            let rate = match servo.steer(Nanos::new(offset as i64), passed) {
                Command::Step(by, rate) => {
                    offset -= by.get() as f64;
                    rate
                }
                Command::Rate(rate) => rate,
            };
            passed = every;
            offset -= (rate - frequency) * every * 1e9;
            offsets.push(offset);
        }
        offsets
    }

    proptest! {
        /// From any offset and frequency error the clock settles, and steps back at most once.
        #[test]
        fn it_settles(offset in -2_000_000_000_i64..2_000_000_000, ppm in -400.0..400.0_f64, every in 0.1..0.6_f64) {
            let mut servo = Servo::new(Backward::Slew(500e-6), true, 0.0);
            let offsets = run(&mut servo, offset as f64, ppm * 1e-6, every, 200);
            prop_assert!(offsets[150..].iter().all(|offset| offset.abs() < 50.0), "{:?}", &offsets[150..160]);
        }
    }

    /// A follower that ends, or has lost its page, in the middle of a correction: the clock keeps the learned rate, not the correction's.
    #[test]
    fn a_clock_alone_does_not_go_on_with_a_correction() {
        for (backward, least) in [(Backward::Slew(500e-6), 490e-6), (Backward::Hold, 0.09)] {
            let mut servo = Servo::new(backward, false, 30e-6);
            for passed in [0.0, 0.5, 0.5] {
                let Command::Rate(rate) = servo.steer(Nanos::from_seconds(-30), passed) else {
                    panic!("set back")
                };
                assert!(rate < 30e-6 - least, "{rate}");
            }
            let rate = servo.coast();
            assert!((rate - 30e-6).abs() < LEARN_MAX, "{rate}");
            // Whatever happened meanwhile teaches nothing about the frequency.
            let Command::Step(_, after) = servo.steer(Nanos::from_millis(7), 0.0) else {
                panic!("not stepped")
            };
            assert_eq!(after.to_bits(), rate.to_bits());
        }
    }

    #[test]
    fn it_does_not_set_back_and_slews_as_told() {
        for (backward, share) in [(Backward::Slew(500e-6), 500e-6), (Backward::Hold, RATE_MAX)] {
            let mut servo = Servo::new(backward, false, 0.0);
            let Command::Rate(rate) = servo.steer(Nanos::from_millis(-10), 0.0) else { panic!("set back") };
            assert!((rate + share.min(0.01 / SETTLE)).abs() < 1e-9, "{rate}");
            let offsets = run(&mut servo, -10e6, 20e-6, 0.25, 200);
            assert!(offsets.windows(2).all(|pair| pair[1] > pair[0] - 20_000.0));
            let is_there = offsets[199].abs() < 50.0;
            // 10 ms take 20 s at 500 ppm, and 200 commands 50 s.
            assert!(is_there, "{}", offsets[199]);
        }
    }
}
