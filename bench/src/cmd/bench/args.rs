// SPDX-License-Identifier: Apache-2.0
//! The arguments that several experiments share. In: the command line. Out: spans, counts of frames, a [`Setup`], and
//! where results go.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use ktsn_lab::{LabError, Outcome, Setup};
use ktsn_measure::records::{RunRecords, save_runs};
use ktsn_measure::report::{self, Source};
use ktsn_measure::results::Document;
use ktsn_time::Nanos;

use super::super::observer::span;
use super::super::progress::LOCK;
use crate::programs;

/// How long to measure.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct TimeArgs {
    /// Seconds of traffic per path, payload and load, all rounds together.
    #[arg(long, default_value = "5", value_name = "S", value_parser = seconds)]
    pub(super) seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: u32,
}

impl TimeArgs {
    /// How many times `period` fits into one round.
    pub(super) fn periods(self, period: Nanos) -> u64 {
        (self.seconds * 1e9 / period.get().max(1) as f64 / f64::from(self.rounds)).ceil() as u64
    }
}

/// How long to measure, and with which frames.
#[derive(Args, Clone, Debug)]
pub(super) struct TrafficArgs {
    #[command(flatten)]
    pub(super) time: TimeArgs,
    /// Octets of payload.
    #[arg(long, default_value = "64,256,1024", value_delimiter = ',', value_name = "OCTETS,…")]
    pub(super) payload: Vec<usize>,
    /// Time between two transmit times.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = span)]
    pub(super) period: Nanos,
}

impl TrafficArgs {
    /// Frames of one round.
    pub(super) fn frames(&self) -> u64 {
        self.time.periods(self.period)
    }
}

/// How an experiment is run.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct ModeArgs {
    /// For functional tests: no SCHED_FIFO, no pinning, no waiting for a quiet machine; the times mean nothing.
    #[arg(long, hide = true)]
    functional: bool,
}

impl ModeArgs {
    /// The programs beside this one, the lock that all measurements share, and this command.
    pub(super) fn setup(self) -> anyhow::Result<Setup> {
        Ok(Setup { functional: self.functional, ..timed()? })
    }
}

/// A setup for an experiment whose times count.
pub(super) fn timed() -> anyhow::Result<Setup> {
    // The program's name instead of where it stands here.
    let command = std::iter::once("ktsn".to_owned()).chain(std::env::args().skip(1)).collect();
    let tools = programs::tools()?;
    Ok(Setup { tools, lock: Some(PathBuf::from(LOCK)), command, functional: false })
}

/// Where figures go, and how they are judged.
#[derive(Args, Clone, Debug)]
pub(super) struct FigureArgs {
    /// Write the results as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a bar is missed, too.
    #[arg(long)]
    pub(super) strict_bars: bool,
}

/// Where figures, report and raw records go, and how the figures are judged.
#[derive(Args, Clone, Debug)]
pub(super) struct ResultArgs {
    #[command(flatten)]
    pub(super) figures: FigureArgs,
    /// Write the report as HTML.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Write the raw records into records/ beside the JSON.
    #[arg(long, requires = "json")]
    records: bool,
}

impl From<&FigureArgs> for ResultArgs {
    fn from(figures: &FigureArgs) -> Self {
        Self { figures: figures.clone(), report: None, records: false }
    }
}

impl ResultArgs {
    /// Fails before minutes are spent, not after, where no results can be written.
    pub(super) fn make_directories(&self) -> Result<(), LabError> {
        for file in [&self.figures.json, &self.report].into_iter().flatten() {
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            std::fs::create_dir_all(directory)
                .map_err(|source| LabError::Usage(format!("{}: {source}", directory.display())))?;
        }
        Ok(())
    }

    /// Writes what was asked for; returns a line for each file.
    pub(super) fn save(&self, outcome: &Outcome) -> anyhow::Result<String> {
        let Outcome { document, runs, .. } = outcome;
        let mut lines = String::new();
        let mut wrote = |what: &str, file: &Path| lines.push_str(&format!("{what}: {}\n", file.display()));
        if let Some(file) = &self.figures.json {
            document.save(file)?;
            wrote("results", file);
            if self.records {
                let directory = file.with_file_name("records");
                std::fs::create_dir_all(&directory)?;
                save_records(&directory, document, runs)?;
                wrote("records", &directory);
            }
        }
        if let Some(file) = &self.report {
            let json = self.figures.json.as_ref().map(|json| json.display().to_string());
            let label = json.unwrap_or_else(|| document.experiment.clone());
            report::write(file, &[Source::of(&label, document, runs)?])?;
            wrote("report", file);
        }
        Ok(lines)
    }
}

/// Seconds on the command line.
pub(super) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    if (0.001..=86_400.0).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("expected 0.001 to 86400 seconds".to_owned())
    }
}

/// One file for each path and payload, and for each load where the document has several: a report looks for these names.
fn save_records(directory: &Path, document: &Document, runs: &[RunRecords]) -> anyhow::Result<()> {
    let with_load = document.series.iter().any(|series| series.load != document.series[0].load);
    let mut series: BTreeMap<String, Vec<&RunRecords>> = BTreeMap::new();
    for run in runs {
        let load =
            run.load.as_ref().filter(|_| with_load).map_or_else(String::new, |load| format!("-{load}"));
        let name = format!("{}-{}{load}.csv.zst", run.path, run.payload_octets);
        series.entry(name).or_default().push(run);
    }
    for (name, rounds) in series {
        save_runs(&directory.join(name), rounds.into_iter())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::results::Series;

    /// A document has streams without records beside round trips with them: the load is part of the name then.
    #[test]
    fn records_have_the_names_that_a_report_looks_for() {
        let series = |load: &str| Series { path: "a".into(), load: Some(load.into()), ..Series::default() };
        let runs = [RunRecords {
            path: "a".into(),
            payload_octets: 1,
            load: Some("x".into()),
            round: 1,
            ..RunRecords::default()
        }];
        for (loads, expected) in [(vec!["x"], "a-1.csv.zst"), (vec!["x", "y"], "a-1-x.csv.zst")] {
            let directory = tempfile::tempdir().unwrap();
            let mut document = Document::new("rtos", Vec::new());
            document.series = loads.into_iter().map(series).collect();
            save_records(directory.path(), &document, &runs).unwrap();
            assert!(directory.path().join(expected).is_file(), "{expected}");
        }
    }
}
