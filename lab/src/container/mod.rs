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

pub use load::Load;
pub use path::Path;

use crate::daemon::{Daemon, OVERRUN_LIMIT, configuration};
use crate::error::LabError;
use crate::exclusive::{VOID_RULE, check_machine};
use crate::experiment::{Event, Outcome, Setup, Watch, repeat_void};
pub use crate::observations::DEADLINE;
pub(crate) use crate::observations::PRIORITY;
use crate::testbed::Testbed;
use ktsn_measure::payload::check_size;
use ktsn_measure::results::Document;
use ktsn_time::Nanos;
pub(crate) use one_run::Bench;
use one_run::RunSpec;

/// How far ahead the program under KTSN sends.
pub const LEAD: Nanos = Nanos::from_micros(300);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The document's name.
    pub experiment: &'static str,
    /// The paths, in the order of each round.
    pub paths: Vec<Path>,
    /// Payloads, in octets.
    pub payloads: Vec<usize>,
    /// What goes through the same nodes meanwhile, in the order of each round.
    pub loads: Vec<Load>,
    /// Rounds.
    pub rounds: u32,
    /// Frames of one run: one path, payload and round.
    pub frames: u64,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// How many runs it has.
    #[must_use]
    pub fn runs(&self) -> u64 {
        u64::from(self.rounds) * (self.paths.len() * self.payloads.len() * self.loads.len()) as u64
    }

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        let usage = |text: String| Err(LabError::Usage(text));
        let lists = [self.paths.len(), self.payloads.len(), self.loads.len()];
        if lists.contains(&0) || self.rounds == 0 || self.frames == 0 {
            let expected = "expected a path, a payload, a load, a round and a frame at least";
            return usage(format!("nothing to measure: {expected}"));
        }
        if !(Nanos::from_micros(500)..=Nanos::from_seconds(1)).contains(&self.period) {
            return usage(format!("period: {}: expected 500 us to 1 s", self.period));
        }
        for &octets in &self.payloads {
            check_size(octets).map_err(|error| LabError::Usage(format!("payload: {error}")))?;
            // Larger ones would be fragmented on the overlay, and matched by their first fragment only.
            if octets > 1400 {
                return usage(format!(
                    "payload: {octets} octets do not fit into the overlay's MTU: expected at most 1400"
                ));
            }
        }
        for (index, path) in self.paths.iter().enumerate() {
            if self.paths[..index].contains(path) {
                return usage(format!("path: {} is named twice", path.name()));
            }
        }
        if self.loads.iter().enumerate().any(|(index, load)| self.loads[..index].contains(load)) {
            return usage("load: one is named twice".to_owned());
        }
        Ok(())
    }
}

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
    if !plan.setup.functional {
        check_machine()?;
    }
    let _lock = plan.setup.take_lock(watch)?;
    let mut outcome = measure_paths(plan, watch)?;
    then(&mut outcome.document, watch)?;
    Ok(outcome)
}

/// All rounds of all paths.
fn measure_paths(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    let directory = tempfile::tempdir().map_err(LabError::system("temporary directory"))?;
    let testbed = Testbed::new()?;
    if plan.paths.contains(&Path::KtsnShort) {
        far::check(&plan.setup.tools, &testbed, directory.path())?;
    }
    let is_served = plan.paths.iter().any(|path| path.is_served());
    let configuration = configure(plan, &configuration(&testbed));
    let daemon =
        is_served.then(|| Daemon::start(&plan.setup.tools, &testbed.a, directory.path(), &configuration));
    let bench = Bench { plan, testbed: &testbed, daemon: daemon.transpose()?, directory: directory.path() };
    let mut document = Document::new(plan.experiment, plan.setup.command.clone());
    describe(plan, &mut document);
    let (mut results, mut sequence) = (Vec::new(), 0);
    for round in 1..=plan.rounds {
        for (&load, &payload) in
            plan.loads.iter().flat_map(|load| plan.payloads.iter().map(move |p| (load, p)))
        {
            // Before the load begins: the rule judges other people's.
            let refusals = plan.setup.wait_until_quiet(watch)?;
            let running = load.start(&testbed, directory.path(), plan.setup.functional)?;
            for &path in &plan.paths {
                let beside = if load == Load::Idle { String::new() } else { format!(", {load}") };
                watch(Event::Step(&format!("round {round}, {payload} octets, {path}{beside}")));
                let spec = RunSpec { path, payload, load: &running, round };
                let (mut result, voided) = repeat_void(path.name(), watch, || {
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
        capture::figures(&mut document, calls, &daemon.statistics()?.capture_lag);
    }
    cpu::account(&mut results);
    document.add_series(results.iter().map(|result| result.series.clone()));
    Ok(Outcome { document, runs: results.into_iter().map(|result| result.run).collect() })
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
             SCHED_FIFO 50 and its talker SCHED_FIFO 40, both on CPU 1; tap ordinary, CPU 0"
        },
    });
    document.set_parameters(&parameters);
}

#[cfg(test)]
mod tests;
