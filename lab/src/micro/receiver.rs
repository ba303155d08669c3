// SPDX-License-Identifier: Apache-2.0
//! What a receive or poll call costs its caller where a datagram waits for it.
//!
//! In: the call, how many batches. Out: nanoseconds per call. It is an ordinary program, as [`super::sender`] is,
//! and runs as a process of its own. It sends to itself by the loopback device.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

use ktsn_measure::clock::{RealTime, ScheduleClock, monotonic_now, sleep_until};
use ktsn_time::Nanos;

use super::calls::{BATCH, Calls, Cost, PAYLOAD_OCTETS, apply, cost_of};
use super::sys;
use crate::error::LabError;

/// Calls between two readings of the clock, which tells 10 ns apart on some machines.
const GROUP: i64 = 32;
/// Between two batches.
const PAUSE: Nanos = Nanos::from_millis(5);

/// Receives `batches` batches of [`BATCH`] datagrams; the first two are not counted. Each batch lies in the socket before its first call.
pub(super) fn run(calls: Calls, batches: u32, real_time: RealTime) -> Result<Cost, LabError> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(LabError::system("bind"))?;
    let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(LabError::system("bind"))?;
    let address = socket.local_addr().map_err(LabError::system("getsockname"))?;
    sender.connect(address).map_err(LabError::system("connect"))?;
    apply(real_time)?;
    let (mut first, mut rest) = (Vec::new(), Vec::with_capacity(batches as usize * (BATCH / GROUP) as usize));
    let (payload, mut buffer) = ([0; PAYLOAD_OCTETS], [0; 2048]);
    for batch in 0..batches.saturating_add(2) {
        for _ in 0..BATCH {
            sender.send(&payload).map_err(LabError::system("send"))?;
        }
        for group in 0..BATCH / GROUP {
            let before = monotonic_now();
            for _ in 0..GROUP {
                let received = match calls {
                    Calls::Polls => sys::poll(socket.as_raw_fd()),
                    _ => socket.recv(&mut buffer),
                };
                received.map_err(LabError::system("recv or poll"))?;
            }
            let cost = Nanos::new(monotonic_now().since(before).get() / GROUP);
            match (batch, group) {
                (0 | 1, _) => {}
                (_, 0) => first.push(cost),
                _ => rest.push(cost),
            }
        }
        if calls == Calls::Polls {
            for _ in 0..BATCH {
                socket.recv(&mut buffer).map_err(LabError::system("recv"))?;
            }
        }
        sleep_until(ScheduleClock::Tai.now().saturating_add(PAUSE));
    }
    cost_of(&first, &rest)
}
