// SPDX-License-Identifier: Apache-2.0
//! The experiment `datapaths`: the ways between a virtual machine's network device and the uplink of its host, in both directions, idle and
//! beside three UDP streams, behind the gates of a publication.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with a series for each path, direction and load. On the virtual machine's side is a
//! *stand-in* (a thread that owns what QEMU's backend owns, so that no guest's work is measured), a guest, or one after the other.
//! Everything set up is removed whatever happens, and nothing is made in the caller's own network namespace. `docs/design/datapaths.md`
//! says what is measured where.
//!
//! ```text
//!  stand-in or guest ── tap, macvtap or vhost-user ── [the datapath] ── up0 ════ far0 ── remote host
//!  `near`               namespace of the host                                   namespace of the remote host
//! ```
//! The remote host's end ([`far`]) is in this process, or on another machine.

pub mod bars;
pub mod bed;
pub mod bridge;
mod carried;
mod datapath;
mod endpoint;
pub mod far;
pub mod frame;
mod guest;
mod guest_run;
pub(crate) mod host;
mod judge;
pub mod macvtap;
mod near;
mod one_run;
pub mod path;
mod remote;
mod station;
pub mod switch;
mod task;
mod traffic;
mod windows;
pub mod xdp;

#[allow(unsafe_code)]
mod sys;

pub use guest::Guests;
pub use station::serve;

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Outcome, Setup, Watch, none_twice};
use crate::ovs::Polling;
use crate::remote::hosts::Hosts;
use crate::testbed::check_rights;
use carried::{What, places};
use datapath::{Datapath, Placement, With};
use judge::{Label, Run};
use ktsn_measure::datapaths::{Account, PARAMETER, PUBLISHED_SECONDS, SpikeCount, spikes, stable};
use ktsn_measure::results::{Check, Document};
use ktsn_time::{Nanos, Tai};
use path::{Direction, End, Ends, Load, Path, Sharing, named};
use remote::Remote;
use std::collections::BTreeMap;
use std::path::Path as FilePath;

/// The interval of measured frames, and the least count of a round: the stable part needs 30.
pub const INTERVAL: Nanos = windows::INTERVAL;
const FRAMES_MIN: u64 = 30;
const FRAMES_MAX: u64 = 1_000_000;
/// Most sleep of a switch's polling thread that shares its CPU with a guest.
const SWITCH_SLEEP_US: u32 = 50;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Paths, in the order of their turns.
    pub paths: Vec<Path>,
    /// Directions.
    pub directions: Vec<Direction>,
    /// Loads.
    pub loads: Vec<Load>,
    /// Rounds.
    pub rounds: u32,
    /// Measured frames of a row in a round.
    pub frames: u64,
    /// What is on the virtual machine's side.
    pub ends: Ends,
    /// How guests run here, or why there are none.
    pub guests: Result<Guests, String>,
    /// How the two ends and a switch share the machine.
    pub sharing: Sharing,
    /// The remote host, if it is another machine.
    pub hosts: Option<Hosts>,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// Seconds of traffic for a row.
    fn seconds(&self) -> f64 {
        (self.frames * u64::from(self.rounds)) as f64 * INTERVAL.get() as f64 / 1e9
    }

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        none_twice("path", &self.paths)?;
        none_twice("direction", &self.directions)?;
        none_twice("load", &self.loads)?;
        let counts =
            [("path", self.paths.len()), ("direction", self.directions.len()), ("load", self.loads.len())];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(LabError::Usage(format!("{what}: expected one at least")));
        }
        if self.hosts.is_some() && self.sharing == Sharing::Together {
            return Err(LabError::Usage(
                "sharing: together: both ends share a CPU of one machine; leave it out with two hosts"
                    .to_owned(),
            ));
        }
        if self.rounds == 0 || !(FRAMES_MIN..=FRAMES_MAX).contains(&self.frames) {
            return Err(LabError::Usage(format!(
                "{} rounds of {} frames: expected one round at least, and {FRAMES_MIN} to {FRAMES_MAX} frames in each (an interval \
                 is 1.006 ms)",
                self.rounds, self.frames
            )));
        }
        Ok(())
    }

    /// Who runs where.
    fn placement(&self, end: End) -> Placement {
        if self.setup.functional {
            let polling = Polling::default();
            return Placement { switch_cpu: 0, other_cpu: 0, polling, ends: None, guest_cpu: None };
        }
        if self.hosts.is_some() {
            // The remote host's end has a CPU there: a switch has the second one here for itself.
            let guest_cpu = (end == End::Guest).then_some(0);
            let polling = Polling::Spins { nice: -20 };
            let ends = Some(places([0, 0]));
            return Placement { switch_cpu: 1, other_cpu: 0, polling, ends, guest_cpu };
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        if end == End::Guest {
            // The remote host's end is a polling real-time thread in both directions: a switch has to run beside the guest. With a third
            // CPU it has that for itself.
            let (switch_cpu, polling) = if cpus > 2 {
                (2, Polling::Spins { nice: -20 })
            } else {
                (0, Polling::Sleeps { us_max: SWITCH_SLEEP_US })
            };
            let ends = Some(places([1, 1]));
            return Placement { switch_cpu, other_cpu: 0, polling, ends, guest_cpu: Some(0) };
        }
        let (sender_cpu, switch_cpu) = match self.sharing {
            Sharing::Together => (0, 1),
            Sharing::Apart if cpus > 2 => (1, 2),
            Sharing::Apart => (1, 1),
        };
        Placement {
            switch_cpu,
            other_cpu: 0,
            polling: Polling::Spins { nice: -20 },
            ends: Some(places([sender_cpu, 0])),
            guest_cpu: None,
        }
    }

    /// The same in words.
    fn placement_in_words(&self, end: End) -> String {
        if let (Some(hosts), Placement { ends: Some(_), .. }) = (&self.hosts, self.placement(end)) {
            let near = match end {
                End::StandIn => "the stand-in SCHED_FIFO 41 (sender) or 40 (receiver)",
                End::Guest => "the guest (all of QEMU's threads, ordinary)",
            };
            return format!(
                "{near} on CPU 0, with the samples of the host and a switch's other threads; a switch's polling thread (ordinary, nice -20), \
                 and its main thread where that reads the ports, on CPU 1; the remote host's end SCHED_FIFO 41 (sender) or 40 (receiver) on \
                 CPU 1 of {}",
                hosts.remote.target
            );
        }
        match (self.placement(end), end) {
            (Placement { ends: Some(_), switch_cpu, .. }, End::Guest) => format!(
                "the guest (all of QEMU's threads, ordinary) on CPU 0; the remote host's end SCHED_FIFO 41 (sender) or 40 (receiver) on CPU \
                 1; a switch's polling thread on CPU {switch_cpu}, where that is the guest's CPU asleep up to {SWITCH_SLEEP_US} µs at a time"
            ),
            (Placement { ends: Some([sender, _]), switch_cpu, .. }, End::StandIn) => format!(
                "{}: receiver SCHED_FIFO 40 on CPU 0, with the samples of the host and the switch's other threads; sender SCHED_FIFO 41 on \
                 CPU {}; a switch's polling thread (ordinary, nice -20), and its main thread where that reads the ports, on CPU {switch_cpu}",
                self.sharing,
                sender.cpu.unwrap_or(0)
            ),
            _ => "none: a functional run, its times mean nothing".to_owned(),
        }
    }
}

/// Measures, by turns: each round sets every path up once. `watch` hears what is done next. A path that this machine lacks is a skipped
/// check.
///
/// # Errors
/// [`LabError`]: none of the paths is possible here, a part of a path has ended, or it could not be measured. Everything that was set up
/// is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    check_rights()?;
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        describe(plan, &mut session.document)?;
        let (remote, known) = Remote::begin(plan.hosts.as_ref(), plan.setup.functional, directory)?;
        let mut turns = Turns { plan, directory, remote, stands: None };
        session.measure_between(&mut turns, plan.rounds, plan.hosts.as_ref().zip(known))
    };
    carry_out(&plan.setup.terms("datapaths"), watch, measure, |document, _| bars::compare(document))
}

/// The datapaths, of which one stands at a time.
struct Turns<'a> {
    plan: &'a Plan,
    directory: &'a FilePath,
    remote: Remote,
    stands: Option<(Path, End, Datapath)>,
}

/// What one run has.
#[derive(Clone, Copy)]
struct Row {
    path: Path,
    end: End,
    direction: Direction,
    load: Load,
}

impl Turns<'_> {
    /// The row's datapath, set up if another one stands.
    fn stand(&mut self, Row { path, end, .. }: Row) -> Result<(&mut Datapath, &mut Remote), LabError> {
        let Self { plan, remote, .. } = self;
        let datapath = match self.stands.take() {
            Some((stands, at, datapath)) if (stands, at) == (path, end) => datapath,
            other => {
                drop(other);
                let with = match (end, &plan.guests) {
                    (End::Guest, Ok(guests)) => With::Guest(guests, &plan.setup.tools),
                    _ => With::StandIn,
                };
                Datapath::set_up(path, with, plan.placement(end), self.directory, remote)?
            }
        };
        let (.., datapath) = self.stands.insert((path, end, datapath));
        Ok((datapath, remote))
    }
}

impl Experiment for Turns<'_> {
    type Row = Row;
    type Extra = Run;

    /// One path's rows stand together, because it is set up for them.
    fn rows(&self) -> Vec<Row> {
        let Plan { paths, directions, loads, ends, .. } = self.plan;
        let mut rows = Vec::new();
        for &end in ends.each() {
            for &path in paths {
                for &direction in directions {
                    rows.extend(loads.iter().map(|&load| Row { path, end, direction, load }));
                }
            }
        }
        rows
    }

    fn name(&self, row: &Row) -> String {
        format!("{} {}", self.subject(row), path::row(row.direction, row.load))
    }

    fn subject(&self, row: &Row) -> String {
        named(row.path, row.end)
    }

    fn missing(&self, row: &Row) -> Option<String> {
        let no_guests = self.plan.guests.as_ref().err().filter(|_| row.end == End::Guest).cloned();
        no_guests.or_else(|| datapath::missing(row.path, self.plan.hosts.is_some()))
    }

    fn prepare(&mut self, &row: &Row, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        self.stand(row)?.1.end.wait_until_quiet(watch)
    }

    fn run(&mut self, &row: &Row, turn: &mut Turn<'_>) -> Result<Measured<Run>, LabError> {
        let Row { path, end, direction, load } = row;
        let (frames, ends) = (self.plan.frames, self.plan.placement(end).ends);
        let (datapath, remote) = self.stand(row)?;
        let seen = one_run::run(datapath, remote, What { direction, load, frames }, ends)?;
        let (accelerator, row) = (datapath.accelerator(), path::row(direction, load));
        let label =
            Label { path, end, accelerator, direction, row: &row, round: turn.round, intended: frames };
        let mut run = judge::judge(&label, &seen);
        let records = std::mem::take(&mut run.records);
        Ok(Measured::one((run.series.clone(), records), judge::fault(&seen, direction)).with(run))
    }

    fn conclude(&mut self, runs: Vec<Run>, document: &mut Document) -> Result<(), LabError> {
        document.parameters.insert(PARAMETER.to_owned(), serde_json::json!(account(self.plan, &runs)));
        document.checks.extend(clocks(&runs));
        Ok(())
    }
}

/// What the document says beside its series.
fn account(plan: &Plan, runs: &[Run]) -> Account {
    Account {
        scale: plan.seconds() / PUBLISHED_SECONDS,
        stable_rule: stable::RULE.to_owned(),
        spike_rule: spikes::RULE.to_owned(),
        paths: described(plan),
        stable_parts: runs.iter().filter_map(|run| run.stable.clone()).collect(),
        spikes: counted(runs),
        greatest: runs.iter().flat_map(|run| run.greatest.clone()).collect(),
    }
}

/// What the experiment was asked to do, how it places its threads.
fn describe(plan: &Plan, document: &mut Document) -> Result<(), LabError> {
    let has = |end: End| plan.ends.each().contains(&end);
    document.set_parameters(&serde_json::json!({
        "gate_schedule_of_sender": windows::Gates::from(Tai::ZERO)?.shown(),
        "interval_ns": INTERVAL.get(),
        "frames": plan.frames * u64::from(plan.rounds),
        "endpoints": plan.ends.word(),
        "accelerator": plan.guests.as_ref().ok().filter(|_| has(End::Guest)).map(|guests| guests.choice.accelerator.to_string()),
        "accelerator_reason": plan.guests.as_ref().ok().filter(|_| has(End::Guest)).map(|guests| guests.choice.reason.clone()),
        "load": format!(
            "udp: {} streams, {} frames of {} octets of payload each in every window of the bulk class, by the sender of the measured frames",
            frame::STREAMS,
            traffic::LOAD_FRAMES,
            frame::LOAD_OCTETS
        ),
        "sender_polls_ns": traffic::SENDER_AHEAD.get(),
        "receiver_polls_ns": traffic::RECEIVER_AHEAD.get(),
        "host_sample_ms": carried::SAMPLE.as_millis() as u64,
        "handed_at": "ingress: the kernel's transmit stamp of the remote host's device; egress: the stand-in's clock right before its call, \
                      or the transmit stamp of the guest's kernel",
        "wire_at": "egress: the kernel's receive stamp of the remote host's device; ingress: the stand-in's clock right after its read, or \
                    the receive stamp of the guest's kernel",
        "guest_clock": "follows the host's through shared memory (vPTP); a run in which it does not is void",
        "sharing": plan.hosts.is_none().then(|| plan.sharing.word()),
        "placement": has(End::StandIn).then(|| plan.placement_in_words(End::StandIn)),
        "placement_of_guests": has(End::Guest).then(|| plan.placement_in_words(End::Guest)),
    }));
    Ok(())
}

/// How well the clocks of the guests followed the host's: a run in which one did not is void.
fn clocks(runs: &[Run]) -> Vec<Check> {
    let mut bounds: BTreeMap<&str, Nanos> = BTreeMap::new();
    for run in runs {
        if let Some(bound) = run.clock_bound {
            let greatest = bounds.entry(&run.series.path).or_insert(bound);
            *greatest = bound.max(*greatest);
        }
    }
    let check = |(path, bound): (&str, Nanos)| {
        let sentence =
            format!("followed the host's; its error was at most {:.1} µs", bound.get() as f64 / 1e3);
        Check::of(format!("{path} has the host's time"), true, Some(sentence))
    };
    bounds.into_iter().map(check).collect()
}

/// What each path of a series is.
fn described(plan: &Plan) -> BTreeMap<String, String> {
    let rows = plan.ends.each().iter().flat_map(|&end| plan.paths.iter().map(move |&path| (path, end)));
    let words = |(path, end): (Path, End)| match end {
        End::StandIn => path.describe().to_owned(),
        End::Guest => format!("a guest; {}", path.describe()),
    };
    rows.map(|row| (named(row.0, row.1), words(row))).collect()
}

/// The spikes of all rounds of each row, by cause.
fn counted(runs: &[Run]) -> Vec<SpikeCount> {
    let mut all: Vec<SpikeCount> = Vec::new();
    for count in runs.iter().flat_map(|run| &run.spikes) {
        let is_same = |other: &&mut SpikeCount| {
            (&other.path, &other.load, &other.cause) == (&count.path, &count.load, &count.cause)
        };
        match all.iter_mut().find(is_same) {
            Some(sum) => {
                sum.over_500us += count.over_500us;
                sum.over_1ms += count.over_1ms;
            }
            None => all.push(count.clone()),
        }
    }
    all
}

#[cfg(test)]
mod live_tests;
#[cfg(test)]
mod tests;
