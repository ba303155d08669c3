// SPDX-License-Identifier: Apache-2.0
//! The remote host where that is a machine of its own: its side of the experiment.
//!
//! In: the first host's questions. Out: answers, and a run's facts and samples as files in the working directory. The end is a packet socket
//! on `far0`, a macvlan on the device that leads to the first host; a run is a thread with the same code as on one machine.

use super::bed::{Bed, FAR, RemoteBed, drops_of};
use super::carried::{SAMPLE, placed};
use super::endpoint::{Endpoint, Packet};
use super::frame::{self, Kind, PAYLOAD_OCTETS};
use super::host::{Sample, own_thread};
use super::near::has_trial;
use super::path::Direction;
use super::task::{Answer, Task};
use super::traffic::{self, Order};
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
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
/// As with both ends on one machine.
const SENDER_FIFO: u8 = 41;
const RECEIVER_FIFO: u8 = 40;
/// The CPU of the end; interrupts of devices are rather on the first one.
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
    /// Begin this end's part of a run.
    Begin(Task),
    /// End it: [`Ended`], and the files.
    End,
}

/// A run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ended {
    /// CPU time of the end's thread.
    pub(super) cpu_ns: u64,
}

/// What the end saw of a run.
struct Seen {
    answer: Answer,
    samples: Vec<Sample>,
    cpu: Nanos,
}

/// A run's thread, which has the end.
struct Running {
    over: Arc<AtomicBool>,
    task: Task,
    thread: JoinHandle<(Endpoint, Result<Seen, LabError>)>,
}

/// The remote host. Fields end in this order.
struct Served {
    running: Option<Running>,
    /// Nothing while a run has it.
    end: Option<Endpoint>,
    bed: RemoteBed,
    functional: bool,
}

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
        let index = Bed::index(&bed.namespace, FAR)?;
        let end = sys::within(&bed.namespace, || Packet::open(index)).map(Endpoint::Packet)?;
        Ok(Served { running: None, end: Some(end), bed, functional: set_up.functional })
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
            Question::Begin(task) => self.begin(task).map(|()| Value::Null),
            Question::End => self.end().map(|ended| json!(ended)),
        }
    }

    fn is_timed(&self) -> bool {
        !self.functional
    }
}

impl Served {
    /// Takes the end back from the run, if there is one; what the run saw.
    fn stop(&mut self) -> Option<Result<Seen, LabError>> {
        let Running { over, thread, .. } = self.running.take()?;
        over.store(true, Ordering::Release);
        let (end, seen) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        self.end = Some(end);
        Some(seen)
    }

    /// The end; a run that was given up is over then.
    fn idle(&mut self) -> Result<&mut Endpoint, LabError> {
        let _given_up = self.stop();
        self.end.as_mut().ok_or_else(|| LabError::Usage("the end is gone".to_owned()))
    }

    fn begin(&mut self, task: Task) -> Result<(), LabError> {
        // What arrived or was dropped before is of another run.
        let end = self.idle()?;
        has_trial(end)?;
        end.drops().map_err(LabError::system("getsockopt"))?;
        let before = self.drops()?;
        let Some(mut end) = self.end.take() else { return Ok(()) };
        let over = Arc::<AtomicBool>::default();
        let is_over = Arc::clone(&over);
        let place = (!self.functional).then(|| RealTime {
            cpu: Some(CPU),
            fifo: Some(if task.direction == Direction::Ingress { SENDER_FIFO } else { RECEIVER_FIFO }),
            ..RealTime::default()
        });
        let namespace = self.bed.namespace.clone();
        let thread = std::thread::spawn(move || {
            let seen = carry_out(&mut end, &task, place, &is_over, (&namespace, &before));
            (end, seen)
        });
        self.running = Some(Running { over, task, thread });
        Ok(())
    }

    fn drops(&self) -> Result<BTreeMap<String, u64>, LabError> {
        drops_of(Some(&self.bed.namespace), FAR)
    }

    fn end(&mut self) -> Result<Ended, LabError> {
        if let Some(Running { task, thread, .. }) = &self.running {
            // A receiver has all there is.
            let sends = task.direction == Direction::Ingress;
            let last = over_at(task).saturating_add(LATE_MAX);
            while sends && !thread.is_finished() && tai_now() < last && !stop_requested() {
                std::thread::sleep(LOOK_AGAIN);
            }
        }
        let seen = self.stop().ok_or_else(|| LabError::Usage("no run has begun".to_owned()))??;
        let samples = serde_json::to_string(&seen.samples).unwrap_or_default();
        for (name, text) in [(FACTS, seen.answer.text()), (SAMPLES, samples)] {
            std::fs::write(name, text).map_err(LabError::file(name))?;
        }
        Ok(Ended { cpu_ns: seen.cpu.get().unsigned_abs() })
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _given_up = self.stop();
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

/// This end's part of a run, with samples of this host. `dropped`: the namespace, and what its device had dropped before.
fn carry_out(
    end: &mut Endpoint,
    task: &Task,
    place: Option<RealTime>,
    over: &AtomicBool,
    dropped: (&str, &BTreeMap<String, u64>),
) -> Result<Seen, LabError> {
    let stamps = StampClock::now();
    let gates = Gates::from(task.first)?;
    let Task { direction, load, frames, first, .. } = *task;
    let order = Order { direction, load, frames, gates: &gates, first, stamps: &stamps };
    let (numbers, heard) = channel();
    let mut samples = Vec::new();
    let worked = std::thread::scope(|scope| {
        let (order, sends, end) = (&order, direction == Direction::Ingress, &mut *end);
        let work = move || traffic::take_part(order, end, over, sends);
        let worker = scope.spawn(move || placed(place, &numbers, work));
        let threads: Vec<_> = heard.iter().take(1).map(own_thread).collect();
        loop {
            samples.push(Sample::now(&threads));
            if worker.is_finished() {
                break;
            }
            std::thread::sleep(SAMPLE);
        }
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let ((sending, receiving), cpu) = worked?;
    let (namespace, before) = dropped;
    let mut drops = drops_of(Some(namespace), FAR)?;
    for (counter, count) in &mut drops {
        *count = count.saturating_sub(before.get(counter).copied().unwrap_or(0));
    }
    drops.insert("socket".to_owned(), end.drops().map_err(LabError::system("getsockopt"))?);
    drops.retain(|_, count| *count > 0);
    let stepped = stamps.stepped(&StampClock::now());
    let clock = "own".to_owned();
    let answer = Answer { sending, receiving, drops, stepped, clock, clock_bound: Nanos::ZERO };
    Ok(Seen { answer, samples, cpu })
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
