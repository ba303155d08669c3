// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench clock`: how far a guest's clock is from its host's, by vPTP and by chrony over virtio-net.
//!
//! In: clocks, how long. Out: a progress bar, tables, `ktsn.results/1`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_lab::clock_bench::{self, Plan, bars};
use ktsn_lab::vm;
use ktsn_lab::vm::protocol::Clock;
use ktsn_lab::vm::{Accelerator, Cache, Choice, Kind, Renew};

use super::super::vm::tools;
use super::args::{FigureArgs, ModeArgs, ResultArgs};
use super::carry_out;

const EXAMPLES: &str = "\
Examples:
  ktsn bench clock
  ktsn bench clock --seconds 10 --settle 5s --json clock.json
  ktsn bench clock --clock vptp --pause 0s

Each row is a guest: it boots, its clock settles, it is sampled, paused by QEMU, resumed, and sampled again. The truth is QEMU's own offset \
between the counters of guest and host, together with the host's clock: no exchange and no packet takes part in it. chrony asks a \
chronyd -x at the guest's bridge 16 times a second.

Needs root and QEMU (`ktsn vm image`). The guests run under TCG, because KVM does not tell the offset.

Exit status: 0 done; 1 a clock was set back by vPTP or exceeded its bound, or the experiment failed; 2 wrong usage; 3 not possible here.";

/// A guest's clock against its host's: vPTP, and chrony over virtio-net beside it.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ClockArgs {
    /// What keeps the guests' clocks, as in `ktsn vm run`.
    #[arg(long, default_value = "vptp,chrony", value_delimiter = ',', value_name = "NAME,…")]
    clock: Vec<Clock>,
    /// Seconds of a row that are measured.
    #[arg(long, default_value = "60", value_name = "S", value_parser = super::args::seconds)]
    seconds: f64,
    /// How long a clock settles before.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = humantime::parse_duration)]
    settle: Duration,
    /// How long the guest is then paused; 0s: not at all.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = humantime::parse_duration)]
    pause: Duration,
    /// Rounds.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// How long a guest may take to boot.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = humantime::parse_duration)]
    boot_timeout: Duration,
    #[command(flatten)]
    figures: FigureArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

/// Measures guests' clocks.
pub(super) fn run(args: &ClockArgs) -> anyhow::Result<ExitCode> {
    let mut setup = args.mode.setup()?;
    setup.tools = tools()?;
    let plan = Plan {
        clocks: args.clock.clone(),
        settle: args.settle,
        measured: Duration::from_secs_f64(args.seconds),
        pause: args.pause,
        rounds: args.rounds,
        boot_within: args.boot_timeout,
        choice: Choice { accelerator: Accelerator::Tcg, reason: "the truth is known under TCG".to_owned() },
        cache: Cache::find(None),
        setup,
    };
    plan.check()?;
    carry_out(&ResultArgs::from(&args.figures), bars::violations, |watch| {
        vm::clean(&plan.cache)?;
        drop(vm::image(&plan.cache, Kind::Qemu, Renew::Nothing, &mut |step| {
            watch(ktsn_lab::Event::Step(step));
        })?);
        clock_bench::run(&plan, watch)
    })
}
