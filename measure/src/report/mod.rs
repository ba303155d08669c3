// SPDX-License-Identifier: Apache-2.0
//! The report: results as one HTML page that needs nothing else.
//!
//! In: documents of the schema `ktsn.results/1`, and the raw records where they exist. Out: one self-contained
//! page: tables that need no script, plots, the measuring conditions, the command that repeats the experiment.
//! The page never asks the network for anything (a content security policy in it forbids that), statistics are
//! never computed from thinned points, and no text of a file reaches the page unescaped.
//!
//! A document of an earlier version, or of another program, renders as well: what is absent is shown as absent,
//! unknown fields are ignored, and a wrong field is refused with its name and its file's.
//!
//! ```no_run
//! use ktsn_measure::report::{self, Source};
//! # fn main() -> Result<(), report::ReportError> {
//! let source = Source::load("out/demo/results.json".as_ref())?;
//! report::write("out/demo/report.html".as_ref(), &[source])?;
//! # Ok(())
//! # }
//! ```

mod apart;
mod averages;
mod canvas;
mod colours;
mod conditions;
mod datapaths;
mod deadline;
mod escape;
mod figures;
mod guests;
mod page;
mod phase;
mod plots;
mod published;
mod realtime;
mod samples;
mod source;
mod stacks;
mod tables;
mod thin;
mod verdict;

pub use source::Source;
pub use thin::POINTS_MAX;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a report cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// No document was given.
    #[error("a report needs at least one results file")]
    Nothing,
    /// plotly.js, which this program holds, cannot be unpacked.
    #[error("plotly.js in this program cannot be unpacked: {0}; install the program again")]
    Script(io::Error),
    /// A file cannot be read.
    #[error("{file}: {source}")]
    Read {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// A file is no JSON.
    #[error("{file}: this is no JSON: {source}")]
    Json {
        /// The file.
        file: String,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A field is missing or has a value that the schema `ktsn.results/1` does not know.
    #[error("{file}: {source}")]
    Field {
        /// The file.
        file: String,
        /// The field, and what is wrong with it.
        source: crate::results::WrongField,
    },
    /// A file of raw records cannot be used.
    #[error("{file}: {source}")]
    Records {
        /// The file.
        file: String,
        /// Why.
        source: ktsn_traffic::records::RecordsError,
    },
    /// The plots cannot be written as JSON: our own fault, never the input's.
    #[error("a plot cannot be written as JSON: {0}")]
    Plot(#[from] serde_json::Error),
    /// The page cannot be written.
    #[error("cannot write the report {file}: {source}")]
    Write {
        /// The page that was asked for.
        file: String,
        /// What the system said.
        source: io::Error,
    },
}

impl ReportError {
    /// Whether the caller's input is at fault (exit status 2), rather than the place to write to.
    #[must_use]
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Write { .. } | Self::Plot(_))
    }
}

/// The page that shows `sources`, in their order.
///
/// # Errors
/// No source was given.
pub fn render(sources: &[Source]) -> Result<String, ReportError> {
    if sources.is_empty() {
        return Err(ReportError::Nothing);
    }
    page::page(sources)
}

/// Renders `sources` into the file `to`. A reader sees the old file or the whole new one, never a part:
/// the page is written beside it and then renamed.
///
/// # Errors
/// No source was given, or the place cannot be written; then nothing is left behind.
pub fn write(to: &Path, sources: &[Source]) -> Result<(), ReportError> {
    let page = render(sources)?;
    let failed = |source| ReportError::Write { file: to.display().to_string(), source };
    let name = to
        .file_name()
        .ok_or_else(|| failed(io::Error::new(io::ErrorKind::InvalidInput, "this is no file name")))?;
    if to.is_dir() {
        return Err(failed(io::Error::new(io::ErrorKind::IsADirectory, "this is a directory")));
    }
    let mut partial = std::ffi::OsString::from(".");
    partial.push(name);
    partial.push(format!(".{}.partial", std::process::id()));
    let partial: PathBuf = to.with_file_name(partial);
    let written = write_through(&partial, page.as_bytes()).and_then(|()| std::fs::rename(&partial, to));
    written.map_err(|error| {
        // The half-written file is ours; that it may not exist is fine.
        let _ = std::fs::remove_file(&partial);
        failed(error)
    })
}

fn write_through(path: &Path, octets: &[u8]) -> io::Result<()> {
    let mut file = std::fs::File::create(path)?;
    file.write_all(octets)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
