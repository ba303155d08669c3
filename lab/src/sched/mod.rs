// SPDX-License-Identifier: Apache-2.0
//! Transmission selection: what a decision costs, and whether its properties hold.
//!
//! In: the programs, where the sources are. Out: a document with `micro` entries, the bars beside them, and a check for
//! each property. First the property suite runs under the measuring
//! lock: it builds, so nothing may be timed meanwhile. Then, on a quiet machine, the example `sched_cost`, which has an allocator of its own that counts.

mod properties;

use crate::carry_out::{Measured, Session, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Event, Outcome, Setup, Watch};
use ktsn_measure::results::{Check, CheckOutcome, Comparison, Document, Micro};
use serde::Deserialize;
use std::path::PathBuf;
use std::process::Command;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Turns of every world.
    pub turns: u32,
    /// Random worlds of the comparison with the reference; the properties have a share of it. `None`: the suite's own.
    pub cases: Option<u32>,
    /// The workspace with the property suite.
    pub workspace: PathBuf,
    /// Programs, lock, command.
    pub setup: Setup,
}

/// Figure, what it is divided by (none: the figure itself), the greatest value.
const BARS: [(&str, Option<&str>, f64); 3] = [
    ("sched.decide.8x64", None, 150.0),
    ("sched.decide.8x1024", Some("sched.decide.8x64"), 1.3),
    ("sched.frame.streams10000", Some("sched.frame.streams10"), 2.0),
];

/// What the example prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Cost {
    micro: Vec<Micro>,
    /// After everything was made: must be 0.
    allocations: u64,
    /// Until then: shows that the counter counts.
    allocations_before: u64,
}

/// Measures. `watch` hears what is done next.
///
/// # Errors
/// [`LabError`].
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    let measure = |session: &mut Session<'_>| {
        session.document.set_parameters(&serde_json::json!({
            "turns": plan.turns,
            "decision": "8 classes with 1024 frames queued, stepped as a worker does: decide, hand over, decide, jump; batches of 64, \
                         worlds in turn",
        }));
        (session.watch)(Event::Step("the property suite"));
        session.document.checks = properties::run(&plan.workspace, plan.cases)?;
        let run = |_: &mut Turn<'_>| cost(plan).map(|cost| Measured::micro(cost.micro.clone()).with(cost));
        session.repeat("the cost of decisions", 1, run, |costs, document| {
            costs.iter().for_each(|cost| count_allocations(document, cost));
        })
    };
    carry_out(&plan.setup.terms("sched"), watch, measure, |document, _| compare(document))
}

/// Runs the example, where it is built.
fn cost(plan: &Plan) -> Result<Cost, LabError> {
    let program = plan.setup.tools.ktsn.with_file_name("examples").join("sched_cost");
    let shown = program.display().to_string();
    if !program.is_file() {
        return Err(LabError::Impossible {
            what: format!("{shown} does not exist"),
            remedy: "`cargo build --release -p ktsn-lab --example sched_cost`, or `make bench-sched`"
                .to_owned(),
        });
    }
    let output = Command::new(&program)
        .args(["--turns", &plan.turns.to_string(), "--cpu", "1"])
        .output()
        .map_err(|source| LabError::Start { command: shown.clone(), source, remedy: "" })?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(LabError::Command { command: shown, status: output.status.to_string(), stderr });
    }
    serde_json::from_slice(&output.stdout)
        .map_err(|error| LabError::Contents { path: program, problem: format!("its output: {error}") })
}

/// Adds the comparisons of figures.
fn compare(document: &mut Document) {
    for (of, to, bar) in BARS {
        document.compare_micro(of, to, bar);
    }
}

/// Adds what the counting allocator saw.
fn count_allocations(document: &mut Document, cost: &Cost) {
    let allocations = Some(cost.allocations as f64);
    let comparison = Comparison::held("allocations", "sched.after_arming", None, allocations, 0.0);
    document.comparisons.push(comparison);
    let fault =
        (cost.allocations_before == 0).then(|| "it saw no allocation while everything was made".to_owned());
    document.checks.push(Check::unless("the counting allocator counts", fault));
}

/// The checks that failed or were not carried out, one sentence each: a property is proven or it is not.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let open = document.checks.iter().filter(|check| check.outcome != CheckOutcome::Passed);
    open.map(|check| format!("{}: {}", check.name, check.reason.as_deref().unwrap_or("failed"))).collect()
}

#[cfg(test)]
mod tests;
