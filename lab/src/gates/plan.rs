// SPDX-License-Identifier: Apache-2.0
//! What the experiment `gates` measures.

use super::traffic::CYCLE_TIME;
use crate::error::LabError;
use crate::experiment::Setup;
use ktsn_time::Nanos;

/// The path's name.
pub const PATH: &str = "ktsn";
/// A latency of class 7 above this misses the deadline.
pub const DEADLINE: Nanos = Nanos::from_micros(400);
/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds.
    pub rounds: u32,
    /// Cycles of a round.
    pub cycles: u64,
    /// Whether the daemon has the schedule; without it the same frames are judged, and the bars are missed.
    pub gated: bool,
    /// Whether the watchdog runs; without it no overrun can be proven.
    pub watchdog: bool,
    /// Programs, lock, command.
    pub setup: Setup,
}

impl Plan {
    /// # Errors
    /// [`LabError::Usage`] names what cannot be measured.
    pub fn check(&self) -> Result<(), LabError> {
        if self.rounds == 0 || self.cycles < 10 {
            return Err(LabError::Usage(format!(
                "rounds, seconds: {} rounds of {} cycles: expected one round and 10 cycles of {CYCLE_TIME} at least",
                self.rounds, self.cycles
            )));
        }
        Ok(())
    }
}
