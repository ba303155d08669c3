// SPDX-License-Identifier: Apache-2.0
//! One module a subcommand: its arguments with an example, and a `run` that returns the exit status
//! (docs/interfaces.md: 0 done, 1 failed, 2 wrong usage or input, 3 not possible here).

pub(crate) mod bench;
pub(crate) mod doctor;
pub(crate) mod listen;
mod observer;
pub(crate) mod report;
pub(crate) mod run;
mod run_captured;
pub(crate) mod schedule;
pub(crate) mod status;
pub(crate) mod talk;
pub(crate) mod tap;
mod with_daemon;
