// SPDX-License-Identifier: Apache-2.0
//! Samples for the plots: in: the raw records of a path and payload. Out: every latency, wire offset and jitter
//! of all rounds, sorted, and the latencies in time. Nothing is left out here; thinning is the plots' business.

use ktsn_time::Tai;
use ktsn_traffic::records::{Record, RunRecords};
use ktsn_traffic::stats::Jitter;

/// All rounds of one path and payload.
#[derive(Clone, Debug, Default)]
pub(super) struct Samples {
    pub(super) path: String,
    pub(super) payload_octets: usize,
    /// `None`: the records do not name a load.
    pub(super) load: Option<String>,
    /// `received_at − tx_time`, ascending, nanoseconds.
    pub(super) latency: Vec<i64>,
    /// `wire_at − tx_time`, ascending, nanoseconds.
    pub(super) wire_offset: Vec<i64>,
    /// `wire_at − handed_at`, ascending, nanoseconds.
    pub(super) network: Vec<i64>,
    /// Magnitude of the jitter at the listener, ascending, nanoseconds.
    pub(super) jitter: Vec<i64>,
    /// Magnitude of the jitter at the tap, ascending, nanoseconds.
    pub(super) wire_jitter: Vec<i64>,
    /// Per round in order: seconds since its first transmit time, and the latency in nanoseconds.
    pub(super) rounds: Vec<Vec<(f64, f64)>>,
    /// Per round in order: seconds since its first transmit time, and `wire_at − handed_at` in nanoseconds.
    pub(super) network_rounds: Vec<Vec<(f64, f64)>>,
    /// Per round in order: seconds since its first transmit time, and the instant on the wire, nanoseconds of TAI.
    pub(super) on_wire: Vec<Vec<(f64, u64)>>,
}

type Point = fn(&Record) -> Option<Tai>;

impl Samples {
    /// The samples of `runs`, grouped by path, payload and load in order of appearance. `wire_by_listener`: there was
    /// no tap, the listener's kernel stamp stands for the wire.
    pub(super) fn group(runs: &[RunRecords], wire_by_listener: bool) -> Vec<Self> {
        let wire: Point = if wire_by_listener { |record| record.kernel_at } else { |record| record.wire_at };
        let mut groups: Vec<Self> = Vec::new();
        for run in runs {
            let payload_octets = run.payload_octets;
            let same =
                |g: &Self| g.path == run.path && g.payload_octets == payload_octets && g.load == run.load;
            let index = groups.iter().position(same).unwrap_or_else(|| {
                let (path, load) = (run.path.clone(), run.load.clone());
                groups.push(Self { path, payload_octets, load, ..Self::default() });
                groups.len() - 1
            });
            groups[index].add(&run.records, wire);
        }
        for group in &mut groups {
            group.network.sort_unstable();
            for samples in
                [&mut group.latency, &mut group.wire_offset, &mut group.jitter, &mut group.wire_jitter]
            {
                samples.sort_unstable();
            }
        }
        groups
    }

    /// One round.
    fn add(&mut self, records: &[Record], wire: Point) {
        let received: Point = |record| record.received_at;
        self.latency.extend(after_transmit_time(records, received).map(|(_, latency)| latency));
        self.wire_offset.extend(after_transmit_time(records, wire).map(|(_, offset)| offset));
        let network = |record: &Record| Some(record.wire_at?.since(record.handed_at?).get());
        self.network.extend(records.iter().filter_map(network));
        self.jitter.extend(jitter(records, received));
        self.wire_jitter.extend(jitter(records, wire));
        if let Some(first) = records.iter().map(|record| record.tx_time).min() {
            let seconds = |tx_time: Tai| tx_time.since(first).get() as f64 / 1e9;
            let points = after_transmit_time(records, received);
            let stamps = records.iter().filter_map(|r| Some((seconds(r.tx_time), wire(r)?.as_nanos())));
            self.on_wire.push(stamps.collect());
            let networks = records.iter().filter_map(|r| Some((seconds(r.tx_time), network(r)? as f64)));
            self.network_rounds.push(networks.collect());
            self.rounds.push(points.map(|(tx_time, latency)| (seconds(tx_time), latency as f64)).collect());
        }
    }
}

fn after_transmit_time(records: &[Record], point: Point) -> impl Iterator<Item = (Tai, i64)> {
    records
        .iter()
        .filter_map(move |record| point(record).map(|at| (record.tx_time, at.since(record.tx_time).get())))
}

fn jitter(records: &[Record], point: Point) -> Vec<i64> {
    let jitter = Jitter::of(records.iter().map(|record| (record.tx_time, point(record))));
    jitter.values.into_iter().map(|value| value.abs().get()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64, wire: Option<u64>, received: Option<u64>) -> Record {
        let tx_time = Tai::from_nanos(1_000_000 * sequence);
        let at = |after: u64| Tai::from_nanos(1_000_000 * sequence + after);
        let (wire_at, received_at) = (wire.map(at), received.map(at));
        Record { sequence, tx_time, handed_at: None, wire_at, kernel_at: None, received_at }
    }

    #[test]
    fn rounds_stay_apart_and_lost_frames_have_no_latency() {
        let records = vec![
            record(1, Some(5), Some(40)),
            record(2, Some(7), None),
            record(3, Some(6), Some(30)),
            record(4, Some(6), Some(38)),
        ];
        let run =
            |round, records| RunRecords { path: "p".into(), payload_octets: 64, load: None, round, records };
        let groups = Samples::group(&[run(1, records.clone()), run(2, records)], false);
        assert_eq!(groups.len(), 1);
        let group = &groups[0];
        assert_eq!(group.latency, [30, 30, 38, 38, 40, 40]);
        assert_eq!(group.wire_offset, [5, 5, 6, 6, 6, 6, 7, 7]);
        // The frame after the lost one has no jitter, and no jitter spans two rounds.
        assert_eq!(group.jitter, [8, 8]);
        assert_eq!(group.wire_jitter, [0, 0, 1, 1, 2, 2]);
        assert_eq!(group.rounds.len(), 2);
        assert_eq!(group.on_wire[0][1], (0.001, 2_000_007));
        assert_eq!(group.rounds[1], [(0.0, 40.0), (0.002, 30.0), (0.003, 38.0)]);
    }
}
