// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench`: experiments on one machine.
//!
//! In: which experiment, for how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report. Exit
//! status 0; 1 a frame of `ktsn` was lost, early, duplicated or reordered (with --strict-bars also: a bar is missed), or
//! the experiment failed; 2 wrong usage; 3 not possible here.

mod capture;
mod cluster;
mod gates;
mod overlay;
mod sched;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path as FilePath, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use ktsn_lab::container::{self, Event, Load, Outcome, Path, Plan, bars};
use ktsn_lab::micro::{self, sender::Calls};
use ktsn_lab::{LabError, Tools};
use ktsn_measure::records::{RunRecords, save_runs};
use ktsn_measure::report::{self, Source};
use ktsn_measure::results::{Document, save_json};
use ktsn_measure::{clock, table};
use ktsn_time::Nanos;

use super::observer::{Rights, span};
use crate::output;

/// The lock that all measurements share.
const LOCK: &str = "out/.measure.lock";

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
    Micro(MicroArgs),
    Gates(gates::GatesArgs),
    Overlay(overlay::OverlayArgs),
    Capture(capture::CaptureArgs),
    Sched(sched::SchedArgs),
    #[command(hide = true)]
    Cluster(cluster::ClusterArgs),
    #[command(hide = true)]
    SendCost(SendCostArgs),
}

/// What an intercepted call, a doorbell and ktsnd cost.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn bench micro --seconds 5 --json out/bench/micro.json")]
struct MicroArgs {
    /// Seconds per figure.
    #[arg(long, default_value_t = 4.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a bar is missed, too.
    #[arg(long)]
    strict_bars: bool,
}

#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum SendCalls {
    Timed,
    Bursts,
    Untimed,
}

/// Time every sendmsg with a transmit time: a process of the experiment `micro`.
#[derive(Args, Clone, Debug)]
struct SendCostArgs {
    /// Where to.
    destination: SocketAddr,
    /// Which calls.
    #[arg(long, value_enum, default_value = "timed")]
    calls: SendCalls,
    /// Batches to send.
    #[arg(long)]
    batches: u32,
    /// Write the figures here.
    #[arg(long, value_name = "FILE")]
    json: PathBuf,
    #[command(flatten)]
    rights: Rights,
}

/// A program in a pod sends on time; bare metal and Flannel's own path stand beside it.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
struct ContainerArgs {
    /// Seconds of traffic per path and payload, all rounds together.
    #[arg(long, default_value_t = 5.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Octets of payload.
    #[arg(long, default_value = "64", value_delimiter = ',', value_name = "OCTETS,…")]
    payload: Vec<usize>,
    /// Distance of two transmit times.
    #[arg(long, default_value = "1ms", value_parser = span)]
    period: Nanos,
    /// Paths: bare, bare-spin, flannel, flannel-spin, flannel-other, ktsn, ktsn-capture [default: all but the last].
    #[arg(long, value_delimiter = ',', value_name = "PATH,…")]
    path: Vec<Path>,
    #[command(flatten)]
    keep: KeepArgs,
}

/// What is kept of an experiment, how it is judged, and whether it is one.
#[derive(Args, Clone, Debug)]
struct KeepArgs {
    #[command(flatten)]
    results: ResultArgs,
    /// For functional tests: no SCHED_FIFO, no pinning, no waiting for a quiet machine; the times mean nothing.
    #[arg(long, hide = true)]
    functional: bool,
}

/// What is kept of an experiment, and how it is judged.
#[derive(Args, Clone, Debug)]
struct ResultArgs {
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the report as HTML.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the raw records into records/ beside the JSON.
    #[arg(long, requires = "json")]
    records: bool,
    /// Exit with status 1 when a bar is missed, too.
    #[arg(long)]
    strict_bars: bool,
}

impl ResultArgs {
    fn saved<'a>(&'a self, label: &'a str) -> Saved<'a> {
        let (json, report) = (self.json.as_deref(), self.report.as_deref());
        Saved { json, report, records: self.records, label }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if (0.001..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected 0.001 to 86400 seconds".to_owned())
    }
}

/// Measures and tells.
pub(crate) fn run(args: &BenchArgs) -> ExitCode {
    clock::stop_on_signals();
    let (name, done) = match &args.experiment {
        Experiment::Container(args) => ("container", container(args)),
        Experiment::Micro(args) => ("micro", micro(args)),
        Experiment::Capture(args) => ("capture", capture::run(args)),
        Experiment::Gates(args) => ("gates", gates::run(args)),
        Experiment::Overlay(args) => ("overlay", overlay::run(args)),
        Experiment::Sched(args) => ("sched", sched::run(args)),
        Experiment::Cluster(args) => ("cluster", cluster::run(args)),
        Experiment::SendCost(args) => ("send-cost", send_cost(args)),
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn bench {name}: {failed}");
        let status = failed.downcast_ref::<LabError>().map_or(1, LabError::exit_status);
        ExitCode::from(status)
    })
}

impl ContainerArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        Ok(Plan {
            experiment: "container",
            paths: if self.path.is_empty() { Path::ALL.to_vec() } else { self.path.clone() },
            payloads: self.payload.clone(),
            loads: vec![Load::Idle],
            rounds: self.rounds,
            frames: frames(self.seconds, self.period, self.rounds),
            period: self.period,
            tools: Tools::beside(&std::env::current_exe()?),
            lock: Some(PathBuf::from(LOCK)),
            command: command(),
            functional: self.keep.functional,
        })
    }
}

/// Frames of one round.
fn frames(seconds: f64, period: Nanos, rounds: u32) -> u64 {
    (seconds * 1e9 / period.get().max(1) as f64 / f64::from(rounds)).ceil() as u64
}

/// The command line, with the program's name instead of where it stands here.
fn command() -> Vec<String> {
    std::iter::once("ktsn".to_owned()).chain(std::env::args().skip(1)).collect()
}

fn container(args: &ContainerArgs) -> anyhow::Result<ExitCode> {
    paths(args, &args.plan()?)
}

/// Measures the paths of a plan, and tells.
fn paths(args: &ContainerArgs, plan: &Plan) -> anyhow::Result<ExitCode> {
    let saved = args.keep.results.saved(plan.experiment);
    let document = told(&saved, plan.runs(), |watch| container::run(plan, watch))?;
    Ok(verdict(&document, args.keep.results.strict_bars))
}

/// Measures with a progress bar of `runs` steps, shows the tables, and writes what was asked for.
fn told(
    saved: &Saved<'_>,
    runs: u64,
    run: impl FnOnce(&mut dyn FnMut(Event<'_>)) -> Result<Outcome, LabError>,
) -> anyhow::Result<Document> {
    for file in [saved.json, saved.report].into_iter().flatten() {
        writable(file)?;
    }
    let bar = ProgressBar::new(runs);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {elapsed} of about {duration}  {msg}")?;
    bar.set_style(style);
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let outcome = run(&mut |event| show(&bar, event));
    bar.finish_and_clear();
    let Outcome { document, runs } = outcome?;
    let mut text = table::document(&document);
    for line in save(saved, &document, &runs)? {
        text.push_str(&format!("{line}\n"));
    }
    output::write(&text)?;
    Ok(document)
}

/// Measures with a sign of progress, shows the tables, and keeps the results where that was asked for.
fn measured(
    json: Option<&FilePath>,
    run: impl FnOnce(&mut dyn FnMut(&str)) -> Result<Document, LabError>,
) -> anyhow::Result<Document> {
    if let Some(file) = json {
        writable(file)?;
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let document = run(&mut |what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    let document = document?;
    let mut text = table::document(&document);
    if let Some(file) = json {
        document.save(file)?;
        text.push_str(&format!("results: {}\n", file.display()));
    }
    output::write(&text)?;
    Ok(document)
}

fn micro(args: &MicroArgs) -> anyhow::Result<ExitCode> {
    let plan = micro::Plan {
        seconds: args.seconds,
        tools: Tools::beside(&std::env::current_exe()?),
        lock: PathBuf::from(LOCK),
        command: command(),
    };
    let document = measured(args.json.as_deref(), |progress| micro::run(&plan, progress))?;
    Ok(verdict(&document, args.strict_bars))
}

fn send_cost(args: &SendCostArgs) -> anyhow::Result<ExitCode> {
    let calls = match args.calls {
        SendCalls::Timed => Calls::Timed,
        SendCalls::Bursts => Calls::Bursts,
        SendCalls::Untimed => Calls::Untimed,
    };
    let cost = micro::sender::run(args.destination, calls, args.batches, args.rights.real_time())?;
    save_json(&cost, &args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn show(bar: &ProgressBar, event: Event<'_>) {
    match event {
        Event::WaitingForLock => bar.set_message(format!("another measurement holds {LOCK}")),
        Event::WaitingForQuiet { pressure, steal } => bar.set_message(format!(
            "waiting for a quiet machine (pressure {:.0} %, steal {:.0} %)",
            pressure.unwrap_or(0.0) * 100.0,
            steal * 100.0
        )),
        Event::Run { path, payload_octets, load, round } => {
            let load = if load == Load::Idle { String::new() } else { format!(", {load}") };
            bar.set_message(format!("round {round}, {payload_octets} octets, {path}{load}"));
        }
        Event::Step(what) => bar.set_message(what.to_owned()),
        Event::Done => bar.inc(1),
        Event::Void(reason) => bar.println(format!("a run is void and is repeated: {reason}")),
    }
}

/// Fails before minutes are spent, not after.
fn writable(file: &FilePath) -> Result<(), LabError> {
    let directory =
        file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(FilePath::new("."));
    std::fs::create_dir_all(directory)
        .map_err(|source| LabError::Usage(format!("{}: {source}", directory.display())))
}

/// What to write, and where.
struct Saved<'a> {
    json: Option<&'a FilePath>,
    report: Option<&'a FilePath>,
    records: bool,
    /// Names the document in a report that has no JSON beside it.
    label: &'a str,
}

/// Writes what was asked for; returns where it lies.
fn save(saved: &Saved<'_>, document: &Document, runs: &[RunRecords]) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    if let Some(file) = saved.json {
        document.save(file)?;
        lines.push(format!("results: {}", file.display()));
        if saved.records {
            let directory = file.with_file_name("records");
            std::fs::create_dir_all(&directory)?;
            save_records(&directory, runs)?;
            lines.push(format!("records: {}", directory.display()));
        }
    }
    if let Some(file) = saved.report {
        let label = saved.json.map_or_else(|| saved.label.to_owned(), |json| json.display().to_string());
        let source = Source::of(&label, document, runs)?;
        report::write(file, &[source])?;
        lines.push(format!("report: {}", file.display()));
    }
    Ok(lines)
}

/// One file for each path and payload, and for each load where there are several.
fn save_records(directory: &FilePath, runs: &[RunRecords]) -> anyhow::Result<()> {
    let with_load = runs.iter().any(|run| run.load != runs[0].load);
    let mut series: BTreeMap<String, Vec<&RunRecords>> = BTreeMap::new();
    for run in runs {
        let load =
            run.load.as_ref().filter(|_| with_load).map_or_else(String::new, |load| format!("-{load}"));
        let name = format!("{}-{}{load}.csv.zst", run.path, run.payload_octets);
        series.entry(name).or_default().push(run);
    }
    for (name, rounds) in series {
        save_runs(&directory.join(name), rounds.into_iter())?;
    }
    Ok(())
}

fn verdict(document: &Document, strict_bars: bool) -> ExitCode {
    tell(document, &bars::violations(document), strict_bars)
}

/// Says what missed its bar and what must never be; gives the exit status.
fn tell(document: &Document, violations: &[String], strict_bars: bool) -> ExitCode {
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
        assert_eq!(whole.paths, Path::ALL);
        let part = plan("container --seconds 2 --rounds 2 --payload 16,64 --path flannel,ktsn --period 2ms")
            .unwrap();
        assert_eq!((part.frames, part.runs()), (500, 8));
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
