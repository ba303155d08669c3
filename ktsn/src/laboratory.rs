// SPDX-License-Identifier: Apache-2.0
//! The laboratory's commands: they are a program of their own, `ktsn-bench`, which has a package of its own.
//!
//! In: the words of the command line. Out: that program in place of this one, with the same words, octet by octet; it keeps the process, so
//! signals and exit status are its own. Where it is missing: which package brings it.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use ktsn_host::find_own;

const PROGRAM: &str = "ktsn-bench";

/// Why none of its commands can be carried out.
pub(crate) const MISSING: &str = "the program ktsn-bench is neither beside ktsn nor on the search path";

/// Its commands, as `ktsn --help` lists them. Two that only its own experiments use have no line.
const COMMANDS: [(&str, &str); 7] = [
    ("bench", "Run an experiment on this machine"),
    ("report", "Show results as one self-contained HTML page"),
    ("rt", "Say whether this machine, or a container on it, is fit for real time"),
    ("vm", "Run programs in throw-away virtual machines"),
    ("remote", "Look whether an experiment can run between this host and another one"),
    ("control", ""),
    ("answer", ""),
];

fn shown() -> impl Iterator<Item = &'static (&'static str, &'static str)> {
    COMMANDS.iter().filter(|(_, about)| !about.is_empty())
}

/// The last part of `ktsn --help`.
pub(crate) fn help() -> String {
    let mut text = String::from("Laboratory (package ktsn-bench):\n");
    for (name, about) in shown() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<9} {about}");
    }
    text
}

/// Its commands as this command line's, for completions and for the suggestions of misspelt words.
pub(crate) fn stubs(is_hidden: bool) -> impl Iterator<Item = clap::Command> {
    shown().map(move |(name, about)| clap::Command::new(*name).about(*about).hide(is_hidden))
}

/// Whether these words, the program's own name left out, are the laboratory's: one of its commands, or `help` with one.
fn is_ours(words: &[OsString]) -> bool {
    let is_command = |word: &OsString| COMMANDS.iter().any(|(name, _)| word == name);
    match words {
        [first, second, ..] if first == "help" => is_command(second),
        [first, ..] => is_command(first),
        [] => false,
    }
}

/// Its program.
pub(crate) fn program() -> Option<PathBuf> {
    find_own(PROGRAM)
}

/// Carries the words out if they are the laboratory's: then it returns only when that is not possible, with the exit status.
pub(crate) fn carry_out(words: &[OsString]) -> Option<ExitCode> {
    if !is_ours(words) {
        return None;
    }
    let name =
        words.iter().find(|word| *word != "help").map(|word| word.display().to_string()).unwrap_or_default();
    let Some(program) = program() else {
        eprintln!("ktsn {name}: {MISSING}; install the package ktsn-bench");
        return Some(ExitCode::from(3));
    };
    let error = Command::new(&program).args(words).exec();
    eprintln!(
        "ktsn {name}: {} cannot be started: {error}; install the package ktsn-bench again",
        program.display()
    );
    Some(ExitCode::FAILURE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn only_its_own_commands_are_the_laboratorys() {
        for line in ["bench", "bench container --help", "rt run", "vm run -- sh", "help bench", "answer :1"] {
            assert!(is_ours(&words(line)), "{line}");
        }
        for line in
            ["", "run -- bench", "--help", "--help bench", "help", "help run", "benchmark", "doctor --rt 1"]
        {
            assert!(!is_ours(&words(line)), "{line}");
        }
    }
}
