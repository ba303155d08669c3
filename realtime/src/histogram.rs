// SPDX-License-Identifier: Apache-2.0
//! Latencies as counts in buckets. In: spans of 0 ns to [`LATENCY_MAX`]. Out: a [`Histogram`] that can be merged and stored.
//!
//! Below 1,024 ns a bucket holds one nanosecond, above it spans 1/512 of its value at most. Count, least, greatest, sum and sum of squares
//! are exact. So mean and standard deviation are exact, and a percentile is at most 0.2 % above the sample at its rank, never below it.
//! Memory depends on the span of the values only, not on their number: 16,000 buckets at the most.

use ktsn_time::Span;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::collections::BTreeMap;

/// Greatest latency that has a bucket: 2^40 ns, some 18 minutes. A longer one is counted as this one.
pub const LATENCY_MAX: Span = Span::from_nanos((1 << 40) - 1);
/// A bucket above 1,024 ns spans 1/512 of its value.
const STEPS: u64 = 512;

/// How often latencies of each size occurred.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    buckets: BTreeMap<u32, u64>,
    count: u64,
    min: u64,
    max: u64,
    sum: u128,
    squares: u128,
}

/// The bucket of a value.
fn bucket_of(value: u64) -> u32 {
    let shift = value.checked_ilog2().unwrap_or(0).saturating_sub(9);
    // At most 31 × 512 + 1023.
    (u64::from(shift) * STEPS + (value >> shift)) as u32
}

/// Least and greatest value of a bucket.
fn edges(bucket: u32) -> (u64, u64) {
    let bucket = u64::from(bucket);
    let shift = (bucket / STEPS).saturating_sub(1);
    let low = (bucket - shift * STEPS) << shift;
    (low, low + (1 << shift) - 1)
}

impl Histogram {
    /// Counts one latency.
    pub fn record(&mut self, latency: Span) {
        let value = latency.min(LATENCY_MAX).as_nanos();
        *self.buckets.entry(bucket_of(value)).or_default() += 1;
        self.min = if self.count == 0 { value } else { self.min.min(value) };
        self.max = self.max.max(value);
        self.count += 1;
        self.sum += u128::from(value);
        self.squares += u128::from(value) * u128::from(value);
    }

    /// Adds all that `other` counted. The order in which histograms are merged makes no difference.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        for (&bucket, &count) in &other.buckets {
            *self.buckets.entry(bucket).or_default() += count;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
        self.squares += other.squares;
    }

    /// How many latencies were counted.
    #[must_use]
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The least latency; `None` when there is none.
    #[must_use]
    pub fn min(&self) -> Option<Span> {
        (self.count > 0).then(|| Span::from_nanos(self.min))
    }

    /// The greatest latency; `None` when there is none.
    #[must_use]
    pub fn max(&self) -> Option<Span> {
        (self.count > 0).then(|| Span::from_nanos(self.max))
    }

    /// Arithmetic mean in nanoseconds; `None` when there is no latency.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// Standard deviation of the population in nanoseconds; `None` when there is no latency.
    #[must_use]
    pub fn stddev(&self) -> Option<f64> {
        // n·Σx² − (Σx)² in whole numbers: no digits are lost where mean and deviation differ by far.
        let count = u128::from(self.count);
        let whole = count.checked_mul(self.squares).zip(self.sum.checked_mul(self.sum));
        let spread = match whole {
            Some((squares, square)) => squares.checked_sub(square)? as f64,
            // Beyond 128 bits: many latencies of minutes.
            None => (count as f64 * self.squares as f64 - (self.sum as f64).powi(2)).max(0.0),
        };
        (count > 0).then(|| spread.sqrt() / count as f64)
    }

    /// The latency at rank `⌈n · per_10_000 / 10,000⌉` (nearest rank, from 1): its bucket's upper edge, at most the greatest latency.
    #[must_use]
    pub fn quantile(&self, per_10_000: u32) -> Option<Span> {
        let rank = (u128::from(self.count) * u128::from(per_10_000)).div_ceil(10_000).max(1);
        let mut passed = 0_u128;
        for (&bucket, &count) in &self.buckets {
            passed += u128::from(count);
            if passed >= rank {
                return Some(Span::from_nanos(edges(bucket).1.clamp(self.min, self.max)));
            }
        }
        self.max()
    }

    /// The least value of each bucket that is not empty, with its count, from the least up.
    pub fn buckets(&self) -> impl Iterator<Item = (Span, u64)> + '_ {
        self.buckets.iter().map(|(&bucket, &count)| (Span::from_nanos(edges(bucket).0), count))
    }

    /// Whether extremes and sums are possible for these buckets; if not, which field is wrong.
    fn check(&self) -> Result<(), String> {
        let (first, last) = match (self.buckets.first_key_value(), self.buckets.last_key_value()) {
            (Some((&first, _)), Some((&last, _))) => (edges(first), edges(last)),
            _ => ((0, 0), (0, 0)),
        };
        let within = |name: &str, value: u64, (low, high): (u64, u64), bucket: &str| match value {
            value if (low..=high).contains(&value) => Ok(()),
            value => Err(format!("{name}: {value}: expected {low} to {high}, the {bucket} bucket in use")),
        };
        within("min_ns", self.min, first, "first")?;
        within("max_ns", self.max, last, "last")?;
        if self.min > self.max {
            return Err(format!("min_ns: {}: expected at most max_ns, {}", self.min, self.max));
        }
        // The sums of the least and of the greatest values that the buckets, and the extremes, allow.
        let (mut sums, mut squares) = ((0, 0), (0, 0));
        for (&bucket, &count) in &self.buckets {
            let (low, high) = edges(bucket);
            let (low, high) = (u128::from(low.max(self.min)), u128::from(high.min(self.max)));
            let count = u128::from(count);
            sums = (sums.0 + count * low, sums.1 + count * high);
            squares = (squares.0 + count * low * low, squares.1 + count * high * high);
        }
        let possible = |name: &str, value: u128, (least, most): (u128, u128)| match value {
            value if (least..=most).contains(&value) => Ok(()),
            value => Err(format!("{name}: {value}: expected {least} to {most}, by the buckets")),
        };
        possible("sum_ns", self.sum, sums)?;
        possible("square_sum", self.squares, squares)?;
        let products = u128::from(self.count).checked_mul(self.squares).zip(self.sum.checked_mul(self.sum));
        if products.is_some_and(|(squares, square)| squares < square) {
            return Err(format!(
                "square_sum: {}: no latencies have it and sum_ns {}",
                self.squares, self.sum
            ));
        }
        Ok(())
    }

    /// How many latencies lie in buckets wholly above `limit`.
    #[must_use]
    pub fn count_above(&self, limit: Span) -> u64 {
        self.buckets().filter(|(low, _)| *low > limit).map(|(_, count)| count).sum()
    }
}

impl FromIterator<Span> for Histogram {
    fn from_iter<T: IntoIterator<Item = Span>>(latencies: T) -> Self {
        let mut histogram = Self::default();
        latencies.into_iter().for_each(|latency| histogram.record(latency));
        histogram
    }
}

/// The stored form. The sums exceed 64 bits, so they are decimal text.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// Least value of a bucket in nanoseconds, and its count.
    buckets: Vec<(u64, u64)>,
    min_ns: u64,
    max_ns: u64,
    sum_ns: String,
    square_sum: String,
}

impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Stored {
            buckets: self.buckets().map(|(low, count)| (low.as_nanos(), count)).collect(),
            min_ns: self.min,
            max_ns: self.max,
            sum_ns: self.sum.to_string(),
            square_sum: self.squares.to_string(),
        }
        .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let stored = Stored::deserialize(deserializer)?;
        let mut histogram = Self { min: stored.min_ns, max: stored.max_ns, ..Self::default() };
        for (low, count) in stored.buckets {
            if low > LATENCY_MAX.as_nanos() {
                return Err(D::Error::custom(format!(
                    "bucket {low}: expected at most {}",
                    LATENCY_MAX.as_nanos()
                )));
            }
            let total = histogram.count.checked_add(count).filter(|&total| total <= 1 << 40);
            histogram.count = total.ok_or_else(|| D::Error::custom("more than 2^40 latencies"))?;
            if count > 0 {
                *histogram.buckets.entry(bucket_of(low)).or_default() += count;
            }
        }
        let number = |text: &str, name: &str| {
            let value = text.parse::<u128>().ok().filter(|&value| value <= 1 << 120);
            value.ok_or_else(|| D::Error::custom(format!("{name}: `{text}`: expected a whole number")))
        };
        histogram.sum = number(&stored.sum_ns, "sum_ns")?;
        histogram.squares = number(&stored.square_sum, "square_sum")?;
        histogram.check().map_err(D::Error::custom)?;
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(values: &[u64]) -> Histogram {
        values.iter().copied().map(Span::from_nanos).collect()
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        let mut next = 0;
        for bucket in 0..=bucket_of(LATENCY_MAX.as_nanos()) {
            let (low, high) = edges(bucket);
            assert_eq!(low, next, "bucket {bucket}");
            assert!(high - low <= low / 512);
            assert_eq!((bucket_of(low), bucket_of(high)), (bucket, bucket));
            next = high + 1;
        }
        assert_eq!(next, 1 << 40);
        assert!(bucket_of(LATENCY_MAX.as_nanos()) < 17_000);
    }

    #[test]
    fn an_empty_histogram_has_no_figures() {
        let empty = Histogram::default();
        assert_eq!((empty.min(), empty.max(), empty.quantile(5000), empty.mean()), (None, None, None, None));
        assert_eq!(empty.stddev(), None);
        let read: Histogram = serde_json::from_str(&serde_json::to_string(&empty).unwrap()).unwrap();
        assert_eq!(read, empty);
    }

    #[test]
    fn a_latency_beyond_the_end_counts_as_the_greatest() {
        let one: Histogram = [Span::from_nanos(u64::MAX)].into_iter().collect();
        assert_eq!(one.max(), Some(LATENCY_MAX));
        assert_eq!(one.count_above(Span::from_nanos(1 << 39)), 1);
    }

    #[test]
    fn a_stored_histogram_that_contradicts_itself_is_refused() {
        let text = serde_json::to_string(&of(&[5, 9])).unwrap();
        for (from, to, word) in [
            ("\"14\"", "\"x\"", "sum_ns"),
            ("\"14\"", "\"99999999999999\"", "sum_ns: 99999999999999: expected 14 to 14"),
            ("\"14\"", "\"13\"", "sum_ns: 13: expected 14 to 14"),
            ("\"106\"", "\"105\"", "square_sum: 105: expected 106 to 106"),
            ("\"min_ns\":5", "\"min_ns\":4", "min_ns: 4: expected 5 to 5, the first bucket"),
            ("\"min_ns\":5", "\"min_ns\":50", "min_ns: 50: expected 5 to 5, the first bucket"),
            ("\"max_ns\":9", "\"max_ns\":10", "max_ns: 10: expected 9 to 9, the last bucket"),
            ("\"max_ns\":9", "\"max_ns\":8", "max_ns: 8: expected 9 to 9, the last bucket"),
            ("[9,1]", "[9,0]", "max_ns: 9: expected 5 to 5, the last bucket"),
            ("[5,1],[9,1]", "", "min_ns: 5: expected 0 to 0"),
            ("[5,1]", "[5,99999999999999]", "2^40"),
            ("[5,1]", "[9999999999999,1]", "at most"),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text);
            let error = serde_json::from_str::<Histogram>(&changed).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// Sums that the buckets allow, each by itself, and no latencies have: a deviation below 0.
    #[test]
    fn sums_that_contradict_each_other_are_refused() {
        let text =
            r#"{"buckets":[[2048,2]],"min_ns":2048,"max_ns":2051,"sum_ns":"4102","square_sum":"8388608"}"#;
        let error = serde_json::from_str::<Histogram>(text).unwrap_err().to_string();
        assert!(error.contains("square_sum: 8388608: no latencies"), "{error}");
        let swapped = text.replace("\"min_ns\":2048,\"max_ns\":2051", "\"min_ns\":2051,\"max_ns\":2048");
        let error = serde_json::from_str::<Histogram>(&swapped).unwrap_err().to_string();
        assert!(error.contains("min_ns: 2051: expected at most max_ns"), "{error}");
    }

    #[test]
    fn the_most_that_can_be_stored_has_a_deviation() {
        let (most, half) = (LATENCY_MAX.as_nanos(), 1_u128 << 39);
        let low = edges(bucket_of(most)).0;
        let (sum, squares) = (half * u128::from(most), half * u128::from(most) * u128::from(most));
        let text = format!(
            r#"{{"buckets":[[0,{half}],[{low},{half}]],"min_ns":0,"max_ns":{most},"sum_ns":"{sum}","square_sum":"{squares}"}}"#
        );
        let stored: Histogram = serde_json::from_str(&text).unwrap();
        let deviation = stored.stddev().unwrap();
        assert!((deviation / (most as f64 / 2.0) - 1.0).abs() < 1e-9, "{deviation}");
    }

    /// Latencies of every magnitude.
    fn latencies() -> impl Strategy<Value = Vec<u64>> {
        let one = (0_u32..40, any::<u64>()).prop_map(|(bits, value)| value >> (63 - bits));
        prop::collection::vec(one, 1..400)
    }

    proptest! {
        /// Against sorted samples: nearest rank, at most 1/512 above, never below.
        #[test]
        fn figures_meet_a_naive_reference(values in latencies(), per_10_000 in 0_u32..=10_000) {
            let histogram = of(&values);
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let rank = (sorted.len() * per_10_000 as usize).div_ceil(10_000).max(1);
            let exact = sorted[rank - 1];
            let found = histogram.quantile(per_10_000).unwrap().as_nanos();
            prop_assert!(found >= exact && found - exact <= exact / 512, "{found} for {exact}");
            prop_assert_eq!(histogram.min().unwrap().as_nanos(), sorted[0]);
            prop_assert_eq!(histogram.max().unwrap().as_nanos(), sorted[sorted.len() - 1]);
            let count = values.len() as f64;
            let mean = values.iter().map(|&value| value as f64).sum::<f64>() / count;
            let squares = values.iter().map(|&value| (value as f64 - mean).powi(2)).sum::<f64>();
            prop_assert!((histogram.mean().unwrap() - mean).abs() <= mean * 1e-9);
            let deviation = (squares / count).sqrt();
            prop_assert!((histogram.stddev().unwrap() - deviation).abs() <= mean * 1e-6 + 1e-6);
        }

        /// Parts in any order give the whole, and storing changes nothing.
        #[test]
        fn merging_equals_recording_all(values in latencies(), cut in 0_usize..400) {
            let cut = cut.min(values.len());
            let (one, other) = (of(&values[..cut]), of(&values[cut..]));
            let (mut forwards, mut backwards) = (one.clone(), other.clone());
            forwards.merge(&other);
            backwards.merge(&one);
            prop_assert_eq!(&forwards, &of(&values));
            prop_assert_eq!(&backwards, &forwards);
            let text = serde_json::to_string(&forwards).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), forwards);
        }
    }
}
