// SPDX-License-Identifier: Apache-2.0
//! Another machine as a system, reached by ssh. In: the host. Out: what it allows, and the latencies that it measures of itself; or why there
//! are none. Lengths and times of its answers are bounded.

use super::guests::one_line;
pub use super::plan::Other;
use super::plan::Plan;
use super::questions::{Asked, Begun, LATE_MAX, Looked, Question, SAMPLES_MAX, Turn};
use crate::error::LabError;
use crate::remote::hosts::{ANSWER_MAX, Far};
use crate::vm::printable;
use ktsn_realtime::Profile;
use ktsn_realtime::causes::Cause;
use ktsn_realtime::results::Skip;
use serde_json::Value;
use std::time::{Duration, Instant};

/// The name of the other side's command.
const EXPERIMENT: &str = "rt";
/// Most words that are taken of it.
const NOTICES_MAX: usize = 16;
const WORDS_MAX: usize = 300;

/// What is known of the other machine.
#[derive(Clone, Debug)]
pub(super) struct Host {
    looked: Looked,
    /// What it is, in words.
    pub(super) environment: String,
}

impl Host {
    /// Asks what it allows; `watch` hears what limits a run there.
    pub(super) fn find(other: &Other, plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Self, LabError> {
        other.remote.check_version(&other.version)?;
        let (mut far, environment) = Far::begin(&other.remote, EXPERIMENT, &Asked::of(plan))?;
        let mut looked: Looked = far.ask(&Question::Look, ANSWER_MAX)?;
        for (_, skip) in &mut looked.skips {
            *skip = Skip { kind: words(&skip.kind), reason: words(&skip.reason) };
        }
        let notices = looked.notices.iter().take(NOTICES_MAX);
        notices.for_each(|notice| watch(&format!("{}: {}", other.remote.target, words(notice))));
        let environment = describe(&environment, &looked.unseen);
        Ok(Self { looked, environment })
    }

    /// Why a profile cannot be measured there.
    pub(super) fn skip(&self, profile: Profile) -> Option<&Skip> {
        self.looked.skips.iter().find(|(of, _)| *of == profile).map(|(_, skip)| skip)
    }
}

/// The other machine of a plan, or why it cannot be had; `None`: the plan names none.
///
/// # Errors
/// The caller was asked to stop.
pub(super) fn find(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Option<Result<Host, Skip>>, LabError> {
    let Some(other) = &plan.other else { return Ok(None) };
    match Host::find(other, plan, watch) {
        Err(LabError::Stopped) => Err(LabError::Stopped),
        Err(error) => {
            Ok(Some(Err(Skip { kind: "host_missing".to_owned(), reason: one_line(&error.reason()) })))
        }
        Ok(host) => Ok(Some(Ok(host))),
    }
}

/// Words of the other machine: one line without control characters.
fn words(text: &str) -> String {
    one_line(&printable(text.as_bytes())).chars().take(WORDS_MAX).collect()
}

/// What the other machine is, and which causes of late wake-ups it cannot show.
fn describe(environment: &Value, unseen: &[Cause]) -> String {
    let kernel = words(environment["kernel"].as_str().unwrap_or("?"));
    let cpus = environment["cpus"].as_u64().unwrap_or(0);
    // In the order of all, each once, whatever came.
    let unseen: Vec<&str> =
        Cause::ALL.iter().filter(|cause| unseen.contains(cause)).map(|cause| cause.word()).collect();
    let unseen = if unseen.is_empty() {
        "its counters show all causes".to_owned()
    } else {
        format!("causes that no counter shows there: {}", unseen.join(", "))
    };
    format!("Linux {kernel}, {cpus} CPUs, reached by ssh; {unseen}")
}

/// The probe on the other machine; it ends with the value.
#[derive(Debug)]
pub(super) struct There {
    far: Far,
    /// Latencies that may still come.
    left: u64,
    silent: Instant,
    silence_max: Duration,
    pub(super) begun: Begun,
}

impl There {
    pub(super) fn start(other: &Other, plan: &Plan, profile: Profile, loops: u64) -> Result<Self, LabError> {
        let (mut far, _) = Far::begin(&other.remote, EXPERIMENT, &Asked::of(plan))?;
        let begun = far.ask(&Question::Begin { profile, loops }, ANSWER_MAX)?;
        let silence_max = ANSWER_MAX + Duration::from_nanos(plan.period.get().unsigned_abs()) * 10;
        Ok(Self { far, left: loops, silent: Instant::now(), silence_max, begun })
    }

    /// What came since the last turn.
    pub(super) fn turn(&mut self) -> Result<Turn, LabError> {
        let mut turn: Turn = self.far.ask(&Question::Read, ANSWER_MAX)?;
        if let Some(problem) = refusal(&turn, self.left) {
            return Err(self.far.refuse(problem).into());
        }
        for late in &mut turn.late {
            late.thread = late.thread.take().map(|thread| words(&thread));
        }
        self.left -= turn.ns.len() as u64;
        if !turn.ns.is_empty() {
            self.silent = Instant::now();
        } else if self.silent.elapsed() > self.silence_max {
            let problem = format!("it gave no latency for {:?}", self.silence_max);
            return Err(self.far.refuse(problem).into());
        }
        Ok(turn)
    }
}

/// Why a turn is none of a probe that has `left` wake-ups to go: the bounds of what is recorded here.
fn refusal(turn: &Turn, left: u64) -> Option<String> {
    let count = turn.ns.len();
    if count > SAMPLES_MAX || turn.late.len() > LATE_MAX {
        return Some(format!("it gave {count} latencies at once, {} late", turn.late.len()));
    }
    if count as u64 > left {
        return Some(format!("it gave {count} latencies, {left} were left of those asked for"));
    }
    let odd = turn.late.iter().find(|late| late.index >= count);
    odd.map(|late| format!("its late wake-up {} is none of those that it gave", late.index))
}

#[cfg(test)]
mod tests {
    use super::super::store::Late;
    use super::*;
    use serde_json::json;

    #[test]
    fn what_cannot_be_recorded_is_refused() {
        let late = |index| Late { index, lateness_ns: 1, causes: Vec::new(), thread: None };
        let turn = |count, late| Turn { ns: vec![1; count], late, is_last: false };
        assert_eq!(refusal(&turn(100, vec![late(0), late(99)]), 100), None);
        for (turn, word) in [
            (turn(101, Vec::new()), "100 were left"),
            (turn(SAMPLES_MAX + 1, Vec::new()), "at once"),
            (turn(1, vec![late(0); LATE_MAX + 1]), "at once"),
            (turn(2, vec![late(2)]), "late wake-up 2 is none"),
        ] {
            let problem = refusal(&turn, 100).unwrap();
            assert!(problem.contains(word), "{word}: {problem}");
        }
    }

    #[test]
    fn words_of_the_other_machine_are_short_and_control_nothing() {
        let environment = json!({"kernel": format!("6.1\u{1b}[2J{}", "x".repeat(5000)), "cpus": 4});
        let text = describe(&environment, &[Cause::FrequencyChanges, Cause::Smi, Cause::Smi]);
        assert!(text.starts_with("Linux 6.1[2Jxxx") && text.len() < 500, "{text}");
        assert!(
            text.ends_with(
                "4 CPUs, reached by ssh; causes that no counter shows there: smi, frequency_changes"
            )
        );
        assert!(describe(&json!([]), &[]).contains("Linux ?, 0 CPUs"));
    }
}
