// SPDX-License-Identifier: Apache-2.0
//! Outcomes as text for people and as a results document (`ktsn.results/1`) for tools.

use std::collections::BTreeMap;
use std::fmt::Write;

use ktsn_measure::results::{Check, CheckOutcome, Document};

use crate::broken::Broken;
use crate::check::RULES;
use crate::figures::{Distribution, Figures};
use crate::plan::BEGAN;
use crate::run::Outcome;
use crate::scenario::{Babbling, METER, Saturated, VICTIM};

/// Broken rules shown of one run.
const SHOWN_MAX: usize = 12;

/// What to print of a run that broke a rule: seed, rules, what happened last, and how to repeat it.
#[must_use]
pub fn failure(outcome: &Outcome, broken: Broken) -> String {
    let mut text = format!("seed {} broke {} rule(s):\n", outcome.seed, outcome.violations.len());
    for violation in outcome.violations.iter().take(SHOWN_MAX) {
        let since = violation.at.saturating_sub(BEGAN);
        let (ms, ns) = (since / 1_000_000, since % 1_000_000);
        let _ = writeln!(text, "  {:>6}.{ns:06} ms  {}: {}", ms, violation.rule, violation.detail);
    }
    if outcome.violations.len() > SHOWN_MAX {
        let _ = writeln!(text, "  and {} more", outcome.violations.len() - SHOWN_MAX);
    }
    text.push_str("what happened last before the first was found:\n");
    for line in &outcome.last {
        let _ = writeln!(text, "  {line}");
    }
    let part = if broken == Broken::Nothing { String::new() } else { format!(" --break {broken}") };
    let _ =
        writeln!(text, "repeat it with: cargo run -p ktsn-sim -- --seed {}{part} --verbose", outcome.seed);
    text
}

fn row(text: &mut String, name: &str, distribution: &Distribution) {
    let _ = writeln!(
        text,
        "  {name:<14} {:>9} {:>9} {:>9} {:>9}",
        distribution.quantile(500),
        distribution.quantile(990),
        distribution.quantile(999),
        distribution.max()
    );
}

/// Latency and jitter per class, in nanoseconds.
#[must_use]
pub fn figures_table(figures: &Figures) -> String {
    let mut text = String::new();
    for class in &figures.classes {
        let arrived = class.transmit_error.count();
        let _ = writeln!(text, "class {}: {} pushed, {arrived} arrived (ns)", class.class, class.pushed);
        let _ = writeln!(text, "  {:<14} {:>9} {:>9} {:>9} {:>9}", "", "p50", "p99", "p99.9", "max");
        row(&mut text, "transmit_error", &class.transmit_error);
        row(&mut text, "wire_offset", &class.wire_offset);
        row(&mut text, "wire_jitter", &class.wire_jitter);
    }
    text
}

/// The scenario's table: per mode and class what was measured, and the bound.
#[must_use]
pub fn saturated_table(runs: &[Saturated]) -> String {
    let mut text = String::from(
        "1 Gbit/s, saturated by best effort; first bit − TxTime, and its change from frame to frame (ns)\n",
    );
    let _ = writeln!(
        text,
        "{:<10} {:<5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}",
        "uplink", "class", "frames", "p50", "max", "jit p50", "jit p99", "jit max", "outside", "bound"
    );
    for run in runs {
        let outside = run.outcome.violations.iter().filter(|violation| violation.rule == "window").count();
        for class in run.outcome.figures.classes.iter().filter(|class| class.class > 0) {
            let _ = writeln!(
                text,
                "{:<10} {:<5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>8} {:>9}",
                run.mode.word(),
                class.class,
                class.wire_offset.count(),
                class.wire_offset.quantile(500),
                class.wire_offset.max(),
                class.wire_jitter.quantile(500),
                class.wire_jitter.quantile(990),
                class.wire_jitter.max(),
                outside,
                run.frame_max + run.kernel_max,
            );
        }
    }
    if let Some(run) = runs.iter().find(|run| run.kernel_max > 0) {
        let _ = writeln!(
            text,
            "bound: the longest frame, {} ns; shared: and what the kernel may have put into the device, {} ns",
            run.frame_max, run.kernel_max
        );
    }
    text
}

/// What a babbling tenant does to another one: per class of the babbler what its meter let through, where the other
/// tenant's frames began, and the bound.
#[must_use]
pub fn babbling_table(runs: &[Babbling]) -> String {
    let mut text = format!(
        "1 Gbit/s; a tenant babbles behind a meter of {} Mbit/s and {} octets; frames of class {VICTIM}, first bit − TxTime (ns)\n",
        METER.rate / 1_000_000,
        METER.burst
    );
    let _ = writeln!(
        text,
        "{:<8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
        "babbler", "babbled", "passed", "frames", "p50", "p99", "max", "bound"
    );
    for run in runs {
        let Some(victim) = run.outcome.figures.classes.iter().find(|c| c.class == VICTIM && c.pushed > 0)
        else {
            continue;
        };
        let (pushed, arrived) = (victim.pushed as u64, victim.wire_offset.count() as u64);
        let _ = writeln!(
            text,
            "{:<8} {:>9} {:>9} {:>7} {:>9} {:>9} {:>9} {:>9}",
            run.class,
            run.outcome.published - pushed,
            run.outcome.arrived - arrived,
            arrived,
            victim.wire_offset.quantile(500),
            victim.wire_offset.quantile(990),
            victim.wire_offset.max(),
            run.bound,
        );
    }
    text
}

/// A results document with one check per rule; `broken` tells why one failed.
#[must_use]
pub fn document(
    broken: &BTreeMap<&'static str, String>,
    seed: u64,
    seeds: u64,
    command: Vec<String>,
) -> Document {
    let mut document = Document::new("sim", command);
    document.parameters.insert("seed".to_owned(), seed.into());
    document.parameters.insert("seeds".to_owned(), seeds.into());
    for (rule, says) in RULES {
        let reason = broken.get(rule).cloned();
        let outcome = if reason.is_some() { CheckOutcome::Failed } else { CheckOutcome::Passed };
        document.checks.push(Check { name: format!("sim.{rule}: {says}"), outcome, reason });
    }
    document
}
