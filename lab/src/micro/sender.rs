// SPDX-License-Identifier: Apache-2.0
//! What one `sendmsg` with a transmit time costs its caller.
//!
//! In: a destination, how many batches. Out: nanoseconds per call, clock reading included. It is an ordinary program:
//! whatever is preloaded takes its calls, or the kernel does. It runs as a process of its own.
//!
//! ```text
//!  batch: first send (somebody may sleep past it: a doorbell) ─ 255 sends behind it (none) ── all leave ── pause
//!                                                             T = now + 20 ms, 2 µs apart
//! ```

use crate::error::LabError;
use ktsn_measure::clock::{RealTime, ScheduleClock, monotonic_now, sleep_until};
use ktsn_measure::payload::blank;
use ktsn_measure::socket::Udp;
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// Sends of one batch; a client's ring holds four times as many.
pub const BATCH: i64 = 256;
/// Octets of payload.
pub const PAYLOAD_OCTETS: usize = 64;
const AHEAD: Nanos = Nanos::from_millis(20);
const APART: Nanos = Nanos::from_micros(2);
/// From the last transmit time of a batch to the next one: the consumer sleeps again.
const PAUSE: Nanos = Nanos::from_millis(5);

/// What the calls cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Every first call of a batch.
    pub first_ns: Statistics,
    /// All other calls.
    pub rest_ns: Statistics,
    /// Samples in `first_ns`.
    pub first_count: u64,
    /// Samples in `rest_ns`.
    pub rest_count: u64,
    /// Two clock readings, one after the other: contained in every sample once.
    pub clock_ns: Statistics,
}

/// Sends `batches` batches; the first two are not counted (they attach and register).
///
/// # Errors
/// A right is missing, or the system refuses a send.
pub fn run(destination: SocketAddr, batches: u32, real_time: RealTime) -> Result<Cost, LabError> {
    let socket = Udp::connected(destination).map_err(LabError::system("socket"))?;
    socket.set_tx_time(ScheduleClock::Tai).map_err(LabError::system("SO_TXTIME"))?;
    let mut payload = blank(PAYLOAD_OCTETS).map_err(|error| LabError::Usage(error.to_string()))?;
    let (mut first, mut rest) = (Vec::new(), Vec::with_capacity(batches as usize * BATCH as usize));
    real_time.apply().map_err(|error| LabError::Impossible {
        what: error.to_string(),
        remedy: "run as root".to_owned(),
    })?;
    let mut sequence = 0_u64;
    for batch in 0..batches.saturating_add(2) {
        let base = ScheduleClock::Tai.now().saturating_add(AHEAD);
        for index in 0..BATCH {
            payload[..8].copy_from_slice(&sequence.to_be_bytes());
            sequence += 1;
            let at = base.saturating_add(APART.saturating_mul(index));
            let before = monotonic_now();
            let sent = socket.send_at(&payload, at);
            let cost = monotonic_now().since(before);
            sent.map_err(LabError::system("sendmsg"))?;
            match (batch, index) {
                (0 | 1, _) => {}
                (_, 0) => first.push(cost),
                _ => rest.push(cost),
            }
        }
        sleep_until(base.saturating_add(APART.saturating_mul(BATCH)).saturating_add(PAUSE));
    }
    let clock: Vec<Nanos> = (0..BATCH)
        .map(|_| {
            let before = monotonic_now();
            monotonic_now().since(before)
        })
        .collect();
    let statistics = |samples: &[Nanos]| Statistics::of(samples.iter().copied());
    match (statistics(&first), statistics(&rest), statistics(&clock)) {
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
