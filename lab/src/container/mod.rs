// SPDX-License-Identifier: Apache-2.0
//! The experiment `container`: a program in a pod sends on time; bare metal and Flannel's own path stand beside it.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records. Rounds, payloads and paths are interleaved;
//! nothing is repeated for what it shows.
//!
//! ```text
//!  round 1: 16 octets: bare, bare-spin, flannel, …   64 octets: bare, …   round 2: from another row on
//!  CPU 0: listener (FIFO 40), tap (ordinary)     CPU 1: talker (FIFO 50), or ktsnd's worker (50) and its talker (40)
//! ```

pub mod bars;
mod capture;
pub(crate) mod cpu;
pub mod load;
mod one_run;
mod path;
mod plan;
mod qdisc;
pub(crate) mod receiving_daemon;
mod rival;
mod switch;

pub use load::Load;
pub use path::Path;
pub use plan::{LEAD, Plan};
pub use switch::NO_DPDK;

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::daemon::{Daemon, configuration};
use crate::error::LabError;
use crate::experiment::{Outcome, Watch};
pub use crate::observations::DEADLINE;
pub(crate) use crate::observations::PRIORITY;
use crate::testbed::Testbed;
use ktsn_measure::results::Document;
pub(crate) use one_run::Bench;
use one_run::{Row, SendCalls};
use qdisc::Etf;
use rival::Rival;
use std::path::Path as FilePath;
use switch::Switched;

/// Measures, and holds the results against the bars of `container`.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    check(plan)?;
    let terms = plan.setup.terms(plan.experiment);
    carry_out(
        &terms,
        watch,
        |session| measure(plan, session, crate::carry_out::directory()?.path()),
        |document, _| {
            bars::compare(document);
        },
    )
}

/// Checks what the plan needs.
pub(crate) fn check(plan: &Plan) -> Result<(), LabError> {
    plan.check()?;
    if plan.paths.iter().any(|path| path.is_preloaded()) {
        plan.setup.tools.check_daemon()?;
    } else if plan.paths.iter().any(|path| path.is_served()) {
        plan.setup.tools.check_capture()?;
    }
    plan.loads.iter().try_for_each(|load| load.check())
}

/// Measures all rounds of all paths.
pub(crate) fn measure(plan: &Plan, session: &mut Session<'_>, directory: &FilePath) -> Result<(), LabError> {
    describe(plan, &mut session.document);
    let (mut switched, mut missing) = start_switch(plan, directory)?;
    let testbed = Testbed::new()?;
    let by_kernel = plan.paths.iter().copied().filter(|path| path.has_qdisc());
    missing.extend(by_kernel.filter_map(|path| Some((path, qdisc::missing(path, &testbed.a)?))));
    if plan.paths.contains(&Path::KtsnShort) {
        receiving_daemon::check(
            &plan.setup.tools,
            &testbed,
            directory,
            "ktsn-short",
            &receiving_daemon::short(&testbed),
        )?;
    }
    let is_served = plan.paths.iter().any(|path| path.is_served() && !path.is_switched());
    let configuration = configure(plan, &configuration(&testbed));
    let daemon = is_served.then(|| Daemon::start(&plan.setup.tools, &testbed.a, directory, &configuration));
    let daemon = daemon.transpose()?;
    let bench = Bench { plan, testbed: &testbed, daemon: daemon.as_ref(), directory, switch: None };
    let through_switch = switched.as_ref().map(|switched| Bench::through(switched, plan));
    let rival = Rival::default();
    session.measure(&mut Paths { bench, through_switch, missing, rival }, plan.rounds)?;
    if let (Some(switched), true) = (&mut switched, plan.paths.contains(&Path::KtsnOvsDpdk)) {
        let name = "the switch is killed under traffic and starts again";
        session.repeat(name, 1, |_| switch::restart::measure(switched, plan), |_, _| ())?;
        switch::restart::compare(&mut session.document);
    }
    Ok(())
}

/// Paths that are not possible here, each with its reason.
type Missing = Vec<(Path, String)>;

/// The paths in their testbeds.
struct Paths<'a> {
    bench: Bench<'a>,
    through_switch: Option<Bench<'a>>,
    /// Why paths are not possible here.
    missing: Missing,
    rival: Rival,
}

impl Experiment for Paths<'_> {
    type Row = Row;
    type Extra = SendCalls;

    fn rows(&self) -> Vec<Row> {
        let plan = self.bench.plan;
        let mut rows = Vec::new();
        for &load in &plan.loads {
            for &payload in &plan.payloads {
                let of_paths = plan.paths_beside(load).flat_map(|path| {
                    Etf::all(path, plan.lead).into_iter().map(move |etf| Row { path, payload, load, etf })
                });
                rows.extend(of_paths);
            }
        }
        rows
    }

    fn name(&self, row: &Row) -> String {
        let beside = if row.load == Load::Idle { String::new() } else { format!(", {}", row.load) };
        format!("{} octets, {}{beside}", row.payload, row.series())
    }

    fn subject(&self, row: &Row) -> String {
        format!("the path {}", row.path)
    }

    fn missing(&self, row: &Row) -> Option<String> {
        self.missing.iter().find(|(path, _)| *path == row.path).map(|(_, reason)| reason.clone())
    }

    fn run(&mut self, &row: &Row, turn: &mut Turn<'_>) -> Result<Measured<SendCalls>, LabError> {
        let bench = self.through_switch.as_ref().filter(|_| row.path.is_switched()).unwrap_or(&self.bench);
        let margin = self.rival.margin(row.path);
        let measured = bench.run(row, turn.round, turn.number * bench.plan.frames, margin)?;
        self.rival.took(row, margin, bench.plan.period, &measured.series);
        Ok(measured)
    }

    fn account(&self, kept: &mut [Measured<SendCalls>]) {
        cpu::account(kept);
    }

    fn conclude(&mut self, calls: Vec<SendCalls>, document: &mut Document) -> Result<(), LabError> {
        document.parameters.insert("packet_spin_margins_ns".to_owned(), self.rival.describe());
        let spans: Vec<u64> = calls.into_iter().flat_map(|calls| calls.spans).collect();
        if let (Some(daemon), false) = (self.bench.daemon, spans.is_empty()) {
            let lag = daemon.statistics()?.attachment.capture_lag.unwrap_or_default();
            capture::figures(document, spans, &lag);
        }
        Ok(())
    }
}

/// Sets the testbed of the paths through the virtual switch up, if there are such paths. The second value has those that this
/// machine cannot measure, and why.
fn start_switch(plan: &Plan, directory: &FilePath) -> Result<(Option<Switched>, Missing), LabError> {
    let switched = plan.paths.iter().copied().filter(|path| path.is_switched());
    let known = switched.map(|path| (path, switch::missing(path)));
    let (missing, possible): (Vec<_>, Vec<_>) = known.partition(|(_, reason)| reason.is_some());
    let mut missing: Vec<_> =
        missing.into_iter().filter_map(|(path, reason)| Some((path, reason?))).collect();
    if possible.is_empty() || !plan.loads.contains(&Load::Idle) {
        return Ok((None, missing));
    }
    match Switched::start(plan, directory) {
        Ok(switched) => Ok((Some(switched), missing)),
        Err(LabError::Impossible { what, remedy }) => {
            let reason = format!("{what}; remedy: {remedy}");
            missing.extend(possible.into_iter().map(|(path, _)| (path, reason.clone())));
            Ok((None, missing))
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
        "deadline_ns": DEADLINE.get(),
        "lead_ns": plan.lead.get(),
        "wire_at": "tap",
        "attachment": "late = send (default by-clock): a frame that its program sent late leaves and is counted late, as on all other paths but etf's; \
                       by default it would be dropped as missed. All else is the default",
        "placement": if plan.setup.functional {
            "none: a functional run, its times mean nothing"
        } else {
            "listener SCHED_FIFO 40 on CPU 0; talker SCHED_FIFO 50 on CPU 1 (flannel-other: ordinary, CPU 1); ktsn: worker \
             SCHED_FIFO 50 and its talker SCHED_FIFO 40, both on CPU 1; tap ordinary; the switch's polling thread (only while its \
             paths are measured) nice -20 on CPU 0; senders of whole frames SCHED_FIFO 50 on CPU 1, where they poll their clock before each \
             time: packet-spin for so long that it takes the CPU of ktsn's talker and ktsnd together, the others for 200 µs"
        },
    });
    document.set_parameters(&parameters);
}

#[cfg(test)]
mod tests;
