// SPDX-License-Identifier: Apache-2.0
//! The directory in which images are kept, its lock, and what its files must contain.
//!
//! In: the environment. Out: paths, locks that end with their value, checksums.

use super::kind::Kind;
use crate::error::LabError;
use ktsn_measure::clock::stop_requested;
use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often a lock is asked for.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The directory of images.
#[derive(Clone, Debug)]
pub struct Cache {
    pub(super) directory: PathBuf,
}

impl Cache {
    /// The given directory, else what the environment names: `KTSN_VM_CACHE`, else `ktsn/vm` in the user's cache directory (without a
    /// home: `/var/cache`). Nothing is created.
    #[must_use]
    pub fn find(given: Option<&Path>) -> Self {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let usual = || {
            let user_s = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
            user_s.unwrap_or_else(|| "/var/cache".into()).join("ktsn/vm")
        };
        let directory = given.map(Path::to_owned).or_else(|| variable("KTSN_VM_CACHE")).unwrap_or_else(usual);
        Self { directory: std::path::absolute(&directory).unwrap_or(directory) }
    }

    /// Where the directory is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn packages(&self, kind: Kind) -> PathBuf {
        self.directory.join(format!("packages{}", kind.suffix()))
    }

    pub(super) fn images(&self, kind: Kind) -> PathBuf {
        self.directory.join(format!("images{}", kind.suffix()))
    }

    pub(super) fn runs(&self) -> PathBuf {
        self.directory.join("runs")
    }

    /// Programs of the packages run, and processes that records name are killed: so no other user may write here.
    ///
    /// # Errors
    /// [`LabError::Usage`] where another user owns a directory of the cache, or every user may write to it.
    pub(super) fn check_owner(&self) -> Result<(), LabError> {
        const OTHERS_WRITE: u32 = 0o002;
        let user = rustix::process::geteuid().as_raw();
        let of_kinds = Kind::ALL.into_iter().flat_map(|kind| [self.packages(kind), self.images(kind)]);
        for directory in [self.directory.clone(), self.runs()].into_iter().chain(of_kinds) {
            let Ok(facts) = std::fs::metadata(&directory) else { continue };
            if (facts.uid() != user && facts.uid() != 0) || facts.mode() & OTHERS_WRITE != 0 {
                return Err(LabError::Usage(format!(
                    "{}: expected a directory that only this user or root writes to, found owner {} and mode {:o}; name another cache \
                     (KTSN_VM_CACHE, --cache)",
                    directory.display(),
                    facts.uid(),
                    facts.mode() & 0o7777
                )));
            }
        }
        Ok(())
    }

    /// Holds the cache until the value is dropped: shared while a guest reads its image, exclusively while images are made or removed.
    /// `wait` is called once if another process holds it.
    ///
    /// # Errors
    /// The directory cannot be made, or the caller was asked to stop.
    pub(super) fn lock(&self, is_exclusive: bool, wait: &mut dyn FnMut()) -> Result<File, LabError> {
        std::fs::create_dir_all(&self.directory).map_err(LabError::file(&self.directory))?;
        self.check_owner()?;
        let path = self.directory.join("lock");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(LabError::file(&path))?;
        let operation = if is_exclusive {
            FlockOperation::NonBlockingLockExclusive
        } else {
            FlockOperation::NonBlockingLockShared
        };
        let mut is_first = true;
        loop {
            match flock(&file, operation) {
                Ok(()) => return Ok(file),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(error) => return Err(LabError::file(&path)(error.into())),
            }
            if std::mem::take(&mut is_first) {
                wait();
            }
            if stop_requested() {
                return Err(LabError::Stopped);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Octets as hexadecimal text.
pub(super) fn hexadecimal(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

/// SHA-256 of a text.
pub(super) fn checksum_of(text: &str) -> String {
    hexadecimal(&Sha256::digest(text.as_bytes()))
}

/// SHA-256 of a file.
///
/// # Errors
/// The file cannot be read.
pub(super) fn checksum(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hexadecimal(&digest.finalize())),
            octets => digest.update(&buffer[..octets]),
        }
    }
}
