// SPDX-License-Identifier: Apache-2.0
//! Stability over time, as the paper's Table 5. In: how many samples are planned, the histogram as it grows. Out: the statistics of all
//! samples up to each window's end, and how far mean and deviation moved between the windows.
//!
//! The windows end at 1, 2, 4 and 8 hours of a plan of 8 hours; of any other plan at an eighth, a quarter, half, and all of it. Each holds
//! everything from the beginning, as the paper's do.

use crate::histogram::Histogram;
use crate::statistics::BoxStatistics;
use ktsn_time::Span;
use serde::{Deserialize, Serialize};

/// The statistics of all samples up to one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    /// How much time the samples cover.
    pub measured_ns: u64,
    /// Their statistics.
    pub statistics: BoxStatistics,
}

/// Collects the windows of one plan.
#[derive(Clone, Debug)]
pub struct Stability {
    period: Span,
    planned: u64,
    windows: Vec<Window>,
}

impl Stability {
    /// A plan of this many samples, one each `period`.
    #[must_use]
    pub const fn new(planned: u64, period: Span) -> Self {
        Self { period, planned, windows: Vec::new() }
    }

    /// The sample counts at which windows end.
    fn ends(&self) -> impl Iterator<Item = u64> {
        let planned = self.planned;
        let mut ends =
            [8, 4, 2, 1].map(|part| planned / part).into_iter().filter(|&end| end > 0).collect::<Vec<_>>();
        ends.dedup();
        ends.into_iter()
    }

    /// To be called after each sample: takes the statistics when a window ends with it.
    pub fn observe(&mut self, histogram: &Histogram) {
        if self.ends().nth(self.windows.len()) == Some(histogram.count())
            && let Some(statistics) = BoxStatistics::of(histogram)
        {
            let measured_ns = self.period.as_nanos().saturating_mul(histogram.count());
            self.windows.push(Window { measured_ns, statistics });
        }
    }

    /// The windows that have ended.
    #[must_use]
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }
}

/// Greatest less least value over the windows: of the mean, and of the standard deviation, in nanoseconds. `None` with fewer than two.
#[must_use]
pub fn drift(windows: &[Window]) -> Option<(f64, f64)> {
    let spread = |field: fn(&BoxStatistics) -> f64| {
        let values = windows.iter().map(|window| field(&window.statistics));
        values.clone().fold(f64::NEG_INFINITY, f64::max) - values.fold(f64::INFINITY, f64::min)
    };
    (windows.len() > 1).then(|| (spread(|s| s.mean_ns), spread(|s| s.stddev_ns)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(planned: u64, samples: &[u64]) -> Vec<Window> {
        let mut stability = Stability::new(planned, Span::from_nanos(10));
        let mut histogram = Histogram::default();
        for &sample in samples {
            histogram.record(Span::from_nanos(sample));
            stability.observe(&histogram);
        }
        stability.windows().to_vec()
    }

    #[test]
    fn windows_grow_from_the_beginning() {
        let samples: Vec<u64> = (1..=16).collect();
        let windows = run(16, &samples);
        let ends: Vec<(u64, u64)> = windows.iter().map(|w| (w.measured_ns, w.statistics.max_ns)).collect();
        assert_eq!(ends, [(20, 2), (40, 4), (80, 8), (160, 16)]);
        let (mean, deviation) = drift(&windows).unwrap();
        assert!((mean - 7.0).abs() < 1e-9 && deviation > 4.0);
        assert_eq!(drift(&windows[..1]), None);
        // Fewer samples than windows: none is counted twice.
        assert_eq!(run(2, &[5, 6]).len(), 2);
        assert_eq!(run(0, &[5]).len(), 0);
    }

    proptest! {
        #[test]
        fn each_window_is_a_prefix(samples in prop::collection::vec(0_u64..1000, 8..200)) {
            let windows = run(samples.len() as u64, &samples);
            prop_assert_eq!(windows.len(), 4);
            for window in windows {
                let prefix = &samples[..window.statistics.samples as usize];
                let whole: Histogram = prefix.iter().copied().map(Span::from_nanos).collect();
                prop_assert_eq!(window.statistics, BoxStatistics::of(&whole).unwrap());
            }
        }
    }
}
