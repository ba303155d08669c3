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

use crate::carry_out::{Session, carry_out};
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
    let paths = &plan.paths;
    container::check(paths)?;
    let measure = |session: &mut Session<'_>| {
        let directory = crate::carry_out::directory()?;
        let directory = directory.path();
        container::measure(paths, session, directory)?;
        session.document.parameters.insert("cpu".to_owned(), container::cpu::METHOD.into());
        if turns::is_asked_for(paths) {
            turns::measure(paths, session)?;
        }
        if plan.attachments > 0 {
            crowd::measure(paths, plan.attachments, session)?;
        }
        if paths.paths.contains(&container::Path::Ktsn) {
            peers::measure(paths, session)?;
        }
        Ok(())
    };
    carry_out(&paths.setup.terms(paths.experiment), watch, measure, |document, _| {
        bars::compare(document);
        document.published = paper::beside(document);
    })
}
