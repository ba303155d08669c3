// SPDX-License-Identifier: Apache-2.0
//! Micro-benchmarks: what a call, a doorbell and the daemon cost.
//!
//! In: the programs, seconds per figure. Out: a document with `micro` entries and the bars beside them. Everything runs
//! on the testbed of the experiment `container`, under the measuring lock, one thing after the other.

mod cost;
pub mod sender;
#[allow(unsafe_code)]
mod sys;

use crate::error::LabError;
use crate::exclusive::{MeasureLock, check_machine, wait_until_quiet};
use crate::testbed::Testbed;
use crate::tools::Tools;
use cost::Costs;
use ktsn_measure::environment::Environment;
use ktsn_measure::results::{Check, CheckOutcome, Comparison, Document, Micro};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Frames per second that the worker must reach.
const THROUGHPUT_MIN: f64 = 1.5e6;
/// Nanoseconds in which it must hand over 32 frames for one instant.
const BURST_MAX_NS: f64 = 12e3;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seconds per figure.
    pub seconds: f64,
    /// The programs.
    pub tools: Tools,
    /// The machine's measuring lock.
    pub lock: PathBuf,
    /// The command that repeats it.
    pub command: Vec<String>,
}

/// Greatest figures allowed; without a divisor the figure itself.
const BARS: [(&str, Option<&str>, f64); 9] = [
    ("sendmsg.intercepted.64", None, 300.0),
    ("sendmsg.intercepted.64", Some("sendmsg.kernel.64"), 1.0 / 3.0),
    ("sendmmsg64.intercepted.64", None, 150.0),
    ("sendmsg.untimed.hooked.64", Some("sendmsg.untimed.kernel.64"), 1.05),
    ("ktsnd.cpu.nothing_attached", None, 0.001),
    ("ktsnd.cpu.armed_idle", None, 0.01),
    ("ktsnd.cpu.1_stream_1khz", None, 0.08),
    ("ktsnd.cpu.10_streams_1khz", None, 0.45),
    ("ktsnd.rss.1_client", None, 32.0 * 1024.0 * 1024.0),
];

/// Measures. `watch` hears what is measured next.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Document, LabError> {
    plan.tools.check_daemon()?;
    check_machine()?;
    let _lock = MeasureLock::take(&plan.lock, || watch("another measurement holds the lock"))?;
    let mut document = Document::new("micro", plan.command.clone(), Environment::read());
    document.parameters.insert("seconds".to_owned(), plan.seconds.into());
    document.parameters.insert("clock_reading".to_owned(), "one is contained in every sendmsg sample".into());
    watch("waiting for a quiet machine");
    wait_until_quiet(|_| ())?;
    let directory = tempfile::tempdir().map_err(LabError::system("temporary directory"))?;
    let testbed = Testbed::new()?;
    let costs = Costs { plan, testbed: &testbed, directory: directory.path() };
    watch("the kernel's sendmsg");
    document.micro.extend(costs.kernel()?);
    watch("sockets that are not ours");
    document.micro.extend(costs.not_ours()?);
    watch("the intercepted sendmsg");
    document.micro.extend(costs.intercepted()?);
    for measured in [Costs::nothing_attached, Costs::armed_idle, Costs::one_stream, Costs::ten_streams] {
        watch("the daemon's CPU time");
        document.micro.extend(measured(&costs)?);
    }
    watch("the worker's throughput");
    throughput(plan, &mut document)?;
    compare(&mut document);
    Ok(document)
}

fn compare(document: &mut Document) {
    for (name, to, bar) in BARS {
        let figure =
            |name: &str| document.micro.iter().find(|micro| micro.name == name).map(|micro| micro.p50);
        let ratio = match to {
            None => figure(name),
            Some(to) => figure(name).zip(figure(to)).map(|(of, to)| of / to),
        };
        document.comparisons.push(Comparison {
            metric: "p50".to_owned(),
            payload_octets: None,
            load: None,
            of: name.to_owned(),
            to: to.map(str::to_owned),
            ratio,
            bar: Some(bar),
            holds: Some(ratio.is_some_and(|ratio| ratio <= bar)),
        });
    }
}

/// Runs the daemon's own example, where it is built: it measures the shipped worker, which no other crate may link.
fn throughput(plan: &Plan, document: &mut Document) -> Result<(), LabError> {
    let (rate, burst) =
        ("worker.memory_port.64 at least 1.5 M frames/s", "worker.memory_port.burst32 at most 12 us");
    let program = plan.tools.ktsnd.with_file_name("examples").join("worker_throughput");
    if !program.is_file() {
        let reason = format!(
            "{} is not built; remedy: `cargo build --release -p ktsnd --example worker_throughput`",
            program.display()
        );
        document.checks.extend([rate, burst].map(|name| Check {
            name: name.to_owned(),
            outcome: CheckOutcome::Skipped,
            reason: Some(reason.clone()),
        }));
        return Ok(());
    }
    let micro = example(plan, &program, &[])?;
    let shown = format!("{:.2} M frames/s", micro.p50 / 1e6);
    judge(document, rate, micro.p50 >= THROUGHPUT_MIN, shown);
    document.micro.push(micro);
    let micro = example(plan, &program, &["--burst"])?;
    let shown = format!("{:.1} us", micro.p50 / 1e3);
    judge(document, burst, micro.p50 <= BURST_MAX_NS, shown);
    document.micro.push(micro);
    Ok(())
}

fn judge(document: &mut Document, name: &str, holds: bool, shown: String) {
    let outcome = if holds { CheckOutcome::Passed } else { CheckOutcome::Failed };
    document.checks.push(Check { name: name.to_owned(), outcome, reason: (!holds).then_some(shown) });
}

/// What the example says, run with these arguments.
fn example(plan: &Plan, program: &Path, arguments: &[&str]) -> Result<Micro, LabError> {
    let seconds = plan.seconds.ceil().clamp(1.0, 600.0).to_string();
    let shown = program.display().to_string();
    let output = Command::new(program)
        .args(["--seconds", &seconds])
        .args(arguments)
        .output()
        .map_err(|source| LabError::Start { command: shown.clone(), source, remedy: "" })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(LabError::Command { command: shown, status: output.status.to_string(), stderr });
    }
    serde_json::from_slice(&output.stdout).map_err(|error| LabError::Contents {
        path: program.to_owned(),
        problem: format!("its output: {error}"),
    })
}

#[cfg(test)]
mod tests;
