// SPDX-License-Identifier: Apache-2.0
//! What the command lines `ktsn` and `ktsn-bench` share.
//!
//! In: arguments. Out: texts, files, exit statuses. Nothing here measures or asks a daemon.

pub mod generate;
pub mod installed;
pub mod observer;
pub mod output;
pub mod schedule;

/// A subcommand's arguments as `line` gives them, for tests.
///
/// # Errors
/// What the user would read.
pub fn parsed<T: clap::Args>(line: &str) -> Result<T, String> {
    let words = std::iter::once("ktsn").chain(line.split_whitespace());
    let matches = T::augment_args(clap::Command::new("ktsn")).try_get_matches_from(words);
    matches.and_then(|matches| T::from_arg_matches(&matches)).map_err(|error| error.to_string())
}

/// Longer lines are broken in two by clap: prose may be, an example may not.
const COLUMNS: usize = 100;

/// Whether the examples of all help pages are shown whole, for tests.
///
/// # Panics
/// One is not, which the message names.
pub fn check_examples(command: &clap::Command) {
    fn look(command: &clap::Command, path: &str) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= COLUMNS, "{path} --help: {line}");
        }
        for inner in command.get_subcommands() {
            look(inner, &format!("{path} {}", inner.get_name()));
        }
    }
    look(command, command.get_name());
}
