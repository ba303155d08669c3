// SPDX-License-Identifier: Apache-2.0
//! A distribution by upper bounds, as histograms of Prometheus are.

use std::sync::atomic::Ordering::Relaxed;

use super::{Spans, lowest_of};

/// A distribution by upper bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The spans up to each bound and above the one before; at the end those above the last bound.
    pub counts: Vec<u64>,
    /// The sum of all spans, each taken as the middle of its bucket.
    pub sum_ns: u128,
}

impl Spans {
    /// True without a span.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets().iter().all(|count| count.load(Relaxed) == 0)
    }

    /// How many spans lie between ascending `bounds`, in nanoseconds. A span counts below a bound where its whole bucket does.
    #[must_use]
    pub fn up_to(&self, bounds: &[u64]) -> Counted {
        let mut counted = Counted { counts: vec![0; bounds.len() + 1], sum_ns: 0 };
        let mut at = 0;
        for (bucket, count) in self.buckets().iter().enumerate() {
            let (low, high) = (lowest_of(bucket), lowest_of(bucket + 1) - 1);
            while bounds.get(at).is_some_and(|bound| high > *bound) {
                at += 1;
            }
            let count = count.load(Relaxed);
            counted.counts[at] += count;
            counted.sum_ns += u128::from(count) * u128::from(low + (high - low) / 2);
        }
        counted
    }
}

#[cfg(test)]
mod tests {
    use super::super::VALUE_BITS;
    use super::*;
    use ktsn_time::Nanos;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bounds_divide_all_spans(spans in proptest::collection::vec(0u64..1 << 36, 0..50)) {
            let bounds = [250, 1_000, 20_000, 1_000_000, 10_000_000_000];
            let all = Spans::default();
            spans.iter().for_each(|span| all.record(Nanos::new(*span as i64)));
            let counted = all.up_to(&bounds);
            prop_assert_eq!(counted.counts.iter().sum::<u64>(), spans.len() as u64);
            prop_assert_eq!(all.is_empty(), spans.is_empty());
            for (at, bound) in bounds.iter().enumerate() {
                let found: u64 = counted.counts[..=at].iter().sum();
                let surely = spans.iter().filter(|span| **span + **span / 64 <= *bound).count() as u64;
                let at_most = spans.iter().filter(|span| **span <= *bound).count() as u64;
                prop_assert!((surely..=at_most).contains(&found), "{} within {}", found, bound);
            }
            let exact: u128 = spans.iter().map(|span| u128::from((*span).min((1 << VALUE_BITS) - 1))).sum();
            prop_assert!(counted.sum_ns.abs_diff(exact) <= exact / 100 + 1);
        }
    }
}
