// SPDX-License-Identifier: Apache-2.0
//! `ktsn doctor --vm`: a guest and its host, looked at from either side.
//!
//! In: this machine, and the side that the user names, if any. Out: findings: first where this is, then what the side lacks. A machine
//! may be both: a guest that runs guests.

#[cfg(test)]
mod argument_tests;
mod arguments;
pub(super) mod facts;
mod guest;
mod host;
mod place;
#[cfg(test)]
mod tests;

use std::path::Path;

use clap::ValueEnum;

use super::finding::Finding;
use facts::Facts;

/// The side to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Side {
    /// Found out from the processor and the firmware.
    Auto,
    /// This is a guest.
    Guest,
    /// This is a host.
    Host,
}

/// All findings about virtual machines.
pub(super) fn findings(side: Side) -> Vec<Finding> {
    judge(side, &Facts::capture(Path::new("/")))
}

/// What facts mean; pure.
fn judge(side: Side, facts: &Facts) -> Vec<Finding> {
    let place = place::judge(side, facts);
    let mut findings = vec![place.finding];
    if place.is_guest {
        findings.extend(guest::findings(facts));
    }
    if place.is_host {
        findings.extend(host::findings(facts));
    }
    findings
}
