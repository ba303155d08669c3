// SPDX-License-Identifier: Apache-2.0
//! From frames to figures.
//!
//! In: the joined records of one round, and what only others know ([`Facts`]). Out: a [`Series`] with every figure of
//! the schema that the records allow. No frame is left out of a distribution that it has the instants for; an
//! instant that was not observed makes its figures absent, never zero.

use crate::results::{Round, Series};
use hdrhistogram::Histogram;
use ktsn_time::{Nanos, Tai};
use ktsn_traffic::records::{JoinCounts, Record, RunRecords};
use ktsn_traffic::stats::{Jitter, Statistics};

/// A transmit error above this counts as late.
pub const LATE_MIN: Nanos = Nanos::from_micros(1);

ktsn_model::words! {
    /// Who took `wire_at`; written among the document's parameters as `wire_at`.
    #[derive(Default)]
    pub enum WireSource {
        /// The passive tap on the receiving host's uplink.
        #[default]
        Tap = "tap",
        /// The listener's own kernel stamp: two real hosts without a tap.
        ListenerStamp = "listener_stamp",
    }
}

impl WireSource {
    const fn of(self, record: &Record) -> Option<Tai> {
        match self {
            Self::Tap => record.wire_at,
            Self::ListenerStamp => record.kernel_at,
        }
    }
}

/// Transmit errors that ktsnd measured: it knows `handed_at`, the talker does not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TransmitFigures {
    /// The distribution.
    pub statistics: Statistics,
    /// Share later than [`LATE_MIN`].
    pub late_over_1us_ratio: f64,
    /// Frames handed over before their transmit time.
    pub early: u64,
}

impl TransmitFigures {
    /// Figures of a histogram of transmit errors in nanoseconds (its percentiles are exact to its resolution). A
    /// histogram holds no negative spans, so the daemon counts `early` itself. `None` when it is empty.
    #[must_use]
    pub fn of_histogram(histogram: &Histogram<u64>, early: u64) -> Option<Self> {
        if histogram.is_empty() {
            return None;
        }
        let whole = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        let at = |quantile| whole(histogram.value_at_quantile(quantile));
        let late_min = LATE_MIN.get() as u64;
        let in_time = histogram.count_between(0, late_min);
        Some(Self {
            statistics: Statistics {
                min: whole(histogram.min()),
                p50: at(0.5),
                p90: at(0.9),
                p99: at(0.99),
                p99_9: at(0.999),
                max: whole(histogram.max()),
                mean: histogram.mean(),
                stddev: histogram.stdev(),
            },
            late_over_1us_ratio: (histogram.len() - in_time) as f64 / histogram.len() as f64,
            early,
        })
    }
}

/// What the records do not hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    /// Instants the talker meant to serve.
    pub frames_intended: u64,
    /// What joining counted.
    pub counts: JoinCounts,
    /// Who took `wire_at`.
    pub wire: WireSource,
    /// Latency allowed; without it nothing is said about deadlines.
    pub deadline: Option<Nanos>,
    /// Transmit errors from the daemon; they stand instead of the records' own.
    pub transmit: Option<TransmitFigures>,
}

impl Series {
    /// The figures of one round. CPU, memory, drops and the way are the caller's to add.
    #[must_use]
    pub fn of_run(run: &RunRecords, facts: &Facts) -> Self {
        let records = &run.records;
        let wire = |record: &Record| facts.wire.of(record);
        let spans = |at: &dyn Fn(&Record) -> Option<Tai>| {
            Statistics::of(records.iter().filter_map(|record| Some(at(record)?.since(record.tx_time))))
        };
        let sent = (records.len() as u64).saturating_sub(facts.counts.unsent);
        let received = records.iter().filter(|record| record.received_at.is_some()).count() as u64;
        let own = own_transmit_figures(records);
        let transmit = facts.transmit.or(own);
        let early_records = records.iter().filter(|record| is_early(record, wire(record))).count() as u64;
        let (jitter, wire_jitter) = (jitter(records, |record| record.received_at), jitter(records, wire));
        // Where nothing was observed, nothing was left out either.
        let left_out = |jitter: &Jitter, at: &dyn Fn(&Record) -> Option<Tai>| {
            records.iter().any(|record| at(record).is_some()).then_some(jitter.left_out_count)
        };
        let wake_up = records.iter().filter_map(|record| Some(record.received_at?.since(record.kernel_at?)));
        Self {
            path: run.path.clone(),
            payload_octets: run.payload_octets,
            round: Round::Number(run.round),
            frames_intended: Some(facts.frames_intended),
            frames_sent: Some(sent),
            frames_received: Some(received),
            lost: Some(sent.saturating_sub(received)),
            // A copy made before the tap shows at both observers and is one copy.
            duplicates: Some(facts.counts.listener_duplicates.max(facts.counts.tap_duplicates)),
            reordered: Some(facts.counts.reordered),
            // The daemon's count and ours may be of the same frames; neither may hide the other.
            early: Some(early_records.max(facts.transmit.map_or(0, |figures| figures.early))),
            transmit_error_ns: transmit.map(|figures| figures.statistics),
            wire_offset_ns: spans(&wire),
            latency_ns: spans(&|record| record.received_at),
            jitter_ns: jitter.statistics(),
            jitter_left_out: left_out(&jitter, &|record| record.received_at),
            wire_jitter_ns: wire_jitter.statistics(),
            wire_jitter_left_out: left_out(&wire_jitter, &wire),
            wake_up_ns: Statistics::of(wake_up),
            before_wake_up_ns: spans(&|record| record.received_at.and(record.kernel_at)),
            late_over_1us_ratio: transmit.map(|figures| figures.late_over_1us_ratio),
            deadline_missed_ratio: missed_ratio(records, facts),
            ..Self::default()
        }
    }
}

fn is_early(record: &Record, wire_at: Option<Tai>) -> bool {
    [record.handed_at, wire_at].into_iter().flatten().any(|at| at < record.tx_time)
}

fn own_transmit_figures(records: &[Record]) -> Option<TransmitFigures> {
    let errors: Vec<Nanos> =
        records.iter().filter_map(|record| Some(record.handed_at?.since(record.tx_time))).collect();
    let late = errors.iter().filter(|&&error| error > LATE_MIN).count();
    Some(TransmitFigures {
        statistics: Statistics::of(errors.iter().copied())?,
        late_over_1us_ratio: late as f64 / errors.len() as f64,
        early: errors.iter().filter(|error| error.is_negative()).count() as u64,
    })
}

/// Jitter of one instant over a round, in order of sequence number.
#[must_use]
pub fn jitter(records: &[Record], at: impl Fn(&Record) -> Option<Tai>) -> Jitter {
    Jitter::of(records.iter().map(|record| (record.tx_time, at(record))))
}

/// Frames that the listener received and the tap did not see: a broken observation, never a property of the path.
#[must_use]
pub fn untapped(records: &[Record]) -> u64 {
    records.iter().filter(|record| record.received_at.is_some() && record.wire_at.is_none()).count() as u64
}

/// Share of the instants to be served at which a frame was not sent, was lost, or was received later than the deadline
/// after its transmit time.
fn missed_ratio(records: &[Record], facts: &Facts) -> Option<f64> {
    let deadline = facts.deadline?;
    let met = |record: &&Record| record.received_at.is_some_and(|at| at.since(record.tx_time) <= deadline);
    // Instants before the first and after the last frame sent have no record.
    let intended = facts.frames_intended.max(records.len() as u64);
    let missed = intended - records.iter().filter(met).count() as u64;
    (intended > 0).then(|| missed as f64 / intended as f64)
}

#[cfg(test)]
mod tests;
