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
mod plan;
mod round;
pub mod traffic;

pub use bars::{compare, violations};
pub use plan::{DEADLINE, PATH, Plan};

use crate::carry_out::{Measured, Session, Turn, carry_out};
use crate::daemon::{Daemon, configuration};
use crate::error::LabError;
use crate::experiment::{Outcome, Watch};
use crate::testbed::Testbed;
use ktsn_measure::clock::tai_now;
use ktsn_measure::gates::{WIRE_LATE_MAX, Windows};
use ktsn_measure::results::{Check, Document};
use ktsn_measure::watchdog::{ACCIDENT_MAX_PERMILLE, GAP_MIN, RESUME_MAX, STALL_MIN};
use ktsn_model::AdminPort;
use ktsn_time::Tai;
use round::{RoundResult, Rounds};
use std::path::Path;
use traffic::{LINK_SPEED, SCHEDULE, STREAMS};

/// Cycles of a control.
const CONTROL_CYCLES: u64 = 1_000;

/// Measures. `watch` hears what is done next.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    plan.setup.tools.check_daemon()?;
    carry_out(
        &plan.setup.terms("gates"),
        watch,
        |session| measure(plan, session, crate::carry_out::directory()?.path()),
        |document, _| bars::compare(document),
    )
}

/// Measures the controls, then the rounds.
fn measure(plan: &Plan, session: &mut Session<'_>, directory: &Path) -> Result<(), LabError> {
    let testbed = Testbed::new()?;
    // Some seconds ago: the daemon begins at the next cycle by the rule for base times in the past.
    let base_time = Tai::from_nanos((tai_now().as_nanos() / 1_000_000_000 - 2) * 1_000_000_000);
    let port = traffic::admin_port(base_time);
    let windows = Windows::of(&port).map_err(|error| LabError::Usage(error.to_string()))?;
    describe(plan, &windows, &mut session.document);
    let under = |schedule: Option<&AdminPort>| {
        let configuration = configure(&configuration(&testbed), schedule.map(traffic::toml));
        let daemon = Daemon::start(&plan.setup.tools, &testbed.a, directory, &configuration)?;
        Ok::<_, LabError>(Rounds { plan, testbed: &testbed, daemon, windows: &windows, directory })
    };
    let mut control = |what: &str, schedule: Option<&AdminPort>, check: fn(&RoundResult) -> Check| {
        let (rounds, cycles) = (under(schedule)?, plan.cycles.min(CONTROL_CYCLES));
        // The judge is judged: the frames are no result.
        let run = |turn: &mut Turn<'_>| {
            let measured = rounds.run(turn.round, cycles)?;
            Ok(Measured { series: Vec::new(), runs: Vec::new(), ..measured })
        };
        session.repeat(&format!("control: {what}"), 1, run, |results, document| {
            document.checks.extend(results.iter().map(check));
        })
    };
    if plan.gated {
        control("the same traffic without a schedule", None, bars::control)?;
        // Without SCHED_FIFO everything comes late, whatever the daemon does.
        if !plan.setup.functional {
            let late = traffic::admin_port(base_time.saturating_add(bars::GATES_LATE_BY));
            control("gates that close late", Some(&late), bars::late_control)?;
        }
    }
    let rounds = under(plan.gated.then_some(&port))?;
    session.repeat(
        "three classes",
        plan.rounds,
        |turn| rounds.run(turn.round, plan.cycles),
        |results, document| {
            if !results.is_empty() {
                bars::figures(document, &results);
            }
        },
    )
}

/// The daemon's configuration with a link speed, and with a schedule or none.
fn configure(plain: &str, schedule: Option<String>) -> String {
    const PORT: &str = "[[port]]\n";
    let named = schedule.as_ref().map_or_else(String::new, |_| format!("schedule = \"{SCHEDULE}\"\n"));
    let port = format!("{PORT}link_speed = {LINK_SPEED}\n{named}");
    plain.replacen(PORT, &port, 1) + &schedule.unwrap_or_default()
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
        "gate_schedule": traffic::gate_schedule(windows),
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
        "shared_figures": "daemon, listener, dropped, bypassed, overrun are of all classes together and stand in the row of class 7",
        "placement": if plan.setup.functional {
            "none: a functional run, its times mean nothing"
        } else {
            "CPU 0: listener SCHED_FIFO 40, tap ordinary; CPU 1: watchdog SCHED_FIFO 51, worker 50, talkers of classes 7 \
             and 5 40, best effort 30"
        },
    });
    document.set_parameters(&parameters);
}

#[cfg(test)]
mod tests;
