// SPDX-License-Identifier: Apache-2.0
//! What the experiment `gates` is held against. In: rounds, a document. Out: its checks, comparisons and violations.

use super::plan::PATH;
use super::round::{Class, RoundResult};
use super::traffic::STREAMS;
use ktsn_measure::results::{Check, CheckOutcome, Document, Micro, Question, Round};
use ktsn_measure::stats::Statistics;
use ktsn_measure::watchdog::{GAP_MIN, Look, STALL_MIN};
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

/// How late the gates of the second control are: more than the daemon ever keeps free for a hand-over, so that its guard bands are
/// gone and its frames begin right up to the close and after it.
pub(super) const GATES_LATE_BY: Nanos = Nanos::from_micros(75);
/// Unproven overruns that must be found for the control to say anything.
const UNPROVEN_MIN: u64 = 20;
/// How many in a hundred of the frames that were too late may be excused as the machine's fault: some do meet a stall.
const EXCUSED_MAX_PERCENT: u64 = 10;

/// Whether the judge sees that gates close too late, instead of calling it the machine's fault.
pub(super) fn late_control(observed: &RoundResult) -> Check {
    let sum = |of: fn(&Class) -> u64| observed.classes.iter().map(of).sum::<u64>();
    let late = sum(|class| class.figures.outside_window + class.figures.overruns);
    let unproven = sum(|class| class.figures.overruns_unproven);
    let excused = sum(|class| class.figures.overruns) - unproven;
    let caught = unproven >= UNPROVEN_MIN && excused * 100 <= late * EXCUSED_MAX_PERCENT;
    let text =
        format!("{late} frames too late: {unproven} unproven overruns, {excused} excused, the rest outside");
    let name = format!("control: gates that close {GATES_LATE_BY} late are not taken for a stalled machine");
    Check::of(name, caught, Some(text))
}

/// Whether the judge sees a daemon without a schedule.
pub(super) fn control(observed: &RoundResult) -> Check {
    let outside: u64 = of_class(observed, CONTROL_CLASS, |class| class.figures.outside_window);
    let all: u64 = of_class(observed, CONTROL_CLASS, |class| class.figures.wire_seen);
    let seen = all > 0 && outside as f64 >= all as f64 * CONTROL_MIN;
    let text = format!("{outside} of {all} frames of class {CONTROL_CLASS} found outside their window");
    let name = "control: without a schedule the judge finds frames outside their window";
    Check::of(name, seen, Some(text))
}

fn of_class(observed: &RoundResult, class: u8, of: fn(&Class) -> u64) -> u64 {
    observed.classes.iter().filter(|one| one.class == class).map(of).sum()
}

/// What is not of one class: the watchdog, the hand-overs, what was dropped.
pub(super) fn figures(document: &mut Document, observed: &[RoundResult]) {
    let mut distribution = |name: &str, samples: Vec<Nanos>| {
        let count = samples.len() as u64;
        if let Some(statistics) = Statistics::of(samples) {
            document.micro.push(Micro::distribution(name, &statistics, count));
        }
    };
    let calls = observed.iter().flat_map(|one| one.calls.iter().copied());
    distribution("hand_over.call", calls.collect());
    let to_wire = || observed.iter().flat_map(|one| one.to_wire.iter().copied());
    distribution("hand_over.to_wire", to_wire().collect());
    let looks = || observed.iter().flat_map(|one| &one.watchdog.looks);
    distribution("watchdog.lateness", looks().map(Look::late_by).collect());
    // How often each rule's evidence is there at all: the chance that one holds by accident.
    let mut share = |name: &str, samples: Vec<Nanos>, over: Nanos| {
        if !samples.is_empty() {
            let found = samples.iter().filter(|sample| **sample > over).count();
            document.micro.push(Micro::figure(name, "1", found as f64, samples.len() as u64));
        }
    };
    share("watchdog.gaps", looks().map(Look::late_by).collect(), GAP_MIN);
    share("hand_over.stalls", to_wire().collect(), STALL_MIN);
    if looks().next().is_some() {
        let cpu = observed.iter().map(|one| one.watchdog.cpu_ratio).sum::<f64>() / observed.len() as f64;
        document.micro.push(Micro::figure("watchdog.cpu", "CPUs", cpu, looks().count() as u64));
    }
    let by_stall: u64 = all_classes(observed).map(|class| class.figures.overruns_by_stall).sum();
    document.micro.push(Micro::figure(
        "overruns.proven_by_stall",
        "1",
        by_stall as f64,
        all_classes(observed).map(|class| class.figures.overruns).sum(),
    ));
    stated_by_daemon(document, observed);
    checks(document, observed);
}

fn all_classes(observed: &[RoundResult]) -> impl Iterator<Item = &Class> {
    observed.iter().flat_map(|one| &one.classes)
}

/// What the daemon says of itself stands beside the verdicts and decides none of them.
fn stated_by_daemon(document: &mut Document, observed: &[RoundResult]) {
    let rounds = observed.len() as u64;
    let mut add = |name: &str, unit: &str, p50: f64| {
        document.micro.push(Micro::figure(name, unit, p50, rounds));
    };
    let overruns: u64 = observed.iter().flat_map(|one| &one.port.transmission_overrun).sum();
    add("ktsnd.transmission_overrun", "1", overruns as f64);
    add("ktsnd.put_back", "1", observed.iter().map(|one| one.port.put_back).sum::<u64>() as f64);
    let hand_over = observed.iter().map(|one| one.port.hand_over_ns).max().unwrap_or(0);
    add("ktsnd.hand_over", "ns", hand_over as f64);
}

fn checks(document: &mut Document, observed: &[RoundResult]) {
    let unseen: u64 = all_classes(observed).map(|class| class.figures.unseen).sum();
    document.checks.push(Check::unless(
        "the trace shows the hand-over of every frame",
        (unseen > 0).then(|| format!("{unseen} frames lie in no system call of the worker")),
    ));
    let of_daemon = document.series.iter().filter(|series| series.round == Round::All);
    let reasons: Vec<String> = of_daemon
        .flat_map(|series| series.dropped.iter().chain(&series.bypassed))
        .map(|(reason, count)| format!("{reason}: {count}"))
        .collect();
    let fault = (!reasons.is_empty()).then(|| reasons.join(", "));
    document.checks.push(Check::unless("no frame was dropped or left to the kernel", fault));
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
        let class = series.class.unwrap_or(0);
        let nonzero = series.nonzero(&["outside_window", "early", "lost", "duplicates", "reordered"]);
        found.extend(nonzero.map(|fault| format!("class {class}: {fault}, expected 0")));
    }
    let failed = document.checks.iter().filter(|check| check.outcome == CheckOutcome::Failed);
    found.extend(
        failed.map(|check| format!("{}: {}", check.name, check.reason.as_deref().unwrap_or("failed"))),
    );
    found
}
