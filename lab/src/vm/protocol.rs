// SPDX-License-Identifier: Apache-2.0
//! What a guest says to its host, and the job that the host gives to the guest.
//!
//! In: octets of the guest's port in pieces of any length; the guest is not trusted. Out: [`Message`]s, or how the guest broke the rules.
//! At most one message is held. Uses nothing but the standard library, because `fuzz` compiles this file, too.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::str::FromStr;

/// The most octets that a message carries.
pub const PAYLOAD_OCTETS_MAX: usize = 64 << 10;
/// Kind (one octet) and length of what follows (four, little-endian).
const HEADER_OCTETS: usize = 5;

/// What a guest's clock follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Nothing: it is the guest's own.
    #[default]
    None,
    /// The host's clock, through shared memory.
    Vptp,
    /// The clock that KVM offers (ptp_kvm, ptp_vmclock), by chrony.
    Kvm,
    /// The host's clock, by chrony over the network device.
    Chrony,
}

impl Clock {
    const ALL: [(Self, &str); 4] =
        [(Self::None, "none"), (Self::Vptp, "vptp"), (Self::Kvm, "kvm"), (Self::Chrony, "chrony")];
}

impl FromStr for Clock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(clock, _)| *clock).ok_or_else(|| "expected none, vptp, kvm or chrony".to_owned())
    }
}

impl fmt::Display for Clock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::ALL.iter().find(|(clock, _)| clock == self).map_or("", |(_, name)| name);
        out.write_str(name)
    }
}

/// How the program in the guest ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// With this exit status.
    Exited(u8),
    /// By this signal.
    Killed(u8),
    /// It was not started: the guest kernel's error number.
    NotStarted(u8),
}

/// What the guest says: `Ready` once, then output, then files with their parts, then `Ended` once. `Clock` comes at any time before the end, `Impossible` in place of all
/// that would come after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// The guest has booted and starts the program now.
    Ready,
    /// What the program wrote to its standard output.
    Stdout(&'a [u8]),
    /// What the program wrote to its standard error.
    Stderr(&'a [u8]),
    /// The state of the guest's clock, as JSON.
    Clock(&'a [u8]),
    /// The guest cannot do what is asked, and why.
    Impossible(&'a [u8]),
    /// The name of a file that the job brings, before its content.
    File(&'a [u8]),
    /// A part of the content of the last file that was named.
    Part(&'a [u8]),
    /// The program has ended; all that it wrote came before.
    Ended(Ended),
}

impl Message<'_> {
    /// Writes the message to the port.
    ///
    /// # Errors
    /// The port's; `InvalidInput` for output of more than [`PAYLOAD_OCTETS_MAX`].
    pub fn write(&self, port: &mut impl Write) -> io::Result<()> {
        let one: [u8; 1];
        let (kind, payload) = match self {
            Self::Ready => (b'r', &[][..]),
            Self::Stdout(octets) => (b'o', *octets),
            Self::Stderr(octets) => (b'e', *octets),
            Self::Clock(octets) => (b'c', *octets),
            Self::Impossible(octets) => (b'i', *octets),
            Self::File(name) => (b'f', *name),
            Self::Part(octets) => (b'p', *octets),
            Self::Ended(ended) => {
                let (kind, value) = match *ended {
                    Ended::Exited(value) => (b'x', value),
                    Ended::Killed(value) => (b'k', value),
                    Ended::NotStarted(value) => (b'n', value),
                };
                one = [value];
                (kind, &one[..])
            }
        };
        if payload.len() > PAYLOAD_OCTETS_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let [a, b, c, d] = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
        port.write_all(&[&[kind, a, b, c, d], payload].concat())
    }
}

/// How the guest broke the rules of [`Message`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// There is no such kind of message.
    Kind(u8),
    /// The message's length is not its kind's.
    Length(u8, u32),
    /// The message does not come at this point.
    Order(u8),
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(out, "a message of the unknown kind {kind:#04x}"),
            Self::Length(kind, octets) => write!(out, "a message {:?} of {octets} octets", char::from(*kind)),
            Self::Order(kind) => write!(out, "a message {:?} out of turn", char::from(*kind)),
        }
    }
}

/// Reads what the guest says.
#[derive(Debug, Default)]
pub struct Decoder {
    /// The beginning of a message that is not complete.
    held: Vec<u8>,
    is_ready: bool,
    has_file: bool,
    has_ended: bool,
}

impl Decoder {
    /// Takes octets as they come; `hear` gets each message that is complete. After an error the decoder is not used again.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn take(&mut self, octets: &[u8], hear: &mut dyn FnMut(Message<'_>)) -> Result<(), Violation> {
        let mut rest = octets;
        loop {
            let wanted = self.wanted()?;
            if self.held.len() < wanted {
                if rest.is_empty() {
                    return Ok(());
                }
                let (part, after) = rest.split_at((wanted - self.held.len()).min(rest.len()));
                self.held.extend_from_slice(part);
                rest = after;
                continue;
            }
            let held = std::mem::take(&mut self.held);
            hear(self.message(held[0], &held[HEADER_OCTETS..])?);
        }
    }

    /// How long `held` has to become: a header, or a message.
    fn wanted(&self) -> Result<usize, Violation> {
        let &[kind, a, b, c, d] = self.held.get(..HEADER_OCTETS).unwrap_or_default() else {
            return Ok(HEADER_OCTETS);
        };
        let octets = u32::from_le_bytes([a, b, c, d]);
        let (least, most) = match kind {
            b'r' => (0, 0),
            b'o' | b'e' | b'c' | b'i' | b'f' | b'p' => (0, PAYLOAD_OCTETS_MAX),
            b'x' | b'k' | b'n' => (1, 1),
            _ => return Err(Violation::Kind(kind)),
        };
        match usize::try_from(octets) {
            Ok(length) if (least..=most).contains(&length) => Ok(HEADER_OCTETS + length),
            _ => Err(Violation::Length(kind, octets)),
        }
    }

    fn message<'a>(&mut self, kind: u8, payload: &'a [u8]) -> Result<Message<'a>, Violation> {
        let is_in_turn = match kind {
            b'c' => true,
            b'p' => self.has_file,
            b'r' | b'i' => !self.is_ready,
            _ => self.is_ready,
        };
        if self.has_ended || !is_in_turn {
            return Err(Violation::Order(kind));
        }
        self.is_ready |= kind == b'r';
        self.has_file |= kind == b'f';
        let value = payload.first().copied().unwrap_or(0);
        let message = match kind {
            b'r' => Message::Ready,
            b'o' => Message::Stdout(payload),
            b'e' => Message::Stderr(payload),
            b'c' => Message::Clock(payload),
            b'i' => Message::Impossible(payload),
            b'f' => Message::File(payload),
            b'p' => Message::Part(payload),
            b'x' => Message::Ended(Ended::Exited(value)),
            b'k' => Message::Ended(Ended::Killed(value)),
            _ => Message::Ended(Ended::NotStarted(value)),
        };
        self.has_ended = matches!(message, Message::Ended(_) | Message::Impossible(_));
        Ok(message)
    }
}

/// What the guest has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The program sees the host's file tree, not the image's.
    pub in_host_tree: bool,
    /// The guest has a network device that leads to QEMU's own network.
    pub has_user_network: bool,
    /// The network device's address with the length of its prefix; empty: it gets none.
    pub address: String,
    /// What the guest's clock follows.
    pub clock: Clock,
    /// [`Clock::Chrony`]: the server's address and its port, with a blank between; the run fills it in.
    pub time_server: String,
    /// The program's working directory.
    pub directory: PathBuf,
    /// Files that the guest sends when the program has ended, if they are there.
    pub bring: Vec<PathBuf>,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

impl Job {
    /// The job as a file: parts that end with NUL, which no part can hold.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let flag = |is_set| if is_set { &b"1"[..] } else { b"0" };
        let (clock, files) = (self.clock.to_string(), self.bring.len().to_string());
        let parts = [
            flag(self.in_host_tree),
            flag(self.has_user_network),
            self.address.as_bytes(),
            clock.as_bytes(),
            self.time_server.as_bytes(),
            self.directory.as_os_str().as_bytes(),
            files.as_bytes(),
        ];
        let bring = self.bring.iter().map(|file| file.as_os_str().as_bytes());
        let program = self.program.iter().map(|argument| argument.as_bytes());
        parts
            .into_iter()
            .chain(bring)
            .chain(program)
            .flat_map(|part| [part, b"\0"])
            .flatten()
            .copied()
            .collect()
    }

    /// Reads what [`Job::encode`] wrote; `None` for anything else.
    #[must_use]
    pub fn decode(octets: &[u8]) -> Option<Self> {
        let mut parts = octets.strip_suffix(b"\0")?.split(|&octet| octet == 0);
        let mut flag = || match parts.next()? {
            b"0" => Some(false),
            b"1" => Some(true),
            _ => None,
        };
        let (in_host_tree, has_user_network) = (flag()?, flag()?);
        let address = String::from_utf8(parts.next()?.to_vec()).ok()?;
        let clock: Clock = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let time_server = String::from_utf8(parts.next()?.to_vec()).ok()?;
        let text = |part: &[u8]| OsString::from_vec(part.to_vec());
        let directory = PathBuf::from(text(parts.next()?));
        let files: usize = std::str::from_utf8(parts.next()?).ok()?.parse().ok()?;
        let mut rest: Vec<OsString> = parts.map(text).collect();
        let program = (files <= rest.len()).then(|| rest.split_off(files))?;
        let bring = rest.into_iter().map(PathBuf::from).collect();
        (!program.is_empty()).then_some(Self {
            in_host_tree,
            has_user_network,
            address,
            clock,
            time_server,
            directory,
            bring,
            program,
        })
    }
}
