// SPDX-License-Identifier: Apache-2.0
//! From what a run left to figures. In: the files of both scripts, the taps' records, what the hosts counted. Out: a series and the records
//! of each payload, and the run's account of lost frames.

use super::align::above_fastest;
use super::counters::{self, Reasons};
use super::ends::keep;
use super::plan::{Datapath, Keeper, Plan, Row};
use super::script::{Files, busy_file};
use super::spikes::{Seen, Spikes};
use crate::carry_out::Measured;
use crate::datapaths::host::{Sample, Samples};
use crate::error::LabError;
use crate::observations::DEADLINE;
use crate::vm::protocol::Clock;
use ktsn_measure::records::{self, ArrivalRecord, Record, RunRecords, TalkRecord};
use ktsn_measure::results::{Check, Series};
use ktsn_measure::series::{Facts, WireSource};
use ktsn_measure::stats::Statistics;
use ktsn_measure::{listener, talker};
use ktsn_time::Nanos;
use serde::de::DeserializeOwned;
use std::path::Path;

/// The clock of both ends when they are processes of one machine.
const ONE_CLOCK: &str = "host";
/// Guests have clocks of their own, and nothing keeps them together.
const OWN_CLOCKS: &str = "own";

/// What a run left.
#[derive(Default)]
pub(super) struct Left {
    /// Files of the publisher's script.
    pub(super) near: Files,
    /// Files of the subscriber's script.
    pub(super) far: Files,
    /// Frames at the guests' tap devices, publisher's and subscriber's, by their hosts' clocks.
    pub(super) taps: Option<[Vec<ArrivalRecord>; 2]>,
    /// What hosts and switches dropped meanwhile.
    pub(super) dropped: Reasons,
    /// What the load delivered, bit/s.
    pub(super) load_bit_rate: Option<f64>,
    /// What this machine counted, every tenth of a second.
    pub(super) samples: Vec<Sample>,
    /// The same of the other machine, if there is one, by its name.
    pub(super) samples_there: Option<(String, Vec<Sample>)>,
}

impl Left {
    fn samples(&self) -> Samples<'_> {
        let there = self.samples_there.as_ref().map(|(name, samples)| (name.as_str(), samples.as_slice()));
        Samples { here: &self.samples, there }
    }
}

fn json<T: DeserializeOwned>(files: &Files, name: &str) -> Result<T, LabError> {
    let content = files.get(name).unwrap_or_default();
    serde_json::from_slice(content)
        .map_err(|error| LabError::Contents { path: name.into(), problem: error.to_string() })
}

fn text(files: &Files, name: &str) -> String {
    String::from_utf8_lossy(files.get(name).unwrap_or_default()).into_owned()
}

/// The figures of a run.
///
/// # Errors
/// A script's files are not what they should be.
pub(super) fn figures(
    plan: &Plan,
    row: Row,
    round: u32,
    left: &Left,
    directory: &Path,
) -> Result<Measured<Spikes>, LabError> {
    let unreadable = |path: &Path, error: records::RecordsError| LabError::Contents {
        path: path.to_owned(),
        problem: error.to_string(),
    };
    let heard: listener::Summary = json(&left.far, "heard.json")?;
    let path = keep(&left.far, "heard.csv.zst", directory)?;
    let listened =
        records::load_arrivals_at_most(&path, records_max(plan)).map_err(|error| unreadable(&path, error))?;
    if heard.frames_received.saturating_sub(heard.unrecorded) != listened.len() as u64 {
        let problem = format!("{} records; its figures say {} frames", listened.len(), heard.frames_received);
        return Err(LabError::Contents { path: "heard.csv.zst".into(), problem });
    }
    let mut clock_stepped = heard.clock_stepped;
    let (mut all, mut runs, mut spikes) = (Vec::new(), Vec::new(), Spikes::default());
    let (mut lost, mut reasons) = (0, left.dropped.clone());
    let far = |name: &str| counters::of_end("subscriber", &text(&left.far, name));
    counters::add(&mut reasons, counters::since(&far("far-after"), &far("far-before")));
    for (index, &payload) in plan.payloads.iter().enumerate() {
        let talk: talker::Summary = json(&left.near, &format!("sent-{index}.json"))?;
        let path = keep(&left.near, &format!("sent-{index}.csv.zst"), directory)?;
        let talked = records::load_talk(&path).map_err(|error| unreadable(&path, error))?;
        clock_stepped |= talk.clock_stepped;
        let near = near_reasons(&left.near, index);
        counters::add(&mut reasons, near.clone());
        let sequences = plan.frames * index as u64..plan.frames * (index as u64 + 1);
        let of_payload = |all: &[ArrivalRecord]| -> Vec<ArrivalRecord> {
            all.iter().filter(|record| sequences.contains(&record.probe.sequence)).copied().collect()
        };
        let label = Label { row, payload, round };
        let arrived = of_payload(&listened);
        let taps = left.taps.as_ref().map(|taps| [of_payload(&taps[0]), of_payload(&taps[1])]);
        let tapped = taps.as_ref().map_or(&[][..], |[near, _]| near);
        let (run, mut series) = label.series(plan, &talk, &talked, tapped, &arrived);
        series.taps_ns = taps.as_ref().and_then(|[near, far]| between(near, far));
        series.dropped = near;
        series.load_bit_rate = left.load_bit_rate;
        series.daemon_cpu_ratio = daemon_cpu_ratio(plan, row, &left.near, index);
        series.listener_cpu_ratio = Some(heard.cpu_ratio);
        let has_own_clocks = has_own_clocks(plan, row);
        let seen = Seen { taps: taps.as_ref(), samples: left.samples(), has_own_clocks };
        series.spikes_over_500us = Some(spikes.add(&run, seen));
        lost += series.lost.unwrap_or(0);
        all.push(series);
        runs.push(run);
    }
    let account = account(plan, row, round, lost, &reasons);
    let fault = clock_stepped.then(|| "a clock was stepped".to_owned());
    Ok(Measured { series: all, runs, checks: vec![account], fault, ..Measured::default() }.with(spikes))
}

/// Rows of records that a subscriber may have: a frame may arrive twice.
pub(super) fn records_max(plan: &Plan) -> usize {
    usize::try_from(plan.frames).unwrap_or(usize::MAX).saturating_mul(plan.payloads.len()).saturating_mul(2)
}

/// What the publisher's end dropped while the payload of this number was sent.
fn near_reasons(files: &Files, index: usize) -> Reasons {
    let near = |number: usize| counters::of_end("publisher", &text(files, &format!("near-{number}")));
    let daemon = |number: usize| counters::of_daemon(&text(files, &format!("daemon-{number}")));
    let mut reasons = counters::since(&near(index + 1), &near(index));
    counters::add(&mut reasons, counters::since(&daemon(index + 1), &daemon(index)));
    reasons
}

/// The share of a CPU that ktsnd's threads took while the payload of this number was sent.
fn daemon_cpu_ratio(plan: &Plan, row: Row, files: &Files, payload: usize) -> Option<f64> {
    if row.keeper != Keeper::Ktsnd {
        return None;
    }
    let ran = |number: usize| -> u64 {
        let text = text(files, &busy_file(payload, number));
        text.lines().filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum()
    };
    let span = plan.period.get() as f64 * plan.frames as f64;
    let (before, after) = (ran(0), ran(1));
    (after > 0).then(|| after.saturating_sub(before) as f64 / span)
}

/// Time from one tap to the other, of the frames that both saw.
fn between(near: &[ArrivalRecord], far: &[ArrivalRecord]) -> Option<Statistics> {
    let mut seen: Vec<_> = near.iter().filter_map(|record| Some((record.probe, record.kernel_at?))).collect();
    seen.sort_unstable_by_key(|&(probe, _)| probe);
    Statistics::of(far.iter().filter_map(|record| {
        let at = seen.binary_search_by_key(&record.probe, |&(probe, _)| probe).ok()?;
        Some(record.kernel_at?.since(seen[at].1))
    }))
}

/// Whether each lost frame has a counted reason. Other frames are counted as well, so there may be more reasons than lost frames.
fn account(plan: &Plan, row: Row, round: u32, lost: u64, reasons: &Reasons) -> Check {
    let counted = counters::total(reasons);
    let frames = plan.frames * plan.payloads.len() as u64;
    let name = format!("{} ({}), round {round}: each lost frame has a counted reason", row.path(), row.load);
    let words = counters::words(reasons);
    Check::of(name, lost <= counted, Some(format!("{lost} of {frames} lost; counted: {words}")))
}

/// Whether nothing keeps the clocks of a row's ends together.
pub(super) fn has_own_clocks(plan: &Plan, row: Row) -> bool {
    row.datapath != Datapath::NoVm && plan.clock == Clock::None
}

/// The run and payload that figures are of.
struct Label {
    row: Row,
    payload: usize,
    round: u32,
}

impl Label {
    fn series(
        &self,
        plan: &Plan,
        talk: &talker::Summary,
        talked: &[TalkRecord],
        tapped: &[ArrivalRecord],
        listened: &[ArrivalRecord],
    ) -> (RunRecords, Series) {
        let Self { row, payload, round } = *self;
        let has_guests = row.datapath != Datapath::NoVm;
        let has_own_clocks = has_own_clocks(plan, row);
        // The publisher's own call is the hand-over only where it keeps the time itself.
        // The tap has the host's clock: it says nothing of a time that a guest's own clock asked for.
        let tapped = if has_own_clocks { &[] } else { tapped };
        let (mut records, counts) = records::join(talked, tapped, listened, row.keeper == Keeper::Send);
        if has_own_clocks {
            align(&mut records);
        }
        let load = Some(row.load.word().to_owned());
        let run =
            RunRecords { path: row.path(), payload_octets: payload, load: load.clone(), round, records };
        let facts = Facts {
            frames_intended: talk.frames_intended,
            counts,
            wire: WireSource::Tap,
            deadline: (!has_own_clocks).then_some(DEADLINE),
            transmit: None,
        };
        let followed = plan.clock.to_string();
        let clock = match (has_guests, has_own_clocks) {
            (false, _) => ONE_CLOCK,
            (true, true) => OWN_CLOCKS,
            (true, false) => &followed,
        };
        let off = |record: &Record| Some(record.wire_at?.since(record.tx_time).abs());
        let mut series = Series {
            load,
            wire_offset_magnitude_ns: Statistics::of(run.records.iter().filter_map(off)),
            accelerator: has_guests.then(|| plan.choice.accelerator.to_string()),
            clock: Some(clock.to_owned()),
            talker_cpu_ratio: Some(talk.cpu_ratio),
            ..Series::of_run(&run, &facts)
        };
        if has_own_clocks {
            series.above_fastest_ns = series.latency_ns.take();
            series.before_wake_up_ns = None;
        }
        (run, series)
    }
}

/// Gives the arrivals the publisher's clock: the fastest frame arrives at its transmit time.
fn align(records: &mut [Record]) {
    let arrived = |record: &Record| Some((record.tx_time.as_nanos(), record.received_at?.as_nanos()));
    let frames: Vec<(u64, u64)> = records.iter().filter_map(arrived).collect();
    let mut above = above_fastest(&frames).into_iter();
    for record in records.iter_mut() {
        let Some(received_at) = record.received_at else { continue };
        let woken = record.kernel_at.map(|kernel_at| received_at.since(kernel_at));
        let aligned = record.tx_time.saturating_add(Nanos::new(above.next().unwrap_or(0)));
        record.received_at = Some(aligned);
        record.kernel_at = woken.map(|woken| aligned.saturating_add(Nanos::new(-woken.get())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::payload::Probe;
    use ktsn_time::Tai;

    #[test]
    fn clocks_of_guests_are_aligned_and_the_listener_s_wake_up_stays() {
        let at = Tai::from_nanos;
        let record = |sequence: u64, received: Option<u64>| Record {
            sequence,
            tx_time: at(sequence * 1_000_000),
            handed_at: None,
            wire_at: None,
            kernel_at: received.map(|received| at(received - 70)),
            received_at: received.map(at),
        };
        let far = 400_000_000;
        let mut records = vec![
            record(1, Some(far + 1_000_000)),
            record(2, None),
            record(3, Some(far + 3_000_250)),
            record(4, Some(far + 4_000_000)),
        ];
        align(&mut records);
        let latency = |record: &Record| Some(record.received_at?.since(record.tx_time).get());
        assert_eq!(records.iter().map(latency).collect::<Vec<_>>(), [Some(0), None, Some(250), Some(0)]);
        assert_eq!(records[2].received_at.unwrap().since(records[2].kernel_at.unwrap()).get(), 70);
    }

    #[test]
    fn the_taps_are_joined_by_frame() {
        let seen = |sequence: u64, kernel: u64| ArrivalRecord {
            probe: Probe { sequence, tx_time: Tai::from_nanos(sequence) },
            kernel_at: Some(Tai::from_nanos(kernel)),
            received_at: None,
        };
        let statistics =
            between(&[seen(2, 200), seen(1, 100)], &[seen(1, 130), seen(2, 250), seen(3, 1)]).unwrap();
        assert_eq!((statistics.min, statistics.max), (30, 50));
        assert!(between(&[], &[seen(1, 1)]).is_none());
    }
}
