// SPDX-License-Identifier: Apache-2.0
//! The member `realtime` of a document `ktsn.results/1`. In: measured cells, requirements, the share. Out: the same with verdicts and
//! isolation. `docs/results-schema.md` names every field.

pub use crate::tracers::Skip;

use crate::causes::{Cause, Explained, RankedCause};
use crate::histogram::Histogram;
use crate::isolation::{Isolation, isolation};
use crate::profile::Profile;
use crate::requirements::Requirement;
use crate::stability::Window;
use crate::statistics::{BoxStatistics, Figures};
use crate::timeline::Timeline;
use crate::tracers::Tracer;
use crate::verdict::{Judgement, Share, judge, statement};
use ktsn_time::{Nanos, Span};
use serde::{Deserialize, Serialize};

/// Late wake-ups that a cell keeps one by one: the latest ones.
pub const KEPT_MAX: usize = 200;

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RealTime {
    /// The probe's period.
    pub period_ns: u64,
    /// How long each cell was to be measured.
    pub planned_ns: u64,
    /// A wake-up later than this is an excursion: its causes are looked for.
    pub excursion_limit_ns: u64,
    /// The share of each requirement that processing may use.
    pub share_ratio: Share,
    /// What the cells are held against.
    pub requirements: Vec<Requirement>,
    /// One cell for each system and profile.
    pub cells: Vec<Cell>,
    /// One verdict for each measured cell and requirement.
    #[serde(default)]
    pub verdicts: Vec<Verdict>,
    /// One entry for each system with profile 4 and one of 5 to 8.
    #[serde(default)]
    pub isolation: Vec<Isolation>,
    /// What to change, after a FAIL: what explains most comes first.
    #[serde(default)]
    pub advice: Vec<Advice>,
    /// What the kernel's own tracers say.
    #[serde(default)]
    pub tracers: Vec<Tracer>,
}

/// One system under one profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The system.
    pub system: String,
    /// The profile.
    pub profile: Profile,
    /// What the system ran on, where that is not this machine itself: a guest's accelerator, kernel, CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<String>,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<Skip>,
    /// The probe's priority under SCHED_FIFO; absent: an ordinary thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fifo_priority: Option<u8>,
    /// The CPU that the probe stayed on; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<u32>,
    /// Samples times period.
    pub measured_ns: u64,
    /// How often the measurement began: 1, and one more for each slice and each resumption.
    pub segments: u64,
    /// The statistics; absent without a sample.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statistics: Option<BoxStatistics>,
    /// All latencies.
    pub histogram: Histogram,
    /// The statistics up to each window's end.
    #[serde(default)]
    pub stability: Vec<Window>,
    /// Latency over time.
    #[serde(default)]
    pub timeline: Timeline,
    /// Periods without a wake-up of their own: they passed while a wake-up was late ([`missed_periods`]). Absent: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missed_periods: Option<u64>,
    /// Wake-ups before their instant. Absent: not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub early: Option<Early>,
    /// Wake-ups later than the limit.
    pub excursions: u64,
    /// The latest of them, by time.
    #[serde(default)]
    pub kept: Vec<Excursion>,
    /// Their causes, the strongest first.
    #[serde(default)]
    pub causes: Vec<RankedCause>,
    /// The share of their lateness that no single cause explains.
    #[serde(default)]
    pub unexplained_ratio: f64,
}

/// Wake-ups before their instant, by the probe's clock: negative latencies. Histogram, statistics and timeline have 0 ns for each of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Early {
    /// How many there were.
    pub wakeups: u64,
    /// How far before its instant the earliest came; 0 without one.
    pub most_ns: u64,
}

impl Early {
    /// Counts a latency where it is negative.
    pub fn observe(&mut self, latency: Nanos) {
        if latency < Nanos::ZERO {
            self.wakeups += 1;
            self.most_ns = self.most_ns.max(latency.get().unsigned_abs());
        }
    }
}

/// How many periods passed while one wake-up was late. The probe waits for the first instant that is not past yet, so these have no
/// wake-up and no sample.
#[must_use]
pub fn missed_periods(latency: Span, period: Span) -> u64 {
    latency.as_nanos().saturating_sub(1) / period.as_nanos().max(1)
}

/// One thing to change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// The name of the finding of `ktsn doctor`.
    pub finding: String,
    /// What was seen.
    pub value: String,
    /// What it means for wake-ups.
    pub meaning: String,
    /// What to do.
    pub remedy: String,
    /// The causes that the remedy takes away.
    pub causes: Vec<Cause>,
    /// What these causes explain of the lateness in cells with a FAIL: the largest share in any cell.
    #[serde(default)]
    pub explained_ratio: f64,
}

/// A late wake-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Excursion {
    /// Measured time before it.
    pub at_ns: u64,
    /// Its latency.
    pub latency_ns: u64,
    /// Its causes, the strongest first.
    pub causes: Vec<Explained>,
}

/// One cell held against one requirement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The system.
    pub system: String,
    /// The profile.
    pub profile: Profile,
    /// The service.
    pub service: String,
    /// By the greatest latency and its distance from the least: the verdict.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// By the paper's figures: mean and maximum jitter.
    pub paper: Judgement,
    /// What it means, with the measured duration.
    pub statement: String,
}

impl RealTime {
    /// Fills in verdicts and isolation from the cells.
    pub fn conclude(&mut self) {
        self.verdicts = self.cells.iter().flat_map(|cell| self.verdicts_of(cell)).collect();
        let mut systems: Vec<&str> = Vec::new();
        for cell in &self.cells {
            if !systems.contains(&cell.system.as_str()) {
                systems.push(&cell.system);
            }
        }
        let isolated = systems.into_iter().filter_map(|system| {
            let own = self.cells.iter().filter(|cell| cell.system == system);
            let own: Vec<_> = own.filter_map(|cell| Some((cell.profile, cell.statistics?))).collect();
            isolation(system, &own)
        });
        self.isolation = isolated.collect();
    }

    fn verdicts_of(&self, cell: &Cell) -> Vec<Verdict> {
        let Some(statistics) = cell.statistics else { return Vec::new() };
        // An early wake-up is 0 ns in the statistics: the spread reaches further down by what it was early.
        let early =
            Nanos::new(cell.early.map_or(0, |early| i64::try_from(early.most_ns).unwrap_or(i64::MAX)));
        let spread = |figures: Figures| Figures { jitter: figures.jitter.saturating_add(early), ..figures };
        let one = |requirement: &Requirement| {
            let judgement = judge(requirement, spread(statistics.worst_figures()), self.share_ratio);
            Verdict {
                system: cell.system.clone(),
                profile: cell.profile,
                service: requirement.service.clone(),
                judgement,
                paper: judge(requirement, spread(statistics.paper_figures()), self.share_ratio),
                statement: statement(judgement.outcome, Span::from_nanos(cell.measured_ns)),
            }
        };
        self.requirements.iter().map(one).collect()
    }

    /// Whether each cell's statistics are those of its histogram, and no cell stands there twice. A document may come from elsewhere.
    ///
    /// # Errors
    /// The first field that is wrong.
    pub fn check(&self) -> Result<(), String> {
        for (index, cell) in self.cells.iter().enumerate() {
            let wrong = |field: &str, what: &str| Err(format!("realtime.cells[{index}].{field}: {what}"));
            let is_same = |other: &Cell| other.system == cell.system && other.profile == cell.profile;
            if self.cells[..index].iter().any(is_same) {
                return wrong("system", &format!("{} {}: expected once", cell.system, cell.profile));
            }
            if let Some(Early { wakeups, most_ns }) = cell.early {
                let zeros = cell.histogram.buckets().next().filter(|(low, _)| *low == Span::ZERO);
                let zeros = zeros.map_or(0, |(_, count)| count);
                if wakeups > zeros {
                    return wrong(
                        "early.wakeups",
                        &format!("{wakeups}: expected at most {zeros}, the latencies of 0 ns"),
                    );
                }
                if (wakeups == 0) != (most_ns == 0) {
                    return wrong("early.most_ns", &format!("{most_ns}: {wakeups} wake-ups were early"));
                }
            }
            match (BoxStatistics::of(&cell.histogram), &cell.statistics) {
                (None, None) => {}
                (Some(_), None) => return wrong("statistics", "nothing: expected those of the histogram"),
                (None, Some(_)) => return wrong("histogram", "no latency: expected those of the statistics"),
                (Some(own), Some(stored)) => {
                    if let Some((name, stored, own)) = own.unlike(stored) {
                        return wrong(
                            &format!("statistics.{name}"),
                            &format!("{stored}: expected {own}, by the histogram"),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    /// The cell of a system and profile.
    #[must_use]
    pub fn cell(&self, system: &str, profile: Profile) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.system == system && cell.profile == profile)
    }
}

impl Cell {
    /// Whether another machine was measured, over ssh.
    #[must_use]
    pub fn is_elsewhere(&self) -> bool {
        self.system.starts_with("ssh:")
    }

    /// A cell that was not measured.
    #[must_use]
    pub fn new(system: &str, profile: Profile) -> Self {
        Self {
            system: system.to_owned(),
            profile,
            environment: None,
            skip: None,
            fifo_priority: None,
            cpu: None,
            measured_ns: 0,
            segments: 0,
            statistics: None,
            histogram: Histogram::default(),
            stability: Vec::new(),
            timeline: Timeline::default(),
            missed_periods: None,
            early: None,
            excursions: 0,
            kept: Vec::new(),
            causes: Vec::new(),
            unexplained_ratio: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requirements::table_1;
    use crate::verdict::Outcome;

    fn measured(profile: u8, micros: &[u64], hours: u64) -> Cell {
        let profile = Profile::try_from(profile).unwrap();
        let histogram: Histogram = micros.iter().map(|&micros| Span::from_nanos(micros * 1000)).collect();
        let statistics = BoxStatistics::of(&histogram);
        Cell { histogram, statistics, measured_ns: hours * 3_600_000_000_000, ..Cell::new("host", profile) }
    }

    #[test]
    fn cells_become_verdicts_and_isolation() {
        let cells = vec![
            measured(4, &[5, 10, 20], 8),
            measured(6, &[5, 10, 900], 1),
            Cell::new("host", Profile::ALL[7]),
        ];
        let mut found = RealTime { requirements: table_1(), cells, ..RealTime::default() };
        found.conclude();
        assert_eq!(found.verdicts.len(), 16);
        let of = |profile: u8, service: &str| {
            let is = |v: &&Verdict| v.profile.number() == profile && v.service == service;
            found.verdicts.iter().find(is).unwrap()
        };
        assert_eq!(of(4, "Factory automation").judgement.outcome, Outcome::Pass);
        assert_eq!(of(4, "Factory automation").statement, "fit, after 8 h");
        assert_eq!(of(4, "Factory automation (motion control)").statement, "unfit: seen within 8 h");
        // The greatest latency decides; it is also the jitter of 895 µs.
        assert_eq!(of(6, "Factory automation").judgement.outcome, Outcome::Fail);
        assert_eq!(of(6, "Process automation (monitoring)").statement, "not unfit so far, after 1 h");
        assert_eq!((found.isolation.len(), found.isolation[0].most.number()), (1, 6));
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(serde_json::from_str::<RealTime>(&text).unwrap(), found);
        assert!(text.contains("\"outcome\":\"PASS\""));
    }

    /// 20 µs late at most is a PASS; with a wake-up 2.6 µs, or 4.285 s, before its instant the spread is greater.
    #[test]
    fn early_wake_ups_are_part_of_the_spread() {
        let used = |most_ns: Option<u64>| {
            let early = most_ns.map(|most_ns| Early { wakeups: 1, most_ns });
            let cell = Cell { early, ..measured(1, &[0, 20, 20], 8) };
            let mut found = RealTime { requirements: table_1(), cells: vec![cell], ..RealTime::default() };
            found.conclude();
            assert_eq!(found.check(), Ok(()));
            let is = |verdict: &&Verdict| verdict.service == "Factory automation";
            let verdict = found.verdicts.iter().find(is).unwrap().clone();
            (
                (verdict.judgement.used_ratio * 400.0).round() / 10.0,
                verdict.judgement.outcome,
                verdict.paper.outcome,
            )
        };
        // The share of the jitter is 40 µs.
        assert_eq!(used(None), (20.0, Outcome::Pass, Outcome::Pass));
        assert_eq!(used(Some(2_600)), (22.6, Outcome::Pass, Outcome::Pass));
        assert_eq!(used(Some(15_000)), (35.0, Outcome::Tight, Outcome::Tight));
        let (_, outcome, paper) = used(Some(4_285_135_432));
        assert_eq!((outcome, paper), (Outcome::Fail, Outcome::Fail));
        assert_eq!(used(Some(u64::MAX)).1, Outcome::Fail);
    }

    #[test]
    fn statistics_that_are_not_the_histograms_are_named() {
        let good = RealTime {
            cells: vec![Cell::new("host", Profile::ALL[0]), measured(4, &[5, 10, 20], 1)],
            ..RealTime::default()
        };
        assert_eq!(good.check(), Ok(()));
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(serde_json::from_str::<RealTime>(&text).unwrap().check(), Ok(()));
        let says = |change: &dyn Fn(&mut Cell), words: &str| {
            let mut found = good.clone();
            change(&mut found.cells[1]);
            let error = found.check().unwrap_err();
            assert!(error.starts_with("realtime.cells[1].") && error.contains(words), "{error}");
        };
        says(&|cell| cell.statistics = None, "statistics: nothing");
        says(&|cell| cell.histogram = Histogram::default(), "histogram: no latency");
        says(&|cell| cell.statistics.as_mut().unwrap().samples = 4, "statistics.samples: 4: expected 3");
        says(
            &|cell| cell.statistics.as_mut().unwrap().p99_9_ns = 7,
            "statistics.p99_9_ns: 7: expected 20000, by the histogram",
        );
        says(&|cell| cell.statistics.as_mut().unwrap().mean_ns *= 1.1, "statistics.mean_ns");
        says(&|cell| *cell = Cell::new("host", Profile::ALL[0]), "system: host 1: expected once");
        let early = |wakeups, most_ns| Some(Early { wakeups, most_ns });
        says(&|cell| cell.early = early(1, 5), "early.wakeups: 1: expected at most 0");
        says(&|cell| cell.early = early(0, 5), "early.most_ns: 5: 0 wake-ups were early");
    }

    /// As the probe counts: it waits for the next instant that is not before now.
    #[test]
    fn periods_that_pass_meanwhile_are_missed() {
        let naive =
            |latency: u64, period: u64| (1..).take_while(|periods| periods * period < latency).count();
        for (latency, period) in [(0, 10), (9, 10), (10, 10), (11, 10), (20, 10), (21, 10), (899, 10)] {
            let found = missed_periods(Span::from_nanos(latency), Span::from_nanos(period));
            assert_eq!(found, naive(latency, period) as u64, "{latency}");
        }
        // A file of an older version says nothing about them.
        let counted = Cell { missed_periods: Some(3), ..Cell::new("host", Profile::ALL[0]) };
        let mut value = serde_json::to_value(counted).unwrap();
        assert_eq!(value.as_object_mut().unwrap().remove("missed_periods"), Some(3.into()));
        assert_eq!(serde_json::from_value::<Cell>(value).unwrap().missed_periods, None);
    }

    #[test]
    fn an_empty_cell_has_no_verdict() {
        let mut found = RealTime {
            requirements: table_1(),
            cells: vec![Cell::new("host", Profile::ALL[0])],
            ..RealTime::default()
        };
        found.conclude();
        assert!(found.verdicts.is_empty() && found.isolation.is_empty());
    }
}
