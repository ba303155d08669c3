// SPDX-License-Identifier: Apache-2.0
//! The document `ktsn.results/1`.
//!
//! In: series, comparisons, micro-benchmarks and checks, or a file that holds them. Out: JSON exactly as
//! `docs/results-schema.md` names it; what is absent is left out, never written as zero.
//! A file is replaced whole or not at all, and nothing in here computes a figure from frames: that is [`crate::series`].

mod merge;
mod round;
mod series;

pub use round::Round;
pub use series::Series;

use crate::environment::Environment;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The schema's name.
pub const SCHEMA: &str = "ktsn.results/1";

/// One experiment's results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The experiment's name (`container`, …).
    pub experiment: String,
    /// When it began, RFC 3339 in UTC.
    pub started_at: String,
    /// The command that repeats it.
    pub command: Vec<String>,
    /// Where it ran.
    pub environment: Environment,
    /// What it was asked to do (`period_ns`, `frames`, …).
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub parameters: Map<String, Value>,
    /// Paths, payloads, rounds.
    #[serde(default)]
    pub series: Vec<Series>,
    /// Micro-benchmarks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub micro: Vec<Micro>,
    /// Checks of a test suite.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Figures set against each other and against their bars.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub comparisons: Vec<Comparison>,
    /// Figures that others have published, and ours beside them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub published: Vec<Published>,
}

/// A figure from a publication, with this document's own beside it. They come from different machines: nothing is judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Published {
    /// Authors, title, year, place.
    pub source: String,
    /// Where in it (`Fig. 3a`).
    pub figure: String,
    /// Which figure, by our name for it (`latency_ns.p50`), in the unit of that name.
    pub metric: String,
    /// Of which payload; absent: of all that were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_octets: Option<usize>,
    /// What it is of, in the publication's words.
    pub of: String,
    /// What it is divided by there; absent: `value` is the figure itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The published value.
    pub value: f64,
    /// Ours.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ours: Vec<Ours>,
}

/// One of our figures beside a published one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ours {
    /// Our path.
    pub of: String,
    /// The path it is divided by, where the published one is a ratio.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// The value.
    pub value: f64,
}

/// A micro-benchmark's figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Micro {
    /// Dotted name (`sendmsg.intercepted.64`).
    pub name: String,
    /// Unit of the figures (`ns`, `frames/s`).
    pub unit: String,
    /// Median.
    pub p50: f64,
    /// 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// How many samples.
    pub samples: u64,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// It could not be tried here.
    Skipped,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// How it ended.
    pub outcome: CheckOutcome,
    /// Why it failed or was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// One path's figure set against another path's, or (without `to`) against a fixed bar.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Which figure (`wire_offset_ns.p50`).
    pub metric: String,
    /// Of which payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_octets: Option<usize>,
    /// Under which load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<String>,
    /// The path that is judged.
    pub of: String,
    /// The path it is divided by; absent: `ratio` is the figure itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// `of / to`, or the figure; absent when one of them is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// What `ratio` may be at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bar: Option<f64>,
    /// Whether `ratio` is at most `bar`. A figure that is missing holds no bar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holds: Option<bool>,
}

/// What to compare.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The figure's dotted name, as in [`Series::metric`].
    pub metric: &'a str,
    /// Octets of payload.
    pub payload_octets: usize,
    /// The load's name, if the series have one.
    pub load: Option<&'a str>,
    /// The path that is judged.
    pub of: &'a str,
    /// The path it is divided by, if any.
    pub to: Option<&'a str>,
    /// The greatest ratio (or figure) allowed, if any.
    pub bar: Option<f64>,
}

/// Why a document cannot be read or written.
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
    /// Its contents.
    #[error("results file {path}: {source}", path = path.display())]
    Json {
        /// Which.
        path: PathBuf,
        /// Field and place.
        source: serde_json::Error,
    },
    /// Another schema.
    #[error("results file {path}: schema is {found:?}, expected {SCHEMA:?}", path = path.display())]
    Schema {
        /// Which.
        path: PathBuf,
        /// What it says.
        found: String,
    },
}

impl Document {
    /// An empty document of an experiment that starts now.
    #[must_use]
    pub fn new(experiment: &str, command: Vec<String>, environment: Environment) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            experiment: experiment.to_owned(),
            started_at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command,
            environment,
            parameters: Map::new(),
            series: Vec::new(),
            micro: Vec::new(),
            checks: Vec::new(),
            comparisons: Vec::new(),
            published: Vec::new(),
        }
    }

    /// Adds the rounds of one path, payload and load, and after them their `"all"` entry.
    pub fn add_rounds(&mut self, rounds: Vec<Series>) {
        let all = Series::merged(&rounds);
        self.series.extend(rounds);
        self.series.extend(all);
    }

    /// The `"all"` entry of a path, payload and load.
    #[must_use]
    pub fn all_rounds(&self, path: &str, payload_octets: usize, load: Option<&str>) -> Option<&Series> {
        self.series.iter().find(|series| {
            series.round == Round::All
                && series.path == path
                && series.payload_octets == payload_octets
                && series.load.as_deref() == load
        })
    }

    /// Answers a question from the `"all"` entries; also adds the answer to `comparisons`.
    pub fn compare(&mut self, question: &Question<'_>) -> Comparison {
        let figure = |path| {
            self.all_rounds(path, question.payload_octets, question.load)
                .and_then(|series| series.metric(question.metric))
        };
        let ratio = match question.to {
            None => figure(question.of),
            Some(to) => figure(question.of).zip(figure(to)).map(|(of, to)| of / to).filter(|r| r.is_finite()),
        };
        let comparison = Comparison {
            metric: question.metric.to_owned(),
            payload_octets: Some(question.payload_octets),
            load: question.load.map(str::to_owned),
            of: question.of.to_owned(),
            to: question.to.map(str::to_owned),
            ratio,
            bar: question.bar,
            holds: question.bar.map(|bar| ratio.is_some_and(|ratio| ratio <= bar)),
        };
        self.comparisons.push(comparison.clone());
        comparison
    }

    /// Reads a document.
    ///
    /// # Errors
    /// The file, its JSON (with field and place), or another schema.
    pub fn load(path: &Path) -> Result<Self, ResultsError> {
        let named = |source| ResultsError::File { path: path.to_owned(), source };
        let json = |source| ResultsError::Json { path: path.to_owned(), source };
        let value: Value =
            serde_json::from_str(&std::fs::read_to_string(path).map_err(named)?).map_err(json)?;
        match value.get("schema").and_then(Value::as_str) {
            Some(SCHEMA) => serde_json::from_value(value).map_err(json),
            found => {
                let found = found.unwrap_or("absent").to_owned();
                Err(ResultsError::Schema { path: path.to_owned(), found })
            }
        }
    }

    /// Writes the document; a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// The file cannot be written; the old one is then untouched.
    pub fn save(&self, path: &Path) -> Result<(), ResultsError> {
        save_json(self, path)
    }
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

#[cfg(test)]
mod tests;
