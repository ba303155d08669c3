// SPDX-License-Identifier: Apache-2.0
//! How every experiment is carried out: the one loop of the laboratory.
//!
//! In: the [`Terms`] of a run and its [`Experiment`]: rows, one run of a row, what follows from all runs. Out: an
//! [`Outcome`]. Lock, machine check, quiet, void runs, skips, order of rows, series, progress and document are made here
//! and nowhere else. No run is left out or repeated for its result.
//!
//! ```text
//!  lock ── machine ── set-up ─┬─ round 1:  a  b  c  d ─┬─ conclude ── judge ── document
//!                             ├─ round 2:  c  d  a  b ─┤
//!                             └─ each: prepare ── quiet ── run ── void? again
//! ```

use crate::error::LabError;
use crate::exclusive::{MeasureLock, VOID_RULE, check_machine, wait_until_quiet};
use crate::experiment::{Event, Outcome, Setup, Watch};
use crate::remote::hosts::{Hosts, Known};
use crate::rows::{Rows, State, turns};
use ktsn_measure::clock::{StampClock, stop_requested};
use ktsn_measure::environment::Disturbance;
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::{Check, Document, Micro, Series};
use std::marker::PhantomData;
use std::path::Path;

/// How often a void run is repeated.
const REPEATS_MAX: u64 = 3;
/// The check of a document whose experiment failed before its end.
const WHOLE: &str = "every run was carried out";
/// What voids a run of any experiment.
const STEPPED: &str = "a clock was stepped";

/// Which rules hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// All rules: times count.
    Timed,
    /// Times mean nothing: the machine is neither checked nor waited for.
    Functional,
    /// What disturbs this machine is the result: as [`Self::Functional`], and no run is void.
    Disturbed,
}

/// What a run of an experiment has beside its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    /// The document's name.
    pub(crate) name: &'a str,
    /// The machine's measuring lock, if it is to be held.
    pub(crate) lock: Option<&'a Path>,
    /// The command that repeats the experiment.
    pub(crate) command: &'a [String],
    pub(crate) rules: Rules,
}

impl Setup {
    /// The terms of the experiment with this name.
    pub(crate) fn terms<'a>(&'a self, name: &'a str) -> Terms<'a> {
        let rules = if self.functional { Rules::Functional } else { Rules::Timed };
        Terms { name, lock: self.lock.as_deref(), command: &self.command, rules }
    }
}

/// What is measured: rows, and one run of a row.
pub(crate) trait Experiment {
    /// What is measured in one run.
    type Row;
    /// What a run yields beside series, records and figures.
    type Extra;

    /// The rows of a round, in the order of tables.
    fn rows(&self) -> Vec<Self::Row>;

    /// The row's name for people.
    fn name(&self, row: &Self::Row) -> String;

    /// What is left out where the row is not possible: all rows of one subject are left out together.
    fn subject(&self, row: &Self::Row) -> String {
        self.name(row)
    }

    /// Why the row is not possible here, as far as that is known before it is tried.
    fn missing(&self, _row: &Self::Row) -> Option<String> {
        None
    }

    /// How many units of progress a run of the row has.
    fn units(&self, _row: &Self::Row) -> u64 {
        1
    }

    /// Sets up what the row needs and does not disturb other runs, and waits for other machines to be quiet. Returns how
    /// often the load rule refused there. Called before every run.
    fn prepare(&mut self, _row: &Self::Row, _watch: &mut Watch<'_>) -> Result<u32, LabError> {
        Ok(0)
    }

    /// Carries one run out. [`LabError::Impossible`]: this machine cannot have the row.
    fn run(&mut self, row: &Self::Row, turn: &mut Turn<'_>) -> Result<Measured<Self::Extra>, LabError>;

    /// Hears that a row is left out; returns the check that says so in the document.
    fn skipped(&mut self, row: &Self::Row, reason: String) -> Option<Check> {
        Some(Check::skipped(self.subject(row), reason))
    }

    /// Completes runs by what other runs yielded. Called once after the last run, after a failed one, too.
    fn account(&self, _kept: &mut [Measured<Self::Extra>]) {}

    /// Adds to the document what follows from all runs together, whose series it has.
    fn conclude(&mut self, _extras: Vec<Self::Extra>, _document: &mut Document) -> Result<(), LabError> {
        Ok(())
    }
}

/// What one run yielded.
#[derive(Debug, Default)]
pub(crate) struct Measured<E = ()> {
    pub(crate) series: Vec<Series>,
    pub(crate) runs: Vec<RunRecords>,
    pub(crate) micro: Vec<Micro>,
    pub(crate) checks: Vec<Check>,
    /// Why the observation, not the path, is at fault.
    pub(crate) fault: Option<String>,
    pub(crate) extra: E,
}

impl Measured {
    /// A run of one series.
    pub(crate) fn one((series, run): (Series, RunRecords), fault: Option<String>) -> Self {
        Self { series: vec![series], runs: vec![run], fault, ..Self::default() }
    }

    /// A run of figures alone.
    pub(crate) fn micro(micro: Vec<Micro>) -> Self {
        Self { micro, ..Self::default() }
    }

    /// The same with something beside it.
    pub(crate) fn with<E>(self, extra: E) -> Measured<E> {
        let Self { series, runs, micro, checks, fault, .. } = self;
        Measured { series, runs, micro, checks, fault, extra }
    }
}

/// An experiment of one row.
struct Single<'a, E, R, C> {
    name: &'a str,
    run: R,
    conclude: C,
    extra: PhantomData<E>,
}

impl<E, R, C> Experiment for Single<'_, E, R, C>
where
    R: FnMut(&mut Turn<'_>) -> Result<Measured<E>, LabError>,
    C: FnMut(Vec<E>, &mut Document),
{
    type Row = ();
    type Extra = E;

    fn rows(&self) -> Vec<()> {
        vec![()]
    }

    fn name(&self, (): &()) -> String {
        self.name.to_owned()
    }

    fn run(&mut self, (): &(), turn: &mut Turn<'_>) -> Result<Measured<E>, LabError> {
        (self.run)(turn)
    }

    fn conclude(&mut self, extras: Vec<E>, document: &mut Document) -> Result<(), LabError> {
        (self.conclude)(extras, document);
        Ok(())
    }
}

/// One run's place, and its progress.
pub(crate) struct Turn<'a> {
    /// The round, from 1.
    pub(crate) round: u32,
    /// How many runs were begun before this one: no two runs of a measurement have the same, void ones included.
    pub(crate) number: u64,
    watch: &'a mut Watch<'a>,
    done: u64,
    all: u64,
}

impl Turn<'_> {
    /// Says what is done next.
    pub(crate) fn step(&mut self, what: &str) {
        (self.watch)(Event::Step(what));
    }

    /// Says how many of the run's units are done.
    pub(crate) fn progress(&mut self, units: u64) {
        (self.watch)(Event::Progress { done: self.done + units, all: self.all });
    }
}

/// The machine as the rules see it.
trait Ground {
    /// Whether the machine can be measured on.
    fn check(&self) -> Result<(), LabError>;
    /// Waits as the load rule says; returns how often the rule refused.
    fn wait_until_quiet(&mut self, refused: &mut dyn FnMut(&Disturbance)) -> Result<u32, LabError>;
    /// Reads the clocks.
    fn look(&mut self);
    /// Whether a clock was stepped since the last look.
    fn has_stepped(&self) -> bool;
}

struct ThisMachine(StampClock);

impl Ground for ThisMachine {
    fn check(&self) -> Result<(), LabError> {
        check_machine()
    }

    fn wait_until_quiet(&mut self, refused: &mut dyn FnMut(&Disturbance)) -> Result<u32, LabError> {
        wait_until_quiet(refused)
    }

    fn look(&mut self) {
        self.0 = StampClock::now();
    }

    fn has_stepped(&self) -> bool {
        self.0.stepped(&StampClock::now())
    }
}

/// An experiment that is being carried out: what was measured so far.
pub(crate) struct Session<'a> {
    pub(crate) document: Document,
    pub(crate) watch: &'a mut Watch<'a>,
    ground: &'a mut dyn Ground,
    rules: Rules,
    runs: Vec<RunRecords>,
    refusals: u64,
}

/// A directory of an experiment's own, gone when it is dropped.
///
/// # Errors
/// [`LabError::System`]: it cannot be made.
pub(crate) fn directory() -> Result<tempfile::TempDir, LabError> {
    tempfile::tempdir().map_err(LabError::system("temporary directory"))
}

/// Carries an experiment out: under the lock and on a machine that can be measured on, `measure` sets up what all rows share, and
/// measures. `judge` holds the document against bars.
///
/// # Errors
/// What `measure` fails with before anything was measured, or what another host cannot have measured. Any other failure is in the
/// outcome, beside what was measured before.
pub(crate) fn carry_out(
    terms: &Terms<'_>,
    watch: &mut Watch<'_>,
    measure: impl FnOnce(&mut Session<'_>) -> Result<(), LabError>,
    judge: impl FnOnce(&mut Document, &[RunRecords]),
) -> Result<Outcome, LabError> {
    carry_out_on(&mut ThisMachine(StampClock::now()), terms, watch, measure, judge)
}

fn carry_out_on(
    ground: &mut dyn Ground,
    terms: &Terms<'_>,
    watch: &mut Watch<'_>,
    measure: impl FnOnce(&mut Session<'_>) -> Result<(), LabError>,
    judge: impl FnOnce(&mut Document, &[RunRecords]),
) -> Result<Outcome, LabError> {
    if terms.rules == Rules::Timed {
        ground.check()?;
    }
    let lock = terms.lock.map(|lock| MeasureLock::take(lock, || watch(Event::WaitingForLock)));
    let _lock = lock.transpose()?;
    let document = Document::new(terms.name, terms.command.to_vec());
    let mut session = Session { document, watch, ground, rules: terms.rules, runs: Vec::new(), refusals: 0 };
    let failure = measure(&mut session).err();
    let Session { mut document, runs, refusals, .. } = session;
    if terms.rules == Rules::Timed {
        document.parameters.insert("load_refusals".to_owned(), refusals.into());
    }
    if let Some(error) = failure {
        let has_results = !document.series.is_empty() || !document.micro.is_empty();
        if !has_results || crate::error::is_untrue(&error) {
            return Err(error);
        }
        document.checks.push(Check::of(WHOLE, false, Some(error.to_string())));
        judge(&mut document, &runs);
        return Ok(Outcome { document, runs, failure: Some(error) });
    }
    judge(&mut document, &runs);
    Ok(Outcome { document, runs, failure: None })
}

impl Session<'_> {
    /// Measures all rows of an experiment in each of `rounds` rounds, and adds to the document what they yield.
    ///
    /// # Errors
    /// [`LabError::Nothing`]: no row is possible here. Any other: a run failed; what was measured before is in the document.
    pub(crate) fn measure<E: Experiment>(&mut self, experiment: &mut E, rounds: u32) -> Result<(), LabError> {
        let mut kept = Vec::new();
        let done = self.measure_rounds(experiment, rounds, &mut kept);
        experiment.account(&mut kept);
        let (mut series, mut extras) = (Vec::new(), Vec::new());
        for measured in kept {
            series.extend(measured.series);
            extras.push(measured.extra);
            self.runs.extend(measured.runs);
            self.document.micro.extend(measured.micro);
            self.document.checks.extend(measured.checks);
        }
        self.document.add_series(series);
        done.and(experiment.conclude(extras, &mut self.document))
    }

    /// Measures as [`Self::measure`] between two hosts, if there are two. What is known of both stands in the document then; without it
    /// nothing that was measured is a result.
    ///
    /// # Errors
    /// As [`Self::measure`]; the clocks are not held any more.
    pub(crate) fn measure_between<E: Experiment>(
        &mut self,
        experiment: &mut E,
        rounds: u32,
        known: Option<(&Hosts, Known)>,
    ) -> Result<(), LabError> {
        let measured = self.measure(experiment, rounds);
        let Some((hosts, known)) = known else { return measured };
        let described = hosts.describe(&known, &mut self.document);
        if described.is_err() {
            self.document.series.clear();
            self.document.micro.clear();
        }
        measured.and(described.map_err(LabError::from))
    }

    /// Measures an experiment of one row, of which `run` is one run, in each of `rounds` rounds. `conclude` gets what the runs yielded
    /// beside series, records and figures.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub(crate) fn repeat<E>(
        &mut self,
        name: &str,
        rounds: u32,
        run: impl FnMut(&mut Turn<'_>) -> Result<Measured<E>, LabError>,
        conclude: impl FnMut(Vec<E>, &mut Document),
    ) -> Result<(), LabError> {
        self.measure(&mut Single { name, run, conclude, extra: PhantomData }, rounds)
    }

    fn measure_rounds<E: Experiment>(
        &mut self,
        experiment: &mut E,
        rounds: u32,
        kept: &mut Vec<Measured<E::Extra>>,
    ) -> Result<(), LabError> {
        let facts = |row: &E::Row| (experiment.name(row), experiment.subject(row), experiment.units(row));
        let mut rows = Rows::new(experiment.rows(), facts);
        self.describe(&rows.names, rounds);
        for index in 0..rows.rows.len() {
            if let Some(reason) = experiment.missing(&rows.rows[index]) {
                self.leave_out(experiment, &mut rows, index, reason);
            }
        }
        let all = rows.units.iter().sum::<u64>() * u64::from(rounds);
        let (mut number, mut done) = (0, 0);
        for round in 1..=rounds {
            for index in turns(rows.rows.len(), rounds, round) {
                if *rows.state(index) != State::LeftOut {
                    (self.watch)(Event::Step(&format!("round {round} of {rounds}: {}", rows.names[index])));
                    (self.watch)(Event::Progress { done, all });
                    let (row, name) = (&rows.rows[index], &rows.names[index]);
                    match self.run_until_valid(
                        experiment,
                        (row, name),
                        [round.into(), done, all],
                        &mut number,
                    ) {
                        Ok(measured) => {
                            *rows.state(index) = State::Measured;
                            kept.push(measured);
                        }
                        // What this machine cannot do it cannot do in the first round.
                        Err(LabError::Impossible { what, remedy }) if *rows.state(index) == State::Open => {
                            let reason = format!("{what}; remedy: {remedy}");
                            self.leave_out(experiment, &mut rows, index, reason);
                        }
                        Err(error) => return Err(error),
                    }
                    if stop_requested() {
                        return Err(LabError::Stopped);
                    }
                }
                done += rows.units[index];
                (self.watch)(Event::Progress { done, all });
            }
        }
        if kept.is_empty() { Err(LabError::Nothing(rows.reasons.concat())) } else { Ok(()) }
    }

    /// Says in the document in which order the rows are measured.
    fn describe(&mut self, names: &[String], rounds: u32) {
        let first = |round| turns(names.len(), rounds, round).next().map(|index| names[index].as_str());
        let order = serde_json::json!({
            "rows": names,
            "rounds_begin_with": (1..=rounds).filter_map(first).collect::<Vec<_>>(),
        });
        let parameters = &mut self.document.parameters;
        parameters.entry("rounds").or_insert_with(|| rounds.into());
        if self.rules != Rules::Disturbed {
            parameters.entry("void_rule").or_insert_with(|| VOID_RULE.into());
        }
        if names.len() > 1 {
            parameters.entry("interleaved").or_insert(serde_json::Value::Bool(true));
            parameters.entry("order").or_insert(order);
        }
    }

    /// Leaves out what a row is of, once.
    fn leave_out<E: Experiment>(
        &mut self,
        experiment: &mut E,
        rows: &mut Rows<E::Row>,
        index: usize,
        reason: String,
    ) {
        if *rows.state(index) == State::LeftOut {
            return;
        }
        *rows.state(index) = State::LeftOut;
        let row = &rows.rows[index];
        let subject = experiment.subject(row);
        (self.watch)(Event::Notice(&format!("{subject} is skipped: {reason}")));
        rows.reasons.push(format!("\n  {subject}: {reason}"));
        self.document.checks.extend(experiment.skipped(row, reason));
    }

    /// Runs a row until a run is not void, as the void rule says.
    fn run_until_valid<E: Experiment>(
        &mut self,
        experiment: &mut E,
        (row, name): (&E::Row, &str),
        [round, done, all]: [u64; 3],
        number: &mut u64,
    ) -> Result<Measured<E::Extra>, LabError> {
        let (mut voided, before) = (0, self.refusals);
        loop {
            self.refusals += u64::from(experiment.prepare(row, self.watch)?);
            self.refusals += u64::from(self.wait_until_quiet()?);
            self.ground.look();
            let round = u32::try_from(round).unwrap_or(u32::MAX);
            let mut turn = Turn { round, number: *number, watch: &mut *self.watch, done, all };
            *number += 1;
            let mut measured = experiment.run(row, &mut turn)?;
            let has_stepped = self.rules != Rules::Disturbed && self.ground.has_stepped();
            let fault = measured.fault.take().or_else(|| has_stepped.then(|| STEPPED.to_owned()));
            let Some(reason) = fault else {
                for series in &mut measured.series {
                    series.voided_rounds = Some(voided + self.refusals - before);
                }
                return Ok(measured);
            };
            if voided == REPEATS_MAX {
                let problem = format!("was void {} times, the last time because {reason}", voided + 1);
                return Err(LabError::Process { name: name.to_owned(), problem, stderr: String::new() });
            }
            voided += 1;
            (self.watch)(Event::Void(&reason));
        }
    }

    /// Waits for a quiet machine; returns how often the load rule refused.
    fn wait_until_quiet(&mut self) -> Result<u32, LabError> {
        if self.rules != Rules::Timed {
            return Ok(0);
        }
        self.ground.wait_until_quiet(&mut |load| {
            let pressure = load.cpu_pressure_some_ratio;
            (self.watch)(Event::WaitingForQuiet { pressure, steal: load.steal_ratio });
        })
    }
}

#[cfg(test)]
#[path = "carry_out_tests.rs"]
mod tests;
