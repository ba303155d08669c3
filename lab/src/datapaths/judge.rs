// SPDX-License-Identifier: Apache-2.0
//! From what a run has seen to its figures. In: [`Seen`], the run's label. Out: series, records, the stable part, the spikes with their
//! causes. No frame is left out of a distribution; a cut range is a second, labelled one. Pure.

use super::carried::{Carried, FOLLOWING, Seen};
use super::datapath::SLOW_PATH;
use super::frame::{LOAD_OCTETS, PAYLOAD_OCTETS};
use super::host::{Counted, Samples};
use super::path::{Direction, End, Path, named};
use super::traffic::Arrival;
use crate::observations::put_disturbance;
use crate::vm::Accelerator;
use crate::vm::protocol::Clock;
use ktsn_measure::datapaths::spikes::{Evidence, GREAT_SPIKE_NS, Host, SPIKE_NS, Spike};
use ktsn_measure::datapaths::{SpikeCount, StablePart, stable};
use ktsn_measure::records::{Record, RunRecords};
use ktsn_measure::results::{Round, Series};
use ktsn_measure::stats::{Jitter, Statistics};
use ktsn_time::Nanos;
use std::collections::BTreeMap;

/// Spikes of a run that are shown one by one; all of them are counted.
const SHOWN_MAX: usize = 20;

/// Which run it is.
pub(super) struct Label<'a> {
    pub(super) path: Path,
    pub(super) end: End,
    /// How a guest's instructions ran.
    pub(super) accelerator: Option<Accelerator>,
    pub(super) direction: Direction,
    /// Direction and load.
    pub(super) row: &'a str,
    pub(super) round: u32,
    /// Measured frames that were meant to be sent.
    pub(super) intended: u64,
}

impl Label<'_> {
    /// The path of its series.
    pub(super) fn name(&self) -> String {
        named(self.path, self.end)
    }
}

/// A run in figures.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) series: Series,
    pub(super) records: RunRecords,
    pub(super) stable: Option<StablePart>,
    pub(super) spikes: Vec<SpikeCount>,
    pub(super) greatest: Vec<Spike>,
    /// The bound of the error of a guest's clock, which followed.
    pub(super) clock_bound: Option<Nanos>,
}

/// A frame with its network latency, if it arrived.
type Latency = Option<Nanos>;

fn latency(record: &Record) -> Latency {
    Some(record.wire_at?.since(record.handed_at?))
}

/// Why the observation, not the path, is at fault.
pub(super) fn fault(seen: &Seen, direction: Direction) -> Option<String> {
    if seen.stepped {
        return Some("a clock was stepped".to_owned());
    }
    let Carried { sending, receiving, guest_clock, .. } = &seen.carried;
    if let Some((state, _)) = guest_clock.as_ref().filter(|(state, _)| state != FOLLOWING) {
        return Some(format!("the guest's clock was {state}"));
    }
    // A guest's end has stamps in both directions, a stand-in's in none.
    let has_guest = guest_clock.is_some();
    let sender = sending.frames.iter().filter(|frame| frame.stamp.is_none()).count();
    let receiver = receiving.arrivals.iter().filter(|arrival| arrival.stamp.is_none()).count();
    let unstamped = if has_guest || direction == Direction::Ingress { sender } else { 0 }
        + if has_guest || direction == Direction::Egress { receiver } else { 0 };
    (unstamped > 0).then(|| format!("the kernel did not stamp {unstamped} frames"))
}

/// The figures of a run.
pub(super) fn judge(label: &Label<'_>, seen: &Seen) -> Run {
    let (arrivals, duplicates, reordered) = firsts(&seen.carried.receiving.arrivals);
    let records = join(label.direction, seen, &arrivals);
    let latencies: Vec<Latency> = records.iter().map(latency).collect();
    let part = stable::choose(&latencies);
    let network = Statistics::of(latencies.iter().flatten().copied());
    let of_part = part.map(|part| Statistics::of(part.of(&latencies).iter().flatten().copied()));
    let over = |limit| latencies.iter().flatten().filter(|latency| latency.get() > limit).count() as u64;
    let (sent, received) = (records.len() as u64, arrivals.len() as u64);
    let lost = sent.saturating_sub(received);
    let load_lost = seen.carried.sending.load_sent.saturating_sub(seen.carried.receiving.load_received);
    let counted: u64 = seen.drops.iter().filter(|(name, _)| *name != SLOW_PATH).map(|(_, count)| count).sum();
    let elapsed = seen.carried.elapsed.as_secs_f64();
    let cpu = |span: Nanos| Some(span.get() as f64 / 1e9 / elapsed);
    let span = |from: fn(&Record) -> Option<ktsn_time::Tai>, to: fn(&Record) -> Option<ktsn_time::Tai>| {
        Statistics::of(records.iter().filter_map(|record| Some(to(record)?.since(from(record)?))))
    };
    let load_bit_rate = seen.carried.receiving.load_received as f64 * LOAD_OCTETS as f64 * 8.0 / elapsed;
    let mut series = Series {
        path: label.name(),
        payload_octets: PAYLOAD_OCTETS,
        load: Some(label.row.to_owned()),
        round: Round::Number(label.round),
        accelerator: label.accelerator.map(|accelerator| accelerator.to_string()),
        clock: seen.carried.guest_clock.as_ref().map(|_| Clock::Vptp.to_string()),
        dropped: dropped(seen),
        frames_intended: Some(label.intended),
        frames_sent: Some(sent),
        frames_received: Some(received),
        lost: Some(lost),
        lost_uncounted: Some((lost + load_lost).saturating_sub(counted)),
        duplicates: Some(duplicates),
        reordered: Some(reordered),
        network_latency_ns: network,
        stable_latency_ns: of_part.flatten(),
        latency_ns: span(|record| Some(record.tx_time), |record| record.received_at),
        jitter_ns: Jitter::of(records.iter().map(|record| (record.tx_time, record.received_at))).statistics(),
        wake_up_ns: span(|record| record.kernel_at, |record| record.received_at),
        after_opening_ns: Statistics::of(
            seen.carried.sending.frames.iter().map(|frame| frame.called_at.since(frame.due)),
        ),
        spikes_over_500us: Some(over(SPIKE_NS)),
        spikes_over_1ms: Some(over(GREAT_SPIKE_NS)),
        load_sent: Some(seen.carried.sending.load_sent),
        load_received: Some(seen.carried.receiving.load_received),
        load_bit_rate: (seen.carried.sending.load_sent > 0).then_some(load_bit_rate),
        talker_cpu_ratio: cpu(seen.carried.sender_cpu),
        listener_cpu_ratio: cpu(seen.carried.receiver_cpu),
        ..Series::default()
    };
    put_disturbance(&mut series, &seen.machine.0, &seen.machine.1);
    let usual_ns = network.map_or(0, |network| network.p50);
    let (spikes, greatest) = explain(label, seen, &records, usual_ns);
    let stable = part.map(|part| StablePart {
        path: label.name(),
        load: label.row.to_owned(),
        round: label.round,
        first: part.first as u64,
        frames: part.frames as u64,
        of: sent,
    });
    let run = RunRecords {
        path: label.name(),
        payload_octets: PAYLOAD_OCTETS,
        load: Some(label.row.to_owned()),
        round: label.round,
        records,
    };
    let clock_bound = seen.carried.guest_clock.as_ref().map(|(_, bound)| *bound);
    Run { series, records: run, stable, spikes, greatest, clock_bound }
}

/// Of each frame the first arrival, how many were second and further ones, and how many came after a later frame.
fn firsts(arrivals: &[Arrival]) -> (BTreeMap<u64, Arrival>, u64, u64) {
    let (mut firsts, mut highest, mut reordered) = (BTreeMap::new(), None, 0);
    for arrival in arrivals {
        if firsts.contains_key(&arrival.sequence) {
            continue;
        }
        reordered += u64::from(highest.is_some_and(|highest| arrival.sequence < highest));
        highest = highest.max(Some(arrival.sequence));
        firsts.insert(arrival.sequence, *arrival);
    }
    let duplicates = (arrivals.len() - firsts.len()) as u64;
    (firsts, duplicates, reordered)
}

/// Both ends' views of each frame that was sent.
fn join(direction: Direction, seen: &Seen, arrivals: &BTreeMap<u64, Arrival>) -> Vec<Record> {
    let has_guest = seen.carried.guest_clock.is_some();
    let record = |frame: &super::traffic::SentFrame| {
        let arrival = arrivals.get(&frame.sequence).filter(|arrival| arrival.called_at == frame.called_at);
        let kernel_at = arrival.and_then(|arrival| arrival.stamp);
        let received_at = arrival.map(|arrival| arrival.received_at);
        let (handed_at, wire_at) = match direction {
            // The kernels' stamps: the guest's programs are no part of the datapath.
            _ if has_guest => (frame.stamp, kernel_at),
            // The stand-in's call, and the remote host's stamp.
            Direction::Egress => (Some(frame.called_at), kernel_at),
            // The remote host's stamp, and the stand-in's read.
            Direction::Ingress => (frame.stamp, received_at),
        };
        Record {
            sequence: frame.sequence,
            tx_time: frame.called_at,
            handed_at,
            wire_at,
            kernel_at,
            received_at,
        }
    };
    seen.carried.sending.frames.iter().map(record).collect()
}

/// What was dropped or refused, by counter.
fn dropped(seen: &Seen) -> BTreeMap<String, u64> {
    let refused = seen.carried.sending.refused.iter().map(|(reason, count)| ((*reason).to_owned(), *count));
    let late = [
        ("sender_missed_window", seen.carried.sending.late_windows),
        ("load_without_room", seen.carried.sending.load_unsent),
        ("strangers", seen.carried.receiving.strangers),
    ];
    let late = late.into_iter().map(|(name, count)| (name.to_owned(), count));
    let all = seen.drops.clone().into_iter().chain(refused).chain(late);
    all.filter(|(_, count)| *count > 0).collect()
}

/// Every spike's cause: all of them counted, the greatest shown.
fn explain(
    label: &Label<'_>,
    seen: &Seen,
    records: &[Record],
    usual_ns: i64,
) -> (Vec<SpikeCount>, Vec<Spike>) {
    let there = seen.carried.there.as_ref().map(|(name, samples)| (name.as_str(), samples.as_slice()));
    let counted = Counted::of(Samples { here: &seen.carried.samples, there });
    let gaps: BTreeMap<u64, Nanos> =
        seen.carried.receiving.arrivals.iter().map(|arrival| (arrival.sequence, arrival.gap)).collect();
    let begin = records.first().map(|record| record.tx_time);
    let mut spikes = Vec::new();
    for (record, frame) in records.iter().zip(&seen.carried.sending.frames) {
        let Some(latency) = latency(record).filter(|latency| latency.get() > SPIKE_NS) else { continue };
        let evidence = Evidence {
            latency_ns: latency.get(),
            usual_ns,
            call_ns: frame.returned_at.since(frame.called_at).get(),
            gap_ns: gaps.get(&record.sequence).map_or(0, |gap| gap.get()),
            interpreted: label.accelerator == Some(Accelerator::Tcg),
        };
        let (cause, detail, host) = counted.explain(&evidence, Some(record.tx_time));
        let at_s = begin.map_or(0.0, |begin| record.tx_time.since(begin).get() as f64 / 1e9);
        spikes.push(spike(label, (record.sequence, at_s, latency), (cause.to_string(), detail), host));
    }
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    for spike in &spikes {
        let count = counts.entry(spike.cause.clone()).or_default();
        count.0 += 1;
        count.1 += u64::from(spike.latency_ns > GREAT_SPIKE_NS);
    }
    let count = |(cause, (over_500us, over_1ms))| SpikeCount {
        path: label.name(),
        load: label.row.to_owned(),
        cause,
        over_500us,
        over_1ms,
    };
    spikes.sort_by_key(|spike| std::cmp::Reverse(spike.latency_ns));
    spikes.truncate(SHOWN_MAX);
    (counts.into_iter().map(count).collect(), spikes)
}

fn spike(label: &Label<'_>, of: (u64, f64, Nanos), why: (String, String), host: Host) -> Spike {
    Spike {
        path: label.name(),
        load: label.row.to_owned(),
        round: label.round,
        sequence: of.0,
        at_s: of.1,
        latency_ns: of.2.get(),
        cause: why.0,
        detail: why.1,
        host,
    }
}
