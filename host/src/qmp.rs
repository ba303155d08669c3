// SPDX-License-Identifier: Apache-2.0
//! QEMU's monitor (QMP): its events, and commands.
//!
//! In: a socket; what QEMU says is not trusted, and neither is how much, how fast or whether at all. Out: whether the guest was paused or
//! moved, and the answers of commands. A monitor that breaks the rules of [`Decoder`] is given up. No call waits longer than asked.

use crate::error::HostError;
use crate::monitor_lines::{Decoder, Message, Violation};
use ktsn_clock::host::Woken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How soon a monitor that is gone is looked for again.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a monitor may take to greet before its user hears of that.
const GREETING_WITHIN: Duration = Duration::from_secs(5);
/// Octets of events that are read in a second, and that may be saved for a burst. What comes beyond waits in QEMU.
const OCTETS_PER_SECOND: f64 = 65_536.0;
const OCTETS_SAVED_MAX: f64 = 262_144.0;
/// A read counts as so many octets at least.
const READ_COST_MIN: usize = 256;
const PART_OCTETS: usize = 4096;
const CAPABILITIES: &[u8] = b"{\"execute\":\"qmp_capabilities\"}\n";

/// Connects without waiting: a listener that does not accept, and has its queue full, refuses with `WouldBlock`.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = SocketAddrUnix::new(path)?;
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &address)?;
    Ok(socket.into())
}

/// What may be read, so that a monitor that talks without end costs little.
#[derive(Debug)]
struct Allowance {
    octets: f64,
    at: Instant,
}

impl Allowance {
    fn new() -> Self {
        Self { octets: OCTETS_SAVED_MAX, at: Instant::now() }
    }

    /// How long until the next read may be.
    fn wait(&mut self) -> Duration {
        let now = Instant::now();
        let earned = (now - self.at).as_secs_f64() * OCTETS_PER_SECOND;
        (self.octets, self.at) = ((self.octets + earned).min(OCTETS_SAVED_MAX), now);
        Duration::from_secs_f64((-self.octets).max(0.0) / OCTETS_PER_SECOND)
    }

    fn take(&mut self, octets: usize) {
        self.octets -= octets.max(READ_COST_MIN) as f64;
    }
}

/// A monitor of which only events are wanted. It never makes its caller wait longer than asked.
#[derive(Debug)]
pub struct Events {
    /// Where it is connected again; `None`: it is not.
    path: Option<PathBuf>,
    stream: Option<UnixStream>,
    decoder: Decoder,
    allowance: Allowance,
    tried_at: Instant,
    /// What happened before this connection is not known.
    is_late: bool,
    trouble: Option<String>,
    told: Option<String>,
}

impl Events {
    fn new(path: Option<PathBuf>) -> Self {
        Self {
            path,
            stream: None,
            decoder: Decoder::default(),
            allowance: Allowance::new(),
            tried_at: Instant::now(),
            is_late: false,
            trouble: None,
            told: None,
        }
    }

    /// The events of a monitor whose greeting has not been read.
    #[must_use]
    pub fn of(stream: UnixStream) -> Self {
        let mut events = Self::new(None);
        events.begin(stream);
        events
    }

    /// The events of the monitor at this socket. It need not be there yet, and may come and go.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        let mut events = Self::new(Some(path.to_owned()));
        events.connect();
        events
    }

    /// Whether there is a socket that was not given up.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    /// Why nothing is heard of the guest, if that is another reason than the last one, or a monitor has greeted since.
    pub fn trouble(&mut self) -> Option<String> {
        if self.is_connected() && !self.decoder.is_greeted() && self.tried_at.elapsed() > GREETING_WITHIN {
            self.trouble.get_or_insert_with(|| {
                format!(
                    "does not greet within {GREETING_WITHIN:?}; QEMU serves one client of a monitor at a time"
                )
            });
        }
        let trouble = self.trouble.take().filter(|trouble| self.told.as_ref() != Some(trouble))?;
        self.told = Some(trouble.clone());
        Some(trouble)
    }

    fn begin(&mut self, mut stream: UnixStream) {
        self.decoder = Decoder::default();
        // QEMU reads it after its greeting. The socket takes it whole at once, or the monitor is of no use.
        let begun = stream.set_nonblocking(true).and_then(|()| stream.write_all(CAPABILITIES));
        self.stream = begun.is_ok().then_some(stream);
    }

    fn connect(&mut self) {
        self.tried_at = Instant::now();
        match self.path.as_deref().map(connect) {
            Some(Ok(stream)) => self.begin(stream),
            Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                self.trouble = Some("takes no connection: others wait for it already".to_owned());
            }
            Some(Err(error)) => self.trouble = Some(error.to_string()),
            None => {}
        }
    }

    /// Sleeps this long, or until the monitor says that the guest was paused or moved.
    pub fn sleep(&mut self, nap: Duration) -> Woken {
        let until = Instant::now() + nap;
        loop {
            if self.stream.is_none() && self.path.is_some() && self.tried_at.elapsed() > AGAIN {
                self.connect();
                self.is_late = true;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Woken::Slept;
            }
            let wait = self.allowance.wait();
            let Some(stream) = self.stream.as_ref().filter(|_| wait.is_zero()) else {
                std::thread::sleep(left.min(if wait.is_zero() { AGAIN } else { wait }));
                continue;
            };
            let limit =
                Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: left.subsec_nanos().into() };
            if let Ok(1..) = poll(&mut [PollFd::new(stream, PollFlags::IN)], Some(&limit))
                && self.read()
            {
                return Woken::Disrupted;
            }
        }
    }

    /// Reads what is there; whether it was a disruption.
    fn read(&mut self) -> bool {
        let mut part = [0; PART_OCTETS];
        let octets = match self.stream.as_mut().map(|stream| stream.read(&mut part)) {
            Some(Ok(octets @ 1..)) => octets,
            Some(Err(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
            {
                return false;
            }
            // QEMU has ended, or closed its monitor.
            _ => {
                self.stream = None;
                return false;
            }
        };
        self.allowance.take(octets);
        let (mut is_disruption, mut is_greeting) = (false, false);
        let taken = self.decoder.take(&part[..octets], &mut |message| {
            is_disruption |= message == Message::Disruption;
            is_greeting |= message == Message::Greeting;
        });
        if is_greeting {
            (self.trouble, self.told) = (None, None);
            is_disruption |= std::mem::take(&mut self.is_late);
        }
        if let Err(violation) = taken {
            self.stream = None;
            self.trouble = Some(violation.to_string());
        }
        is_disruption
    }
}

/// A monitor that carries out commands.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    decoder: Decoder,
    heard: VecDeque<Message>,
    /// How long an answer may take.
    within: Duration,
}

fn failed(problem: impl std::fmt::Display) -> HostError {
    HostError::Process {
        name: "QEMU's monitor".to_owned(),
        problem: problem.to_string(),
        stderr: String::new(),
    }
}

impl Monitor {
    /// Connects to a monitor, and waits until it is there.
    ///
    /// # Errors
    /// There is none within the time, or it is none of QEMU's.
    pub fn connect(path: &Path, within: Duration) -> Result<Self, HostError> {
        let until = Instant::now() + within;
        let stream = loop {
            match connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= until => return Err(HostError::file(path)(error)),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_write_timeout(Some(within)))
            .map_err(HostError::system("a socket's timeout"))?;
        let mut monitor = Self { stream, decoder: Decoder::default(), heard: VecDeque::new(), within };
        // The greeting is the first message.
        monitor.next(until.max(Instant::now() + AGAIN))?;
        monitor.execute("qmp_capabilities", &Value::Null)?;
        Ok(monitor)
    }

    /// QEMU's process.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn process(&self) -> Result<u32, HostError> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream)
            .map_err(|error| HostError::system("SO_PEERCRED")(error.into()))?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(|_| failed("has no process number"))
    }

    /// Carries a command out; its answer.
    ///
    /// # Errors
    /// QEMU's, or it does not answer in time.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, HostError> {
        let mut request = serde_json::json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments.clone();
        }
        let until = Instant::now() + self.within;
        self.stream
            .write_all(format!("{request}\n").as_bytes())
            .map_err(|error| failed(format!("takes no command: {error}")))?;
        loop {
            match self.next(until)? {
                Message::Answer(answer) => return Ok(answer),
                Message::Refusal(why) => return Err(failed(format!("refuses {command}: {why}"))),
                Message::Greeting | Message::Disruption | Message::Other => {}
            }
        }
    }

    /// The next message, whatever else comes until then.
    fn next(&mut self, until: Instant) -> Result<Message, HostError> {
        let mut part = [0; PART_OCTETS];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(failed(format!("gives no answer within {:?}", self.within)));
            }
            if let Some(message) = self.heard.pop_front() {
                return Ok(message);
            }
            self.stream.set_read_timeout(Some(left)).map_err(HostError::system("a socket's timeout"))?;
            let octets = match self.stream.read(&mut part) {
                Ok(0) => return Err(failed("has closed the connection")),
                Ok(octets) => octets,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) =>
                {
                    continue;
                }
                Err(error) => return Err(failed(format!("does not answer: {error}"))),
            };
            let taken = self.decoder.take(&part[..octets], &mut |message| self.heard.push_back(message));
            taken.map_err(|violation: Violation| failed(violation))?;
        }
    }
}

#[cfg(test)]
#[path = "qmp_tests.rs"]
mod tests;
