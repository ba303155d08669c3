// SPDX-License-Identifier: Apache-2.0
//! How a test waits for something that another thread, process or machine does, and how it makes a program that it then runs. A crate of
//! its own: unit tests of every crate use it.
//!
//! In: a question that is asked again. Out: the first answer. It judges no duration: a limit only ends a test that would hang.

use std::fmt::Display;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

mod programs;

pub use programs::{build_with, library, programs};

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

/// Makes a program of `content` that everyone may run. Another process writes it: where this one does, a child that another thread forks
/// meanwhile holds the file open for writing, and the program's start fails with ETXTBSY.
///
/// # Panics
/// When it cannot be written.
#[track_caller]
pub fn make_program(path: &Path, content: &[u8]) {
    let mut install = Command::new("install");
    install.args(["--mode=755", "/dev/stdin"]).arg(path).stdin(Stdio::piped());
    let mut child = install.spawn().expect("install starts");
    child.stdin.take().expect("piped").write_all(content).expect("the program is written");
    assert!(child.wait().expect("install ends").success(), "install does not make {}", path.display());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other threads start children all the time, as in any run of tests.
    #[test]
    fn a_program_that_was_made_starts_beside_forks() {
        let directory = std::env::temp_dir().join(format!("ktsn-eventually-{}", std::process::id()));
        std::fs::create_dir(&directory).expect("a directory");
        let program = directory.join("program");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| {
                    while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                        Command::new("true").status().expect("true starts");
                    }
                });
            }
            let ends: Vec<_> = (0..100)
                .map(|_| {
                    make_program(&program, b"#!/bin/sh\nexit 7\n");
                    Command::new(&program).status().map(|status| status.code())
                })
                .collect();
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(ends.iter().all(|end| matches!(end, Ok(Some(7)))), "{ends:?}");
        });
        std::fs::remove_dir_all(&directory).expect("removed");
    }

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
