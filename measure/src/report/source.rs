// SPDX-License-Identifier: Apache-2.0
//! One document with what belongs to it: in: a JSON file and the records beside it, or both from memory.
//! Out: a [`Source`]. Names from the document never become file names: the directory is listed and matched.

use super::ReportError;
use super::samples::Samples;
use crate::gates::GateSchedule;
use crate::results::{Document, Series, WrongField, typed};
use ktsn_traffic::records::{self, RunRecords};
use serde::Serialize;
use serde_json::Value;
use std::io;
use std::path::{Path, PathBuf};

/// A document `ktsn.results/1`, ready to be shown.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) label: String,
    pub(super) document: Document,
    /// The gate schedule that the frames are held against (`parameters.gate_schedule`).
    pub(super) gates: Option<GateSchedule>,
    pub(super) samples: Vec<Samples>,
    /// Which part of its document this is, and what a reader must know of it.
    pub(super) part: Option<String>,
    pub(super) remark: String,
}

impl Source {
    /// A document in memory with its raw records (none: the plots show the statistics).
    /// `label` names it in messages and on the page; usually that is the file it is stored in.
    ///
    /// # Errors
    /// The document does not follow the schema.
    pub fn of(label: &str, document: &impl Serialize, runs: &[RunRecords]) -> Result<Self, ReportError> {
        let json = |source| ReportError::Json { file: label.to_owned(), source };
        Self::build(label, &serde_json::to_value(document).map_err(json)?, runs)
    }

    /// Reads a document and the records beside it (`records/PATH-PAYLOAD*.csv.zst` or `.csv`; with several loads `PATH-PAYLOAD-LOAD`).
    ///
    /// # Errors
    /// A file cannot be read, or is not what it should be.
    pub fn load(file: &Path) -> Result<Self, ReportError> {
        let label = file.display().to_string();
        let read = |source| ReportError::Read { file: label.clone(), source };
        let octets = std::fs::read(file).map_err(read)?;
        let json = |source| ReportError::Json { file: label.clone(), source };
        let value: Value = serde_json::from_slice(&octets).map_err(json)?;
        let mut source = Self::build(&label, &value, &[])?;
        let directory = file.parent().unwrap_or(Path::new(".")).join("records");
        let runs = records_in(&directory, &source.document)?;
        source.samples = Samples::group(&runs, source.document.wire_by_listener());
        Ok(source)
    }

    fn build(label: &str, value: &Value, runs: &[RunRecords]) -> Result<Self, ReportError> {
        let wrong = |source: WrongField| ReportError::Field { file: label.to_owned(), source };
        let document = Document::from_value(value).map_err(wrong)?;
        let gates = document.parameters.get("gate_schedule");
        let gates = gates.map(|gates| typed(gates, "parameters.gate_schedule")).transpose().map_err(wrong)?;
        let samples = Samples::group(runs, document.wire_by_listener());
        Ok(Self { label: label.to_owned(), document, gates, samples, part: None, remark: String::new() })
    }

    /// Whether the raw samples of a series are missing. A TCP stream has none.
    pub(super) fn lacks_samples(&self, series: &Series) -> bool {
        series.bit_rate.is_none() && self.samples_of(series).is_none()
    }

    /// The raw samples of a series. Where several loads were measured, records that do not name theirs belong to no series.
    pub(super) fn samples_of(&self, series: &Series) -> Option<&Samples> {
        let with_loads = self.document.has_loads();
        self.samples.iter().find(|samples| {
            samples.path == series.path
                && samples.payload_octets == series.payload_octets
                && (samples.load == series.load || (samples.load.is_none() && !with_loads))
        })
    }
}

/// The records in `directory` that belong to a path and payload of `document`.
fn records_in(directory: &Path, document: &Document) -> Result<Vec<RunRecords>, ReportError> {
    let failed = |source| ReportError::Read { file: directory.display().to_string(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    let mut files: Vec<PathBuf> =
        entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>().map_err(failed)?;
    files.sort();
    let mut runs = Vec::new();
    for series in document.summary() {
        let load = series.load.as_ref().filter(|_| document.has_loads());
        let ending = load.map_or_else(String::new, |load| format!("-{load}"));
        let stem = format!("{}-{}{ending}", series.path, series.payload_octets);
        for file in files.iter().filter(|file| belongs(file, &stem)) {
            let wrong = |source| ReportError::Records { file: file.display().to_string(), source };
            let of_file = records::load_runs(file, &series.path, series.payload_octets).map_err(wrong)?;
            runs.extend(of_file.into_iter().map(|run| RunRecords { load: load.cloned(), ..run }));
        }
    }
    Ok(runs)
}

/// Whether a file's name is `STEM.csv[.zst]`, or `STEM-….csv[.zst]`.
fn belongs(file: &Path, stem: &str) -> bool {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let rest = name.strip_prefix(stem).unwrap_or_default();
    (rest.starts_with('.') || rest.starts_with('-')) && (rest.ends_with(".csv") || rest.ends_with(".csv.zst"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_records_file_belongs_to_one_path() {
        let is = |name: &str| belongs(Path::new(name), "ktsn-64");
        assert!(is("records/ktsn-64.csv.zst") && is("ktsn-64.csv") && is("ktsn-64-round2.csv.zst"));
        assert!(
            !is("ktsn-short-64.csv.zst") && !is("ktsn-640.csv.zst") && !is("ktsn-64.json") && !is("ktsn-64")
        );
    }
}
