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
use crate::exclusive::{MeasureLock, VOID_RULE, check_machine, wait_until_quiet};
use crate::testbed::Testbed;
use crate::tools::Tools;
use ktsn_measure::environment::Environment;
use ktsn_measure::payload::check_size;
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::{Document, Series};
use ktsn_time::Nanos;
pub(crate) use one_run::{Bench, PRIORITY};
use one_run::{Observed, Wish};
use std::path::PathBuf;

/// A latency above this misses the deadline.
pub const DEADLINE: Nanos = Nanos::from_micros(400);
/// How far ahead the program under KTSN sends.
pub const LEAD: Nanos = Nanos::from_micros(300);
/// How often a run is repeated whose observation broke.
const REPEATS_MAX: u32 = 3;

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
    /// The programs.
    pub tools: Tools,
    /// The machine's measuring lock; without one it runs beside other measurements.
    pub lock: Option<PathBuf>,
    /// The command that repeats it.
    pub command: Vec<String>,
    /// Measures without SCHED_FIFO, CPU pinning and waiting for a quiet machine: for functional tests, whose times mean
    /// nothing.
    pub functional: bool,
}

/// What happens, for whoever watches.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Another measurement holds the lock.
    WaitingForLock,
    /// The load rule makes a round wait.
    WaitingForQuiet {
        /// Share of time in which some task waited for a CPU.
        pressure: Option<f64>,
        /// Share of time that the hypervisor took.
        steal: f64,
    },
    /// A run begins.
    Run {
        /// Its path.
        path: Path,
        /// Its payload.
        payload_octets: usize,
        /// Its load.
        load: Load,
        /// Its round, from 1.
        round: u32,
    },
    /// Something beside the runs begins.
    Step(&'a str),
    /// A run has ended.
    Done,
    /// A run is void and is repeated.
    Void(&'a str),
}

/// Document and raw records.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The results.
    pub document: Document,
    /// The records of every run.
    pub runs: Vec<RunRecords>,
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
pub fn run(plan: &Plan, watch: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, LabError> {
    let mut outcome = prepared(plan, watch, |_, _| Ok(()))?;
    bars::compare(&mut outcome.document);
    Ok(outcome)
}

/// Measures; `then` goes on under the same lock, on the same document.
pub(crate) fn prepared(
    plan: &Plan,
    watch: &mut dyn FnMut(Event<'_>),
    then: impl FnOnce(&mut Document, &mut dyn FnMut(Event<'_>)) -> Result<(), LabError>,
) -> Result<Outcome, LabError> {
    plan.check()?;
    if plan.paths.iter().any(|path| path.is_preloaded()) {
        plan.tools.check_daemon()?;
    } else if plan.paths.iter().any(|path| path.is_served()) {
        plan.tools.check_capture()?;
    }
    plan.loads.iter().try_for_each(|load| load.check())?;
    if !plan.functional {
        check_machine()?;
    }
    let lock = plan.lock.as_deref();
    let _lock = lock.map(|lock| MeasureLock::take(lock, || watch(Event::WaitingForLock))).transpose()?;
    let mut outcome = measured(plan, watch)?;
    then(&mut outcome.document, watch)?;
    Ok(outcome)
}

fn measured(plan: &Plan, watch: &mut dyn FnMut(Event<'_>)) -> Result<Outcome, LabError> {
    let directory = tempfile::tempdir().map_err(LabError::system("temporary directory"))?;
    let testbed = Testbed::new()?;
    if plan.paths.contains(&Path::KtsnShort) {
        far::check(&plan.tools, &testbed, directory.path())?;
    }
    let is_served = plan.paths.iter().any(|path| path.is_served());
    let configuration = configure(plan, &configuration(&testbed));
    let daemon =
        is_served.then(|| Daemon::start_with(&plan.tools, &testbed, directory.path(), &configuration));
    let bench = Bench { plan, testbed: &testbed, daemon: daemon.transpose()?, directory: directory.path() };
    let mut document = Document::new(plan.experiment, plan.command.clone(), Environment::read());
    describe(plan, &mut document);
    let (mut observed, mut sequence) = (Vec::new(), 0);
    for round in 1..=plan.rounds {
        for (&load, &payload) in
            plan.loads.iter().flat_map(|load| plan.payloads.iter().map(move |p| (load, p)))
        {
            // Before the load begins: the rule judges other people's.
            let refusals = if plan.functional { 0 } else { quiet(watch)? };
            let running = load.start(&testbed, directory.path(), plan.functional)?;
            for &path in &plan.paths {
                watch(Event::Run { path, payload_octets: payload, load, round });
                let wish = Wish { path, payload, load: &running, round };
                let mut one = valid_run(&bench, &wish, &mut sequence, watch)?;
                let voided = one.series.voided_rounds.unwrap_or(0) + u64::from(refusals);
                one.series.voided_rounds = Some(voided);
                observed.push(one);
                watch(Event::Done);
            }
        }
    }
    if let (Some(daemon), true) = (&bench.daemon, plan.paths.contains(&Path::KtsnCapture)) {
        let calls = observed.iter().flat_map(|one| one.calls.iter().copied()).collect();
        capture::figures(&mut document, calls, &daemon.statistics()?.capture_lag);
    }
    Ok(collect(plan, document, observed))
}

fn quiet(watch: &mut dyn FnMut(Event<'_>)) -> Result<u32, LabError> {
    wait_until_quiet(|load| {
        watch(Event::WaitingForQuiet { pressure: load.cpu_pressure_some_ratio, steal: load.steal_ratio });
    })
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

/// One run; repeated, as the void rule says, when its observation broke.
fn valid_run(
    bench: &Bench<'_>,
    wish: &Wish<'_>,
    sequence: &mut u64,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Observed, LabError> {
    let mut voided = 0;
    loop {
        let mut one = bench.run(wish, *sequence)?;
        *sequence += bench.plan.frames;
        match &one.broken {
            Some(reason) if voided < u64::from(REPEATS_MAX) => {
                watch(Event::Void(reason));
                voided += 1;
            }
            Some(reason) => {
                let problem = format!("was void {} times, the last time because {reason}", voided + 1);
                return Err(LabError::Process {
                    name: wish.path.name().to_owned(),
                    problem,
                    stderr: String::new(),
                });
            }
            None => {
                one.series.voided_rounds = Some(voided);
                return Ok(one);
            }
        }
    }
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
        "placement": if plan.functional {
            "none: a functional run, its times mean nothing"
        } else {
            "listener SCHED_FIFO 40 on CPU 0; talker SCHED_FIFO 50 on CPU 1 (flannel-other: ordinary, CPU 1); ktsn: worker \
             SCHED_FIFO 50 and its talker SCHED_FIFO 40, both on CPU 1; tap ordinary, CPU 0"
        },
    });
    if let serde_json::Value::Object(parameters) = parameters {
        document.parameters = parameters;
    }
}

fn collect(plan: &Plan, mut document: Document, mut observed: Vec<Observed>) -> Outcome {
    cpu::account(&mut observed);
    let name = |load: &Load| Some(load.name().to_owned());
    for (load, payload) in plan.loads.iter().flat_map(|load| plan.payloads.iter().map(move |p| (load, p))) {
        for path in &plan.paths {
            let of = |one: &&Observed| {
                let series = &one.series;
                (series.path.as_str(), &series.payload_octets, &series.load)
                    == (path.name(), payload, &name(load))
            };
            let rounds: Vec<Series> = observed.iter().filter(of).map(|one| one.series.clone()).collect();
            document.add_rounds(rounds);
        }
    }
    Outcome { document, runs: observed.into_iter().map(|one| one.run).collect() }
}

#[cfg(test)]
mod tests;
