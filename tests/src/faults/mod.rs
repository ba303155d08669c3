// SPDX-License-Identifier: Apache-2.0
//! The shipped daemon and library on a testbed, for tests of bad input and faults.
//!
//! In: what a test breaks. Out: what arrived at the wire, what the daemon and the programs said. Nothing here is
//! timed except that no datagram may arrive before its TxTime.

pub mod bed;
pub mod control;
pub mod crowd;
pub mod daemon;
pub(crate) mod ear;
pub mod frames;
pub mod raw;
pub mod second;
pub mod stamped;
pub mod talker;
pub mod tap;

#[allow(unsafe_code)]
pub(crate) mod sys;

pub use bed::Bed;
pub use daemon::{Attachment, Daemon};
pub use ktsn_eventually::{eventually, try_eventually};

use std::time::Duration;

/// How long a number does not change that stands still.
const STILL: Duration = Duration::from_millis(200);

/// Waits until what `count` gives stays as it is for 200 ms; that value.
///
/// # Panics
/// When it goes on changing for `limit`.
pub fn stands_still<T: PartialEq>(what: &str, limit: Duration, count: impl Fn() -> T) -> T {
    eventually(what, limit, || {
        let before = count();
        std::thread::sleep(STILL);
        Some(count()).filter(|after| *after == before)
    })
}
pub use tap::Tap;
