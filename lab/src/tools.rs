// SPDX-License-Identifier: Apache-2.0
//! The programs of an experiment: they stand beside each other, as `make build` leaves them.

use crate::error::LabError;
use std::path::{Path, PathBuf};

/// Where the programs are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tools {
    /// `ktsn`: talker, listener, tap.
    pub ktsn: PathBuf,
    /// `ktsn-bench`, which guests and the other host of an experiment run.
    pub bench: PathBuf,
    /// The daemon.
    pub ktsnd: PathBuf,
    /// The library to preload.
    pub libktsn: PathBuf,
}

impl Tools {
    /// Those beside `ktsn`.
    #[must_use]
    pub fn beside(ktsn: &Path) -> Self {
        let at = |name| ktsn.with_file_name(name);
        Self { ktsn: ktsn.to_owned(), bench: at("ktsn-bench"), ktsnd: at("ktsnd"), libktsn: at("libktsn.so") }
    }

    /// # Errors
    /// [`LabError::Impossible`] when daemon or library are not there.
    pub fn check_daemon(&self) -> Result<(), LabError> {
        Self::check([&self.ktsnd, &self.libktsn].into_iter())
    }

    /// Whether the daemon is there, for captured programs, which need no library.
    ///
    /// # Errors
    /// [`LabError::Impossible`] when ktsnd was not built.
    pub fn check_capture(&self) -> Result<(), LabError> {
        Self::check(std::iter::once(&self.ktsnd))
    }

    fn check<'a>(files: impl Iterator<Item = &'a PathBuf>) -> Result<(), LabError> {
        for file in files {
            if !file.is_file() {
                return Err(LabError::Impossible {
                    what: format!("{} does not exist", file.display()),
                    remedy: "`make build`, or leave the path ktsn out with --path".to_owned(),
                });
            }
        }
        Ok(())
    }
}
