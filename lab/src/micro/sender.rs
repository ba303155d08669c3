// SPDX-License-Identifier: Apache-2.0
//! What one send costs its caller: `sendmsg` with a transmit time or without, and a datagram of a `sendmmsg`.
//!
//! In: a destination, the calls, how many batches. Out: nanoseconds per datagram, clock reading included. It is an ordinary program:
//! whatever is preloaded takes its calls, or the kernel does. It runs as a process of its own.
//!
//! ```text
//!  batch: first send (the worker may sleep past it: a doorbell) ─ 255 sends behind it (none) ── all leave ── pause
//!                                                             T = now + 20 ms, 2 µs apart
//!  loop:  wake ── one send for 300 µs later ── sleep, 1,000 times a second: what control programs do
//! ```

pub use super::calls::{BATCH, BURST, Calls, Cost, LEAD, PAYLOAD_OCTETS};
use super::calls::{apply, cost_of};
use crate::error::LabError;
use ktsn_measure::clock::{RealTime, ScheduleClock, monotonic_now, sleep_until};
use ktsn_measure::payload::blank;
use ktsn_measure::socket::{Burst, Udp};
use ktsn_time::{Nanos, TxTime};
use std::net::SocketAddr;

const AHEAD: Nanos = Nanos::from_millis(20);
const APART: Nanos = Nanos::from_micros(2);
/// From the last transmit time of a batch to the next one: the consumer sleeps again.
const PAUSE: Nanos = Nanos::from_millis(5);

/// Period of a loop.
const PERIOD: Nanos = Nanos::from_millis(1);
/// Frames of a loop that take as long as a batch.
pub const LOOP: u32 = 26;
/// Frames of a loop that are not counted: they attach and register, and the worker learns the stream.
const LOOP_LEARNS: u32 = 200;

/// The calls of one batch: its samples, the first one's apart.
struct Sender {
    socket: Udp,
    calls: Calls,
    payload: Vec<u8>,
    burst: Burst,
    sequence: u64,
}

impl Sender {
    fn new(destination: SocketAddr, calls: Calls) -> Result<Self, LabError> {
        let socket = Udp::connected(destination).map_err(LabError::system("socket"))?;
        if calls != Calls::Untimed {
            socket.set_tx_time(ScheduleClock::Tai).map_err(LabError::system("SO_TXTIME"))?;
        }
        let payload = blank(PAYLOAD_OCTETS).map_err(|error| LabError::Usage(error.to_string()))?;
        let burst = Burst::new(&payload, BURST as usize);
        Ok(Self { socket, calls, payload, burst, sequence: 0 })
    }

    fn next_number(&mut self) -> [u8; 8] {
        self.sequence += 1;
        (self.sequence - 1).to_be_bytes()
    }

    /// One call for the datagrams from `index` of the batch on; what a datagram cost.
    fn call(&mut self, base: TxTime, index: i64) -> Result<Nanos, LabError> {
        let at = |index: i64| base.saturating_add(APART.saturating_mul(index));
        if self.calls == Calls::Bursts {
            for number in 0..BURST as usize {
                let sequence = self.next_number();
                if let Some(payload) = self.burst.payload_mut(number) {
                    payload[..8].copy_from_slice(&sequence);
                }
            }
            let sent = self.socket.send_burst(&mut self.burst, |number| at(index + number as i64));
            let (count, lasted) = sent.map_err(LabError::system("sendmmsg"))?;
            if count != BURST as usize {
                return Err(LabError::Usage(format!("sendmmsg took {count} of {BURST}")));
            }
            return Ok(Nanos::new(lasted.get() / BURST));
        }
        let sequence = self.next_number();
        self.payload[..8].copy_from_slice(&sequence);
        let before = monotonic_now();
        let sent = match self.calls {
            Calls::Untimed => self.socket.send_message(&self.payload),
            _ => self.socket.send_at(&self.payload, at(index)),
        };
        let cost = monotonic_now().since(before);
        sent.map_err(LabError::system("sendmsg"))?;
        Ok(cost)
    }
}

/// Sends `batches` batches; the first two are not counted (they attach and register).
///
/// # Errors
/// A right is missing, or the system refuses a send.
pub fn run(
    destination: SocketAddr,
    calls: Calls,
    batches: u32,
    real_time: RealTime,
) -> Result<Cost, LabError> {
    if matches!(calls, Calls::Receives | Calls::Polls) {
        return super::receiver::run(calls, batches, real_time);
    }
    let mut sender = Sender::new(destination, calls)?;
    if matches!(calls, Calls::Loop | Calls::Following) {
        return run_loop(&mut sender, batches.saturating_mul(LOOP), real_time);
    }
    let step = if calls == Calls::Bursts { BURST } else { 1 };
    let (mut first, mut rest) = (Vec::new(), Vec::with_capacity(batches as usize * BATCH as usize));
    apply(real_time)?;
    for batch in 0..batches.saturating_add(2) {
        let base = ScheduleClock::Tai.now().saturating_add(AHEAD);
        let mut index = 0;
        while index < BATCH {
            let cost = sender.call(base, index)?;
            match (batch, index) {
                (0 | 1, _) => {}
                (_, 0) => first.push(cost),
                _ => rest.push(cost),
            }
            index += step;
        }
        let end = if calls == Calls::Untimed {
            ScheduleClock::Tai.now()
        } else {
            base.saturating_add(APART.saturating_mul(BATCH))
        };
        sleep_until(end.saturating_add(PAUSE));
    }
    cost_of(&first, &rest)
}

/// Sends one frame each [`PERIOD`], [`LEAD`] ahead; `frames` of them are counted. The first one's cost stands alone.
fn run_loop(sender: &mut Sender, frames: u32, real_time: RealTime) -> Result<Cost, LabError> {
    let (mut first, mut rest) = (Vec::new(), Vec::with_capacity(frames as usize));
    apply(real_time)?;
    let mut due = ScheduleClock::Tai.now().saturating_add(LEAD).saturating_add(PERIOD);
    for number in 0..frames.saturating_add(LOOP_LEARNS) {
        sleep_until(due.saturating_add(Nanos::ZERO.saturating_sub(LEAD)));
        let at = match sender.calls {
            Calls::Following => ScheduleClock::Tai.now().saturating_add(LEAD),
            _ => due,
        };
        let cost = sender.call(at, 0)?;
        if number == 0 {
            first.push(cost);
        } else if number >= LOOP_LEARNS {
            rest.push(cost);
        }
        due = due.saturating_add(PERIOD);
    }
    cost_of(&first, &rest)
}
