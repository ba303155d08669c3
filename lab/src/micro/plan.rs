// SPDX-License-Identifier: Apache-2.0
//! What the micro-benchmarks measure.

use crate::experiment::Setup;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seconds per figure.
    pub seconds: f64,
    /// Programs, lock, command.
    pub setup: Setup,
}
