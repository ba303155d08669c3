// SPDX-License-Identifier: Apache-2.0
//! Control messages between a program and the daemon: one struct each, fixed size, little endian.
//!
//! In: values, or the octets of one message from an untrusted peer. Out: octets, or a checked value. The reader of a
//! message that is not of these types, lengths and zeros ends the connection. No allocation, no panic.

use thiserror::Error;

use crate::layout::{ABI, MAGIC};

mod later;

pub use later::{CONTROL_MAX as LATER_CONTROL_MAX, PAYLOAD_MAX as LATER_PAYLOAD_MAX};
pub use later::{LATER_CLOCKS, LATER_FLAGS, LATER_OCTETS_MAX, Later, LaterHeader};

/// The lowest ring ABI that this crate serves.
pub const ABI_MIN: u16 = 1;

/// Octets of [`Hello`] without an interface.
const HELLO_OCTETS: usize = 16;
/// Octets of every other message but [`Later`], and of [`Hello`] with an interface.
pub const MESSAGE_OCTETS_MAX: usize = 24;

const HELLO: u16 = 1;
const HELLO_REPLY: u16 = 2;
const REGISTER: u16 = 3;
const UNREGISTER: u16 = 4;
const SHOW_PORT: u16 = 5;
const EXPECT: u16 = 6;
const LATER: u16 = 7;

/// No message of ours.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ControlError {
    /// Too short for a header, or not the length of its type.
    #[error("a message of {0} octets")]
    Length(usize),
    /// Not `KTSNRNG\0`.
    #[error("magic number {0:#x}")]
    Magic(u64),
    /// A type that no peer of ours sends.
    #[error("message type {0}")]
    Type(u16),
    /// Octets that must be zero are not.
    #[error("reserved octets are not zero")]
    Reserved,
    /// `abi_min` above `abi_max`, or 0.
    #[error("ABI range {0}..={1}")]
    AbiRange(u16, u16),
    /// A claim of SO_TXTIME that no program makes.
    #[error("SO_TXTIME claim {0:#x}")]
    Claim(u32),
    /// A status that no daemon sends.
    #[error("status {0}")]
    Status(u16),
    /// A clock on which no datagram is sent later.
    #[error("clock {0}")]
    Clock(u32),
}

/// The first message of a connection, with one socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Lowest ring ABI that the program speaks.
    pub abi_min: u16,
    /// Highest ring ABI that the program speaks.
    pub abi_max: u16,
    /// Interface of the attachment that is meant; 0 = the first one of the socket's namespace.
    pub interface_index: u32,
}

/// A [`Hello`] as it is sent.
#[derive(Clone, Copy, Debug)]
pub struct HelloMessage {
    octets: [u8; MESSAGE_OCTETS_MAX],
    has_interface: bool,
}

impl HelloMessage {
    /// What to send.
    #[must_use]
    pub const fn as_slice(&self) -> &[u8] {
        let short: &[u8; HELLO_OCTETS] = match self.octets.first_chunk() {
            Some(short) => short,
            None => &[0; HELLO_OCTETS],
        };
        if self.has_interface { &self.octets } else { short }
    }
}

/// How the daemon answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum HelloStatus {
    /// memfd and doorbell come with the message.
    Attached = 0,
    /// The socket's namespace has no attachment.
    NotAttached = 1,
    /// No common ABI.
    Version = 2,
    /// The attachment has all the clients it may have.
    ClientsMax = 3,
    /// Refused.
    Refused = 4,
}

/// The daemon's answer, with memfd and doorbell when attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HelloReply {
    /// The answer.
    pub status: HelloStatus,
    /// The ABI of the region; without a common one, the highest that the daemon speaks.
    pub abi: u16,
    /// The lowest ABI that the daemon speaks.
    pub abi_min: u16,
    /// Octets to map; 0 when not attached.
    pub region_octets: u32,
    /// Index of the attachment's interface in the program's namespace; 0 when not attached.
    pub interface_index: u32,
}

/// What a program says about SO_TXTIME of a socket, where the kernel does not know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TxtimeClaim {
    /// The kernel's socket has it.
    #[default]
    Kernel,
    /// This process did not set it: was it granted to this socket before, in another process?
    Asked,
    /// The program set CLOCK_TAI with these flags (1 deadline mode, 2 error reports), and the kernel refused.
    Tai(u8),
}

/// The flags of SO_TXTIME that there are.
pub const TXTIME_FLAGS: u8 = 3;
/// SOF_TXTIME_DEADLINE_MODE: a transmit time is the last instant, not the first.
pub const TXTIME_DEADLINE_MODE: u8 = 1;

impl TxtimeClaim {
    const fn to_word(self) -> u32 {
        match self {
            Self::Kernel => 0,
            Self::Asked => 1,
            Self::Tai(flags) => 2 | ((flags & TXTIME_FLAGS) as u32) << 8,
        }
    }

    const fn from_word(word: u32) -> Result<Self, ControlError> {
        match word {
            0 => Ok(Self::Kernel),
            1 => Ok(Self::Asked),
            word if word & !((TXTIME_FLAGS as u32) << 8) == 2 => Ok(Self::Tai((word >> 8) as u8)),
            word => Err(ControlError::Claim(word)),
        }
    }
}

/// A stream and its new token, with the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Index in the region's stream table.
    pub stream_index: u32,
    /// What frames of this registration carry.
    pub token: u32,
    /// SO_TXTIME where the kernel does not know it.
    pub txtime: TxtimeClaim,
    /// The daemon may keep the socket while the stream is registered, and answers with [`crate::stream_flags::KEPT`]. Sent only to a daemon
    /// that takes [`Later`] messages.
    pub is_kept: bool,
}

/// In the word of a claim: [`Register::is_kept`].
const IS_KEPT: u32 = 1 << 31;

/// A stream that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unregister {
    /// Index in the region's stream table.
    pub stream_index: u32,
    /// The token of its registration.
    pub token: u32,
}

/// The port that a registered UDP socket without one will have, with a second socket that is bound to it. The program closes the second
/// socket before it binds the first one. Sent only to a daemon that sets [`crate::stream_flags::TAKES_PORT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShowPort {
    /// Index in the region's stream table.
    pub stream_index: u32,
    /// What frames from this port carry.
    pub token: u32,
}

/// The program asks for a grant in the receive area ([`crate::receive`]): it has mapped the region, and the daemon may seal it now.
/// Sent only to a daemon that announces the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expect;

/// What a program sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// First on a connection.
    Hello(Hello),
    /// Any number of times after it.
    Register(Register),
    /// Any number of times after it.
    Unregister(Unregister),
    /// After the stream's Register.
    ShowPort(ShowPort),
    /// Any number of times after Hello; once is enough.
    Expect(Expect),
    /// Any number of times after Hello.
    Later(Later<'a>),
}

/// The ABI for a program that speaks `client` and a daemon that speaks `daemon` (lowest, highest): the highest that
/// both know, or `None`.
#[must_use]
pub const fn select_abi(client: (u16, u16), daemon: (u16, u16)) -> Option<u16> {
    let highest = if client.1 < daemon.1 { client.1 } else { daemon.1 };
    if highest >= client.0 && highest >= daemon.0 { Some(highest) } else { None }
}

/// Two u32, the lower address first.
const fn pair(first: u32, second: u32) -> u64 {
    first as u64 | (second as u64) << 32
}

/// Four u16, the lowest address first.
const fn quad(words: [u16; 4]) -> u64 {
    let [a, b, c, d] = words;
    a as u64 | (b as u64) << 16 | (c as u64) << 32 | (d as u64) << 48
}

const fn unquad(word: u64) -> [u16; 4] {
    [word as u16, (word >> 16) as u16, (word >> 32) as u16, (word >> 48) as u16]
}

fn octets24(words: [u64; 3]) -> [u8; 24] {
    let mut out = [0; 24];
    for (place, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    out
}

/// The words of a message of two or three words, the third zero if absent, and its type.
fn words(message: &[u8]) -> Result<([u64; 3], u16), ControlError> {
    // No loop over the chunks: it would become a call of memcpy, which libktsn does not have.
    let words = match message.as_chunks::<8>() {
        ([magic, second], []) => [*magic, *second, [0; 8]],
        ([magic, second, third], []) => [*magic, *second, *third],
        _ => return Err(ControlError::Length(message.len())),
    };
    let words = words.map(u64::from_le_bytes);
    if words[0] != MAGIC {
        return Err(ControlError::Magic(words[0]));
    }
    Ok((words, words[1] as u16))
}

const fn expect_length(message: &[u8], octets: usize) -> Result<(), ControlError> {
    if message.len() == octets { Ok(()) } else { Err(ControlError::Length(message.len())) }
}

impl Hello {
    /// The message. Without an interface it has the length that older daemons know.
    #[must_use]
    pub fn encode(&self) -> HelloMessage {
        let second = quad([HELLO, self.abi_min, self.abi_max, 0]);
        HelloMessage {
            octets: octets24([MAGIC, second, pair(self.interface_index, 0)]),
            has_interface: self.interface_index != 0,
        }
    }
}

impl HelloReply {
    /// The answer to a program that gets a region of `region_octets` octets of ABI `abi`.
    #[must_use]
    pub const fn attached(abi: u16, region_octets: u32, interface_index: u32) -> Self {
        Self { status: HelloStatus::Attached, abi, abi_min: ABI_MIN, region_octets, interface_index }
    }

    /// The answer to a program that gets none; it names the ABIs that this side speaks.
    #[must_use]
    pub const fn refusing(status: HelloStatus) -> Self {
        Self { status, abi: ABI as u16, abi_min: ABI_MIN, region_octets: 0, interface_index: 0 }
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_OCTETS_MAX] {
        let second = quad([HELLO_REPLY, self.status as u16, self.abi, self.abi_min]);
        octets24([MAGIC, second, pair(self.region_octets, self.interface_index)])
    }

    /// Reads the daemon's answer.
    ///
    /// # Errors
    /// Anything that is not one.
    pub fn parse(message: &[u8]) -> Result<Self, ControlError> {
        let (words, kind) = words(message)?;
        if kind != HELLO_REPLY {
            return Err(ControlError::Type(kind));
        }
        expect_length(message, MESSAGE_OCTETS_MAX)?;
        let [_, status, abi, abi_min] = unquad(words[1]);
        let status = match status {
            0 => HelloStatus::Attached,
            1 => HelloStatus::NotAttached,
            2 => HelloStatus::Version,
            3 => HelloStatus::ClientsMax,
            4 => HelloStatus::Refused,
            other => return Err(ControlError::Status(other)),
        };
        let (region_octets, interface_index) = (words[2] as u32, (words[2] >> 32) as u32);
        Ok(Self { status, abi, abi_min, region_octets, interface_index })
    }
}

impl Register {
    /// A stream whose SO_TXTIME is the kernel's affair.
    #[must_use]
    pub const fn new(stream_index: u32, token: u32) -> Self {
        Self { stream_index, token, txtime: TxtimeClaim::Kernel, is_kept: false }
    }

    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_OCTETS_MAX] {
        let claim = self.txtime.to_word() | if self.is_kept { IS_KEPT } else { 0 };
        stream_message(REGISTER, self.stream_index, self.token, claim)
    }
}

impl Unregister {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_OCTETS_MAX] {
        stream_message(UNREGISTER, self.stream_index, self.token, 0)
    }
}

impl ShowPort {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_OCTETS_MAX] {
        stream_message(SHOW_PORT, self.stream_index, self.token, 0)
    }
}

impl Expect {
    /// The message.
    #[must_use]
    pub fn encode(&self) -> [u8; MESSAGE_OCTETS_MAX] {
        stream_message(EXPECT, 0, 0, 0)
    }
}

/// magic u64, type u16, 0 u16, stream_index u32, token u32, claim u32.
fn stream_message(kind: u16, stream_index: u32, token: u32, claim: u32) -> [u8; 24] {
    octets24([MAGIC, pair(u32::from(kind), stream_index), pair(token, claim)])
}

/// Reads one message of a program.
///
/// # Errors
/// Anything that is not one: the connection is to be ended.
pub fn parse(message: &[u8]) -> Result<Message<'_>, ControlError> {
    if message.len() >= later::HEADER_OCTETS {
        let begin = message.get(..HELLO_OCTETS).ok_or(ControlError::Length(message.len()))?;
        return match words(begin)? {
            (_, LATER) => later::parse(message).map(Message::Later),
            _ => Err(ControlError::Length(message.len())),
        };
    }
    let (words, kind) = words(message)?;
    match kind {
        HELLO => {
            let has_interface = message.len() == MESSAGE_OCTETS_MAX;
            if !has_interface {
                expect_length(message, HELLO_OCTETS)?;
            }
            let [_, abi_min, abi_max, reserved] = unquad(words[1]);
            // An interface that is given is one.
            if reserved != 0 || words[2] >> 32 != 0 || (words[2] != 0) != has_interface {
                return Err(ControlError::Reserved);
            }
            if abi_min == 0 || abi_min > abi_max {
                return Err(ControlError::AbiRange(abi_min, abi_max));
            }
            Ok(Message::Hello(Hello { abi_min, abi_max, interface_index: words[2] as u32 }))
        }
        REGISTER | UNREGISTER | SHOW_PORT => {
            expect_length(message, MESSAGE_OCTETS_MAX)?;
            let [_, reserved, ..] = unquad(words[1]);
            let claim = (words[2] >> 32) as u32;
            if reserved != 0 || (kind != REGISTER && claim != 0) {
                return Err(ControlError::Reserved);
            }
            let (stream_index, token) = ((words[1] >> 32) as u32, words[2] as u32);
            Ok(match kind {
                REGISTER => Message::Register(Register {
                    stream_index,
                    token,
                    txtime: TxtimeClaim::from_word(claim & !IS_KEPT)?,
                    is_kept: claim & IS_KEPT != 0,
                }),
                UNREGISTER => Message::Unregister(Unregister { stream_index, token }),
                _ => Message::ShowPort(ShowPort { stream_index, token }),
            })
        }
        EXPECT => {
            expect_length(message, MESSAGE_OCTETS_MAX)?;
            if words[1] != u64::from(EXPECT) || words[2] != 0 {
                return Err(ControlError::Reserved);
            }
            Ok(Message::Expect(Expect))
        }
        other => Err(ControlError::Type(other)),
    }
}

#[cfg(test)]
mod tests;
