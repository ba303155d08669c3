// SPDX-License-Identifier: Apache-2.0
//! How a test waits for something that another thread, process or machine does. A crate of its own: unit tests of every crate use it.
//!
//! In: a question that is asked again. Out: the first answer. It judges no duration: a limit only ends a test that would hang.

use std::fmt::Display;
use std::time::{Duration, Instant};

/// The pause between two questions: a twentieth of the time waited so far, between these bounds.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// What a question gives: `Some` of something, or `true`, is an answer.
pub trait Answer {
    /// What is answered: nothing more than that it is so, for a `bool`.
    type Value;

    /// The answer, if it is one.
    fn value(self) -> Option<Self::Value>;
}

impl<T> Answer for Option<T> {
    type Value = T;

    fn value(self) -> Option<T> {
        self
    }
}

impl Answer for bool {
    type Value = ();

    fn value(self) -> Option<()> {
        self.then_some(())
    }
}

/// Asks until there is an answer, and returns it.
///
/// # Panics
/// After `limit` without an answer. The message begins with `what`, which is formatted only then.
#[track_caller]
pub fn eventually<A: Answer>(what: impl Display, limit: Duration, ask: impl FnMut() -> A) -> A::Value {
    match try_eventually(limit, ask) {
        Some(value) => value,
        None => panic!("{what}: not within {limit:?}"),
    }
}

/// Asks until there is an answer. Returns it, or `None` after `limit`: for a caller that has its own way to fail.
pub fn try_eventually<A: Answer>(limit: Duration, mut ask: impl FnMut() -> A) -> Option<A::Value> {
    let start = Instant::now();
    loop {
        let value = ask().value();
        if value.is_some() || start.elapsed() >= limit {
            return value;
        }
        std::thread::sleep((start.elapsed() / 20).clamp(PAUSE.0, PAUSE.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_is_returned_and_nothing_is_asked_after_it() {
        let mut asked = 0;
        let answer = eventually("three questions", Duration::from_secs(60), || {
            asked += 1;
            (asked == 3).then_some("three")
        });
        assert_eq!((answer, asked), ("three", 3));
    }

    /// Also the last question counts: a limit of zero asks once.
    #[test]
    fn a_limit_ends_what_is_never_so() {
        assert_eq!(try_eventually(Duration::ZERO, || Some(7)), Some(7));
        let mut asked = 0;
        let never = try_eventually(Duration::from_millis(3), || {
            asked += 1;
            false
        });
        assert!(never.is_none() && asked > 1, "{asked} questions");
    }

    #[test]
    #[should_panic(expected = "seven of 8: not within 0ns")]
    fn a_failure_says_what_was_waited_for() {
        let frames = 7 + 1;
        eventually(std::fmt::from_fn(|f| write!(f, "seven of {frames}")), Duration::ZERO, || false);
    }
}
