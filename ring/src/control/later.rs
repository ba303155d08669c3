// SPDX-License-Identifier: Apache-2.0
//! The control message of a datagram that the kernel is to send at its transmit time: a header of fixed length, then the octets of
//! the destination's address, of the control data, and of the payload. The program's socket comes with the message.
//!
//! In: values, or the octets of one message from an untrusted peer. Out: octets, or a checked value. No allocation, no panic.

use super::{ControlError, LATER, pair};
use crate::layout::MAGIC;

/// Octets before the destination's address.
pub(super) const HEADER_OCTETS: usize = 40;
/// Most octets of a destination's address: `sizeof(struct sockaddr_storage)`.
const NAME_MAX: usize = 128;
/// Most octets of control data.
pub const CONTROL_MAX: usize = 1024;
/// Most octets of a payload: more than any UDP datagram has.
pub const PAYLOAD_MAX: usize = 65_535;
/// Octets of the longest message: a buffer one greater shows a message that is too long.
pub const LATER_OCTETS_MAX: usize = HEADER_OCTETS + NAME_MAX + CONTROL_MAX + PAYLOAD_MAX;

/// MSG_DONTROUTE.
const DONTROUTE: u32 = 0x4;
/// MSG_DONTWAIT.
const DONTWAIT: u32 = 0x40;
/// MSG_CONFIRM.
const CONFIRM: u32 = 0x800;
/// MSG_NOSIGNAL.
const NOSIGNAL: u32 = 0x4000;
/// Flags of `sendmsg` that a call may have whose datagram is sent later.
pub const LATER_FLAGS: u32 = DONTROUTE | DONTWAIT | CONFIRM | NOSIGNAL;
/// Linux numbers of the clocks of a transmit time: CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_BOOTTIME, CLOCK_TAI.
pub const LATER_CLOCKS: [u32; 4] = [0, 1, 7, 11];

/// The header of a [`Later`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaterHeader {
    /// The Linux number of the clock of `tx_time`: one of [`LATER_CLOCKS`].
    pub clock: u32,
    /// Nanoseconds of that clock: the kernel gets the datagram then, not before.
    pub tx_time: u64,
    /// Flags of `sendmsg`: none but [`LATER_FLAGS`].
    pub flags: u32,
    /// Octets of the destination's address; 0 = the call names none.
    pub name_octets: u32,
    /// Octets of control data.
    pub control_octets: u32,
    /// Octets of the payload.
    pub payload_octets: u32,
}

impl LaterHeader {
    /// The words of the header, each little endian in memory.
    #[must_use]
    pub const fn encode(&self) -> [u64; HEADER_OCTETS / 8] {
        [
            MAGIC.to_le(),
            pair(LATER as u32, self.clock).to_le(),
            self.tx_time.to_le(),
            pair(self.flags, self.name_octets).to_le(),
            pair(self.control_octets, self.payload_octets).to_le(),
        ]
    }
}

/// A datagram that the kernel is to send at its transmit time, with the socket. Sent only to a daemon that announces by
/// [`crate::layout::LATER_HORIZON`] that it takes such messages.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Later<'a> {
    /// The header.
    pub header: LaterHeader,
    /// The destination's address, as `msg_name` has it; empty where the call names none.
    pub name: &'a [u8],
    /// Control messages, as `msg_control` has them, without SCM_TXTIME.
    pub control: &'a [u8],
    /// The payload.
    pub payload: &'a [u8],
}

/// Without the program's octets: the result may be logged.
impl core::fmt::Debug for Later<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        self.header.fmt(f)
    }
}

/// Reads what follows the first two words, which the caller has read.
pub(super) fn parse(message: &[u8]) -> Result<Later<'_>, ControlError> {
    let length = || ControlError::Length(message.len());
    let (header, rest) = message.split_at_checked(HEADER_OCTETS).ok_or_else(length)?;
    let ([_, second, third, fourth, fifth], []) = header.as_chunks::<8>() else { return Err(length()) };
    let [second, tx_time, fourth, fifth] =
        [second, third, fourth, fifth].map(|word| u64::from_le_bytes(*word));
    let (low, high) = (|word: u64| word as u32, |word: u64| (word >> 32) as u32);
    let header = LaterHeader {
        clock: high(second),
        tx_time,
        flags: low(fourth),
        name_octets: high(fourth),
        control_octets: low(fifth),
        payload_octets: high(fifth),
    };
    if low(second) != u32::from(LATER) || header.flags & !LATER_FLAGS != 0 {
        return Err(ControlError::Reserved);
    }
    if !LATER_CLOCKS.contains(&header.clock) {
        return Err(ControlError::Clock(header.clock));
    }
    let (name_octets, control_octets) = (header.name_octets as usize, header.control_octets as usize);
    if name_octets > NAME_MAX || control_octets > CONTROL_MAX || header.payload_octets as usize > PAYLOAD_MAX
    {
        return Err(length());
    }
    let (name, rest) = rest.split_at_checked(name_octets).ok_or_else(length)?;
    let (control, payload) = rest.split_at_checked(control_octets).ok_or_else(length)?;
    if payload.len() != header.payload_octets as usize {
        return Err(length());
    }
    Ok(Later { header, name, control, payload })
}
