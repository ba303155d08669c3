// SPDX-License-Identifier: Apache-2.0
//! Hit rate and wasted spin over generated arrivals, with fixed seeds and bars.

mod simulation;

use ktsn_expect::Predictor;
use ktsn_time::Nanos;
use simulation::{Random, patterns, receive};

/// No pattern may cost more, in per cent of a CPU.
const CPU_MAX: f64 = 16.0;

#[test]
fn every_pattern_keeps_its_bars() {
    let mut faults = Vec::new();
    for pattern in patterns::ALL {
        for seed in 1..=3 {
            let mut random = Random(seed);
            let outcome =
                receive(&(pattern.make)(&mut random), Predictor::new(), pattern.machine, &mut random);
            let keeps = outcome.hit_rate() >= pattern.hit_min
                && outcome.spun_micros() <= pattern.spun_max
                && outcome.missed_rate() <= pattern.missed_max;
            if !keeps {
                faults.push(format!("{}, seed {seed}: {outcome:?}", pattern.name));
            }
            assert!(outcome.cpu() <= CPU_MAX, "{}: {outcome:?}", pattern.name);
            // Each frame is counted once.
            let frames = outcome.waiting + outcome.hit + outcome.early + outcome.unexpected;
            assert_eq!(frames, outcome.arrivals, "{}", pattern.name);
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// A known period must not lock on noise either, and costs nothing where the stream has another one.
#[test]
fn a_known_period_does_no_harm() {
    for pattern in patterns::ALL {
        let known = Predictor::with_period(Nanos::from_micros(1_370));
        let mut random = Random(1);
        let outcome = receive(&(pattern.make)(&mut random), known, pattern.machine, &mut random);
        assert!(outcome.hit_rate() >= pattern.hit_min - 1.0, "{}: {outcome:?}", pattern.name);
        assert!(outcome.spun_micros() <= 1.1 * pattern.spun_max, "{}: {outcome:?}", pattern.name);
    }
}
