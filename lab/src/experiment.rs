// SPDX-License-Identifier: Apache-2.0
//! What every experiment has beside its own parameters, and what it hands back.
//!
//! In: a [`Setup`], and a function that hears what happens. Out: an [`Outcome`]. How experiments are carried out:
//! `carry_out.rs`.

use crate::error::LabError;
use crate::exclusive::check_machine;
use crate::tools::Tools;
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::Document;
use std::fmt::Display;
use std::path::PathBuf;

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
    /// The load rule makes a run wait.
    WaitingForQuiet {
        /// Share of time in which some task waited for a CPU.
        pressure: Option<f64>,
        /// Share of time that the hypervisor took.
        steal: f64,
    },
    /// A step with this description begins.
    Step(&'a str),
    /// So much is done.
    Progress {
        /// Units that are done: runs, unless a run has several.
        done: u64,
        /// Units of all rounds.
        all: u64,
    },
    /// What limits the experiment here, or is left out.
    Notice(&'a str),
    /// A run is void and is repeated.
    Void(&'a str),
}

/// A function that hears what happens.
pub type Watch<'a> = dyn FnMut(Event<'_>) + 'a;

/// Document and raw records.
#[derive(Debug)]
pub struct Outcome {
    /// The results.
    pub document: Document,
    /// The records of every run.
    pub runs: Vec<RunRecords>,
    /// Why the experiment ended before its last run; the document then has what was measured until then.
    pub failure: Option<LabError>,
}

impl Outcome {
    /// The document of an experiment that was carried out to its end.
    ///
    /// # Errors
    /// Why it was not.
    pub fn whole(self) -> Result<Self, LabError> {
        match self.failure {
            Some(error) => Err(error),
            None => Ok(self),
        }
    }
}

impl Setup {
    /// The setup of an experiment's other side, on its machine. A machine that cannot be measured on is refused.
    pub(crate) fn of_other_side(tools: &Tools, functional: bool) -> Result<Self, LabError> {
        if !functional {
            check_machine()?;
        }
        Ok(Self { tools: tools.clone(), lock: None, command: Vec::new(), functional })
    }
}

/// Refuses a plan in which one of `all` stands twice.
pub(crate) fn none_twice<T: PartialEq + Display>(what: &str, all: &[T]) -> Result<(), LabError> {
    match all.iter().enumerate().find(|(index, one)| all[..*index].contains(one)) {
        Some((_, twice)) => Err(LabError::Usage(format!("{what}: {twice} is named twice"))),
        None => Ok(()),
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
