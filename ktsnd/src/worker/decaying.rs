// SPDX-License-Identifier: Apache-2.0
//! What most of the last samples stayed below, older ones counting less and less.
//!
//! In: samples by bucket. Out: the bucket that a share of them does not exceed. It never allocates.

/// How many samples fell into each bucket; the last one holds all that is above.
#[derive(Debug)]
pub(super) struct Decaying {
    buckets: [u32; Self::BUCKETS],
}

impl Decaying {
    /// How many buckets there are.
    const BUCKETS: usize = 256;

    /// No sample yet.
    pub(super) const fn new() -> Self {
        Self { buckets: [0; Self::BUCKETS] }
    }

    /// Counts a sample of `value`, in units of the bucket's width.
    #[inline]
    pub(super) fn count(&mut self, value: i64) {
        let bucket = usize::try_from(value).unwrap_or(0).min(Self::BUCKETS - 1);
        self.buckets[bucket] = self.buckets[bucket].saturating_add(1);
    }

    /// From here on all samples so far count a quarter less, those of a bucket at least by one: rare ones are forgotten soon.
    pub(super) fn age(&mut self) {
        for count in &mut self.buckets {
            *count = count.saturating_sub((*count >> 2).saturating_add(u32::from(*count & 3 != 0)));
        }
    }

    /// The upper bound, in units of a bucket, of `permille` of the samples; `None` without samples.
    pub(super) fn covered(&self, permille: u64) -> Option<i64> {
        let add = |sum: u64, count: &u32| sum.saturating_add(u64::from(*count));
        let total = self.buckets.iter().fold(0, add);
        let wanted = total.saturating_mul(permille).saturating_add(999) / 1000;
        let mut seen = 0u64;
        let mut covered = Self::BUCKETS as i64;
        for (bucket, count) in (1_i64..257).zip(&self.buckets) {
            seen = seen.saturating_add(u64::from(*count));
            if seen >= wanted {
                covered = bucket;
                break;
            }
        }
        (total > 0).then_some(covered)
    }
}
