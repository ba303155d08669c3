// SPDX-License-Identifier: Apache-2.0
//! The remote host on another machine, as the first host sees it; runs with it.
//!
//! In: the two hosts, what is sent. Out: [`Carried`], as of a run on one machine. The clocks of both machines are held against each
//! other ([`impossible`]).
//!
//! ```text
//!  here:   CPU 0: the stand-in (FIFO) or the guest, the samples of the host      CPU 1: a switch
//!  there:  CPU 1: the remote host's end (FIFO; far.rs)
//! ```

use super::carried::{Carried, FOLLOWING, LINGER, SAMPLE, What, placed};
use super::endpoint::Endpoint;
use super::far::{Ended, FACTS, LATE_MAX, Question, SAMPLES, over_at};
use super::frame::{self, Kind, PAYLOAD_OCTETS};
use super::guest::Guest;
use super::guest_run::{self, ANSWER_WITHIN, traffic_time};
use super::host::{Sample, cpu_time_of, own_thread, threads_of};
use super::near::{Near, PASSES_MAX, has_trial};
use super::path::{Direction, Path};
use super::task::{Answer, Task};
use super::traffic::{self, Order, Receiving, Sending, SentFrame};
use super::windows::Gates;
use crate::error::LabError;
use crate::remote::hosts::{ANSWER_MAX, Far, Hosts, Known, Passage, impossible};
use crate::remote::no_json;
use ktsn_measure::clock::{RealTime, StampClock, stop_requested, tai_now};
use ktsn_time::{Nanos, Tai};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::Path as FilePath;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// From the question to the first frame, at the first try; each further one has twice as much.
const START_AHEAD: Nanos = Nanos::from_millis(250);
/// What the names of the other machine's counters begin with.
pub(super) const ORIGIN: &str = "remote";

/// The remote host, which is another machine. It ends with the value.
#[derive(Debug)]
pub(crate) struct There {
    far: Far,
    hosts: Hosts,
    /// For its files.
    directory: PathBuf,
}

/// What the other machine saw of a run.
struct Seen {
    answer: Answer,
    samples: Vec<Sample>,
    cpu: Nanos,
}

impl There {
    /// Checks the other host, and sets it up. Its clock and its environment come with it.
    ///
    /// # Errors
    /// What is missing there.
    pub(super) fn begin(
        hosts: &Hosts,
        functional: bool,
        directory: &FilePath,
    ) -> Result<(Self, Known), LabError> {
        let clocks = hosts.check()?;
        let (far, _, environment) = hosts.begin("datapaths", functional)?;
        let there = Self { far, hosts: hosts.clone(), directory: directory.to_owned() };
        Ok((there, Known { clocks, environment }))
    }

    /// This machine's device that leads to it.
    pub(super) fn uplink(&self) -> &str {
        &self.hosts.uplinks[0]
    }

    fn name(&self) -> String {
        self.hosts.remote.target.to_string()
    }

    fn ask<T: DeserializeOwned>(&mut self, question: &Question, beside: Duration) -> Result<T, LabError> {
        Ok(self.far.ask(question, ANSWER_MAX + beside)?)
    }

    /// # Errors
    /// The connection has ended.
    fn check(&mut self) -> Result<(), LabError> {
        Ok(self.far.check()?)
    }

    /// Waits until the other machine is quiet; returns how often it was not.
    ///
    /// # Errors
    /// The connection's.
    pub(super) fn wait_until_quiet(&mut self) -> Result<u32, LabError> {
        Ok(self.far.wait_until_quiet()?)
    }

    /// Sends frames that are not measured until one has arrived at both ends.
    ///
    /// # Errors
    /// [`LabError::Impossible`]: none passes; an end's, the connection's.
    pub(super) fn try_out(&mut self, near: &mut Near, path: Path) -> Result<(), LabError> {
        let () = self.ask(&Question::Forget, Duration::ZERO)?;
        let frame = frame::build(Direction::Egress, Kind::Trial, PAYLOAD_OCTETS);
        let (begun, mut out, mut back) = (Instant::now(), false, false);
        loop {
            if let Near::StandIn(near) = near {
                let _may_be_refused = near.send(&frame, false).map_err(LabError::system("send"))?;
            }
            out |= self.ask::<bool>(&Question::Try, Duration::ZERO)?;
            back |= match near {
                Near::StandIn(near) => has_trial(near)?,
                // It answers a trial by another one.
                Near::Guest(_) => out,
            };
            if out && back {
                return Ok(());
            }
            if stop_requested() {
                return Err(LabError::Stopped);
            }
            if begun.elapsed() > PASSES_MAX {
                let direction = if out { Direction::Ingress } else { Direction::Egress };
                return Err(LabError::Impossible {
                    what: format!("{path} passed no frame between both hosts within {PASSES_MAX:?} ({direction})"),
                    remedy: "both devices must be on one Ethernet segment whose switches take frames of further MAC addresses (macvlan); \
                             name others with --uplink and --remote-uplink, or take another path"
                        .to_owned(),
                });
            }
        }
    }

    /// Has a task sent to the guest.
    fn send(&mut self, task: &Task) -> Result<(), LabError> {
        self.ask(&Question::Task(*task), Duration::ZERO)
    }

    /// Begins the other machine's part of a run; whether it did in time.
    fn begin_at(&mut self, task: &Task) -> Result<bool, LabError> {
        let () = self.ask(&Question::Begin(*task), Duration::ZERO)?;
        Ok(task.first.since(tai_now()) >= guest_run::AHEAD_MIN)
    }

    /// The same, as soon as it can be in time.
    fn begin_run(&mut self, what: What) -> Result<Task, LabError> {
        let What { direction, load, frames } = what;
        let mut ahead = START_AHEAD;
        for _ in 0..guest_run::TRIES_MAX {
            let task = Task { number: 0, first: tai_now().saturating_add(ahead), direction, load, frames };
            if self.begin_at(&task)? {
                return Ok(task);
            }
            ahead = ahead.saturating_mul(2);
        }
        Err(self.is_late())
    }

    fn is_late(&self) -> LabError {
        LabError::Process {
            name: self.name(),
            problem: format!("began {} runs too late", guest_run::TRIES_MAX),
            stderr: String::new(),
        }
    }

    /// Ends the other machine's part of a run that this host began at `begun`.
    ///
    /// # Errors
    /// The other machine's, or it says what cannot be.
    fn end(&mut self, task: &Task, begun: Tai) -> Result<Seen, LabError> {
        let late = Duration::from_nanos(LATE_MAX.get().unsigned_abs());
        let Ended { cpu_ns } = self.ask(&Question::End, late)?;
        let facts = self.file(FACTS, task)?;
        let samples = self.file(SAMPLES, task)?;
        let refuse = |problem: String| LabError::from(self.far.refuse(problem));
        let answer = Answer::read(&facts, ORIGIN, task.frames).map_err(refuse)?;
        let samples: Vec<Sample> =
            serde_json::from_str(&samples).map_err(|error| refuse(no_json("samples", &error)))?;
        let cpu = i64::try_from(cpu_ns).map_err(|_| refuse(format!("its end took {cpu_ns} ns of a CPU")))?;
        let instants = instants_of(&answer).chain(samples.iter().map(Sample::at));
        impossible([begun, tai_now()], self.hosts.within, instants, [])
            .map_or(Ok(()), |problem| Err(refuse(problem)))?;
        Ok(Seen { answer, samples, cpu: Nanos::new(cpu) })
    }

    /// Holds what both ends saw of a run against each other. A run without a clock that can be compared is void already.
    ///
    /// # Errors
    /// The clocks do not agree, whatever was said of them.
    pub(super) fn check_clocks(&self, carried: &Carried) -> Result<(), LabError> {
        let Carried { sending, receiving, guest_clock, .. } = carried;
        let (state, bound) =
            guest_clock.as_ref().map_or((FOLLOWING, Nanos::ZERO), |(state, bound)| (state, *bound));
        if state != FOLLOWING {
            return Ok(());
        }
        let may_differ = Nanos::new(self.hosts.within.get().saturating_add(bound.get()));
        impossible([Tai::ZERO, Tai::MAX], may_differ, [], passages(sending, receiving, may_differ))
            .map_or(Ok(()), |problem| Err(self.far.refuse(problem).into()))
    }

    /// Fetches a file of a run's, and reads it.
    fn file(&mut self, name: &str, task: &Task) -> Result<String, LabError> {
        let to = self.directory.join(name);
        let _of_the_run_before = std::fs::remove_file(&to);
        // A frame may arrive twice.
        self.far.fetch(name, &to, task.frames.saturating_mul(2))?;
        let octets = std::fs::read(&to).map_err(LabError::file(&to))?;
        String::from_utf8(octets).map_err(|error| self.far.refuse(format!("its file {name}: {error}")).into())
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

/// Carries a run out between the stand-in and the other machine.
///
/// # Errors
/// An end's, the connection's.
pub(super) fn carry_out(
    near: &mut Endpoint,
    there: &mut There,
    what: What,
    ends: Option<[RealTime; 2]>,
    stamps: &StampClock,
) -> Result<Carried, LabError> {
    let asked_at = tai_now();
    let task = there.begin_run(what)?;
    let gates = Gates::from(task.first)?;
    let What { direction, load, frames } = what;
    let order = Order { direction, load, frames, gates: &gates, first: task.first, stamps };
    let sends = direction == Direction::Egress;
    let place = ends.map(|[sender, receiver]| if sends { sender } else { receiver });
    let (over, begun) = (AtomicBool::new(false), Instant::now());
    let (numbers, heard) = channel();
    let mut samples = Vec::new();
    let (worked, seen) = std::thread::scope(|scope| {
        let (order, over) = (&order, &over);
        let work = move || traffic::take_part(order, near, over, sends);
        let worker = scope.spawn(move || placed(place, &numbers, work));
        let threads: Vec<_> = heard.iter().take(1).map(own_thread).collect();
        let mut done = None;
        let mut alive = Ok(());
        while alive.is_ok() && done.is_none_or(|at: Instant| at.elapsed() < LINGER) {
            samples.push(Sample::now(&threads));
            std::thread::sleep(SAMPLE);
            // A sender that has ended has sent all, a receiver has failed; the other machine's sender keeps the time.
            if worker.is_finished() || (!sends && tai_now() >= over_at(&task)) {
                done.get_or_insert_with(Instant::now);
            }
            alive = there.check();
        }
        let has_failed = !sends && worker.is_finished();
        let seen =
            alive.and_then(|()| if has_failed { Ok(None) } else { there.end(&task, asked_at).map(Some) });
        if !sends && seen.is_ok() {
            // What a late sender has sent is under way.
            std::thread::sleep(LINGER);
        }
        samples.push(Sample::now(&threads));
        over.store(true, Ordering::Release);
        (worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), seen)
    });
    let elapsed = begun.elapsed();
    let ((sending, receiving), cpu) = worked?;
    let Some(Seen { answer, samples: of_it, cpu: cpu_there }) = seen? else { return Err(LabError::Stopped) };
    let (sending, receiving, sender_cpu, receiver_cpu) = match direction {
        Direction::Egress => (sending, answer.receiving, cpu, cpu_there),
        Direction::Ingress => (answer.sending, receiving, cpu_there, cpu),
    };
    Ok(Carried {
        sending,
        receiving,
        samples,
        there: Some((there.name(), of_it)),
        elapsed,
        sender_cpu,
        receiver_cpu,
        drops: answer.drops,
        stepped: answer.stepped,
        guest_clock: None,
    })
}

/// A task that both the guest and the other machine have begun in time.
fn begin_with(guest: &mut Guest, there: &mut There, what: What) -> Result<Task, LabError> {
    let What { direction, load, frames } = what;
    for _ in 0..guest_run::TRIES_MAX {
        let first = tai_now().saturating_add(guest_run::START_AHEAD);
        let task = Task { number: 0, first, direction, load, frames };
        let Some(task) = guest.ask(task, &mut |task| there.send(task))? else { continue };
        if there.begin_at(&task)? {
            return Ok(task);
        }
        // The guest works on it, for nothing.
        guest.answer(traffic_time(frames))?;
    }
    Err(there.is_late())
}

/// Carries a run out between a guest and the other machine.
///
/// # Errors
/// The guest's, the connection's.
pub(super) fn with_guest(guest: &mut Guest, there: &mut There, what: What) -> Result<Carried, LabError> {
    let asked_at = tai_now();
    let task = begin_with(guest, there, what)?;
    let qemu = guest.qemu();
    let (threads, mut samples) = (threads_of(qemu), Vec::new());
    let (guest_cpu, begun) = (cpu_time_of(qemu), Instant::now());
    let patience = Nanos::new(i64::try_from(ANSWER_WITHIN.as_nanos()).unwrap_or(i64::MAX));
    let last = over_at(&task).saturating_add(patience);
    let mut answered = None;
    while !guest.has_ended() && tai_now() < last {
        samples.push(Sample::now(&threads));
        std::thread::sleep(SAMPLE);
        there.check()?;
        if guest.has_answered() && tai_now() >= over_at(&task) {
            answered.get_or_insert_with(Instant::now);
        }
        if answered.is_some_and(|at: Instant| at.elapsed() >= LINGER) {
            break;
        }
    }
    samples.push(Sample::now(&threads));
    let elapsed = begun.elapsed();
    let guest_cpu = cpu_time_of(qemu).saturating_sub(guest_cpu);
    guest.check()?;
    let seen = there.end(&task, asked_at)?;
    let answer = guest.answer(Nanos::ZERO)?;
    let (sending, receiving, sender_cpu, receiver_cpu) = match what.direction {
        Direction::Egress => (answer.sending, seen.answer.receiving, guest_cpu, seen.cpu),
        Direction::Ingress => (seen.answer.sending, answer.receiving, seen.cpu, guest_cpu),
    };
    let drops: BTreeMap<String, u64> = answer.drops.into_iter().chain(seen.answer.drops).collect();
    Ok(Carried {
        sending,
        receiving,
        samples,
        there: Some((there.name(), seen.samples)),
        elapsed,
        sender_cpu,
        receiver_cpu,
        drops,
        stepped: answer.stepped || seen.answer.stepped,
        guest_clock: Some((answer.clock, answer.clock_bound)),
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
