// SPDX-License-Identifier: Apache-2.0
//! What two hosts say to each other while a command of the first one runs on the other one.
//!
//! In: octets of the other host in pieces of any length; that host is not trusted. Out: [`Message`]s, or how it broke the rules. At most one
//! message is held. The first host speaks in lines ([`Order`]). Files have names that cannot leave their directory. Uses nothing but the
//! standard library, because `fuzz` compiles this file, too.

use std::fmt;
use std::io::{self, Write};

/// The most octets that a message carries.
pub const PAYLOAD_OCTETS_MAX: usize = 64 << 10;
/// The most octets of a line of the first host.
pub const ORDER_OCTETS_MAX: usize = 64 << 10;
/// Kind (one octet) and length of what follows (four, big-endian).
const HEADER_OCTETS: usize = 5;
/// The most octets of a file's name, and its parts.
const NAME_OCTETS_MAX: usize = 200;
const NAME_PARTS_MAX: usize = 4;

/// Whether a name is one of a file below the command's own directory: letters, digits, `-_.`, no part that begins with a dot.
#[must_use]
pub fn is_file_name(name: &str) -> bool {
    let is_allowed = |octet: u8| octet.is_ascii_alphanumeric() || b"-_.".contains(&octet);
    let is_part = |part: &str| !part.is_empty() && !part.starts_with('.') && part.bytes().all(is_allowed);
    name.len() <= NAME_OCTETS_MAX && name.split('/').count() <= NAME_PARTS_MAX && name.split('/').all(is_part)
}

/// What the first host asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing: the first host lives.
    Alive,
    /// The program shall end.
    End,
    /// This file of the command's directory.
    Fetch(String),
    /// A line for the program's standard input.
    Say(String),
}

impl Order {
    /// Reads a line without its end; `None`: it is none.
    #[must_use]
    pub fn of_line(line: &str) -> Option<Self> {
        match line.split_once(' ') {
            None if line.is_empty() => Some(Self::Alive),
            None if line == "end" => Some(Self::End),
            Some(("fetch", name)) if is_file_name(name) => Some(Self::Fetch(name.to_owned())),
            Some(("say", text)) => Some(Self::Say(text.to_owned())),
            _ => None,
        }
    }
}

impl fmt::Display for Order {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alive => Ok(()),
            Self::End => out.write_str("end"),
            Self::Fetch(name) => write!(out, "fetch {name}"),
            Self::Say(text) => write!(out, "say {text}"),
        }
    }
}

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Killed(u8),
}

impl fmt::Display for Ended {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(status) => write!(out, "exit status: {status}"),
            Self::Killed(signal) => write!(out, "signal: {signal}"),
        }
    }
}

/// What the other host says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The program has been started. This is the first message.
    Started,
    /// The program is ready.
    Ready,
    /// The program wrote this to standard output.
    Stdout(&'a [u8]),
    /// The program wrote this to standard error.
    Stderr(&'a [u8]),
    /// The program has ended.
    Ended(Ended),
    /// A file follows that has so many octets.
    File(u64),
    /// The next octets of the file.
    Data(&'a [u8]),
    /// The file that was asked for cannot be had, and why.
    NoFile(&'a [u8]),
}

impl Message<'_> {
    const fn kind(&self) -> u8 {
        match self {
            Self::Started => b's',
            Self::Ready => b'r',
            Self::Stdout(_) => b'o',
            Self::Stderr(_) => b'e',
            Self::Ended(_) => b'x',
            Self::File(_) => b'f',
            Self::Data(_) => b'd',
            Self::NoFile(_) => b'n',
        }
    }

    /// Writes the message.
    ///
    /// # Errors
    /// The writer's; more than [`PAYLOAD_OCTETS_MAX`].
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let (octets, number);
        let payload = match self {
            Self::Started | Self::Ready => &[][..],
            Self::Stdout(octets) | Self::Stderr(octets) | Self::Data(octets) | Self::NoFile(octets) => octets,
            Self::Ended(Ended::Exited(status)) => {
                octets = [0, *status];
                &octets
            }
            Self::Ended(Ended::Killed(signal)) => {
                octets = [1, *signal];
                &octets
            }
            Self::File(size) => {
                number = size.to_be_bytes();
                &number
            }
        };
        let length = u32::try_from(payload.len()).ok().filter(|_| payload.len() <= PAYLOAD_OCTETS_MAX);
        let length = length.ok_or_else(|| io::Error::other("a message that is too long"))?;
        let mut whole = Vec::with_capacity(HEADER_OCTETS + payload.len());
        whole.push(self.kind());
        whole.extend_from_slice(&length.to_be_bytes());
        whole.extend_from_slice(payload);
        out.write_all(&whole)
    }
}

/// How the other host broke the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// No message of this kind.
    Kind(u8),
    /// A length that this kind does not have.
    Length(u32),
    /// Words before the start or after the end, ready twice, or file data that was not announced.
    Turn,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(
                out,
                "octet {kind:#04x} begins no message; the login shell there may print something of its own"
            ),
            Self::Length(length) => write!(out, "a message of {length} octets, which its kind does not have"),
            Self::Turn => out.write_str("a message out of turn"),
        }
    }
}

/// Takes messages out of octets.
#[derive(Debug, Default)]
pub struct Decoder {
    held: Vec<u8>,
    has_started: bool,
    is_ready: bool,
    has_ended: bool,
    /// Octets of a file that are still to come.
    of_file: u64,
}

impl Decoder {
    /// Takes octets, and gives the messages that they complete to `hear`.
    ///
    /// # Errors
    /// [`Violation`]; nothing more can be taken then.
    pub fn take(&mut self, mut octets: &[u8], hear: &mut impl FnMut(Message<'_>)) -> Result<(), Violation> {
        while !octets.is_empty() {
            let wanted = match self.held.first_chunk::<HEADER_OCTETS>() {
                None => HEADER_OCTETS,
                Some(header) => HEADER_OCTETS + Self::length(*header)? as usize,
            };
            let taken = wanted.saturating_sub(self.held.len()).min(octets.len());
            let (now, later) = octets.split_at(taken);
            self.held.extend_from_slice(now);
            octets = later;
            let Some(header) = self.held.first_chunk::<HEADER_OCTETS>() else { continue };
            if self.held.len() == HEADER_OCTETS + Self::length(*header)? as usize {
                let held = std::mem::take(&mut self.held);
                self.finish(held[0], &held[HEADER_OCTETS..], hear)?;
            }
        }
        Ok(())
    }

    /// The length that a header states, if its kind has it.
    fn length([kind, length @ ..]: [u8; HEADER_OCTETS]) -> Result<u32, Violation> {
        let length = u32::from_be_bytes(length);
        let is_one = match kind {
            b's' | b'r' => length == 0,
            b'x' => length == 2,
            b'f' => length == 8,
            b'o' | b'e' | b'd' => (1..=PAYLOAD_OCTETS_MAX).contains(&(length as usize)),
            b'n' => length as usize <= PAYLOAD_OCTETS_MAX,
            _ => return Err(Violation::Kind(kind)),
        };
        if is_one { Ok(length) } else { Err(Violation::Length(length)) }
    }

    fn finish(
        &mut self,
        kind: u8,
        payload: &[u8],
        hear: &mut impl FnMut(Message<'_>),
    ) -> Result<(), Violation> {
        if self.has_started == (kind == b's') {
            return Err(Violation::Turn);
        }
        let may_talk = !self.has_ended && self.of_file == 0;
        let number = |octets: &[u8]| octets.iter().fold(0, |sum, &octet| sum << 8 | u64::from(octet));
        let message = match (kind, payload) {
            (b's', _) => {
                self.has_started = true;
                Message::Started
            }
            (b'r', _) if may_talk && !self.is_ready => {
                self.is_ready = true;
                Message::Ready
            }
            (b'o', octets) if may_talk => Message::Stdout(octets),
            (b'e', octets) if may_talk => Message::Stderr(octets),
            (b'x', &[how @ 0..=1, number]) if may_talk => {
                self.has_ended = true;
                Message::Ended(if how == 0 { Ended::Exited(number) } else { Ended::Killed(number) })
            }
            (b'f', octets) if self.of_file == 0 => {
                self.of_file = number(octets);
                Message::File(self.of_file)
            }
            (b'd', octets) if octets.len() as u64 <= self.of_file => {
                self.of_file -= octets.len() as u64;
                Message::Data(octets)
            }
            (b'n', octets) if self.of_file == 0 => Message::NoFile(octets),
            _ => return Err(Violation::Turn),
        };
        hear(message);
        Ok(())
    }
}
