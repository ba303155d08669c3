// SPDX-License-Identifier: Apache-2.0
//! What a set-up changed, as a file.
//!
//! In: a device in this process's network namespace. Out: the actions that take its set-up back, locked while the value lives. The file is
//! replaced as a whole, so it is never half written. A record of another device of the same name (another index) is void: what it names went
//! with that device, all but a ktsnd.

use super::plan::{Action, Mode};
use ktsn_host::HostError;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(Debug, Serialize, Deserialize)]
struct Text {
    mode: Mode,
    ifindex: u32,
    undo: Vec<Action>,
}

/// The record of a device.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) device: String,
    /// The mode of the set-up; `None`: there is none.
    pub(super) mode: Option<Mode>,
    ifindex: u32,
    /// What takes the set-up back, in the order in which it was done.
    pub(super) undo: Vec<Action>,
    path: PathBuf,
    _lock: File,
}

/// What a record says is carried out, programs among it: so no other user may write one.
fn check_owner(records: &Path) -> Result<(), HostError> {
    const OTHERS_WRITE: u32 = 0o002;
    let facts = std::fs::metadata(records).map_err(HostError::file(records))?;
    let user = rustix::process::geteuid().as_raw();
    if (facts.uid() != user && facts.uid() != 0) || facts.mode() & OTHERS_WRITE != 0 {
        return Err(HostError::Usage(format!(
            "--records {}: expected a directory that only this user or root writes to, found owner {} and mode {:o}",
            records.display(),
            facts.uid(),
            facts.mode() & 0o7777
        )));
    }
    Ok(())
}

impl Record {
    /// Reads the record of a device and keeps other set-ups out.
    ///
    /// # Errors
    /// [`HostError::Usage`] while another `ktsn guest` works, or where another user may write; a file that cannot be read or made.
    pub(super) fn open(records: &Path, device: &str, ifindex: u32) -> Result<Self, HostError> {
        std::fs::create_dir_all(records).map_err(HostError::file(records))?;
        check_owner(records)?;
        let namespace = Path::new("/proc/self/ns/net");
        let namespace = std::fs::metadata(namespace).map_err(HostError::file(namespace))?.ino();
        let lock_path = records.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(HostError::file(&lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            HostError::Usage(format!(
                "{}: another `ktsn guest` works; try again when it has ended",
                lock_path.display()
            ))
        })?;
        let path = records.join(format!("{namespace}-{device}.json"));
        let mut record =
            Self { device: device.to_owned(), mode: None, ifindex, undo: Vec::new(), path, _lock: lock };
        match std::fs::read_to_string(&record.path) {
            Ok(text) => {
                let text: Text = serde_json::from_str(&text).map_err(|error| HostError::Contents {
                    path: record.path.clone(),
                    problem: format!("{error}; remove it, and take the device's qdiscs back by hand"),
                })?;
                record.mode = Some(text.mode);
                record.undo = text.undo;
                if text.ifindex != ifindex {
                    record.undo.retain(|undo| matches!(undo, Action::StopDaemon { .. }));
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(HostError::file(&record.path)(error)),
        }
        Ok(record)
    }

    /// Begins the record of a set-up.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn begin(&mut self, mode: Mode) -> Result<(), HostError> {
        self.mode = Some(mode);
        self.write()
    }

    /// Adds what takes the next change back.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn push(&mut self, undo: Action) -> Result<(), HostError> {
        self.undo.push(undo);
        self.write()
    }

    /// Removes the entry at this place.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn remove(&mut self, at: usize) -> Result<(), HostError> {
        self.undo.remove(at);
        self.write()
    }

    /// Ends the record: there is no set-up.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub(super) fn end(&mut self) -> Result<(), HostError> {
        self.mode = None;
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(HostError::file(&self.path)(error))
            }
            _ => Ok(()),
        }
    }

    fn write(&self) -> Result<(), HostError> {
        let Some(mode) = self.mode else { return Ok(()) };
        let text = Text { mode, ifindex: self.ifindex, undo: self.undo.clone() };
        let text = serde_json::to_string(&text)
            .map_err(|error| HostError::Contents { path: self.path.clone(), problem: error.to_string() })?;
        let next = self.path.with_extension("new");
        let written = File::create(&next).and_then(|mut file| file.write_all(text.as_bytes()));
        written.and_then(|()| std::fs::rename(&next, &self.path)).map_err(HostError::file(&self.path))
    }
}
