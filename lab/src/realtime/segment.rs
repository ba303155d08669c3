// SPDX-License-Identifier: Apache-2.0
//! One probe from its start to its end, beside its load. In: a plan, a system, a profile, how many wake-ups. Out: latencies as they come, each
//! late one with its causes; all that was started ends with the value.

use super::counters::{Counters, Snapshot};
use super::groups::{self, Group, Limits};
use super::limits::{self, Machine};
use super::load::{self, Load};
use super::plan::{Plan, System};
use super::questions::{Begun, Turn};
use super::store::Late;
use super::thread::Thread;
use super::{commands, guests};
use crate::error::LabError;
use ktsn_host::cyclictest::{Batch, Probe};
use ktsn_realtime::Profile;
use ktsn_realtime::causes::{Usual, attribute};
use ktsn_realtime::profile::Load as Kind;
use ktsn_time::{Nanos, Span};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often latencies and counters are read.
const TURN: Duration = Duration::from_millis(100);
/// A latency is read at most this long after the probe's wake-up.
const READ_WITHIN: Span = Span::from_nanos(200_000_000);
/// Snapshots that are kept: for latencies of up to six seconds.
const SNAPSHOTS_MAX: usize = 64;
/// Longest start of a probe.
pub(super) const START_MAX: Duration = Duration::from_secs(15);

/// How long a probe may be silent: it has to start.
pub(super) fn silence_max(plan: &Plan, system: System) -> Duration {
    Duration::from_secs(10) + Duration::from_nanos(plan.period.get().unsigned_abs()) * 10 + start_max(system)
}

const fn start_max(system: System) -> Duration {
    if system.is_guest() { guests::BOOT_MAX } else { START_MAX }
}

/// A running probe, and what disturbs it.
#[derive(Debug)]
pub(super) struct Segment {
    // In this order they end. The probe first, so that its control group is empty when it is removed.
    probe: Probe,
    _group: Option<Group>,
    load: Load,
    evidence: EvidenceWindow,
    log: PathBuf,
    /// How much of the log was looked through.
    log_octets: u64,
    pub(super) begun: Begun,
}

impl Segment {
    /// Starts load and probe; `folder` gets what they say.
    pub(super) fn start(
        plan: &Plan,
        machine: &Machine,
        (system, profile): (System, Profile),
        loops: u64,
        folder: &Path,
    ) -> Result<Self, LabError> {
        let load = Load::start(plan, machine, system, profile, folder)?;
        let Line { line, group, begun } = Line::new(plan, machine, system, profile, loops)?;
        let log = folder.join("probe.log");
        let name = if system.is_guest() { "the guest" } else { "cyclictest" };
        let mut probe = Probe::start(name, &line, &log, silence_max(plan, system))?;
        if system.is_linux_guest() {
            probe.ask_before_kill(guests::END_MAX);
        }
        let own = || machine.hierarchy.as_ref().map(groups::Hierarchy::own_cpu_stat);
        let cpu_stat = group.as_ref().map(Group::cpu_stat).or_else(own);
        let evidence = EvidenceWindow::new(system, begun.fifo, cpu_stat, plan.limit);
        Ok(Self { probe, _group: group, load, evidence, log, log_octets: 0, begun })
    }

    /// What comes in the next tenth of a second; `median` is the usual latency so far, in nanoseconds.
    ///
    /// # Errors
    /// The probe failed, or a part of the load has ended: what came since the last turn may have been measured without it.
    pub(super) fn turn(&mut self, median: &AtomicU64) -> Result<Turn, LabError> {
        let batch = self.probe.read(TURN)?;
        self.check_load()?;
        let median = Span::from_nanos(median.load(Ordering::Relaxed));
        let late = self.evidence.turn(self.probe.pid(), &batch, median);
        Ok(Turn { ns: batch.latencies, late, is_last: batch.is_last })
    }

    /// # Errors
    /// A part of the load has ended before the probe.
    fn check_load(&mut self) -> Result<(), LabError> {
        self.load.check()?;
        let octets = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        if octets == self.log_octets {
            return Ok(());
        }
        self.log_octets = octets;
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        if said.contains(commands::LOAD_ENDED) {
            let problem = "beside the probe ended before it".to_owned();
            let stderr = format!("; it said:\n{said}");
            return Err(LabError::Process { name: "the load".to_owned(), problem, stderr });
        }
        Ok(())
    }
}

/// A probe's command line.
struct Line {
    line: Vec<String>,
    /// The control group that its container lives in.
    group: Option<Group>,
    begun: Begun,
}

impl Line {
    /// The probe's whole command line, and what it has.
    fn new(
        plan: &Plan,
        machine: &Machine,
        system: System,
        profile: Profile,
        loops: u64,
    ) -> Result<Self, LabError> {
        if let Some(line) = Self::of_guest(plan, machine, system, profile, loops) {
            return Ok(line);
        }
        let fifo = if system.is_fifo() { machine.fifo.clone().ok() } else { None };
        let has_own_cpu = system.has_own_cpu(profile);
        let is_on_one = profile.is_pinned() || system == System::ContainerStatic;
        let cpu = is_on_one.then_some(machine.cpus.probe);
        let begun = Begun { fifo, cpu };
        let line = commands::probe(plan, fifo, cpu, loops);
        if !system.is_container() {
            return Ok(Self { line, group: None, begun });
        }
        let line = match profile.load() {
            Kind::Inside => commands::beside(load::inside(plan, machine, profile), line),
            _ => line,
        };
        let limits = Limits {
            cpus: has_own_cpu.then(|| vec![machine.cpus.probe]),
            quota: (system == System::ContainerQuota).then_some(groups::ONE_CPU),
            // cyclictest starts only where it may be SCHED_FIFO, even if it then stays an ordinary thread.
            is_fifo: true,
        };
        let hierarchy =
            machine.hierarchy.as_ref().ok_or_else(|| LabError::Usage("no control groups".to_owned()))?;
        let group = Group::new(hierarchy, &limits)?;
        let line = commands::joined(group.folders(), commands::contained(true, line));
        Ok(Self { line, group: Some(group), begun })
    }

    /// The probe in a guest.
    fn of_guest(
        plan: &Plan,
        machine: &Machine,
        system: System,
        profile: Profile,
        loops: u64,
    ) -> Option<Self> {
        if let Some(guest) = machine.guests.linux(system) {
            let stress = machine.stress.unwrap_or("stress");
            let (line, cpu) = guest.probe(plan, &machine.cpus, stress, profile, loops);
            return Some(Self { line, group: None, begun: Begun { fifo: Some(limits::FIFO_MAX), cpu } });
        }
        let guest = machine.guests.rtos.as_ref().filter(|_| system == System::Rtos)?.as_ref().ok()?;
        let cpu = profile.is_pinned().then_some(machine.cpus.probe);
        let line = guest.probe(plan, profile, cpu, loops);
        Some(Self { line, group: None, begun: Begun { fifo: None, cpu } })
    }
}

/// The counters of the last seconds, and what they usually show.
#[derive(Debug)]
struct EvidenceWindow {
    system: System,
    fifo: u8,
    cpu_stat: Option<PathBuf>,
    limit: Span,
    counters: Option<Counters>,
    snapshots: VecDeque<Snapshot>,
    usual: Usual,
    /// Whether the turn before had no late wake-up.
    was_quiet: bool,
    begun: Instant,
}

impl EvidenceWindow {
    fn new(system: System, fifo: Option<u8>, cpu_stat: Option<PathBuf>, limit: Nanos) -> Self {
        Self {
            system,
            // A guest's priorities mean nothing here: its virtual CPU is an ordinary thread.
            fifo: fifo.filter(|_| !system.is_guest()).unwrap_or(0),
            cpu_stat,
            limit: Span::not_negative(limit),
            counters: None,
            snapshots: VecDeque::new(),
            usual: Usual::default(),
            was_quiet: false,
            begun: Instant::now(),
        }
    }

    /// Reads the counters, and finds the causes of this turn's late wake-ups.
    fn turn(&mut self, root: u32, batch: &Batch, median: Span) -> Vec<Late> {
        if self.counters.is_none() && self.begun.elapsed() < start_max(self.system) {
            let found = Thread::find(root, self.system);
            self.counters = found.map(|thread| Counters::new(thread, self.fifo, self.cpu_stat.clone()));
        }
        // The turn in which the probe ends has no counters: those of the turn before stand for it.
        if let Some(now) = self.counters.as_mut().and_then(Counters::read) {
            if self.snapshots.len() == SNAPSHOTS_MAX {
                self.snapshots.pop_front();
            }
            self.snapshots.push_back(now);
        }
        let spans = batch.latencies.iter().map(|&latency| Span::not_negative(Nanos::new(latency)));
        let late = spans.enumerate().filter(|(_, latency)| *latency > self.limit);
        let late: Vec<Late> = late.map(|(index, latency)| self.late(index, latency, median)).collect();
        let is_quiet = late.is_empty();
        if let (true, true, Some(counters), [.., earlier, last, _]) =
            (is_quiet, self.was_quiet, &self.counters, self.snapshots.make_contiguous())
        {
            self.usual.add(&counters.between(earlier, last));
        }
        self.was_quiet = is_quiet;
        late
    }

    fn late(&self, index: usize, latency: Span, median: Span) -> Late {
        let lateness = latency.saturating_sub(median.min(latency));
        let mut late = Late { index, lateness_ns: lateness.as_nanos(), causes: Vec::new(), thread: None };
        if let (Some(counters), Some(last)) = (&self.counters, self.snapshots.back()) {
            let span = latency.saturating_add(READ_WITHIN);
            let before = self.snapshots.iter().rev().find(|one| last.at().span_since(one.at()) >= span);
            let evidence = counters.between(before.unwrap_or(&self.snapshots[0]), last);
            late.causes = attribute(lateness, &evidence, &self.usual);
            late.thread = evidence.thread;
        }
        late
    }
}
