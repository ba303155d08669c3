// SPDX-License-Identifier: Apache-2.0
//! Where in a list a key stands, in about the same time however long the list is.
//!
//! In: keys with their positions, once. Out: the position of a key. Keys are spread over as many buckets as there are keys,
//! bucket after bucket in one array; a bucket is in order and bisected. So a look-up touches two places of memory, and
//! keys that all fall into one bucket (by chance, or because they were chosen so) cost a bisection of the list, never more.

use alloc::boxed::Box;
use alloc::vec::Vec;

/// 2^64 divided by the golden ratio: multiples of it lie evenly in 64 bits (Knuth, The Art of Computer Programming 3, 6.4).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What an [`Index`] can be asked for.
pub(crate) trait Key: Copy + Ord {
    /// The key spread over 64 bits, the upper ones well mixed.
    fn spread(self) -> u64;
}

impl Key for u32 {
    fn spread(self) -> u64 {
        u64::from(self).wrapping_mul(SPREAD)
    }
}

impl Key for u64 {
    fn spread(self) -> u64 {
        self.wrapping_mul(SPREAD)
    }
}

impl Key for u128 {
    fn spread(self) -> u64 {
        let upper = ((self >> 64) as u64).wrapping_mul(SPREAD).rotate_left(32);
        (upper ^ self as u64).wrapping_mul(SPREAD)
    }
}

/// The positions of keys in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index<K> {
    /// Where each bucket begins, and at last where the last one ends.
    starts: Box<[u32]>,
    /// Keys with positions, by bucket, then by key.
    slots: Box<[(K, u32)]>,
    /// A bucket is this many of the upper bits down.
    shift: u32,
}

impl<K: Key> Index<K> {
    /// Builds the index; of equal keys the first counts.
    pub(crate) fn new(keys: impl IntoIterator<Item = (K, u32)>) -> Self {
        let mut slots: Vec<(K, u32)> = keys.into_iter().collect();
        let buckets = slots.len().max(2).next_power_of_two();
        let shift = u64::BITS - buckets.trailing_zeros();
        let bucket = |key: K| (key.spread() >> shift) as usize;
        slots.sort_by_key(|&(key, _)| (bucket(key), key));
        slots.dedup_by_key(|&mut (key, _)| key);
        let starts = (0..=buckets).map(|at| slots.partition_point(|&(key, _)| bucket(key) < at) as u32);
        Self { starts: starts.collect(), slots: slots.into(), shift }
    }

    /// The position that was given with `key`.
    #[inline]
    pub(crate) fn find(&self, key: K) -> Option<usize> {
        let bucket = (key.spread() >> self.shift) as usize;
        let &[from, to] = self.starts.get(bucket..bucket + 2)? else { return None };
        let slots = self.slots.get(from as usize..to as usize)?;
        let found = slots.binary_search_by_key(&key, |slot| slot.0).ok()?;
        slots.get(found).map(|slot| slot.1 as usize)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::collections::BTreeMap;

    use proptest::collection::vec as many;
    use proptest::prelude::*;

    use super::*;

    /// SPREAD × this = 1 modulo 2^64 (Newton's iteration: each step doubles the right bits).
    fn inverse() -> u64 {
        (0..6).fold(1_u64, |x, _| x.wrapping_mul(2_u64.wrapping_sub(SPREAD.wrapping_mul(x))))
    }

    fn finds_what_a_map_does<K: Key + core::fmt::Debug>(keys: &[K], others: &[K]) {
        let mut map = BTreeMap::new();
        for (&key, at) in keys.iter().zip(0..) {
            map.entry(key).or_insert(at);
        }
        let index = Index::new(keys.iter().copied().zip(0_u32..));
        for key in keys.iter().chain(others) {
            assert_eq!(index.find(*key), map.get(key).copied(), "{key:?} of {keys:?}");
        }
    }

    proptest! {
        #[test]
        fn an_index_is_a_map(keys in many(any::<u32>(), 0..300), near in many(0..200_u32, 0..300), others in many(any::<u32>(), 10)) {
            finds_what_a_map_does(&keys, &others);
            finds_what_a_map_does(&near, &others);
            // Prefixes: what differs stands in the upper bits.
            let upper = |keys: &[u32]| keys.iter().map(|key| key << 24).collect::<Vec<_>>();
            finds_what_a_map_does(&upper(&near), &upper(&others));
            let wide = |keys: &[u32]| keys.iter().map(|key| u128::from(*key) << 64 | 5).collect::<Vec<_>>();
            finds_what_a_map_does(&wide(&near), &wide(&others));
        }
    }

    #[test]
    fn keys_that_were_chosen_for_one_bucket_are_found_and_cost_a_bisection() {
        assert_eq!(inverse().wrapping_mul(SPREAD), 1);
        let keys: Vec<u64> = (0..4096_u64).map(|at| at.wrapping_mul(inverse())).collect();
        let index = Index::new(keys.iter().copied().zip(0..));
        assert_eq!(index.starts[1], 4096, "all in the first bucket");
        finds_what_a_map_does(&keys, &[1, 2, u64::MAX]);
    }

    #[test]
    fn usual_networks_spread() {
        // Flannel's subnets, the ends of one underlay network, IPv6 prefixes, MAC addresses in sequence.
        let fullest = |starts: &[u32]| starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        for shift in [0, 8, 16, 20] {
            let keys = (0..1000_u32).map(|at| (0x0af4_0000 + (at << shift), at));
            assert!(fullest(&Index::new(keys).starts) <= 8, "{shift}");
        }
        for shift in [0, 48, 64, 72, 80] {
            let keys = (0..1000_u32).map(|at| ((0xfd10_0244_u128 << 96) + (u128::from(at) << shift), at));
            assert!(fullest(&Index::new(keys).starts) <= 8, "{shift}");
        }
        let keys = (0..1000_u32).map(|at| (0x0200_0000_0000 + u64::from(at), at));
        assert!(fullest(&Index::new(keys).starts) <= 8);
    }
}
