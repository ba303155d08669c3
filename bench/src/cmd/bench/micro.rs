// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench micro`: what an intercepted call, a doorbell and ktsnd cost.
//!
//! In: seconds per figure. Out: tables, `ktsn.results/1`. `send-cost` is a process of that experiment.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::container::bars;
use ktsn_lab::micro::{self, Plan, sender::Calls};
use ktsn_measure::results::save_json;

use super::super::observer::Rights;
use super::args::{FigureArgs, timed};
use super::carry_out;

/// What an intercepted call, a doorbell and ktsnd cost.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn bench micro --seconds 5 --json out/bench/micro.json")]
pub(super) struct MicroArgs {
    /// Seconds per figure.
    #[arg(long, default_value = "4", value_name = "S", value_parser = super::args::seconds)]
    seconds: f64,
    #[command(flatten)]
    figures: FigureArgs,
}

/// Time every sendmsg with a transmit time: a process of the experiment `micro`.
#[derive(Args, Clone, Debug)]
pub(super) struct SendCostArgs {
    /// The receiver's address.
    destination: SocketAddr,
    /// Which calls.
    #[arg(long, default_value = "timed")]
    calls: Calls,
    /// Batches to send.
    #[arg(long)]
    batches: u32,
    /// Write the figures here.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    #[command(flatten)]
    rights: Rights,
}

/// Measures the figures.
pub(super) fn run(args: &MicroArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan { seconds: args.seconds, setup: timed()? };
    carry_out(&(&args.figures).into(), bars::violations, |watch| micro::run(&plan, watch))
}

/// Sends and writes what the calls cost.
pub(super) fn send_cost(args: &SendCostArgs) -> anyhow::Result<ExitCode> {
    let cost = micro::sender::run(args.destination, args.calls, args.batches, args.rights.real_time())?;
    save_json(&cost, &args.json)?;
    Ok(ExitCode::SUCCESS)
}
