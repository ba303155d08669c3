// SPDX-License-Identifier: Apache-2.0
//! Why a frame took long between two guests.
//!
//! In: a run's records, the stamps at both guests' tap devices, what the host counted meanwhile. Out: each spike with where its time went,
//! and a cause or "unknown" with the host's counters. The counters are taken by a thread that sleeps a tenth of a second at a time.

use crate::datapaths::host::{Counted, Sample, Samples};
use ktsn_measure::datapaths::spikes::{Evidence, GREAT_SPIKE_NS, SPIKE_NS, Spike};
use ktsn_measure::datapaths::{Account, SpikeCount};
use ktsn_measure::records::{ArrivalRecord, Record, RunRecords};
use ktsn_time::{Nanos, Tai};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The rule in words, for the results.
pub(super) const RULE: &str = "a spike is a latency of 500 µs above the run's median, because an interpreted guest's median is above 500 µs. \
                               With stamps at both tap devices, by clocks that agree, it is said where half of the excess or more went: \
                               the publisher's guest, the network between the tap devices, or the subscriber's guest. The cause, in this \
                               order: the hypervisor took time in that tenth of a second (steal); tasks waited for a CPU for half of the \
                               excess beyond what is usual (PSI); interrupts, or soft interrupts of one kind, were twice the run's median \
                               and 100 more; else unknown";

/// Spikes of a run that are shown one by one.
const SHOWN_MAX: usize = 10;
const SAMPLE: Duration = Duration::from_millis(100);

/// Takes samples of the host's counters until it ends.
#[derive(Debug)]
pub(super) struct Sampler {
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Sample>>>,
}

impl Sampler {
    pub(super) fn start() -> Self {
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&has_ended);
        let thread = std::thread::spawn(move || {
            let mut samples = vec![Sample::now(&[])];
            loop {
                std::thread::sleep(SAMPLE);
                samples.push(Sample::now(&[]));
                if ended.load(Ordering::Relaxed) {
                    return samples;
                }
            }
        });
        Self { has_ended, thread: Some(thread) }
    }

    pub(super) fn end(mut self) -> Vec<Sample> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// What was seen of a run beside its records.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// Frames at both guests' tap devices.
    pub(super) taps: Option<&'a [Vec<ArrivalRecord>; 2]>,
    pub(super) samples: Samples<'a>,
    /// Whether the guests' clocks are not the host's.
    pub(super) has_own_clocks: bool,
}

/// The spikes of runs.
#[derive(Clone, Debug, Default)]
pub(super) struct Spikes {
    counts: BTreeMap<[String; 3], (u64, u64)>,
    greatest: Vec<Spike>,
}

/// Where the latency of a frame went: the publisher's guest, from tap to tap, the subscriber's guest.
type Parts = [i64; 3];
const PLACES: [&str; 3] =
    ["the publisher's guest", "the network between the tap devices", "the subscriber's guest"];

fn median(mut values: Vec<i64>) -> i64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

/// Where half of the excess or more went, in words, and whether that is the subscriber's guest.
fn place(parts: Option<Parts>, usually: Parts, excess: i64) -> (String, bool) {
    let Some(parts) = parts else {
        return ("its place is not known: no stamps of clocks that agree".to_owned(), false);
    };
    let place = (0..PLACES.len()).max_by_key(|&place| parts[place] - usually[place]);
    match place.filter(|&place| parts[place] - usually[place] >= excess / 2) {
        Some(place) => {
            let took = format!(
                "{} took {} µs, usually {}",
                PLACES[place],
                parts[place] / 1000,
                usually[place] / 1000
            );
            (took, place == PLACES.len() - 1)
        }
        None => ("no place took half of it".to_owned(), false),
    }
}

impl Spikes {
    /// Adds the spikes of one run and payload; how many there are.
    pub(super) fn add(&mut self, run: &RunRecords, seen: Seen<'_>) -> u64 {
        let latency = |record: &Record| Some(record.received_at?.since(record.tx_time).get());
        let usual_ns = median(run.records.iter().filter_map(latency).collect());
        let stamps = |end: usize| -> BTreeMap<u64, Tai> {
            let tap = seen.taps.map_or(&[][..], |taps| taps[end].as_slice());
            tap.iter().filter_map(|frame| Some((frame.probe.sequence, frame.kernel_at?))).collect()
        };
        let (near, far) = (stamps(0), stamps(1));
        let parts = |record: &Record| -> Option<Parts> {
            if seen.has_own_clocks {
                return None;
            }
            let (near, far) = (*near.get(&record.sequence)?, *far.get(&record.sequence)?);
            let spans = [near.since(record.tx_time), far.since(near), record.received_at?.since(far)];
            Some(spans.map(Nanos::get))
        };
        let all: Vec<Parts> = run.records.iter().filter_map(parts).collect();
        let usual_parts = [0, 1, 2].map(|place| median(all.iter().map(|parts| parts[place]).collect()));
        let counted = Counted::of(seen.samples);
        let begin = run.records.first().map_or(Tai::ZERO, |record| record.tx_time);
        let load = format!("{}, {} octets", run.load.as_deref().unwrap_or("idle"), run.payload_octets);
        let mut spikes = Vec::new();
        for record in &run.records {
            let Some(latency_ns) = latency(record).filter(|latency| latency - usual_ns > SPIKE_NS) else {
                continue;
            };
            // By the host's clock; without any reading of it the host's counters of that moment are not known.
            let sent = (!seen.has_own_clocks).then_some(record.tx_time);
            let at = near.get(&record.sequence).copied().or(sent);
            let evidence = Evidence { latency_ns, usual_ns, ..Evidence::default() };
            let (place, is_far) = place(parts(record), usual_parts, latency_ns - usual_ns);
            let (cause, detail, host) = counted.explain_on(&evidence, at, is_far);
            spikes.push(Spike {
                path: run.path.clone(),
                load: load.clone(),
                round: run.round,
                sequence: record.sequence,
                at_s: record.tx_time.since(begin).get() as f64 / 1e9,
                latency_ns,
                cause: cause.to_string(),
                detail: format!("{place}; {detail}"),
                host,
            });
        }
        for spike in &spikes {
            let count =
                self.counts.entry([spike.path.clone(), load.clone(), spike.cause.clone()]).or_default();
            count.0 += 1;
            count.1 += u64::from(spike.latency_ns - usual_ns > GREAT_SPIKE_NS);
        }
        let found = spikes.len() as u64;
        spikes.sort_by_key(|spike| std::cmp::Reverse(spike.latency_ns));
        spikes.truncate(SHOWN_MAX);
        self.greatest.extend(spikes);
        found
    }

    /// Adds the spikes of other runs.
    pub(super) fn append(&mut self, other: Self) {
        for (key, (over_500us, over_1ms)) in other.counts {
            let count = self.counts.entry(key).or_default();
            *count = (count.0 + over_500us, count.1 + over_1ms);
        }
        self.greatest.extend(other.greatest);
    }

    /// What a document says of them.
    pub(super) fn account(self) -> Account {
        let count = |(key, count): ([String; 3], (u64, u64))| {
            let ([path, load, cause], (over_500us, over_1ms)) = (key, count);
            SpikeCount { path, load, cause, over_500us, over_1ms }
        };
        Account {
            spike_rule: RULE.to_owned(),
            spikes: self.counts.into_iter().map(count).collect(),
            greatest: self.greatest,
            ..Account::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::payload::Probe;

    const MS: i64 = 1_000_000;

    fn at(nanos: i64) -> Tai {
        Tai::from_nanos(nanos.unsigned_abs())
    }

    /// A run of frames each millisecond: what each end and the network took for the frame of a number.
    fn run(parts: impl Fn(i64) -> Parts) -> (RunRecords, [Vec<ArrivalRecord>; 2]) {
        let (mut records, mut taps) = (Vec::new(), [Vec::new(), Vec::new()]);
        for number in 0..100 {
            let [publisher, network, subscriber] = parts(number);
            let (sequence, tx_time) = (number.unsigned_abs(), at((number + 1000) * MS));
            let [near, far] =
                [publisher, publisher + network].map(|span| tx_time.saturating_add(Nanos::new(span)));
            for (tap, stamp) in taps.iter_mut().zip([near, far]) {
                let probe = Probe { sequence, tx_time };
                tap.push(ArrivalRecord { probe, kernel_at: Some(stamp), received_at: None });
            }
            records.push(Record {
                sequence,
                tx_time,
                handed_at: None,
                wire_at: None,
                kernel_at: None,
                received_at: Some(far.saturating_add(Nanos::new(subscriber))),
            });
        }
        let run = RunRecords {
            path: "bridge-etf".to_owned(),
            payload_octets: 64,
            load: Some("idle".to_owned()),
            round: 1,
            records,
        };
        (run, taps)
    }

    #[test]
    fn a_spike_says_where_its_time_went_and_is_counted() {
        let usually = [200_000, 10_000, 400_000];
        let (run, taps) = run(|number| match number {
            7 => [900_000, 10_000, 400_000],
            8 => [200_000, 10_000, 2_400_000],
            // 500 µs above the median is not above it by more.
            9 => [700_000, 10_000, 400_000],
            _ => usually,
        });
        let mut spikes = Spikes::default();
        let seen =
            Seen { taps: Some(&taps), samples: Samples { here: &[], there: None }, has_own_clocks: false };
        assert_eq!(spikes.add(&run, seen), 2);
        let mut both = Spikes::default();
        both.append(spikes.clone());
        both.append(spikes);
        let account = both.account();
        assert_eq!((account.spikes.len(), account.greatest.len()), (1, 4));
        let count = &account.spikes[0];
        assert_eq!((count.cause.as_str(), count.over_500us, count.over_1ms), ("unknown", 4, 2));
        assert_eq!(count.load, "idle, 64 octets");
        assert!(account.greatest[0].detail.starts_with("the subscriber's guest took 2400 µs, usually 400; "));
        assert!(account.greatest[1].detail.starts_with("the publisher's guest took 900 µs, usually 200; "));
        assert_eq!((account.greatest[1].sequence, account.greatest[1].at_s), (7, 0.007));
    }

    #[test]
    fn without_stamps_of_one_clock_the_place_is_not_known() {
        let (run, taps) = run(|number| if number == 5 { [9 * MS, 0, 0] } else { [0; 3] });
        for (taps, has_own_clocks) in [(None, false), (Some(&taps), true)] {
            let mut spikes = Spikes::default();
            assert_eq!(
                spikes.add(&run, Seen { taps, samples: Samples { here: &[], there: None }, has_own_clocks }),
                1
            );
            assert!(spikes.account().greatest[0].detail.starts_with("its place is not known"));
        }
    }

    #[test]
    fn the_sampler_takes_samples_until_it_ends() {
        let sampler = Sampler::start();
        assert!(sampler.end().len() >= 2);
    }
}
