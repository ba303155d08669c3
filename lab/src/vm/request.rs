// SPDX-License-Identifier: Apache-2.0
//! What a run of a guest is asked for.

use super::machine::{Accelerator, Machine};
use super::protocol::Job;
use crate::tools::Tools;
use std::time::Duration;

/// What to run, and for how long.
#[derive(Clone, Debug)]
pub struct Request {
    /// The guest's machine.
    pub machine: Machine,
    /// How its instructions run.
    pub accelerator: Accelerator,
    /// What it does.
    pub job: Job,
    /// ktsn, ktsnd and libktsn.so, which the guest gets.
    pub tools: Tools,
    /// How long the boot may take.
    pub boot_within: Duration,
    /// How long the program may take.
    pub program_within: Option<Duration>,
}
