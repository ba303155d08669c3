// SPDX-License-Identifier: Apache-2.0
//! What every experiment has beside its own parameters: programs, the measuring lock, progress, the void rule.
//!
//! In: a [`Setup`], and a function that hears what happens. Out: an [`Outcome`]. No round is left out or repeated for
//! its result.

use crate::error::LabError;
use crate::exclusive::{MeasureLock, check_machine, wait_until_quiet};
use crate::tools::Tools;
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::Document;
use std::fmt::Display;
use std::path::PathBuf;
use tempfile::TempDir;

/// How often a void run is repeated.
const REPEATS_MAX: u64 = 3;

/// What an experiment needs beside its own parameters.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The programs.
    pub tools: Tools,
    /// The machine's measuring lock; without one the experiment runs beside other measurements.
    pub lock: Option<PathBuf>,
    /// The command that repeats the experiment.
    pub command: Vec<String>,
    /// Measures without SCHED_FIFO, CPU pinning and waiting for a quiet machine: for functional tests. Their times mean
    /// nothing.
    pub functional: bool,
}

/// What happens while an experiment runs.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Another measurement holds the lock.
    WaitingForLock,
    /// The load rule makes a round wait.
    WaitingForQuiet {
        /// Share of time in which some task waited for a CPU.
        pressure: Option<f64>,
        /// Share of time that the hypervisor took.
        steal: f64,
    },
    /// A step with this description begins.
    Step(&'a str),
    /// A run has ended.
    Done,
    /// A run is void and is repeated.
    Void(&'a str),
}

/// A function that hears what happens.
pub type Watch<'a> = dyn FnMut(Event<'_>) + 'a;

/// Document and raw records.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The results.
    pub document: Document,
    /// The records of every run.
    pub runs: Vec<RunRecords>,
}

impl From<Document> for Outcome {
    fn from(document: Document) -> Self {
        Self { document, runs: Vec::new() }
    }
}

impl Setup {
    /// Begins an experiment: the lock, and a directory for its files. A machine that cannot be measured on is refused.
    pub(crate) fn begin(&self, watch: &mut Watch<'_>) -> Result<(Option<MeasureLock>, TempDir), LabError> {
        if !self.functional {
            check_machine()?;
        }
        let lock = self.take_lock(watch)?;
        Ok((lock, tempfile::tempdir().map_err(LabError::system("temporary directory"))?))
    }

    /// The setup of an experiment's other side, on its machine. A machine that cannot be measured on is refused.
    pub(crate) fn of_other_side(tools: &Tools, functional: bool) -> Result<Self, LabError> {
        if !functional {
            check_machine()?;
        }
        Ok(Self { tools: tools.clone(), lock: None, command: Vec::new(), functional })
    }

    /// Takes the measuring lock, if there is one; it is held as long as the value lives.
    pub(crate) fn take_lock(&self, watch: &mut Watch<'_>) -> Result<Option<MeasureLock>, LabError> {
        let lock = self.lock.as_deref();
        lock.map(|lock| MeasureLock::take(lock, || watch(Event::WaitingForLock))).transpose()
    }

    /// Waits for a quiet machine, as the load rule says; returns how often the rule refused.
    pub(crate) fn wait_until_quiet(&self, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        if self.functional {
            return Ok(0);
        }
        wait_until_quiet(|load| {
            watch(Event::WaitingForQuiet { pressure: load.cpu_pressure_some_ratio, steal: load.steal_ratio });
        })
    }
}

/// Refuses a plan in which one of `all` stands twice.
pub(crate) fn none_twice<T: PartialEq + Display>(what: &str, all: &[T]) -> Result<(), LabError> {
    match all.iter().enumerate().find(|(index, one)| all[..*index].contains(one)) {
        Some((_, twice)) => Err(LabError::Usage(format!("{what}: {twice} is named twice"))),
        None => Ok(()),
    }
}

/// Runs until a run is not void, as the void rule says: `run` returns its result, and why the observation (not the path)
/// is at fault, if it is. Returns the result, and how many runs were void.
pub(crate) fn repeat_void<T>(
    name: &str,
    watch: &mut Watch<'_>,
    mut run: impl FnMut() -> Result<(T, Option<String>), LabError>,
) -> Result<(T, u64), LabError> {
    let mut voided = 0;
    loop {
        match run()? {
            (result, None) => return Ok((result, voided)),
            (_, Some(reason)) if voided < REPEATS_MAX => {
                watch(Event::Void(&reason));
                voided += 1;
            }
            (_, Some(reason)) => {
                let problem = format!("was void {} times, the last time because {reason}", voided + 1);
                return Err(LabError::Process { name: name.to_owned(), problem, stderr: String::new() });
            }
        }
    }
}

#[cfg(test)]
impl Setup {
    /// A setup of programs that do not exist.
    pub(crate) fn nowhere() -> Self {
        let tools = Tools::beside(std::path::Path::new("/nowhere/ktsn"));
        Self { tools, lock: None, command: Vec::new(), functional: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_void_run_is_repeated_three_times_at_most() {
        let voids = |count| {
            let (mut runs, mut heard) = (0, 0);
            let result = repeat_void("ktsn", &mut |_| heard += 1, || {
                runs += 1;
                Ok((runs, (runs <= count).then(|| "a clock was stepped".to_owned())))
            });
            (result.map_err(|error| error.to_string()), heard)
        };
        assert_eq!(voids(0), (Ok((1, 0)), 0));
        assert_eq!(voids(3), (Ok((4, 3)), 3));
        let problem = "ktsn was void 4 times, the last time because a clock was stepped";
        assert_eq!(voids(4), (Err(problem.to_owned()), 3));
    }
}
