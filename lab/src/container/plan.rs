// SPDX-License-Identifier: Apache-2.0
//! What the experiment `container` measures.

use super::load::Load;
use super::path::Path;
use crate::error::LabError;
use crate::experiment::{Setup, none_twice};
use ktsn_measure::payload::check_size;
use ktsn_time::Nanos;

/// How far ahead programs with a transmit time send, unless an experiment says otherwise.
pub const LEAD: Nanos = Nanos::from_micros(300);

/// The observers stay for 300 ms after the last call.
const LEAD_MAX: Nanos = Nanos::from_millis(200);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The document's name.
    pub experiment: &'static str,
    /// The paths, in the order of each round.
    pub paths: Vec<Path>,
    /// Payloads, in octets.
    pub payloads: Vec<usize>,
    /// What goes through the same nodes meanwhile, in the order of each round.
    pub loads: Vec<Load>,
    /// Rounds.
    pub rounds: u32,
    /// Frames of one run: one path, payload and round.
    pub frames: u64,
    /// Distance of two transmit times.
    pub period: Nanos,
    /// How far ahead programs with a transmit time send.
    pub lead: Nanos,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// The paths that are measured beside a load. Those through the switch are idle only: its polling thread has a CPU for itself, which
    /// is the load's. So are those of a qdisc: the load's frames have no time that it could keep.
    pub fn paths_beside(&self, load: Load) -> impl Iterator<Item = Path> {
        self.paths
            .iter()
            .copied()
            .filter(move |path| load == Load::Idle || !(path.is_switched() || path.has_qdisc()))
    }

    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        let usage = |text: String| Err(LabError::Usage(text));
        let lists = [self.paths.len(), self.payloads.len(), self.loads.len()];
        if lists.contains(&0) || self.rounds == 0 || self.frames == 0 {
            let expected = "expected a path, a payload, a load, a round and a frame at least";
            return usage(format!("nothing to measure: {expected}"));
        }
        if !(Nanos::from_micros(500)..=Nanos::from_seconds(1)).contains(&self.period) {
            return usage(format!("period: {}: expected 500 us to 1 s", self.period));
        }
        if !(Nanos::from_micros(50)..=LEAD_MAX).contains(&self.lead) {
            return usage(format!("lead: {}: expected 50 us to 200 ms", self.lead));
        }
        for &octets in &self.payloads {
            check_size(octets).map_err(|error| LabError::Usage(format!("payload: {error}")))?;
            // Larger ones would be fragmented on the overlay, and matched by their first fragment only.
            if octets > 1400 {
                return usage(format!(
                    "payload: {octets} octets do not fit into the overlay's MTU: expected at most 1400"
                ));
            }
        }
        none_twice("path", &self.paths)?;
        none_twice("load", &self.loads)
    }
}
