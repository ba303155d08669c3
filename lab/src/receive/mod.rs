// SPDX-License-Identifier: Apache-2.0
//! The experiment `receive`: when does an unmodified listener have its frame, and what does it cost to be awake in time.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records. Rounds, scenes and paths are interleaved;
//! nothing is repeated for what it shows. No tap runs: on the listener's CPU it would wake that CPU before the listener.
//!
//! ```text
//!  round 1: scene idle: flannel, flannel-spin-listener, …   scene epoll: flannel, …   round 2: …
//!  CPU 0: listener (FIFO 40; one that spins: ordinary)   CPU 1: talker (FIFO 50), or ktsnd's worker (50), talker (40)
//! ```

pub mod bars;
mod one_run;
mod path;
mod plan;
mod scene;

pub use path::{Path, Receiver, UnknownPath};
pub use plan::{PAYLOAD_OCTETS, Plan};
pub use scene::Scene;

use crate::carry_out::{Session, carry_out};
use crate::container::{LEAD, Load, receiving_daemon};
use crate::daemon::{Daemon, configuration};
use crate::error::LabError;
use crate::experiment::{Outcome, Watch};
use crate::testbed::Testbed;
use ktsn_measure::results::Document;
use one_run::Listeners;

/// Measures, and holds the results against the bars of `receive`.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    plan.check()?;
    let is_served = plan.has(|path| path.way.is_served());
    if is_served || plan.has(Path::has_far_daemon) {
        plan.setup.tools.check_daemon()?;
    }
    plan.scenes.iter().try_for_each(|scene| scene.load().check())?;
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        let testbed = Testbed::new()?;
        check_receiver(plan, &testbed, directory)?;
        let near = is_served
            .then(|| Daemon::start(&plan.setup.tools, &testbed.a, directory, &configuration(&testbed)));
        describe(plan, &mut session.document);
        let mut listeners = Listeners { plan, testbed: &testbed, near: near.transpose()?, directory };
        session.measure(&mut listeners, plan.rounds)
    };
    carry_out(&plan.setup.terms("receive"), watch, measure, |document, _| bars::compare(document))
}

/// Whether ktsnd and this machine have what the paths need: before minutes are spent, not after.
fn check_receiver(plan: &Plan, testbed: &Testbed, directory: &std::path::Path) -> Result<(), LabError> {
    for path in [Path::SHORT, Path::FLANNEL_EXPECT] {
        if plan.has(|own| needs(own, path)) {
            let configuration = one_run::far_configuration(testbed, path);
            receiving_daemon::check(
                &plan.setup.tools,
                testbed,
                directory,
                &path.to_string(),
                &configuration,
            )?;
        }
    }
    Ok(())
}

/// Whether a run of `own` needs what the far daemon of `path` needs.
fn needs(own: Path, path: Path) -> bool {
    let short = path.way == crate::container::Path::KtsnShort && own.way == path.way;
    short || (path.receiver == Receiver::Expect && own.receiver == Receiver::Expect)
}

/// What the experiment was asked to do, and how it places its threads.
fn describe(plan: &Plan, document: &mut Document) {
    let functional = plan.setup.functional;
    document.set_parameters(&serde_json::json!({
        "payload_octets": [PAYLOAD_OCTETS],
        "scenes": plan.scenes.iter().map(|scene| scene.describe()).collect::<Vec<_>>(),
        "span_ns": plan.span.get(),
        "lead_ns": LEAD.get(),
        "tap": "none: on the listener's CPU it would wake that CPU before the listener",
        "placement": if functional {
            "none: a functional run, its times mean nothing"
        } else {
            "listener SCHED_FIFO 40 on CPU 0 (-spin-listener: ordinary); talker SCHED_FIFO 50 on CPU 1; ktsn: worker \
             SCHED_FIFO 50 and its talker SCHED_FIFO 40, both on CPU 1"
        },
        "load": Load::ALL.map(Load::describe),
    }));
}

#[cfg(test)]
mod tests;
