// SPDX-License-Identifier: Apache-2.0
//! The predictor against its slow reference, event by event, on generated arrivals.

mod reference;

use ktsn_expect::predictor::{PERIOD_MAX, PERIOD_MIN, SPREAD_MAX};
use ktsn_expect::{Predictor, Seen};
use ktsn_time::{Monotonic, Nanos};
use proptest::prelude::*;
use reference::Reference;

/// What a caller does next.
#[derive(Clone, Debug)]
enum Step {
    /// An event so many nanoseconds after the last one (before, where negative).
    Event(i64, bool),
    /// The expected event did not come.
    Miss,
    /// The event after the expected one did not come.
    SecondMiss,
    /// A miss that was never expected.
    StrayMiss(u64),
    /// The caller learns another period.
    Known(u64),
}

/// Both predictors, held against each other after each step.
struct Pair {
    fast: Predictor<Monotonic>,
    slow: Reference,
    now: u64,
    /// Steps after which an event was expected.
    locked: usize,
}

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

/// A period as the reference takes it.
fn in_bounds(known: &u64) -> bool {
    (PERIOD_MIN.get() as u64..=PERIOD_MAX.get() as u64).contains(known)
}

impl Pair {
    fn new(known: Option<u64>, now: u64) -> Self {
        let fast = known.map_or(Predictor::new(), |known| Predictor::with_period(Nanos::new(known as i64)));
        Self { fast, slow: Reference::new(known.filter(in_bounds)), now, locked: 0 }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Event(gap, is_exact) => {
                self.now = self.now.saturating_add_signed(gap);
                let how = if is_exact { Seen::Exact } else { Seen::NotAfter };
                self.fast.observe(at(self.now), how);
                self.slow.observe(self.now, how);
            }
            Step::Miss | Step::SecondMiss => {
                let mut next = self.fast.expected(at(self.now));
                if let (Step::SecondMiss, Some(first)) = (step, next) {
                    next = self.fast.expected(first.at);
                }
                if let Some(next) = next {
                    self.fast.missed(next.at);
                    self.slow.missed(next.at.as_nanos());
                }
            }
            Step::StrayMiss(nanos) => {
                self.fast.missed(at(nanos));
                self.slow.missed(nanos);
            }
            Step::Known(known) => {
                self.fast.set_period(Nanos::new(known.cast_signed()));
                self.slow.known = Some(known).filter(in_bounds).map(i128::from);
            }
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<(), TestCaseError> {
        let mut after = self.now.saturating_sub(2_000_000);
        // The next slots, and such as lie further ahead than any that can be known.
        for ahead in [1, 0, 0, 0, 500_000, 3_000_000, 40_000_000, 1 << 40, u64::MAX] {
            let fast = self.fast.expected(at(after)).map(|next| (next.at.as_nanos(), next.spread.as_nanos()));
            prop_assert_eq!(fast, self.slow.expected(after), "after {}", after);
            prop_assert!(fast.is_none_or(|(at, spread)| at > after && spread <= SPREAD_MAX.as_nanos()));
            self.locked += usize::from(fast.is_some() && ahead == 1);
            after = fast.map_or(after, |(at, _)| at).saturating_add(ahead);
        }
        prop_assert_eq!(self.fast.period().map(Nanos::get), self.slow.period());
        prop_assert_eq!(self.fast.is_locked(), self.slow.period().is_some());
        Ok(())
    }
}

/// Streams on one socket as steps: each with its period, phase, jitter and losses, one after the other in parts.
fn streams() -> impl Strategy<Value = Vec<Step>> {
    let period = prop_oneof![
        60_000u64..300_000,
        Just(1_000_000),
        900_000u64..1_200_000,
        2_000_000u64..20_000_000,
        1_000_000_000u64..9_000_000_000
    ];
    let jitter = prop_oneof![Just(1u64), Just(500), Just(5_000), Just(45_000)];
    let stream = (period, 0u64..1_000_000, jitter, 0u32..4);
    let part = (proptest::collection::vec(stream, 1..=5), 10usize..80, any::<u64>());
    proptest::collection::vec(part, 1..4).prop_map(|parts| {
        let (mut steps, mut now) = (Vec::new(), 0u64);
        for (streams, count, seed) in parts {
            let mut random = seed;
            let mut draw = move |below: u64| {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 33) % below.max(1)
            };
            let mut events = Vec::new();
            for (period, phase, jitter, losses) in streams {
                for slot in 0..count as u64 {
                    let is_lost = draw(20) < u64::from(losses);
                    let event = now + phase + slot * period + draw(jitter);
                    events.extend((!is_lost).then_some(event));
                }
            }
            events.sort_unstable();
            events.truncate(count * 2);
            for event in events {
                if draw(8) == 0 {
                    steps.push(Step::Miss);
                }
                steps.push(Step::Event(event.cast_signed() - now.cast_signed(), draw(3) > 0));
                now = event;
            }
        }
        steps
    })
}

/// Anything: events at any instant, in any order.
fn anything() -> impl Strategy<Value = Vec<Step>> {
    let gap = prop_oneof![
        6 => 0i64..3_000_000,
        6 => prop_oneof![Just(1_000_000i64), Just(100_000), Just(24_999), Just(25_000), Just(1_031_000)],
        2 => -3_000_000i64..0,
        1 => any::<i64>(),
    ];
    let step = prop_oneof![
        12 => (gap, any::<bool>()).prop_map(|(gap, is_exact)| Step::Event(gap, is_exact)),
        2 => Just(Step::Miss),
        1 => Just(Step::SecondMiss),
        1 => any::<u64>().prop_map(Step::StrayMiss),
        1 => prop_oneof![Just(0), Just(1_000_000), any::<u64>()].prop_map(Step::Known),
    ];
    proptest::collection::vec(step, 1..120)
}

fn known() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![4 => Just(None), 2 => Just(Some(1_000_000)), 1 => (0u64..20_000_000_000).prop_map(Some)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn follows_streams_as_the_reference_does(steps in streams(), known in known(), began in 0u64..1 << 50) {
        let mut pair = Pair::new(known, began);
        for step in &steps {
            pair.step(step)?;
        }
    }

    #[test]
    fn does_with_anything_what_the_reference_does(steps in anything(), known in known(), began in any::<u64>()) {
        let mut pair = Pair::new(known, began);
        for step in &steps {
            pair.step(step)?;
        }
    }
}

/// The comparison above is worth something only where both lock.
#[test]
fn generated_streams_are_locked_on() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut locked, mut steps) = (0, 0);
    for _ in 0..100 {
        let sequence = proptest::strategy::ValueTree::current(&streams().new_tree(&mut runner).unwrap());
        let mut pair = Pair::new(None, 1 << 40);
        sequence.iter().for_each(|step| pair.step(step).unwrap());
        (locked, steps) = (locked + pair.locked, steps + sequence.len());
    }
    assert!(locked * 3 > steps, "{locked} of {steps} steps");
}
