// SPDX-License-Identifier: Apache-2.0
//! Talker, listener and tap as processes, and the files that they leave.
//!
//! In: the programs, a directory. Out: programs to start, and what they wrote, as values. The same name is used for a
//! process, its records and its figures.

use crate::error::LabError;
use crate::experiment::Setup;
use crate::process::{Process, Program};
use crate::tools::Tools;
use ktsn_measure::records::RecordsError;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest wait for a process to be ready.
pub(crate) const READY_MAX: Duration = Duration::from_secs(5);
/// What a talker needs beyond its frames.
pub(crate) const TALK_EXTRA: Duration = Duration::from_secs(5);
/// A frame that has not arrived this long after the last one was sent is lost.
const LINGER: Duration = Duration::from_millis(300);
/// Longest wait for a process that was asked to end.
const END_MAX: Duration = Duration::from_secs(5);
/// Exit statuses of an observer that has written its files: 1 says that something was missing, and the files what.
pub(crate) const MEASURED: &[i32] = &[0, 1];

/// Where observers write, and whether they keep time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observers<'a> {
    pub(crate) tools: &'a Tools,
    pub(crate) directory: &'a Path,
    /// No CPU and no priority: for functional tests.
    pub(crate) functional: bool,
}

impl<'a> Observers<'a> {
    /// Observers that write into `directory`.
    pub(crate) const fn new(setup: &'a Setup, directory: &'a Path) -> Self {
        Self { tools: &setup.tools, directory, functional: setup.functional }
    }

    pub(crate) fn file(&self, name: &str, ending: &str) -> PathBuf {
        self.directory.join(format!("{name}.{ending}"))
    }

    /// `ktsn VERB …` with its files, called `name`; the ends of a control loop are the laboratory's own.
    pub(crate) fn program(&self, name: &str, verb: &str, frames: u64) -> Program {
        let is_ours = matches!(verb, "control" | "answer" | "frames");
        let program = if is_ours { &self.tools.bench } else { &self.tools.ktsn };
        self.with_files(Program::new(name, program).args([verb]), name, frames)
    }

    /// A Python program that takes the same arguments.
    pub(crate) fn script(&self, name: &str, script: &Path, frames: u64) -> Program {
        self.with_files(Program::new(name, Path::new("python3")).args([script]), name, frames)
    }

    /// `program` with the arguments of files and count.
    pub(crate) fn with_files(&self, program: Program, name: &str, frames: u64) -> Program {
        let (records, json) = (self.file(name, "csv"), self.file(name, "json"));
        program
            .args(["--records".as_ref(), records.as_os_str(), "--json".as_ref(), json.as_os_str()])
            .args(["--count".to_owned(), frames.to_string()])
            .says_ready()
    }

    /// `program` on a CPU, under SCHED_FIFO or not.
    pub(crate) fn placed(&self, program: Program, cpu: u8, fifo: Option<u8>) -> Program {
        if self.functional {
            return program;
        }
        let program = program.args(["--cpu".to_owned(), cpu.to_string()]);
        fifo.map_or(program.clone(), |fifo| program.args(["--fifo".to_owned(), fifo.to_string()]))
    }

    /// Removes the files of the run before: what is read afterwards is of this one.
    pub(crate) fn forget(&self, names: &[&str]) -> Result<(), LabError> {
        for name in names {
            for path in ["csv", "json"].map(|ending| self.file(name, ending)) {
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(LabError::file(path)(error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The figures that `name` wrote.
    pub(crate) fn json<T: DeserializeOwned>(&self, name: &str) -> Result<T, LabError> {
        let path = self.file(name, "json");
        let text = std::fs::read_to_string(&path).map_err(LabError::file(&path))?;
        serde_json::from_str(&text).map_err(|error| LabError::Contents { path, problem: error.to_string() })
    }

    /// The records that `name` wrote.
    pub(crate) fn records<T>(
        &self,
        name: &str,
        load: fn(&Path) -> Result<Vec<T>, RecordsError>,
    ) -> Result<Vec<T>, LabError> {
        let path = self.file(name, "csv");
        load(&path).map_err(|error| LabError::Contents { path, problem: error.to_string() })
    }
}

/// Lets an observer see what is still under way, then ends it; it writes its files at its end.
pub(crate) fn finish(observer: &mut Process) -> Result<(), LabError> {
    if observer.wait_any(LINGER)?.is_none() {
        observer.ask_to_end()?;
    }
    observer.wait(END_MAX, MEASURED).map(drop)
}
