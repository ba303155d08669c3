// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench cluster`: the paths of the paper between pods of a Kubernetes cluster. A part of `make e2e-k8s`, which sets
//! the cluster up.
//!
//! In: a site (JSON: how commands get into the pods), for how long. Out: a progress bar, tables, `ktsn.results/1`, raw
//! records, the report. Exit status 1 when a frame of tsn-cni was lost, early, duplicated, reordered or not served.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::cluster::{self, Plan, Site};

use super::args::{ResultArgs, TrafficArgs, timed};
use super::carry_out;

/// Every way from pod to pod of a cluster that is already there.
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  ktsn bench cluster --site site.json --json k8s.json --report k8s.html --records"
)]
pub(super) struct ClusterArgs {
    /// Pods, nodes and paths, as JSON.
    #[arg(long, value_name = "FILE")]
    site: PathBuf,
    #[command(flatten)]
    traffic: TrafficArgs,
    #[command(flatten)]
    results: ResultArgs,
}

/// Measures the paths of the site.
pub(super) fn run(args: &ClusterArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan {
        site: Site::load(&args.site)?,
        payloads: args.traffic.payload.clone(),
        rounds: args.traffic.time.rounds,
        frames: args.traffic.frames(),
        period: args.traffic.period,
        setup: timed()?,
    };
    carry_out(&args.results, cluster::violations, |watch| cluster::run(&plan, watch))
}
