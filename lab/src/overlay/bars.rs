// SPDX-License-Identifier: Apache-2.0
//! What the overlay is held against. In: a document. Out: its comparisons, and what breaks a hard count.
//! Ratios are of medians over the rounds, at 64 octets; beside a load the same ratios are shown without a bar.

use super::crowd::Phases;
use super::turns::COUNTS;
use crate::container::bars::answer;
use crate::container::{self, Load, Path};
use ktsn_measure::results::{Check, Document, Question, Round};

/// Path, figure, the path it is divided by (none: the figure itself), the greatest value.
const BARS: [(Path, &str, Option<Path>, f64); 8] = [
    (Path::Ktsn, "wire_offset_ns.p50", Some(Path::Flannel), 0.09),
    (Path::Ktsn, "wire_offset_ns.p50", Some(Path::BareSpin), 0.6),
    (Path::KtsnShort, "latency_ns.p50", Some(Path::Flannel), 0.60),
    (Path::KtsnShort, "latency_ns.p50", Some(Path::Bare), 0.75),
    (Path::KtsnShort, "before_wake_up_ns.p50", Some(Path::Flannel), BEFORE_WAKE_UP_MAX),
    (Path::Ktsn, "ktsn_cpu_ratio", None, 0.10),
    (Path::KtsnShort, "ktsn_cpu_ratio", None, 0.10),
    (Path::KtsnOvsDpdk, "wire_offset_ns.p50", Some(Path::DpdkVirtioUser), 1.0),
];

/// Everything but the listener's wake-up, of Flannel's.
const BEFORE_WAKE_UP_MAX: f64 = 0.25;

/// Share of frames of the many attachments that may leave more than 1 µs late.
const LATE_MAX: f64 = 0.10;

/// Adds the comparisons that the document has the paths for.
pub fn compare(document: &mut Document) {
    for (of, metric, to, bar) in BARS {
        answer(document, Load::Idle, of, metric, to, Some(bar));
    }
    // Measured one after the other the ratio is only shown; it is judged where both ways take turns.
    answer(document, Load::Idle, Path::KtsnShort, "latency_ns.p50", Some(Path::Ktsn), None);
    super::turns::compare(document);
    for load in Load::ALL {
        for path in [Path::Ktsn, Path::KtsnShort, Path::KtsnOvsDpdk] {
            for metric in COUNTS {
                answer(document, load, path, metric, None, Some(0.0));
            }
        }
    }
    for (of, metric, to, _) in BARS {
        answer(document, Load::Iperf3Udp, of, metric, to, None);
    }
    many_attachments(document);
    super::peers::compare(document);
    document.checks.extend(by_the_other_wake_up(document));
}

/// The bar of the ingress fast path once more, against ourselves. `bpf_redirect_peer` keeps the stamp that the uplink gave, so what is
/// measured there as the wake-up contains the way into the pod. The listener is the same on the paths that are
/// stamped in the pod: the least of their wake-ups stands for the fast path's, and all other time is taken for the way.
fn by_the_other_wake_up(document: &Document) -> Option<Check> {
    let octets = container::bars::PAYLOAD_OCTETS;
    let figure = |path: Path, metric: &str| {
        document.all_rounds(path.word(), octets, Some(Load::Idle.word()))?.metric(metric)
    };
    // Wake-ups differ from run to run: the least one leaves the most to the way.
    let in_pods = [Path::Flannel, Path::FlannelSpin, Path::FlannelOther, Path::Ktsn].into_iter();
    let least = in_pods.filter_map(|path| figure(path, "wake_up_ns.p50")).reduce(f64::min)?;
    let way = figure(Path::KtsnShort, "latency_ns.p50")? - least;
    let ratio = way / figure(Path::Flannel, "before_wake_up_ns.p50")?;
    let reason = format!(
        "{ratio:.3}, bar {BEFORE_WAKE_UP_MAX}: latency p50 of ktsn-short less the least wake-up p50 of the paths whose stamp is the pod's, over latency - wake-up of flannel"
    );
    let name = "everything but the listener's wake-up, with the stamp taken in the pod";
    Some(Check::of(name, ratio <= BEFORE_WAKE_UP_MAX, Some(reason)))
}

fn many_attachments(document: &mut Document) {
    let mut ask = |phases: Phases, metric, bar| {
        let name = phases.word();
        let octets = container::bars::PAYLOAD_OCTETS;
        let load = Some(Load::Idle.word());
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
    found.extend(super::turns::violations(document));
    let crowd = |path: &str| Phases::ALL.iter().any(|phases| phases.word() == path);
    for series in document.series.iter().filter(|series| crowd(&series.path) && series.round == Round::All) {
        let nonzero = series.nonzero(&COUNTS);
        found.extend(nonzero.map(|fault| format!("{}: {fault}, expected 0", series.path)));
        if series.frames_received != series.frames_intended {
            let [seen, intended] =
                [series.frames_received, series.frames_intended].map(Option::unwrap_or_default);
            found.push(format!(
                "{}: the far end saw {seen} of {intended} frames; dropped: {:?}",
                series.path, series.dropped
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::results::{CheckOutcome, Series};
    use ktsn_measure::stats::Statistics;

    fn series(path: &str, load: Load, latency: i64, wake_up: i64) -> Series {
        let at = |p50| Some(Statistics { p50, ..Statistics::default() });
        Series {
            path: path.to_owned(),
            payload_octets: 64,
            load: Some(load.word().to_owned()),
            frames_intended: Some(10),
            frames_sent: Some(10),
            frames_received: Some(10),
            lost: Some(0),
            duplicates: Some(0),
            early: Some(0),
            reordered: Some(0),
            latency_ns: at(latency),
            wake_up_ns: at(wake_up),
            before_wake_up_ns: at(latency - wake_up),
            ..Series::default()
        }
    }

    fn document(series: Vec<Series>) -> Document {
        let mut document = Document::new("overlay", Vec::new());
        document.series = series;
        compare(&mut document);
        document
    }

    #[test]
    fn the_short_way_is_judged_by_its_own_stamp_and_by_the_pods() {
        let idle = |path: Path, latency, wake_up| series(path.word(), Load::Idle, latency, wake_up);
        let mut all = vec![
            idle(Path::Flannel, 64_000, 24_000),
            idle(Path::Ktsn, 34_000, 23_000),
            // Its stamp is the uplink's: 2 µs. By the pod's it would be 30 - 23.
            idle(Path::KtsnShort, 30_000, 28_000),
        ];
        let ratio = |document: &Document| {
            let held = document.comparisons.iter().find(|c| c.metric == "before_wake_up_ns.p50").unwrap();
            (held.ratio.unwrap(), held.holds)
        };
        let good = document(all.clone());
        assert_eq!(ratio(&good), (0.05, Some(true)));
        assert_eq!(good.checks[0].outcome, CheckOutcome::Passed);
        assert!(good.checks[0].reason.as_ref().unwrap().starts_with("0.175"), "{:?}", good.checks);
        all[2] = idle(Path::KtsnShort, 36_000, 34_000);
        let slow = document(all);
        assert_eq!((ratio(&slow).1, slow.checks[0].outcome), (Some(true), CheckOutcome::Failed));
        assert!(document(Vec::new()).checks.is_empty() && document(Vec::new()).comparisons.is_empty());
    }

    #[test]
    fn counts_are_hard_under_every_load_and_for_every_attachment() {
        let crowd = Phases::Planned.word();
        let good = |path: &str, load| series(path, load, 1, 1);
        let fine = document(vec![good("ktsn", Load::Iperf3Udp), good(crowd, Load::Idle)]);
        assert_eq!(violations(&fine), Vec::<String>::new());
        // Under load the ratios are shown, and the counts judged.
        let judged =
            fine.comparisons.iter().filter(|c| c.load.as_deref() == Some("iperf3-udp") && c.bar.is_some());
        assert_eq!(judged.count(), COUNTS.len());
        for (series, word) in [
            (
                Series { early: Some(1), ..good("ktsn", Load::Iperf3Udp) },
                "ktsn (iperf3-udp), 64 octets: early is 1",
            ),
            (Series { lost: Some(2), ..good(crowd, Load::Idle) }, "lost is 2"),
            (Series { frames_received: Some(9), ..good(crowd, Load::Idle) }, "saw 9 of 10"),
        ] {
            let found = violations(&document(vec![series]));
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        }
    }
}
