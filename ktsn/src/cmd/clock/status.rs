// SPDX-License-Identifier: Apache-2.0
//! `ktsn clock status`: what the follower last said; and `sample`, which reads the host's time beside the kernel's.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_clock::estimate::Line;
use ktsn_clock::guest::{Areas, DEVICES};
use ktsn_clock::session::{Look, Session};
use ktsn_clock::{Guest, Host, kernel};
use ktsn_traffic::clock;
use serde::{Deserialize, Serialize};

use crate::output::{self, Written};

/// Where the follower's state is.
pub(super) const FILE: &str = "/run/ktsn-clock/status.json";
/// A status that is older was left by a follower that has ended.
const OLD_NS: u64 = 3_000_000_000;
const EVENTS_KEPT: usize = 16;

/// Whether no follower works any more that wrote at `updated_at`. An instant that has not come yet is of another boot: the file was kept
/// where `/run` is not empty at the start, as in a container.
const fn is_old(updated_at: u64, now: u64) -> bool {
    updated_at > now || now - updated_at > OLD_NS
}

/// The follower's state.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    state: String,
    /// CLOCK_MONOTONIC.
    updated_at_ns: u64,
    /// What steers CLOCK_REALTIME.
    discipline: String,
    /// CLOCK_REALTIME − the host's, before it was steered.
    error_ns: Option<i64>,
    /// Bound of the difference of the follower's time to the host's clock.
    error_bound_ns: Option<i64>,
    page_age_ns: Option<i64>,
    host: Option<HostState>,
    counter: Option<CounterState>,
    exchanges: u64,
    exchange_failures: u64,
    round_trip_ticks: u64,
    steps: u64,
    cpu_ns: i64,
    events: VecDeque<String>,
}

/// What the host says about its clock.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct HostState {
    status: String,
    max_error_ns: i64,
    estimated_error_ns: i64,
    tai_offset_s: Option<i16>,
    publisher_cpu_ns: i64,
    interval_ns: i64,
}

/// The line between the counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CounterState {
    guest: u64,
    host: u64,
    rate: f64,
    error_ticks: f64,
    rate_error: f64,
    period_ns: f64,
    /// The disruption marker of the page that the line belongs to.
    #[serde(default)]
    marker: u64,
}

impl Snapshot {
    pub(super) fn new(discipline: &str) -> Self {
        Self { discipline: discipline.to_owned(), ..Self::default() }
    }

    pub(super) fn take(&mut self, session: &Session, look: &Look) {
        let (counts, follower) = (session.counts(), session.follower());
        look.state.name().clone_into(&mut self.state);
        self.updated_at_ns = clock::monotonic_now().as_nanos();
        self.error_ns = look.offset.map(|offset| -offset.get());
        self.error_bound_ns = look.reading.map(|reading| reading.error.get());
        self.page_age_ns = look.reading.map(|reading| reading.page_age.get());
        self.host = follower.page().map(|page| HostState {
            status: page.status.name().to_owned(),
            max_error_ns: page.max_error.get(),
            estimated_error_ns: page.estimated_error.get(),
            tai_offset_s: page.tai_offset,
            publisher_cpu_ns: page.cpu.get(),
            interval_ns: page.interval.get(),
        });
        // A rate that is not known is not written.
        let line = follower.line().filter(|line| line.rate_error.is_finite());
        self.counter = line.zip(follower.page()).map(|(line, page)| CounterState {
            guest: line.guest.0,
            host: line.host.0,
            rate: line.rate,
            error_ticks: line.error,
            rate_error: line.rate_error,
            period_ns: page.period,
            marker: page.marker,
        });
        (self.exchanges, self.exchange_failures) = (counts.exchanges, counts.failures);
        (self.round_trip_ticks, self.steps) = (counts.round_trip, counts.steps);
        self.cpu_ns = kernel::thread_cpu().get();
        let stepped = look.stepped.map(|by| format!("CLOCK_REALTIME was stepped by {by}"));
        for event in look.events.iter().map(ToString::to_string).chain(stepped) {
            self.events.push_back(event);
            if self.events.len() > EVENTS_KEPT {
                self.events.pop_front();
            }
        }
    }

    /// Replaces the file as one.
    pub(super) fn write(&self, path: &Path) -> anyhow::Result<()> {
        let beside = path.with_extension("new");
        let text = self.json();
        let put = || std::fs::write(&beside, &text).and_then(|()| std::fs::rename(&beside, path));
        put()
            .or_else(|error| match path.parent().filter(|_| error.kind() == io::ErrorKind::NotFound) {
                Some(directory) => std::fs::create_dir_all(directory).and_then(|()| put()),
                None => Err(error),
            })
            .map_err(|error| anyhow::anyhow!("--status {}: {error}", path.display()))
    }

    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            anyhow::anyhow!(
                "{}: {error}; no `ktsn clock follow` has run here, or it has another --status",
                path.display()
            )
        })?;
        let mut read: Self =
            serde_json::from_str(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        if is_old(read.updated_at_ns, clock::monotonic_now().as_nanos()) {
            "unsynchronised".clone_into(&mut read.state);
            read.events.push_back("the follower has ended, or stands still".to_owned());
        }
        Ok(read)
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The word for its state, as `ktsn_clock::follower::State` has it.
    pub(crate) fn state(&self) -> &str {
        &self.state
    }

    /// One line: state, error, bound, the page's age, what the host says of itself.
    pub(crate) fn line(&self) -> String {
        let span = |value: Option<i64>| match value {
            Some(value) if value < 0 => format!("-{}", output::span(value.unsigned_abs())),
            Some(value) => output::span(value.unsigned_abs()),
            None => "unknown".to_owned(),
        };
        let host = self.host.as_ref();
        format!(
            "clock {}: CLOCK_REALTIME is {} off the host's (discipline {}), bound {}, page {} old; host {}, max error {}",
            self.state,
            span(self.error_ns),
            self.discipline,
            span(self.error_bound_ns),
            span(self.page_age_ns),
            host.map_or("unknown", |host| &host.status),
            span(host.map(|host| host.max_error_ns)),
        )
    }

    fn prometheus(&self) -> String {
        let mut text = String::new();
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            if let Some(value) = value {
                let _ = writeln!(
                    text,
                    "# HELP ktsn_vptp_{name} {help}\n# TYPE ktsn_vptp_{name} gauge\nktsn_vptp_{name} {value}"
                );
            }
        };
        let seconds = |value: Option<i64>| value.map(|nanos| nanos as f64 * 1e-9);
        gauge(
            "following",
            "1 while the guest follows its host's clock.",
            Some(f64::from(self.state == "following")),
        );
        gauge("error_seconds", "CLOCK_REALTIME minus the host's.", seconds(self.error_ns));
        gauge(
            "error_bound_seconds",
            "Bound of the follower's error against the host's clock.",
            seconds(self.error_bound_ns),
        );
        gauge("page_age_seconds", "Age of the host's page.", seconds(self.page_age_ns));
        gauge(
            "host_max_error_seconds",
            "The host's own bound against UTC.",
            seconds(self.host.as_ref().map(|host| host.max_error_ns)),
        );
        gauge("exchanges", "Exchanges that were used.", Some(self.exchanges as f64));
        gauge("exchange_failures", "Windows without an answer.", Some(self.exchange_failures as f64));
        gauge("steps", "Steps of CLOCK_REALTIME.", Some(self.steps as f64));
        text
    }
}

const STATUS_EXAMPLES: &str = "\
Examples:
  ktsn clock status
  ktsn clock status --json
  ktsn clock status --prometheus

Exit status: 0 the clock follows the host's; 1 it does not, or nothing follows here.";

/// Show what `ktsn clock follow` says here.
#[derive(Args, Clone, Debug)]
#[command(after_help = STATUS_EXAMPLES)]
pub(super) struct StatusArgs {
    /// The follower's file.
    #[arg(long, default_value = FILE, value_name = "FILE")]
    status: PathBuf,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Prometheus' text format.
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
}

pub(super) fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let snapshot = Snapshot::read(&args.status)?;
    let text = if args.json {
        snapshot.json() + "\n"
    } else if args.prometheus {
        snapshot.prometheus()
    } else {
        snapshot.events.iter().fold(snapshot.line() + "\n", |text, event| text + "  " + event + "\n")
    };
    output::write(&text)?;
    Ok(ExitCode::from(u8::from(snapshot.state != "following")))
}

/// Readings of the counter, the host's time by page and line, CLOCK_REALTIME, and the bound, as CSV.
#[derive(Args, Clone, Debug)]
#[command(hide = true)]
pub(super) struct SampleArgs {
    /// How many.
    #[arg(long, default_value_t = 100)]
    count: u32,
    /// Time between two.
    #[arg(long, default_value = "10ms", value_parser = humantime::parse_duration)]
    every: Duration,
    /// The follower's file.
    #[arg(long, default_value = FILE, value_name = "FILE")]
    status: PathBuf,
}

pub(super) fn sample(args: &SampleArgs) -> anyhow::Result<ExitCode> {
    let areas = Areas::find(Path::new(DEVICES)).ok();
    // Line by line: the reader may pause this guest meanwhile.
    let head = "counter,page_ns,realtime_ns,bracket,bound_ns\n".to_owned();
    if matches!(output::show(&head).map_err(anyhow::Error::msg)?, Written::NoReader) {
        return Ok(ExitCode::SUCCESS);
    }
    for _ in 0..args.count {
        if clock::stop_requested() {
            break;
        }
        std::thread::sleep(args.every);
        let pair = kernel::pair(3);
        // Without a page, only the kernel's clock is of interest.
        let line = Snapshot::read(&args.status).ok().and_then(|snapshot| snapshot.counter);
        let by_page = areas.as_ref().zip(line).and_then(|(areas, counter)| {
            let line = Line {
                guest: Guest(counter.guest),
                host: Host(counter.host),
                rate: counter.rate,
                error: counter.error_ticks,
                rate_error: counter.rate_error,
            };
            let (page, _) = areas.read().ok()?;
            let at = Guest(pair.counter);
            let host = line.host_at(at);
            let age = page.age(host).get() as f64;
            let line_error = line.error_at(at) * page.period;
            let bound = line_error + age.max(0.0) * page.period_error + page.reading_error.get() as f64 + 1.0;
            // After a pause or a move, until the follower has seen it, its line is another counter's: as it does, nothing is said then.
            let is_of_page = page.marker == counter.marker && age > -bound;
            is_of_page.then(|| (page.time_at(host).0, bound as i64))
        });
        let (by_page, bound) = by_page.unwrap_or_default();
        let text = format!("{},{by_page},{},{},{bound}\n", pair.counter, pair.time.0, pair.error);
        if matches!(output::show(&text).map_err(anyhow::Error::msg)?, Written::NoReader) {
            break;
        }
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_boot_follows_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("status.json");
        let now = clock::monotonic_now().as_nanos();
        for (updated_at_ns, state) in [
            (now, "following"),
            (now.saturating_sub(OLD_NS + 1), "unsynchronised"),
            (now + 1_000_000_000_000, "unsynchronised"),
        ] {
            let left = Snapshot { state: "following".to_owned(), updated_at_ns, ..Snapshot::new("self") };
            left.write(&path).unwrap();
            assert_eq!(Snapshot::read(&path).unwrap().state(), state, "{updated_at_ns}");
        }
    }
}
