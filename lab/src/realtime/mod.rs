// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt run`: a probe under loads, in systems side by side.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its member `realtime`; the records of every cell in the plan's directory. A run
//! that was killed goes on where its records end. Everything that was set up is removed; what a killed run left is removed by the next.
//!
//! ```text
//!  slice 1: host 1, host 3, …, container 1, …     slice 2: host 1, …      (one slice below an hour, else eight)
//!  each: load ── probe ──► latencies ──► record (number, checksum) ──► figures
//!                 counters every 100 ms ──► causes of late wake-ups ─┘
//! ```

mod commands;
mod counters;
mod far;
mod groups;
mod guests;
mod limits;
mod load;
mod other;
mod plan;
mod probes;
mod questions;
mod recorder;
mod segment;
mod skipped;
mod store;
mod thread;
mod tracers;

pub use far::serve;
pub use guests::Parts;
pub use other::Other;
pub use plan::{Plan, System, WORKER_MIB, WORKERS};
pub use probes::{Agreement, DISTANCE_MAX, compare_probes};

use crate::carry_out::{Experiment, Measured, Rules, Session, Terms, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Event, Watch};
use crate::remote::hosts::ANSWER_MAX;
use ktsn_measure::results::{Check, Document};
use ktsn_realtime::profile::Load;
use ktsn_realtime::results::Skip;
use ktsn_realtime::{Cell, Profile, RealTime};
use ktsn_time::{Nanos, Span};
use limits::Machine;
use questions::{Begun, Question, Turn as Taken};
use recorder::Recorder;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::Instant;
use store::{Header, Record, Store};

/// The file format of records.
const VERSION: u32 = 1;

/// Where one cell stands.
struct Place {
    system: System,
    profile: Profile,
    /// Its records, and what they come to.
    record: Option<(Store, Recorder)>,
    /// Why it is not measured.
    skip: Option<Skip>,
}

impl Place {
    fn samples(&self) -> u64 {
        self.record.as_ref().map_or(0, |(_, recorder)| recorder.samples())
    }
}

/// Measures all cells of a plan.
///
/// # Errors
/// [`LabError::Nothing`] when no cell can be measured, with each system's reason. Any other [`LabError`]: the records that were written
/// stay, and the same plan with `resume` goes on behind them.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Document, LabError> {
    plan.check()?;
    let measure = |session: &mut Session<'_>| {
        let folder = |name: &str| {
            let folder = plan.out.join(name);
            std::fs::create_dir_all(&folder).map_err(LabError::file(&folder)).map(|()| folder)
        };
        let (records, log) = (folder("records")?, folder("log")?);
        let _directory = store::own(&plan.out, plan.resume)?;
        let machine = Machine::look(plan, &mut |step| (session.watch)(Event::Notice(step)))?;
        machine.notices().iter().for_each(|notice| (session.watch)(Event::Notice(notice)));
        describe(plan, &machine, &mut session.document);
        let mut cells = Cells { plan, machine: &machine, log, all: Vec::new() };
        for (&system, &profile) in
            plan.systems.iter().flat_map(|system| plan.profiles.iter().map(move |p| (system, p)))
        {
            let skip = machine.skip(plan, system, profile);
            let record = skip.is_none().then(|| open(plan, &machine, &records, system, profile));
            cells.all.push(Place { system, profile, record: record.transpose()?, skip });
        }
        let slices = u32::try_from(plan.slices().len()).unwrap_or(u32::MAX);
        match session.measure(&mut cells, slices) {
            Err(LabError::Nothing(_)) => return Err(skipped::all(&cells.cells())),
            done => done?,
        }
        session.document.realtime = Some(conclude(plan, cells.cells(), &cells.log)?);
        Ok(())
    };
    let terms =
        Terms { name: "rt", lock: plan.lock.as_deref(), command: &plan.command, rules: Rules::Disturbed };
    Ok(carry_out(&terms, watch, measure, |_, _| ())?.whole()?.document)
}

/// The result of all cells, with what the kernel's tracers say.
fn conclude(plan: &Plan, mut cells: Vec<Cell>, log: &Path) -> Result<RealTime, LabError> {
    cells.sort_by_key(|cell| {
        (plan.systems.iter().position(|&system| plan.name(system) == cell.system), cell.profile)
    });
    let nanos = |span: Nanos| Span::not_negative(span).as_nanos();
    let mut found = RealTime {
        period_ns: nanos(plan.period),
        planned_ns: nanos(plan.duration),
        excursion_limit_ns: nanos(plan.limit),
        share_ratio: plan.share,
        requirements: plan.requirements.clone(),
        cells,
        ..RealTime::default()
    };
    if plan.systems.contains(&System::Host) {
        found.tracers = tracers::run(plan.duration, log)?;
    }
    found.conclude();
    Ok(found)
}

fn describe(plan: &Plan, machine: &Machine, document: &mut Document) {
    let systems = plan.systems.iter().map(|&one| format!("{}: {}", plan.name(one), one.describe()));
    let systems: Vec<String> = systems.collect();
    let profiles: Vec<String> =
        plan.profiles.iter().map(|one| format!("{one}: {}", one.describe())).collect();
    document.set_parameters(&json!({
        "period_ns": plan.period.get(),
        "duration_ns": plan.duration.get(),
        "systems": systems,
        "profiles": profiles,
        "probe": "cyclictest (rt-tests), one thread, CLOCK_MONOTONIC, memory locked, /dev/cpu_dma_latency 0",
        "load": machine.stress.unwrap_or("none"),
        "workers": plan.workers,
        "worker_mib": plan.worker_mib,
        "disk_load": if machine.has_fio { "fio" } else { "dd" },
        "probe_cpu": machine.cpus.probe,
        "cpus": machine.cpus.all,
    }));
}

fn open(
    plan: &Plan,
    machine: &Machine,
    records: &Path,
    system: System,
    profile: Profile,
) -> Result<(Store, Recorder), LabError> {
    let header = Header {
        version: VERSION,
        system: plan.name(system),
        profile,
        period_ns: Span::not_negative(plan.period).as_nanos(),
        samples: plan.samples(),
        limit_ns: Span::not_negative(plan.limit).as_nanos(),
        workers: plan.workers,
        worker_mib: plan.worker_mib,
        accelerator: machine.guests.linux(system).map(|guest| guest.accelerator().to_string()),
        load: match profile.load() {
            Load::None => None,
            Load::Inside | Load::Neighbours => machine.stress.map(str::to_owned),
            Load::Network => Some("iperf3".to_owned()),
            Load::Disk => Some(if machine.has_fio { "fio" } else { "dd" }.to_owned()),
        },
    };
    let mut recorder = Recorder::new(plan.samples(), plan.period);
    let path = records.join(format!("{}-{profile}.rt", plan.name(system)));
    let store = Store::open(&path, &header, plan.resume, |record| recorder.take(&record))?;
    Ok((store, recorder))
}

/// Whether this failure is that of the system, and the other cells can be measured.
fn can_skip(system: System, error: &LabError) -> bool {
    match error {
        LabError::Process { .. } | LabError::Start { .. } => system.is_guest(),
        LabError::Remote { .. } => system == System::Ssh,
        _ => false,
    }
}

/// The cells of a plan, measured in slices.
struct Cells<'a> {
    plan: &'a Plan,
    machine: &'a Machine,
    log: PathBuf,
    all: Vec<Place>,
}

impl Experiment for Cells<'_> {
    /// The place's number.
    type Row = usize;
    type Extra = ();

    fn rows(&self) -> Vec<usize> {
        (0..self.all.len()).collect()
    }

    fn name(&self, &index: &usize) -> String {
        let Place { system, profile, .. } = self.all[index];
        format!("{}, profile {profile}", self.plan.name(system))
    }

    fn missing(&self, &index: &usize) -> Option<String> {
        let Skip { kind, reason } = self.all[index].skip.as_ref()?;
        Some(format!("{reason} ({kind})"))
    }

    fn units(&self, _: &usize) -> u64 {
        self.plan.samples() / self.plan.slices().len() as u64
    }

    /// Measures a cell until it has the samples of its slice. A guest or another machine that yields no latency at all is a typed skip.
    fn run(&mut self, &index: &usize, turn: &mut Turn<'_>) -> Result<Measured, LabError> {
        let slices = self.plan.slices();
        let slice = usize::try_from(turn.round).unwrap_or(usize::MAX).min(slices.len());
        let before = if slice < 2 { 0 } else { slices[slice - 2] };
        let target = slices[slice.saturating_sub(1)];
        while self.all[index].samples() < target {
            let begun = self.all[index].samples();
            if let Err(error) = self.segment(index, target - begun, before, turn) {
                let system = self.all[index].system;
                if self.all[index].samples() > 0 || !can_skip(system, &error) {
                    return Err(error);
                }
                let what = guests::one_line(&error.to_string());
                let kind = if system.is_guest() { "guest_failed" } else { "host_failed" };
                self.all[index].skip = Some(Skip { kind: kind.to_owned(), reason: what.clone() });
                let remedy = format!("see {}", self.log.display());
                return Err(LabError::Impossible { what, remedy });
            }
            if self.all[index].samples() == begun {
                let (name, problem) = ("the probe".to_owned(), "ended without a latency".to_owned());
                return Err(LabError::Process { name, problem, stderr: String::new() });
            }
        }
        Ok(Measured::default())
    }

    /// Its cell says it.
    fn skipped(&mut self, _: &usize, _: String) -> Option<Check> {
        None
    }
}

impl Cells<'_> {
    /// One probe from its start to its end, in a slice that begins behind `before` samples.
    fn segment(
        &mut self,
        index: usize,
        loops: u64,
        before: u64,
        turn: &mut Turn<'_>,
    ) -> Result<(), LabError> {
        let (plan, machine) = (self.plan, self.machine);
        let Place { system, profile, record, .. } = &mut self.all[index];
        let Some((store, recorder)) = record else { return Ok(()) };
        let mut end = match &plan.other {
            Some(other) if *system == System::Ssh => other::begin(other, plan)?.0,
            _ => far::here(plan, machine, *system, &self.log),
        };
        let Begun { fifo, cpu } = end.ask(Question::Begin { profile: *profile, loops }, ANSWER_MAX)?;
        recorder.check_start(fifo, cpu).map_err(|problem| store.refuse(problem))?;
        store.append(&Record::Start { fifo, cpu })?;
        recorder.take(&Record::Start { fifo, cpu });
        // The end itself says earlier that its probe is silent.
        let silence_max = segment::silence_max(plan, *system) + ANSWER_MAX;
        let (mut left, mut heard) = (loops, Instant::now());
        loop {
            let median_ns = recorder.median().unwrap_or_default().as_nanos();
            let taken: Taken = end.ask(Question::Read { median_ns }, ANSWER_MAX)?;
            if let Some(problem) = taken.refusal(left) {
                return Err(end.refuse(problem));
            }
            let Taken { ns, late, is_last } = taken;
            left -= ns.len() as u64;
            if ns.is_empty() && heard.elapsed() > silence_max {
                return Err(end.refuse(format!("it gave no latency for {silence_max:?}")));
            }
            if !ns.is_empty() {
                heard = Instant::now();
                let record = Record::Samples { ns, late };
                store.append(&record)?;
                recorder.take(&record);
            }
            turn.progress(recorder.samples().saturating_sub(before));
            if is_last {
                return Ok(());
            }
        }
    }

    /// The cells as they stand.
    fn cells(&self) -> Vec<Cell> {
        let of = |place: &Place| {
            let Place { system, profile, record, skip } = place;
            let name = self.plan.name(*system);
            let cell = match record {
                Some((_, recorder)) => {
                    Cell { environment: self.machine.environment(*system), ..recorder.cell(&name, *profile) }
                }
                None => Cell::new(&name, *profile),
            };
            Cell { skip: skip.clone(), ..cell }
        };
        self.all.iter().map(of).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ktsn_realtime::requirements::table_1;
    use ktsn_realtime::verdict::Share;

    /// A small plan.
    pub(crate) fn plan(out: &Path) -> Plan {
        Plan {
            systems: vec![System::Host],
            profiles: vec![Profile::ALL[0]],
            period: Nanos::from_millis(1),
            duration: Nanos::from_seconds(1),
            limit: Nanos::from_micros(100),
            requirements: table_1(),
            share: Share::default(),
            workers: 2,
            worker_mib: 8,
            cpu: None,
            out: out.to_owned(),
            resume: false,
            lock: None,
            other: None,
            guests: Parts {
                tools: Err("no tools".to_owned()),
                cache: crate::vm::Cache::find(Some(out)),
                accelerator: None,
                workspace: out.to_owned(),
            },
            command: Vec::new(),
        }
    }
}
