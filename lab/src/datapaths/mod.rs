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
//! The remote host may be another machine: [`far`] runs there.

mod apart;
pub mod bars;
pub mod bed;
pub mod bridge;
mod datapath;
mod endpoint;
pub mod far;
pub mod frame;
mod guest;
mod guest_run;
pub(crate) mod host;
mod judge;
pub mod macvtap;
mod one_run;
pub mod path;
mod station;
pub mod switch;
mod task;
mod traffic;
mod untrue;
mod windows;
pub mod xdp;

#[allow(unsafe_code)]
mod sys;

pub use guest::Guests;
pub use station::serve;

use crate::error::LabError;
use crate::exclusive::VOID_RULE;
use crate::experiment::{Event, Outcome, Setup, Watch, none_twice, repeat_void};
use crate::ovs::Polling;
use crate::remote::hosts::Hosts;
use crate::testbed::check_rights;
use apart::There;
use datapath::{Datapath, Placement, With};
use judge::{Label, Run};
use ktsn_measure::clock::{RealTime, stop_requested};
use ktsn_measure::datapaths::{Account, PARAMETER, PUBLISHED_SECONDS, SpikeCount, spikes, stable};
use ktsn_measure::results::{Check, Document};
use ktsn_time::{Nanos, Tai};
use one_run::What;
use path::{Direction, End, Ends, Load, Path, Sharing, named};
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
    /// How many runs there are.
    #[must_use]
    pub const fn runs(&self) -> u64 {
        self.paths.len() as u64
            * self.ends.each().len() as u64
            * (self.directions.len() * self.loads.len()) as u64
            * self.rounds as u64
    }

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

    /// Who runs where. The sender preempts the receiver where they share a CPU.
    fn placement(&self, end: End) -> Placement {
        if self.setup.functional {
            let polling = Polling::default();
            return Placement { switch_cpu: 0, other_cpu: 0, polling, ends: None, guest_cpu: None };
        }
        let place = |cpu, fifo| RealTime { cpu: Some(cpu), fifo: Some(fifo), ..RealTime::default() };
        if self.hosts.is_some() {
            // The remote host's end has a CPU there: a switch has the second one here for itself.
            let guest_cpu = (end == End::Guest).then_some(0);
            let polling = Polling::Spins { nice: -20 };
            let ends = Some([place(0, 41), place(0, 40)]);
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
            let ends = Some([place(1, 41), place(1, 40)]);
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
            ends: Some([place(sender_cpu, 41), place(0, 40)]),
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
    let (_lock, directory) = plan.setup.begin(watch)?;
    let mut other = match &plan.hosts {
        Some(hosts) => Some((hosts, There::begin(hosts, plan.setup.functional, directory.path())?)),
        None => None,
    };
    let mut document = Document::new("datapaths", plan.setup.command.clone());
    let mut skipped: Vec<(String, String)> = Vec::new();
    let mut runs: Vec<Run> = Vec::new();
    let rows: Vec<(Path, End)> =
        plan.ends.each().iter().flat_map(|&end| plan.paths.iter().map(move |&path| (path, end))).collect();
    for &(path, end) in &rows {
        let no_guests = plan.guests.as_ref().err().filter(|_| end == End::Guest).cloned();
        skipped.extend(
            no_guests
                .or_else(|| datapath::missing(path, plan.hosts.is_some()))
                .map(|reason| (named(path, end), reason)),
        );
    }
    for round in 1..=plan.rounds {
        for &(path, end) in &rows {
            let name = named(path, end);
            if skipped.iter().any(|(other, _)| *other == name) {
                continue;
            }
            watch(Event::Step(&format!("round {round} of {}: {name}", plan.rounds)));
            let there = other.as_mut().map(|(_, (there, ..))| there);
            match turn(plan, (path, end), there, round, directory.path(), watch) {
                Ok(of_path) => runs.extend(of_path),
                // What this machine cannot do it cannot do in the first round.
                Err(LabError::Impossible { what, remedy }) if round == 1 => {
                    skipped.push((name, format!("{what}; remedy: {remedy}")));
                }
                Err(error) => return Err(error),
            }
        }
    }
    if let (true, Some((name, reason))) = (runs.is_empty(), skipped.first()) {
        let (what, remedy) = reason.split_once("; remedy: ").unwrap_or((reason, "another path"));
        return Err(LabError::Impossible { what: format!("{name}: {what}"), remedy: remedy.to_owned() });
    }
    describe(plan, &runs, &mut document)?;
    document.checks.extend(skipped.into_iter().map(|(name, reason)| Check::skipped(name, reason)));
    document.checks.extend(clocks(&runs));
    document.add_series(runs.iter().map(|run| run.series.clone()));
    if let Some((hosts, (_, clocks, environment))) = other {
        hosts.describe(&clocks, environment, &mut document)?;
    }
    bars::compare(&mut document);
    Ok(Outcome { document, runs: runs.into_iter().map(|run| run.records).collect() })
}

/// One path's turn in a round: set up, measured in all directions and loads, removed.
fn turn(
    plan: &Plan,
    (path, end): (Path, End),
    there: Option<&mut There>,
    round: u32,
    directory: &FilePath,
    watch: &mut Watch<'_>,
) -> Result<Vec<Run>, LabError> {
    let with = match (end, &plan.guests) {
        (End::Guest, Ok(guests)) => With::Guest(guests, &plan.setup.tools),
        _ => With::StandIn,
    };
    let placement = plan.placement(end);
    let mut datapath = Datapath::set_up(path, with, placement, directory, there)?;
    let accelerator = datapath.accelerator();
    let mut runs = Vec::new();
    for (&direction, &load) in
        plan.directions.iter().flat_map(|d| plan.loads.iter().map(move |load| (d, load)))
    {
        let row = path::row(direction, load);
        let name = format!("{} {row}", named(path, end));
        let refusals = plan.setup.wait_until_quiet(watch)?.saturating_add(datapath.wait_until_quiet()?);
        watch(Event::Step(&format!("round {round} of {}: {name}", plan.rounds)));
        let label = Label { path, end, accelerator, direction, row: &row, round, intended: plan.frames };
        let what = What { direction, load, frames: plan.frames };
        let (mut run, voided) = repeat_void(&name, watch, || {
            let seen = one_run::run(&mut datapath, what, placement.ends)?;
            Ok((judge::judge(&label, &seen), judge::fault(&seen, direction)))
        })?;
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        run.series.voided_rounds = Some(voided + u64::from(refusals));
        runs.push(run);
        watch(Event::Done);
    }
    Ok(runs)
}

/// What the experiment was asked to do, how it places its threads, and what it says beside its series.
fn describe(plan: &Plan, runs: &[Run], document: &mut Document) -> Result<(), LabError> {
    let has = |end: End| plan.ends.each().contains(&end);
    let account = Account {
        scale: plan.seconds() / PUBLISHED_SECONDS,
        stable_rule: stable::RULE.to_owned(),
        spike_rule: spikes::RULE.to_owned(),
        paths: described(plan),
        stable_parts: runs.iter().filter_map(|run| run.stable.clone()).collect(),
        spikes: counted(runs),
        greatest: runs.iter().flat_map(|run| run.greatest.clone()).collect(),
    };
    document.set_parameters(&serde_json::json!({
        PARAMETER: account,
        "gate_schedule_of_sender": windows::Gates::from(Tai::ZERO)?.shown(),
        "interval_ns": INTERVAL.get(),
        "frames": plan.frames * u64::from(plan.rounds),
        "rounds": plan.rounds,
        "interleaved": true,
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
        "host_sample_ms": one_run::SAMPLE.as_millis() as u64,
        "handed_at": "ingress: the kernel's transmit stamp of the remote host's device; egress: the stand-in's clock right before its call, \
                      or the transmit stamp of the guest's kernel",
        "wire_at": "egress: the kernel's receive stamp of the remote host's device; ingress: the stand-in's clock right after its read, or \
                    the receive stamp of the guest's kernel",
        "guest_clock": "follows the host's through shared memory (vPTP); a run in which it does not is void",
        "void_rule": VOID_RULE,
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
