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
mod places;
mod plan;
mod script;
mod site;
mod spikes;
mod subscriber;
mod tap;

pub use far::serve;
pub use plan::{Datapath, Keeper, Load, Plan, Row};

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Event, Outcome, Watch};
use crate::observations::DEADLINE;
use crate::remote::hosts::Known;
use crate::vm::schedule_scene::MAGNITUDE_MEANS;
use far::End;
use ktsn_measure::datapaths::SPIKES;
use ktsn_measure::results::Document;
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
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        describe(plan, &mut session.document);
        let (other, no_guests) = set_up(plan, directory, session.watch)?;
        let (apart, known) = other.unzip();
        let mut rows = Rows { plan, directory, apart, no_guests };
        session.measure_between(&mut rows, plan.rounds, plan.hosts.as_ref().zip(known))
    };
    carry_out(&plan.setup.terms("vm"), watch, measure, |document, _| bars::compare(document))
}

/// Publisher and subscriber in all their places.
struct Rows<'a> {
    plan: &'a Plan,
    directory: &'a Path,
    /// The other host's side, and the number that both machines share.
    apart: Option<(End, u16)>,
    /// Why guests are not possible on the other host.
    no_guests: Option<String>,
}

impl Experiment for Rows<'_> {
    type Row = Row;
    type Extra = Spikes;

    fn rows(&self) -> Vec<Row> {
        self.plan.rows()
    }

    fn name(&self, row: &Row) -> String {
        format!("{} ({})", row.path(), row.load)
    }

    fn missing(&self, row: &Row) -> Option<String> {
        self.no_guests.clone().filter(|_| row.datapath != Datapath::NoVm)
    }

    fn prepare(&mut self, _: &Row, watch: &mut Watch<'_>) -> Result<u32, LabError> {
        self.apart.as_mut().map_or(Ok(0), |(end, _)| end.wait_until_quiet(watch))
    }

    fn run(&mut self, &row: &Row, turn: &mut Turn<'_>) -> Result<Measured<Spikes>, LabError> {
        one_run(
            self.plan,
            row,
            turn.round,
            self.directory,
            self.apart.as_mut().map(|(end, number)| (end, *number)),
        )
    }

    fn conclude(&mut self, found: Vec<Spikes>, document: &mut Document) -> Result<(), LabError> {
        let mut spikes = Spikes::default();
        found.into_iter().for_each(|other| spikes.append(other));
        let account = serde_json::to_value(spikes.account()).unwrap_or_default();
        document.parameters.insert(SPIKES.to_owned(), account);
        Ok(())
    }
}

/// The other host, and what is known of both.
type Other = ((End, u16), Known);

/// Checks the subscriber's machine, if that is another one, and begins there; and why guests are not possible there, if so.
fn set_up(
    plan: &Plan,
    directory: &Path,
    watch: &mut Watch<'_>,
) -> Result<(Option<Other>, Option<String>), LabError> {
    let Some(hosts) = &plan.hosts else { return Ok((None, None)) };
    watch(Event::Step("the other host and both clocks"));
    let clocks = hosts.check()?;
    let (far, set_up, environment) = hosts.begin("vm", plan.setup.functional)?;
    let (mut end, number) = (End::There(Box::new(far)), set_up.number);
    far::try_wire(&mut end, (&hosts.uplinks[0], number), directory)?;
    let mut no_guests = None;
    if plan.has_guests() {
        watch(Event::Step(
            "the guests' image on the other host; it is built where it is missing, which takes minutes",
        ));
        match far::prepare(&mut end, &plan.choice) {
            Err(LabError::Impossible { what, remedy }) => {
                no_guests = Some(format!("{what}; remedy: {remedy}"));
            }
            done => done?,
        }
    }
    Ok((Some(((end, number), Known { clocks, environment })), no_guests))
}

fn describe(plan: &Plan, document: &mut Document) {
    let seconds = plan.frames as f64 * plan.period.get() as f64 / 1e9;
    let words = |words: &[&str]| words.join(",");
    document.set_parameters(&serde_json::json!({
        "period_ns": plan.period.get(),
        "frames": plan.frames,
        "payload_octets": plan.payloads,
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
    }));
}

#[cfg(test)]
mod tests;
