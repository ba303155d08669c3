// SPDX-License-Identifier: Apache-2.0
//! What continuous integration asks of the simulator: many seeds hold all rules, and each run can be repeated.

use ktsn_sim::{Broken, Options, report, run};

/// Runs the seeds of `cargo run -p ktsn-sim -- --seeds 200`.
#[test]
fn two_hundred_seeds_hold_every_rule() {
    let mut failures = String::new();
    let (mut published, mut arrived) = (0, 0);
    for seed in 0..200 {
        let outcome = run(seed, Options::default()).unwrap();
        published += outcome.published;
        arrived += outcome.arrived;
        if !outcome.violations.is_empty() {
            failures.push_str(&report::failure(&outcome, Broken::Nothing));
        }
    }
    assert!(failures.is_empty(), "{failures}");
    // A simulator in which nothing happens holds every rule too.
    assert!(published > 100_000 && arrived > published / 2, "{arrived} of {published} frames arrived");
}

#[test]
fn the_same_seed_is_the_same_run_bit_for_bit() {
    for seed in [0, 3, 7, 33, 190] {
        let runs = [(); 2].map(|()| run(seed, Options::default()).unwrap());
        assert_eq!(runs[0].hash, runs[1].hash, "seed {seed}");
        assert_eq!(runs[0].notes, runs[1].notes, "seed {seed}");
        assert_eq!(runs[0].figures, runs[1].figures, "seed {seed}");
    }
    let other = [10, 11].map(|seed| run(seed, Options::default()).unwrap().hash);
    assert_ne!(other[0], other[1]);
}

/// Runs beside each other in one process share nothing.
#[test]
fn runs_beside_each_other_are_the_same_runs() {
    let alone: Vec<_> = (40..44).map(|seed| run(seed, Options::default()).unwrap().hash).collect();
    let threads: Vec<_> = (40..44)
        .map(|seed| std::thread::spawn(move || run(seed, Options::default()).unwrap().hash))
        .collect();
    let beside: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert_eq!(alone, beside);
}
