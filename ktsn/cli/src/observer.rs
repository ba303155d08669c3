// SPDX-License-Identifier: Apache-2.0
//! What `talk`, `listen` and `tap` have in common.
//!
//! In: arguments. Out: spans, addresses, rights, files, one exit status per kind of failure. None of the three knows of
//! KTSN: they measure it, and everything else, from outside.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ktsn_time::Nanos;
use ktsn_traffic::clock::RealTime;
use ktsn_traffic::records::RecordsError;
use ktsn_traffic::saved::{ResultsError, save_json};
use ktsn_traffic::stats::Statistics;
use serde::Serialize;

use crate::output;

/// Why a measuring command did not do its work, by exit status.
#[derive(Debug)]
pub enum Failed {
    /// Wrong usage or input (2).
    Usage(String),
    /// The observation is not possible here (exit status 3).
    NotPossible(String),
    /// The observation began and could not be measured or written (exit status 1).
    Broken(String),
}

impl Failed {
    /// Tells the user and gives the exit status.
    pub fn report(&self, command: &str) -> ExitCode {
        let (status, text) = match self {
            Self::Usage(text) => (2, text.clone()),
            Self::NotPossible(text) => (3, format!("not possible here: {text}")),
            Self::Broken(text) => (1, text.clone()),
        };
        eprintln!("ktsn {command}: {text}");
        ExitCode::from(status)
    }
}

impl From<RecordsError> for Failed {
    fn from(error: RecordsError) -> Self {
        Self::Broken(error.to_string())
    }
}

impl From<ResultsError> for Failed {
    fn from(error: ResultsError) -> Self {
        Self::Broken(error.to_string())
    }
}

/// A span such as `1ms`; for the command line.
pub fn span(text: &str) -> Result<Nanos, String> {
    let expected = "expected a time such as 250us, 1ms or 2s";
    let duration = humantime::parse_duration(text).map_err(|error| format!("{expected} ({error})"))?;
    i64::try_from(duration.as_nanos()).map(Nanos::new).map_err(|_| expected.to_owned())
}

/// The rights asked for.
#[derive(Args, Clone, Copy, Debug)]
pub struct Rights {
    /// Run on this CPU only.
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,
    /// Run under SCHED_FIFO with this priority (1 to 99) and lock all memory; needs a right.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(u8).range(1..=99))]
    fifo: Option<u8>,
    /// Ask for timers without slack (PR_SET_TIMERSLACK) as an ordinary process; SCHED_FIFO has none anyway.
    #[arg(long)]
    exact_timers: bool,
}

impl Rights {
    /// In the form that talker and listener take.
    pub const fn real_time(self) -> RealTime {
        RealTime {
            cpu: self.cpu,
            fifo: self.fifo,
            exact_timers: self.exact_timers,
            lock_memory: self.fifo.is_some(),
        }
    }

    /// One line on standard error when an ordinary process is asked to keep time.
    pub fn warn(self, command: &str) {
        if self.fifo.is_none() {
            eprintln!(
                "ktsn {command}: runs as an ordinary process, which the system may wake tens of microseconds late; \
                 --fifo 50 (needs root, CAP_SYS_NICE or `ulimit -r`) asks for SCHED_FIFO"
            );
        }
    }
}

/// Where the findings go.
#[derive(Args, Clone, Debug)]
pub struct Files {
    /// Write one row per frame (CSV; compressed if the name ends in .zst).
    #[arg(long, value_name = "FILE")]
    pub records: Option<PathBuf>,
    /// Write the figures as JSON; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the line `ready` to this open descriptor once everything is in place.
    #[arg(long, value_name = "N")]
    ready_fd: Option<u32>,
}

impl Files {
    /// Writes the line `ready`.
    pub fn say_ready(&self) {
        let Some(fd) = self.ready_fd else { return };
        let written = std::fs::OpenOptions::new()
            .write(true)
            .open(format!("/proc/self/fd/{fd}"))
            .and_then(|mut file| file.write_all(b"ready\n"));
        if let Err(error) = written {
            eprintln!("ktsn: --ready-fd {fd}: {error}; expected a pipe or file that is open for writing");
        }
    }

    /// Writes the figures: as JSON where asked, and as text unless JSON took standard output.
    ///
    /// # Errors
    /// A file, or standard output, cannot be written.
    pub fn finish(&self, figures: &impl Serialize, text: &str) -> Result<(), Failed> {
        let print = |text: &str| {
            output::write(text)
                .map(drop)
                .map_err(|error: io::Error| Failed::Broken(format!("standard output: {error}")))
        };
        match &self.json {
            Some(path) if path.as_path() == Path::new("-") => {
                let json =
                    serde_json::to_string(figures).map_err(|error| Failed::Broken(error.to_string()))?;
                print(&format!("{json}\n"))
            }
            Some(path) => {
                save_json(figures, path)?;
                print(text)
            }
            None => print(text),
        }
    }
}

/// A distribution in one line of microseconds.
pub fn line(name: &str, statistics: Option<&Statistics>) -> String {
    let Some(s) = statistics else { return String::new() };
    let micros = |nanos: i64| nanos as f64 / 1e3;
    format!(
        "  {name:<12} p50 {:.2}  p90 {:.2}  p99 {:.2}  max {:.2} µs\n",
        micros(s.p50),
        micros(s.p90),
        micros(s.p99),
        micros(s.max)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_wrong_ones_say_what_is_expected() {
        assert_eq!(span("1ms").unwrap(), Nanos::from_millis(1));
        assert_eq!(span("300us").unwrap(), Nanos::from_micros(300));
        for wrong in ["1", "", "-1ms", "1 parsec", "99999999999y"] {
            assert!(span(wrong).unwrap_err().contains("250us"), "{wrong}");
        }
    }

    #[test]
    fn readiness_is_told_through_an_open_descriptor() {
        use std::os::fd::AsRawFd as _;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ready");
        let file = std::fs::File::create(&path).unwrap();
        let ready_fd = u32::try_from(file.as_raw_fd()).ok();
        Files { records: None, json: None, ready_fd }.say_ready();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "ready\n");
    }

    #[test]
    fn figures_are_written_as_json() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures.json");
        let files = Files { records: None, json: Some(path.clone()), ready_fd: None };
        files.finish(&serde_json::json!({ "lost": 0 }), "").unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"lost\": 0"));
    }
}
