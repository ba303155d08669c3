// SPDX-License-Identifier: Apache-2.0
//! The experiment `gates`: three classes behind real gates, from ordinary programs in a pod to the far end.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with a series for each class, and its raw records. Every frame is held
//! against windows that are worked out from the list alone: where the worker's system call began, by the kernel's trace, and
//! where the far end's tap saw it. Nothing that the engine says about itself is believed.
//!
//! ```text
//!  CPU 0: listener (FIFO 40), tap (ordinary)
//!  CPU 1: watchdog (FIFO 51, three looks a cycle), ktsnd's worker (50), talkers of classes 7 and 5 (40), best effort (30)
//! ```
//! First comes a control: a second of the same traffic without a schedule. There the same judge must find class 5, which
//! asks for an instant at which its gate would be closed, outside its window; else it sees nothing. A second control gives the
//! daemon gates that close late, so that its guard bands are too short: the judge must not excuse that as the machine's fault.

mod bars;
mod evidence;
mod round;
pub mod traffic;

pub use bars::{compare, violations};

use crate::daemon::{Daemon, configuration};
use crate::error::LabError;
use crate::exclusive::{MeasureLock, VOID_RULE, check_machine, wait_until_quiet};
use crate::testbed::Testbed;
use crate::tools::Tools;
use ktsn_measure::clock::tai_now;
use ktsn_measure::environment::{Disturbance, Environment};
use ktsn_measure::gates::{WIRE_LATE_MAX, Windows};
use ktsn_measure::records::RunRecords;
use ktsn_measure::results::{Document, Series};
use ktsn_measure::watchdog::{ACCIDENT_MAX_PERMILLE, GAP_MIN, RESUME_MAX, STALL_MIN};
use ktsn_model::AdminPort;
use ktsn_time::{Nanos, Tai};
use round::{Bench, Observed};
use std::path::PathBuf;
use traffic::{CYCLE_TIME, LINK_SPEED, SCHEDULE, STREAMS};

/// The path's name.
pub const PATH: &str = "ktsn";
/// A latency of class 7 above this misses the deadline.
pub const DEADLINE: Nanos = Nanos::from_micros(400);
/// How often a round is repeated whose observation broke.
const REPEATS_MAX: u32 = 3;
/// Cycles of the control.
const CONTROL_CYCLES: u64 = 1_000;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds.
    pub rounds: u32,
    /// Cycles of a round.
    pub cycles: u64,
    /// Whether the daemon has the schedule; without it the same frames are judged, and the bars are missed.
    pub gated: bool,
    /// Whether the watchdog runs; without it no overrun can be proven.
    pub watchdog: bool,
    /// The programs.
    pub tools: Tools,
    /// The machine's measuring lock.
    pub lock: PathBuf,
    /// The command that repeats it.
    pub command: Vec<String>,
    /// Measures without SCHED_FIFO, CPU pinning and waiting for a quiet machine: for functional tests, whose times mean
    /// nothing.
    pub functional: bool,
}

/// Document and raw records.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The results.
    pub document: Document,
    /// The records of every class and round.
    pub runs: Vec<RunRecords>,
}

impl Plan {
    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        if self.rounds == 0 || self.cycles < 10 {
            return Err(LabError::Usage(format!(
                "rounds, seconds: {} rounds of {} cycles: expected one round and 10 cycles of {CYCLE_TIME} at least",
                self.rounds, self.cycles
            )));
        }
        Ok(())
    }
}

/// Measures. `watch` hears what is done next.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut dyn FnMut(&str)) -> Result<Outcome, LabError> {
    plan.check()?;
    plan.tools.check_daemon()?;
    if !plan.functional {
        check_machine()?;
    }
    let _lock = MeasureLock::take(&plan.lock, || watch("another measurement holds the lock"))?;
    let directory = tempfile::tempdir().map_err(LabError::system("temporary directory"))?;
    let testbed = Testbed::new()?;
    let mut document = Document::new("gates", plan.command.clone(), Environment::read());
    // Some seconds ago: the daemon begins at the next cycle by the rule for base times in the past.
    let base_time = Tai::from_nanos((tai_now().as_nanos() / 1_000_000_000 - 2) * 1_000_000_000);
    let port = traffic::admin_port(base_time);
    let windows = Windows::of(&port).map_err(|error| LabError::Usage(error.to_string()))?;
    describe(plan, &windows, &mut document);
    let started = |schedule: Option<&AdminPort>| {
        let configuration = configure(&configuration(&testbed), schedule.map(traffic::toml));
        Daemon::start_with(&plan.tools, &testbed, directory.path(), &configuration)
    };
    let (testbed, directory) = (&testbed, directory.path());
    if plan.gated {
        let mut control = |what: &str, schedule: Option<&AdminPort>| {
            watch(&format!("control: {what}"));
            let daemon = started(schedule)?;
            let bench = Bench { plan, testbed, daemon: &daemon, windows: &windows, directory };
            valid_round(&bench, 0, CONTROL_CYCLES.min(plan.cycles), watch)
        };
        document.checks.push(bars::control(&control("the same traffic without a schedule", None)?));
        // Without SCHED_FIFO everything comes late, by whomever's fault.
        if !plan.functional {
            let late = traffic::admin_port(base_time.saturating_add(bars::GATES_LATE_BY));
            document.checks.push(bars::late_control(&control("gates that close late", Some(&late))?));
        }
    }
    let daemon = started(plan.gated.then_some(&port))?;
    let bench = Bench { plan, testbed, daemon: &daemon, windows: &windows, directory };
    let mut observed = Vec::new();
    for round in 1..=plan.rounds {
        let told = |load: &Disturbance, watch: &mut dyn FnMut(&str)| {
            watch(&format!("waiting for a quiet machine (steal {:.0} %)", load.steal_ratio * 100.0));
        };
        let refusals = if plan.functional { 0 } else { wait_until_quiet(|load| told(load, watch))? };
        watch(&format!("round {round} of {}", plan.rounds));
        let mut one = valid_round(&bench, round, plan.cycles, watch)?;
        for class in &mut one.classes {
            let voided = class.series.voided_rounds.unwrap_or(0) + u64::from(refusals);
            class.series.voided_rounds = Some(voided);
        }
        observed.push(one);
    }
    Ok(collect(document, observed))
}

/// The daemon's configuration with a link speed, and with a schedule or none.
fn configure(plain: &str, schedule: Option<String>) -> String {
    const PORT: &str = "[[port]]\n";
    let named = schedule.as_ref().map_or_else(String::new, |_| format!("schedule = \"{SCHEDULE}\"\n"));
    let port = format!("{PORT}link_speed = {LINK_SPEED}\n{named}");
    plain.replacen(PORT, &port, 1) + &schedule.unwrap_or_default()
}

/// One round; repeated, as the void rule says, when its observation broke.
fn valid_round(
    bench: &Bench<'_>,
    round: u32,
    cycles: u64,
    watch: &mut dyn FnMut(&str),
) -> Result<Observed, LabError> {
    for voided in 0..=REPEATS_MAX {
        let mut one = bench.run(round, cycles)?;
        let Some(reason) = one.broken.take() else {
            for class in &mut one.classes {
                class.series.voided_rounds = Some(u64::from(voided));
            }
            return Ok(one);
        };
        watch(&format!("the round is void and is repeated: {reason}"));
        if voided == REPEATS_MAX {
            let problem = format!("was void {} times, the last time because {reason}", voided + 1);
            return Err(LabError::Process { name: format!("round {round}"), problem, stderr: String::new() });
        }
    }
    Err(LabError::Usage("rounds: expected one at least".to_owned()))
}

/// What the experiment was asked to do, and how it places its threads.
fn describe(plan: &Plan, windows: &Windows, document: &mut Document) {
    let streams: Vec<_> = STREAMS
        .iter()
        .map(|stream| {
            serde_json::json!({
                "class": stream.class, "role": stream.role, "payload_octets": stream.payload_octets,
                "period_ns": stream.period.get(), "phase_ns": stream.phase.get(), "clock": stream.clock,
                "lead_ns": stream.lead.get(), "on_link_ns": stream.on_link().get(),
            })
        })
        .collect();
    let parameters = serde_json::json!({
        "gate_schedule": traffic::described(windows),
        "gated": plan.gated,
        "link_speed": LINK_SPEED,
        "streams": streams,
        "rounds": plan.rounds,
        "cycles": plan.cycles * u64::from(plan.rounds),
        "deadline_ns": DEADLINE.get(),
        "wire_at": "tap",
        "handed_at": "entry of the worker thread's sendto that wire_at lies in, by the kernel's trace",
        "wire_late_max_ns": WIRE_LATE_MAX.get(),
        "watchdog": plan.watchdog,
        "watchdog_gap_min_ns": GAP_MIN.get(),
        "hand_over_stall_min_ns": STALL_MIN.get(),
        "accident_max_permille": ACCIDENT_MAX_PERMILLE,
        "watchdog_resume_max_ns": RESUME_MAX.get(),
        "watchdog_looks_ns": traffic::looks(windows).iter().map(|at| at.get()).collect::<Vec<_>>(),
        "void_rule": VOID_RULE,
        "shared_figures": "daemon, listener, dropped, bypassed, overrun are of all classes together and stand in the row of class 7",
        "placement": if plan.functional {
            "none: a functional run, its times mean nothing"
        } else {
            "CPU 0: listener SCHED_FIFO 40, tap ordinary; CPU 1: watchdog SCHED_FIFO 51, worker 50, talkers of classes 7 \
             and 5 40, best effort 30"
        },
    });
    if let serde_json::Value::Object(parameters) = parameters {
        document.parameters = parameters;
    }
}

fn collect(mut document: Document, observed: Vec<Observed>) -> Outcome {
    for index in 0..STREAMS.len() {
        let rounds: Vec<Series> = observed.iter().map(|one| one.classes[index].series.clone()).collect();
        document.add_rounds(rounds);
    }
    bars::figures(&mut document, &observed);
    bars::compare(&mut document);
    let runs = observed.into_iter().flat_map(|one| one.classes).map(|class| class.run).collect();
    Outcome { document, runs }
}

#[cfg(test)]
mod tests;
