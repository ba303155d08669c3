// SPDX-License-Identifier: Apache-2.0
//! The virtual machine's side of a datapath, and whether a frame has come through it.

use super::endpoint::Endpoint;
use super::frame::{self, Kind};
use super::guest::Guest;
use crate::error::LabError;
use std::time::Duration;

/// Longest wait for the first frame of a direction.
pub(super) const PASSES_MAX: Duration = Duration::from_secs(10);

/// What is on the virtual machine's side.
pub(super) enum Near {
    /// The stand-in's end.
    StandIn(Endpoint),
    /// A guest.
    Guest(Guest),
}

/// Takes what has arrived; whether a trial was among it.
///
/// # Errors
/// The end's.
pub(super) fn has_trial(end: &mut Endpoint) -> Result<bool, LabError> {
    let mut arrived = false;
    let each = &mut |octets: &[u8], _| {
        arrived |= frame::read(octets).is_some_and(|(kind, _)| kind == Kind::Trial);
    };
    while end.poll(each).map_err(LabError::system("receive"))? > 0 {}
    Ok(arrived)
}
