// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench capture`: a program that nothing is preloaded into, served by kernel capture, beside one under libktsn.
//!
//! In: for how long. Out: tables, `ktsn.results/1` with the lead that capture needs. Exit status 1 when a frame was lost,
//! early, duplicated or reordered.

use std::process::ExitCode;

use clap::Args;
use ktsn_lab::container::{self, Load, Path, Plan, bars};
use ktsn_time::Nanos;

use super::args::{ModeArgs, ResultArgs, TimeArgs};
use super::carry_out;

/// A pod's program without libktsn, served by kernel capture; one under libktsn stands beside it.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn bench capture --seconds 10 --json out/bench/capture.json\n\n\
                        capture.lead is how much earlier a captured program has to send, beside ktsnd's spin margin.")]
pub(super) struct CaptureArgs {
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

/// Measures both paths.
pub(super) fn run(args: &CaptureArgs) -> anyhow::Result<ExitCode> {
    let period = Nanos::from_millis(1);
    let plan = Plan {
        experiment: "capture",
        paths: vec![Path::Ktsn, Path::KtsnCapture],
        payloads: vec![bars::PAYLOAD_OCTETS],
        loads: vec![Load::Idle],
        rounds: args.time.rounds,
        frames: args.time.periods(period),
        period,
        lead: container::LEAD,
        setup: args.mode.setup()?,
    };
    carry_out(&args.results, bars::violations, |watch| container::run(&plan, watch))
}
