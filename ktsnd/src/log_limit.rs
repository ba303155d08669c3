// SPDX-License-Identifier: Apache-2.0
//! A bound on log lines that clients and pods can cause.

use std::time::{Duration, Instant};

/// Allows one log line a second: clients and pods can cause any number of lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLimit(Option<Instant>);

impl LogLimit {
    /// True when a line may be logged now.
    pub(crate) fn allows(&mut self) -> bool {
        let is_allowed = self.0.is_none_or(|at| at.elapsed() >= Duration::from_secs(1));
        if is_allowed {
            self.0 = Some(Instant::now());
        }
        is_allowed
    }
}
