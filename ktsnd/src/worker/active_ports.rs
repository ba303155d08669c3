// SPDX-License-Identifier: Apache-2.0
//! The set of ports that have something queued.
//!
//! In: a port's number. Out: the numbers in the set, in ascending order. To find none costs one word for each 64 ports. Memory
//! is allocated when the set is made, never later.

/// A set of small numbers, one bit for each.
#[derive(Debug)]
pub(super) struct ActivePorts(Box<[u64]>);

impl ActivePorts {
    /// Room for numbers below `count`.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)].into_boxed_slice())
    }

    /// Adds a number. One that there is no room for is ignored.
    #[inline]
    pub(super) fn insert(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    /// Removes a number.
    #[inline]
    pub(super) fn remove(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / 64) {
            *word &= !(1 << (number % 64));
        }
    }

    /// The lowest number that is not below `from`.
    #[inline]
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let mut index = from / 64;
        let mut word = self.0.get(index)? & u64::MAX << (from % 64);
        while word == 0 {
            index += 1;
            word = *self.0.get(index)?;
        }
        Some(index * 64 + word.trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn behaves_like_a_set(steps in proptest::collection::vec((0usize..200, any::<bool>()), 0..100), from in 0usize..260) {
            let (mut active, mut set) = (ActivePorts::new(192), BTreeSet::new());
            for (number, is_in) in steps {
                if is_in {
                    active.insert(number);
                    set.extend(Some(number).filter(|number| *number < 192));
                } else {
                    active.remove(number);
                    set.remove(&number);
                }
            }
            prop_assert_eq!(active.next(from), set.range(from..).next().copied());
        }
    }
}
