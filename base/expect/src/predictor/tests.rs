// SPDX-License-Identifier: Apache-2.0
use ktsn_time::{Monotonic, Tai};

use super::*;

const MICRO: u64 = 1_000;
const MILLI: u64 = 1_000_000;
const START: u64 = 5_000 * MILLI;

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

/// A predictor that has seen so many events of a stream.
fn seen(events: u64, period: u64, how: Seen) -> Predictor<Monotonic> {
    let mut predictor = Predictor::new();
    for event in 0..events {
        predictor.observe(at(START + event * period), how);
    }
    predictor
}

fn next(predictor: &Predictor<Monotonic>, after: u64) -> (u64, u64) {
    let next = predictor.expected(at(after)).expect("an event is expected");
    (next.at.as_nanos(), next.spread.as_nanos())
}

#[test]
fn a_predictor_is_small() {
    assert!(size_of::<Predictor<Tai>>() <= 288, "{}", size_of::<Predictor<Tai>>());
}

#[test]
fn five_even_events_lock_and_four_misses_end_it() {
    assert!(!seen(4, MILLI, Seen::Exact).is_locked());
    let mut predictor = seen(5, MILLI, Seen::Exact);
    assert_eq!(predictor.period(), Some(Nanos::from_millis(1)));
    let last = START + 4 * MILLI;
    assert_eq!(next(&predictor, last), (last + MILLI, MICRO));
    assert_eq!(next(&predictor, last + MILLI - 1), (last + MILLI, MICRO));
    assert_eq!(next(&predictor, last + MILLI), (last + 2 * MILLI, MICRO));
    assert_eq!(next(&predictor, last + 20 * MILLI + 1).0, last + 21 * MILLI);
    assert_eq!(predictor.expected(at(last + 40 * MILLI)), None, "the phase is not known so far ahead");
    for slot in 1..=4 {
        let (expected, _) = next(&predictor, last + (slot - 1) * MILLI);
        assert_eq!(expected, last + slot * MILLI);
        predictor.missed(at(expected + 1));
        predictor.missed(at(expected));
        predictor.missed(at(expected));
    }
    assert_eq!(
        (predictor.is_locked(), predictor.period(), predictor.expected(at(last))),
        (false, None, None)
    );
}

#[test]
fn the_clock_of_tai_works_the_same() {
    let mut predictor = Predictor::<Tai>::default();
    for event in 0..5 {
        predictor.observe(Tai::from_nanos(START + event * MILLI), Seen::Exact);
    }
    let next = predictor.expected(Tai::from_nanos(START + 4 * MILLI)).unwrap();
    assert_eq!(next.at, Tai::from_nanos(START + 5 * MILLI));
}

#[test]
fn a_known_period_locks_with_four_events() {
    let mut predictor = Predictor::with_period(Nanos::from_millis(1));
    for (event, is_locked) in [(0, false), (1, false), (2, false), (3, true)] {
        predictor.observe(at(START + event * MILLI), Seen::Exact);
        assert_eq!(predictor.is_locked(), is_locked);
    }
    for out_of_bounds in [-1, 0, 49_999, 10_000_000_001, i64::MIN, i64::MAX] {
        assert_eq!(Predictor::<Tai>::with_period(Nanos::new(out_of_bounds)).known, 0);
    }
}

/// How many even events of `period` lock a predictor that takes `known` for the period.
fn events_to_lock(known: Nanos, period: u64) -> Option<u64> {
    let mut predictor = Predictor::with_period(known);
    (1..=100).find(|event| {
        predictor.observe(at(START + event * period), Seen::Exact);
        predictor.is_locked()
    })
}

/// A wrong period costs nothing: the stream is learnt from its arrivals, as with none, and its own period is what is followed.
#[test]
fn a_wrong_period_is_learnt_from_arrivals() {
    for period in [900 * MICRO, MILLI, 7 * MILLI, 10_000 * MILLI] {
        let own = Nanos::new(period.cast_signed());
        assert_eq!((events_to_lock(Nanos::ZERO, period), events_to_lock(own, period)), (Some(5), Some(4)));
        for wrong in [50 * MICRO, 2 * MILLI, 5 * MILLI, 9_900 * MILLI] {
            assert_eq!(
                events_to_lock(Nanos::new(wrong.cast_signed()), period),
                Some(5),
                "{wrong} for {period}"
            );
        }
    }
    let mut predictor = Predictor::with_period(Nanos::from_millis(2));
    for event in 0..5 {
        predictor.observe(at(START + event * MILLI), Seen::Exact);
    }
    assert_eq!(predictor.period(), Some(Nanos::from_millis(1)));
    assert_eq!(next(&predictor, START + 4 * MILLI).0, START + 5 * MILLI);
}

/// A period that the caller gets to know later helps from then on, and a stream that is followed already goes on.
#[test]
fn a_period_can_be_set_at_any_time() {
    let mut predictor = seen(3, MILLI, Seen::Exact);
    predictor.set_period(Nanos::from_millis(1));
    predictor.observe(at(START + 3 * MILLI), Seen::Exact);
    assert!(predictor.is_locked(), "the fourth event, as with a period from the beginning");
    for other in [Nanos::from_millis(3), Nanos::from_millis(1), Nanos::ZERO] {
        predictor.set_period(other);
        assert_eq!(next(&predictor, START + 3 * MILLI).0, START + 4 * MILLI);
    }
    predictor = seen(3, MILLI, Seen::Exact);
    predictor.set_period(Nanos::from_millis(1));
    predictor.set_period(Nanos::ZERO);
    predictor.observe(at(START + 3 * MILLI), Seen::Exact);
    assert!(!predictor.is_locked(), "it is forgotten again");
}

#[test]
fn periods_out_of_bounds_never_lock() {
    for period in [1, 10 * MICRO, 24 * MICRO, 10_001 * MILLI, 1_000_000 * MILLI] {
        assert_eq!(seen(100, period, Seen::Exact).period(), None, "{period}");
    }
    // Of shorter ones a multiple may be found that is in bounds.
    for period in [26 * MICRO, 49 * MICRO] {
        let found = seen(100, period, Seen::Exact).period();
        assert!(found.is_none_or(|found| found >= PERIOD_MIN), "{period}: {found:?}");
    }
    for period in [50 * MICRO, 10_000 * MILLI] {
        assert_eq!(seen(20, period, Seen::Exact).period(), Some(Nanos::new(period.cast_signed())));
    }
}

/// While the thread is woken for each event, the spread covers its lateness; the first exact event gives the phase.
#[test]
fn the_first_exact_event_gives_the_phase() {
    let mut predictor = seen(10, MILLI, Seen::NotAfter);
    let last = START + 9 * MILLI;
    assert_eq!(next(&predictor, last), (last + MILLI - 30 * MICRO, 31 * MICRO));
    predictor.observe(at(last + MILLI - 44 * MICRO), Seen::Exact);
    assert_eq!(next(&predictor, last + MILLI), (last + 2 * MILLI - 44 * MICRO, MICRO));
    // Woken 20 µs after the slot: the event may have come at the slot, and nothing is learnt.
    predictor.observe(at(last + 2 * MILLI - 24 * MICRO), Seen::NotAfter);
    assert_eq!(next(&predictor, last + 2 * MILLI), (last + 3 * MILLI - 44 * MICRO, MICRO));
}

#[test]
fn two_streams_are_expected_side_by_side_and_a_doubled_rate_is_one_stream() {
    let mut predictor = Predictor::new();
    for event in 0..24 {
        predictor.observe(at(START + event * MILLI), Seen::Exact);
        predictor.observe(at(START + event * MILLI + 300 * MICRO), Seen::Exact);
    }
    let last = START + 23 * MILLI;
    assert_eq!(predictor.period(), Some(Nanos::from_millis(1)));
    assert_eq!(next(&predictor, last + 300 * MICRO).0, last + 1_000 * MICRO);
    assert_eq!(next(&predictor, last + 1_000 * MICRO).0, last + 1_300 * MICRO);

    let mut predictor = seen(10, MILLI, Seen::Exact);
    for event in 1..20 {
        predictor.observe(at(START + 9 * MILLI + event * MILLI / 2), Seen::Exact);
    }
    assert_eq!(predictor.period(), Some(Nanos::from_micros(500)));
    assert_eq!(predictor.tracks.iter().filter(|track| track.is_used()).count(), 1);
}

/// A frame of another program shortly before the slot neither takes the slot nor widens the spread.
#[test]
fn a_stray_event_before_the_slot_changes_nothing() {
    let mut predictor = seen(10, MILLI, Seen::Exact);
    let last = START + 9 * MILLI;
    predictor.observe(at(last + 985 * MICRO), Seen::Exact);
    assert_eq!(next(&predictor, last + 985 * MICRO), (last + MILLI, MICRO));
    predictor.observe(at(last + MILLI), Seen::Exact);
    assert_eq!(next(&predictor, last + MILLI), (last + 2 * MILLI, MICRO));
    // Where no better one comes, it was the stream's.
    predictor.observe(at(last + 1_985 * MICRO), Seen::Exact);
    predictor.missed(at(last + 2 * MILLI));
    let (expected, spread) = next(&predictor, last + 2_100 * MICRO);
    assert!(expected < last + 3 * MILLI && spread > MICRO);
    predictor.observe(at(last + 2_985 * MICRO), Seen::Exact);
    assert!(next(&predictor, last + 3 * MILLI).0.abs_diff(last + 3_985 * MICRO) < MICRO);
}

#[test]
fn a_step_of_the_phase_is_followed_with_the_second_event() {
    let mut predictor = seen(10, MILLI, Seen::Exact);
    let last = START + 9 * MILLI;
    for slot in 1..=2 {
        predictor.missed(at(last + slot * MILLI));
        predictor.observe(at(last + slot * MILLI + 200 * MICRO), Seen::Exact);
    }
    assert_eq!(next(&predictor, last + 2_300 * MICRO).0, last + 3_200 * MICRO);
}

/// A clock that is set back ends the stream, and it is learnt again.
#[test]
fn a_clock_that_is_set_back_is_survived() {
    let mut predictor = seen(10, MILLI, Seen::Exact);
    for event in 0..10 {
        predictor.observe(at(START - 900 * MILLI + event * MILLI), Seen::Exact);
    }
    let now = START - 891 * MILLI;
    assert_eq!(next(&predictor, now).0, now + MILLI);
}

#[test]
fn the_ends_of_the_clock_do_no_harm() {
    for how in [Seen::Exact, Seen::NotAfter] {
        let mut predictor = Predictor::<Monotonic>::new();
        for event in (0..8).rev() {
            predictor.observe(at(u64::MAX - event * MILLI), how);
        }
        assert!(predictor.expected(at(u64::MAX)).is_none());
        for instant in [0, u64::MAX, 1, u64::MAX - 1, 0, 1 << 63, u64::MAX] {
            predictor.observe(at(instant), how);
            predictor.missed(at(instant));
            assert!(predictor.expected(at(instant)).is_none_or(|next| next.at.as_nanos() > instant));
        }
    }
}
