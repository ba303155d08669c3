// SPDX-License-Identifier: Apache-2.0
//! The next step of a thread that expects, by hand and against every instant around an arrival.

use super::decide::{SPIN_MAX, Step, decide};
use ktsn_expect::{Expected, Margins};
use ktsn_time::{Monotonic, Span};

const fn at(micros: u64) -> Monotonic {
    Monotonic::from_nanos(10_000_000_000 + micros * 1_000)
}

const fn micros(micros: u64) -> Span {
    Span::from_nanos(micros * 1_000)
}

const PLENTY: Span = Span::from_nanos(100_000_000);

fn expected(spread: u64) -> Option<Expected<Monotonic>> {
    Some(Expected { at: at(1_000), spread: micros(spread) })
}

fn step(now: u64, spread: u64) -> Step {
    decide(at(now), None, expected(spread), &Margins::AT_START, PLENTY)
}

#[test]
fn sleeps_until_the_margin_then_spins_until_the_end_of_the_window() {
    // Lead 990, margin of a short sleep 60.
    assert_eq!(step(0, 10), Step::Sleep(Some(at(930))));
    assert_eq!(step(929, 10), Step::Sleep(Some(at(930))));
    assert_eq!(step(930, 10), Step::Spin(at(1_010)));
    assert_eq!(step(1_009, 10), Step::Spin(at(1_010)));
    assert_eq!(step(1_010, 10), Step::Missed);
    assert_eq!(decide(at(0), None, None, &Margins::AT_START, PLENTY), Step::Sleep(None));
}

#[test]
fn a_long_sleep_is_followed_by_a_short_one() {
    let far = Some(Expected { at: at(2_000_000), spread: micros(10) });
    let next = |now| decide(at(now), None, far, &Margins::AT_START, PLENTY);
    assert_eq!(next(0), Step::Sleep(Some(at(1_999_690))));
    assert_eq!(next(1_999_700), Step::Sleep(Some(at(1_999_930))));
    assert_eq!(next(1_999_935), Step::Spin(at(2_000_010)));
}

#[test]
fn the_deadline_bounds_sleep_and_spin() {
    let next = |now, deadline| decide(at(now), Some(at(deadline)), expected(10), &Margins::AT_START, PLENTY);
    assert_eq!(next(0, 500), Step::Sleep(Some(at(500))));
    assert_eq!(next(500, 500), Step::Over);
    assert_eq!(next(940, 1_000), Step::Spin(at(1_000)));
    assert_eq!(next(1_005, 1_000), Step::Over);
    assert_eq!(next(0, 5_000), Step::Sleep(Some(at(930))));
    assert_eq!(decide(at(0), Some(at(7)), None, &Margins::AT_START, PLENTY), Step::Sleep(Some(at(7))));
}

#[test]
fn no_spin_is_longer_than_the_most_or_than_what_is_left() {
    for now in 0..3_000 {
        for spread in [1, 50, 400] {
            for left in [0, 1, 3, 90, 1_000_000] {
                let step = decide(at(now), None, expected(spread), &Margins::AT_START, micros(left));
                if let Step::Spin(until) = step {
                    let spin = until.span_since(at(now));
                    assert!(
                        spin <= SPIN_MAX && spin <= micros(left) && spin > Span::ZERO,
                        "{now} {spread} {left}"
                    );
                    assert!(left > 1, "not worth a wake-up");
                }
                if let Step::Sleep(until) = step {
                    assert!(until.is_none_or(|until| until > at(now)), "{now} {spread} {left}");
                    assert!(until.is_some() || left < 2);
                }
            }
        }
    }
}
