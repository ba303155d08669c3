// SPDX-License-Identifier: Apache-2.0
//! What must hold before anything is timed: the machine's measuring lock, rights, CPUs, and a quiet machine.
//!
//! In: the lock's file; the machine's counters. Out: a held lock, or the reason with its remedy; how often the load
//! rule made a round wait. The rule is fixed here, before any result exists, and never depends on one.

use crate::error::LabError;
use ktsn_measure::clock::{RealTime, stop_requested};
use ktsn_measure::environment::{CpuUse, Disturbance};
use rustix::fs::{FlockOperation, flock};
use std::fs::File;
use std::path::Path;
use std::time::Duration;

/// The load rule: the machine is watched this long with nothing of ours running.
pub const WATCHED: Duration = Duration::from_millis(500);
/// The load rule: more pressure than this voids.
pub const PRESSURE_MAX: f64 = 0.05;
/// The load rule: more steal than this voids.
pub const STEAL_MAX: f64 = 0.02;
/// The load rule: after so many refusals the run begins and its figures show the load.
pub const REFUSALS_MAX: u32 = 10;

/// The load rule in words, for the results.
pub const VOID_RULE: &str = "before each run the machine is watched for 0.5 s: PSI cpu some > 5 % or steal > 2 % makes it wait and watch \
     again, at most 10 times, then it runs and its figures show the load; a stepped clock, a frame that the tap lost, or another \
     observer at fault voids a run, which is repeated at most 3 times; nothing else does";

/// The lock that all measurements on a machine share; released on drop.
#[derive(Debug)]
pub struct MeasureLock {
    _file: File,
}

impl MeasureLock {
    /// Takes the lock; waits for its holder. `waiting` is called once when it has to wait.
    ///
    /// # Errors
    /// The file cannot be made, or the caller was asked to stop.
    pub fn take(path: &Path, waiting: impl FnOnce()) -> Result<Self, LabError> {
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(LabError::file(directory))?;
        }
        let file = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(path)
            .map_err(LabError::file(path))?;
        let mut waiting = Some(waiting);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => return Err(LabError::file(path)(error.into())),
            }
            if let Some(waiting) = waiting.take() {
                waiting();
            }
            if stop_requested() {
                return Err(LabError::Stopped);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Whether this machine lets us measure: two CPUs and SCHED_FIFO.
///
/// # Errors
/// [`LabError::Impossible`] with the remedy.
pub fn check_machine() -> Result<(), LabError> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        return Err(LabError::Impossible {
            what: format!("{cpus} CPU; talker and listener need one each"),
            remedy: "run on a machine with two CPUs or more".to_owned(),
        });
    }
    // On a thread of its own, so that the caller keeps its own policy.
    let request = RealTime { fifo: Some(50), ..RealTime::default() };
    let outcome = std::thread::spawn(move || request.apply()).join().unwrap_or(Ok(()));
    outcome.map_err(|refusal| {
        let text = refusal.to_string();
        let (what, remedy) = text.split_once("; remedy: ").unwrap_or((&text, "run as root"));
        LabError::Impossible { what: what.to_owned(), remedy: remedy.to_owned() }
    })
}

/// Whether the rule voids what was watched.
#[must_use]
pub fn is_loaded(watched: &Disturbance) -> bool {
    watched.steal_ratio > STEAL_MAX
        || watched.cpu_pressure_some_ratio.is_some_and(|ratio| ratio > PRESSURE_MAX)
}

/// Waits as the load rule says; returns how many times it refused.
///
/// # Errors
/// The caller was asked to stop.
pub fn wait_until_quiet(mut refused: impl FnMut(&Disturbance)) -> Result<u32, LabError> {
    for refusals in 0..REFUSALS_MAX {
        let before = CpuUse::now();
        std::thread::sleep(WATCHED);
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        let watched = CpuUse::now().since(&before);
        if !is_loaded(&watched) {
            return Ok(refusals);
        }
        refused(&watched);
    }
    Ok(REFUSALS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_has_one_holder() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("out/.measure.lock");
        let first = MeasureLock::take(&path, || panic!("the lock is free")).unwrap();
        let (waiting, waits) = std::sync::mpsc::channel();
        let second = std::thread::spawn({
            let path = path.clone();
            move || MeasureLock::take(&path, move || waiting.send(()).unwrap()).map(drop)
        });
        waits.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(!second.is_finished());
        drop(first);
        second.join().unwrap().unwrap();
    }

    #[test]
    fn the_rule_looks_at_load_only() {
        let at = |steal_ratio, pressure| Disturbance { steal_ratio, cpu_pressure_some_ratio: pressure };
        assert!(!is_loaded(&at(0.0, None)) && !is_loaded(&at(0.02, Some(0.05))));
        assert!(is_loaded(&at(0.03, Some(0.0))) && is_loaded(&at(0.0, Some(0.06))));
    }
}
