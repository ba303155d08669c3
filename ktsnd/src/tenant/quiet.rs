// SPDX-License-Identifier: Apache-2.0
//! Log lines that clients can cause, in bounded number.

use std::time::{Duration, Instant};

/// Lets a line about clients through once a second: they can cause as many as they like.
#[derive(Default)]
pub(super) struct Quiet(Option<Instant>);

impl Quiet {
    /// Whether this one may be told.
    pub(super) fn may(&mut self) -> bool {
        let may = self.0.is_none_or(|at| at.elapsed() >= Duration::from_secs(1));
        if may {
            self.0 = Some(Instant::now());
        }
        may
    }
}
