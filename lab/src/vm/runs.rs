// SPDX-License-Identifier: Apache-2.0
//! What runs leave when they are killed, and how it is removed.
//!
//! In: the cache. A run holds a locked file there that names its QEMU by process number and start time. Out: processes ended, files gone.
//! A process is never found by its name; one whose start time differs is another one with the same number, and is left alone.

use super::cache::Cache;
use crate::error::LabError;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A record is two numbers.
const RECORD_OCTETS_MAX: u64 = 64;

/// The record of a run; gone with its value.
#[derive(Debug)]
pub(super) struct Record {
    path: PathBuf,
    file: File,
}

impl Record {
    /// Makes a record that names no process yet.
    ///
    /// # Errors
    /// The file cannot be made.
    pub(super) fn new(cache: &Cache) -> Result<Self, LabError> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let runs = cache.runs();
        std::fs::create_dir_all(&runs).map_err(LabError::file(&runs))?;
        // Processes of several containers that share the cache may have equal numbers.
        let (pid, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = runs.join(format!("{pid}-{}-{number}", start_time(pid).unwrap_or(0)));
        loop {
            let file = OpenOptions::new().create(true).truncate(true).write(true).open(&path);
            let file = file.map_err(LabError::file(&path))?;
            flock(&file, FlockOperation::LockExclusive)
                .map_err(|error| LabError::file(&path)(error.into()))?;
            // `clean` may have removed the file before it was locked.
            let inode = file.metadata().map_err(LabError::file(&path))?.ino();
            if std::fs::metadata(&path).is_ok_and(|named| named.ino() == inode) {
                return Ok(Self { path, file });
            }
        }
    }

    /// Names the run's process.
    ///
    /// # Errors
    /// The record cannot be written.
    pub(super) fn name_process(&mut self, pid: u32) -> Result<(), LabError> {
        let Some(start) = start_time(pid) else { return Ok(()) };
        writeln!(self.file, "{pid} {start}").map_err(LabError::file(&self.path))
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        // Where it cannot be removed, `ktsn vm clean` finds it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// When a process started, in the kernel's ticks since boot; `None` if there is none.
pub(super) fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold any octets.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// What was found and removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Removed {
    /// Records of runs that were killed.
    pub records: usize,
    /// Their processes that still ran, which were killed.
    pub processes: Vec<u32>,
}

/// Removes what killed runs left; runs that live are not touched.
///
/// # Errors
/// The directory of records cannot be read, or a record not be removed.
pub fn clean(cache: &Cache) -> Result<Removed, LabError> {
    let runs = cache.runs();
    let mut removed = Removed::default();
    if !runs.exists() {
        return Ok(removed);
    }
    cache.check_owner()?;
    for entry in std::fs::read_dir(&runs).map_err(LabError::file(&runs))?.flatten() {
        let path = entry.path();
        if !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        let Ok(file) = File::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            continue;
        }
        let mut text = String::new();
        // What cannot be read names no process.
        let _ = (&file).take(RECORD_OCTETS_MAX).read_to_string(&mut text);
        let mut numbers = text.split_whitespace().map(|number| number.parse::<u64>().ok());
        if let (Some(Some(pid)), Some(Some(start))) = (numbers.next(), numbers.next()) {
            removed.processes.extend(u32::try_from(pid).ok().filter(|&pid| kill(pid, start)));
        }
        match std::fs::remove_file(&path) {
            // Its own run was quicker.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            gone => {
                gone.map_err(LabError::file(&path))?;
                removed.records += 1;
            }
        }
    }
    Ok(removed)
}

/// Kills the process that has this number and started then.
fn kill(pid: u32, start: u64) -> bool {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    start_time(pid) == Some(start) && number.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}
