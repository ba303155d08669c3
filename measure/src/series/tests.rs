// SPDX-License-Identifier: Apache-2.0
use super::*;
use ktsn_traffic::payload::Probe;
use ktsn_traffic::records::{ArrivalRecord, TalkRecord, join};
use proptest::prelude::*;

const PERIOD: u64 = 1_000_000;

fn record(sequence: u64, handed: Option<u64>, wire: Option<u64>, received: Option<u64>) -> Record {
    let tx_time = Tai::from_nanos(1_000_000_000 + PERIOD * sequence);
    let at = |span: Option<u64>| span.map(|span| tx_time.saturating_add(Nanos::new(span as i64)));
    Record {
        sequence,
        tx_time,
        handed_at: at(handed),
        wire_at: at(wire),
        kernel_at: at(received.map(|span| span - 500)),
        received_at: at(received),
    }
}

fn run(records: Vec<Record>) -> RunRecords {
    RunRecords { path: "bare".into(), payload_octets: 64, load: None, round: 2, records }
}

#[test]
fn every_figure_of_a_small_round_is_known() {
    let records = vec![
        record(0, Some(100), Some(2_000), Some(30_000)),
        record(1, Some(900), Some(4_000), Some(34_000)),
        record(2, Some(2_000), Some(3_000), None),
        record(3, Some(1_000), Some(3_000), Some(450_000)),
    ];
    let facts = Facts {
        frames_intended: 5,
        counts: JoinCounts {
            tap_duplicates: 1,
            listener_duplicates: 2,
            reordered: 3,
            ..JoinCounts::default()
        },
        deadline: Some(Nanos::from_micros(400)),
        ..Facts::default()
    };
    let series = Series::of_run(&run(records), &facts);
    assert_eq!(
        (series.frames_intended, series.frames_sent, series.frames_received),
        (Some(5), Some(4), Some(3))
    );
    assert_eq!((series.lost, series.duplicates, series.reordered), (Some(1), Some(2), Some(3)));
    assert_eq!((series.early, series.round), (Some(0), Round::Number(2)));
    assert_eq!(series.metric("transmit_error_ns.p50"), Some(900.0));
    assert_eq!(series.metric("transmit_error_ns.max"), Some(2_000.0));
    assert_eq!(series.metric("late_over_1us_ratio"), Some(0.25));
    assert_eq!(series.metric("wire_offset_ns.p50"), Some(3_000.0));
    assert_eq!(series.metric("latency_ns.p50"), Some(34_000.0));
    assert_eq!(series.metric("wake_up_ns.max"), Some(500.0));
    // Only frames 0 and 1 follow each other at the listener; the tap saw all four.
    assert_eq!(series.metric("jitter_ns.min"), Some(4_000.0));
    assert_eq!(series.metric("jitter_ns.max"), Some(4_000.0));
    assert_eq!(series.metric("wire_jitter_ns.min"), Some(0.0));
    assert_eq!(series.metric("wire_jitter_ns.max"), Some(2_000.0));
    // Frame 3 follows a lost one; the tap missed none.
    assert_eq!((series.jitter_left_out, series.wire_jitter_left_out), (Some(1), Some(0)));
    // Of five instants one was not served, one frame lost, one late.
    assert_eq!(series.deadline_missed_ratio, Some(0.6));
}

#[test]
fn early_frames_are_counted_once_whoever_saw_them() {
    let mut both = record(0, Some(0), Some(0), Some(600));
    both.handed_at = Some(both.tx_time.saturating_sub(Nanos::new(1)));
    both.wire_at = both.handed_at;
    let mut wire = record(1, Some(5), Some(0), Some(600));
    wire.wire_at = Some(wire.tx_time.saturating_sub(Nanos::new(1)));
    let exact = record(2, Some(0), Some(0), Some(600));
    let series = Series::of_run(&run(vec![both, wire, exact]), &Facts::default());
    assert_eq!(series.early, Some(2));
}

#[test]
fn what_was_not_observed_is_absent() {
    let series = Series::of_run(&run(vec![record(0, None, None, None)]), &Facts::default());
    assert_eq!(series.lost, Some(1));
    assert_eq!(series.transmit_error_ns, None);
    assert_eq!(series.late_over_1us_ratio, None);
    assert_eq!(series.wire_offset_ns, None);
    assert_eq!(series.latency_ns, None);
    assert_eq!(series.jitter_ns, None);
    assert_eq!((series.jitter_left_out, series.wire_jitter_left_out), (None, None));
    assert_eq!(series.deadline_missed_ratio, None);
    assert_eq!(untapped(&[record(0, None, None, Some(700)), record(1, None, None, None)]), 1);
}

#[test]
fn without_a_tap_the_listeners_stamp_is_the_wire() {
    let facts = Facts { wire: WireSource::ListenerStamp, ..Facts::default() };
    let series = Series::of_run(&run(vec![record(0, None, None, Some(9_500))]), &facts);
    assert_eq!(series.metric("wire_offset_ns.p50"), Some(9_000.0));
    assert_eq!((WireSource::Tap.word(), facts.wire.word()), ("tap", "listener_stamp"));
}

#[test]
fn the_daemons_histogram_stands_instead_of_the_talkers_call() {
    let mut histogram = Histogram::<u64>::new(3).unwrap();
    for value in [40, 50, 60, 1_500] {
        histogram.record(value).unwrap();
    }
    let transmit = TransmitFigures::of_histogram(&histogram, 1);
    let facts = Facts { transmit, ..Facts::default() };
    let series = Series::of_run(&run(vec![record(0, Some(7), Some(8), Some(900))]), &facts);
    assert_eq!(series.metric("transmit_error_ns.p50"), Some(50.0));
    assert_eq!(series.late_over_1us_ratio, Some(0.25));
    assert_eq!(series.early, Some(1));
    assert_eq!(TransmitFigures::of_histogram(&Histogram::new(3).unwrap(), 0), None);
}

/// A talker meant to serve 0 to 5, could not send 2 and 5, and frame 1 was received 700 ns later than frame 0.
#[test]
fn a_frame_not_sent_is_neither_sent_nor_lost_and_no_jitter_spans_it() {
    let frames = [(0, 30_000), (1, 30_700), (3, 90_000), (4, 90_200)];
    let probe = |sequence| {
        let Record { tx_time, .. } = record(sequence, None, None, None);
        Probe { sequence, tx_time }
    };
    let talked = frames.map(|(sequence, _)| {
        let probe = probe(sequence);
        TalkRecord { probe, called_at: probe.tx_time, returned_at: probe.tx_time }
    });
    let arrived = frames.map(|(sequence, span)| {
        let at = Some(probe(sequence).tx_time.saturating_add(Nanos::new(span)));
        ArrivalRecord { probe: probe(sequence), kernel_at: at, received_at: at }
    });
    let (records, counts) = join(&talked, &arrived, &arrived, true);
    let deadline = Some(Nanos::from_micros(400));
    let facts = Facts { frames_intended: 6, counts, deadline, ..Facts::default() };
    let series = Series::of_run(&run(records), &facts);
    assert_eq!((series.frames_intended, series.frames_sent, series.lost), (Some(6), Some(4), Some(0)));
    assert_eq!(series.metric("jitter_ns.max"), Some(700.0));
    assert_eq!(series.metric("wire_jitter_ns.max"), Some(700.0));
    assert_eq!((series.jitter_left_out, series.wire_jitter_left_out), (Some(1), Some(1)));
    assert_eq!(series.deadline_missed_ratio, Some(2.0 / 6.0));
}

proptest! {
    /// Counts and ratios against plain loops over the frames.
    #[test]
    fn counts_and_ratios_meet_their_definition(
        frames in prop::collection::vec(
            (prop::option::of(0_u64..3_000), prop::option::of(0_u64..9_000), prop::option::of(500_u64..800_000)),
            1..60,
        ),
        deadline in 1_i64..800_000,
    ) {
        let records: Vec<Record> = frames
            .iter()
            .enumerate()
            .map(|(index, &(handed, wire, received))| record(index as u64, handed, wire, received))
            .collect();
        let facts = Facts { deadline: Some(Nanos::new(deadline)), ..Facts::default() };
        let series = Series::of_run(&run(records), &facts);
        let (mut handed_count, mut late, mut received_count, mut missed) = (0_u32, 0_u32, 0_u64, 0_u32);
        for &(handed, _, received) in &frames {
            if let Some(handed) = handed {
                handed_count += 1;
                late += u32::from(handed > 1_000);
            }
            received_count += u64::from(received.is_some());
            missed += u32::from(received.is_none_or(|span| span as i64 > deadline));
        }
        let share = |part: u32, whole: u32| f64::from(part) / f64::from(whole);
        prop_assert_eq!(series.late_over_1us_ratio, (handed_count > 0).then(|| share(late, handed_count)));
        prop_assert_eq!(series.frames_received, Some(received_count));
        prop_assert_eq!(series.lost, Some(frames.len() as u64 - received_count));
        prop_assert_eq!(series.deadline_missed_ratio, Some(share(missed, frames.len() as u32)));
        prop_assert_eq!(series.early, Some(0));
        let greatest = frames.iter().filter_map(|frame| frame.1).max();
        prop_assert_eq!(series.metric("wire_offset_ns.max"), greatest.map(|span| span as f64));
    }
}
