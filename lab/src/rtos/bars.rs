// SPDX-License-Identifier: Apache-2.0
//! What the results of `rtos` are held against. In: a document. Out: its comparisons and one check.

use super::harness::MESSAGE_OCTETS;
use super::{FREERTOS, FREERTOS_SWITCH, LINUX, LINUX_SWITCH, PING_PONG, RECEIVE};
use ktsn_measure::results::{Check, Comparison, Document, Question, Round, Series};

/// Greatest part of the Linux guest's round trip.
const ROUND_TRIP_MAX: f64 = 0.8;
/// Share of the bandwidth with most posted buffers that a run must reach to count.
const BANDWIDTH_MIN: f64 = 0.95;
/// Receive buffers that the memory is held against: 256 of 2 KiB.
const OTHER_OCTETS: f64 = 256.0 * 2048.0;
/// Octets that must be saved of them.
const SAVED_MIN: f64 = 400.0 * 1024.0;
/// The bound of posted buffers whose bandwidth is the measure.
const MOST_POSTED: u64 = 255;
/// The check's name.
const REACHES: &str = "few posted buffers carry 95 % of the bandwidth of 255";

/// Adds the comparisons that the document has the runs for.
pub fn compare(document: &mut Document) {
    compare_round_trips(document, FREERTOS, LINUX);
    compare_round_trips(document, FREERTOS_SWITCH, LINUX_SWITCH);
    compare_memory(document);
}

/// The two guests behind one backend.
fn compare_round_trips(document: &mut Document, of: &str, to: &str) {
    let load = Some(PING_PONG);
    for (payload_octets, bar) in [(1, Some(ROUND_TRIP_MAX)), (MESSAGE_OCTETS, None)] {
        let has = |path| document.all_rounds(path, payload_octets, load).is_some();
        if has(of) && has(to) {
            let to = Some(to);
            document.compare(&Question { metric: "latency_ns.p50", payload_octets, load, of, to, bar });
        }
    }
    let spread = |path| {
        let latency = document.all_rounds(path, 1, load)?.latency_ns?;
        (latency.p50 > 0).then(|| latency.max as f64 / latency.p50 as f64)
    };
    if let (Some(own), Some(linux)) = (spread(of), spread(to)) {
        // The bar is "lower than Linux's": the same spread misses it.
        let comparison = Comparison::held("latency_ns.max/p50", of, Some(to), Some(own / linux), 1.0);
        document.comparisons.push(Comparison {
            payload_octets: Some(1),
            load: load.map(str::to_owned),
            holds: Some(own < linux),
            ..comparison
        });
    }
}

/// The runs of the guest that receives, with all TCP buffers of the run with most posted buffers.
fn receiving(document: &Document) -> Vec<&Series> {
    let is_receiving = |series: &&Series| {
        series.round == Round::All && series.path == FREERTOS && series.load.as_deref() == Some(RECEIVE)
    };
    let all: Vec<&Series> = document.series.iter().filter(is_receiving).collect();
    let most = all.iter().find(|series| series.posted_max == Some(MOST_POSTED));
    let tcp_octets = most.and_then(|series| series.tcp_octets);
    all.into_iter().filter(|series| tcp_octets.is_some() && series.tcp_octets == tcp_octets).collect()
}

/// The run with the fewest posted buffers that carries enough, and the bandwidth with most of them.
fn leanest(document: &Document) -> Option<(Option<&Series>, f64)> {
    let receiving = receiving(document);
    let most = receiving.iter().find(|series| series.posted_max == Some(MOST_POSTED))?.bit_rate?;
    let enough = receiving.into_iter().filter(|series| {
        series.posted_max < Some(MOST_POSTED)
            && series.bit_rate.is_some_and(|rate| rate >= BANDWIDTH_MIN * most)
    });
    Some((enough.min_by_key(|series| series.posted_max), most))
}

fn compare_memory(document: &mut Document) {
    let Some((leanest, most)) = leanest(document) else { return };
    let peak = leanest.and_then(|series| series.posted_peak_octets);
    let sentence = match leanest.zip(peak) {
        Some((series, peak)) => format!(
            "with {} posted the guest receives {:.0} Mbit/s, with {MOST_POSTED} {:.0}; {:.0} KiB of {:.0} are saved",
            series.posted_max.unwrap_or(0),
            series.bit_rate.unwrap_or(0.0) / 1e6,
            most / 1e6,
            (OTHER_OCTETS - peak) / 1024.0,
            OTHER_OCTETS / 1024.0
        ),
        None => format!("no run with fewer posted buffers carries 95 % of {:.0} Mbit/s", most / 1e6),
    };
    document.checks.push(Check::of(REACHES, peak.is_some(), Some(sentence)));
    let held = Comparison::held("posted_peak_octets", FREERTOS, None, peak, OTHER_OCTETS - SAVED_MIN);
    let (payload_octets, load) = (Some(MESSAGE_OCTETS), Some(RECEIVE.to_owned()));
    document.comparisons.push(Comparison { payload_octets, load, ..held });
}

/// What must not happen and did: nothing is judged beside the bars.
#[must_use]
pub fn violations(_: &Document) -> Vec<String> {
    Vec::new()
}
