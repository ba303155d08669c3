// SPDX-License-Identifier: Apache-2.0
//! Whether a ktsnd of `ktsn run --with-daemon` serves its program: looked at now and then, until that is known.
//!
//! In: its counters and its health. Out: warnings on standard error, while the program runs.

use std::path::Path;
use std::time::Duration;

use rustix::event::Timespec;

use super::asked::{health, statistics};
use crate::cmd::unserved;
use crate::control;

/// Before the first question to ktsnd.
const FIRST: Duration = Duration::from_millis(250);
/// The longest pause between two questions.
const LAST: Duration = Duration::from_secs(2);

/// Whether ktsnd serves the program, until that is known.
pub(super) struct Watch<'a> {
    run_dir: &'a Path,
    /// The daemon's process number.
    pid: u32,
    /// Warnings that were shown.
    warned: Vec<String>,
    runtime: Option<tokio::runtime::Runtime>,
    pause: Duration,
}

impl<'a> Watch<'a> {
    pub(super) fn new(run_dir: &'a Path, pid: u32, warned: Vec<String>) -> Self {
        Self { run_dir, pid, warned, runtime: control::runtime().ok(), pause: FIRST }
    }

    /// How long to wait for the next question; `None`: there is none.
    pub(super) fn pause(&self) -> Option<Timespec> {
        self.runtime.as_ref()?;
        let tv_sec = i64::try_from(self.pause.as_secs()).unwrap_or(1);
        Some(Timespec { tv_sec, tv_nsec: self.pause.subsec_nanos().into() })
    }

    /// Warns where all timed frames went to the kernel, and of what concerns the frames that ktsnd took. Nothing more is looked
    /// at then.
    pub(super) fn look(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        // A program that sends nothing yet is disturbed less and less.
        self.pause = (self.pause * 2).min(LAST);
        match runtime.block_on(statistics(self.run_dir)) {
            Ok(now) if unserved::taken(&now) > 0 => self.warn_of_health(&runtime),
            Ok(now) => match unserved::warning(&now) {
                Some(warning) => eprintln!("ktsn run: warning: {warning}"),
                None => self.runtime = Some(runtime),
            },
            Err(_) => self.runtime = Some(runtime),
        }
    }

    /// Shows what ktsnd warns of since the program sends.
    fn warn_of_health(&mut self, runtime: &tokio::runtime::Runtime) {
        let Ok(reply) = runtime.block_on(health(self.run_dir, self.pid)) else { return };
        for warning in reply.warnings.iter().filter(|warning| !self.warned.contains(warning)) {
            eprintln!("ktsn run: ktsnd: warning: {warning}");
        }
        self.warned = reply.warnings;
    }
}
