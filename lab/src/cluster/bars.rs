// SPDX-License-Identifier: Apache-2.0
//! What the results are held against. In: a document. Out: its comparisons, and what breaks a hard count.
//! Ratios are of medians over the rounds; the bars are the 64 octet ones, counts hold at every payload.

use super::WayName;
use crate::container::bars::{HARD_COUNTS, faults};
use ktsn_measure::results::{Document, Question, Round};

/// The payload that the ratios are about.
const PAYLOAD_OCTETS: usize = 64;
/// Figure, the path it is divided by, the greatest value.
const BARS: [(&str, WayName, f64); 4] = [
    ("wire_offset_ns.p50", WayName::Flannel, 0.12),
    ("wire_offset_ns.p50", WayName::FlannelSpin, 0.40),
    ("latency_ns.p50", WayName::Flannel, 0.72),
    ("latency_ns.p50", WayName::HostNetwork, 0.90),
];

/// Adds the comparisons that the document has the paths for.
pub(super) fn compare(document: &mut Document) {
    let of = WayName::TsnCni.word();
    let payloads: Vec<usize> = document
        .series
        .iter()
        .filter(|series| series.path == of && series.round == Round::All)
        .map(|series| series.payload_octets)
        .collect();
    for (metric, to, bar) in BARS {
        let has = |path: &str| document.all_rounds(path, PAYLOAD_OCTETS, Some("idle")).is_some();
        if has(of) && has(to.word()) {
            document.compare(&question(metric, PAYLOAD_OCTETS, Some(to.word()), bar));
        }
    }
    for payload in payloads {
        for metric in ["lost", "early"] {
            document.compare(&question(metric, payload, None, 0.0));
        }
    }
}

const fn question<'a>(metric: &'a str, payload: usize, to: Option<&'a str>, bar: f64) -> Question<'a> {
    let of = WayName::TsnCni.word();
    Question { metric, payload_octets: payload, load: Some("idle"), of, to, bar: Some(bar) }
}

/// The frames of ktsnd that were lost, early, duplicated, reordered or not taken; one sentence for each series and count.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let ours = document.series.iter().filter(|s| s.path == WayName::TsnCni.word() && s.round == Round::All);
    for series in ours {
        let octets = series.payload_octets;
        found.extend(faults(series, &format!("tsn-cni, {octets} octets"), &HARD_COUNTS));
        // A talker that the library does not serve sends by the kernel, at once or on time by chance.
        if series.transmit_error_ns.is_none() {
            found.push(format!("tsn-cni, {octets} octets: ktsnd sent nothing"));
        }
    }
    found
}

/// The bars that do not hold, one sentence each.
#[must_use]
pub fn missed(document: &Document) -> Vec<String> {
    crate::container::bars::missed(document)
}
