// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench receive` and `ktsn bench loop`: unmodified listeners and control loops, with and without expected-arrival
//! receive.
//!
//! In: which paths and scenes, for how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report. Exit
//! status 1 when a frame was lost, early, duplicated or reordered where KTSN took part.

use std::process::ExitCode;

use clap::Args;
use ktsn_lab::control_loop;
use ktsn_lab::receive::{self, Path, Plan, Scene};
use ktsn_time::Nanos;

use super::super::observer::span;
use super::args::{ModeArgs, ResultArgs, TimeArgs};
use super::carry_out;
use super::hosts::HostsArgs;

const RECEIVE_EXAMPLES: &str = "\
Examples:
  ktsn bench receive --json out/bench/receive.json --report out/bench/receive.html
  ktsn bench receive --quick --path flannel,ktsn-short,ktsn-short-expect
  ktsn bench receive --scene eight-streams,poisson --seconds 6 --json r.json --records

Every listener is an unmodified program. -expect: it runs under libktsn with KTSN_RECEIVE=expect, and the ktsnd of its node \
grants it (`receive = \"expect\"`). -spin-listener: it never sleeps. Needs root, two CPUs, python3 and iperf3.

Exit status: 0 done; 1 a frame was lost, early, duplicated or reordered where KTSN took part, or the experiment failed; \
2 wrong usage; 3 not possible here.";

/// When does an unmodified listener have its frame, and what does it cost to be awake in time?
#[derive(Args, Clone, Debug)]
#[command(after_help = RECEIVE_EXAMPLES, mut_arg("seconds", |arg| arg.default_value("3")))]
pub(super) struct ReceiveArgs {
    #[command(flatten)]
    time: TimeArgs,
    /// One round of one second, instead of --seconds and --rounds.
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Paths: flannel, flannel-spin-listener, flannel-expect, bare, bare-spin-listener, ktsn, ktsn-spin-listener, ktsn-expect,
    /// ktsn-short, ktsn-short-spin-listener, ktsn-short-expect [default: all of them when idle, the most important ones elsewhere].
    #[arg(long, value_delimiter = ',', value_name = "PATH,…")]
    path: Vec<Path>,
    /// Scenes: idle, epoll, python, python-epoll, 100hz, eight-streams, poisson, iperf3-udp [default: all of them].
    #[arg(long, value_delimiter = ',', value_name = "SCENE,…")]
    scene: Vec<Scene>,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

/// The round count, and the length of a run.
fn rounds_of(time: TimeArgs, quick: bool) -> (u32, Nanos) {
    if quick {
        return (1, Nanos::from_seconds(1));
    }
    (time.rounds, Nanos::new((time.seconds * 1e9 / f64::from(time.rounds)) as i64))
}

impl ReceiveArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let (rounds, span) = rounds_of(self.time, self.quick);
        Ok(Plan {
            scenes: if self.scene.is_empty() { Scene::ALL.to_vec() } else { self.scene.clone() },
            paths: self.path.clone(),
            rounds,
            span,
            setup: self.mode.setup()?,
        })
    }
}

/// Measures listeners.
pub(super) fn run(args: &ReceiveArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    carry_out(&args.results, receive::bars::violations, |watch| receive::run(&plan, watch))
}

const LOOP_EXAMPLES: &str = "\
Examples:
  ktsn bench loop --json out/bench/loop.json --report out/bench/loop.html
  ktsn bench loop --quick --path flannel,ktsn-short-expect
  ktsn bench loop --hosts local,ssh:plc-2 --uplink eth1 --within 5us --json r.json

The controller's pod asks at T, the device's pod answers at once. Both ends are unmodified programs; -expect: both run with \
KTSN_RECEIVE=expect. Needs root and two CPUs. With --hosts the device's pod is on another machine, which needs the same ktsn and root.

Exit status: 0 done; 1 a frame was lost, early or duplicated where KTSN took part, or the experiment failed; \
2 wrong usage; 3 not possible here.";

/// A control loop between two pods: round trips, and the cycles that a deadline would lose.
#[derive(Args, Clone, Debug)]
#[command(after_help = LOOP_EXAMPLES)]
pub(super) struct LoopArgs {
    #[command(flatten)]
    time: TimeArgs,
    /// One round of one second, instead of --seconds and --rounds.
    #[arg(long, conflicts_with_all = ["seconds", "rounds"])]
    quick: bool,
    /// Length of a cycle.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = span)]
    period: Nanos,
    /// Paths: flannel, flannel-expect, bare, ktsn, ktsn-expect, ktsn-short, ktsn-short-expect [default: all of them].
    #[arg(long, value_delimiter = ',', value_name = "PATH,…")]
    path: Vec<Path>,
    #[command(flatten)]
    hosts: HostsArgs,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

impl LoopArgs {
    fn plan(&self) -> anyhow::Result<control_loop::Plan> {
        let (rounds, span) = rounds_of(self.time, self.quick);
        let paths = if self.path.is_empty() { control_loop::Plan::PATHS.to_vec() } else { self.path.clone() };
        let cycles = span.get().max(1).unsigned_abs().div_ceil(self.period.get().max(1).unsigned_abs());
        let (hosts, setup) = (self.hosts.hosts()?, self.mode.setup()?);
        Ok(control_loop::Plan { paths, rounds, cycles, period: self.period, hosts, setup })
    }
}

/// Measures control loops.
pub(super) fn run_loop(args: &LoopArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    carry_out(&args.results, control_loop::bars::violations, |watch| control_loop::run(&plan, watch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;

    fn plan(line: &str) -> Result<Plan, String> {
        parsed::<ReceiveArgs>(line)?.plan().map_err(|error| error.to_string())
    }

    fn loop_plan(line: &str) -> Result<control_loop::Plan, String> {
        parsed::<LoopArgs>(line)?.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn seconds_are_shared_by_the_rounds() {
        let whole = plan("").unwrap();
        assert_eq!((whole.rounds, whole.span, whole.scenes.len()), (3, Nanos::from_seconds(1), 8));
        let quick = plan("--quick --path flannel --scene idle,poisson").unwrap();
        assert_eq!((quick.scenes.len(), quick.rounds, quick.span), (2, 1, Nanos::from_seconds(1)));
        let control = loop_plan("--seconds 4 --rounds 2 --period 2ms").unwrap();
        assert_eq!((control.cycles, control.rounds, control.paths.len()), (1_000, 2, 7));
    }

    #[test]
    fn wrong_values_are_named() {
        for (line, word) in [
            ("--path wifi", "ktsn-short-expect"),
            ("--scene flood", "eight-streams"),
            ("--seconds 0", "86400"),
            ("--quick --rounds 2", "--rounds"),
            ("--records", "--json"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
        assert!(loop_plan("--period 1").unwrap_err().contains("250us"));
    }
}
