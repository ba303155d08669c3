// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench cluster`: the paths of the paper between pods of a Kubernetes cluster. A part of `make e2e-k8s`, which sets
//! the cluster up.
//!
//! In: a site (JSON: how commands get into the pods), for how long. Out: a progress bar, tables, `ktsn.results/1`, raw
//! records, the report. Exit status 1 when a frame of tsn-cni was lost, early, duplicated, reordered or not served.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::Tools;
use ktsn_lab::cluster::{self, Plan, Site};
use ktsn_time::Nanos;

use super::{LOCK, ResultArgs, command, frames, seconds, span, tell, told};

/// Every way from pod to pod of a cluster that is already there.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  ktsn bench cluster --site site.json --json k8s.json --report k8s.html --records"
)]
pub(super) struct ClusterArgs {
    /// Pods, nodes and paths, as JSON.
    #[arg(long, value_name = "FILE")]
    site: PathBuf,
    /// Seconds of traffic per path and payload, all rounds together.
    #[arg(long, default_value_t = 5.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Octets of payload.
    #[arg(long, default_value = "64,256,1024", value_delimiter = ',', value_name = "OCTETS,…")]
    payload: Vec<usize>,
    /// Distance of two transmit times.
    #[arg(long, default_value = "1ms", value_parser = span)]
    period: Nanos,
    #[command(flatten)]
    results: ResultArgs,
}

/// Measures and tells.
pub(super) fn run(args: &ClusterArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        site: Site::load(&args.site)?,
        payloads: args.payload.clone(),
        rounds: args.rounds,
        frames: frames(args.seconds, args.period, args.rounds),
        period: args.period,
        tools: Tools::beside(&std::env::current_exe()?),
        lock: PathBuf::from(LOCK),
        command: command(),
    };
    let saved = args.results.saved("k8s");
    let document = told(&saved, plan.runs(), |watch| cluster::run(&plan, watch))?;
    Ok(tell(&document, &cluster::violations(&document), args.results.strict_bars))
}
