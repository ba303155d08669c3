// SPDX-License-Identifier: Apache-2.0
//! How late a real-time thread wakes up on this machine: `ktsn doctor --wake-ups`.
//!
//! In: how long. Out: the latencies' statistics and a verdict for each service of the usual table, as `ktsn rt run` has them of the machine
//! itself under its profile 1: no load, one SCHED_FIFO thread that wakes up a hundred times a second. No file is written.

use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use ktsn_host::cyclictest::{self, Probe};
use ktsn_host::{HostError, is_installed};
use ktsn_realtime::requirements::table_1;
use ktsn_realtime::results::{Early, missed_periods};
use ktsn_realtime::verdict::{Outcome, duration};
use ktsn_realtime::{BoxStatistics, Cell, Histogram, Profile, RealTime};
use ktsn_time::{Nanos, Span};
use rustix::fs::{MemfdFlags, memfd_create};

use super::finding::{Finding, Look};
use crate::output::span;

/// The probe's period.
const PERIOD: Nanos = Nanos::from_millis(10);
/// A wake-up later than this is an excursion.
const EXCURSION: Nanos = Nanos::from_micros(100);
/// How often its latencies are read.
const TURN: Duration = Duration::from_millis(100);
/// Longest time without a latency, its start included.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// What a measurement may last.
const DURATIONS: [Nanos; 2] = [Nanos::from_millis(100), Nanos::from_seconds(3600)];
/// The system of the result's one cell.
const SYSTEM: &str = "host";

const LOOK: Look = Look::at("wake_ups", "cyclictest, a SCHED_FIFO thread that wakes up each 10 ms");

/// A span such as `10s`; for the command line.
///
/// # Errors
/// What was expected.
pub(crate) fn duration_of(text: &str) -> Result<Nanos, String> {
    let lasts = ktsn_cli::observer::span(text)?;
    let [least, most] = DURATIONS;
    if (least..=most).contains(&lasts) { Ok(lasts) } else { Err("expected 100ms to 1h".to_owned()) }
}

/// Measures for this time.
///
/// # Errors
/// [`HostError::Impossible`] without the probe or its right; the probe's; [`HostError::Stopped`].
pub(crate) fn measure(lasts: Nanos) -> Result<RealTime, HostError> {
    let impossible = |what: String, remedy: &str| HostError::Impossible { what, remedy: remedy.to_owned() };
    if !is_installed("cyclictest") {
        let what = "the probe `cyclictest` is not installed";
        return Err(impossible(what.to_owned(), "apt-get install rt-tests"));
    }
    let fifo = cyclictest::fifo().map_err(|why| impossible(why, "run it with the right to SCHED_FIFO"))?;
    let samples = lasts.get().unsigned_abs().div_ceil(PERIOD.get().unsigned_abs());
    let log = memfd_create("ktsn-wake-ups", MemfdFlags::CLOEXEC)
        .map_err(|error| HostError::system("memfd_create")(error.into()))?;
    let said = PathBuf::from(format!("/proc/self/fd/{}", log.as_raw_fd()));
    let line = cyclictest::command_line(PERIOD, Some(fifo), None, samples);
    let mut probe = Probe::start("cyclictest", &line, &said, SILENCE_MAX)?;
    let mut latencies = Vec::new();
    loop {
        let batch = probe.read(TURN)?;
        latencies.extend(batch.latencies);
        if batch.is_last {
            return Ok(conclude(lasts, fifo, &latencies));
        }
    }
}

/// The result of these latencies, in nanoseconds.
fn conclude(lasts: Nanos, fifo: u8, latencies: &[i64]) -> RealTime {
    let (period, limit) = (Span::not_negative(PERIOD), Span::not_negative(EXCURSION));
    let (mut early, mut histogram) = (Early::default(), Histogram::default());
    let (mut missed, mut excursions) = (0, 0);
    for &latency in latencies {
        early.observe(Nanos::new(latency));
        let latency = Span::not_negative(Nanos::new(latency));
        histogram.record(latency);
        missed += missed_periods(latency, period);
        excursions += u64::from(latency > limit);
    }
    let cell = Cell {
        fifo_priority: Some(fifo),
        measured_ns: histogram.count().saturating_mul(period.as_nanos()),
        segments: 1,
        statistics: BoxStatistics::of(&histogram),
        missed_periods: Some(missed),
        early: Some(early),
        excursions,
        histogram,
        ..Cell::new(SYSTEM, Profile::ALL[0])
    };
    let mut found = RealTime {
        period_ns: period.as_nanos(),
        planned_ns: Span::not_negative(lasts).as_nanos(),
        excursion_limit_ns: limit.as_nanos(),
        requirements: table_1(),
        cells: vec![cell],
        ..RealTime::default()
    };
    found.conclude();
    found
}

/// The finding of a measurement.
pub(crate) fn finding(measured: &Result<RealTime, HostError>) -> Finding {
    const UNKNOWN: &str = "how late real-time threads wake up here is not known";
    let found = match measured {
        Ok(found) => found,
        Err(HostError::Impossible { what, remedy }) => return LOOK.not_known(what, UNKNOWN, remedy),
        Err(error) => {
            return LOOK.not_known(error.to_string(), UNKNOWN, "look at what cyclictest says by itself");
        }
    };
    let cell = found.cells.first();
    let Some((cell, statistics)) = cell.and_then(|cell| Some((cell, cell.statistics.as_ref()?))) else {
        return LOOK.not_known("no wake-up was measured", UNKNOWN, "measure for longer");
    };
    let lasted = duration(Span::from_nanos(cell.measured_ns));
    let value = format!(
        "p50 {}, p99.9 {}, max {} in {lasted}",
        span(statistics.median_ns),
        span(statistics.p99_9_ns),
        span(statistics.max_ns)
    );
    let is_worse =
        |outcome: Outcome| found.verdicts.iter().any(|verdict| verdict.judgement.outcome == outcome);
    let services: Vec<String> = found
        .verdicts
        .iter()
        .map(|verdict| format!("{} {}", verdict.service, verdict.judgement.outcome.word()))
        .collect();
    let meaning = format!("without a load, after {lasted}: {}", services.join(", "));
    if is_worse(Outcome::Fail) || is_worse(Outcome::Tight) {
        let remedy =
            "`ktsn doctor --rt CPU` says what makes wake-ups late; `ktsn rt run` measures under loads";
        return LOOK.warn(value, meaning, remedy);
    }
    LOOK.ok(value, meaning)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::State;

    #[test]
    fn latencies_become_a_verdict_for_each_service() {
        let lasts = Nanos::from_millis(50);
        let found = conclude(lasts, 99, &[5_000, 7_000, 900_000, -300, 25_000_000]);
        let cell = &found.cells[0];
        assert_eq!((cell.system.as_str(), cell.profile.number()), ("host", 1));
        assert_eq!((cell.measured_ns, cell.excursions, cell.missed_periods), (50_000_000, 2, Some(2)));
        assert_eq!(cell.early.as_ref().map(|early| (early.wakeups, early.most_ns)), Some((1, 300)));
        assert_eq!(cell.statistics.as_ref().unwrap().max_ns, 25_000_000);
        assert_eq!(found.verdicts.len(), found.requirements.len());
        let shown = finding(&Ok(found));
        assert_eq!(shown.state, State::Warn);
        assert!(shown.value.contains("max 25.00 ms in 0.1 s"), "{}", shown.value);
        assert!(shown.meaning.contains("FAIL"), "{}", shown.meaning);
        let fine = finding(&Ok(conclude(lasts, 99, &[10; 5])));
        assert_eq!(fine.state, State::Ok, "{fine:?}");
    }

    #[test]
    fn what_was_not_measured_is_not_known() {
        let none = finding(&Ok(conclude(Nanos::from_millis(100), 99, &[])));
        let refused =
            finding(&Err(HostError::Impossible { what: "no right".to_owned(), remedy: "get it".to_owned() }));
        let broken = finding(&Err(HostError::Control("x".to_owned())));
        assert_eq!([none.state, refused.state, broken.state], [State::NotKnown; 3]);
        assert_eq!((refused.value.as_str(), refused.remedy.as_deref()), ("no right", Some("get it")));
    }

    #[test]
    fn a_duration_has_bounds() {
        assert_eq!(duration_of("10s"), Ok(Nanos::from_seconds(10)));
        for wrong in ["99ms", "61m", "x"] {
            assert!(duration_of(wrong).unwrap_err().contains("expected"), "{wrong}");
        }
    }
}
