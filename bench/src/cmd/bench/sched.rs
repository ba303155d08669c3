// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench sched`: what a decision of the transmission selection costs, and whether its properties hold.
//!
//! In: how many turns, the workspace with the property suite. Out: tables, `ktsn.results/1`. Exit status 1 when a property
//! was not shown.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::sched::{self, Plan};

use super::args::{FigureArgs, timed};
use super::carry_out;

/// What a decision of the transmission selection costs; and its property suite.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example (in the workspace, after `make build`):\n  make bench-sched\n  \
                        ktsn bench sched --cases 1000000 --json out/bench/sched.json")]
pub(super) struct SchedArgs {
    /// Turns of every world; 200 batches each.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    turns: u32,
    /// Random worlds of the property suite; without it the suite's own count.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cases: Option<u32>,
    /// Where the sources are.
    #[arg(long, default_value = ".", value_name = "DIR")]
    workspace: PathBuf,
    #[command(flatten)]
    figures: FigureArgs,
}

/// Measures decisions and runs the property suite.
pub(super) fn run(args: &SchedArgs) -> anyhow::Result<ExitCode> {
    let plan =
        Plan { turns: args.turns, cases: args.cases, workspace: args.workspace.clone(), setup: timed()? };
    carry_out(&(&args.figures).into(), sched::violations, |watch| sched::run(&plan, watch))
}
