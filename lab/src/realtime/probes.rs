// SPDX-License-Identifier: Apache-2.0
//! Our own probe beside `cyclictest`: do they measure the same? In: how often, how long, which CPU. Out: median and 99th percentile of both,
//! each with its interval over the rounds. Both run on the same CPU with the same priority, by turns; nothing else is started.

use super::commands;
use super::guests::build_probe;
use super::limits::{Machine, is_installed};
use super::plan::Plan;
use crate::carry_out::{Experiment, Measured, Rules, Session, Terms, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::Watch;
use ktsn_host::cyclictest::Probe;
use ktsn_measure::results::Document;
use ktsn_realtime::Histogram;
use ktsn_realtime::bootstrap::Estimate;
use ktsn_realtime::results::Early;
use ktsn_time::{Nanos, Span};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// The largest distance of the two medians, as a share of cyclictest's.
pub const DISTANCE_MAX: f64 = 0.1;
const TURN: Duration = Duration::from_millis(100);
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// The percentiles that are compared: name, and how many of 10,000 samples lie at or below.
const PERCENTILES: [(&str, u32); 2] = [("p50", 5_000), ("p99", 9_900)];

/// One percentile of both probes, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Percentile {
    /// Its name.
    pub name: &'static str,
    /// Of cyclictest, over the rounds.
    pub cyclictest: Estimate,
    /// Of our probe.
    pub own: Estimate,
    /// Whether the two intervals overlap.
    pub overlaps: bool,
    /// Our median over cyclictest's.
    pub ratio: f64,
}

/// What the rounds showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    /// Rounds.
    pub rounds: u32,
    /// Samples of each probe in a round.
    pub samples: u64,
    /// The CPU of both.
    pub cpu: u32,
    /// Their priority.
    pub fifo: u8,
    /// The percentiles.
    pub percentiles: Vec<Percentile>,
    /// Whether the intervals overlap, and the medians are close.
    pub holds: bool,
}

/// Compares the probes: `plan` gives period, samples of a round, CPU, directory, lock.
///
/// # Errors
/// [`LabError`]: no right to SCHED_FIFO, no compiler, a probe that fails.
pub fn compare_probes(plan: &Plan, rounds: u32, watch: &mut Watch<'_>) -> Result<Agreement, LabError> {
    plan.check()?;
    let mut found = None;
    let measure = |session: &mut Session<'_>| {
        std::fs::create_dir_all(&plan.out).map_err(LabError::file(&plan.out))?;
        let machine = Machine::look(plan, &mut |_| ())?;
        let impossible = |what: String| LabError::Impossible { what, remedy: "run as root".to_owned() };
        let fifo = machine.fifo.clone().map_err(impossible)?;
        if !is_installed("cc") {
            let what = "the C compiler `cc` is not installed, which builds our probe".to_owned();
            return Err(LabError::Impossible { what, remedy: "`make setup`".to_owned() });
        }
        let own = build_probe(&plan.guests.workspace, &plan.out.join("guests"), "linux")?;
        let (cpu, samples) = (machine.cpus.probe, plan.samples());
        let period = plan.period.get() / 1000;
        let own = vec![
            own.display().to_string(),
            format!("period_us={period},loops={samples},fifo={fifo},cpu={cpu}"),
        ];
        let lines = [commands::probe(plan, Some(fifo), Some(cpu), samples), own];
        let mut probes = Probes { lines, out: &plan.out, figures: [const { Vec::new() }; 2] };
        session.measure(&mut probes, rounds)?;
        found = Some(agreement(&probes.figures, rounds, samples, cpu, fifo));
        Ok(())
    };
    let terms =
        Terms { name: "probes", lock: plan.lock.as_deref(), command: &plan.command, rules: Rules::Disturbed };
    carry_out(&terms, watch, measure, |_, _| ())?;
    found.ok_or_else(|| LabError::Nothing("\n  the probes: no round was measured".to_owned()))
}

/// Both probes, by turns.
struct Probes<'a> {
    lines: [Vec<String>; 2],
    out: &'a Path,
    /// The percentiles of each probe's runs.
    figures: [Vec<[u64; 2]>; 2],
}

impl Experiment for Probes<'_> {
    /// The probe's number.
    type Row = usize;
    /// It, and the percentiles of its run.
    type Extra = (usize, [u64; 2]);

    fn rows(&self) -> Vec<usize> {
        vec![0, 1]
    }

    fn name(&self, &probe: &usize) -> String {
        ["cyclictest", "our probe"][probe].to_owned()
    }

    fn run(&mut self, &probe: &usize, _: &mut Turn<'_>) -> Result<Measured<Self::Extra>, LabError> {
        Ok(Measured::default().with((probe, measure(&self.lines[probe], self.out)?)))
    }

    fn conclude(&mut self, found: Vec<Self::Extra>, _: &mut Document) -> Result<(), LabError> {
        found.into_iter().for_each(|(probe, percentiles)| self.figures[probe].push(percentiles));
        Ok(())
    }
}

/// The percentiles of one run.
fn measure(line: &[String], out: &Path) -> Result<[u64; 2], LabError> {
    let mut probe = Probe::start("the probe", line, &out.join("probe.log"), SILENCE_MAX)?;
    let (mut histogram, mut early) = (Histogram::default(), Early::default());
    loop {
        let batch = probe.read(TURN)?;
        for latency in batch.latencies.into_iter().map(Nanos::new) {
            early.observe(latency);
            histogram.record(Span::not_negative(latency));
        }
        if batch.is_last {
            break;
        }
    }
    // Both probes would then agree on a median of 0.
    if early.wakeups * 2 >= histogram.count().max(1) {
        let what = format!(
            "{} of {} wake-ups of {} came before their instant, the earliest by {} ns: its clocks do not agree",
            early.wakeups,
            histogram.count(),
            line[0],
            early.most_ns
        );
        return Err(LabError::Impossible { what, remedy: "a machine whose clocks agree".to_owned() });
    }
    let of = |share| histogram.quantile(share).map_or(0, Span::as_nanos);
    Ok(PERCENTILES.map(|(_, share)| of(share)))
}

fn agreement(figures: &[Vec<[u64; 2]>; 2], rounds: u32, samples: u64, cpu: u32, fifo: u8) -> Agreement {
    let estimate = |probe: usize, index: usize| {
        Estimate::of(&figures[probe].iter().map(|figures| figures[index]).collect::<Vec<_>>())
    };
    let percentiles: Vec<Percentile> = PERCENTILES
        .iter()
        .enumerate()
        .filter_map(|(index, &(name, _))| {
            let (cyclictest, own) = (estimate(0, index)?, estimate(1, index)?);
            let ratio = own.median as f64 / cyclictest.median.max(1) as f64;
            Some(Percentile { name, cyclictest, own, overlaps: cyclictest.overlaps(&own), ratio })
        })
        .collect();
    let is_close = percentiles.first().is_some_and(|p50| (p50.ratio - 1.0).abs() <= DISTANCE_MAX);
    let holds = is_close && percentiles.iter().all(|one| one.overlaps);
    Agreement { rounds, samples, cpu, fifo, percentiles, holds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exclusive::MeasureLock;
    use crate::experiment::Event;

    /// Without a word a run that waits looks like one that hangs.
    #[test]
    fn a_wait_for_the_measuring_lock_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let mut other = Some(MeasureLock::take(&path, || ()).unwrap());
        let lock = Some(path);
        // With a CPU that is not there, it ends before it measures.
        let plan = Plan { cpu: Some(4000), lock, ..super::super::tests::plan(folder.path()) };
        let mut has_waited = false;
        let found = compare_probes(&plan, 1, &mut |event| {
            if matches!(event, Event::WaitingForLock) {
                has_waited = true;
                other = None;
            }
        });
        assert!(found.unwrap_err().to_string().contains("--cpu 4000"));
        assert!(has_waited && other.is_none());
    }

    #[test]
    fn a_probe_whose_clocks_do_not_agree_is_compared_with_none() {
        let folder = tempfile::tempdir().unwrap();
        let run = |script: &str| measure(&["sh", "-c", script].map(str::to_owned), folder.path());
        assert_eq!(run("echo '0:0:-5'; echo '0:1:9'; echo '0:2:9'").unwrap(), [9, 9]);
        let error = run("echo '0:0:-2600'; echo '0:1:9'").unwrap_err().to_string();
        assert!(error.contains("1 of 2 wake-ups of sh") && error.contains("2600 ns"), "{error}");
    }

    #[test]
    fn probes_agree_only_when_medians_are_close_and_intervals_overlap() {
        let rounds = |p50: u64, p99: u64| (0..10).map(|round| [p50 + round % 3, p99 + round]).collect();
        let of = |own| agreement(&[rounds(1000, 5000), own], 10, 500, 1, 99);
        assert!(of(rounds(1001, 5003)).holds);
        let far = of(rounds(1200, 5000));
        assert!(!far.holds && !far.percentiles[0].overlaps && far.percentiles[1].overlaps);
        assert!((far.percentiles[0].ratio - 1.2).abs() < 0.01);
        assert!(!of(rounds(1001, 9000)).holds);
        // Intervals may overlap although the medians are far from each other.
        let mut spread: Vec<[u64; 2]> = (0..10).map(|round| [500 + 150 * round, 5000]).collect();
        spread[0][0] = 900;
        let found = of(spread);
        assert!(found.percentiles[0].overlaps && !found.holds, "{found:?}");
        assert!(!agreement(&[Vec::new(), Vec::new()], 0, 0, 0, 1).holds);
    }
}
