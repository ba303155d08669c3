// SPDX-License-Identifier: Apache-2.0
//! When to stop sleeping: the spin margin.
//!
//! In: how long each timed sleep was meant to take, and how late it ended. Out: the margin to wake ahead of an event.
//!
//! ```text
//!        sleep                       spin
//! ───────────────────────┬─lateness─┬─────────────────┬──►
//!                   wake target   awake             event
//!                        └────────── margin ──────────┘
//! ```
//!
//! A processor that sleeps for long wakes later than one that sleeps for a moment, so each length of sleep has its own margin.
//! Short sleeps are followed by the spin. Each that ends later than its margin makes the margin 7.96 µs longer, each other one makes it
//! 0.04 µs shorter: so one in 200 is later, however the machine changes, as long as the margin is between its bounds (a quantile by
//! Robbins and Monro, 1951; with a fixed step the quantile follows changes: Gibbs and Candès, "Adaptive Conformal Inference Under
//! Distribution Shift", 2021). Longer sleeps are followed by a short one where the margin leaves time for it, and so cost no spinning:
//! their margin covers all of the last 64.
//!
//! A sleeper can begin with what an earlier one on this machine had learnt. ktsnd's worker sleeps no longer than a length as long as it
//! has slept less than 16 times for that length ([`Margin::practice`]): it learns from sleeps between frames too.

use ktsn_time::Nanos;

/// A short sleep that ends later than the margin makes it so much longer: 199 times [`LESS`].
const MORE: Nanos = Nanos::new(7_960);
/// Any other short sleep makes it so much shorter.
const LESS: Nanos = Nanos::new(40);
/// So many longer sleeps are remembered.
const RECENT: usize = 64;
/// Least margin. After a short sleep the frame is built and the way into the kernel is warmed up.
const SMALLEST: Nanos = Nanos::from_micros(12);
const RESERVE: Nanos = Nanos::from_micros(2);
/// Sleeps of each length after which its margin is a measured one: a short one's has come down from any other by then, or most of the way.
const MEASURED_FROM: [u32; Length::COUNT] = [1_500, 16, 16];
/// Sleeps of each length before a sleeper has practised enough, and how long those are.
const PRACTICE: [(u32, Nanos); Length::COUNT] =
    [(16, Nanos::from_millis(1)), (16, Nanos::from_millis(8)), (16, Nanos::from_millis(40))];
/// Greatest margins. One of a short sleep is spun.
const LARGEST: Margins = Margins([Nanos::from_micros(120), Nanos::from_micros(600), Nanos::from_millis(2)]);

/// How long a sleep is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Length {
    Short,
    Medium,
    Long,
}

impl Length {
    const COUNT: usize = 3;

    fn of(span: Nanos) -> Self {
        if span <= Nanos::from_millis(3) {
            Self::Short
        } else if span <= Nanos::from_millis(30) {
            Self::Medium
        } else {
            Self::Long
        }
    }
}

/// A margin for each length of sleep: up to 3 ms, up to 30 ms, longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins(pub [Nanos; Length::COUNT]);

impl Margins {
    /// These margins, within their bounds.
    #[must_use]
    pub fn bounded(self) -> Self {
        let mut bounded = self.0;
        for (margin, largest) in bounded.iter_mut().zip(LARGEST.0) {
            *margin = (*margin).clamp(SMALLEST, largest);
        }
        Self(bounded)
    }

    /// The margin of a sleep of `span`.
    #[inline]
    #[must_use]
    pub fn of(&self, span: Nanos) -> Nanos {
        self.0[Length::of(span) as usize]
    }

    /// The margins of a machine that nothing is known of.
    pub const AT_START: Self =
        Self([Nanos::from_micros(60), Nanos::from_micros(150), Nanos::from_micros(300)]);
}

/// The latenesses of the last longer sleeps of one length, in microseconds.
#[derive(Debug)]
struct Recent {
    micros: [u32; RECENT],
    turn: usize,
}

impl Recent {
    const fn new() -> Self {
        Self { micros: [0; RECENT], turn: 0 }
    }

    fn count(&mut self, micros: i64) {
        if let Some(place) = self.micros.get_mut(self.turn) {
            *place = u32::try_from(micros.max(0)).unwrap_or(u32::MAX);
        }
        self.turn = self.turn.wrapping_add(1) % RECENT;
    }

    fn longest(&self) -> Nanos {
        let longest = self.micros.iter().max().copied().unwrap_or(0);
        Nanos::from_micros(i64::from(longest))
    }
}

/// How long before an event the sleeper wakes.
#[derive(Debug)]
pub struct Margin {
    /// Of medium and long sleeps.
    longer: [Recent; 2],
    seen: [u32; Length::COUNT],
    current: Margins,
    adaptive: bool,
}

impl Margin {
    /// A margin that follows the measured lateness of wake-ups. It begins with `known`, what an earlier sleeper on this machine had
    /// learnt, or with [`Margins::AT_START`].
    #[must_use]
    pub fn adaptive(known: Option<Margins>) -> Self {
        Self::with(known.unwrap_or(Margins::AT_START).bounded(), true)
    }

    /// A margin that begins with [`Margins::AT_START`] and follows the measured lateness of wake-ups: for a `static`.
    #[must_use]
    pub const fn new() -> Self {
        Self::with(Margins::AT_START, true)
    }

    /// A margin that stays.
    #[must_use]
    pub const fn fixed(margin: Nanos) -> Self {
        Self::with(Margins([margin; Length::COUNT]), false)
    }

    const fn with(current: Margins, adaptive: bool) -> Self {
        Self { longer: [Recent::new(), Recent::new()], seen: [0; Length::COUNT], current, adaptive }
    }

    /// The margin of a short sleep now: how long the sleeper spins at most.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Nanos {
        self.current.0[0]
    }

    /// The margins of all lengths of sleep now.
    #[inline]
    #[must_use]
    pub fn margins(&self) -> Margins {
        self.current
    }

    /// The margin of a sleep of `span` now.
    #[inline]
    #[must_use]
    pub fn of(&self, span: Nanos) -> Nanos {
        self.current.of(span)
    }

    /// What was learnt: for each length of sleep its margin, where it is a measured one.
    #[must_use]
    pub fn learnt(&self) -> [Option<Nanos>; 3] {
        let mut learnt = self.current.0.map(Some);
        for ((margin, seen), from) in learnt.iter_mut().zip(self.seen).zip(MEASURED_FROM) {
            *margin = margin.filter(|_| self.adaptive && seen >= from);
        }
        learnt
    }

    /// The longest sleep from which something is to be learnt now; `None`: any.
    #[must_use]
    pub fn practice(&self) -> Option<Nanos> {
        if !self.adaptive {
            return None;
        }
        let is_wanted = |(seen, (wanted, _)): &(&u32, &(u32, Nanos))| *seen < wanted;
        self.seen.iter().zip(&PRACTICE).find(is_wanted).map(|(_, (_, span))| *span)
    }

    /// Learns from a sleep of `span` that ended so late.
    pub fn observe(&mut self, span: Nanos, lateness: Nanos) {
        if !self.adaptive {
            return;
        }
        let length = Length::of(span);
        let at = length as usize;
        self.seen[at] = self.seen[at].saturating_add(1);
        let margin = &mut self.current.0[at];
        match length {
            Length::Short if lateness > *margin => *margin = margin.saturating_add(MORE),
            Length::Short => *margin = margin.saturating_sub(LESS),
            Length::Medium | Length::Long => {
                let recent = &mut self.longer[at - 1];
                recent.count(lateness.get() / 1000);
                if self.seen[at] >= MEASURED_FROM[at] {
                    *margin = recent.longest().saturating_add(RESERVE);
                }
            }
        }
        self.current = self.current.bounded();
    }
}

impl Default for Margin {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHORT: Nanos = Nanos::from_millis(1);
    const LONG: Nanos = Nanos::from_millis(250);

    proptest! {
        /// Whatever the latenesses are, the share of short sleeps that are later than the margin is one in 200 in the long run. What the
        /// margin can rise or fall at most between its bounds is the difference.
        #[test]
        fn one_short_sleep_in_200_is_later(
            regimes in proptest::collection::vec((13_000i64..90_000, 1i64..20_000, 1usize..2_000), 1..12),
            seed in any::<u64>(),
        ) {
            let (mut margin, mut random) = (Margin::new(), seed | 1);
            let (mut count, mut later) = (0, 0);
            for (least, spread, sleeps) in regimes {
                for _ in 0..sleeps {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let lateness = Nanos::new(least + (random % spread.unsigned_abs()).cast_signed());
                    count += 1;
                    later += i64::from(lateness > margin.get());
                    margin.observe(SHORT, lateness);
                    prop_assert!((SMALLEST..=LARGEST.0[0]).contains(&margin.get()));
                }
            }
            let rise = LARGEST.0[0].get() / MORE.get() + 1;
            prop_assert!((later - count / 200).abs() <= rise, "{later} of {count}");
        }

        /// Of longer sleeps the margin covers all of the last ones, and stays in its bounds.
        #[test]
        fn covers_the_last_longer_sleeps(
            late in proptest::collection::vec(-5_000i64..400_000, 128),
            span in prop_oneof![Just(Nanos::from_millis(10)), Just(LONG)],
        ) {
            let mut margin = Margin::new();
            for l in &late {
                margin.observe(span, Nanos::new(*l));
            }
            let (m, largest) = (margin.of(span), LARGEST.0[Length::of(span) as usize]);
            prop_assert!(m >= SMALLEST && m <= largest);
            prop_assert!(m == largest || late[128 - RECENT..].iter().all(|l| Nanos::new(*l) <= m), "{m}");
        }

        /// One length of sleep teaches nothing about another.
        #[test]
        fn each_length_has_its_own(late in proptest::collection::vec(0i64..3_000_000, 1..200)) {
            let mut margin = Margin::new();
            for l in &late {
                margin.observe(LONG, Nanos::new(*l));
            }
            prop_assert_eq!((margin.of(SHORT), margin.get()), (Margins::AT_START.0[0], Margins::AT_START.0[0]));
            prop_assert_eq!(margin.of(Nanos::from_millis(10)), Margins::AT_START.0[1]);
        }
    }

    #[test]
    fn a_fixed_margin_stays() {
        let mut margin = Margin::fixed(Nanos::from_micros(33));
        for _ in 0..1000 {
            margin.observe(SHORT, Nanos::from_micros(150));
            margin.observe(LONG, Nanos::from_micros(1500));
        }
        assert_eq!((margin.get(), margin.of(LONG)), (Nanos::from_micros(33), Nanos::from_micros(33)));
        assert_eq!((margin.practice(), margin.learnt()), (None, [None; 3]));
    }

    /// A machine that calms down or gets busy is followed: up within a few sleeps, down within thousands.
    #[test]
    fn the_margin_follows_the_machine() {
        let mut margin = Margin::new();
        for _ in 0..8 {
            margin.observe(SHORT, Nanos::from_micros(100));
            margin.observe(LONG, Nanos::from_micros(700));
        }
        assert!(margin.get() > Nanos::from_micros(99));
        for _ in 0..3_000 {
            margin.observe(SHORT, Nanos::from_micros(10));
            margin.observe(LONG, Nanos::from_micros(20));
        }
        assert_eq!(margin.get(), SMALLEST);
        assert_eq!(margin.of(LONG), Nanos::from_micros(22));
    }

    #[test]
    fn begins_with_what_is_known_and_measures_soon() {
        let known = Margins([Nanos::from_micros(20), Nanos::from_micros(30), Nanos::from_seconds(1)]);
        let mut margin = Margin::adaptive(Some(known));
        assert_eq!((margin.get(), margin.of(LONG)), (Nanos::from_micros(20), LARGEST.0[2]));
        let mut practised = 0;
        while let Some(span) = margin.practice() {
            margin.observe(span, Nanos::from_micros(50));
            practised += 1;
            assert!(practised < 1000);
        }
        let longer = Some(Nanos::from_micros(52));
        assert_eq!(margin.learnt(), [None, longer, longer], "short sleeps take longer to teach");
        (0..1_500).for_each(|_| margin.observe(SHORT, Nanos::from_micros(50)));
        assert!(
            margin.learnt()[0].is_some_and(|short| (48..=58).contains(&(short.get() / 1000))),
            "{margin:?}"
        );
    }
}
