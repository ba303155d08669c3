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

use crate::container::{LEAD, Load, far};
use crate::daemon::{Daemon, configuration};
use crate::error::LabError;
use crate::exclusive::VOID_RULE;
use crate::experiment::{Event, Outcome, Watch, repeat_void};
use crate::testbed::Testbed;
use ktsn_measure::results::Document;
use one_run::{Bench, RunSpec};

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
    let (_lock, directory) = plan.setup.begin(watch)?;
    let testbed = Testbed::new()?;
    check_receiver(plan, &testbed, directory.path())?;
    let near = is_served
        .then(|| Daemon::start(&plan.setup.tools, &testbed.a, directory.path(), &configuration(&testbed)));
    let bench = Bench { plan, testbed: &testbed, near: near.transpose()?, directory: directory.path() };
    let mut outcome = measure(&bench, watch)?;
    bars::compare(&mut outcome.document);
    Ok(outcome)
}

/// Whether ktsnd and this machine have what the paths need: before minutes are spent, not after.
fn check_receiver(plan: &Plan, testbed: &Testbed, directory: &std::path::Path) -> Result<(), LabError> {
    for path in [Path::SHORT, Path::FLANNEL_EXPECT] {
        if plan.has(|own| needs(own, path)) {
            let configuration = one_run::far_configuration(testbed, path);
            far::check(&plan.setup.tools, testbed, directory, &path.to_string(), &configuration)?;
        }
    }
    Ok(())
}

/// Whether a run of `own` needs what the far daemon of `path` needs.
fn needs(own: Path, path: Path) -> bool {
    let short = path.way == crate::container::Path::KtsnShort && own.way == path.way;
    short || (path.receiver == Receiver::Expect && own.receiver == Receiver::Expect)
}

/// All rounds of all scenes and paths.
fn measure(bench: &Bench<'_>, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    let plan = bench.plan;
    let mut document = Document::new("receive", plan.setup.command.clone());
    describe(plan, &mut document);
    let (mut series, mut runs, mut sequence) = (Vec::new(), Vec::new(), 0);
    for round in 1..=plan.rounds {
        for &scene in &plan.scenes {
            let refusals = plan.setup.wait_until_quiet(watch)?;
            let running = scene.load().start(bench.testbed, bench.directory, plan.setup.functional)?;
            for path in plan.paths_of(scene) {
                watch(Event::Step(&format!("round {round}, {path}, {scene}")));
                let spec = RunSpec { path, scene, load: &running, round };
                let ((mut one, run), voided) = repeat_void(&path.to_string(), watch, || {
                    sequence += 1;
                    // Streams of one run differ in the upper half.
                    bench.run(&spec, sequence << 16)
                })?;
                one.voided_rounds = Some(voided + u64::from(refusals));
                series.push(one);
                runs.push(run);
                watch(Event::Done);
            }
        }
    }
    document.add_series(series);
    Ok(Outcome { document, runs })
}

/// What the experiment was asked to do, and how it places its threads.
fn describe(plan: &Plan, document: &mut Document) {
    let functional = plan.setup.functional;
    document.set_parameters(&serde_json::json!({
        "payload_octets": [PAYLOAD_OCTETS],
        "scenes": plan.scenes.iter().map(|scene| scene.describe()).collect::<Vec<_>>(),
        "span_ns": plan.span.get(),
        "rounds": plan.rounds,
        "interleaved": true,
        "lead_ns": LEAD.get(),
        "void_rule": VOID_RULE,
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
