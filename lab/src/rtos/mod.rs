// SPDX-License-Identifier: Apache-2.0
//! The experiment `rtos`: a FreeRTOS guest with the driver of `virtio-net/`, beside a Linux guest on the same QEMU device, with QEMU's own
//! network stack behind it, and with DPDK's testpmd.
//!
//! In: a [`Plan`], the workspace with `virtio-net/test/experiments.py`, which runs the guests and takes the times. Out: a document
//! `ktsn.results/1` with its raw records (round trips). A round is one run of that program; guests are interleaved in it. Nothing is
//! repeated for what it shows.

pub mod bars;
mod harness;

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Outcome, Setup, Watch, none_twice};
use harness::{Line, Run};
use ktsn_measure::records::{Record, RunRecords};
use ktsn_measure::results::{Document, Round, Series};
use ktsn_measure::stats::Statistics;
use ktsn_time::{Nanos, Tai};
use serde_json::{Map, Value};
use std::path::PathBuf;

/// The load of a series of round trips.
pub const PING_PONG: &str = "ping-pong";
/// The load of a series in which the guest takes a TCP stream.
pub const RECEIVE: &str = "receive";
/// The path of the guest with the driver of `virtio-net/`.
pub const FREERTOS: &str = "freertos";
/// The path of the guest with Linux's own driver.
pub const LINUX: &str = "linux";
/// The same guests behind QEMU's vhost-user, DPDK's testpmd, and a tap.
pub const FREERTOS_SWITCH: &str = "freertos-vhost-user";
/// See [`FREERTOS_SWITCH`].
pub const LINUX_SWITCH: &str = "linux-vhost-user";
/// Greatest size of TCP's buffers: the guest's heap bounds it.
const TCP_KIB_MAX: u64 = 256;
/// Greatest bound of posted receive buffers: the ring has 256 descriptors.
const POSTED_MAX: u64 = 255;

/// What is behind a guest's network device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// QEMU's own network stack. It waits until the guest has posted a buffer.
    User,
    /// DPDK's testpmd and a tap. It polls, and drops what finds no buffer.
    VhostUser,
}

impl Backend {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::VhostUser => "vhost-user",
        }
    }
}

impl std::fmt::Display for Backend {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds.
    pub rounds: u32,
    /// Round trips of each size in a round.
    pub trips: u64,
    /// Octets of a TCP stream, in MiB.
    pub stream_mib: u64,
    /// Sizes of TCP's buffers, in KiB.
    pub tcp_kib: Vec<u64>,
    /// Bounds of the posted receive buffers, with the largest of TCP's buffers.
    pub posted: Vec<u64>,
    /// The bound of all other runs.
    pub usual_posted: u64,
    /// Bounds of the posted receive buffers for the streams behind vhost-user.
    pub dropping_posted: Vec<u64>,
    /// What is behind the guests, each of them.
    pub backends: Vec<Backend>,
    /// The workspace with `virtio-net/`.
    pub workspace: PathBuf,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// How many guests are started in a round.
    fn guests(&self) -> u64 {
        let posted = self.posted.iter().filter(|&&posted| posted != self.usual_posted).count();
        let guests = self.backends.iter().map(|backend| match backend {
            Backend::User => 2 * self.tcp_kib.len() + posted,
            Backend::VhostUser => 2 + self.dropping_posted.len(),
        });
        guests.sum::<usize>() as u64
    }

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        let within = |what: &str, values: &[u64], least: u64, most: u64| {
            none_twice(what, values)?;
            match values.iter().find(|value| !(least..=most).contains(value)) {
                Some(value) => Err(LabError::Usage(format!("{what}: {value}: expected {least} to {most}"))),
                None if values.is_empty() => {
                    Err(LabError::Usage(format!("{what}: expected one number at least")))
                }
                None => Ok(()),
            }
        };
        within("tcp", &self.tcp_kib, 2, TCP_KIB_MAX)?;
        within("posted", &self.posted, 1, POSTED_MAX)?;
        within("dropping-posted", &self.dropping_posted, 1, POSTED_MAX)?;
        none_twice("backend", &self.backends)?;
        if self.backends.is_empty() {
            return Err(LabError::Usage("backend: expected one at least".to_owned()));
        }
        within("usual-posted", &[self.usual_posted], 1, POSTED_MAX)?;
        within("trips", &[self.trips], 1, 10_000_000)?;
        within("mib", &[self.stream_mib], 1, 4096)?;
        within("rounds", &[u64::from(self.rounds)], 1, 1000)
    }
}

/// Measures, and holds the results against the bars of `rtos`.
///
/// # Errors
/// [`LabError`]; the guests have ended then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    let measure = |session: &mut Session<'_>| {
        describe(plan, &mut session.document);
        session.measure(&mut Guests { plan }, plan.rounds)
    };
    carry_out(&plan.setup.terms("rtos"), watch, measure, |document, _| bars::compare(document))
}

/// All guests; the program that runs them interleaves them.
struct Guests<'a> {
    plan: &'a Plan,
}

impl Experiment for Guests<'_> {
    type Row = ();
    /// Versions and devices.
    type Extra = Map<String, Value>;

    fn rows(&self) -> Vec<()> {
        vec![()]
    }

    fn name(&self, (): &()) -> String {
        "the guests".to_owned()
    }

    fn units(&self, (): &()) -> u64 {
        self.plan.guests()
    }

    fn run(&mut self, (): &(), turn: &mut Turn<'_>) -> Result<Measured<Self::Extra>, LabError> {
        let (mut measured, mut facts) = (Measured::default(), Map::new());
        harness::round(self.plan, turn.round, &mut |line| match line {
            Line::Step(step) => turn.step(&step),
            Line::RanOn(found) => facts.extend(found),
            Line::Run(run) => {
                measured.runs.extend(records(&run));
                measured.series.push(figures(&run));
                turn.progress(measured.series.len() as u64);
            }
        })?;
        Ok(measured.with(facts))
    }

    fn conclude(&mut self, facts: Vec<Self::Extra>, document: &mut Document) -> Result<(), LabError> {
        document.parameters.extend(facts.into_iter().flatten());
        Ok(())
    }
}

fn describe(plan: &Plan, document: &mut Document) {
    document.set_parameters(&serde_json::json!({
        "payload_octets": [1, harness::MESSAGE_OCTETS],
        "interleaved": true,
        "round_trips": plan.trips,
        "stream_octets": plan.stream_mib << 20,
        "tcp_kib": plan.tcp_kib,
        "posted": plan.posted,
        "usual_posted": plan.usual_posted,
        "dropping_posted": plan.dropping_posted,
        "latency": "a round trip of one TCP connection, taken outside the guest",
        "bit_rate": "octets of one TCP connection over the time until the guest has read all of them, or sent all of them",
    }));
}

/// The figures of one run.
fn figures(run: &Run) -> Series {
    let trips = run.trips_ns.iter().map(|&trip| Nanos::new(trip));
    let rate = |octets: u64, nanoseconds: u64| octets as f64 * 8e9 / nanoseconds.max(1) as f64;
    Series {
        path: run.path.clone(),
        payload_octets: run.payload_octets,
        load: Some(run.load.clone()),
        tcp_octets: Some(run.tcp_octets),
        posted_max: run.posted_max,
        round: Round::Number(run.round),
        latency_ns: Statistics::of(trips),
        bit_rate: run.octets.zip(run.nanoseconds).map(|(octets, nanoseconds)| rate(octets, nanoseconds)),
        interrupts_per_message: (run.messages > 0).then(|| run.interrupts as f64 / run.messages as f64),
        posted_peak_octets: run.posted_peak_octets.map(|octets| octets as f64),
        buffer_octets: run.buffer_octets.map(|octets| octets as f64),
        ..Series::default()
    }
}

/// The round trips as records: one after the other, beginning at 0.
fn records(run: &Run) -> Option<RunRecords> {
    let mut at = 0_u64;
    let record = |(sequence, &trip): (usize, &i64)| {
        let begin = at;
        at += u64::try_from(trip).unwrap_or(0);
        Record {
            sequence: sequence as u64,
            tx_time: Tai::from_nanos(begin),
            handed_at: None,
            wire_at: None,
            kernel_at: None,
            received_at: Some(Tai::from_nanos(at)),
        }
    };
    let records: Vec<Record> = run.trips_ns.iter().enumerate().map(record).collect();
    (!records.is_empty()).then(|| RunRecords {
        path: run.path.clone(),
        payload_octets: run.payload_octets,
        load: Some(run.load.clone()),
        round: run.round,
        records,
    })
}

#[cfg(test)]
mod tests;
