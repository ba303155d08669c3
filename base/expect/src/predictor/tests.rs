// SPDX-License-Identifier: Apache-2.0
use ktsn_time::Monotonic;

use super::*;

const MILLI: u64 = 1_000_000;

fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

#[test]
fn locks_on_one_stream_and_gives_up_when_it_stops() {
    let mut predictor = Predictor::<Monotonic>::new();
    let start = 5_000 * MILLI;
    assert_eq!(predictor.expected(at(start)), None);
    for event in 0..10 {
        predictor.observe(at(start + event * MILLI), Seen::Exact);
    }
    assert_eq!(predictor.period(), Some(Nanos::from_millis(1)));
    let next = predictor.expected(at(start + 9 * MILLI)).unwrap();
    assert_eq!(next.at, at(start + 10 * MILLI));
    assert!(next.spread <= Span::from_nanos(2_000));
    let later = predictor.expected(at(start + 11 * MILLI)).unwrap();
    assert_eq!(later.at, at(start + 12 * MILLI));
    for event in 10..14 {
        assert!(predictor.is_locked());
        predictor.missed(at(start + event * MILLI));
    }
    assert_eq!((predictor.is_locked(), predictor.period()), (false, None));
}

#[test]
fn a_known_period_locks_sooner() {
    let events_until_locked = |mut predictor: Predictor<Monotonic>| {
        let mut events = 0;
        while !predictor.is_locked() {
            events += 1;
            predictor.observe(at(events * MILLI), Seen::Exact);
        }
        events
    };
    assert!(
        events_until_locked(Predictor::with_period(Nanos::from_millis(1)))
            < events_until_locked(Predictor::new())
    );
}
