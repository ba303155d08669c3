// SPDX-License-Identifier: Apache-2.0
//! What the results of `loop` are held against. In: a document and its raw records. Out: its comparisons, and what breaks a
//! hard count.

use crate::container::bars::faults;
use crate::receive::{PAYLOAD_OCTETS, Path};
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::{Comparison, Document, Question, Round};
use ktsn_time::Nanos;

/// The counts that must be 0 where KTSN takes part.
const COUNTS: [&str; 3] = ["lost", "early", "duplicates"];
/// Greatest part of Flannel's round trip.
const ROUND_TRIP_MAX: f64 = 0.35;
/// Share of Flannel's cycles that miss the deadline by which ours are judged.
const FLANNEL_MISSES: f64 = 0.10;
/// Greatest share of our cycles that may miss that deadline.
const MISSES_MAX: f64 = 0.01;
/// What the document calls that share.
const AT_FLANNELS: &str = "missed ratio at the deadline that flannel misses 10 % of";

/// Round trips of a run, ascending.
fn round_trips<'a>(runs: impl Iterator<Item = &'a RunRecords>) -> Vec<Nanos> {
    let of = |run: &'a RunRecords| {
        run.records.iter().filter_map(|record| Some(record.received_at?.since(record.tx_time)))
    };
    let mut all: Vec<Nanos> = runs.flat_map(of).collect();
    all.sort_unstable();
    all
}

/// Share of `cycles` without an answer within `deadline`.
pub(super) fn missed_ratio(run: &RunRecords, cycles: u64, deadline: Nanos) -> f64 {
    let met = round_trips(std::iter::once(run)).into_iter().take_while(|&span| span <= deadline).count();
    1.0 - met as f64 / cycles.max(met as u64).max(1) as f64
}

/// Adds the comparisons that the document has the paths for.
pub fn compare(document: &mut Document, runs: &[RunRecords]) {
    let load = Some("idle");
    let has = |document: &Document, path: Path| {
        document.all_rounds(&path.to_string(), PAYLOAD_OCTETS, load).is_some()
    };
    if !has(document, Path::FLANNEL) {
        return;
    }
    for (of, bar) in [
        (Path::SHORT_EXPECT, Some(ROUND_TRIP_MAX)),
        (Path::KTSN_EXPECT, None),
        (Path::FLANNEL_EXPECT, None),
        (Path::SHORT, None),
    ] {
        if has(document, of) {
            let (metric, payload_octets) = ("latency_ns.p50", PAYLOAD_OCTETS);
            let to = Some("flannel");
            document.compare(&Question { metric, payload_octets, load, of: &of.to_string(), to, bar });
        }
    }
    let cycles = |document: &Document, path: Path| {
        document.all_rounds(&path.to_string(), PAYLOAD_OCTETS, load).and_then(|series| series.frames_intended)
    };
    let of_path = |path: Path| round_trips(runs.iter().filter(move |run| run.path == path.to_string()));
    let Some(deadline) = cycles(document, Path::FLANNEL)
        .and_then(|count| deadline_missed_by(&of_path(Path::FLANNEL), count, FLANNEL_MISSES))
    else {
        return;
    };
    document.parameters.insert("deadline_flannel_misses_a_tenth_of_ns".to_owned(), deadline.get().into());
    for (of, bar) in [(Path::SHORT_EXPECT, Some(MISSES_MAX)), (Path::KTSN_EXPECT, None)] {
        let Some(count) = cycles(document, of) else { continue };
        let met = of_path(of).into_iter().take_while(|&span| span <= deadline).count() as f64;
        let missed = 1.0 - met / count.max(1) as f64;
        document.comparisons.push(Comparison {
            payload_octets: Some(PAYLOAD_OCTETS),
            load: load.map(str::to_owned),
            bar,
            holds: bar.map(|bar| missed <= bar),
            ..Comparison::held(AT_FLANNELS, &of.to_string(), None, Some(missed), MISSES_MAX)
        });
    }
}

/// The shortest deadline that at most this share of `cycles` misses; `None` if more of them had no answer at all.
fn deadline_missed_by(round_trips: &[Nanos], cycles: u64, share: f64) -> Option<Nanos> {
    let met = ((1.0 - share) * cycles as f64).ceil() as usize;
    round_trips.get(met.max(1) - 1).copied()
}

/// What must never be: one sentence each.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    for series in document.series.iter().filter(|s| Path::is_ours(&s.path) && s.round == Round::All) {
        found.extend(faults(series, &series.path, &COUNTS));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the definition: the deadline is a round trip, at most the share misses it, and a shorter one is
        /// missed by more.
        #[test]
        fn a_deadline_is_the_shortest_that_enough_cycles_meet(
            mut spans in prop::collection::vec(1_i64..1_000, 1..60),
            lost in 0_usize..4,
            tenths in 1_u32..9,
        ) {
            spans.sort_unstable();
            let (cycles, share) = ((spans.len() + lost) as u64, f64::from(tenths) / 10.0);
            let sorted: Vec<Nanos> = spans.iter().copied().map(Nanos::new).collect();
            let met = |deadline: i64| spans.iter().filter(|&&span| span <= deadline).count() as f64;
            let enough = (1.0 - share) * cycles as f64;
            match deadline_missed_by(&sorted, cycles, share) {
                Some(deadline) => {
                    prop_assert!(met(deadline.get()) >= enough);
                    prop_assert!(met(deadline.get() - 1) < enough);
                }
                None => prop_assert!((spans.len() as f64) < enough),
            }
        }
    }
}
