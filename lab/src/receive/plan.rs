// SPDX-License-Identifier: Apache-2.0
//! What the experiment `receive` measures. In: scenes, paths, rounds, a span. Out: the runs, or what cannot be measured.

use super::path::Path;
use super::scene::Scene;
use crate::error::LabError;
use crate::experiment::{Setup, none_twice};
use ktsn_time::Nanos;

/// Octets of payload.
pub const PAYLOAD_OCTETS: usize = 64;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenes, in the order of each round.
    pub scenes: Vec<Scene>,
    /// The paths of every scene; none: each scene has its own.
    pub paths: Vec<Path>,
    /// Rounds.
    pub rounds: u32,
    /// Length of one run: one path and scene of one round.
    pub span: Nanos,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// The paths of a scene.
    pub(super) fn paths_of(&self, scene: Scene) -> Vec<Path> {
        if self.paths.is_empty() { scene.paths() } else { self.paths.clone() }
    }

    /// Frames of a stream in one run.
    pub(super) fn frames(&self, scene: Scene, period: Nanos) -> u64 {
        let span = self.span.get() as f64 * scene.times_longer();
        ((span / period.get().max(1) as f64).ceil() as u64).max(1)
    }

    pub(super) fn has(&self, is: impl Fn(Path) -> bool) -> bool {
        self.scenes.iter().any(|&scene| self.paths_of(scene).into_iter().any(&is))
    }

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        if self.scenes.is_empty() || self.rounds == 0 || self.span <= Nanos::ZERO {
            let expected = "expected a scene, a round and some time at least";
            return Err(LabError::Usage(format!("nothing to measure: {expected}")));
        }
        none_twice("path", &self.paths)?;
        none_twice("scene", &self.scenes)
    }
}
