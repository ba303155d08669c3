// SPDX-License-Identifier: Apache-2.0
//! One module a subcommand: its arguments with an example, and a `run` that returns the exit status
//! (docs/interfaces.md: 0 done, 1 failed, 2 wrong usage or input, 3 not possible here).

pub(crate) mod clock;
pub(crate) mod debug;
pub(crate) mod doctor;
pub(crate) mod guest;
pub(crate) mod k8s;
pub(crate) mod listen;
pub(crate) mod run;
pub(crate) mod schedule;
pub(crate) mod status;
pub(crate) mod talk;
pub(crate) mod tap;
pub(crate) mod top;
mod unserved;
mod with_daemon;

use ktsn_cli::observer;
#[cfg(test)]
use ktsn_cli::parsed;
