// SPDX-License-Identifier: Apache-2.0
//! Two measurements of the same system and profile. In: the histograms before and after a change. Out: whether latencies differ.
//!
//! The test is Mann and Whitney's (Wilcoxon's rank sum), two-sided, with the correction for ties, in the normal approximation: it asks how
//! often a latency after the change exceeds one before, and needs no shape of the distribution. Latencies in one bucket of the histograms
//! are ties. With many samples any difference is significant, so a conclusion also needs an effect: the chance that a latency after the
//! change exceeds one before must be at least [`EFFECT_MIN`] away from one half. Samples are taken as independent; a disturbance that
//! lasts longer than a period makes the test too sure, the effect does not depend on that.
//!
//! That says what is usual. [`Tail`] tests the longest latencies, which real time depends on. Worse in either is worse.

mod comparable;
mod tail;

pub use comparable::{Difference, NotComparable, differences};
pub use tail::Tail;

use crate::histogram::Histogram;
use crate::statistics::BoxStatistics;
use libm::erfc;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A difference is significant below this probability, after Holm's correction for the number of comparisons.
pub const SIGNIFICANCE: f64 = 0.01;
/// The least effect: a chance of 0.56 instead of 0.5 (Vargha and Delaney's "small").
pub const EFFECT_MIN: f64 = 0.06;

/// What a change brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Conclusion {
    /// Latencies are shorter.
    Better,
    /// Latencies are longer.
    Worse,
    /// No difference was shown.
    Same,
}

/// Two measurements beside each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// The statistics before.
    pub before: BoxStatistics,
    /// The statistics after.
    pub after: BoxStatistics,
    /// The chance that a latency after exceeds one before; ties count half.
    pub longer_probability: f64,
    /// The probability of such a difference, or a greater one, by chance alone.
    pub p_value: f64,
    /// What follows for the usual latencies; [`conclude`] sets it.
    pub usual: Conclusion,
    /// The longest latencies.
    pub tail: Tail,
    /// What follows from both: worse when one is worse, better when one is better and none is worse.
    pub conclusion: Conclusion,
}

/// Compares two measurements; `None` when one of them is empty.
#[must_use]
pub fn compare(before: &Histogram, after: &Histogram) -> Option<Change> {
    let mut buckets: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    before.buckets().for_each(|(low, count)| buckets.entry(low.as_nanos()).or_default().0 += count as f64);
    after.buckets().for_each(|(low, count)| buckets.entry(low.as_nanos()).or_default().1 += count as f64);
    let (first, second) = (before.count() as f64, after.count() as f64);
    let all = first + second;
    let (mut passed, mut wins, mut ties) = (0.0, 0.0, 0.0);
    for (one, other) in buckets.into_values() {
        wins += other * (passed + one / 2.0);
        passed += one;
        let tied = one + other;
        ties += tied * (tied * tied - 1.0) / (all * (all - 1.0).max(1.0));
    }
    let change = Change {
        before: BoxStatistics::of(before)?,
        after: BoxStatistics::of(after)?,
        longer_probability: wins / (first * second),
        p_value: p_value(wins, first, second, ties),
        usual: Conclusion::Same,
        tail: Tail::of(before, after)?,
        conclusion: Conclusion::Same,
    };
    Some(change)
}

/// The two-sided probability of `wins` of `first × second` pairs.
fn p_value(wins: f64, first: f64, second: f64, ties: f64) -> f64 {
    let variance = first * second / 12.0 * (first + second + 1.0 - ties);
    // All values are equal, or as good as: no difference.
    if variance <= first * second * 1e-9 {
        return 1.0;
    }
    // Half a step towards the middle, since wins come in steps.
    let distance = ((wins - first * second / 2.0).abs() - 0.5).max(0.0);
    erfc(distance / variance.sqrt() / std::f64::consts::SQRT_2)
}

/// Sets the conclusions of all comparisons together: Holm's correction over both tests of each, then the effects.
pub fn conclude(changes: &mut [Change]) {
    let p_values: Vec<f64> =
        changes.iter().flat_map(|change| [change.p_value, change.tail.p_value]).collect();
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut is_significant = vec![false; p_values.len()];
    for (rank, &index) in order.iter().enumerate() {
        if p_values[index] * (order.len() - rank) as f64 > SIGNIFICANCE {
            break;
        }
        is_significant[index] = true;
    }
    for (change, holds) in changes.iter_mut().zip(is_significant.chunks(2)) {
        change.usual = match change.longer_probability - 0.5 {
            effect if holds[0] && effect >= EFFECT_MIN => Conclusion::Worse,
            effect if holds[0] && effect <= -EFFECT_MIN => Conclusion::Better,
            _ => Conclusion::Same,
        };
        let tail = change.tail.effect(change.before.samples, change.after.samples);
        change.tail.conclusion = if holds[1] { tail } else { Conclusion::Same };
        change.conclusion = match (change.usual, change.tail.conclusion) {
            (Conclusion::Worse, _) | (_, Conclusion::Worse) => Conclusion::Worse,
            (Conclusion::Better, _) | (_, Conclusion::Better) => Conclusion::Better,
            (Conclusion::Same, Conclusion::Same) => Conclusion::Same,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_time::Span;
    use proptest::prelude::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Histogram {
        values.into_iter().map(Span::from_nanos).collect()
    }

    fn concluded(before: &Histogram, after: &Histogram) -> Conclusion {
        let mut changes = [compare(before, after).unwrap()];
        conclude(&mut changes);
        changes[0].conclusion
    }

    #[test]
    fn known_values_of_the_error_function() {
        for (x, value) in [
            (0.0, 1.0),
            (0.5, 0.479_500_122),
            (1.0, 0.157_299_207),
            (2.0, 0.004_677_735),
            (4.0, 1.541_725_79e-8),
        ] {
            assert!((erfc(x) / value - 1.0).abs() < 2e-7, "{x}");
        }
    }

    /// 5 against 5 values without ties: 20 of 25 pairs; (7.5 − 0.5) / √(25 · 11 / 12) = 1.462, so p = 0.1437.
    #[test]
    fn a_known_case() {
        let change = compare(&of([1, 2, 4, 5, 8]), &of([3, 6, 7, 9, 10])).unwrap();
        assert!((change.longer_probability - 20.0 / 25.0).abs() < 1e-12);
        assert!((change.p_value - 0.1437).abs() < 5e-4, "{}", change.p_value);
    }

    #[test]
    fn a_shift_is_found_and_noise_is_not() {
        let usual = of((0..2000).map(|i| 50 + i * 37 % 101));
        let longer = of((0..2000).map(|i| 70 + i * 37 % 101));
        assert_eq!(concluded(&usual, &longer), Conclusion::Worse);
        assert_eq!(concluded(&longer, &usual), Conclusion::Better);
        assert_eq!(concluded(&usual, &usual), Conclusion::Same);
        // Significant with so many samples, but of no account.
        let hardly = of((0..200_000).map(|i| 51 + i * 37 % 101));
        let many = of((0..200_000).map(|i| 50 + i * 37 % 101));
        assert!(compare(&many, &hardly).unwrap().p_value < 1e-6);
        assert_eq!(concluded(&many, &hardly), Conclusion::Same);
        assert_eq!(compare(&usual, &Histogram::default()), None);
        assert_eq!(compare(&of([7, 7]), &of([7])).unwrap().p_value, 1.0);
    }

    /// Usual latencies are shorter, and a few are ruined: worse, and both are kept.
    #[test]
    fn worse_in_either_is_worse() {
        let before = of((0..10_000).map(|i| 20_000 + i * 37 % 10_007));
        let after = of((0..10_000).map(|i| if i % 500 == 0 { 50_000_000 } else { 15_000 + i * 37 % 10_007 }));
        let mut changes = [compare(&before, &after).unwrap(), compare(&after, &before).unwrap()];
        conclude(&mut changes);
        let found = changes.map(|change| (change.usual, change.tail.conclusion, change.conclusion));
        use Conclusion::{Better, Worse};
        assert_eq!(found, [(Better, Worse, Worse), (Worse, Better, Worse)]);
    }

    #[test]
    fn holm_judges_all_comparisons_together() {
        let before = of((0..100).map(|i| i * 37 % 101));
        let after = of((0..100).map(|i| 20 + i * 37 % 101));
        let strong = compare(&before, &after).unwrap();
        let strong = Change { tail: Tail { p_value: 1.0, ..strong.tail.clone() }, ..strong };
        let weak = Change { p_value: 0.004, ..strong.clone() };
        let mut one = [weak.clone()];
        conclude(&mut one);
        assert_eq!(one[0].conclusion, Conclusion::Worse);
        let mut both = [weak.clone(), weak, strong];
        conclude(&mut both);
        assert_eq!(
            both.map(|change| change.conclusion),
            [Conclusion::Same, Conclusion::Same, Conclusion::Worse]
        );
    }

    proptest! {
        /// Against all pairs, one by one; and the direction turns with the arguments.
        #[test]
        fn the_chance_is_that_of_all_pairs(before in prop::collection::vec(0_u64..50, 1..40), after in prop::collection::vec(0_u64..50, 1..40)) {
            let change = compare(&of(before.clone()), &of(after.clone())).unwrap();
            let pairs = before.iter().flat_map(|one| after.iter().map(move |other| (one, other)));
            let wins: f64 = pairs.map(|(one, other)| match other.cmp(one) {
                std::cmp::Ordering::Greater => 1.0,
                std::cmp::Ordering::Equal => 0.5,
                std::cmp::Ordering::Less => 0.0,
            }).sum();
            prop_assert!((change.longer_probability - wins / (before.len() * after.len()) as f64).abs() < 1e-9);
            let turned = compare(&of(after), &of(before)).unwrap();
            prop_assert!((change.longer_probability + turned.longer_probability - 1.0).abs() < 1e-9);
            prop_assert!((change.p_value - turned.p_value).abs() < 1e-9);
            prop_assert!((0.0..=1.0).contains(&change.p_value));
        }
    }
}
