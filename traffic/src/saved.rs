// SPDX-License-Identifier: Apache-2.0
//! Figures as JSON in a file. In: a value, a path. Out: the file, replaced whole or not at all.

use serde::Serialize;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Why figures cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file.
    #[error("results file {path}: {source}", path = path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A value that JSON cannot hold.
    #[error("results file {path}: {source}", path = path.display())]
    Json {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

/// Writes any value as JSON, replacing the file whole or not at all.
///
/// # Errors
/// The file cannot be written; the old one is then untouched.
pub fn save_json(value: &impl Serialize, path: &Path) -> Result<(), ResultsError> {
    let mut octets = serde_json::to_vec_pretty(value)
        .map_err(|source| ResultsError::Json { path: path.to_owned(), source })?;
    octets.push(b'\n');
    replace(path, &octets).map_err(|source| ResultsError::File { path: path.to_owned(), source })
}

fn replace(path: &Path, octets: &[u8]) -> io::Result<()> {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?);
    name.push(format!(".{}.partial", std::process::id()));
    let partial = path.with_file_name(name);
    let written = File::create(&partial).and_then(|mut file| {
        file.write_all(octets)?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    });
    if written.is_err() {
        // The half-written file is ours; that it may not exist is fine.
        let _ = std::fs::remove_file(&partial);
    }
    written
}
