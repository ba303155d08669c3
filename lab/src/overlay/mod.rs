// SPDX-License-Identifier: Apache-2.0
//! The experiment `overlay`: all ways from pod to pod, idle and beside best-effort traffic of the same pods; and one ktsnd
//! with 200 attachments.
//!
//! In: a [`Plan`]. Out: a document `ktsn.results/1` with its raw records: the paths as [`crate::container`] measures them, series
//! of the many attachments, what a frame costs with many peers, and the published figures that ours stand beside. It never
//! repeats anything for what it shows.

pub mod bars;
mod crowd;
mod paper;
mod peers;
mod turns;

pub use crowd::{ATTACHMENTS, Phases};

use crate::container;
use crate::error::LabError;
use crate::experiment::{Outcome, Watch};

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Paths, payloads, loads, rounds.
    pub paths: container::Plan,
    /// Attachments of the one ktsnd; 0 leaves that part out.
    pub attachments: usize,
}

/// Measures.
///
/// # Errors
/// [`LabError`]; everything that was set up is removed then, too.
pub fn run(plan: &Plan, watch: &mut Watch<'_>) -> Result<Outcome, LabError> {
    let (mut many, mut by_turns) = (Vec::new(), Vec::new());
    let paths = &plan.paths;
    let mut outcome = container::run_with(paths, watch, |document, watch| {
        if plan.attachments > 0 {
            many = crowd::measure(paths, plan.attachments, watch)?;
            document.parameters.insert("attachments".to_owned(), crowd::describe(plan.attachments).into());
        }
        if turns::is_asked_for(paths) {
            by_turns = turns::measure(paths, document, watch)?;
        }
        if paths.paths.contains(&container::Path::Ktsn) {
            peers::measure(paths, document, watch)?;
        }
        Ok(())
    })?;
    for rounds in by_turns.into_iter().chain(many) {
        let (series, runs): (Vec<_>, Vec<_>) = rounds.into_iter().unzip();
        outcome.document.add_rounds(series);
        outcome.runs.extend(runs);
    }
    outcome.document.parameters.insert("cpu".to_owned(), container::cpu::METHOD.into());
    bars::compare(&mut outcome.document);
    outcome.document.published = paper::beside(&outcome.document);
    Ok(outcome)
}
