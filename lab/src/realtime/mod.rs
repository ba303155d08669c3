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
mod probe;
mod probes;
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

use crate::error::LabError;
use crate::exclusive::MeasureLock;
use ktsn_measure::results::Document;
use ktsn_realtime::profile::Load;
use ktsn_realtime::results::Skip;
use ktsn_realtime::{Cell, Profile, RealTime};
use ktsn_time::{Nanos, Span};
use limits::Machine;
use other::There;
use recorder::Recorder;
use segment::{Begun, Segment, Turn};
use serde_json::json;
use std::path::{Path, PathBuf};
use store::{Header, Record, Store};

/// The file format of records.
const VERSION: u32 = 1;

/// What happens while a run lasts.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Another measurement holds the lock.
    WaitingForLock,
    /// What limits the run here.
    Notice(&'a str),
    /// Samples so far, of all cells together.
    Measured {
        /// The cell that is measured.
        cell: &'a str,
        /// Samples that there are.
        done: u64,
        /// Samples that there will be.
        all: u64,
    },
}

/// Hears what happens.
pub type Watch<'a> = dyn FnMut(Event<'_>) + 'a;

/// A cell that is measured.
struct Running {
    system: System,
    profile: Profile,
    store: Store,
    recorder: Recorder,
    /// Why it could not be measured after all.
    skip: Option<Skip>,
}

/// Measures all cells of a plan.
///
/// # Errors
/// [`LabError::Nothing`] when no cell can be measured, with each system's reason. Any other [`LabError`]: the records that were written
/// stay, and the same plan with `resume` goes on behind them.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Document, LabError> {
    plan.check()?;
    let lock = plan.lock.as_deref();
    let _lock = lock.map(|lock| MeasureLock::take(lock, || watch(Event::WaitingForLock))).transpose()?;
    let folder = |name: &str| {
        let folder = plan.out.join(name);
        std::fs::create_dir_all(&folder).map_err(LabError::file(&folder)).map(|()| folder)
    };
    let (records, log) = (folder("records")?, folder("log")?);
    let _directory = store::own(&plan.out, plan.resume)?;
    let machine = Machine::look(plan, &mut |step| watch(Event::Notice(step)))?;
    machine.notices().iter().for_each(|notice| watch(Event::Notice(notice)));
    let mut document = Document::new("rt", plan.command.clone());
    describe(plan, &machine, &mut document);
    let (mut running, mut skipped) = (Vec::new(), Vec::new());
    for (&system, &profile) in
        plan.systems.iter().flat_map(|system| plan.profiles.iter().map(move |p| (system, p)))
    {
        match machine.skip(plan, system, profile) {
            Some(skip) => {
                say_skip(&plan.name(system), profile, &skip, watch);
                skipped.push(Cell { skip: Some(skip), ..Cell::new(&plan.name(system), profile) });
            }
            None => running.push(open(plan, &machine, &records, system, profile)?),
        }
    }
    if running.is_empty() {
        return Err(skipped::all(&skipped));
    }
    let log_of_tracers = log.clone();
    let mut runner =
        Runner { plan, machine: &machine, log, all: plan.samples() * running.len() as u64, done: 0 };
    runner.done = running.iter().map(|cell| cell.recorder.samples()).sum();
    for target in plan.slices() {
        for cell in running.iter_mut().filter(|cell| cell.skip.is_none()) {
            runner.measure_or_skip(cell, target, watch)?;
        }
    }
    let measured = running.into_iter().map(|cell| Cell {
        environment: machine.environment(cell.system),
        skip: cell.skip,
        ..cell.recorder.cell(&plan.name(cell.system), cell.profile)
    });
    let cells: Vec<Cell> = measured.chain(skipped).collect();
    if cells.iter().all(|cell| cell.skip.is_some()) {
        return Err(skipped::all(&cells));
    }
    document.realtime = Some(conclude(plan, cells, &log_of_tracers)?);
    Ok(document)
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

fn say_skip(system: &str, profile: Profile, skip: &Skip, watch: &mut Watch<'_>) {
    watch(Event::Notice(&format!("{system}, profile {profile} is skipped: {} ({})", skip.reason, skip.kind)));
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
) -> Result<Running, LabError> {
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
    Ok(Running { system, profile, store, recorder, skip: None })
}

/// Whether this failure is that of the system, and the other cells can be measured.
fn can_skip(system: System, error: &LabError) -> bool {
    match error {
        LabError::Process { .. } | LabError::Start { .. } => system.is_guest(),
        LabError::Remote(_) => system == System::Ssh,
        _ => false,
    }
}

/// What all slices of a run share.
struct Runner<'a> {
    plan: &'a Plan,
    machine: &'a Machine,
    log: PathBuf,
    all: u64,
    done: u64,
}

impl Runner<'_> {
    /// Measures a cell until it has `target` samples. A guest or another machine that yields no latency at all makes the cell a typed skip.
    fn measure_or_skip(
        &mut self,
        cell: &mut Running,
        target: u64,
        watch: &mut Watch<'_>,
    ) -> Result<(), LabError> {
        match self.measure(cell, target, watch) {
            Err(error) if cell.recorder.samples() == 0 && can_skip(cell.system, &error) => {
                let reason = guests::one_line(&error.to_string());
                let kind = if cell.system.is_guest() { "guest_failed" } else { "host_failed" };
                let skip = Skip { kind: kind.to_owned(), reason };
                say_skip(&self.plan.name(cell.system), cell.profile, &skip, watch);
                cell.skip = Some(skip);
                self.all -= self.plan.samples();
                Ok(())
            }
            done => done,
        }
    }

    /// Measures a cell until it has `target` samples.
    fn measure(&mut self, cell: &mut Running, target: u64, watch: &mut Watch<'_>) -> Result<(), LabError> {
        while cell.recorder.samples() < target {
            let begun = cell.recorder.samples();
            self.segment(cell, target - begun, watch)?;
            if cell.recorder.samples() == begun {
                let (name, problem) = ("the probe".to_owned(), "ended without a latency".to_owned());
                return Err(LabError::Process { name, problem, stderr: String::new() });
            }
        }
        Ok(())
    }

    /// One probe from its start to its end.
    fn segment(&mut self, cell: &mut Running, loops: u64, watch: &mut Watch<'_>) -> Result<(), LabError> {
        let (plan, machine) = (self.plan, self.machine);
        let of = (cell.system, cell.profile);
        let mut source = match (&plan.other, cell.system) {
            (Some(other), System::Ssh) => {
                Source::There(Box::new(There::start(other, plan, cell.profile, loops)?))
            }
            _ => Source::Here(Box::new(Segment::start(plan, machine, of, loops, &self.log)?)),
        };
        let Begun { fifo, cpu } = source.begun();
        cell.recorder.check_start(fifo, cpu).map_err(|problem| cell.store.refuse(problem))?;
        cell.store.append(&Record::Start { fifo, cpu })?;
        cell.recorder.take(&Record::Start { fifo, cpu });
        let name = format!("{}, profile {}", plan.name(cell.system), cell.profile);
        loop {
            let Turn { ns, late, is_last } = source.turn(cell.recorder.median())?;
            self.done += ns.len() as u64;
            if !ns.is_empty() {
                let record = Record::Samples { ns, late };
                cell.store.append(&record)?;
                cell.recorder.take(&record);
            }
            watch(Event::Measured { cell: &name, done: self.done, all: self.all });
            if is_last {
                return Ok(());
            }
        }
    }
}

/// Where the probe runs.
enum Source {
    Here(Box<Segment>),
    There(Box<There>),
}

impl Source {
    const fn begun(&self) -> Begun {
        match self {
            Self::Here(segment) => segment.begun,
            Self::There(there) => there.begun,
        }
    }

    fn turn(&mut self, median: Option<Span>) -> Result<Turn, LabError> {
        match self {
            Self::Here(segment) => segment.turn(median),
            // The other machine finds the causes, with a median of its own.
            Self::There(there) => there.turn(),
        }
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
