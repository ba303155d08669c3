// SPDX-License-Identifier: Apache-2.0
//! Latency over time in constant memory. In: latencies in their order. Out: at most [`SLICES_MAX`] slices of equal length, each with its
//! least, mean and greatest latency. When all slices are full, two become one.

use ktsn_time::Span;
use serde::{Deserialize, Serialize};

/// Most slices.
pub const SLICES_MAX: usize = 1024;

/// Some samples that follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    /// How many samples.
    pub samples: u64,
    /// Their least latency.
    pub min_ns: u64,
    /// The sum of their latencies.
    pub sum_ns: u64,
    /// Their greatest latency.
    pub max_ns: u64,
}

impl Slice {
    fn join(&mut self, other: &Self) {
        self.min_ns = if self.samples == 0 { other.min_ns } else { self.min_ns.min(other.min_ns) };
        self.max_ns = self.max_ns.max(other.max_ns);
        self.samples += other.samples;
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
    }

    /// The mean latency in nanoseconds; 0 of none.
    #[must_use]
    pub fn mean_ns(&self) -> f64 {
        if self.samples == 0 { 0.0 } else { self.sum_ns as f64 / self.samples as f64 }
    }
}

/// Latency over time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    /// Samples of each slice but the last.
    pub slice_samples: u64,
    /// The slices in their order.
    pub slices: Vec<Slice>,
}

impl Default for Timeline {
    fn default() -> Self {
        Self { slice_samples: 1, slices: Vec::new() }
    }
}

impl Timeline {
    /// Adds the next latency.
    pub fn record(&mut self, latency: Span) {
        let one = latency.as_nanos();
        let one = Slice { samples: 1, min_ns: one, sum_ns: one, max_ns: one };
        let is_full = self.slices.last().is_none_or(|last| last.samples >= self.slice_samples);
        if is_full && self.slices.len() == SLICES_MAX {
            self.halve();
        }
        match self.slices.last_mut().filter(|last| last.samples < self.slice_samples) {
            Some(last) => last.join(&one),
            None => self.slices.push(one),
        }
    }

    fn halve(&mut self) {
        let joined = self.slices.chunks(2).map(|pair| {
            let mut slice = Slice::default();
            pair.iter().for_each(|part| slice.join(part));
            slice
        });
        self.slices = joined.collect();
        self.slice_samples *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
        /// However long it gets: every sample is in one slice, in order, and slices are bounded.
        #[test]
        fn slices_hold_every_sample(count in 1_usize..20_000, factor in 1_u64..97) {
            let samples: Vec<u64> = (0..count as u64).map(|index| index * factor % 1009).collect();
            let mut timeline = Timeline::default();
            samples.iter().for_each(|&sample| timeline.record(Span::from_nanos(sample)));
            prop_assert!(timeline.slices.len() <= SLICES_MAX);
            let mut rest = samples.as_slice();
            for slice in &timeline.slices {
                let (own, after) = rest.split_at(slice.samples as usize);
                prop_assert_eq!(slice.min_ns, *own.iter().min().unwrap());
                prop_assert_eq!(slice.max_ns, *own.iter().max().unwrap());
                prop_assert_eq!(slice.sum_ns, own.iter().sum::<u64>());
                prop_assert!(slice.samples == timeline.slice_samples || after.is_empty());
                rest = after;
            }
            prop_assert!(rest.is_empty());
        }
    }
}
