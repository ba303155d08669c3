// SPDX-License-Identifier: Apache-2.0
//! Chance from a seed (splitmix64). In: a seed. Out: the same numbers for ever, on every machine.

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed ^ 0x6b74_736e_2d73_696d)
    }

    /// A stream of its own for one purpose, so that a draw more in one place does not shift all others.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self(self.word())
    }

    /// The next 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number from `low` up to, but not including, `high` (`low` where the range is empty).
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        let span = high.saturating_sub(low);
        if span == 0 { low } else { low + ((u128::from(self.word()) * u128::from(span)) >> 64) as u64 }
    }

    /// True in `permille` of a thousand draws.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.between(0, 1000) < u64::from(permille)
    }

    /// A signed number of at most `largest` either way.
    pub fn either_way(&mut self, largest: u64) -> i64 {
        self.between(0, 2 * largest + 1) as i64 - largest as i64
    }

    /// One of `choices`, which is not empty.
    pub fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.between(0, choices.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_and_seeds_repeat() {
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..10_000 {
            let drawn = a.between(3, 9);
            assert!((3..9).contains(&drawn));
            assert_eq!(drawn, b.between(3, 9));
            assert!(a.either_way(5).abs() <= 5);
            b.either_way(5);
        }
        assert_eq!(a.between(4, 4), 4);
        assert_ne!(Random::new(1).word(), Random::new(2).word());
    }
}
