// SPDX-License-Identifier: Apache-2.0
//! Target `expect`: the predictor with any events and misses, in any order.
//!
//! In: an octet that chooses the clock, whether a period is known and where the clock begins, then steps: an octet that chooses
//! what happens, and the octets of its gap or instant. After each step the promises are held for instants near the last event and at
//! the ends of the clock: what is expected comes after what was asked for, its spread and the period are in their bounds. At the end
//! every stream is given up after a bounded number of misses.

use ktsn_expect::predictor::{PERIOD_MAX, PERIOD_MIN, SPREAD_MAX, SPREAD_MIN, TRACKS};
use ktsn_expect::{Predictor, Seen};
use ktsn_time::{Instant, Monotonic, Nanos, Tai};

/// A miss costs a track one of eight at least.
const MISSES_MAX: usize = 8 * TRACKS;

/// Feeds `data` to a predictor.
///
/// # Panics
/// When an invariant does not hold.
pub fn expect(data: &[u8]) {
    let Some((first, octets)) = data.split_first() else { return };
    if first & 1 == 0 {
        run::<Monotonic>(*first, octets)
    } else {
        run::<Tai>(*first, octets)
    };
}

/// The octets of a step.
struct Octets<'a>(&'a [u8]);

impl Octets<'_> {
    /// The next `count` octets as a number, little endian; missing ones are zero.
    fn number(&mut self, count: usize) -> u64 {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken.iter().rev().fold(0, |number, octet| number << 8 | u64::from(*octet))
    }
}

/// How often an event was expected.
fn run<I: Instant>(choice: u8, octets: &[u8]) -> usize {
    let mut octets = Octets(octets);
    let mut predictor = Predictor::<I>::new();
    if choice & 2 != 0 {
        predictor = Predictor::with_period(Nanos::new(octets.number(8).cast_signed()));
    }
    let (mut now, mut gap) = (if choice & 4 == 0 { 1 << 40 } else { octets.number(8) }, 1_000_000);
    let mut expected = 0;
    while !octets.0.is_empty() {
        let step = octets.number(1);
        let how = if step & 8 == 0 { Seen::Exact } else { Seen::NotAfter };
        match step & 7 {
            0 => gap = octets.number(3),
            1 => gap = octets.number(5),
            2 => now = octets.number(8),
            3 => now = now.saturating_sub(octets.number(4)),
            4 => {
                let next = predictor.expected(I::from_nanos(now)).map(|next| next.at);
                next.into_iter().for_each(|at| predictor.missed(at));
                continue;
            }
            5 if step & 16 != 0 => {
                predictor.set_period(Nanos::new(octets.number(8).cast_signed()));
                continue;
            }
            5 => {
                predictor.missed(I::from_nanos(octets.number(8)));
                continue;
            }
            // Events one gap apart, give or take a little.
            _ => {}
        }
        let repeats = if step & 7 < 6 { 1 } else { 1 + (step >> 4) };
        for _ in 0..repeats {
            now = now.saturating_add(gap).saturating_sub(if step & 7 == 7 { octets.number(2) } else { 0 });
            predictor.observe(I::from_nanos(now), how);
            expected += usize::from(keeps_promises(&predictor, now));
        }
        keeps_promises(&predictor, now);
    }
    gives_up(predictor, now);
    expected
}

fn keeps_promises<I: Instant>(predictor: &Predictor<I>, now: u64) -> bool {
    let period = predictor.period();
    assert_eq!(predictor.is_locked(), period.is_some());
    assert!(period.is_none_or(|period| (PERIOD_MIN..=PERIOD_MAX).contains(&period)), "{period:?}");
    let next = |after: u64| {
        let next = predictor.expected(I::from_nanos(after))?;
        assert!(next.at.as_nanos() > after, "{} after {after}", next.at.as_nanos());
        assert!((SPREAD_MIN..=SPREAD_MAX).contains(&next.spread), "{:?}", next.spread);
        assert!(predictor.is_locked());
        Some(next.at.as_nanos())
    };
    let first = next(now);
    for after in [0, now.saturating_sub(1 << 20), u64::MAX - 1, u64::MAX] {
        next(after);
    }
    if let Some(first) = first {
        assert_eq!(next(first - 1), Some(first), "nothing comes in between");
        assert!(next(first).is_none_or(|second| second > first));
    }
    first.is_some()
}

/// Misses alone end every stream.
fn gives_up<I: Instant>(mut predictor: Predictor<I>, now: u64) {
    let mut misses = 0;
    while let Some(next) = predictor.expected(I::from_nanos(now)) {
        predictor.missed(next.at);
        misses += 1;
        assert!(misses <= MISSES_MAX, "it is not given up");
    }
}

#[cfg(test)]
mod tests {
    use super::run;
    use ktsn_time::Monotonic;

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_expect_gets_far() {
        let expected = |data: &[u8]| run::<Monotonic>(data[0], &data[1..]);
        assert!(expected(include_bytes!("../corpus/expect/grid.bin")) > 10);
        assert!(expected(include_bytes!("../corpus/expect/known.bin")) > 10);
        assert!(expected(include_bytes!("../corpus/expect/set.bin")) > 10);
        assert!(expected(include_bytes!("../corpus/expect/end-of-clock.bin")) > 0);
        assert!(expected(include_bytes!("../corpus/expect/two.bin")) > 10);
    }
}
