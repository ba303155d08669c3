// SPDX-License-Identifier: Apache-2.0
//! The verdict: in: comparisons, checks and counts of a document. Out: the sentence at the top of the page, and
//! the figures beside it. A missed bar is never hidden behind those that hold.

use super::figures::{count, ratio, significant};
use crate::results::{CheckOutcome, Comparison, Document, Series};
use crate::table::realtime::basis;
use ktsn_realtime::RealTime;
use ktsn_realtime::verdict::Outcome;

/// How the verdict looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Good,
    Bad,
    /// There is nothing to judge.
    Neutral,
}

/// The verdict of one document, as plain text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) mood: Mood,
    pub(super) line: String,
    /// One sentence for each bar that is missed and each check that failed.
    pub(super) misses: Vec<String>,
}

/// `ktsn / flannel`, or `ktsn` alone when it is held against a fixed bar.
pub(super) fn pair(comparison: &Comparison) -> String {
    comparison.to.as_ref().map_or_else(|| comparison.of.clone(), |to| format!("{} / {to}", comparison.of))
}

/// A metric in words: `wire_offset_ns.p50` is `wire offset p50`.
pub(super) fn metric(name: &str) -> String {
    let (quantity, number) = name.split_once('.').unwrap_or((name, ""));
    let unit = ["_ns", "_ratio", "_octets"].into_iter().find_map(|unit| quantity.strip_suffix(unit));
    let quantity = unit.unwrap_or(quantity).replace('_', " ");
    if number.is_empty() { quantity } else { format!("{quantity} {}", number.replace('_', ".")) }
}

/// A ratio as it is; a figure that is held against a fixed bar, with its unit.
pub(super) fn figure(comparison: &Comparison, value: Option<f64>) -> String {
    let Some(value) = value else { return ratio(None) };
    let quantity = comparison.metric.split('.').next().unwrap_or_default();
    match () {
        () if comparison.to.is_some() => ratio(Some(value)),
        () if quantity.ends_with("_ns") && value.abs() < 1000.0 => format!("{} ns", ratio(Some(value))),
        () if quantity.ends_with("_ns") => format!("{} µs", ratio(Some(value / 1000.0))),
        () if quantity.ends_with("_ratio") => format!("{} %", ratio(Some(value * 100.0))),
        () if quantity.ends_with("_octets") && value.abs() < 1_048_576.0 => {
            format!("{} KiB", significant(value / 1024.0))
        }
        () if quantity.ends_with("_octets") => format!("{} MiB", significant(value / 1_048_576.0)),
        () => ratio(Some(value)),
    }
}

fn miss(comparison: &Comparison) -> String {
    let what = metric(&comparison.metric);
    let at = comparison.payload_octets.map_or_else(String::new, |octets| format!(" at {octets} B"));
    let shown = figure(comparison, comparison.ratio);
    let bar = |bar| format!("; the bar is {}", figure(comparison, Some(bar)));
    let bar = comparison.bar.map_or_else(String::new, bar);
    let of = &comparison.of;
    match (&comparison.to, comparison.ratio) {
        (to, None) => {
            let to = to.as_ref().map_or_else(String::new, |to| format!(" against {to}"));
            format!("The {what} of {of}{to}{at} was not measured{bar}.")
        }
        (Some(to), Some(_)) => format!("The {what} of {of} is {shown} times that of {to}{at}{bar}."),
        (None, Some(_)) => format!("The {what} of {of} is {shown}{at}{bar}."),
    }
}

fn plural(number: usize, one: &str, many: &str) -> String {
    if number == 1 { format!("1 {one}") } else { format!("{number} {many}") }
}

/// The verdict on a run of `ktsn rt`.
fn of_realtime(found: &RealTime) -> Verdict {
    let of = |outcome| found.verdicts.iter().filter(|verdict| verdict.judgement.outcome == outcome).count();
    let (pass, tight, fail) = (of(Outcome::Pass), of(Outcome::Tight), of(Outcome::Fail));
    let mood = match (found.verdicts.is_empty(), fail) {
        (true, _) => Mood::Neutral,
        (false, 0) => Mood::Good,
        _ => Mood::Bad,
    };
    let skipped = found.cells.iter().filter(|cell| cell.skip.is_some()).count();
    let skipped = if skipped > 0 {
        format!("; {skipped} of {} cells skipped", found.cells.len())
    } else {
        String::new()
    };
    let text = format!("{pass} PASS, {tight} TIGHT, {fail} FAIL{skipped}.");
    Verdict { mood, line: text, misses: vec![format!("{}.", basis(found))] }
}

/// The verdict on `document`.
pub(super) fn verdict(document: &Document) -> Verdict {
    if let Some(found) = &document.realtime {
        return of_realtime(found);
    }
    let judged: Vec<&Comparison> = document.comparisons.iter().filter(|c| c.holds.is_some()).collect();
    let missed: Vec<&&Comparison> = judged.iter().filter(|c| c.holds == Some(false)).collect();
    let failed: Vec<_> =
        document.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed).collect();
    let mut misses: Vec<String> = missed.iter().map(|comparison| miss(comparison)).collect();
    misses.extend(failed.iter().map(|check| {
        let reason = check.reason.as_ref().map_or_else(String::new, |reason| format!(": {reason}"));
        format!("The check {} failed{reason}.", check.name)
    }));
    let mut parts = Vec::new();
    match (judged.len(), missed.len()) {
        (0, _) => {}
        (1, 0) => parts.push("The one bar is held".to_owned()),
        (all, 0) => parts.push(format!("All {all} bars are held")),
        (all, missed) => {
            let held = plural(all - missed, "bar is held", "bars are held");
            parts.push(format!("{held}, {missed} of {all} missed"));
        }
    }
    let checks = document.checks.len();
    if checks > 0 {
        let skipped = document.checks.iter().filter(|check| check.outcome == CheckOutcome::Skipped).count();
        let skips = if skipped > 0 { format!(", {skipped} skipped") } else { String::new() };
        let passed = plural(checks - failed.len() - skipped, "check passed", "checks passed");
        parts.push(format!("{passed}, {} failed{skips}", failed.len()));
    }
    let mood = match (parts.is_empty(), misses.is_empty()) {
        (true, _) => Mood::Neutral,
        (false, true) => Mood::Good,
        (false, false) => Mood::Bad,
    };
    if parts.is_empty() {
        parts.push("Measured, not judged: this document sets no bars".to_owned());
    }
    Verdict { mood, line: format!("{}.", parts.join("; ")), misses }
}

/// The frame counts of all paths in one sentence each; only what the document states.
pub(super) fn counts(document: &Document) -> Vec<String> {
    let series = document.summary();
    let mut sentences = Vec::new();
    let sum = |values: Vec<Option<u64>>| values.into_iter().flatten().reduce(u64::saturating_add);
    let sent = sum(series.iter().map(|s| s.frames_sent).collect());
    let received = sum(series.iter().map(|s| s.frames_received).collect());
    if let (Some(sent), Some(received)) = (sent, received) {
        sentences.push(format!("{} of {} frames sent were received", count(received), count(sent)));
    }
    type Field = fn(&Series) -> Option<u64>;
    let fields: [(&str, Field); 4] = [
        ("lost", |s| s.lost),
        ("early", |s| s.early),
        ("duplicated", |s| s.duplicates),
        ("reordered", |s| s.reordered),
    ];
    for (word, field) in fields {
        let Some(total) = sum(series.iter().map(|s| field(s)).collect()) else { continue };
        if total == 0 {
            sentences.push(format!("none {word}"));
            continue;
        }
        let mut paths: Vec<String> = Vec::new();
        for entry in series.iter().filter(|s| field(s).is_some_and(|value| value > 0)) {
            if !paths.contains(&entry.path) {
                paths.push(entry.path.clone());
            }
        }
        sentences.push(format!("{} {word} ({})", count(total), paths.join(", ")));
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::results::Check;

    fn comparison(holds: Option<bool>) -> Comparison {
        Comparison {
            metric: "wire_offset_ns.p50".into(),
            payload_octets: Some(64),
            of: "ktsn".into(),
            to: Some("flannel".into()),
            ratio: Some(0.12),
            bar: Some(0.1),
            holds,
            ..Comparison::default()
        }
    }

    #[test]
    fn a_missed_bar_is_told_in_words() {
        let comparisons = vec![comparison(Some(true)), comparison(Some(false)), comparison(None)];
        let document = Document { comparisons, ..Document::default() };
        let verdict = verdict(&document);
        assert_eq!(verdict.mood, Mood::Bad);
        assert_eq!(verdict.line, "1 bar is held, 1 of 2 missed.");
        let sentence = "The wire offset p50 of ktsn is 0.12 times that of flannel at 64 B; the bar is 0.1.";
        assert_eq!(verdict.misses, [sentence]);
    }

    #[test]
    fn a_fixed_bar_has_a_unit_and_a_missing_figure_is_said_to_be_missing() {
        let fixed = |metric: &str, ratio, bar| Comparison {
            metric: metric.into(),
            to: None,
            ratio,
            bar: Some(bar),
            ..comparison(Some(false))
        };
        let text = miss(&fixed("transmit_error_ns.p90", Some(1520.0), 500.0));
        assert_eq!(text, "The transmit error p90 of ktsn is 1.52 µs at 64 B; the bar is 500 ns.");
        let text = miss(&fixed("daemon_cpu_ratio", Some(0.091), 0.08));
        assert_eq!(text, "The daemon cpu of ktsn is 9.1 % at 64 B; the bar is 8 %.");
        let text = miss(&fixed("early", None, 0.0));
        assert_eq!(text, "The early of ktsn at 64 B was not measured; the bar is 0.");
    }

    #[test]
    fn nothing_judged_is_no_success() {
        assert_eq!(verdict(&Document::default()).mood, Mood::Neutral);
        let document = Document { comparisons: vec![comparison(None)], ..Document::default() };
        assert_eq!(verdict(&document).mood, Mood::Neutral);
        let check = Check { name: "x".into(), outcome: CheckOutcome::Failed, reason: Some("y".into()) };
        let document = Document {
            checks: vec![check],
            comparisons: vec![comparison(Some(true))],
            ..Document::default()
        };
        assert_eq!(verdict(&document).mood, Mood::Bad);
        assert_eq!(verdict(&document).line, "The one bar is held; 0 checks passed, 1 failed.");
    }

    #[test]
    fn counts_name_the_paths_that_lost_frames() {
        let series = |path: &str, lost| Series {
            path: path.into(),
            frames_sent: Some(5000),
            frames_received: Some(5000 - lost),
            lost: Some(lost),
            ..Series::default()
        };
        let document = Document { series: vec![series("a", 0), series("b", 3)], ..Document::default() };
        assert_eq!(
            counts(&document),
            ["9\u{202f}997 of 10\u{202f}000 frames sent were received", "3 lost (b)"]
        );
    }
}
