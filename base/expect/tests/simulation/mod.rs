// SPDX-License-Identifier: Apache-2.0
//! A receiver that expects its frames, over generated arrivals: how often it is awake in time, and what it spins.
//!
//! The receiver does what libktsn does: it sleeps until a margin and the spread before the expected arrival, spins until the spread after
//! it, and otherwise waits in the kernel. Nothing here reads a clock; the same seed gives the same figures everywhere.

pub(crate) mod patterns;

use ktsn_expect::{Predictor, Seen};
use ktsn_time::{Monotonic, Span};

/// How late a machine wakes its threads, nanoseconds: usually, once in 100, and a margin that covers the usual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Machine {
    usual: (u64, u64),
    rare: (u64, u64),
    margin: u64,
}

/// A machine that does nothing else.
pub(crate) const QUIET: Machine =
    Machine { usual: (25_000, 50_000), rare: (50_000, 200_000), margin: 60_000 };
/// A machine with much else to do: most wake-ups are later than the predictor takes for granted.
pub(crate) const BUSY: Machine =
    Machine { usual: (60_000, 180_000), rare: (180_000, 500_000), margin: 190_000 };

impl Machine {
    fn lateness(&self, random: &mut Random) -> u64 {
        let (low, high) = if random.between(0, 100) == 0 { self.rare } else { self.usual };
        random.between(low, high)
    }
}

/// What the program does with a frame.
const WORK: u64 = 2_000;
/// One look of the spin.
const LOOK: u64 = 300;

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 up to 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A whole number from `low` up to `high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low)
    }

    /// An exponential span of this mean.
    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.share()).ln()
    }
}

/// What came of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) arrivals: u64,
    /// The frame waited before the program asked: no prediction can help.
    pub(crate) waiting: u64,
    /// The receiver was spinning when the frame came.
    pub(crate) hit: u64,
    /// An event was expected, and the frame came before the receiver was awake.
    pub(crate) early: u64,
    /// Nothing was expected.
    pub(crate) unexpected: u64,
    /// Spins that ended without a frame.
    pub(crate) missed: u64,
    pub(crate) spun_nanos: u64,
    pub(crate) span_nanos: u64,
}

impl Outcome {
    /// Of the frames that the program waited for, in per cent.
    pub(crate) fn hit_rate(&self) -> f64 {
        100.0 * self.hit as f64 / (self.arrivals - self.waiting).max(1) as f64
    }

    /// Spins without a frame, of 100 arrivals.
    pub(crate) fn missed_rate(&self) -> f64 {
        100.0 * self.missed as f64 / self.arrivals.max(1) as f64
    }

    /// Time spun for each arrival, in µs: before the frame came, and in vain.
    pub(crate) fn spun_micros(&self) -> f64 {
        self.spun_nanos as f64 / 1e3 / self.arrivals.max(1) as f64
    }

    /// Time spun, in per cent of a CPU.
    pub(crate) fn cpu(&self) -> f64 {
        100.0 * self.spun_nanos as f64 / self.span_nanos.max(1) as f64
    }
}

/// Lets a receiver take these arrivals, in nanoseconds and in order.
pub(crate) fn receive(
    arrivals: &[u64],
    mut predictor: Predictor<Monotonic>,
    machine: Machine,
    random: &mut Random,
) -> Outcome {
    let at = Monotonic::from_nanos;
    let (Some(first), Some(last)) = (arrivals.first(), arrivals.last()) else { return Outcome::default() };
    let mut outcome =
        Outcome { arrivals: arrivals.len() as u64, span_nanos: last - first, ..Outcome::default() };
    let mut now = first - 1;
    for &arrival in arrivals {
        if arrival <= now {
            outcome.waiting += 1;
            now += WORK;
            continue;
        }
        loop {
            let Some(next) = predictor.expected(at(now)) else {
                now = arrival + machine.lateness(random);
                predictor.observe(at(now), Seen::NotAfter);
                outcome.unexpected += 1;
                break;
            };
            let wake = next.at.before(next.spread).before(Span::from_nanos(machine.margin)).as_nanos();
            let awake = if wake > now { wake + machine.lateness(random) } else { now };
            if arrival <= awake {
                now = if arrival <= wake { arrival + machine.lateness(random) } else { awake };
                predictor.observe(at(now), Seen::NotAfter);
                outcome.early += 1;
                break;
            }
            let end = next.at.after(next.spread).as_nanos().max(awake);
            if arrival <= end {
                now = arrival + random.between(0, LOOK);
                predictor.observe(at(now), Seen::Exact);
                outcome.spun_nanos += arrival - awake;
                outcome.hit += 1;
                break;
            }
            outcome.spun_nanos += end - awake;
            outcome.missed += 1;
            predictor.missed(next.at);
            now = end;
        }
        now += WORK;
    }
    outcome
}
