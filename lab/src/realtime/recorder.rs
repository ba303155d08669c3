// SPDX-License-Identifier: Apache-2.0
//! The figures of one cell as they grow. In: records, live or read again. Out: a [`Cell`]. Memory does not grow with the number of samples.

use super::store::{Late, Record};
use ktsn_realtime::causes::Ranking;
use ktsn_realtime::results::{Early, Excursion, KEPT_MAX, missed_periods};
use ktsn_realtime::stability::Stability;
use ktsn_realtime::timeline::Timeline;
use ktsn_realtime::{BoxStatistics, Cell, Histogram, Profile};
use ktsn_time::{Nanos, Span};
use std::collections::VecDeque;

/// What is known of a cell.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    period: Span,
    histogram: Histogram,
    timeline: Timeline,
    stability: Stability,
    ranking: Ranking,
    missed_periods: u64,
    early: Early,
    excursions: u64,
    kept: VecDeque<Excursion>,
    segments: u64,
    fifo: Option<u8>,
    cpu: Option<u32>,
}

impl Recorder {
    /// A cell with this plan.
    pub(super) fn new(planned: u64, period: Nanos) -> Self {
        let period = Span::not_negative(period);
        Self {
            period,
            histogram: Histogram::default(),
            timeline: Timeline::default(),
            stability: Stability::new(planned, period),
            ranking: Ranking::default(),
            missed_periods: 0,
            early: Early::default(),
            excursions: 0,
            kept: VecDeque::new(),
            segments: 0,
            fifo: None,
            cpu: None,
        }
    }

    /// Adds what a record holds.
    pub(super) fn take(&mut self, record: &Record) {
        match record {
            Record::Header(_) => {}
            Record::Start { fifo, cpu } => {
                self.segments += 1;
                (self.fifo, self.cpu) = (*fifo, *cpu);
            }
            Record::Samples { ns, late } => {
                let begun = self.histogram.count();
                for &latency in ns {
                    self.early.observe(Nanos::new(latency));
                    let latency = Span::not_negative(Nanos::new(latency));
                    self.histogram.record(latency);
                    self.timeline.record(latency);
                    self.missed_periods += missed_periods(latency, self.period);
                    self.stability.observe(&self.histogram);
                }
                late.iter().for_each(|late| self.excursion(begun, ns, late));
            }
        }
    }

    /// # Errors
    /// What differs from the probe that the records are of.
    pub(super) fn check_start(&self, fifo: Option<u8>, cpu: Option<u32>) -> Result<(), String> {
        let number = |word: &str, value: Option<u32>| {
            value.map_or(format!("no {word}"), |value| format!("{word} {value}"))
        };
        let words = |fifo: Option<u8>, cpu| {
            format!("{}, {}", number("CPU", cpu), number("SCHED_FIFO priority", fifo.map(u32::from)))
        };
        if self.segments == 0 || (self.fifo, self.cpu) == (fifo, cpu) {
            return Ok(());
        }
        let (was, is) = (words(self.fifo, self.cpu), words(fifo, cpu));
        Err(format!("its probe was on {was}; this one is on {is}: repeat that plan, or choose another --out"))
    }

    fn excursion(&mut self, begun: u64, ns: &[i64], late: &Late) {
        let Some(Ok(latency_ns)) = ns.get(late.index).map(|&ns| u64::try_from(ns)) else { return };
        self.excursions += 1;
        self.ranking.add(Span::from_nanos(late.lateness_ns), &late.causes, late.thread.as_deref());
        if self.kept.len() == KEPT_MAX {
            self.kept.pop_front();
        }
        let at_ns = (begun + late.index as u64).saturating_mul(self.period.as_nanos());
        self.kept.push_back(Excursion { at_ns, latency_ns, causes: late.causes.clone() });
    }

    /// How many samples there are.
    pub(super) const fn samples(&self) -> u64 {
        self.histogram.count()
    }

    /// The usual latency so far.
    pub(super) fn median(&self) -> Option<Span> {
        self.histogram.quantile(5_000)
    }

    /// The cell as it stands.
    pub(super) fn cell(&self, system: &str, profile: Profile) -> Cell {
        Cell {
            fifo_priority: self.fifo,
            cpu: self.cpu,
            measured_ns: self.samples().saturating_mul(self.period.as_nanos()),
            segments: self.segments,
            statistics: BoxStatistics::of(&self.histogram),
            histogram: self.histogram.clone(),
            stability: self.stability.windows().to_vec(),
            timeline: self.timeline.clone(),
            missed_periods: Some(self.missed_periods),
            early: Some(self.early),
            excursions: self.excursions,
            kept: self.kept.iter().cloned().collect(),
            causes: self.ranking.ranked(),
            unexplained_ratio: self.ranking.unexplained_ratio(),
            ..Cell::new(system, profile)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_realtime::causes::{Cause, Explained};

    #[test]
    fn records_become_a_cell_however_they_are_cut() {
        let causes = vec![Explained { cause: Cause::RtThreads, explained_ns: 900 }];
        let late =
            |index| Late { index, lateness_ns: 900, causes: causes.clone(), thread: Some("hog".into()) };
        let start = Record::Start { fifo: Some(99), cpu: Some(1) };
        let one =
            [start.clone(), Record::Samples { ns: vec![5, 1000, 7, 2000], late: vec![late(1), late(3)] }];
        let two = [
            start,
            Record::Samples { ns: vec![5, 1000], late: vec![late(1)] },
            Record::Samples { ns: vec![7, 2000], late: vec![late(1)] },
        ];
        let cell = |records: &[Record]| {
            let mut recorder = Recorder::new(4, Nanos::from_millis(10));
            records.iter().for_each(|record| recorder.take(record));
            recorder.cell("host", Profile::ALL[1])
        };
        let found = cell(&one);
        assert_eq!(found, cell(&two));
        assert_eq!((found.measured_ns, found.segments, found.excursions), (40_000_000, 1, 2));
        assert_eq!((found.kept[1].at_ns, found.kept[1].latency_ns), (30_000_000, 2000));
        assert_eq!(found.causes[0].thread.as_deref(), Some("hog"));
        assert_eq!(found.stability.len(), 3);
    }

    /// A stall of 900 ms is one latency, and 89 instants after the first passed before its end.
    #[test]
    fn periods_without_a_wake_up_are_counted() {
        let mut recorder = Recorder::new(4, Nanos::from_millis(10));
        recorder.take(&Record::Samples { ns: vec![5_000, 899_900_000, 9_999_999], late: Vec::new() });
        recorder.take(&Record::Samples { ns: vec![25_000_000], late: Vec::new() });
        let cell = recorder.cell("host", Profile::ALL[0]);
        assert_eq!((cell.missed_periods, cell.statistics.unwrap().samples), (Some(89 + 2), 4));
    }

    /// Nine of ten wake-ups by a clock that is 4.285 s behind: in the histogram they count as 0, and the cell says so.
    #[test]
    fn wake_ups_before_their_instant_are_counted() {
        let mut recorder = Recorder::new(200, Nanos::from_millis(10));
        let ns = |k: i64| if k % 10 == 0 { 20_000 } else { -4_285_135_432 + k };
        for half in [0..100, 100..200] {
            let late = vec![Late { index: 1, lateness_ns: 1, causes: Vec::new(), thread: None }];
            recorder.take(&Record::Samples { ns: half.map(ns).collect(), late });
        }
        let cell = recorder.cell("host", Profile::ALL[0]);
        assert_eq!(cell.early, Some(Early { wakeups: 180, most_ns: 4_285_135_431 }));
        assert_eq!((cell.statistics.unwrap().min_ns, cell.excursions), (0, 0), "an early one is no late one");
        let recorder = Recorder::new(200, Nanos::from_millis(10));
        assert_eq!(recorder.cell("host", Profile::ALL[0]).early, Some(Early::default()));
    }

    #[test]
    fn a_run_goes_on_with_the_same_cpu_and_priority() {
        let mut recorder = Recorder::new(4, Nanos::from_millis(10));
        assert_eq!(recorder.check_start(None, Some(1)), Ok(()));
        recorder.take(&Record::Start { fifo: None, cpu: Some(1) });
        assert_eq!(recorder.check_start(None, Some(1)), Ok(()));
        let error = recorder.check_start(Some(99), Some(0)).unwrap_err();
        assert!(
            error.contains(
                "was on CPU 1, no SCHED_FIFO priority; this one is on CPU 0, SCHED_FIFO priority 99"
            ),
            "{error}"
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut recorder = Recorder::new(1_000_000, Nanos::from_millis(1));
        let late = Late { index: 0, lateness_ns: 1, causes: Vec::new(), thread: None };
        for round in 0..2_000_i64 {
            recorder.take(&Record::Samples {
                ns: (0..50).map(|i| 1000 + i * 37 + round % 17).collect(),
                late: vec![late.clone()],
            });
        }
        let cell = recorder.cell("host", Profile::ALL[0]);
        assert_eq!((cell.excursions, cell.kept.len()), (2_000, KEPT_MAX));
        assert!(cell.timeline.slices.len() <= ktsn_realtime::timeline::SLICES_MAX);
    }
}
