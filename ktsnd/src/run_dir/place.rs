// SPDX-License-Identifier: Apache-2.0
//! A run directory that is made and checked, and its lock file.
//!
//! In: a path. Out: the held [`RunDir`]. Before the lock is held nothing in the directory is changed.

use std::fs::{self, File};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};

use super::{NOFOLLOW, RunDir, RunDirError, fault_of};

/// Longer texts of a lock file are not read.
const HOLDER_OCTETS_MAX: usize = 64;

/// A run directory that this process may use once it has locked it.
pub(super) struct Place {
    path: PathBuf,
    lock: File,
}

fn at(path: PathBuf) -> impl FnOnce(io::Error) -> RunDirError {
    move |error| RunDirError::Io { path, error }
}

impl Place {
    /// Makes the directory where missing, checks it and opens its lock file.
    pub(super) fn open(path: &Path) -> Result<Self, RunDirError> {
        let client = path.join("client");
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(at(parent.to_owned()))?;
        }
        // Clients of any user connect; only we write here.
        for dir in [path, &client] {
            match fs::DirBuilder::new().mode(0o755).create(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(at(dir.to_owned())(error));
                }
                _ => {}
            }
            let found = fs::symlink_metadata(dir).map_err(at(dir.to_owned()))?;
            if let Some(why) = fault_of(&found) {
                return Err(RunDirError::Unsafe { path: dir.to_owned(), why });
            }
            fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).map_err(at(dir.to_owned()))?;
        }
        let lock_path = path.join("lock");
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o644).custom_flags(NOFOLLOW);
        let lock = options.open(&lock_path).map_err(at(lock_path))?;
        Ok(Self { path: path.to_owned(), lock })
    }

    pub(super) fn try_lock(&self) -> bool {
        flock(&self.lock, FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// A second descriptor of the lock: what locks one has locked both.
    pub(super) fn clone_lock(&self) -> Result<File, RunDirError> {
        self.lock.try_clone().map_err(at(self.path.join("lock")))
    }

    /// What the lock file says about its holder: `pid N`.
    pub(super) fn holder(&self) -> String {
        let mut octets = [0; HOLDER_OCTETS_MAX];
        let read = self.lock.read_at(&mut octets, 0).unwrap_or(0);
        String::from_utf8_lossy(&octets[..read]).trim().to_owned()
    }

    /// The error that names the holder.
    pub(super) fn taken(&self) -> RunDirError {
        RunDirError::Taken { path: self.path.clone(), holder: self.holder() }
    }

    /// Whether the lock file is still the directory's: the holder may have removed both.
    pub(super) fn is_current(&self) -> bool {
        let file = |found: fs::Metadata| (found.dev(), found.ino());
        let ours = self.lock.metadata().map(file);
        let named = fs::symlink_metadata(self.path.join("lock")).map(file);
        matches!((ours, named), (Ok(ours), Ok(named)) if ours == named)
    }

    /// Makes this process the holder. Only with the lock.
    pub(super) fn occupy(self) -> Result<RunDir, RunDirError> {
        let Self { path, mut lock } = self;
        let started_before = written_at(&lock);
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| writeln!(lock, "pid {}", std::process::id()))
            .map_err(at(path.join("lock")))?;
        let started = written_at(&lock);
        Ok(RunDir { path, lock: Arc::new(lock), started, started_before, owner: None })
    }
}

/// The instant of the last change, in nanoseconds since 1970; 0 where it is unknown.
fn written_at(file: &File) -> i128 {
    file.metadata()
        .map_or(0, |found| i128::from(found.mtime()) * 1_000_000_000 + i128::from(found.mtime_nsec()))
}
