// SPDX-License-Identifier: Apache-2.0
//! The longest latencies of two measurements. In: both histograms. Out: how many lie above a common threshold, and whether that differs.
//!
//! The rank test sees which latencies are usual; a few ruined ones hardly move it. Here the threshold is [`MARGIN_PERCENT`] of the lesser
//! of both percentiles 99.9, so that it does not depend on which measurement came first, and a tail that is longer by less than a tenth is
//! none. The test is exact: when both have the same share above the threshold, then of all latencies above it the part of each follows
//! the binomial distribution with its part of all samples. A conclusion also needs an effect: one share is at least [`FACTOR_MIN`] times the
//! other.

use super::Conclusion;
use crate::histogram::Histogram;
use ktsn_time::Span;
use libm::lgamma;
use serde::{Deserialize, Serialize};

/// The threshold in per cent of the lesser percentile 99.9.
const MARGIN_PERCENT: u64 = 110;
/// The least effect: twice the share of latencies above the threshold, or half of it.
const FACTOR_MIN: f64 = 2.0;

/// The longest latencies of two measurements.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tail {
    /// Latencies above this are the tail.
    pub threshold_ns: u64,
    /// How many were above it before.
    pub above_before: u64,
    /// How many are above it after.
    pub above_after: u64,
    /// The probability of such a difference, or a greater one, by chance alone.
    pub p_value: f64,
    /// What follows; [`super::conclude`] sets it.
    pub conclusion: Conclusion,
}

impl Tail {
    /// Counts both tails and tests them; `None` when one measurement is empty.
    pub(super) fn of(before: &Histogram, after: &Histogram) -> Option<Self> {
        let lesser = before.quantile(9_990)?.min(after.quantile(9_990)?).as_nanos();
        let threshold = Span::from_nanos(lesser.saturating_mul(MARGIN_PERCENT) / 100);
        let (above_before, above_after) = (before.count_above(threshold), after.count_above(threshold));
        let samples = (before.count() as f64, after.count() as f64);
        Some(Self {
            threshold_ns: threshold.as_nanos(),
            above_before,
            above_after,
            p_value: two_sided(above_before, above_after, samples.1 / (samples.0 + samples.1)),
            conclusion: Conclusion::Same,
        })
    }

    /// What a significant difference means: `before` and `after` samples were taken.
    pub(super) fn effect(&self, before: u64, after: u64) -> Conclusion {
        // Shares are compared across, so that none is divided by 0.
        let (was, is) = (self.above_before as f64 * after as f64, self.above_after as f64 * before as f64);
        match (was, is) {
            (was, is) if is > was && is >= was * FACTOR_MIN => Conclusion::Worse,
            (was, is) if was > is && was >= is * FACTOR_MIN => Conclusion::Better,
            _ => Conclusion::Same,
        }
    }
}

/// Twice the probability of the rarer side, when each of `first + second` belongs to the second with the chance `part`.
fn two_sided(first: u64, second: u64, part: f64) -> f64 {
    let all = first + second;
    let one = if second as f64 >= all as f64 * part {
        at_least(second, all, part)
    } else {
        at_least(first, all, 1.0 - part)
    };
    (2.0 * one).min(1.0)
}

/// The probability of at least `least` of `all`, each with the chance `part`; `least` is not below the mean.
fn at_least(least: u64, all: u64, part: f64) -> f64 {
    let (n, k) = (all as f64, least as f64);
    let ways = lgamma(n + 1.0) - lgamma(k + 1.0) - lgamma(n - k + 1.0);
    // 0 · ln 0 is 0 here.
    let power = |times: f64, chance: f64| if times > 0.0 { times * chance.ln() } else { 0.0 };
    let mut term = (ways + power(k, part) + power(n - k, 1.0 - part)).exp();
    let (mut sum, mut at) = (0.0, k);
    // Above the mean each term is less than the one before.
    while term > sum * 1e-17 {
        sum += term;
        term *= (n - at) / (at + 1.0) * part / (1.0 - part);
        at += 1.0;
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{compare, conclude};
    use proptest::prelude::*;

    /// Usual latencies of 20 to 30 µs, and among 10,000 of them `stalls` of 50 ms.
    fn with_stalls(samples: u64, stalls: u64) -> Histogram {
        let stall = |i: u64| i * 7919 % 10_000 < stalls;
        let usual = |i: u64| 20_000 + i * 7_919 % 10_007;
        (0..samples).map(|i| Span::from_nanos(if stall(i) { 50_000_000 } else { usual(i) })).collect()
    }

    fn tail(before: &Histogram, after: &Histogram) -> (Conclusion, Conclusion) {
        let mut changes = [compare(before, after).unwrap()];
        conclude(&mut changes);
        (changes[0].tail.conclusion, changes[0].conclusion)
    }

    #[test]
    fn a_ruined_tail_is_found_both_ways() {
        use Conclusion::{Better, Same, Worse};
        let usual = with_stalls(100_000, 0);
        // 2 % are late, then 1 in 1,000, then 1 in 2,000: percentile 99.9 does not move with the last.
        for stalls in [200, 10, 5] {
            let ruined = with_stalls(100_000, stalls);
            assert_eq!(tail(&usual, &ruined), (Worse, Worse), "{stalls}");
            assert_eq!(tail(&ruined, &usual), (Better, Better), "{stalls}");
            assert_eq!(tail(&ruined, &ruined), (Same, Same), "{stalls}");
        }
        // A short measurement after a long one, and the same share twice.
        assert_eq!(tail(&with_stalls(1_000_000, 0), &with_stalls(1_000, 200)).0, Worse);
        assert_eq!(tail(&with_stalls(1_000_000, 200), &with_stalls(10_000, 200)).0, Same);
        // 1.5 times as many are significant, and no effect.
        let (some, more) = (with_stalls(1_000_000, 10), with_stalls(1_000_000, 15));
        assert!(Tail::of(&some, &more).unwrap().p_value < 1e-6);
        assert_eq!(tail(&some, &more).0, Same);
        // Four single stalls may be chance.
        assert_eq!(tail(&with_stalls(10_000, 0), &with_stalls(10_000, 4)).0, Same);
        // All latencies longer by a twentieth: no tail.
        let longer = (0..100_000).map(|i| Span::from_nanos(21_000 + i * 7_919 % 10_507)).collect();
        assert_eq!(tail(&usual, &longer).0, Same);
    }

    /// 8 of 8 on one side by halves: 2 / 2^8. 9 of 10: 2 · 11 / 2^10. 1 of 3 by thirds: no distance from the mean.
    #[test]
    fn known_probabilities() {
        for (first, second, part, value) in [
            (0, 8, 0.5, 2.0 / 256.0),
            (8, 0, 0.5, 2.0 / 256.0),
            (1, 9, 0.5, 22.0 / 1024.0),
            (0, 2, 0.1, 0.02),
            (2, 1, 1.0 / 3.0, 1.0),
            (0, 0, 0.5, 1.0),
        ] {
            assert!((two_sided(first, second, part) - value).abs() < 1e-12, "{first} {second} {part}");
        }
        assert!((lgamma(21.0) - 2_432_902_008_176_640_000_f64.ln()).abs() < 1e-11);
        // The normal approximation of a great number: 5 standard deviations.
        let great = two_sided(500_000_000_000 - 2_500_000, 500_000_000_000 + 2_500_000, 0.5);
        assert!((great / 5.733e-7 - 1.0).abs() < 0.01, "{great}");
    }

    /// Measurements of the same distribution differ by chance: the rule hardly ever finds something. Seeds are fixed.
    #[test]
    fn chance_alone_is_hardly_ever_a_tail() {
        let mut state = 1_u64;
        let mut measured = || -> Histogram {
            let one = |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                // A long tail: the share above a latency falls with its square.
                let part = ((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
                Span::from_nanos((20_000.0 / part.sqrt()) as u64)
            };
            (0..5_000).map(one).collect()
        };
        let found = (0..200).filter(|_| tail(&measured(), &measured()).0 != Conclusion::Same).count();
        assert!(found <= 2, "{found} of 200");
    }

    proptest! {
        /// Against the sum over all numbers; and both directions give the same probability.
        #[test]
        fn probabilities_meet_a_naive_reference(first in 0_u64..30, second in 0_u64..30, part in 0.05_f64..0.95) {
            let all = first + second;
            let mut chance = vec![1.0];
            for _ in 0..all {
                let next = |k: usize| {
                    let (stay, one) = (chance.get(k).unwrap_or(&0.0), if k > 0 { chance[k - 1] } else { 0.0 });
                    stay * (1.0 - part) + one * part
                };
                chance = (0..=chance.len()).map(next).collect();
            }
            let up: f64 = chance[second as usize..].iter().sum();
            let down: f64 = chance[..=second as usize].iter().sum();
            let side = if second as f64 >= all as f64 * part { up } else { down };
            let found = two_sided(first, second, part);
            prop_assert!((found - (2.0 * side).min(1.0)).abs() < 1e-9, "{found} {side}");
            prop_assert!((0.0..=1.0).contains(&found));
        }
    }
}
