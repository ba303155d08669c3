// SPDX-License-Identifier: Apache-2.0
//! The readers of `pmc`'s and `chronyc`'s answers for a fuzz target.

use ktsn_time::Nanos;

use super::parse::{chronyc, pmc};

/// What `pmc` and `chronyc` say with this text, each: the fault, where the clock is not to be trusted, and the greatest error.
#[must_use]
pub fn clock_answers(text: &str) -> [(Option<String>, Option<Nanos>); 2] {
    [pmc(text), chronyc(text)].map(|reading| (reading.fault, reading.error))
}
