// SPDX-License-Identifier: Apache-2.0
//! One module a subcommand: its arguments with an example, and a `run` that returns the exit status
//! (docs/interfaces.md: 0 done, 1 failed, 2 wrong usage or input, 3 not possible here).

pub(crate) mod bench;
pub(crate) mod capture_lead;
pub(crate) mod control_loop;
pub(crate) mod frames;
mod progress;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod rt;
pub(crate) mod vm;
mod vm_config;

#[cfg(test)]
use ktsn_cli::parsed;
use ktsn_cli::{observer, schedule};
