// SPDX-License-Identifier: Apache-2.0
//! Exact statistics.
//!
//! In: samples. Out: [`Statistics`]. Percentiles are *nearest rank*: of `n` sorted samples the one at rank
//! `⌈p·n/1000⌉` (from 1, `p` in per mille), so every percentile is a sample that occurred; no interpolation,
//! no histogram, no sample left out. `stddev` is the population's.

use ktsn_time::{Nanos, Tai};
use serde::{Deserialize, Serialize};

/// A distribution in numbers, all in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    /// Least sample.
    pub min: i64,
    /// Median, nearest rank.
    pub p50: i64,
    /// 90th percentile, nearest rank.
    pub p90: i64,
    /// 99th percentile, nearest rank.
    pub p99: i64,
    /// 99.9th percentile, nearest rank.
    pub p99_9: i64,
    /// Greatest sample.
    pub max: i64,
    /// Arithmetic mean; 0 in a document that does not state it.
    #[serde(default)]
    pub mean: f64,
    /// Standard deviation of the population; 0 in a document that does not state it.
    #[serde(default)]
    pub stddev: f64,
}

impl Statistics {
    /// Statistics of all `samples`; `None` when there are none.
    #[must_use]
    pub fn of(samples: impl IntoIterator<Item = Nanos>) -> Option<Self> {
        let mut sorted: Vec<i64> = samples.into_iter().map(Nanos::get).collect();
        sorted.sort_unstable();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let count = sorted.len() as f64;
        let sum: i128 = sorted.iter().map(|&sample| i128::from(sample)).sum();
        let mean = sum as f64 / count;
        let squares: f64 = sorted.iter().map(|&sample| (sample as f64 - mean).powi(2)).sum();
        Some(Self {
            min,
            p50: nearest_rank(&sorted, 500),
            p90: nearest_rank(&sorted, 900),
            p99: nearest_rank(&sorted, 990),
            p99_9: nearest_rank(&sorted, 999),
            max,
            mean,
            stddev: (squares / count).sqrt(),
        })
    }

    /// For each number the median over several rounds; `None` without rounds.
    #[must_use]
    pub fn median_of(rounds: &[Self]) -> Option<Self> {
        let whole = |field: fn(&Self) -> i64| median_whole(rounds.iter().map(field));
        let real = |field: fn(&Self) -> f64| median(rounds.iter().map(field));
        Some(Self {
            min: whole(|s| s.min)?,
            p50: whole(|s| s.p50)?,
            p90: whole(|s| s.p90)?,
            p99: whole(|s| s.p99)?,
            p99_9: whole(|s| s.p99_9)?,
            max: whole(|s| s.max)?,
            mean: real(|s| s.mean)?,
            stddev: real(|s| s.stddev)?,
        })
    }

    /// The number called `name` in the JSON (`p50`, …).
    #[must_use]
    pub fn field(&self, name: &str) -> Option<f64> {
        Some(match name {
            "min" => self.min as f64,
            "p50" => self.p50 as f64,
            "p90" => self.p90 as f64,
            "p99" => self.p99 as f64,
            "p99_9" => self.p99_9 as f64,
            "max" => self.max as f64,
            "mean" => self.mean,
            "stddev" => self.stddev,
            _ => return None,
        })
    }
}

/// The sample at rank `⌈per_mille·n/1000⌉` of `sorted`, which must not be empty.
fn nearest_rank(sorted: &[i64], per_mille: usize) -> i64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Median of numbers; of an even count the mean of the middle two.
#[must_use]
pub fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(values[values.len() / 2 - 1], upper)) }
}

/// Median of whole numbers; of an even count the mean of the middle two, rounded down.
fn median_whole(values: impl Iterator<Item = i64>) -> Option<i64> {
    let mut values: Vec<i64> = values.collect();
    values.sort_unstable();
    let upper = *values.get(values.len() / 2)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    let sum = i128::from(values[values.len() / 2 - 1]) + i128::from(upper);
    i64::try_from(sum.div_euclid(2)).ok()
}

/// Jitter of a sequence of arrivals, and how many values could not be formed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jitter {
    /// `t(i) − (t(i−1) + T)`, signed, in order.
    pub values: Vec<Nanos>,
    /// Arrivals after a lost frame: their jitter is left out.
    pub left_out_count: u64,
}

impl Jitter {
    /// Jitter of frames in order of sequence number: transmit time and arrival (`None`: lost).
    /// `T` is the distance of the two frames' transmit times.
    #[must_use]
    pub fn of(frames: impl IntoIterator<Item = (Tai, Option<Tai>)>) -> Self {
        let mut jitter = Self::default();
        let mut previous: Option<(Tai, Option<Tai>)> = None;
        for (tx_time, at) in frames {
            match (previous, at) {
                (Some((tx_before, Some(before))), Some(at)) => {
                    jitter.values.push(at.since(before).saturating_sub(tx_time.since(tx_before)));
                }
                (Some((_, None)), Some(_)) => jitter.left_out_count += 1,
                _ => {}
            }
            previous = Some((tx_time, at));
        }
        jitter
    }

    /// Statistics of the magnitudes.
    #[must_use]
    pub fn statistics(&self) -> Option<Statistics> {
        Statistics::of(self.values.iter().map(|value| value.abs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_samples_give_known_numbers() {
        let statistics = Statistics::of((1..=1000).map(Nanos::new)).unwrap();
        assert_eq!((statistics.min, statistics.max), (1, 1000));
        assert_eq!((statistics.p50, statistics.p90, statistics.p99, statistics.p99_9), (500, 900, 990, 999));
        assert!((statistics.mean - 500.5).abs() < 1e-9);
        assert!((statistics.stddev - 288.675).abs() < 1e-3);
        assert_eq!(Statistics::of([]), None);
        let one = Statistics::of([Nanos::new(-7)]).unwrap();
        assert_eq!((one.min, one.p50, one.p99_9, one.max), (-7, -7, -7, -7));
        assert_eq!(one.field("p50"), Some(-7.0));
        assert_eq!(one.field("p42"), None);
    }

    #[test]
    fn the_median_of_rounds_is_taken_number_by_number() {
        let round = |p50, mean| Statistics { p50, mean, ..Statistics::default() };
        let merged = Statistics::median_of(&[round(9, 1.0), round(1, 5.0), round(4, 3.0)]).unwrap();
        assert_eq!((merged.p50, merged.mean), (4, 3.0));
        let merged = Statistics::median_of(&[round(9, 1.0), round(4, 5.0)]).unwrap();
        assert_eq!((merged.p50, merged.mean), (6, 3.0));
        assert_eq!(Statistics::median_of(&[]), None);
    }

    #[test]
    fn jitter_is_signed_and_leaves_out_what_follows_a_loss() {
        let tai = Tai::from_nanos;
        let jitter = Jitter::of([
            (tai(0), Some(tai(5))),
            (tai(100), Some(tai(103))),
            (tai(200), None),
            (tai(300), Some(tai(310))),
            (tai(400), Some(tai(415))),
        ]);
        assert_eq!(jitter.values, [Nanos::new(-2), Nanos::new(5)]);
        assert_eq!(jitter.left_out_count, 1);
        assert_eq!(jitter.statistics().unwrap().min, 2);
    }

    proptest! {
        /// Against the definition: a percentile is the least sample that p per mille of all do not exceed.
        #[test]
        fn percentiles_meet_their_definition(samples in prop::collection::vec(-1_000_i64..1_000, 1..200)) {
            let statistics = Statistics::of(samples.iter().copied().map(Nanos::new)).unwrap();
            let percentiles = [(500, statistics.p50), (900, statistics.p90), (990, statistics.p99), (999, statistics.p99_9)];
            for (per_mille, value) in percentiles {
                let share = |limit: i64| samples.iter().filter(|&&sample| sample <= limit).count() * 1000;
                prop_assert!(samples.contains(&value));
                prop_assert!(share(value) >= per_mille * samples.len());
                let next_lower = samples.iter().copied().filter(|&sample| sample < value).max();
                prop_assert!(next_lower.is_none_or(|lower| share(lower) < per_mille * samples.len()));
            }
            let naive_mean = samples.iter().map(|&s| s as f64).sum::<f64>() / samples.len() as f64;
            prop_assert!((statistics.mean - naive_mean).abs() < 1e-6);
            prop_assert_eq!(statistics.min, *samples.iter().min().unwrap());
            prop_assert_eq!(statistics.max, *samples.iter().max().unwrap());
        }

        /// Frames that all arrive equally late have no jitter, whatever the period and wherever frames are lost.
        #[test]
        fn a_constant_delay_has_no_jitter(lost in prop::collection::vec(any::<bool>(), 1..50), delay in 0_u64..1_000) {
            let frames = lost.iter().enumerate().map(|(index, &lost)| {
                let tx_time = Tai::from_nanos(1_000 * index as u64);
                (tx_time, (!lost).then(|| Tai::from_nanos(1_000 * index as u64 + delay)))
            });
            let jitter = Jitter::of(frames);
            prop_assert!(jitter.values.iter().all(|value| *value == Nanos::ZERO));
            let pairs = lost.windows(2).filter(|pair| !pair[0] && !pair[1]).count();
            let after_loss = lost.windows(2).filter(|pair| pair[0] && !pair[1]).count();
            prop_assert_eq!(jitter.values.len(), pairs);
            prop_assert_eq!(jitter.left_out_count, after_loss as u64);
        }
    }
}
