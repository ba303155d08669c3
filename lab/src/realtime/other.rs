// SPDX-License-Identifier: Apache-2.0
//! Another machine as a system, reached by ssh. In: the host. Out: what it allows, and the latencies that it measures of itself; or why there
//! are none. Its answers are held against what is known here; what it cannot have measured ends the run.

use super::far::{Asked, LATE_MAX, Looked, Question, SAMPLES_MAX};
use super::guests::one_line;
use super::plan::Plan;
use super::segment::{Begun, Turn};
use crate::error::LabError;
use crate::remote::Remote;
use crate::remote::hosts::{ANSWER_MAX, Far};
use crate::vm::printable;
use ktsn_realtime::Profile;
use ktsn_realtime::causes::Cause;
use ktsn_realtime::results::Skip;
use ktsn_time::{Nanos, Span};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The name of the other side's command.
const EXPERIMENT: &str = "rt";
/// Most words that are taken of it.
const NOTICES_MAX: usize = 16;
const WORDS_MAX: usize = 300;
/// Clocks of two machines run at the same rate, but for this share; and this much is always allowed.
const RATE: f64 = 1.01;
const SLACK: Duration = Duration::from_secs(1);

/// How the other machine is reached.
#[derive(Clone, Debug)]
pub struct Other {
    /// The machine, and its ktsn.
    pub remote: Remote,
    /// What `--version` says here.
    pub version: String,
}

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
        let mut looked: Looked = far.ask(&json!(Question::Look), ANSWER_MAX)?;
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
    limits: Limits,
    silent: Instant,
    silence_max: Duration,
    pub(super) begun: Begun,
}

/// What is known here of a running probe there.
#[derive(Debug)]
struct Limits {
    period: Span,
    excursion: Span,
    /// Latencies that may still come, and those that came.
    left: u64,
    came: u64,
    since: Instant,
}

impl There {
    pub(super) fn start(other: &Other, plan: &Plan, profile: Profile, loops: u64) -> Result<Self, LabError> {
        let (mut far, _) = Far::begin(&other.remote, EXPERIMENT, &Asked::of(plan))?;
        let since = Instant::now();
        let begun = far.ask(&json!(Question::Begin { profile, loops }), ANSWER_MAX)?;
        let of = |span: Nanos| Span::not_negative(span);
        let limits =
            Limits { period: of(plan.period), excursion: of(plan.limit), left: loops, came: 0, since };
        let silence_max = ANSWER_MAX + Duration::from_nanos(plan.period.get().unsigned_abs()) * 10;
        Ok(Self { far, limits, silent: Instant::now(), silence_max, begun })
    }

    /// What came since the last turn.
    pub(super) fn turn(&mut self) -> Result<Turn, LabError> {
        let mut turn: Turn = self.far.ask(&json!(Question::Read), ANSWER_MAX)?;
        if let Some(problem) = self.limits.refusal(&turn, self.limits.since.elapsed()) {
            return Err(self.far.refuse(problem).into());
        }
        for late in &mut turn.late {
            late.thread = late.thread.take().map(|thread| words(&thread));
        }
        self.limits.left -= turn.ns.len() as u64;
        self.limits.came += turn.ns.len() as u64;
        if !turn.ns.is_empty() {
            self.silent = Instant::now();
        } else if self.silent.elapsed() > self.silence_max {
            let problem = format!("it gave no latency for {:?}", self.silence_max);
            return Err(self.far.refuse(problem).into());
        }
        Ok(turn)
    }
}

impl Limits {
    /// Why no probe can have measured this; `elapsed` has passed since it was asked for.
    fn refusal(&self, turn: &Turn, elapsed: Duration) -> Option<String> {
        let count = turn.ns.len();
        if count > SAMPLES_MAX || turn.late.len() > LATE_MAX {
            return Some(format!("it gave {count} latencies at once, {} late", turn.late.len()));
        }
        if count as u64 > self.left {
            return Some(format!("it gave {count} latencies, {} were left of those asked for", self.left));
        }
        let elapsed = elapsed.mul_f64(RATE) + SLACK;
        let elapsed = Span::from_nanos(u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX));
        let passed = elapsed.as_nanos() / self.period.as_nanos().max(1);
        if self.came + count as u64 > passed {
            return Some(format!(
                "it gave {} latencies, and {passed} periods have passed",
                self.came + count as u64
            ));
        }
        if let Some(latency) = turn.ns.iter().find(|&&latency| latency > elapsed.as_nanos()) {
            return Some(format!("it gave a latency of {latency} ns, which is longer than its probe ran"));
        }
        let late_in_order = turn.late.windows(2).all(|pair| pair[0].index < pair[1].index);
        let is_late = |late: &super::store::Late| {
            let Some(&latency) = turn.ns.get(late.index) else { return false };
            latency > self.excursion.as_nanos()
                && late.lateness_ns <= latency
                && late.causes.len() <= Cause::ALL.len()
                && late.causes.iter().all(|one| one.explained_ns <= late.lateness_ns)
        };
        match turn.late.iter().find(|late| !is_late(late)) {
            Some(late) => Some(format!("its late wake-up {} is none of those that it gave", late.index)),
            None if !late_in_order => Some("its late wake-ups are out of order".to_owned()),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::Late;
    use super::*;
    use ktsn_realtime::causes::Explained;
    use proptest::prelude::*;

    fn limits() -> Limits {
        let millis = |millis: i64| Span::not_negative(Nanos::from_millis(millis));
        Limits { period: millis(10), excursion: millis(1), left: 100, came: 50, since: Instant::now() }
    }

    fn late(index: usize, lateness_ns: u64, explained_ns: u64) -> Late {
        let causes = vec![Explained { cause: Cause::Steal, explained_ns }];
        Late { index, lateness_ns, causes, thread: None }
    }

    const NOW: Duration = Duration::from_secs(1);

    #[test]
    fn what_no_probe_can_have_measured_is_refused() {
        let good =
            Turn { ns: vec![5_000, 2_000_000], late: vec![late(1, 1_900_000, 1_900_000)], is_last: false };
        assert_eq!(limits().refusal(&good, NOW), None);
        let refused = |turn: Turn, word: &str| {
            let problem = limits().refusal(&turn, NOW).unwrap_or_default();
            assert!(problem.contains(word), "{word}: {problem}");
        };
        refused(Turn { ns: vec![1; 101], ..Turn::default() }, "100 were left");
        refused(Turn { ns: vec![1; SAMPLES_MAX + 1], ..Turn::default() }, "at once");
        // Two seconds have 200 periods: slack and rate included, not 300.
        let more = Limits { left: 1000, ..limits() };
        let problem = more.refusal(&Turn { ns: vec![1; 250], ..Turn::default() }, NOW).unwrap();
        assert!(problem.contains("300 latencies, and 201 periods"), "{problem}");
        refused(Turn { ns: vec![u64::MAX], ..Turn::default() }, "longer than its probe ran");
        let with = |late: Vec<Late>| Turn { late, ..good.clone() };
        refused(with(vec![late(2, 1, 1)]), "late wake-up 2 is none");
        refused(with(vec![late(0, 1, 1)]), "late wake-up 0 is none");
        refused(with(vec![late(1, 2_000_001, 1)]), "late wake-up 1 is none");
        refused(with(vec![late(1, 10, 11)]), "late wake-up 1 is none");
        refused(with(vec![late(1, 10, 1), late(1, 10, 1)]), "out of order");
        let mut many = late(1, 10, 1);
        many.causes = vec![many.causes[0]; Cause::ALL.len() + 1];
        refused(with(vec![many]), "late wake-up 1 is none");
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

    proptest! {
        /// Whatever passes can be recorded: no sample that was not asked for, no sum that no time allows, no index that leads nowhere.
        #[test]
        fn what_passes_can_be_recorded(
            ns in prop::collection::vec(prop_oneof![0_u64..3_000_000, any::<u64>()], 0..120),
            late in prop::collection::vec((0_usize..130, 0_u64..3_000_000, 0_u64..3_000_000), 0..5),
        ) {
            let late = late.into_iter().map(|(index, lateness, explained)| late_of(index, lateness, explained)).collect();
            let turn = Turn { ns, late, is_last: false };
            if limits().refusal(&turn, NOW).is_none() {
                prop_assert!(turn.ns.len() <= 100);
                prop_assert!(turn.ns.iter().sum::<u64>() <= 100 * 2_010_000_000);
                prop_assert!(turn.late.iter().all(|late| turn.ns[late.index] >= late.lateness_ns));
            }
        }
    }

    fn late_of(index: usize, lateness_ns: u64, explained_ns: u64) -> Late {
        late(index, lateness_ns, explained_ns)
    }
}
