// SPDX-License-Identifier: Apache-2.0
//! How many random worlds a test sees, and the runner that shows them.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseResult, TestRng, TestRunner};

/// Worlds of the comparison with the reference, unless `KTSN_CASES` says otherwise.
const BY_DEFAULT: u32 = 50_000;

/// What `KTSN_CASES` says.
fn wanted() -> u32 {
    match std::env::var("KTSN_CASES") {
        Ok(text) => text.parse().expect("KTSN_CASES is a count of worlds"),
        Err(_) => BY_DEFAULT,
    }
}

/// Shows `wanted / share` worlds to `test`; panics with the smallest one that it refuses.
pub(crate) fn check<S: Strategy>(share: u32, worlds: S, test: impl Fn(S::Value) -> TestCaseResult)
where
    S::Value: Clone,
{
    let cases = (wanted() / share).max(1);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..Config::default() };
    if let Err(failure) = TestRunner::new(config).run(&worlds, test) {
        panic!("{failure}");
    }
}

/// `count` worlds that are equal at every run.
pub(crate) fn fixed<S: Strategy>(count: usize, worlds: &S) -> Vec<S::Value> {
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::default(), rng);
    (0..count).map(|_| worlds.new_tree(&mut runner).unwrap().current()).collect()
}
