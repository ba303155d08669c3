// SPDX-License-Identifier: Apache-2.0
//! A command of ktsn that runs on the other host.
//!
//! In: a [`Task`]. Out: what it says, line by line, as it says it; how it ended; its files, under names of this side's choice. A broken
//! side must not hold this one up: every length, count and name that it states is bounded, and breaking a rule ends the session.
//!
//! ```text
//!   Session ── lines (frames::Order) ──► ssh ──► ktsn remote guard ── standard input ──► ktsn …
//!           ◄─ messages (frames::Message) ────────      │        ◄── its outputs, its files
//! ```

use super::frames::{Decoder, Ended, Message, ORDER_OCTETS_MAX, Order, is_file_name};
use super::lines::{Lines, Said, last_of};
use super::{HEARTBEAT, NO_WORDS, Remote, RemoteError, SILENCE_MAX, no_ssh, words_or};
use crate::error::LabError;
use crate::process::end_of;
use crate::sys;
use crate::vm::printable;
use ktsn_measure::clock::stop_requested;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Messages that wait to be taken.
const WAITING_MAX: usize = 16;
/// Most octets of output while a file is fetched.
const WRITTEN_OCTETS_MAX: usize = 4 << 20;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long the other host may take to end everything once the connection is closed here.
const END_MAX: Duration = Duration::from_secs(15);
/// How long ssh's errors are read after its end.
const ERRORS_MAX: Duration = Duration::from_secs(1);
/// How long a file's next octets may take.
const STALL_MAX: Duration = Duration::from_secs(30);

/// What to run there.
#[derive(Clone, Debug, Default)]
pub struct Task {
    /// Arguments of ktsn. It runs in an empty directory of its own, which is removed at the end; `fetch` names files below it.
    pub arguments: Vec<String>,
    /// The command takes `--ready-fd N`, and says there that it is ready.
    pub says_ready: bool,
}

/// A message that this side owns.
#[derive(Debug)]
enum Heard {
    Started,
    Ready,
    Wrote(bool, Vec<u8>),
    Ended(Ended),
    File(u64),
    Data(Vec<u8>),
    NoFile(String),
    Broken(String),
}

impl From<Message<'_>> for Heard {
    fn from(message: Message<'_>) -> Self {
        match message {
            Message::Started => Self::Started,
            Message::Ready => Self::Ready,
            Message::Stdout(octets) => Self::Wrote(false, octets.to_vec()),
            Message::Stderr(octets) => Self::Wrote(true, octets.to_vec()),
            Message::Ended(ended) => Self::Ended(ended),
            Message::File(size) => Self::File(size),
            Message::Data(octets) => Self::Data(octets.to_vec()),
            Message::NoFile(why) => Self::NoFile(printable(why)),
        }
    }
}

/// A command on the other host; ended there when this is dropped.
#[derive(Debug)]
pub struct Session {
    remote: Remote,
    command: Vec<String>,
    child: Child,
    orders: Option<Sender<Order>>,
    heard: Receiver<Heard>,
    errors: Option<JoinHandle<Vec<u8>>>,
    lines: Lines,
    has_started: bool,
    /// It broke a rule: nothing more is expected of it.
    is_broken: bool,
}

impl Remote {
    /// Starts `ktsn` there; it runs as long as the returned value lives.
    ///
    /// # Errors
    /// ssh cannot be started.
    pub fn start(&self, task: &Task) -> Result<Session, RemoteError> {
        let mut words = vec![self.ktsn.clone(), "remote".to_owned(), "guard".to_owned()];
        words.extend(["--silence".to_owned(), format!("{}s", SILENCE_MAX.as_secs())]);
        words.extend(task.says_ready.then(|| "--ready".to_owned()));
        words.push("--".to_owned());
        words.extend(task.arguments.iter().cloned());
        let ssh = self.ssh(&words.iter().map(String::as_str).collect::<Vec<_>>());
        self.open(ssh, task.arguments.clone())
    }

    /// Starts ssh, which runs a guard with this command of ktsn.
    pub(super) fn open(&self, mut ssh: Command, command: Vec<String>) -> Result<Session, RemoteError> {
        sys::inherit(&mut ssh, &[]);
        ssh.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = ssh.spawn().map_err(no_ssh)?;
        let (orders, ordered) = channel();
        if let Some(pipe) = child.stdin.take() {
            std::thread::spawn(move || speak(pipe, &ordered));
        }
        let (messages, heard) = sync_channel(WAITING_MAX);
        if let Some(pipe) = child.stdout.take() {
            std::thread::spawn(move || hear(pipe, &messages));
        }
        let errors = child.stderr.take().map(|pipe| std::thread::spawn(move || last_of(pipe)));
        let (lines, has_started) = (Lines::default(), false);
        Ok(Session {
            remote: self.clone(),
            command,
            child,
            orders: Some(orders),
            heard,
            errors,
            lines,
            has_started,
            is_broken: false,
        })
    }

    /// Runs `ktsn` there to its end within `longest`, gives what it says to `hear`, and fetches its files: each a name below its directory
    /// there, the place here, and the most octets that it may have. A file that the command did not write is an error, unless it failed.
    ///
    /// # Errors
    /// [`RemoteError`]; `hear`'s own.
    pub fn run(
        &self,
        task: &Task,
        longest: Duration,
        files: &[(&str, &Path, u64)],
        hear: &mut dyn FnMut(Said) -> Result<(), RemoteError>,
    ) -> Result<Ended, RemoteError> {
        let mut session = self.start(task)?;
        let until = Instant::now() + longest;
        let ended = loop {
            match session.next(until.saturating_duration_since(Instant::now()))? {
                Some(Said::Ended(ended)) => break ended,
                // What it says without end must not hold this side up.
                Some(said) if Instant::now() < until => hear(said)?,
                _ => return Err(session.failed(&format!("did not end within {longest:?}"))),
            }
        };
        for (name, to, octets_max) in files {
            let fetched = session.fetch(name, to, *octets_max);
            if ended == Ended::Exited(0) {
                fetched?;
            }
        }
        Ok(ended)
    }
}

/// Passes orders on, and says once a second that this side lives. The pipe closes with this thread: that ends the other side at once.
fn speak(mut pipe: ChildStdin, ordered: &Receiver<Order>) {
    loop {
        let order = match ordered.recv_timeout(HEARTBEAT) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => Order::Alive,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if pipe.write_all(format!("{order}\n").as_bytes()).is_err() {
            return;
        }
    }
}

/// Passes messages on until the other side breaks a rule or closes the connection.
fn hear(mut pipe: impl Read, messages: &SyncSender<Heard>) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 64 << 10];
    while let Ok(octets @ 1..) = pipe.read(&mut buffer) {
        let mut is_wanted = true;
        let taken = decoder.take(&buffer[..octets], &mut |message| {
            is_wanted = is_wanted && messages.send(message.into()).is_ok();
        });
        if let Err(violation) = taken {
            let _ = messages.send(Heard::Broken(violation.to_string()));
            return;
        }
        if !is_wanted {
            return;
        }
    }
}

impl Session {
    /// The number of the process of ssh.
    #[must_use]
    pub fn ssh_pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for what the command says next; `None`: nothing within `longest`. After [`Said::Ended`] nothing more comes.
    ///
    /// # Errors
    /// The connection ended, or the other host broke a rule; [`LabError::Stopped`].
    pub fn next(&mut self, longest: Duration) -> Result<Option<Said>, RemoteError> {
        let until = Instant::now() + longest;
        loop {
            if let Some(said) = self.lines.whole.pop_front() {
                return Ok(Some(said));
            }
            match self.hear(until)? {
                None => return Ok(None),
                Some(Heard::Ready) => self.lines.whole.push_back(Said::Ready),
                Some(Heard::Wrote(is_error, octets)) => {
                    self.lines.take(is_error, &octets).map_err(|problem| self.untrue(problem))?;
                }
                Some(Heard::Ended(ended)) => {
                    self.lines.finish();
                    self.lines.whole.push_back(Said::Ended(ended));
                }
                Some(_) => return Err(self.untrue("a file that was not asked for".to_owned())),
            }
            // What says nothing, such as empty lines without end, must not hold this side up.
            if self.lines.whole.is_empty() && Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// The next message; `None`: none until `until`.
    fn hear(&mut self, until: Instant) -> Result<Option<Heard>, RemoteError> {
        loop {
            if stop_requested() {
                return Err(LabError::Stopped.into());
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left.min(LOOK_AGAIN)) {
                Ok(Heard::Broken(problem)) => return Err(self.untrue(problem)),
                Ok(Heard::Started) => self.has_started = true,
                Ok(heard) => return Ok(Some(heard)),
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(self.lost()),
            }
        }
    }

    fn untrue(&mut self, problem: String) -> RemoteError {
        self.is_broken = true;
        RemoteError::Untrue { target: self.remote.target.clone(), problem }
    }

    /// Why the connection is gone.
    fn lost(&mut self) -> RemoteError {
        self.orders = None;
        let until = Instant::now() + END_MAX;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_AGAIN);
        }
        let _ = self.child.kill();
        let status = self.child.wait();
        // A process that ssh started, such as its ProxyCommand, may outlive it and hold its end of the pipe.
        let until = Instant::now() + ERRORS_MAX;
        while Instant::now() < until && self.errors.as_ref().is_some_and(|thread| !thread.is_finished()) {
            std::thread::sleep(LOOK_AGAIN);
        }
        let errors = self.errors.take().filter(JoinHandle::is_finished);
        let mut said = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
        said.extend_from_slice(&self.lines.last_words);
        let said = String::from_utf8_lossy(&said).into_owned();
        let words: Vec<&str> =
            [self.remote.ktsn.as_str()].into_iter().chain(self.command.iter().map(String::as_str)).collect();
        match status {
            Ok(status) if !self.has_started => self.remote.failure(&words, status, &said),
            _ => RemoteError::Cut {
                target: self.remote.target.clone(),
                command: Remote::shown(&words),
                said: words_or(said.as_bytes(), NO_WORDS),
            },
        }
    }

    /// An error with what the command wrote to standard error.
    #[must_use]
    pub fn failed(&self, status: &str) -> RemoteError {
        RemoteError::Command {
            target: self.remote.target.clone(),
            command: self.command.join(" "),
            status: status.to_owned(),
            said: words_or(&self.lines.last_words, "it said nothing before"),
        }
    }

    /// A text, and behind it what the command wrote to standard error: warnings that nothing else shows.
    pub(super) fn with_words(&self, text: String) -> String {
        let words = words_or(&self.lines.last_words, "");
        if words.is_empty() { text } else { format!("{text}; it said before: {words}") }
    }

    /// The error of a command that has ended before it should, or without success.
    #[must_use]
    pub fn has_ended(&self, ended: Ended) -> RemoteError {
        let mut error = self.failed(&ended.to_string());
        if let (RemoteError::Command { said, .. }, Ended::Killed(signal)) = (&mut error, ended) {
            said.push_str(&format!(
                "; signal {signal} killed ktsn there: see whether its kernel was short of memory (dmesg), or end what sends the signal, \
                 then run this again"
            ));
        }
        error
    }

    fn order(&self, order: Order) {
        // A connection that has ended is seen where it is read.
        let _ = self.orders.as_ref().map(|orders| orders.send(order));
    }

    /// Sends the command SIGTERM.
    pub fn ask_to_end(&self) {
        self.order(Order::End);
    }

    /// Writes a line to the command's standard input.
    ///
    /// # Errors
    /// More than one line, or too long a one.
    pub fn say(&self, line: &str) -> Result<(), LabError> {
        if line.contains('\n') || line.len() + "say \n".len() > ORDER_OCTETS_MAX {
            return Err(LabError::Usage(format!("a line of {} octets for the other host", line.len())));
        }
        self.order(Order::Say(line.to_owned()));
        Ok(())
    }

    /// Fetches a file below the command's directory to the path `to`, which must not exist.
    ///
    /// # Errors
    /// There is no such file, or a larger one than allowed; the connection ended; `to` cannot be written.
    pub fn fetch(&mut self, name: &str, to: &Path, octets_max: u64) -> Result<(), RemoteError> {
        if !is_file_name(name) {
            return Err(LabError::Usage(format!("{name:?} is no name of a file there")).into());
        }
        let mut file = File::create_new(to).map_err(LabError::file(to))?;
        self.order(Order::Fetch(name.to_owned()));
        let fetched = self.receive(name, to, &mut file, octets_max);
        if fetched.is_err() {
            let _ = std::fs::remove_file(to);
        }
        fetched
    }

    fn receive(
        &mut self,
        name: &str,
        to: &Path,
        file: &mut File,
        octets_max: u64,
    ) -> Result<(), RemoteError> {
        let (mut left, mut written) = (None, 0);
        let mut until = Instant::now() + STALL_MAX;
        while left != Some(0) {
            match self.hear(until)? {
                Some(Heard::File(size)) if size <= octets_max => left = Some(size),
                Some(Heard::File(size)) => {
                    let problem =
                        format!("its file {name} has {size} octets; at most {octets_max} are taken");
                    // The octets are on their way: nothing more can be asked.
                    self.orders = None;
                    return Err(self.untrue(problem));
                }
                Some(Heard::Data(octets)) => {
                    file.write_all(&octets).map_err(LabError::file(to))?;
                    left = left.map(|left| left.saturating_sub(octets.len() as u64));
                    until = Instant::now() + STALL_MAX;
                }
                Some(Heard::NoFile(why)) => {
                    return Err(self.failed(&format!("its file {name}: {}", end_of(&why))));
                }
                Some(Heard::Ready) => self.lines.whole.push_back(Said::Ready),
                Some(Heard::Wrote(is_error, octets)) => {
                    self.lines.take(is_error, &octets).map_err(|problem| self.untrue(problem))?;
                    written += octets.len();
                    if written > WRITTEN_OCTETS_MAX {
                        return Err(self.untrue("it wrote without end instead of a file".to_owned()));
                    }
                }
                Some(Heard::Ended(ended)) => {
                    self.lines.finish();
                    self.lines.whole.push_back(Said::Ended(ended));
                }
                Some(Heard::Started | Heard::Broken(_)) => {}
                None => return Err(self.untrue(format!("its file {name} stopped for {STALL_MAX:?}"))),
            }
        }
        Ok(())
    }

    /// Waits for the command's end.
    ///
    /// # Errors
    /// It did not end within `longest`, or failed.
    pub fn wait(&mut self, longest: Duration) -> Result<(), RemoteError> {
        let until = Instant::now() + longest;
        loop {
            match self.next(until.saturating_duration_since(Instant::now()))? {
                Some(Said::Ended(Ended::Exited(0))) => return Ok(()),
                Some(Said::Ended(ended)) => return Err(self.has_ended(ended)),
                Some(_) if Instant::now() < until => {}
                _ => return Err(self.failed(&format!("did not end within {longest:?}"))),
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The other side has its end of file now, and ends its program; ssh ends with it.
        self.orders = None;
        let until = Instant::now() + if self.is_broken { Duration::ZERO } else { END_MAX };
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            // It may be held up by what was not taken.
            while Instant::now() < until && self.heard.try_recv().is_ok() {}
            std::thread::sleep(LOOK_AGAIN);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
