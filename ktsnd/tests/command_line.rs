// SPDX-License-Identifier: Apache-2.0
//! ktsnd's command line. `cargo test` builds the program for it, which all other tests run too.

use std::process::{Command, Output};

fn ktsnd(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ktsnd")).args(arguments).output().unwrap()
}

#[test]
fn the_help_has_examples_and_says_what_exit_statuses_mean() {
    let output = ktsnd(&["--help"]);
    let help = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success()
            && help.contains("ktsnd --take-over 600")
            && help.contains("Exit status: 0 drained"),
        "{help}"
    );
}

#[test]
fn wrong_usage_is_named_and_ends_with_2() {
    for (arguments, named) in [
        (&["--config", "/nowhere.toml"][..], "--config /nowhere.toml: No such file or directory"),
        (&["--nonsense"], "unexpected argument '--nonsense'"),
        (&["--attach", "pod-a"], "--attach"),
        (&["--take-over", "soon"], "soon"),
    ] {
        let output = ktsnd(arguments);
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && error.contains(named),
            "{arguments:?}: {}: {error}",
            output.status
        );
    }
}
