// SPDX-License-Identifier: Apache-2.0
//! QEMU's monitor (QMP): its events, and commands.
//!
//! In: a socket; what QEMU says is not trusted. Out: whether the guest was paused or moved, and the answers of commands. A line is held up to
//! `LINE_OCTETS_MAX`; a monitor that says more, or no JSON, is given up.

use crate::error::LabError;
use ktsn_clock::host::Woken;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest answer of a command that is used here has less than a tenth.
const LINE_OCTETS_MAX: usize = 64 << 10;
/// Events after which the guest's counter has another relation to the host's: it ran again after a pause or a migration, or woke.
const DISRUPTIONS: [&str; 2] = ["RESUME", "WAKEUP"];
/// How soon a monitor that is gone is looked for again.
const AGAIN: Duration = Duration::from_secs(1);
const CAPABILITIES: &[u8] = b"{\"execute\":\"qmp_capabilities\"}\n";

/// A monitor of which only events are wanted. It never makes its caller wait longer than asked.
#[derive(Debug)]
pub struct Events {
    /// Where it is connected again; `None`: it is not.
    path: Option<PathBuf>,
    stream: Option<UnixStream>,
    tried_at: Instant,
    line: Vec<u8>,
}

impl Events {
    /// The events of a monitor whose greeting has not been read.
    #[must_use]
    pub fn of(stream: UnixStream) -> Self {
        let mut events = Self { path: None, stream: None, tried_at: Instant::now(), line: Vec::new() };
        events.begin(stream);
        events
    }

    /// The events of the monitor at this socket. It need not be there yet, and may come and go.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        let mut events =
            Self { path: Some(path.to_owned()), stream: None, tried_at: Instant::now(), line: Vec::new() };
        events.connect();
        events
    }

    /// Whether there is a monitor.
    #[must_use]
    pub const fn is_connected(&self) -> bool {
        self.stream.is_some()
    }

    fn begin(&mut self, mut stream: UnixStream) {
        self.line.clear();
        // QEMU reads it after its greeting. The socket takes it whole at once, or the monitor is of no use.
        let begun = stream.set_nonblocking(true).and_then(|()| stream.write_all(CAPABILITIES));
        self.stream = begun.is_ok().then_some(stream);
    }

    fn connect(&mut self) {
        self.tried_at = Instant::now();
        if let Some(stream) = self.path.as_ref().and_then(|path| UnixStream::connect(path).ok()) {
            self.begin(stream);
        }
    }

    /// Sleeps this long, or until the monitor says that the guest was paused or moved.
    pub fn sleep(&mut self, nap: Duration) -> Woken {
        let until = Instant::now() + nap;
        loop {
            if self.stream.is_none() && self.path.is_some() && self.tried_at.elapsed() > AGAIN {
                self.connect();
                if self.stream.is_some() {
                    // What happened meanwhile is not known.
                    return Woken::Disrupted;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Woken::Slept;
            }
            let Some(stream) = &self.stream else {
                std::thread::sleep(left.min(AGAIN));
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
        let mut part = [0; 4096];
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
        self.line.extend_from_slice(&part[..octets]);
        let mut is_disruption = false;
        while let Some(end) = self.line.iter().position(|&octet| octet == b'\n') {
            let line: Vec<u8> = self.line.drain(..=end).collect();
            let Ok(said) = serde_json::from_slice::<Value>(&line) else {
                self.stream = None;
                return is_disruption;
            };
            is_disruption |= said["event"].as_str().is_some_and(|event| DISRUPTIONS.contains(&event));
        }
        if self.line.len() > LINE_OCTETS_MAX {
            self.stream = None;
        }
        is_disruption
    }
}

/// A monitor that carries out commands.
#[derive(Debug)]
pub struct Monitor {
    stream: UnixStream,
    line: Vec<u8>,
}

fn failed(problem: impl std::fmt::Display) -> LabError {
    LabError::Process {
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
    pub fn connect(path: &Path, within: Duration) -> Result<Self, LabError> {
        let until = Instant::now() + within;
        let stream = loop {
            match UnixStream::connect(path) {
                Ok(stream) => break stream,
                Err(error) if Instant::now() >= until => return Err(LabError::file(path)(error)),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        stream.set_read_timeout(Some(within)).map_err(LabError::system("a socket's timeout"))?;
        let mut monitor = Self { stream, line: Vec::new() };
        monitor.next()?;
        monitor.execute("qmp_capabilities", &Value::Null)?;
        Ok(monitor)
    }

    /// QEMU's process.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn process(&self) -> Result<u32, LabError> {
        let peer = rustix::net::sockopt::socket_peercred(&self.stream)
            .map_err(|error| LabError::system("SO_PEERCRED")(error.into()))?;
        u32::try_from(peer.pid.as_raw_nonzero().get()).map_err(|_| failed("has no process number"))
    }

    /// Carries a command out; its answer.
    ///
    /// # Errors
    /// QEMU's, or it does not answer in time.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, LabError> {
        let mut request = serde_json::json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments.clone();
        }
        self.stream
            .write_all(format!("{request}\n").as_bytes())
            .map_err(|error| failed(format!("takes no command: {error}")))?;
        loop {
            let mut said = self.next()?;
            if let Some(answer) = said.get_mut("return") {
                return Ok(answer.take());
            }
            if let Some(error) = said.get("error") {
                return Err(failed(format!("refuses {command}: {}", error["desc"])));
            }
        }
    }

    /// The next line.
    fn next(&mut self) -> Result<Value, LabError> {
        let mut part = [0; 4096];
        loop {
            if let Some(end) = self.line.iter().position(|&octet| octet == b'\n') {
                let line: Vec<u8> = self.line.drain(..=end).collect();
                return serde_json::from_slice(&line)
                    .map_err(|error| failed(format!("says no JSON: {error}")));
            }
            match self.stream.read(&mut part) {
                Ok(0) => return Err(failed("has closed the connection")),
                Ok(octets) => self.line.extend_from_slice(&part[..octets]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(format!("does not answer: {error}"))),
            }
            if self.line.len() > LINE_OCTETS_MAX {
                return Err(failed(format!("says more than {LINE_OCTETS_MAX} octets in a line")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const NAP: Duration = Duration::from_millis(30);

    #[test]
    fn a_resume_wakes_and_nothing_else_does() {
        let (ours, mut qemu) = UnixStream::pair().unwrap();
        let mut events = Events::of(ours);
        qemu.write_all(b"{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"STOP\"}\n{\"event\": \"RES").unwrap();
        assert_eq!(events.sleep(NAP), Woken::Slept);
        qemu.write_all(b"UME\"}\n").unwrap();
        assert_eq!(events.sleep(Duration::from_secs(60)), Woken::Disrupted);
        assert_eq!(events.sleep(NAP), Woken::Slept);
        let mut said = vec![0; CAPABILITIES.len()];
        qemu.read_exact(&mut said).unwrap();
        assert_eq!(said, CAPABILITIES);
    }

    #[test]
    fn a_monitor_that_ends_or_lies_is_given_up_and_the_sleep_goes_on() {
        for lie in [b"no JSON\n".to_vec(), vec![b'x'; LINE_OCTETS_MAX + 4096], Vec::new()] {
            let (ours, mut qemu) = UnixStream::pair().unwrap();
            qemu.set_nonblocking(true).unwrap();
            let mut events = Events::of(ours);
            let mut rest = &lie[..];
            let until = Instant::now() + Duration::from_secs(20);
            while events.is_connected() && Instant::now() < until {
                let written = qemu.write(rest).unwrap_or(0);
                rest = &rest[written..];
                if rest.is_empty() {
                    qemu.shutdown(std::net::Shutdown::Write).unwrap();
                }
                assert_eq!(events.sleep(Duration::from_millis(1)), Woken::Slept);
            }
            assert!(!events.is_connected());
            let began = Instant::now();
            assert_eq!(events.sleep(NAP), Woken::Slept);
            assert!(began.elapsed() >= NAP);
        }
    }

    #[test]
    fn a_monitor_that_comes_later_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a,b.sock");
        let mut events = Events::at(&path);
        assert!(!events.is_connected());
        let _listener = UnixListener::bind(&path).unwrap();
        assert_eq!(events.sleep(Duration::from_secs(60)), Woken::Disrupted);
        assert!(events.is_connected());
    }
}
