// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench rtos`: a FreeRTOS guest with the driver of `virtio-net/`, beside a Linux guest on the same QEMU device.
//!
//! In: sizes, how often, the workspace. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ktsn_lab::rtos::{self, Plan, bars};

use super::args::{ModeArgs, ResultArgs};
use super::carry_out;

const EXAMPLES: &str = "\
Examples (in the workspace, after `make build`):
  make bench-rtos
  ktsn bench rtos --quick
  ktsn bench rtos --tcp 64 --posted 8,64,255 --rounds 5 --json rtos.json --report rtos.html

Both guests are i386 machines `pc` with the same virtio-net device (PCI legacy). Behind it is QEMU's own network stack, or (paths \
`…-vhost-user`) DPDK's testpmd and a tap in a network namespace of its own. The Linux guest is Debian's kernel, which apt fetches once \
(52 MB) into ~/.cache/ktsn/virtio-net. Needs qemu-system-x86, dpdk-dev, gcc and python3. The machine should do nothing else.

Exit status: 0 done; 1 a guest failed (with --strict-bars also: a bar is missed); 2 wrong usage; 3 not possible here.";

/// What is behind a guest's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Backend {
    /// QEMU's own network stack, which waits for a guest's buffer.
    User,
    /// DPDK's testpmd, which polls and drops what finds no buffer.
    VhostUser,
}

impl From<Backend> for rtos::Backend {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::User => Self::User,
            Backend::VhostUser => Self::VhostUser,
        }
    }
}

/// TCP bandwidth and round trips of an RTOS guest with our virtio-net driver, beside a Linux guest.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RtosArgs {
    /// Rounds.
    #[arg(long, default_value_t = 3, value_name = "N")]
    rounds: u32,
    /// Round trips of each size in a round.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    trips: u64,
    /// Length of a TCP stream in MiB.
    #[arg(long, default_value_t = 32, value_name = "MIB")]
    mib: u64,
    /// Sizes of TCP's buffers in KiB.
    #[arg(long, default_value = "16,32,64,128", value_delimiter = ',', value_name = "KIB,…")]
    tcp: Vec<u64>,
    /// Bounds of the posted receive buffers, measured with the largest of TCP's buffers.
    #[arg(long, default_value = "1,2,4,8,16,32,64,255", value_delimiter = ',', value_name = "N,…")]
    posted: Vec<u64>,
    /// The bound of all other runs.
    #[arg(long, default_value_t = 8, value_name = "N")]
    usual_posted: u64,
    /// Bounds of the posted receive buffers for the streams behind vhost-user.
    #[arg(long, default_value = "64,128,255", value_delimiter = ',', value_name = "N,…")]
    dropping_posted: Vec<u64>,
    /// What is behind the guests.
    #[arg(long, value_enum, default_value = "user,vhost-user", value_delimiter = ',', value_name = "NAME,…")]
    backend: Vec<Backend>,
    /// One short round in a few configurations, to see that everything works.
    #[arg(long, conflicts_with_all = ["rounds", "trips", "mib", "tcp", "posted", "dropping_posted"])]
    quick: bool,
    /// Where the sources are.
    #[arg(long, default_value = ".", value_name = "DIR")]
    workspace: PathBuf,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

impl RtosArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let plan = Plan {
            rounds: self.rounds,
            trips: self.trips,
            stream_mib: self.mib,
            tcp_kib: self.tcp.clone(),
            posted: self.posted.clone(),
            usual_posted: self.usual_posted,
            dropping_posted: self.dropping_posted.clone(),
            backends: self.backend.iter().copied().map(Into::into).collect(),
            workspace: self.workspace.clone(),
            setup: self.mode.setup()?,
        };
        let quick = |plan| Plan {
            rounds: 1,
            trips: 200,
            stream_mib: 2,
            tcp_kib: vec![64],
            posted: vec![8, 255],
            dropping_posted: vec![255],
            ..plan
        };
        Ok(if self.quick { quick(plan) } else { plan })
    }
}

/// Measures guests.
pub(super) fn run(args: &RtosArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    carry_out(&args.results, bars::violations, |watch| rtos::run(&plan, watch))
}
