// SPDX-License-Identifier: Apache-2.0
//! The end of a run, which measures its own host: in this process, or on another host ([`serve`]). In: what is asked for, and questions
//! ([`Question`]). Out: what it cannot do, then latencies with their causes, in answers of bounded size. Probe and load end with the value.
//!
//! A thread takes the latencies off the probe ten times a second, however slowly they are asked for: the counters around a late wake-up
//! must be those of its own tenth of a second.

use super::counters;
use super::limits::Machine;
use super::plan::{Plan, System};
use super::questions::{Asked, Begun, LATE_MAX, Looked, Question, SAMPLES_MAX, Turn};
use super::segment::Segment;
use crate::error::LabError;
use crate::remote::hosts::{self, Side};
use ktsn_realtime::Profile;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Turns that may wait for a question: two minutes.
const WAITING_MAX: usize = 1200;
/// How long an answer waits for latencies.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);

/// Serves the first host until it has no more questions. Files lie in the working directory.
///
/// # Errors
/// As [`hosts::serve`].
pub fn serve() -> Result<(), LabError> {
    hosts::serve(|asked: &Asked| {
        let out = std::env::current_dir().map_err(LabError::system("the working directory"))?;
        let plan = asked.plan(out);
        plan.check()?;
        let machine = Machine::look_without_records(&plan)?;
        let folder = plan.out.clone();
        Ok(Served { plan, machine, system: System::Host, folder, running: None })
    })
}

/// The end, here or there.
pub(super) type End = crate::remote::End<Served>;

/// The end of this process, which measures a system; `folder` gets what load and probe say.
pub(super) fn here(plan: &Plan, machine: &Machine, system: System, folder: &Path) -> End {
    let (plan, machine, folder) = (plan.clone(), machine.clone(), folder.to_owned());
    End::Here(Box::new(Served { plan, machine, system, folder, running: None }))
}

/// A host, as it measures itself.
pub(super) struct Served {
    plan: Plan,
    machine: Machine,
    system: System,
    folder: PathBuf,
    running: Option<Running>,
}

impl Side for Served {
    type Question = Question;

    fn answer(&mut self, question: Question) -> Result<Value, LabError> {
        match question {
            Question::Look => Ok(json!(self.look())),
            Question::Begin { profile, loops } => {
                // The one before has ended, or ends now.
                self.running = None;
                let (running, begun) = self.start(profile, loops)?;
                self.running = Some(running);
                Ok(json!(begun))
            }
            Question::Read { median_ns } => {
                let running =
                    self.running.as_mut().ok_or_else(|| LabError::Usage("no probe runs".to_owned()))?;
                running.median.store(median_ns, Ordering::Relaxed);
                running.read().map(|turn| json!(turn))
            }
        }
    }

    /// What disturbs the machine is measured: nothing waits.
    fn is_timed(&self) -> bool {
        false
    }
}

impl Served {
    fn look(&self) -> Looked {
        let skip = |&profile| Some((profile, self.machine.skip(&self.plan, System::Host, profile)?));
        Looked {
            notices: self.machine.notices(),
            skips: self.plan.profiles.iter().filter_map(skip).collect(),
            unseen: counters::unseen(self.machine.hierarchy.as_ref()),
        }
    }

    fn start(&self, profile: Profile, loops: u64) -> Result<(Running, Begun), LabError> {
        let (begun, has_begun) = sync_channel(1);
        let (turns, taken) = sync_channel(WAITING_MAX);
        let Self { plan, machine, system, folder, .. } = self;
        let (plan, machine, folder) = (plan.clone(), machine.clone(), folder.clone());
        let (of, median) = ((*system, profile), Arc::<AtomicU64>::default());
        let usual = Arc::clone(&median);
        let thread = std::thread::spawn(move || match Segment::start(&plan, &machine, of, loops, &folder) {
            Ok(mut segment) => {
                let _ = begun.send(Ok(segment.begun));
                measure(&mut segment, &usual, &turns);
            }
            Err(error) => drop(begun.send(Err(error))),
        });
        let (turns, thread) = (Some(taken), Some(thread));
        let running = Running { turns, thread, median, held: Turn::default(), failed: None };
        let begun = has_begun.recv().map_err(|_| ended())??;
        Ok((running, begun))
    }
}

fn ended() -> LabError {
    LabError::Usage("the probe's thread has ended".to_owned())
}

/// A probe that runs, on a thread of its own: what it starts dies with it.
struct Running {
    turns: Option<Receiver<Result<Turn, LabError>>>,
    thread: Option<JoinHandle<()>>,
    /// The usual latency so far, in nanoseconds.
    median: Arc<AtomicU64>,
    /// What came and was not asked for yet.
    held: Turn,
    failed: Option<LabError>,
}

impl Running {
    /// What has come, up to the bounds of an answer; it waits a little for the first of it.
    fn read(&mut self) -> Result<Turn, LabError> {
        let mut wait = if self.held.ns.is_empty() { ANSWER_WITHIN } else { Duration::ZERO };
        while let Some(turns) = &self.turns
            && self.failed.is_none()
            && !self.held.is_last
            && self.held.ns.len() < SAMPLES_MAX
        {
            match turns.recv_timeout(wait) {
                Ok(Ok(turn)) => self.held.add(turn),
                Ok(Err(error)) => self.failed = Some(error),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => self.failed = Some(ended()),
            }
            wait = Duration::ZERO;
        }
        // What came before the failure is true.
        match self.failed.take() {
            Some(error) if self.held.ns.is_empty() => Err(error),
            failed => {
                self.failed = failed;
                Ok(self.held.take(SAMPLES_MAX, LATE_MAX))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The thread ends at its next turn, and what it has started ends with it.
        self.turns = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Passes turns on until the probe ends or fails, or they are not wanted any more.
fn measure(segment: &mut Segment, median: &AtomicU64, turns: &SyncSender<Result<Turn, LabError>>) {
    loop {
        let turn = segment.turn(median);
        let is_last = turn.as_ref().map_or(true, |turn| turn.is_last);
        if turns.send(turn).is_err() || is_last {
            return;
        }
    }
}

impl Turn {
    /// Adds what came next.
    fn add(&mut self, next: Self) {
        let begun = self.ns.len();
        self.late.extend(
            next.late.into_iter().map(|late| super::store::Late { index: begun + late.index, ..late }),
        );
        self.ns.extend(next.ns);
        self.is_last = next.is_last;
    }

    /// Takes the beginning of it: at most so many latencies, and so many late ones.
    fn take(&mut self, samples_max: usize, late_max: usize) -> Self {
        let until_late = self.late.get(late_max).map_or(usize::MAX, |late| late.index);
        let count = samples_max.min(until_late).min(self.ns.len());
        let ns: Vec<i64> = self.ns.drain(..count).collect();
        let within = self.late.iter().take_while(|late| late.index < count).count();
        let late = self.late.drain(..within).collect();
        self.late.iter_mut().for_each(|late| late.index -= count);
        Self { ns, late, is_last: self.is_last && self.ns.is_empty() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::Late;
    use super::*;
    use ktsn_realtime::causes::Cause;
    use serde::Deserialize as _;

    fn late(index: usize) -> Late {
        Late { index, lateness_ns: 5, causes: Vec::new(), thread: None }
    }

    #[test]
    fn an_answer_is_bounded_and_loses_nothing() {
        let mut held = Turn::default();
        held.add(Turn { ns: (0..5).collect(), late: vec![late(1), late(4)], is_last: false });
        held.add(Turn { ns: (5..10).collect(), late: vec![late(0), late(3)], is_last: true });
        assert_eq!(held.late.iter().map(|late| late.index).collect::<Vec<_>>(), [1, 4, 5, 8]);
        let (mut all, mut of_late, mut answers) = (Vec::new(), Vec::new(), 0);
        loop {
            let turn = held.take(4, 1);
            assert!(turn.ns.len() <= 4 && turn.late.len() <= 1, "{turn:?}");
            of_late.extend(turn.late.iter().map(|late| turn.ns[late.index]));
            all.extend(&turn.ns);
            answers += 1;
            if turn.is_last {
                break;
            }
        }
        assert_eq!((all, of_late), ((0..10).collect::<Vec<i64>>(), vec![1, 4, 5, 8]));
        assert!(answers > 3 && held.ns.is_empty());
        // The longest answer fits into a line of a session.
        let causes: Vec<_> = Cause::ALL
            .iter()
            .map(|&cause| ktsn_realtime::causes::Explained { cause, explained_ns: u64::MAX })
            .collect();
        let thread = Some("x".repeat(60));
        let late = (0..LATE_MAX).map(|index| Late {
            index,
            lateness_ns: u64::MAX,
            causes: causes.clone(),
            thread: thread.clone(),
        });
        let turn = Turn { ns: vec![i64::MIN; SAMPLES_MAX], late: late.collect(), is_last: false };
        assert!(json!(turn).to_string().len() < (1 << 20) - 100, "{}", json!(turn).to_string().len());
    }

    #[test]
    fn only_these_questions_are_answered() {
        let folder = tempfile::tempdir().unwrap();
        let plan = Asked::of(&super::super::tests::plan(folder.path())).plan(folder.path().to_owned());
        plan.check().unwrap();
        for good in
            [json!("look"), json!({"read": {"median_ns": 7}}), json!({"begin": {"profile": 3, "loops": 9}})]
        {
            assert!(Question::deserialize(&good).is_ok(), "{good}");
        }
        for bad in [
            json!("end"),
            json!("read"),
            json!({"look": 1, "read": 2}),
            json!({"begin": {"profile": 9, "loops": 9}}),
            json!({"begin": {"profile": 1, "loops": -1}}),
            json!({"begin": {"profile": 1, "loops": 1, "line": "reboot"}}),
        ] {
            assert!(Question::deserialize(&bad).is_err(), "{bad}");
        }
    }
}
