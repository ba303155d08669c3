// SPDX-License-Identifier: Apache-2.0
//! Prints the table of `docs/design/expected-arrival.md`: what a receiver that expects its frames gains and spins.

// The bars of the patterns are for the test.
#[allow(dead_code)]
#[path = "../tests/simulation/mod.rs"]
mod simulation;

use ktsn_expect::Predictor;
use simulation::{Random, patterns, receive};

fn main() {
    println!(
        "| arrivals | count | hit | spins in vain / 100 | spun / arrival | CPU |\n|---|---|---|---|---|---|"
    );
    for pattern in patterns::ALL {
        let mut random = Random(1);
        let arrivals = (pattern.make)(&mut random);
        let outcome = receive(&arrivals, Predictor::new(), pattern.machine, &mut random);
        println!(
            "| {} | {} | {:.1} % | {:.1} | {:.1} µs | {:.2} % |",
            pattern.name,
            outcome.arrivals,
            outcome.hit_rate(),
            outcome.missed_rate(),
            outcome.spun_micros(),
            outcome.cpu(),
        );
    }
}
