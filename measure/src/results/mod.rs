// SPDX-License-Identifier: Apache-2.0
//! The document `ktsn.results/1`.
//!
//! In: series, comparisons, micro-benchmarks and checks, or a file that holds them. Out: JSON exactly as
//! `docs/results-schema.md` names it; what is absent is left out, never written as zero.
//! A file is replaced whole or not at all, and nothing in here computes a figure from frames: that is the module `series`.

mod names;
mod read;
mod round;
mod series;

pub use ktsn_traffic::saved::{ResultsError, save_json};
pub use read::WrongField;
pub(crate) use read::typed;
pub use round::Round;
pub use series::Series;

use crate::environment::Environment;
use ktsn_realtime::RealTime;
use ktsn_traffic::stats::Statistics;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;
use std::time::SystemTime;

/// The schema's name.
pub const SCHEMA: &str = "ktsn.results/1";

/// One experiment's results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// The experiment's name (`container`, …).
    pub experiment: String,
    /// When it began, RFC 3339 in UTC; empty where that was not recorded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub started_at: String,
    /// The command that repeats it.
    #[serde(default)]
    pub command: Vec<String>,
    /// Where it ran: the fields of [`Environment`], and whatever else another program adds.
    #[serde(default)]
    pub environment: Map<String, Value>,
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
    /// Whether systems are fit for real time: what `ktsn rt run` found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realtime: Option<RealTime>,
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
    /// The payload that the figure is of; absent: all that were measured.
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
    /// Median; not a number where the document of another program does not state it.
    #[serde(default = "unstated", skip_serializing_if = "is_unstated")]
    pub p50: f64,
    /// 90th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p90: Option<f64>,
    /// How many samples; 0 where the document of another program does not state it.
    #[serde(default)]
    pub samples: u64,
}

fn unstated() -> f64 {
    f64::NAN
}

fn is_unstated(figure: &f64) -> bool {
    figure.is_nan()
}

impl Micro {
    /// A single figure.
    #[must_use]
    pub fn figure(name: &str, unit: &str, value: f64, samples: u64) -> Self {
        Self { name: name.to_owned(), unit: unit.to_owned(), p50: value, p90: None, samples }
    }

    /// A distribution of nanoseconds.
    #[must_use]
    pub fn distribution(name: &str, statistics: &Statistics, samples: u64) -> Self {
        let p90 = Some(statistics.p90 as f64);
        Self { p90, ..Self::figure(name, "ns", statistics.p50 as f64, samples) }
    }
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

impl Check {
    /// A check that passed if it `holds`.
    #[must_use]
    pub fn of(name: impl Into<String>, holds: bool, reason: Option<String>) -> Self {
        let outcome = if holds { CheckOutcome::Passed } else { CheckOutcome::Failed };
        Self { name: name.into(), outcome, reason }
    }

    /// A check that passed unless there is a `fault`.
    #[must_use]
    pub fn unless(name: impl Into<String>, fault: Option<String>) -> Self {
        Self::of(name, fault.is_none(), fault)
    }

    /// A check that could not be tried.
    #[must_use]
    pub fn skipped(name: impl Into<String>, reason: String) -> Self {
        Self { name: name.into(), outcome: CheckOutcome::Skipped, reason: Some(reason) }
    }
}

/// One path's figure set against another path's, or (without `to`) against a fixed bar.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// Which figure (`wire_offset_ns.p50`).
    pub metric: String,
    /// The payload of both paths.
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

impl Comparison {
    /// A ratio, or without `to` a figure, held against `bar`.
    #[must_use]
    pub fn held(metric: &str, of: &str, to: Option<&str>, ratio: Option<f64>, bar: f64) -> Self {
        Self {
            metric: metric.to_owned(),
            of: of.to_owned(),
            to: to.map(str::to_owned),
            ratio,
            bar: Some(bar),
            holds: Some(ratio.is_some_and(|ratio| ratio <= bar)),
            ..Self::default()
        }
    }
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

impl Document {
    /// An empty document of an experiment that starts now, on this machine.
    #[must_use]
    pub fn new(experiment: &str, command: Vec<String>) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            experiment: experiment.to_owned(),
            started_at: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            command,
            environment: object(&Environment::read()),
            parameters: Map::new(),
            series: Vec::new(),
            micro: Vec::new(),
            checks: Vec::new(),
            comparisons: Vec::new(),
            published: Vec::new(),
            realtime: None,
        }
    }

    /// Adds the rounds of one path, payload and load, and after them their `"all"` entry.
    pub fn add_rounds(&mut self, rounds: Vec<Series>) {
        let all = Series::merged(&rounds);
        self.series.extend(rounds);
        self.series.extend(all);
    }

    /// Adds all rounds of several series: those of one path, payload, load and class stand together, in the order in
    /// which they appear first, each followed by its `"all"` entry.
    pub fn add_series(&mut self, rounds: impl IntoIterator<Item = Series>) {
        let mut groups: Vec<Vec<Series>> = Vec::new();
        for round in rounds {
            let is_same = |group: &&mut Vec<Series>| group[0].is_round_of_same(&round);
            match groups.iter_mut().find(is_same) {
                Some(group) => group.push(round),
                None => groups.push(vec![round]),
            }
        }
        groups.into_iter().for_each(|group| self.add_rounds(group));
    }

    /// Replaces the parameters by the members of a JSON object.
    pub fn set_parameters(&mut self, parameters: &Value) {
        self.parameters = object(parameters);
    }

    /// The median of the micro-benchmark with this name.
    #[must_use]
    pub fn micro_p50(&self, name: &str) -> Option<f64> {
        self.micro.iter().find(|micro| micro.name == name).map(|micro| micro.p50)
    }

    /// Adds the comparison of the micro-benchmark `of` with `to`, or (without `to`) with the bar itself. A figure that
    /// is missing holds no bar.
    pub fn compare_micro(&mut self, of: &str, to: Option<&str>, bar: f64) {
        let ratio = match to {
            None => self.micro_p50(of),
            Some(to) => self.micro_p50(of).zip(self.micro_p50(to)).map(|(of, to)| of / to),
        };
        self.comparisons.push(Comparison::held("p50", of, to, ratio.filter(|ratio| ratio.is_finite()), bar));
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

    /// Writes the document; a reader sees the old file or the new one, never a part.
    ///
    /// # Errors
    /// The file cannot be written; the old one is then untouched.
    pub fn save(&self, path: &Path) -> Result<(), ResultsError> {
        save_json(self, path)
    }
}

/// The members of a value that serialises as an object.
fn object(value: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(value) {
        Ok(Value::Object(members)) => members,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests;
