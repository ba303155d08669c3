// SPDX-License-Identifier: Apache-2.0
//! The experiment `k8s`: the paths of the paper between pods of a Kubernetes cluster that is already there.
//!
//! In: a [`Site`] (how a command gets into each pod, where its files come out), a [`Plan`]. Out: a document
//! `ktsn.results/1` with its raw records, and what the bars say. It starts nothing but talkers, listeners and taps, and
//! never changes the cluster.
//!
//! ```text
//!  round 1: payload 64: flannel, flannel-spin, tsn-cni, host-network   payload 256: …   round 2: …
//!  CPU 0: listener (FIFO 40), tap (ordinary)     CPU 1: talker (FIFO 50), or ktsnd's worker (50) and its talker (40)
//! ```

mod bars;
mod one_run;
mod plan;
mod site;

pub use bars::{missed, violations};
pub use plan::Plan;
pub use site::{End, Site, Way, WayName};

use crate::container::{DEADLINE, LEAD};
use crate::daemon::Daemon;
use crate::error::LabError;
use crate::experiment::{Event, Outcome, Watch, repeat_void};
use ktsn_measure::results::Document;
use one_run::Bench;

/// The rule in words, for the results.
const VOID_RULE: &str = "a stepped clock or a frame that the tap lost voids a run, which is repeated at most 3 times; nothing else \
     does. The control plane and both kubelets run on the same two CPUs all the time: nobody waits for a quiet machine, and \
     each run shows its pressure and steal";

/// Measures, and holds the results against the bars.
///
/// # Errors
/// [`LabError`].
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    let (_lock, directory) = plan.setup.begin(watch)?;
    let daemon = Daemon::elsewhere(&plan.site.daemon_run_dir, plan.site.daemon_pid)?;
    let bench = Bench { plan, daemon, directory: directory.path() };
    let (mut series, mut runs, mut sequence) = (Vec::new(), Vec::new(), 0);
    for round in 1..=plan.rounds {
        for &payload in &plan.payloads {
            for way in &plan.site.ways {
                let name = way.path.word();
                watch(Event::Step(&format!("round {round}: {name}, {payload} octets")));
                let ((mut figures, run), voided) = repeat_void(name, watch, || {
                    sequence += plan.frames;
                    bench.run(way, payload, round, sequence - plan.frames)
                })?;
                figures.voided_rounds = Some(voided);
                series.push(figures);
                runs.push(run);
                watch(Event::Done);
            }
        }
    }
    let mut document = Document::new("k8s", plan.setup.command.clone());
    describe(plan, &mut document);
    document.add_series(series);
    bars::compare(&mut document);
    Ok(Outcome { document, runs })
}

/// What the experiment was asked to do, and how it places its threads.
fn describe(plan: &Plan, document: &mut Document) {
    let parameters = serde_json::json!({
        "period_ns": plan.period.get(),
        "payload_octets": plan.payloads,
        "loads": ["idle: nothing but the experiment and the cluster itself"],
        "frames": plan.frames * u64::from(plan.rounds),
        "rounds": plan.rounds,
        "interleaved": true,
        "deadline_ns": DEADLINE.get(),
        "lead_ns": LEAD.get(),
        "wire_at": "tap",
        "void_rule": VOID_RULE,
        "placement": "listener SCHED_FIFO 40 on CPU 0; talker SCHED_FIFO 50 on CPU 1; tsn-cni: worker SCHED_FIFO 50 and its talker \
             SCHED_FIFO 40, both on CPU 1; tap ordinary, CPU 0",
    });
    document.set_parameters(&parameters);
}

#[cfg(test)]
mod tests;
