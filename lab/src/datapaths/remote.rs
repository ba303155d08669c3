// SPDX-License-Identifier: Apache-2.0
//! The remote host as a run sees it, wherever its end is ([`End`]).
//!
//! In: what is sent. Out: the end's part of a run. The clocks of two machines are held against each other ([`impossible`]).

use super::bed::Bed;
use super::carried::{Carried, FOLLOWING, Part, There, What};
use super::far::{End, Ended, FACTS, LATE_MAX, Question, SAMPLES, Served};
use super::host::{Sample, own_thread};
use super::near::PASSES_MAX;
use super::path::{Direction, Path};
use super::task::{Answer, Task};
use super::traffic::{Receiving, Sending, SentFrame};
use crate::error::LabError;
use crate::remote::hosts::{ANSWER_MAX, Hosts, Known, Passage, impossible};
use crate::remote::no_json;
use ktsn_measure::clock::{RealTime, tai_now};
use ktsn_time::{Nanos, Tai};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::path::PathBuf;
use std::time::Duration;

/// From the question to the first frame, at the first try; each further one has twice as much.
const AHEAD_HERE: Nanos = Nanos::from_millis(30);
const AHEAD_THERE: Nanos = Nanos::from_millis(250);
/// A run that was begun later than this before its first frame is repeated, and how often.
const AHEAD_MIN: Nanos = Nanos::from_millis(20);
pub(super) const TRIES_MAX: u32 = 5;
/// What the names of the other machine's counters begin with, and of an end of this process, which counts as a receiver.
const ORIGIN: &str = "remote";
const ORIGIN_HERE: &str = "receiver";

/// The remote host. It ends with the value.
pub(crate) struct Remote {
    pub(super) end: End,
    /// Both hosts, where it is another one.
    hosts: Option<Hosts>,
    /// For its files.
    directory: PathBuf,
}

impl Remote {
    /// Checks the other host, if there is one, and sets it up: its clock and its environment come with it. In this process it has an end
    /// with each [`Self::bed`].
    ///
    /// # Errors
    /// What is missing there.
    pub(super) fn begin(
        hosts: Option<&Hosts>,
        functional: bool,
        directory: &FilePath,
    ) -> Result<(Self, Option<Known>), LabError> {
        let (mut end, mut known) = (End::Here(Box::default()), None);
        if let Some(hosts) = hosts {
            let clocks = hosts.check()?;
            let (far, _, environment) = hosts.begin("datapaths", functional)?;
            (end, known) = (End::There(Box::new(far)), Some(Known { clocks, environment }));
        }
        Ok((Self { end, hosts: hosts.cloned(), directory: directory.to_owned() }, known))
    }

    /// The bed of a path, with this end.
    ///
    /// # Errors
    /// As [`Bed::new`] and [`Bed::half`].
    pub(super) fn bed(&mut self, path: Path, ends: Option<[RealTime; 2]>) -> Result<Bed, LabError> {
        if let Some(hosts) = &self.hosts {
            // A macvtap is on the machine's device itself.
            return Bed::half(&hosts.uplinks[0], path != Path::Macvtap);
        }
        let bed = Bed::new()?;
        let namespace = bed.remote.as_deref().unwrap_or_default();
        self.end = End::Here(Box::new(Served::at(namespace, ends, self.directory.clone())?));
        Ok(bed)
    }

    fn name(&self) -> String {
        self.hosts.as_ref().map_or("the remote host".to_owned(), |hosts| hosts.remote.target.to_string())
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// As [`End::ask`].
    pub(super) fn ask<T: DeserializeOwned>(&mut self, question: Question) -> Result<T, LabError> {
        self.end.ask(question, ANSWER_MAX)
    }

    /// The error of a path that passes no trial; `said`: what a part of the path said.
    pub(super) fn passes_nothing(&self, path: Path, direction: Direction, said: String) -> LabError {
        let problem = |between| format!("passed no frame {between}within {PASSES_MAX:?} ({direction})");
        if self.hosts.is_none() {
            return LabError::Process { name: path.to_string(), problem: problem(""), stderr: said };
        }
        LabError::Impossible {
            what: format!("{path} {}", problem("between both hosts ")),
            remedy: "both devices must be on one Ethernet segment whose switches take frames of further MAC addresses (macvlan); \
                     name others with --uplink and --remote-uplink, or take another path"
                .to_owned(),
        }
    }

    /// Begins this end's part of a run: its threads in this process. `None`: it began too late.
    pub(super) fn begin_at(&mut self, task: &Task) -> Result<Option<Vec<PathBuf>>, LabError> {
        let number = self.ask(Question::Begin(*task))?;
        let threads = if self.hosts.is_some() { Vec::new() } else { vec![own_thread(number)] };
        Ok((task.first.since(tai_now()) >= AHEAD_MIN).then_some(threads))
    }

    /// The same, as soon as it can be in time.
    pub(super) fn begin_run(&mut self, what: What) -> Result<(Task, Vec<PathBuf>), LabError> {
        let What { direction, load, frames } = what;
        let mut ahead = if self.hosts.is_some() { AHEAD_THERE } else { AHEAD_HERE };
        for _ in 0..TRIES_MAX {
            let task = Task { number: 0, first: tai_now().saturating_add(ahead), direction, load, frames };
            if let Some(threads) = self.begin_at(&task)? {
                return Ok((task, threads));
            }
            ahead = ahead.saturating_mul(2);
        }
        Err(self.is_late())
    }

    pub(super) fn is_late(&self) -> LabError {
        let problem = format!("began {TRIES_MAX} runs too late");
        LabError::Process { name: self.name(), problem, stderr: String::new() }
    }

    /// Ends this end's part of a run that was begun at `begun`; the name and the samples of another host.
    ///
    /// # Errors
    /// The end's, or it says what cannot be.
    pub(super) fn end(&mut self, task: &Task, begun: Tai) -> Result<(Part, There), LabError> {
        let late = Duration::from_nanos(LATE_MAX.get().unsigned_abs());
        let Ended { cpu_ns } = self.end.ask(Question::End, ANSWER_MAX + late)?;
        let facts = self.file(FACTS, task)?;
        let samples = self.hosts.is_some().then(|| self.file(SAMPLES, task)).transpose()?;
        let refuse = |problem: String| self.end.refuse(problem);
        let origin = if self.hosts.is_some() { ORIGIN } else { ORIGIN_HERE };
        let answer = Answer::read(&facts, origin, task.frames).map_err(refuse)?;
        let cpu = i64::try_from(cpu_ns).map_err(|_| refuse(format!("its end took {cpu_ns} ns of a CPU")))?;
        let part = |answer| Part { answer, cpu: Nanos::new(cpu) };
        let Some((hosts, samples)) = self.hosts.as_ref().zip(samples) else {
            return Ok((part(answer), None));
        };
        let samples: Vec<Sample> =
            serde_json::from_str(&samples).map_err(|error| refuse(no_json("samples", &error)))?;
        let instants = instants_of(&answer).chain(samples.iter().map(Sample::at));
        impossible([begun, tai_now()], hosts.within, instants, [])
            .map_or(Ok(()), |problem| Err(refuse(problem)))?;
        Ok((part(answer), Some((self.name(), samples))))
    }

    /// Holds what both ends saw of a run by two clocks against each other. A run without a clock that can be compared is void already.
    ///
    /// # Errors
    /// The clocks do not agree, whatever was said of them.
    pub(super) fn check_clocks(&self, carried: &Carried) -> Result<(), LabError> {
        let Some(hosts) = &self.hosts else { return Ok(()) };
        let Carried { sending, receiving, guest_clock, .. } = carried;
        let (state, bound) =
            guest_clock.as_ref().map_or((FOLLOWING, Nanos::ZERO), |(state, bound)| (state, *bound));
        if state != FOLLOWING {
            return Ok(());
        }
        let may_differ = Nanos::new(hosts.within.get().saturating_add(bound.get()));
        impossible([Tai::ZERO, Tai::MAX], may_differ, [], passages(sending, receiving, may_differ))
            .map_or(Ok(()), |problem| Err(self.end.refuse(problem)))
    }

    /// Fetches a file of a run's, and reads it.
    fn file(&mut self, name: &str, task: &Task) -> Result<String, LabError> {
        // A frame may arrive twice.
        let path = self.end.fetch(name, &self.directory, task.frames.saturating_mul(2))?;
        let octets = std::fs::read(&path).map_err(LabError::file(&path))?;
        String::from_utf8(octets).map_err(|error| self.end.refuse(format!("its file {name}: {error}")))
    }
}

/// The instants by the other machine's clock.
fn instants_of(Answer { sending, receiving, .. }: &Answer) -> impl Iterator<Item = Tai> {
    let sent =
        sending.frames.iter().map(|frame| [Some(frame.called_at), Some(frame.returned_at), frame.stamp]);
    let arrived = receiving.arrivals.iter().map(|arrival| [Some(arrival.received_at), arrival.stamp, None]);
    sent.chain(arrived).flatten().flatten()
}

/// The frames of a run that arrived. A frame of another run has no latency.
fn passages(sending: &Sending, receiving: &Receiving, early_max: Nanos) -> impl Iterator<Item = Passage> {
    let frames: BTreeMap<u64, &SentFrame> =
        sending.frames.iter().map(|frame| (frame.sequence, frame)).collect();
    receiving.arrivals.iter().filter_map(move |arrival| {
        let frame = frames.get(&arrival.sequence).filter(|frame| frame.called_at == arrival.called_at)?;
        Some(Passage {
            sequence: frame.sequence,
            sent: frame.stamp.unwrap_or(frame.called_at),
            arrived: arrival.stamp.map_or(arrival.received_at, |stamp| stamp.min(arrival.received_at)),
            early_max,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::super::traffic::Arrival;
    use super::*;

    #[test]
    fn a_frame_passes_from_its_stamp_to_its_first_instant_there() {
        let at = Tai::from_nanos;
        let sent =
            |stamp| SentFrame { sequence: 1, due: at(10), called_at: at(20), returned_at: at(40), stamp };
        let got = |called_at, stamp| Arrival {
            sequence: 1,
            called_at,
            stamp,
            received_at: at(90),
            gap: Nanos::ZERO,
        };
        let passed = |frame: SentFrame, arrival: Arrival| {
            let sending = Sending { frames: vec![frame], ..Sending::default() };
            let receiving = Receiving { arrivals: vec![arrival], ..Receiving::default() };
            passages(&sending, &receiving, Nanos::new(5))
                .map(|one| (one.sent.as_nanos(), one.arrived.as_nanos()))
                .collect::<Vec<_>>()
        };
        assert_eq!(passed(sent(Some(at(30))), got(at(20), Some(at(80)))), [(30, 80)]);
        assert_eq!(passed(sent(None), got(at(20), None)), [(20, 90)]);
        assert_eq!(passed(sent(None), got(at(20), Some(at(95)))), [(20, 90)]);
        assert_eq!(passed(sent(None), got(at(21), None)), []);
        let answer = Answer {
            sending: Sending { frames: vec![sent(Some(at(30)))], ..Sending::default() },
            receiving: Receiving { arrivals: vec![got(at(20), None)], ..Receiving::default() },
            ..Answer::default()
        };
        let instants: Vec<u64> = instants_of(&answer).map(|at| at.as_nanos()).collect();
        assert_eq!(instants, [20, 40, 30, 90]);
    }
}
