// SPDX-License-Identifier: Apache-2.0
//! What the experiment `k8s` measures.

use super::site::Site;
use crate::error::LabError;
use crate::experiment::{Setup, none_twice};
use ktsn_measure::payload::check_size;
use ktsn_time::Nanos;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Where.
    pub site: Site,
    /// Octets of payload, in the order of each round.
    pub payloads: Vec<usize>,
    /// Rounds.
    pub rounds: u32,
    /// Frames of one run: one path, payload and round.
    pub frames: u64,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// Programs of this machine (of these only `ktsn` is used, for the tap), lock, command.
    pub setup: Setup,
}

impl Plan {
    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        if self.site.ways.is_empty() || self.payloads.is_empty() || self.rounds == 0 || self.frames == 0 {
            let expected = "expected a path, a payload, a round and a frame at least";
            return Err(LabError::Usage(format!("nothing to measure: {expected}")));
        }
        for &octets in &self.payloads {
            check_size(octets).map_err(|error| LabError::Usage(format!("payload: {error}")))?;
        }
        none_twice("ways", &self.site.ways.iter().map(|way| way.path).collect::<Vec<_>>())
    }
}
