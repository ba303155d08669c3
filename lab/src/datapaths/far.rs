// SPDX-License-Identifier: Apache-2.0
//! The remote host's end: in this process, or on a machine of its own ([`serve`]).
//!
//! In: questions. Out: answers, and a run's facts as a file; samples of another machine, too. The end is a packet socket on `far0`: a veth of
//! the bed, or a macvlan on the device that leads to the first host. A run is a thread.

use super::bed::{Bed, FAR, RemoteBed, drops_of};
use super::carried::{SAMPLE, placed, places};
use super::endpoint::{Endpoint, Packet};
use super::frame::{self, Kind, PAYLOAD_OCTETS};
use super::host::{Sample, own_thread};
use super::near::has_trial;
use super::path::Direction;
use super::task::{Answer, Task};
use super::traffic::{self, Order, Receiving, Sending};
use super::windows::{Gates, INTERVAL};
use crate::error::LabError;
use crate::exclusive::check_machine;
use crate::remote::hosts::{self, SetUp, Side};
use crate::sys;
use ktsn_measure::clock::{RealTime, StampClock, stop_requested, tai_now};
use ktsn_time::{Nanos, Tai};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A run's facts, and its samples.
pub(super) const FACTS: &str = "facts.txt";
pub(super) const SAMPLES: &str = "samples.json";
/// A sender that has not ended so long after its last frame was due ends then.
pub(super) const LATE_MAX: Nanos = Nanos::from_seconds(10);
/// How long a trial may take; another one follows.
const TRIAL_MAX: Duration = Duration::from_millis(100);
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// The CPU of the end on a machine of its own; interrupts of devices are rather on the first one.
const CPU: usize = 1;

/// What the first host may ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub(super) enum Question {
    /// Forget the frames that have arrived.
    Forget,
    /// Send a trial; whether one has arrived.
    Try,
    /// Send a task to the guest.
    Task(Task),
    /// Begin this end's part of a run: the number of its thread.
    Begin(Task),
    /// End it: [`Ended`], and its files.
    End,
}

/// A run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ended {
    /// CPU time of the end's thread.
    pub(super) cpu_ns: u64,
}

/// What a run's thread did, and its CPU time.
type Worked = Result<((Sending, Receiving), Nanos), LabError>;

/// A run that has begun. Its thread ends it before it is asked to only by a failure.
struct Run {
    task: Task,
    over: Arc<AtomicBool>,
    stamps: StampClock,
    /// What this host's device had dropped before.
    before: BTreeMap<String, u64>,
    sampler: Option<Sampler>,
}

/// The remote host's end. Fields end in this order.
#[derive(Default)]
pub(super) struct Served {
    /// With its thread, which has the end.
    running: Option<(Run, JoinHandle<(Endpoint, Worked)>)>,
    /// Nothing while a run has it.
    end: Option<Endpoint>,
    /// CPU and priority of a sender and of a receiver; `None`: they are ordinary threads.
    places: Option<[RealTime; 2]>,
    /// For a run's files.
    directory: PathBuf,
    /// Its half of the testbed on another host: that host's counters and samples are for it to tell.
    bed: Option<RemoteBed>,
}

/// The end, here or there.
pub(super) type End = crate::remote::End<Served>;

/// Serves the first host's questions until the connection ends.
///
/// # Errors
/// As [`hosts::serve`].
pub fn serve() -> Result<(), LabError> {
    hosts::serve(|set_up: &SetUp| {
        if !set_up.functional {
            check_machine()?;
        }
        let bed = RemoteBed::new(&set_up.uplink)?;
        let ends = (!set_up.functional).then(|| places([CPU; 2]));
        let mut served = Served::at(&bed.namespace, ends, PathBuf::new())?;
        served.bed = Some(bed);
        Ok(served)
    })
}

impl Side for Served {
    type Question = Question;

    fn answer(&mut self, question: Question) -> Result<Value, LabError> {
        match question {
            Question::Forget => self.idle().and_then(has_trial).map(|_| Value::Null),
            Question::Try => self.idle().and_then(trial).map(|arrived| json!(arrived)),
            Question::Task(task) => {
                let sent = self.idle()?.send(&task.frame(), false);
                // What is refused is sent again.
                sent.map(|_may_be_refused| Value::Null).map_err(LabError::system("send"))
            }
            Question::Begin(task) => self.begin(task).map(|number| json!(number)),
            Question::End => self.end().map(|ended| json!(ended)),
        }
    }

    fn is_timed(&self) -> bool {
        self.places.is_some()
    }

    fn check(&mut self) -> Result<(), LabError> {
        if self.running.as_ref().is_some_and(|(run, _)| run.over.load(Ordering::Acquire)) {
            self.stop().map_or(Ok(()), |(_, worked)| worked.map(drop))?;
        }
        if stop_requested() { Err(LabError::Stopped) } else { Ok(()) }
    }
}

impl Served {
    /// The end on `far0` of a namespace.
    pub(super) fn at(
        namespace: &str,
        places: Option<[RealTime; 2]>,
        directory: PathBuf,
    ) -> Result<Self, LabError> {
        let index = Bed::index(namespace, FAR)?;
        let end = sys::within(namespace, || Packet::open(index)).map(Endpoint::Packet)?;
        Ok(Self { running: None, end: Some(end), places, directory, bed: None })
    }

    /// Takes the end back from the run, if there is one; what its thread did.
    fn stop(&mut self) -> Option<(Run, Worked)> {
        let (run, thread) = self.running.take()?;
        run.over.store(true, Ordering::Release);
        let (end, worked) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.end = Some(end);
        Some((run, worked))
    }

    /// The end; a run that was given up is over then.
    fn idle(&mut self) -> Result<&mut Endpoint, LabError> {
        let _given_up = self.stop();
        self.end.as_mut().ok_or_else(no_run)
    }

    /// Begins a run; the number of its thread.
    fn begin(&mut self, task: Task) -> Result<i32, LabError> {
        // What arrived or was dropped before is of another run.
        let end = self.idle()?;
        has_trial(end)?;
        end.drops().map_err(LabError::system("getsockopt"))?;
        let (before, gates, stamps) = (self.dropped()?, Gates::from(task.first)?, StampClock::now());
        let Task { direction, load, frames, first, .. } = task;
        let sends = direction == Direction::Ingress;
        let place = self.places.map(|[sender, receiver]| if sends { sender } else { receiver });
        let (over, (numbers, heard)) = (Arc::<AtomicBool>::default(), channel());
        let (is_over, mut end) = (Arc::clone(&over), self.end.take().ok_or_else(no_run)?);
        let thread = std::thread::spawn(move || {
            let order = Order { direction, load, frames, gates: &gates, first, stamps: &stamps };
            let worked = placed(place, &numbers, || traffic::take_part(&order, &mut end, &is_over, sends));
            is_over.fetch_or(worked.is_err(), Ordering::AcqRel);
            (end, worked)
        });
        let number = heard.recv().map_err(|_| no_run());
        let sampler = self.bed.is_some().then(|| Sampler::start(number.iter().copied().map(own_thread)));
        self.running = Some((Run { task, over, stamps, before, sampler }, thread));
        number
    }

    /// What this host's device has dropped so far.
    fn dropped(&self) -> Result<BTreeMap<String, u64>, LabError> {
        self.bed.as_ref().map_or_else(|| Ok(BTreeMap::new()), |bed| drops_of(Some(&bed.namespace), FAR))
    }

    fn end(&mut self) -> Result<Ended, LabError> {
        if let Some((Run { task, .. }, thread)) = &self.running {
            // A receiver has all there is.
            let sends = task.direction == Direction::Ingress;
            let last = over_at(task).saturating_add(LATE_MAX);
            while sends && !thread.is_finished() && tai_now() < last && !stop_requested() {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        let (Run { task, stamps, before, sampler, .. }, worked) = self.stop().ok_or_else(no_run)?;
        let ((sending, receiving), cpu) = worked?;
        let mut drops = self.dropped()?;
        for (counter, count) in &mut drops {
            *count = count.saturating_sub(before.get(counter).copied().unwrap_or(0));
        }
        if task.direction == Direction::Egress {
            drops.insert("socket".to_owned(), self.idle()?.drops().map_err(LabError::system("getsockopt"))?);
        }
        drops.retain(|_, count| *count > 0);
        let (clock, stepped) = ("own".to_owned(), stamps.stepped(&StampClock::now()));
        let answer = Answer { sending, receiving, drops, stepped, clock, clock_bound: Nanos::ZERO };
        let samples = sampler.map(|sampler| serde_json::to_string(&sampler.stop()).unwrap_or_default());
        for (name, text) in [(FACTS, Some(answer.text())), (SAMPLES, samples)] {
            let path = self.directory.join(name);
            text.map_or(Ok(()), |text| std::fs::write(&path, text)).map_err(LabError::file(&path))?;
        }
        Ok(Ended { cpu_ns: cpu.get().unsigned_abs() })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _given_up = self.stop();
    }
}

fn no_run() -> LabError {
    LabError::Usage("no run has begun".to_owned())
}

/// A thread that samples this host until it is stopped.
struct Sampler {
    wanted: Sender<()>,
    thread: JoinHandle<Vec<Sample>>,
}

impl Sampler {
    fn start(threads: impl Iterator<Item = PathBuf>) -> Self {
        let (threads, (wanted, is_wanted)) = (threads.collect::<Vec<_>>(), channel());
        let sample = move || {
            let mut samples = vec![Sample::now(&threads)];
            while is_wanted.recv_timeout(SAMPLE) == Err(RecvTimeoutError::Timeout) {
                samples.push(Sample::now(&threads));
            }
            samples
        };
        Self { wanted, thread: std::thread::spawn(sample) }
    }

    fn stop(self) -> Vec<Sample> {
        drop(self.wanted);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

/// When the last frame of a task has had its interval.
pub(super) fn over_at(task: &Task) -> Tai {
    let frames = i64::try_from(task.frames).unwrap_or(i64::MAX);
    task.first.saturating_add(INTERVAL.saturating_mul(frames))
}

/// Sends a trial, and looks a moment for the other host's.
fn trial(end: &mut Endpoint) -> Result<bool, LabError> {
    let frame = frame::build(Direction::Ingress, Kind::Trial, PAYLOAD_OCTETS);
    let _may_be_refused = end.send(&frame, false).map_err(LabError::system("send"))?;
    let begun = Instant::now();
    loop {
        let arrived = has_trial(end)?;
        if arrived || begun.elapsed() >= TRIAL_MAX || stop_requested() {
            return Ok(arrived);
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::Load;
    use super::*;

    #[test]
    fn questions_are_read_as_they_were_asked_and_nothing_else() {
        let (direction, load) = (Direction::Egress, Load::Udp);
        let task = Task { number: 2, first: Tai::from_nanos(7), direction, load, frames: 60 };
        let (one, other) = (Question::Task(task), Question::Begin(task));
        for question in [Question::Forget, Question::Try, one, other, Question::End] {
            assert_eq!(Question::deserialize(&json!(question)).unwrap(), question);
        }
        for odd in [json!("run"), json!({ "try": 1 }), json!({ "begin": null }), json!(null)] {
            assert!(Question::deserialize(&odd).is_err(), "{odd}");
        }
        assert_eq!(over_at(&task), Tai::from_nanos(7 + 60 * 1_006_000));
    }
}
