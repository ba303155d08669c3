// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench capture`: a program that nothing is preloaded into, served by kernel capture, beside one under libktsn.
//!
//! In: for how long. Out: tables, `ktsn.results/1` with the lead that capture needs. Exit status 1 when a frame was lost,
//! early, duplicated or reordered.

use std::process::ExitCode;

use clap::Args;
use ktsn_lab::container::{Path, Plan};
use ktsn_time::Nanos;

use super::{ContainerArgs, KeepArgs, paths, seconds};

/// A pod's program without libktsn, served by kernel capture; one under libktsn stands beside it.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn bench capture --seconds 10 --json out/bench/capture.json\n\n\
                        capture.lead is how much earlier a captured program has to send, beside ktsnd's spin margin.")]
pub(super) struct CaptureArgs {
    /// Seconds of traffic per path, all rounds together.
    #[arg(long, default_value_t = 5.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    #[command(flatten)]
    keep: KeepArgs,
}

/// Measures and tells.
pub(super) fn run(args: &CaptureArgs) -> anyhow::Result<ExitCode> {
    let container = ContainerArgs {
        seconds: args.seconds,
        rounds: args.rounds,
        payload: vec![64],
        period: Nanos::from_millis(1),
        path: vec![Path::Ktsn, Path::KtsnCapture],
        keep: args.keep.clone(),
    };
    let plan = Plan { experiment: "capture", ..container.plan()? };
    paths(&container, &plan)
}
