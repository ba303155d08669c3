// SPDX-License-Identifier: Apache-2.0
//! RUN_DIR: lock, sockets' places, and the attachments and schedules to take up again after a restart.
//!
//! Whoever can write into RUN_DIR decides what root does: a directory that others can write, or that is another user's,
//! is refused, and no symbolic link in it is followed.

pub(crate) mod fuzzing;
mod place;
mod state;
mod take_over;

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

pub use state::{Foreign, KeptAttachment, KeptPeers, KeptPolicy, KeptSchedule, State};
pub(crate) use take_over::take_over;

use place::Place;
use state::{read_state, write_state};

/// No symbolic link is followed to a file.
const NOFOLLOW: i32 = OFlags::NOFOLLOW.bits() as i32;

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// The run directory cannot be made or written.
    #[error("run directory {}: {error}; give another one with --run-dir or KTSN_RUN_DIR", path.display())]
    Io {
        /// The path at fault.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The state file cannot be read.
    #[error("state file {}: {error}; ktsnd does not start without it, as its next change would replace it: make it readable, or move it away to start without attachments, schedules, peers and network policies", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        error: io::Error,
    },
    /// The run directory has a wrong owner or wrong rights.
    #[error("run directory {}: {why}; expected a directory of root's, or of ktsnd's own user, that no other user can write; mend it, or give another one with --run-dir or KTSN_RUN_DIR", path.display())]
    Unsafe {
        /// The path at fault.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Another daemon uses it.
    #[error("run directory {}: another ktsnd ({holder}) uses it; stop that one, wait for its end with --take-over, or give another --run-dir", path.display())]
    Taken {
        /// The directory.
        path: PathBuf,
        /// What the lock file says about the other one.
        holder: String,
    },
}

/// An exclusively held run directory.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    lock: Arc<File>,
    started: i128,
    started_before: i128,
    /// The process that removes the directory, if it is a temporary one.
    owner: Option<u32>,
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The owner was killed and cannot remove the directory.
        if self.owner.is_some_and(|owner| owner != std::os::unix::process::parent_id()) {
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl RunDir {
    /// Makes the directory where missing and locks it.
    ///
    /// # Errors
    /// [`RunDirError`].
    pub fn take(path: &Path) -> Result<Self, RunDirError> {
        let place = Place::open(path)?;
        let until = Instant::now() + LOCK_PATIENCE;
        while !place.try_lock() {
            if Instant::now() >= until {
                return Err(place.taken());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        place.occupy()
    }

    /// The lock. Another ktsnd can take the directory when this and the [`RunDir`] are dropped.
    #[must_use]
    pub(crate) fn lock(&self) -> Arc<File> {
        self.lock.clone()
    }

    /// Names the process that removes the directory: our parent. When the parent is gone, the directory is removed with this value.
    pub fn belongs_to(&mut self, owner: u32) {
        self.owner = Some(owner);
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The control socket.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.path.join("ktsnd.sock")
    }
    /// The clients' socket.
    #[must_use]
    pub fn client_socket(&self) -> PathBuf {
        self.path.join("client/ktsn.sock")
    }

    /// What was kept, and the notes to log about it. A file that is damaged as a whole, or of a newer form, is set aside
    /// and not used; of one with damaged entries a copy is kept.
    ///
    /// # Errors
    /// [`RunDirError::State`] when the file is there and cannot be read, or cannot be set aside: it may be whole, and the
    /// next [`Self::save`] would replace it.
    pub fn load(&self) -> Result<(State, Vec<String>), RunDirError> {
        let path = self.path.join("state.json");
        let octets = match read(&path) {
            Ok(octets) => octets,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            Err(error) => return Err(RunDirError::State { path, error }),
        };
        match read_state(&octets) {
            Ok(reading) => {
                let mut notes = reading.notes;
                if reading.is_damaged {
                    let copy = self.path.join("state.json.damaged");
                    notes.push(match self.write(&copy, &octets) {
                        Ok(()) => format!("the file as it was is kept as {}", copy.display()),
                        Err(why) => format!("the file as it was could not be kept: {why}"),
                    });
                }
                Ok((reading.state, notes))
            }
            Err(error) => {
                let aside = self.path.join(error.aside());
                let note = format!("{}: {error}; set aside as {}", path.display(), aside.display());
                fs::rename(&path, &aside).map_err(|error| RunDirError::State { path, error })?;
                Ok((State::default(), vec![note]))
            }
        }
    }

    /// Keeps the state: the old file stays whole until the new one is.
    ///
    /// # Errors
    /// The kernel's, for example a full disk; the old state is still there then.
    pub fn save(&self, state: &State) -> io::Result<()> {
        self.write(&self.path.join("state.json"), &write_state(state)?)
    }

    /// The counters that a daemon before has left, if it has.
    ///
    /// # Errors
    /// The kernel's.
    pub fn counters(&self) -> io::Result<Option<Vec<u8>>> {
        match read(&self.path.join(COUNTERS)) {
            Ok(octets) => Ok(Some(octets)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Leaves counters to the next daemon.
    ///
    /// # Errors
    /// The kernel's, for example a full disk.
    pub fn leave_counters(&self, octets: &[u8]) -> io::Result<()> {
        self.write(&self.path.join(COUNTERS), octets)
    }

    /// Removes counters that were left.
    pub fn forget_counters(&self) {
        let _ = fs::remove_file(self.path.join(COUNTERS));
    }

    /// When this daemon and the one before it were started in this directory, in nanoseconds since 1970 by its file system; every
    /// ktsnd writes that.
    #[must_use]
    pub fn starts(&self) -> (i128, i128) {
        (self.started, self.started_before)
    }

    /// Replaces a file.
    fn write(&self, path: &Path, octets: &[u8]) -> io::Result<()> {
        let new = self.path.join("state.json.new");
        let written = (|| {
            let mut options = File::options();
            let mut file = options
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .custom_flags(NOFOLLOW)
                .open(&new)?;
            file.write_all(octets)?;
            file.sync_all()?;
            fs::rename(&new, path)
        })();
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }
}

/// The file with the counters of a daemon that has ended.
const COUNTERS: &str = "counters.json";

/// How long a lock may stay taken: what a ktsnd that was killed was about to start (nft, pmc) shares it until it runs.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Reads a file. A pipe or a device in its place is an error: reading one could wait for ever.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let flags = NOFOLLOW | OFlags::NONBLOCK.bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut octets = Vec::new();
    file.read_to_end(&mut octets)?;
    Ok(octets)
}

/// Why a directory's contents cannot be trusted; `None`: they can.
pub(crate) fn fault_of(found: &fs::Metadata) -> Option<String> {
    let own = rustix::process::geteuid().as_raw();
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if found.is_symlink() {
        Some("it is a symbolic link".to_owned())
    } else if !found.is_dir() {
        Some("it is no directory".to_owned())
    } else if owner != 0 && owner != own {
        Some(format!("it belongs to user {owner}, who can put other files there"))
    } else if mode & 0o022 != 0 {
        Some(format!("others can write it (mode {mode:o})"))
    } else {
        None
    }
}

#[cfg(test)]
#[path = "run_dir/archive_tests.rs"]
mod archive_tests;
#[cfg(test)]
#[path = "run_dir_tests.rs"]
mod tests;
