// SPDX-License-Identifier: Apache-2.0
//! A set of small numbers: which ports have something queued. In: a number. Out: the numbers in it, in ascending order; a
//! look at none costs a word for each 64. It allocates when it is made, never later.

/// See the module.
#[derive(Debug)]
pub(super) struct Busy(Box<[u64]>);

impl Busy {
    /// Room for numbers below `count`.
    pub(super) fn new(count: usize) -> Self {
        Self(vec![0; count.div_ceil(64)].into_boxed_slice())
    }

    /// Adds a number; one that there is no room for is nobody's.
    #[inline]
    pub(super) fn insert(&mut self, number: usize) {
        if let Some(word) = self.0.get_mut(number / 64) {
            *word |= 1 << (number % 64);
        }
    }

    /// Takes a number out.
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
            let (mut busy, mut set) = (Busy::new(192), BTreeSet::new());
            for (number, is_in) in steps {
                if is_in {
                    busy.insert(number);
                    set.extend(Some(number).filter(|number| *number < 192));
                } else {
                    busy.remove(number);
                    set.remove(&number);
                }
            }
            prop_assert_eq!(busy.next(from), set.range(from..).next().copied());
        }
    }
}
