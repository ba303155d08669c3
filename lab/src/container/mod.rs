// SPDX-License-Identifier: Apache-2.0
//! The experiment `container`: a program in a pod sends on time; bare metal and Flannel's own path stand beside it.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records. Rounds, payloads and paths are interleaved;
//! nothing is repeated for what it shows. The caller holds the measuring lock by way of [`run`].
//!
//! ```text
//!  round 1: payload 16: bare, bare-spin, flannel, …   payload 64: bare, …   round 2: …
//!  CPU 0: listener (FIFO 40), tap (ordinary)     CPU 1: talker (FIFO 50), or ktsnd's worker (50) and its talker (40)
//! ```

pub mod bars;
mod capture;
pub(crate) mod cpu;
pub(crate) mod far;
pub mod load;
mod one_run;
mod path;
mod plan;
mod switch;

pub use load::Load;
pub use path::Path;
pub use plan::{LEAD, Plan};

use crate::daemon::{Daemon, OVERRUN_LIMIT, configuration};
use crate::error::LabError;
use crate::exclusive::VOID_RULE;
use crate::experiment::{Event, Outcome, Watch, repeat_void};
pub use crate::observations::DEADLINE;
pub(crate) use crate::observations::PRIORITY;
use crate::testbed::Testbed;
use ktsn_measure::results::{Check, Document};
pub(crate) use one_run::Bench;
use one_run::RunSpec;
use std::path::Path as FilePath;
use switch::Switched;

/// Measures, and holds the results against the bars of `container`.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    let mut outcome = run_with(plan, watch, |_, _| Ok(()))?;
    bars::compare(&mut outcome.document);
    Ok(outcome)
}

/// Checks what the plan needs, takes the lock and measures; `then` measures more under the same lock, for the same
/// document.
pub(crate) fn run_with(
    plan: &Plan,
    watch: &mut Watch<'_>,
    then: impl FnOnce(&mut Document, &mut Watch<'_>) -> Result<(), LabError>,
) -> Result<Outcome, LabError> {
    plan.check()?;
    if plan.paths.iter().any(|path| path.is_preloaded()) {
        plan.setup.tools.check_daemon()?;
    } else if plan.paths.iter().any(|path| path.is_served()) {
        plan.setup.tools.check_capture()?;
    }
    plan.loads.iter().try_for_each(|load| load.check())?;
    let (_lock, directory) = plan.setup.begin(watch)?;
    let mut outcome = measure_paths(plan, directory.path(), watch)?;
    then(&mut outcome.document, watch)?;
    Ok(outcome)
}

/// All rounds of all paths.
fn measure_paths(plan: &Plan, directory: &FilePath, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    let mut document = Document::new(plan.experiment, plan.setup.command.clone());
    describe(plan, &mut document);
    let (mut switched, left_out) = start_switch(plan, directory, &mut document)?;
    let testbed = Testbed::new()?;
    if plan.paths.contains(&Path::KtsnShort) {
        far::check(&plan.setup.tools, &testbed, directory, "ktsn-short", &far::short(&testbed))?;
    }
    let is_served = plan.paths.iter().any(|path| path.is_served() && !path.is_switched());
    let configuration = configure(plan, &configuration(&testbed));
    let daemon = is_served.then(|| Daemon::start(&plan.setup.tools, &testbed.a, directory, &configuration));
    let daemon = daemon.transpose()?;
    let bench = Bench { plan, testbed: &testbed, daemon: daemon.as_ref(), directory, switch: None };
    let through_switch = switched.as_ref().map(|switched| switched.bench(plan));
    let (mut results, mut sequence) = (Vec::new(), 0);
    for round in 1..=plan.rounds {
        for (&load, &payload) in
            plan.loads.iter().flat_map(|load| plan.payloads.iter().map(move |p| (load, p)))
        {
            // Before the load begins: the rule judges other people's.
            let refusals = plan.setup.wait_until_quiet(watch)?;
            let running = load.start(&testbed, directory, plan.setup.functional)?;
            for path in plan.paths_beside(load).filter(|path| !left_out.contains(path)) {
                let bench = through_switch.as_ref().filter(|_| path.is_switched()).unwrap_or(&bench);
                let beside = if load == Load::Idle { String::new() } else { format!(", {load}") };
                watch(Event::Step(&format!("round {round}, {payload} octets, {path}{beside}")));
                let spec = RunSpec { path, payload, load: &running, round };
                let (mut result, voided) = repeat_void(path.word(), watch, || {
                    sequence += plan.frames;
                    bench.run(&spec, sequence - plan.frames)
                })?;
                result.series.voided_rounds = Some(voided + u64::from(refusals));
                results.push(result);
                watch(Event::Done);
            }
        }
    }
    if let (Some(daemon), true) = (&bench.daemon, plan.paths.contains(&Path::KtsnCapture)) {
        let calls = results.iter().flat_map(|result| result.calls.iter().copied()).collect();
        capture::figures(
            &mut document,
            calls,
            &daemon.statistics()?.attachment.capture_lag.unwrap_or_default(),
        );
    }
    if let (Some(switched), true) = (&mut switched, plan.paths.contains(&Path::KtsnOvsDpdk)) {
        switch::restart::measure(switched, plan, &mut document, watch)?;
    }
    cpu::account(&mut results);
    document.add_series(results.iter().map(|result| result.series.clone()));
    Ok(Outcome { document, runs: results.into_iter().map(|result| result.run).collect() })
}

/// Sets the testbed of the paths through the virtual switch up, if there are such paths. The second value has those that this
/// machine cannot measure: the document says why.
fn start_switch(
    plan: &Plan,
    directory: &FilePath,
    document: &mut Document,
) -> Result<(Option<Switched>, Vec<Path>), LabError> {
    let mut left_out = Vec::new();
    let mut skip = |path: Path, reason: String| {
        document.checks.push(Check::skipped(format!("the path {path}"), reason));
        left_out.push(path);
    };
    let mut possible = Vec::new();
    for path in plan.paths.iter().copied().filter(|path| path.is_switched()) {
        match switch::missing(path, &plan.setup.tools) {
            Some(reason) => skip(path, reason),
            None => possible.push(path),
        }
    }
    if possible.is_empty() || !plan.loads.contains(&Load::Idle) {
        return Ok((None, left_out));
    }
    match Switched::start(plan, directory) {
        Ok(switched) => Ok((Some(switched), left_out)),
        Err(LabError::Impossible { what, remedy }) => {
            possible.into_iter().for_each(|path| skip(path, format!("{what}; remedy: {remedy}")));
            Ok((None, left_out))
        }
        Err(other) => Err(other),
    }
}

/// The daemon's configuration, with capture where a path needs it.
fn configure(plan: &Plan, plain: &str) -> String {
    const ATTACHMENT: &str = "[[attachment]]\n";
    if !plan.paths.contains(&Path::KtsnCapture) {
        return plain.to_owned();
    }
    let captured = format!("{ATTACHMENT}capture = \"kernel\"\ncapture_priority = {PRIORITY}\n");
    plain.replacen(ATTACHMENT, &captured, 1)
}

/// What the experiment was asked to do, and how it places its threads.
fn describe(plan: &Plan, document: &mut Document) {
    let parameters = serde_json::json!({
        "period_ns": plan.period.get(),
        "payload_octets": plan.payloads,
        "loads": plan.loads.iter().map(|load| load.describe()).collect::<Vec<_>>(),
        "frames": plan.frames * u64::from(plan.rounds),
        "rounds": plan.rounds,
        "interleaved": true,
        "deadline_ns": DEADLINE.get(),
        "lead_ns": LEAD.get(),
        "wire_at": "tap",
        "void_rule": VOID_RULE,
        "attachment": format!(
            "late = send, overrun_limit = {OVERRUN_LIMIT}: a late frame is sent and counted, as on the other paths"
        ),
        "placement": if plan.setup.functional {
            "none: a functional run, its times mean nothing"
        } else {
            "listener SCHED_FIFO 40 on CPU 0; talker SCHED_FIFO 50 on CPU 1 (flannel-other: ordinary, CPU 1); ktsn: worker \
             SCHED_FIFO 50 and its talker SCHED_FIFO 40, both on CPU 1; tap ordinary; the switch's polling thread (only while its \
             paths are measured) nice -20 on CPU 0, DPDK's sender SCHED_FIFO 50 on CPU 1, where it polls from 200 µs before each time on"
        },
    });
    document.set_parameters(&parameters);
}

#[cfg(test)]
mod tests;
