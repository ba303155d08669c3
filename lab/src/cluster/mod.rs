// SPDX-License-Identifier: Apache-2.0
//! The experiment `k8s`: the paths of the paper between pods of a Kubernetes cluster that is already there.
//!
//! In: a [`Site`] (how a command gets into each pod, where its files come out), a [`Plan`]. Out: a document
//! `ktsn.results/1` with its raw records, and what the bars say. It starts nothing but talkers, listeners and taps, and
//! never changes the cluster.
//!
//! ```text
//!  round 1: 64 octets: flannel, flannel-spin, tsn-cni, host-network; 256 octets: …   round 2: from another row on
//!  CPU 0: listener (FIFO 40), tap (ordinary)     CPU 1: talker (FIFO 50), or ktsnd's worker (50) and its talker (40)
//! ```

mod bars;
mod one_run;
mod plan;
mod site;

pub use bars::{missed, violations};
pub use plan::Plan;
pub use site::{End, Site, Way, WayName};

use crate::carry_out::{Session, carry_out};
use crate::container::{DEADLINE, LEAD};
use crate::daemon::Daemon;
use crate::error::LabError;
use crate::experiment::{Outcome, Watch};
use ktsn_measure::results::Document;
use one_run::Ways;

/// Measures, and holds the results against the bars.
///
/// # Errors
/// [`LabError`].
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        describe(plan, &mut session.document);
        let daemon = Daemon::elsewhere(&plan.site.daemon_run_dir, plan.site.daemon_pid)?;
        session.measure(&mut Ways { plan, daemon, directory }, plan.rounds)
    };
    carry_out(&plan.setup.terms("k8s"), watch, measure, |document, _| bars::compare(document))
}

/// What the experiment was asked to do, and how it places its threads.
fn describe(plan: &Plan, document: &mut Document) {
    let parameters = serde_json::json!({
        "period_ns": plan.period.get(),
        "payload_octets": plan.payloads,
        "loads": ["idle: nothing but the experiment and the cluster itself"],
        "frames": plan.frames * u64::from(plan.rounds),
        "deadline_ns": DEADLINE.get(),
        "lead_ns": LEAD.get(),
        "wire_at": "tap",
        "placement": "listener SCHED_FIFO 40 on CPU 0; talker SCHED_FIFO 50 on CPU 1; tsn-cni: worker SCHED_FIFO 50 and its talker \
             SCHED_FIFO 40, both on CPU 1; tap ordinary, CPU 0",
    });
    document.set_parameters(&parameters);
}

#[cfg(test)]
mod tests;
