// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench`: experiments on one machine.
//!
//! In: which experiment, for how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report. Exit
//! status 0; 1 a frame of `ktsn` was lost, early, duplicated or reordered (with --strict-bars also: a bar is missed), or
//! the experiment failed; 2 wrong usage; 3 not possible here.

mod args;
mod capture;
mod clock;
mod cluster;
mod datapaths;
mod gates;
mod hosts;
mod micro;
mod overlay;
mod receive;
mod rtos;
mod sched;
mod vm;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use ktsn_lab::container::{self, Load, Path, Plan, bars};
use ktsn_lab::{Event, LabError, Outcome};
use ktsn_measure::results::Document;
use ktsn_measure::table;
use ktsn_time::Nanos;

use super::observer::span;
use super::progress::Progress;
use crate::output;
use args::{ModeArgs, ResultArgs, TrafficArgs};

const EXAMPLES: &str = "\
Examples:
  ktsn bench container
  ktsn bench gates --seconds 10 --json gates.json --report gates.html
  ktsn bench overlay --json overlay.json --report overlay.html
  ktsn bench container --seconds 20 --path flannel,ktsn --json r.json --report r.html --records

Everything is set up in network namespaces of its own and removed afterwards. Needs root and two CPUs.

Exit status: 0 done; 1 a frame of ktsn was lost, early, duplicated or reordered, or the experiment failed; \
2 wrong usage; 3 not possible here.";

/// Run an experiment on this machine.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn bench container --json results.json --report report.html")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Subcommand, Clone, Debug)]
enum Experiment {
    Container(ContainerArgs),
    Micro(micro::MicroArgs),
    Gates(gates::GatesArgs),
    Datapaths(datapaths::DatapathsArgs),
    Overlay(overlay::OverlayArgs),
    Receive(receive::ReceiveArgs),
    Loop(receive::LoopArgs),
    Rtos(rtos::RtosArgs),
    Capture(capture::CaptureArgs),
    Clock(clock::ClockArgs),
    Sched(sched::SchedArgs),
    Vm(vm::VmArgs),
    #[command(hide = true)]
    Cluster(cluster::ClusterArgs),
    #[command(hide = true)]
    SendCost(micro::SendCostArgs),
}

/// A program in a pod sends on time; bare metal and Flannel's own path stand beside it.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES, mut_arg("payload", |arg| arg.default_value("64")))]
struct ContainerArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Paths: bare, bare-spin, packet-spin, flannel, flannel-spin, flannel-other, ktsn, and on request packet-spin-free, ktsn-capture, bare-etf,
    /// bare-fq, pod-etf, pod-fq [default: the first seven].
    #[arg(long, value_delimiter = ',', value_name = "PATH,…")]
    path: Vec<Path>,
    /// How far ahead programs with a transmit time send.
    #[arg(long, default_value = "300us", value_name = "TIME", value_parser = span)]
    lead: Nanos,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

impl ContainerArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        Ok(Plan {
            experiment: "container",
            paths: if self.path.is_empty() { Path::USUAL.to_vec() } else { self.path.clone() },
            payloads: self.traffic.payload.clone(),
            loads: vec![Load::Idle],
            rounds: self.traffic.time.rounds,
            frames: self.traffic.frames(),
            period: self.traffic.period,
            lead: self.lead,
            setup: self.mode.setup()?,
        })
    }
}

/// Runs an experiment and shows its results.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    ktsn_measure::clock::stop_on_signals();
    let (name, done) = match &args.experiment {
        Experiment::Container(args) => ("container", container(args)),
        Experiment::Micro(args) => ("micro", micro::run(args)),
        Experiment::Capture(args) => ("capture", capture::run(args)),
        Experiment::Clock(args) => ("clock", clock::run(args)),
        Experiment::Gates(args) => ("gates", gates::run(args)),
        Experiment::Datapaths(args) => ("datapaths", datapaths::run(args)),
        Experiment::Overlay(args) => ("overlay", overlay::run(args)),
        Experiment::Receive(args) => ("receive", receive::run(args)),
        Experiment::Loop(args) => ("loop", receive::run_loop(args)),
        Experiment::Rtos(args) => ("rtos", rtos::run(args)),
        Experiment::Sched(args) => ("sched", sched::run(args)),
        Experiment::Vm(args) => ("vm", vm::run(args)),
        Experiment::Cluster(args) => ("cluster", cluster::run(args)),
        Experiment::SendCost(args) => ("send-cost", micro::send_cost(args)),
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn bench {name}: {failed}");
        let status = failed.downcast_ref::<LabError>().map_or(1, LabError::exit_status);
        ExitCode::from(status)
    })
}

fn container(args: &ContainerArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    carry_out(&args.results, bars::violations, |watch| container::run(&plan, watch))
}

/// Carries an experiment out, shows and saves its results, and judges them. One that failed before its end is shown and saved as far
/// as it came.
fn carry_out(
    results: &ResultArgs,
    violations: fn(&Document) -> Vec<String>,
    experiment: impl FnOnce(&mut dyn FnMut(Event<'_>)) -> Result<Outcome, LabError>,
) -> anyhow::Result<ExitCode> {
    results.make_directories()?;
    let progress = Progress::of("ktsn bench");
    let outcome = experiment(&mut |event| progress.show(event));
    drop(progress);
    let outcome = outcome?;
    let saved = results.save(&outcome)?;
    output::write(&format!("{}{saved}", table::document(&outcome.document)))?;
    let status = judge(&outcome.document, &violations(&outcome.document), results.figures.strict_bars);
    outcome.failure.map_or(Ok(status), |failure| Err(failure.into()))
}

/// Prints which bars are missed and what must not happen and did; returns the exit status.
fn judge(document: &Document, violations: &[String], strict_bars: bool) -> ExitCode {
    let missed = bars::missed(document);
    for line in &missed {
        eprintln!("bar missed: {line}");
    }
    for line in violations {
        eprintln!("violated: {line}");
    }
    let failed = !violations.is_empty() || (strict_bars && !missed.is_empty());
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("bench").chain(line.split(' '));
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        let Experiment::Container(args) = line.args.experiment else {
            return Err("another experiment".to_owned());
        };
        args.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn seconds_are_shared_by_the_rounds() {
        let whole = plan("container").unwrap();
        assert_eq!((whole.frames, whole.rounds, whole.payloads.as_slice()), (1667, 3, &[64][..]));
        assert_eq!(whole.paths, Path::USUAL);
        let part = plan("container --seconds 2 --rounds 2 --payload 16,64 --path flannel,ktsn --period 2ms")
            .unwrap();
        assert_eq!((part.frames, part.paths.len(), part.payloads.len()), (500, 2, 2));
    }

    #[test]
    fn wrong_values_are_named() {
        for (line, word) in [
            ("container --path wifi", "flannel-other"),
            ("container --seconds 0", "86400"),
            ("container --rounds 0", "--rounds"),
            ("container --period 1", "250us"),
            ("container --records", "--json"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
