// SPDX-License-Identifier: Apache-2.0
//! The loop with an experiment that only says what it is asked. Each test fails when its rule is taken out.

use super::*;
use ktsn_measure::results::{CheckOutcome, Round};
use rustix::fs::{FlockOperation, flock};
use std::cell::RefCell;
use std::fs::File;
use std::rc::Rc;

/// What happened, in order.
type Log = Rc<RefCell<Vec<String>>>;

/// A machine that refuses once before every run, and whose clocks step in the runs with these numbers.
struct Fake {
    log: Log,
    looks: u64,
    steps_in: Vec<u64>,
}

impl Ground for Fake {
    fn check(&self) -> Result<(), LabError> {
        self.log.borrow_mut().push("check".to_owned());
        Ok(())
    }

    fn wait_until_quiet(&mut self, refused: &mut dyn FnMut(&Disturbance)) -> Result<u32, LabError> {
        refused(&Disturbance { steal_ratio: 0.5, cpu_pressure_some_ratio: None });
        self.log.borrow_mut().push("quiet".to_owned());
        Ok(1)
    }

    fn look(&mut self) {
        self.looks += 1;
    }

    fn has_stepped(&self) -> bool {
        self.steps_in.contains(&(self.looks - 1))
    }
}

/// What the run with this number comes to.
type Script = fn(u64, &str) -> Result<Option<&'static str>, LabError>;

struct Rehearsal {
    log: Log,
    rows: Vec<&'static str>,
    script: Script,
    lock: Option<std::path::PathBuf>,
}

impl Experiment for Rehearsal {
    type Row = &'static str;
    type Extra = u64;

    fn rows(&self) -> Vec<&'static str> {
        self.rows.clone()
    }

    fn name(&self, row: &&'static str) -> String {
        (*row).to_owned()
    }

    /// `b1` and `b2` are of one subject.
    fn subject(&self, row: &&'static str) -> String {
        row[..1].to_owned()
    }

    fn missing(&self, row: &&'static str) -> Option<String> {
        (*row == "missing").then(|| "no such device; remedy: buy one".to_owned())
    }

    fn prepare(&mut self, row: &&'static str, _: &mut Watch<'_>) -> Result<u32, LabError> {
        self.log.borrow_mut().push(format!("prepare {row}"));
        Ok(10)
    }

    fn run(&mut self, row: &&'static str, turn: &mut Turn<'_>) -> Result<Measured<u64>, LabError> {
        self.log.borrow_mut().push(format!("run {row}"));
        if let Some(lock) = &self.lock {
            let file = File::open(lock).unwrap();
            let is_held = flock(&file, FlockOperation::NonBlockingLockExclusive).is_err();
            self.log.borrow_mut().push(format!("held {is_held}"));
        }
        let fault = (self.script)(turn.number, row)?.map(str::to_owned);
        let series =
            Series { path: (*row).to_owned(), round: Round::Number(turn.round), ..Series::default() };
        let run = RunRecords { path: (*row).to_owned(), round: turn.round, ..RunRecords::default() };
        Ok(Measured::one((series, run), fault).with(turn.number))
    }

    fn account(&self, kept: &mut [Measured<u64>]) {
        kept.iter_mut().for_each(|measured| measured.series[0].late = Some(1));
    }

    fn conclude(&mut self, numbers: Vec<u64>, document: &mut Document) -> Result<(), LabError> {
        assert!(document.series.iter().all(|series| series.late > Some(0)));
        document.parameters.insert("numbers".to_owned(), numbers.into());
        Ok(())
    }
}

/// What an experiment came to.
struct Played {
    log: Vec<String>,
    events: Vec<String>,
    outcome: Result<Outcome, LabError>,
}

impl Played {
    fn document(&self) -> &Document {
        &self.outcome.as_ref().unwrap().document
    }

    /// The entries of the log that begin with this word.
    fn log_of(&self, word: &str) -> Vec<&str> {
        self.log.iter().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
    }
}

fn possible(_: u64, _: &str) -> Result<Option<&'static str>, LabError> {
    Ok(None)
}

fn failed() -> LabError {
    LabError::Process { name: "ktsnd".to_owned(), problem: "ended".to_owned(), stderr: String::new() }
}

fn impossible() -> LabError {
    LabError::Impossible { what: "no guests".to_owned(), remedy: "KVM".to_owned() }
}

fn play_as(rules: Rules, rows: &[&'static str], rounds: u32, script: Script, steps_in: &[u64]) -> Played {
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join("lock");
    let log = Log::default();
    let mut ground = Fake { log: log.clone(), looks: 0, steps_in: steps_in.to_vec() };
    let mut rehearsal = Rehearsal { log: log.clone(), rows: rows.to_vec(), script, lock: Some(lock.clone()) };
    let mut events = Vec::new();
    let command = ["ktsn".to_owned()];
    let terms = Terms { name: "rehearsal", lock: Some(&lock), command: &command, rules };
    let outcome = carry_out_on(
        &mut ground,
        &terms,
        &mut |event| events.push(format!("{event:?}")),
        |session| session.measure(&mut rehearsal, rounds),
        |document, _| document.checks.push(Check::of("judged", true, None)),
    );
    let log = log.borrow().clone();
    Played { log, events, outcome }
}

fn play(rows: &[&'static str], rounds: u32, script: Script) -> Played {
    play_as(Rules::Timed, rows, rounds, script, &[])
}

#[test]
fn the_lock_is_held_and_the_machine_checked_for_the_whole() {
    let played = play(&["a", "b"], 2, possible);
    assert_eq!(played.log[0], "check");
    assert_eq!(played.log_of("held"), ["true"; 4]);
    assert_eq!(play_as(Rules::Functional, &["a"], 1, possible, &[]).log_of("check"), Vec::<&str>::new());
}

#[test]
fn before_every_run_the_row_is_prepared_and_the_machine_is_quiet() {
    // The first run is void, and so there are three.
    let played = play(&["a", "b"], 1, |number, _| Ok((number == 0).then_some("a frame was not tapped")));
    let order: Vec<&str> =
        played.log.iter().map(String::as_str).filter(|line| !line.starts_with("held")).collect();
    let a = ["prepare a", "quiet", "run a"];
    let b = ["prepare b", "quiet", "run b"];
    assert_eq!(order, [&["check"][..], &a, &a, &b].concat());
    let waits = played.events.iter().filter(|event| event.starts_with("WaitingForQuiet")).count();
    assert_eq!(waits, 3, "{:?}", played.events);
    // Refusals here and on the other machine, and void runs, each of the whole row.
    let voided = |path: &str| played.document().all_rounds(path, 0, None).unwrap().voided_rounds;
    assert_eq!((voided("a"), voided("b")), (Some(1 + 2 * 11), Some(11)));
    for rules in [Rules::Functional, Rules::Disturbed] {
        assert_eq!(play_as(rules, &["a"], 1, possible, &[]).log_of("quiet"), Vec::<&str>::new());
    }
}

#[test]
fn a_void_run_is_repeated_three_times_at_most() {
    for (script, runs) in [
        (possible as Script, 1),
        (|number, _| Ok((number < 3).then_some("a frame was not tapped")), 4),
        (|_, _| Ok(Some("a frame was not tapped")), 4),
    ] {
        let played = play(&["a"], 1, script);
        assert_eq!(played.log_of("run").len(), runs);
        let heard = played.events.iter().filter(|event| event.starts_with("Void")).count();
        assert_eq!(heard, runs - 1, "{:?}", played.events);
    }
    let error = play(&["a"], 1, |_, _| Ok(Some("a frame was not tapped"))).outcome.unwrap_err().to_string();
    assert_eq!(error, "a was void 4 times, the last time because a frame was not tapped");
}

#[test]
fn a_stepped_clock_voids_the_run_of_any_experiment() {
    let played = play_as(Rules::Functional, &["a", "b"], 1, possible, &[1]);
    assert_eq!(played.log_of("run"), ["a", "b", "b"]);
    assert!(played.events.contains(&r#"Void("a clock was stepped")"#.to_owned()), "{:?}", played.events);
    // No two runs have the same number, and what a void run yielded is not kept.
    assert_eq!(played.document().parameters["numbers"], serde_json::json!([0, 2]));
    let disturbed = play_as(Rules::Disturbed, &["a", "b"], 1, possible, &[1]);
    assert_eq!(disturbed.log_of("run"), ["a", "b"]);
}

#[test]
fn each_round_begins_with_another_row() {
    let played = play(&["a", "b", "c", "d"], 2, possible);
    assert_eq!(played.log_of("run"), ["a", "b", "c", "d", "c", "d", "a", "b"]);
    let order = &played.document().parameters["order"];
    assert_eq!(order["rows"], serde_json::json!(["a", "b", "c", "d"]));
    assert_eq!(order["rounds_begin_with"], serde_json::json!(["a", "c"]));
    // The document has them in the order of tables, each with its rounds.
    let paths: Vec<&str> = played.document().series.iter().map(|series| series.path.as_str()).collect();
    assert_eq!(paths, ["a", "a", "a", "b", "b", "b", "c", "c", "c", "d", "d", "d"]);
}

#[test]
fn what_is_not_possible_is_left_out_once_with_its_reason() {
    let played = play(&["a", "b1", "b2", "missing"], 2, |_, row| {
        if row.starts_with('b') { Err(impossible()) } else { Ok(None) }
    });
    assert_eq!(played.log_of("run"), ["a", "b1", "a"]);
    let skipped: Vec<_> = played
        .document()
        .checks
        .iter()
        .filter(|check| check.outcome == CheckOutcome::Skipped)
        .map(|check| (check.name.as_str(), check.reason.as_deref().unwrap_or_default()))
        .collect();
    assert_eq!(skipped, [("m", "no such device; remedy: buy one"), ("b", "no guests; remedy: KVM")]);
    let notice = r#"Notice("b is skipped: no guests; remedy: KVM")"#.to_owned();
    assert_eq!(played.events.iter().filter(|event| **event == notice).count(), 1, "{:?}", played.events);
    let nothing = play(&["b1", "missing"], 2, |_, _| Err(impossible())).outcome.unwrap_err();
    assert_eq!(nothing.exit_status(), 3);
    let lines = "\n  m: no such device; remedy: buy one\n  b: no guests; remedy: KVM";
    assert!(nothing.to_string().ends_with(lines), "{nothing}");
}

#[test]
fn a_failing_run_keeps_what_was_measured() {
    for (error, status) in [(failed as fn() -> LabError, 1), (impossible, 3)] {
        let script: Script = if status == 1 {
            |number, _| if number < 3 { Ok(None) } else { Err(failed()) }
        } else {
            // What was possible in the first round is no skip in the second.
            |number, _| if number < 3 { Ok(None) } else { Err(impossible()) }
        };
        let played = play(&["a", "b"], 3, script);
        assert_eq!(played.log_of("run").len(), 4);
        let outcome = played.outcome.as_ref().unwrap();
        let failure = outcome.failure.as_ref().unwrap();
        assert_eq!((failure.exit_status(), failure.to_string()), (status, error().to_string()));
        assert_eq!(outcome.runs.len(), 3);
        let document = played.document();
        assert!(document.all_rounds("a", 0, None).is_some() && document.all_rounds("b", 0, None).is_some());
        assert_eq!(document.parameters["numbers"], serde_json::json!([0, 1, 2]));
        let names: Vec<&str> = document.checks.iter().map(|check| check.name.as_str()).collect();
        assert_eq!(names, [WHOLE, "judged"]);
        assert_eq!(document.checks[0].outcome, CheckOutcome::Failed);
        assert!(played.outcome.unwrap().whole().is_err());
    }
    // Another host that says what cannot be has measured nothing.
    let played = play(&["a", "b"], 3, |number, _| match number {
        0..3 => Ok(None),
        _ => Err(crate::remote::RemoteError::Untrue {
            target: "ssh:plc".parse().unwrap(),
            problem: "a frame arrived before it was sent".to_owned(),
        }
        .into()),
    });
    assert!(crate::error::is_untrue(&played.outcome.unwrap_err()));
    // Nothing was measured: there is nothing to keep.
    assert!(play(&["a"], 1, |_, _| Err(failed())).outcome.is_err());
}

#[test]
fn progress_is_shown_before_and_after_every_run() {
    let played = play(&["a", "b"], 2, possible);
    let shown: Vec<&str> = played
        .events
        .iter()
        .filter(|event| event.starts_with("Step") || event.starts_with("Progress"))
        .map(String::as_str)
        .collect();
    let run = |round: u32, row: &str, done: u64| {
        let progress = |done| format!("Progress {{ done: {done}, all: 4 }}");
        [format!(r#"Step("round {round} of 2: {row}")"#), progress(done), progress(done + 1)]
    };
    let expected = [run(1, "a", 0), run(1, "b", 1), run(2, "b", 2), run(2, "a", 3)].concat();
    assert_eq!(shown, expected);
}

#[test]
fn the_document_says_its_rounds_and_rules() {
    let parameters = play(&["a", "b"], 3, possible).document().parameters.clone();
    assert_eq!((&parameters["rounds"], &parameters["interleaved"]), (&3.into(), &true.into()));
    assert!(parameters["void_rule"].as_str().unwrap().contains("before each run"));
    let alone = play_as(Rules::Disturbed, &["a"], 1, possible, &[]).document().parameters.clone();
    assert!(!alone.contains_key("interleaved") && !alone.contains_key("void_rule"));
}
