// SPDX-License-Identifier: Apache-2.0
//! What the overlay is held against. In: a document. Out: its comparisons, and what breaks a hard count.
//! Ratios are of medians over the rounds, at 64 octets; beside a load the same ratios are told without a bar.

use super::crowd::Phases;
use crate::container::bars::answer;
use crate::container::{self, Load, Path};
use ktsn_measure::results::{Document, Question, Round};

/// Path, figure, the path it is divided by (none: the figure itself), the greatest value.
const BARS: [(Path, &str, Option<Path>, f64); 8] = [
    (Path::Ktsn, "wire_offset_ns.p50", Some(Path::Flannel), 0.09),
    (Path::Ktsn, "wire_offset_ns.p50", Some(Path::BareSpin), 0.6),
    (Path::KtsnShort, "latency_ns.p50", Some(Path::Flannel), 0.60),
    (Path::KtsnShort, "latency_ns.p50", Some(Path::Bare), 0.75),
    (Path::KtsnShort, "latency_ns.p50", Some(Path::Ktsn), 0.92),
    (Path::KtsnShort, "before_wake_up_ns.p50", Some(Path::Flannel), 0.25),
    (Path::Ktsn, "ktsn_cpu_ratio", None, 0.10),
    (Path::KtsnShort, "ktsn_cpu_ratio", None, 0.10),
];

/// What must be zero, idle and loaded.
const COUNTS: [&str; 4] = ["lost", "duplicates", "early", "reordered"];
/// Share of frames of the many attachments that may leave more than 1 µs late.
const LATE_MAX: f64 = 0.10;

/// Adds the comparisons that the document has the paths for.
pub fn compare(document: &mut Document) {
    for (of, metric, to, bar) in BARS {
        answer(document, Load::Idle, of, metric, to, Some(bar));
    }
    for load in Load::ALL {
        for path in [Path::Ktsn, Path::KtsnShort] {
            for metric in COUNTS {
                answer(document, load, path, metric, None, Some(0.0));
            }
        }
    }
    for (of, metric, to, _) in BARS {
        answer(document, Load::Iperf3Udp, of, metric, to, None);
    }
    many_attachments(document);
}

fn many_attachments(document: &mut Document) {
    let mut ask = |phases: Phases, metric, bar| {
        let name = phases.path();
        let octets = container::bars::PAYLOAD_OCTETS;
        let load = Some(Load::Idle.name());
        if document.all_rounds(name, octets, load).is_some() {
            document.compare(&Question { metric, payload_octets: octets, load, of: name, to: None, bar });
        }
    };
    ask(Phases::Planned, "late_over_1us_ratio", Some(LATE_MAX));
    for metric in COUNTS {
        ask(Phases::Planned, metric, Some(0.0));
    }
    ask(Phases::Random, "late_over_1us_ratio", None);
}

/// What must never be: one sentence each.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let mut found = container::bars::violations(document);
    let crowd = |path: &str| Phases::ALL.iter().any(|phases| phases.path() == path);
    for series in document.series.iter().filter(|series| crowd(&series.path) && series.round == Round::All) {
        for metric in COUNTS {
            if let Some(count) = series.metric(metric).filter(|&count| count != 0.0) {
                found.push(format!("{}: {metric} is {count}, expected 0", series.path));
            }
        }
        if series.frames_received != series.frames_intended {
            let [seen, intended] =
                [series.frames_received, series.frames_intended].map(Option::unwrap_or_default);
            found.push(format!("{}: the far end saw {seen} of {intended} frames", series.path));
        }
    }
    found
}
