// SPDX-License-Identifier: Apache-2.0
//! The calls that are timed, and what they cost: what sender and receiver share.

use crate::error::LabError;
use ktsn_measure::clock::{RealTime, monotonic_now};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use serde::{Deserialize, Serialize};

/// Sends of one batch; a client's ring holds four times as many.
pub const BATCH: i64 = 256;
/// Datagrams of one `sendmmsg`.
pub const BURST: i64 = 64;
/// Octets of payload.
pub const PAYLOAD_OCTETS: usize = 64;
/// How long before its transmit time a frame of a loop is sent.
pub const LEAD: Nanos = Nanos::from_micros(300);

/// What the calls cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Every first call of a batch.
    pub first_ns: Statistics,
    /// All other calls; of bursts, a datagram of each.
    pub rest_ns: Statistics,
    /// Samples in `first_ns`.
    pub first_count: u64,
    /// Samples in `rest_ns`.
    pub rest_count: u64,
    /// Two clock readings, one after the other: contained in every sample once.
    pub clock_ns: Statistics,
}

ktsn_model::words! {
    /// Which calls are timed.
    #[derive(Serialize, Deserialize)]
    pub enum Calls {
        /// `sendmsg` with SCM_TXTIME.
        Timed = "timed",
        /// `sendmmsg` of [`BURST`] datagrams with SCM_TXTIME.
        Bursts = "bursts",
        /// `sendmsg` on a socket without SO_TXTIME.
        Untimed = "untimed",
        /// `sendmsg` with SCM_TXTIME in a loop of 1 kHz, [`LEAD`] ahead of transmit times on a grid.
        Loop = "loop",
        /// As [`Self::Loop`], for the program's own clock plus [`LEAD`].
        Following = "following",
        /// `recv` where a datagram waits.
        Receives = "receives",
        /// `poll` where a datagram waits.
        Polls = "polls",
    }
}

pub(super) fn apply(real_time: RealTime) -> Result<(), LabError> {
    real_time
        .apply()
        .map_err(|error| LabError::Impossible { what: error.to_string(), remedy: "run as root".to_owned() })
}

pub(super) fn cost_of(first: &[Nanos], rest: &[Nanos]) -> Result<Cost, LabError> {
    let clock: Vec<Nanos> = (0..BATCH)
        .map(|_| {
            let before = monotonic_now();
            monotonic_now().since(before)
        })
        .collect();
    let statistics = |samples: &[Nanos]| Statistics::of(samples.iter().copied());
    match (statistics(first), statistics(rest), statistics(&clock)) {
        (Some(first_ns), Some(rest_ns), Some(clock_ns)) => Ok(Cost {
            first_ns,
            rest_ns,
            first_count: first.len() as u64,
            rest_count: rest.len() as u64,
            clock_ns,
        }),
        _ => Err(LabError::Usage("batches: expected 1 at least".to_owned())),
    }
}
