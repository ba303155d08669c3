// SPDX-License-Identifier: Apache-2.0
//! What the results are held against. In: a document. Out: its comparisons, and what breaks a hard count.
//! Ratios are of medians over the rounds, at every payload; the bars are the 64 octet ones.

use super::{Load, Path};
use ktsn_measure::results::{Check, Document, Question, Round, Series};

/// The payload that the bars are about.
pub const PAYLOAD_OCTETS: usize = 64;

/// The counts that must be 0 on a path of KTSN.
pub(crate) const HARD_COUNTS: [&str; 4] = ["lost", "early", "duplicates", "reordered"];

/// Figure, the path it is divided by (none: the figure itself), the greatest value.
const BARS: [(&str, Option<Path>, f64); 14] = [
    ("wire_offset_ns.p50", Some(Path::Flannel), 0.10),
    ("wire_offset_ns.p50", Some(Path::FlannelSpin), 0.35),
    ("wire_offset_ns.p50", Some(Path::Bare), 0.14),
    ("wire_offset_ns.p50", Some(Path::BareSpin), 0.65),
    ("wire_jitter_ns.p50", Some(Path::Flannel), 0.30),
    ("wire_jitter_ns.p50", Some(Path::FlannelSpin), 0.50),
    ("latency_ns.p50", Some(Path::Flannel), 0.72),
    ("latency_ns.p50", Some(Path::Bare), 0.85),
    ("transmit_error_ns.p50", None, 100.0),
    ("transmit_error_ns.p90", None, 500.0),
    ("late_over_1us_ratio", None, 0.05),
    ("daemon_cpu_ratio", None, 0.08),
    ("daemon_rss_octets", None, 32.0 * 1024.0 * 1024.0),
    ("early", None, 0.0),
];

/// Bars against the sender of whole frames that takes as much CPU.
const EQUAL_CPU_BARS: [(&str, f64); 2] = [("wire_offset_ns.p50", 1.05), ("wire_offset_ns.p90", 1.05)];

/// Bars against the best of all senders that spin.
const SPINNER_BARS: [(&str, f64); 3] =
    [("late_over_1us_ratio", 1.05), ("wire_offset_ns.p99", 1.0), ("wire_offset_ns.p99_9", 1.5)];
const SPINNERS: [Path; 4] = [Path::PacketSpin, Path::PacketSpinFree, Path::BareSpin, Path::FlannelSpin];

/// The bars of captured frames: figure, the greatest value.
const CAPTURE_BARS: [(&str, f64); 3] =
    [("transmit_error_ns.p50", 150.0), ("late_over_1us_ratio", 0.05), ("early", 0.0)];

/// A qdisc that delivers less is no rival: its set-up is at fault.
const DELIVERED_MIN: f64 = 0.99;

/// Adds the comparisons that the document has the paths for.
pub fn compare(document: &mut Document) {
    let of_ktsn = BARS.map(|(metric, to, bar)| (Path::Ktsn, metric, to, bar));
    let of_capture = CAPTURE_BARS.map(|(metric, bar)| (Path::KtsnCapture, metric, None, bar));
    for (of, metric, to, bar) in of_ktsn.into_iter().chain(of_capture) {
        answer(document, Load::Idle, of, metric, to, Some(bar));
    }
    for (metric, bar) in EQUAL_CPU_BARS {
        answer(document, Load::Idle, Path::Ktsn, metric, Some(Path::PacketSpin), Some(bar));
    }
    for (metric, bar) in SPINNER_BARS {
        if let Some(best) = best_spinner(document, metric) {
            answer(document, Load::Idle, Path::Ktsn, metric, Some(best), Some(bar));
        }
    }
    Path::ALL.into_iter().filter(|path| path.has_qdisc()).for_each(|path| against_qdisc(document, path));
}

/// What the keepers of transmit times are compared by, each figure better the smaller it is: frames lost, frames early, size of the offset
/// at p50 in nanoseconds.
fn keeping(series: &Series) -> Option<[f64; 3]> {
    let offset = series.wire_offset_ns?.p50;
    Some([series.lost? as f64, series.early? as f64, offset.unsigned_abs() as f64])
}

/// Checks that no row of a qdisc's path is at least as good as KTSN in lost and early, and better in its offset.
fn against_qdisc(document: &mut Document, path: Path) {
    let idle = Some(Load::Idle.word());
    let ktsn = document.all_rounds(Path::Ktsn.word(), PAYLOAD_OCTETS, idle).and_then(keeping);
    let Some(ktsn) = ktsn else { return };
    // Of etf a row for each set-up, each with its delta at the end.
    let is_of_path = |series: &&Series| {
        let suffix = series.path.strip_prefix(path.word());
        suffix.is_some_and(|suffix| suffix.is_empty() || suffix.ends_with("us"))
            && (series.round, series.payload_octets) == (Round::All, PAYLOAD_OCTETS)
            && series.load.as_deref() == idle
    };
    let rows: Vec<_> = document.series.iter().filter(is_of_path).collect();
    let delivers = |series: &&&Series| {
        let [lost, sent] = [series.lost, series.frames_sent].map(Option::unwrap_or_default);
        sent > 0 && lost as f64 <= (1.0 - DELIVERED_MIN) * sent as f64
    };
    let mut checks: Vec<Check> = rows
        .iter()
        .filter(delivers)
        .filter_map(|series| {
            let [lost, early, offset] = keeping(series)?;
            let is_better = lost <= ktsn[0] && early <= ktsn[1] && offset < ktsn[2];
            let reason = format!(
                "lost {lost}, early {early}, off by {offset} ns; ktsn {}, {}, {} ns",
                ktsn[0], ktsn[1], ktsn[2]
            );
            Some(Check::of(
                format!("{} keeps times no better than ktsn", series.path),
                !is_better,
                is_better.then_some(reason),
            ))
        })
        .collect();
    if checks.is_empty() && !rows.is_empty() {
        let reason = format!("it delivers less than {} % in each row", DELIVERED_MIN * 100.0);
        checks.push(Check::of(format!("{path} is a rival"), false, Some(reason)));
    }
    document.checks.append(&mut checks);
}

/// The spinner with the least figure.
fn best_spinner(document: &Document, metric: &str) -> Option<Path> {
    let figure = |path: Path| {
        document.all_rounds(path.word(), PAYLOAD_OCTETS, Some(Load::Idle.word()))?.metric(metric)
    };
    let found = SPINNERS.into_iter().filter_map(|path| Some((path, figure(path)?)));
    found.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(path, _)| path)
}

/// Answers one bar at [`PAYLOAD_OCTETS`] where the document has both paths.
pub(crate) fn answer(
    document: &mut Document,
    load: Load,
    of: Path,
    metric: &str,
    to: Option<Path>,
    bar: Option<f64>,
) {
    let has = |path: Path| document.all_rounds(path.word(), PAYLOAD_OCTETS, Some(load.word())).is_some();
    if has(of) && to.is_none_or(has) {
        document.compare(&Question {
            metric,
            payload_octets: PAYLOAD_OCTETS,
            load: Some(load.word()),
            of: of.word(),
            to: to.map(Path::word),
            bar,
        });
    }
}

/// The frames of ktsnd that were lost, early, duplicated, reordered or refused; one sentence for each series and count.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    let is_ours = |path: &str| Path::ALL.iter().any(|known| known.is_served() && known.word() == path);
    for series in document.series.iter().filter(|s| is_ours(&s.path) && s.round == Round::All) {
        let load = series.load.as_deref().filter(|&load| load != Load::Idle.word());
        let path = format!("{}{}", series.path, load.map_or_else(String::new, |load| format!(" ({load})")));
        let octets = series.payload_octets;
        found.extend(faults(series, &format!("{path}, {octets} octets"), &HARD_COUNTS));
    }
    found
}

/// What is wrong with a series of KTSN's: `counts` that are not 0, and frames that were not accepted.
pub(crate) fn faults(series: &Series, name: &str, counts: &[&str]) -> Vec<String> {
    let mut found: Vec<String> =
        series.nonzero(counts).map(|fault| format!("{name}: {fault}, expected 0")).collect();
    if series.frames_sent != series.frames_intended {
        let [sent, intended] = [series.frames_sent, series.frames_intended].map(Option::unwrap_or_default);
        found.push(format!("{name}: {sent} of {intended} frames were accepted"));
    }
    found
}

/// The bars that do not hold, one sentence each.
#[must_use]
pub fn missed(document: &Document) -> Vec<String> {
    let missed = document.comparisons.iter().filter(|comparison| comparison.holds == Some(false));
    missed
        .map(|comparison| {
            let to = comparison.to.as_ref().map_or_else(String::new, |to| format!(" / {to}"));
            let ratio = comparison.ratio.map_or_else(|| "unknown".to_owned(), |ratio| format!("{ratio:.3}"));
            let bar = comparison.bar.unwrap_or(0.0);
            let load = comparison.load.as_deref().filter(|&load| load != Load::Idle.word());
            let load = load.map_or_else(String::new, |load| format!(" ({load})"));
            format!("{} {}{to}{load}: {ratio}, bar {bar}", comparison.metric, comparison.of)
        })
        .collect()
}
