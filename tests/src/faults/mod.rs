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
pub mod talker;
pub mod tap;

#[allow(unsafe_code)]
pub(crate) mod sys;

pub use bed::Bed;
pub use daemon::{Attachment, Daemon};
pub use tap::Tap;

use std::time::{Duration, Instant};

/// Asks every few milliseconds until `done` answers with something, at most `limit`.
///
/// # Panics
/// When that takes longer; `what` says what was waited for.
pub fn eventually<T>(what: &str, limit: Duration, mut done: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(answer) = done() {
            return answer;
        }
        assert!(start.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
