// SPDX-License-Identifier: Apache-2.0
//! What the experiment `gates` is held against. In: rounds, a document. Out: its checks, comparisons and violations.

use super::PATH;
use super::round::Observed;
use super::traffic::STREAMS;
use ktsn_measure::results::{Check, CheckOutcome, Document, Micro, Question, Round};
use ktsn_measure::stats::Statistics;
use ktsn_measure::watchdog::{GAP_MIN, GAP_MIN_BUSY, Look};
use ktsn_time::Nanos;

/// Figure and the greatest value, for every class.
const BARS: [(&str, f64); 4] = [
    ("outside_window", 0.0),
    ("transmission_overrun_ratio", 0.001),
    ("transmission_overrun_unproven", 0.0),
    ("wire_outside_window_ratio", 0.01),
];
/// Share of class 5's frames that the judge must find outside when nothing holds them.
const CONTROL_MIN: f64 = 0.9;
/// The class that asks for an instant at which its gate is closed.
const CONTROL_CLASS: u8 = 5;

/// Whether the judge sees a daemon without a schedule.
pub(super) fn control(observed: &Observed) -> Check {
    let outside: u64 = of_class(observed, CONTROL_CLASS, |class| class.figures.outside_window);
    let all: u64 = of_class(observed, CONTROL_CLASS, |class| class.figures.wire_seen);
    let seen = all > 0 && outside as f64 >= all as f64 * CONTROL_MIN;
    let text = format!("{outside} of {all} frames of class {CONTROL_CLASS} found outside their window");
    Check {
        name: "control: without a schedule the judge finds frames outside their window".to_owned(),
        outcome: if seen { CheckOutcome::Passed } else { CheckOutcome::Failed },
        reason: Some(text),
    }
}

fn of_class(observed: &Observed, class: u8, of: fn(&super::round::Class) -> u64) -> u64 {
    observed.classes.iter().filter(|one| one.series.class == Some(class)).map(of).sum()
}

/// What is not of one class: the watchdog, the hand-overs, what was dropped.
pub(super) fn figures(document: &mut Document, observed: &[Observed]) {
    let mut distribution = |name: &str, samples: Vec<Nanos>| {
        let count = samples.len() as u64;
        if let Some(statistics) = Statistics::of(samples) {
            document.micro.push(Micro {
                name: name.to_owned(),
                unit: "ns".to_owned(),
                p50: statistics.p50 as f64,
                p90: Some(statistics.p90 as f64),
                samples: count,
            });
        }
    };
    let calls = observed.iter().flat_map(|one| one.calls.iter().copied());
    distribution("hand_over.call", calls.collect());
    let looks = || observed.iter().flat_map(|one| &one.watchdog.looks);
    distribution("watchdog.lateness", looks().map(Look::late_by).collect());
    let count = looks().count() as u64;
    if count > 0 {
        let gaps = looks().filter(|look| look.late_by() > GAP_MIN).count();
        let cpu = observed.iter().map(|one| one.watchdog.cpu_ratio).sum::<f64>() / observed.len() as f64;
        let mut figure = |name: &str, unit: &str, p50: f64, samples: u64| {
            let (name, unit) = (name.to_owned(), unit.to_owned());
            document.micro.push(Micro { name, unit, p50, p90: None, samples });
        };
        figure("watchdog.gaps", "1", gaps as f64, count);
        figure("watchdog.cpu", "CPUs", cpu, count);
        let in_calls = || observed.iter().flat_map(|one| one.in_calls.iter().copied());
        let gaps = in_calls().filter(|late_by| *late_by > GAP_MIN_BUSY).count();
        figure("watchdog.gaps_in_calls", "1", gaps as f64, in_calls().count() as u64);
    }
    // What the daemon says of itself stands beside the verdicts and decides none of them.
    let rounds = observed.len() as u64;
    let mut told = |name: &str, unit: &str, p50: f64| {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        document.micro.push(Micro { name, unit, p50, p90: None, samples: rounds });
    };
    let overruns: u64 = observed.iter().flat_map(|one| &one.port.transmission_overrun).sum();
    told("ktsnd.transmission_overrun", "1", overruns as f64);
    told("ktsnd.put_back", "1", observed.iter().map(|one| one.port.put_back).sum::<u64>() as f64);
    let hand_over = observed.iter().map(|one| one.port.hand_over_ns).max().unwrap_or(0);
    told("ktsnd.hand_over", "ns", hand_over as f64);
    let unseen: u64 = observed.iter().flat_map(|one| &one.classes).map(|class| class.figures.unseen).sum();
    document.checks.push(check(
        "the trace shows the hand-over of every frame",
        (unseen > 0).then(|| format!("{unseen} frames lie in no system call of the worker")),
    ));
    let of_daemon = document.series.iter().filter(|series| series.round == Round::All);
    let reasons: Vec<String> = of_daemon
        .flat_map(|series| series.dropped.iter().chain(&series.bypassed))
        .map(|(reason, count)| format!("{reason}: {count}"))
        .collect();
    let told = (!reasons.is_empty()).then(|| reasons.join(", "));
    document.checks.push(check("no frame was dropped or left to the kernel", told));
}

fn check(name: &str, fault: Option<String>) -> Check {
    let outcome = if fault.is_none() { CheckOutcome::Passed } else { CheckOutcome::Failed };
    Check { name: name.to_owned(), outcome, reason: fault }
}

/// Adds the comparisons.
pub fn compare(document: &mut Document) {
    for stream in STREAMS {
        for (metric, bar) in BARS {
            document.compare(&Question {
                metric,
                payload_octets: stream.payload_octets,
                load: None,
                of: PATH,
                to: None,
                bar: Some(bar),
            });
        }
    }
}

/// What must never be: a frame outside its window, early, lost, doubled, out of order; a failed check.
#[must_use]
pub fn violations(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    for series in document.series.iter().filter(|series| series.round == Round::All) {
        for metric in ["outside_window", "early", "lost", "duplicates", "reordered"] {
            let count = series.metric(metric);
            if count != Some(0.0) {
                let count = count.map_or_else(|| "unknown".to_owned(), |count| count.to_string());
                let class = series.class.unwrap_or(0);
                found.push(format!("class {class}: {metric} is {count}, expected 0"));
            }
        }
    }
    let failed = document.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed);
    found.extend(
        failed.map(|check| format!("{}: {}", check.name, check.reason.as_deref().unwrap_or("failed"))),
    );
    found
}
