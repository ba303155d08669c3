// SPDX-License-Identifier: Apache-2.0
//! The columns of the paper's Table 3, and three more. In: a histogram. Out: [`BoxStatistics`].
//!
//! The paper names its columns but does not define the whiskers. It speaks of 95 %, and its tables allow that reading: the whiskers
//! are the percentiles 2.5 and 97.5. They cannot be the extremes (in some rows the standard deviation exceeds the distance between the
//! whiskers, which no distribution between two bounds allows), nor Tukey's (in some rows the upper whisker is 90 quartile distances away).
//! Its maximum jitter is the distance between the whiskers, in every row. `tests/paper.rs` holds the tables against these statements.

use crate::histogram::Histogram;
use ktsn_time::{Nanos, Span};
use serde::{Deserialize, Serialize};

/// The central interval between the whiskers, in per 10,000: 2.5 % to 97.5 %.
pub const WHISKERS: (u32, u32) = (250, 9_750);
/// The normal distribution's factor of a 95 % confidence interval.
const NORMAL_95: f64 = 1.959_963_984_540_054;

/// A distribution of latencies in numbers, all in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoxStatistics {
    /// How many samples.
    pub samples: u64,
    /// Percentile 2.5: the lower end of the 95 % interval.
    pub lower_whisker_ns: u64,
    /// Percentile 25.
    pub lower_quartile_ns: u64,
    /// Percentile 50.
    pub median_ns: u64,
    /// Arithmetic mean.
    pub mean_ns: f64,
    /// Standard deviation of the population.
    pub stddev_ns: f64,
    /// Percentile 75.
    pub upper_quartile_ns: u64,
    /// Percentile 97.5: the upper end of the 95 % interval.
    pub upper_whisker_ns: u64,
    /// The paper's maximum jitter: upper whisker less lower whisker.
    pub max_jitter_ns: u64,
    /// Half of the mean's 95 % confidence interval (normal distribution, samples taken as independent).
    pub mean_uncertainty_ns: f64,
    /// Percentile 99.9.
    pub p99_9_ns: u64,
    /// Percentile 99.99; with fewer than 10,000 samples the greatest one.
    pub p99_99_ns: u64,
    /// The least sample.
    pub min_ns: u64,
    /// The greatest sample.
    pub max_ns: u64,
}

impl BoxStatistics {
    /// The statistics of a histogram; `None` when it is empty.
    #[must_use]
    pub fn of(histogram: &Histogram) -> Option<Self> {
        let at = |per_10_000| histogram.quantile(per_10_000).map(Span::as_nanos);
        let (lower_whisker_ns, upper_whisker_ns) = (at(WHISKERS.0)?, at(WHISKERS.1)?);
        let stddev_ns = histogram.stddev()?;
        Some(Self {
            samples: histogram.count(),
            lower_whisker_ns,
            lower_quartile_ns: at(2_500)?,
            median_ns: at(5_000)?,
            mean_ns: histogram.mean()?,
            stddev_ns,
            upper_quartile_ns: at(7_500)?,
            upper_whisker_ns,
            max_jitter_ns: upper_whisker_ns - lower_whisker_ns,
            mean_uncertainty_ns: NORMAL_95 * stddev_ns / (histogram.count() as f64).sqrt(),
            p99_9_ns: at(9_990)?,
            p99_99_ns: at(9_999)?,
            min_ns: histogram.min()?.as_nanos(),
            max_ns: histogram.max()?.as_nanos(),
        })
    }

    /// The first figure that another one does not share, with both values. Means and deviations may differ by rounding.
    pub(crate) fn unlike(&self, other: &Self) -> Option<(&'static str, f64, f64)> {
        let figures = |s: &Self| {
            [
                ("samples", s.samples as f64),
                ("lower_whisker_ns", s.lower_whisker_ns as f64),
                ("lower_quartile_ns", s.lower_quartile_ns as f64),
                ("median_ns", s.median_ns as f64),
                ("mean_ns", s.mean_ns),
                ("stddev_ns", s.stddev_ns),
                ("upper_quartile_ns", s.upper_quartile_ns as f64),
                ("upper_whisker_ns", s.upper_whisker_ns as f64),
                ("max_jitter_ns", s.max_jitter_ns as f64),
                ("mean_uncertainty_ns", s.mean_uncertainty_ns),
                ("p99_9_ns", s.p99_9_ns as f64),
                ("p99_99_ns", s.p99_99_ns as f64),
                ("min_ns", s.min_ns as f64),
                ("max_ns", s.max_ns as f64),
            ]
        };
        let pairs = figures(self).into_iter().zip(figures(other));
        let mut unlike = pairs.filter(|((_, own), (_, other))| (own - other).abs() > own.abs() * 1e-9);
        unlike.next().map(|((name, own), (_, other))| (name, other, own))
    }

    /// What the paper holds against its Table 1: the mean, and the maximum jitter.
    #[must_use]
    pub fn paper_figures(&self) -> Figures {
        Figures { latency: nanos(self.mean_ns.ceil() as u64), jitter: nanos(self.max_jitter_ns) }
    }

    /// The worst that was seen: the greatest sample, and its distance from the least one.
    #[must_use]
    pub fn worst_figures(&self) -> Figures {
        Figures { latency: nanos(self.max_ns), jitter: nanos(self.max_ns - self.min_ns.min(self.max_ns)) }
    }
}

fn nanos(value: u64) -> Nanos {
    Span::from_nanos(value).to_nanos()
}

/// What a requirement is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figures {
    /// The processing latency.
    pub latency: Nanos,
    /// Its variation.
    pub jitter: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_samples_give_known_columns() {
        let histogram: Histogram = (1..=1000).map(Span::from_nanos).collect();
        let found = BoxStatistics::of(&histogram).unwrap();
        assert_eq!((found.lower_whisker_ns, found.upper_whisker_ns, found.max_jitter_ns), (25, 975, 950));
        assert_eq!((found.lower_quartile_ns, found.median_ns, found.upper_quartile_ns), (250, 500, 750));
        assert_eq!((found.p99_9_ns, found.p99_99_ns, found.min_ns, found.max_ns), (999, 1000, 1, 1000));
        assert!((found.mean_ns - 500.5).abs() < 1e-9 && (found.stddev_ns - 288.675).abs() < 1e-3);
        assert!((found.mean_uncertainty_ns - 17.892).abs() < 1e-3);
        assert_eq!(found.paper_figures(), Figures { latency: Nanos::new(501), jitter: Nanos::new(950) });
        assert_eq!(found.worst_figures(), Figures { latency: Nanos::new(1000), jitter: Nanos::new(999) });
        assert_eq!(BoxStatistics::of(&Histogram::default()), None);
    }

    proptest! {
        #[test]
        fn columns_are_in_order(values in prop::collection::vec(0_u64..10_000_000_000, 1..300)) {
            let s = BoxStatistics::of(&values.iter().copied().map(Span::from_nanos).collect()).unwrap();
            let columns = [s.min_ns, s.lower_whisker_ns, s.lower_quartile_ns, s.median_ns, s.upper_quartile_ns,
                s.upper_whisker_ns, s.p99_9_ns, s.p99_99_ns, s.max_ns];
            prop_assert!(columns.is_sorted(), "{columns:?}");
            prop_assert!(s.mean_ns >= s.min_ns as f64 - 0.5 && s.mean_ns <= s.max_ns as f64 + 0.5);
            // Popoviciu: no distribution between two bounds deviates more than half of their distance.
            prop_assert!(s.stddev_ns <= (s.max_ns - s.min_ns) as f64 / 2.0 + 0.5);
        }
    }
}
