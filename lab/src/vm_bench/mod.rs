// SPDX-License-Identifier: Apache-2.0
//! The experiment `vm`: a publisher and a subscriber in guests on two hosts.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records. Each row is one run: publisher and subscriber boot (or start in
//! the hosts' namespaces), the frames of all payloads follow each other, both say what they saw. Rows are interleaved in a round. Where
//! nothing keeps the guests' clocks together, the latency of a frame is known above the fastest one only (`align.rs`).

mod align;
pub mod bars;
mod counters;
mod ends;
mod far;
mod figures;
mod one_run;
mod plan;
mod script;
mod site;
mod spikes;
mod subscriber;
mod tap;

pub use far::serve;
pub use plan::{Datapath, Keeper, Load, Plan, Row};

use crate::error::LabError;
use crate::exclusive::VOID_RULE;
use crate::experiment::{Event, Outcome, Watch, repeat_void};
use crate::observations::DEADLINE;
use crate::remote::hosts::Clocks;
use crate::vm::schedule_scene::MAGNITUDE_MEANS;
use far::Apart;
use figures::Figures;
use ktsn_measure::datapaths::SPIKES;
use ktsn_measure::results::{Check, Document};
use one_run::one_run;
use spikes::Spikes;
use std::path::Path;

/// How long the publication measured each row.
const PUBLISHED_SECONDS: f64 = 100.0;

/// Measures.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    plan.setup.tools.check_daemon()?;
    let (_lock, directory) = plan.setup.begin(watch)?;
    let mut document = Document::new("vm", plan.setup.command.clone());
    describe(plan, &mut document);
    let (mut other, no_guests) = set_up(plan, directory.path(), watch)?;
    let (mut all, mut runs) = (Vec::new(), Vec::new());
    let (mut impossible, mut spikes) = (leave_out(plan, no_guests, &mut document), Spikes::default());
    for round in 1..=plan.rounds {
        let mut refusals = plan.setup.wait_until_quiet(watch)?;
        if let Some(other) = &mut other {
            watch(Event::Step("waiting for the other host to be quiet"));
            refusals += other.apart.wait_until_quiet()?;
        }
        for row in plan.rows() {
            let name = format!("{} ({})", row.path(), row.load);
            if impossible.contains(&row) {
                watch(Event::Done);
                continue;
            }
            watch(Event::Step(&format!("round {round}, {name}")));
            let measured = repeat_void(&name, watch, || {
                let apart = other.as_mut().map(|other| &mut other.apart);
                let figures = one_run(plan, row, round, directory.path(), apart)?;
                let fault = figures.fault.clone();
                Ok((figures, fault))
            });
            match measured {
                Ok((figures, voided)) => {
                    let Figures { series, runs: records, account, spikes: found, .. } = figures;
                    spikes.append(found);
                    let voided_rounds = Some(voided + u64::from(refusals));
                    all.extend(
                        series.into_iter().map(|one| ktsn_measure::results::Series { voided_rounds, ..one }),
                    );
                    runs.extend(records);
                    document.checks.push(account);
                }
                Err(LabError::Impossible { what, remedy }) => {
                    document.checks.push(Check::skipped(name, format!("{what}; remedy: {remedy}")));
                    impossible.push(row);
                }
                Err(error) => return Err(error),
            }
            watch(Event::Done);
        }
    }
    if all.is_empty() {
        let reason = |check: &Check| check.reason.clone().unwrap_or_default();
        let reasons = document.checks.iter().map(|check| format!("\n  {}: {}", check.name, reason(check)));
        return Err(LabError::Nothing(reasons.collect()));
    }
    document.add_series(all);
    let account = serde_json::to_value(spikes.account()).unwrap_or_default();
    document.parameters.insert(SPIKES.to_owned(), account);
    bars::compare(&mut document);
    if let (Some(hosts), Some(other)) = (&plan.hosts, other) {
        hosts.describe(&other.clocks, other.environment, &mut document)?;
    }
    Ok(Outcome { document, runs })
}

/// The other machine, checked and ready.
struct Ready {
    apart: Apart,
    clocks: Clocks,
    environment: serde_json::Value,
}

/// Checks the subscriber's machine, if that is another one, and begins there; and why guests are not possible there, if so.
fn set_up(
    plan: &Plan,
    directory: &Path,
    watch: &mut Watch<'_>,
) -> Result<(Option<Ready>, Option<String>), LabError> {
    let Some(hosts) = &plan.hosts else { return Ok((None, None)) };
    watch(Event::Step("the other host and both clocks"));
    let clocks = hosts.check()?;
    let (far, set_up, environment) = hosts.begin("vm", plan.setup.functional)?;
    let mut apart = Apart::new(far, set_up.number);
    apart.try_wire(&hosts.uplinks[0], directory)?;
    let mut no_guests = None;
    if plan.has_guests() {
        watch(Event::Step(
            "the guests' image on the other host; it is built where it is missing, which takes minutes",
        ));
        match apart.prepare(&plan.choice) {
            Err(LabError::Impossible { what, remedy }) => {
                no_guests = Some(format!("{what}; remedy: {remedy}"));
            }
            done => done?,
        }
    }
    Ok((Some(Ready { apart, clocks, environment }), no_guests))
}

/// The rows with guests where there can be none, as skipped checks.
fn leave_out(plan: &Plan, no_guests: Option<String>, document: &mut Document) -> Vec<Row> {
    let Some(reason) = no_guests else { return Vec::new() };
    let has_guests = |row: &Row| row.datapath != Datapath::NoVm;
    let rows: Vec<Row> = plan.rows().into_iter().filter(has_guests).collect();
    let name = |row: &Row| format!("{} ({})", row.path(), row.load);
    document.checks.extend(rows.iter().map(|row| Check::skipped(name(row), reason.clone())));
    rows
}

fn describe(plan: &Plan, document: &mut Document) {
    let seconds = plan.frames as f64 * plan.period.get() as f64 / 1e9;
    let words = |words: &[&str]| words.join(",");
    document.set_parameters(&serde_json::json!({
        "period_ns": plan.period.get(),
        "frames": plan.frames,
        "payload_octets": plan.payloads,
        "rounds": plan.rounds,
        "interleaved": true,
        "seconds_of_a_row": seconds * f64::from(plan.rounds),
        "published_seconds_of_a_row": PUBLISHED_SECONDS,
        "scale": seconds * f64::from(plan.rounds) / PUBLISHED_SECONDS,
        "deadline_ns": DEADLINE.get(),
        "datapaths": words(&plan.datapaths.iter().map(|one| one.word()).collect::<Vec<_>>()),
        "schedules": words(&plan.keepers.iter().map(|one| one.word()).collect::<Vec<_>>()),
        "accelerator": plan.choice.accelerator.to_string(),
        "accelerator_reason": plan.choice.reason,
        "load": match plan.load_mbit {
            0 => "udp: iperf3, as much as its sender can, nice 19, on the hosts' CPUs".to_owned(),
            mbit => format!("udp: iperf3, {mbit} Mbit/s, nice 19, on the hosts' CPUs"),
        },
        "clock": format!(
            "host: each end reads its host's clock; vptp, kvm: the guests' clocks follow their hosts'; {}; in both cases latency is \
             received_at - tx_time; own: guests have clocks of their own, and a frame's latency is known above the fastest frame of its \
             row only, an offset and a constant drift removed",
            if plan.hosts.is_some() {
                "the hosts are two machines, and their clocks agree within hosts.clock_bound_ns"
            } else {
                "both hosts have one clock here"
            }
        ),
        "taps": "bridge: from the publisher's tap device to the subscriber's, by the hosts' clocks",
        "wire_at": "bridge: the kernel's stamp at the publisher's tap device, by that host's clock, which the guest's clock follows",
        "wire_offset_magnitude": MAGNITUDE_MEANS,
        "void_rule": VOID_RULE,
    }));
}

#[cfg(test)]
mod tests;
