// SPDX-License-Identifier: Apache-2.0
//! One module a subcommand: its arguments with an example, and a `run` that returns the exit status
//! (docs/interfaces.md: 0 done, 1 failed, 2 wrong usage or input, 3 not possible here).

pub(crate) mod bench;
pub(crate) mod clock;
pub(crate) mod control_loop;
pub(crate) mod debug;
pub(crate) mod doctor;
pub(crate) mod generate;
pub(crate) mod guest;
pub(crate) mod k8s;
pub(crate) mod listen;
mod observer;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod rt;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod status;
pub(crate) mod talk;
pub(crate) mod tap;
pub(crate) mod top;
mod unserved;
pub(crate) mod vm;
mod vm_config;
mod with_daemon;

/// A subcommand's arguments as `line` gives them; else what the user would read.
#[cfg(test)]
fn parsed<T: clap::Args>(line: &str) -> Result<T, String> {
    let words = std::iter::once("ktsn").chain(line.split_whitespace());
    let matches = T::augment_args(clap::Command::new("ktsn")).try_get_matches_from(words);
    matches.and_then(|matches| T::from_arg_matches(&matches)).map_err(|error| error.to_string())
}
