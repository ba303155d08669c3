// SPDX-License-Identifier: Apache-2.0
//! Intervals by bootstrap, for figures of a few rounds. In: one figure for each round. Out: their median, and the interval in which 95 % of
//! the medians of resampled rounds lie. Rounds are resampled, not latencies: latencies of one round depend on each other. The same rounds
//! give the same interval.

use serde::Serialize;

/// How often the rounds are drawn again.
const DRAWS: usize = 10_000;
/// Per mille of the resampled medians that lie below the interval, and above it.
const TAIL: usize = 25;

/// A figure with its interval, in the unit of the rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Estimate {
    /// The median of the rounds.
    pub median: u64,
    /// The interval's lower end.
    pub low: u64,
    /// Its upper end.
    pub high: u64,
}

impl Estimate {
    /// The estimate of some rounds; `None` without any.
    #[must_use]
    pub fn of(rounds: &[u64]) -> Option<Self> {
        let median = median(&mut rounds.to_vec())?;
        let mut random = SplitMix(0x6b74_736e);
        let mut medians: Vec<u64> = (0..DRAWS)
            .filter_map(|_| {
                let mut drawn: Vec<u64> = rounds.iter().map(|_| rounds[random.below(rounds.len())]).collect();
                self::median(&mut drawn)
            })
            .collect();
        medians.sort_unstable();
        let at = |rank: usize| medians[rank.min(DRAWS - 1)];
        Some(Self { median, low: at(DRAWS * TAIL / 1000), high: at(DRAWS - 1 - DRAWS * TAIL / 1000) })
    }

    /// Whether the two intervals have a value in common.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.low <= other.high && other.low <= self.high
    }
}

/// The median, the lower one of two.
fn median(values: &mut [u64]) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len().checked_sub(1)? / 2).copied()
}

/// Numbers that look random, the same in each run.
struct SplitMix(u64);

impl SplitMix {
    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(value ^ (value >> 31)) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_holds_the_median_and_follows_the_spread() {
        let narrow = Estimate::of(&[100, 101, 99, 100, 102, 98, 100, 101, 99, 100]).unwrap();
        assert_eq!(narrow.median, 100);
        assert!(narrow.low >= 98 && narrow.high <= 102 && narrow.low < narrow.high, "{narrow:?}");
        let wide = Estimate::of(&[50, 150, 60, 140, 100, 100, 70, 130, 80, 120]).unwrap();
        assert!(wide.low < narrow.low && wide.high > narrow.high, "{wide:?}");
        assert_eq!(Estimate::of(&[7]).unwrap(), Estimate { median: 7, low: 7, high: 7 });
        assert_eq!(Estimate::of(&[]), None);
    }

    /// For ten rounds of a known distribution 95 % intervals of the median hold the true median in some 95 of 100 cases. The interval
    /// between the order statistics 2 and 9 of ten holds it in 97.9 %, that between 3 and 8 in 89.1 %: the bootstrap lies there.
    #[test]
    fn intervals_hold_the_true_median_as_often_as_they_say() {
        let mut random = SplitMix(1);
        let hits = (0..200)
            .filter(|_| {
                let rounds: Vec<u64> = (0..10).map(|_| random.below(10_001) as u64).collect();
                let found = Estimate::of(&rounds).unwrap();
                (found.low..=found.high).contains(&5_000)
            })
            .count();
        assert!((172..=200).contains(&hits), "{hits} of 200");
    }

    #[test]
    fn overlap_is_symmetric() {
        let of = |low, high| Estimate { median: low, low, high };
        assert!(of(1, 5).overlaps(&of(5, 9)) && of(5, 9).overlaps(&of(1, 5)) && of(1, 9).overlaps(&of(3, 4)));
        assert!(!of(1, 4).overlaps(&of(5, 9)) && !of(5, 9).overlaps(&of(1, 4)));
    }
}
