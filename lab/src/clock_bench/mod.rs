// SPDX-License-Identifier: Apache-2.0
//! The experiment `clock`: how far a guest's `CLOCK_REALTIME` is from its host's, kept by vPTP and by chrony over virtio-net.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1`. A row is one guest: it boots, its clock settles, it is sampled, paused, resumed, and
//! sampled again. Rows are interleaved in a round. The truth is the hypervisor's own ([`crate::vm::truth`]) together with the host's clock:
//! neither an exchange nor a packet takes part in it.

pub mod bars;
mod guest;
mod samples;

use crate::carry_out::{Experiment, Measured, Session, Turn, carry_out};
use crate::error::LabError;
use crate::experiment::{Outcome, Setup, Watch, none_twice};
use crate::vm::protocol::Clock;
use crate::vm::{Accelerator, Cache, Choice};
use ktsn_measure::environment::CpuUse;
use ktsn_measure::results::{Check, Document, Series};
use std::path::Path;
use std::time::Duration;

/// Time between two samples.
const EVERY: Duration = Duration::from_millis(10);
/// How long a guest is sampled after its pause.
const AFTER_PAUSE: Duration = Duration::from_secs(12);
/// A clock is back when it stays this near to the truth.
const BACK_NS: i64 = 10_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What keeps the guests' clocks.
    pub clocks: Vec<Clock>,
    /// How long a clock settles after the guest says that it follows.
    pub settle: Duration,
    /// How long it is then sampled.
    pub measured: Duration,
    /// How long the guest is paused then; zero: not at all.
    pub pause: Duration,
    /// Rounds.
    pub rounds: u32,
    /// How long a guest may take to boot.
    pub boot_within: Duration,
    /// How guests run here, and why.
    pub choice: Choice,
    /// Where the image is.
    pub cache: Cache,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        none_twice("clock", &self.clocks)?;
        if self.clocks.is_empty() {
            return Err(LabError::Usage("clock: expected one at least".to_owned()));
        }
        let least = Duration::from_secs(1);
        let most = Duration::from_secs(86_400);
        for (what, span) in [("seconds", self.measured), ("settle", self.settle), ("pause", self.pause)] {
            if span > most || (what == "seconds" && span < least) {
                return Err(LabError::Usage(format!("{what}: {span:?}: expected 1 s to a day")));
            }
        }
        Ok(())
    }
}

/// The name of a clock's row.
#[must_use]
pub fn path(clock: Clock) -> String {
    match clock {
        Clock::None => "own".to_owned(),
        clock => clock.to_string(),
    }
}

/// Measures.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    plan.setup.tools.check_daemon()?;
    if plan.choice.accelerator != Accelerator::Tcg {
        return Err(LabError::Impossible {
            what: "under KVM the true relation of the counters is not known here".to_owned(),
            remedy: "--accelerator tcg".to_owned(),
        });
    }
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        describe(plan, &mut session.document);
        session.measure(&mut Clocks { plan, directory }, plan.rounds)
    };
    carry_out(&plan.setup.terms("clock"), watch, measure, |document, _| bars::compare(document))
}

/// Guests whose clocks are kept in different ways.
struct Clocks<'a> {
    plan: &'a Plan,
    directory: &'a Path,
}

impl Experiment for Clocks<'_> {
    type Row = Clock;
    type Extra = ();

    fn rows(&self) -> Vec<Clock> {
        self.plan.clocks.clone()
    }

    fn name(&self, &clock: &Clock) -> String {
        path(clock)
    }

    fn run(&mut self, &clock: &Clock, turn: &mut Turn<'_>) -> Result<Measured, LabError> {
        let begun = CpuUse::now();
        let left = guest::one_run(self.plan, clock, self.directory)?;
        let mut series = samples::figures(self.plan, clock, turn.round, &left)?;
        crate::observations::put_disturbance(&mut series, &begun, &CpuUse::now());
        let checks = vec![never_backwards(&series)];
        Ok(Measured { series: vec![series], checks, ..Measured::default() })
    }
}

/// A clock that was set back by vPTP is a fault; chrony may do that.
fn never_backwards(series: &Series) -> Check {
    let (back, beyond) = (series.clock_set_back.unwrap_or(0), series.bound_missed.unwrap_or(0));
    let sentence = format!(
        "{back} samples earlier than the one before, {beyond} beyond the bound that the guest stated"
    );
    let is_right = series.path != path(Clock::Vptp) || back + beyond == 0;
    Check::of(format!("{}: no step back, no error beyond the bound", series.path), is_right, Some(sentence))
}

fn describe(plan: &Plan, document: &mut Document) {
    let clocks: Vec<String> = plan.clocks.iter().map(|&clock| path(clock)).collect();
    document.set_parameters(&serde_json::json!({
        "payload_octets": [0],
        "clocks": clocks.join(","),
        "settle_seconds": plan.settle.as_secs_f64(),
        "seconds_of_a_row": plan.measured.as_secs_f64(),
        "sample_every_ns": EVERY.as_nanos() as u64,
        "pause_seconds": plan.pause.as_secs_f64(),
        "back_within_ns": BACK_NS,
        "accelerator": plan.choice.accelerator.to_string(),
        "accelerator_reason": plan.choice.reason,
        "clock_error": "magnitude of the guest's CLOCK_REALTIME - the host's, at one instant",
        "page_error": "magnitude of the host's time as page and line give it - the host's CLOCK_REALTIME, at one instant",
        "truth": "the guest's counter is the host's plus QEMU's cpu_ticks_offset, read from QEMU's memory; the host's clock between two \
                  readings 5 ms apart",
        "chrony": "chronyd in the guest, 16 questions a second, xleave; chronyd -x at the bridge of its host; virtio-net, tap",
    }));
}
