// SPDX-License-Identifier: Apache-2.0
//! Both ends in two processes: this binary starts itself again as the program and hands it the region.
//!
//! It prints what libtest would, so that it is counted like other tests. A name as argument runs only the tests
//! that contain it.

mod support;

#[path = "processes/peer.rs"]
mod peer;
#[path = "processes/scenarios.rs"]
mod scenarios;

use std::process::ExitCode;

type Test = (&'static str, fn());

const TESTS: [Test; 4] = [
    ("four_threads_push_200_000_frames", scenarios::four_threads_push_200_000_frames),
    ("a_program_killed_1_000_times", scenarios::a_program_killed_1_000_times),
    ("a_slot_published_twice_after_fork", scenarios::a_slot_published_twice_after_fork),
    ("a_slot_published_while_it_is_held", scenarios::a_slot_published_while_it_is_held),
];

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(peer::ROLE) {
        peer::run(&role);
        return ExitCode::SUCCESS;
    }
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let selected = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part.as_str()));
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in TESTS.iter().filter(|(name, _)| selected(name)) {
        if std::panic::catch_unwind(test).is_ok() {
            passed += 1;
            println!("test {name} ... ok");
        } else {
            failed += 1;
            println!("test {name} ... FAILED");
        }
    }
    let (verdict, filtered) = (if failed == 0 { "ok" } else { "FAILED" }, TESTS.len() - passed - failed);
    println!(
        "\ntest result: {verdict}. {passed} passed; {failed} failed; 0 ignored; 0 measured; {filtered} filtered out"
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
