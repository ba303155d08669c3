// SPDX-License-Identifier: Apache-2.0
//! The other host of an experiment, over ssh.
//!
//! In: `ssh:HOST`, where `ktsn` is installed. Out: commands of that ktsn, run there; or why there can be no result: no connection, another
//! version, clocks that nothing holds together. What runs there ends with its [`Session`], and when this side or the connection dies.
//!
//! ssh is this machine's own program with the user's configuration: keys, jumps and the checking of host keys are the user's. It never asks
//! for a password.

pub mod clock;
mod end;
pub mod frames;
mod guard;
pub mod hosts;
mod lines;
mod session;
#[cfg(test)]
mod session_tests;
pub mod target;
#[cfg(test)]
mod tests;

pub use crate::error::RemoteError;
pub(crate) use end::End;
pub use frames::Ended;
pub use guard::{Guarded, Outcome, guard};
pub use lines::Said;
pub use session::{Session, Task};
pub(crate) use target::GUARDED;
pub use target::{SILENCE_MAX, Target};

use crate::command::output_of;
use crate::error::LabError;
use crate::process::end_of;
use crate::sys;
use crate::vm::printable;
use clock::ClockFacts;
use ktsn_measure::clock::stop_requested;
use std::ffi::OsString;
use std::io::Read as _;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often this side says that it lives.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// The most octets of a short answer.
const ANSWER_OCTETS_MAX: u64 = 1 << 20;
/// The most characters of a name or an error that the other host may choose.
const NAME_CHARACTERS_MAX: usize = 200;
/// What stands for ssh's words where it had none.
const NO_WORDS: &str = "ssh said nothing";
/// How long a short answer may take, with the connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// ssh's own exit status for a connection that failed.
const SSH_FAILED: i32 = 255;
/// A shell's exit status for a program that it does not find.
const NOT_FOUND: i32 = 127;

/// How to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The host.
    pub target: Target,
    /// A configuration file for ssh in place of the user's own.
    pub ssh_config: Option<PathBuf>,
    /// The program ktsn there.
    pub ktsn: String,
}

/// A word of the other host's shell.
fn quoted(word: &str) -> String {
    let is_plain = |octet: u8| octet.is_ascii_alphanumeric() || b"/._-,=:+@".contains(&octet);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Remote {
    /// ssh with a command for the other host.
    fn ssh(&self, words: &[&str]) -> Command {
        let mut command = Command::new("ssh");
        if let Some(file) = &self.ssh_config {
            command.arg("-F").arg(file);
        }
        for option in ["BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=3", "ServerAliveCountMax=3"]
        {
            command.arg("-o").arg(option);
        }
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        command.args(["-T", "--", self.target.host()]).arg(line.join(" "));
        command
    }

    fn shown(words: &[&str]) -> String {
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    }

    /// Runs `ktsn` there with arguments, to its end; what it wrote to standard output.
    ///
    /// # Errors
    /// [`RemoteError`]: no connection, no such program, or its failure.
    pub fn output(&self, arguments: &[&str]) -> Result<String, RemoteError> {
        let words: Vec<&str> = [&[self.ktsn.as_str()], arguments].concat();
        let untrue = |problem: String| RemoteError::Untrue { target: self.target.clone(), problem };
        match short_answer(self.ssh(&words), ANSWER_WITHIN)? {
            Short::TooLong => Err(untrue(format!("its answer has more than {ANSWER_OCTETS_MAX} octets"))),
            Short::Late => {
                Err(untrue(format!("`{}` gave no answer within {ANSWER_WITHIN:?}", Self::shown(&words))))
            }
            Short::Whole(status, said, _) if status.success() => {
                Ok(String::from_utf8_lossy(&said).into_owned())
            }
            Short::Whole(status, _, errors) => {
                Err(self.failure(&words, status, &String::from_utf8_lossy(&errors)))
            }
        }
    }

    fn failure(&self, words: &[&str], status: ExitStatus, said: &str) -> RemoteError {
        let target = self.target.clone();
        let said = words_or(said.as_bytes(), NO_WORDS);
        match status.code() {
            Some(SSH_FAILED) => RemoteError::Connection { host: target.host().to_owned(), target, said },
            Some(NOT_FOUND) => RemoteError::Missing { target, program: self.ktsn.clone() },
            _ => {
                RemoteError::Command { target, command: Self::shown(words), status: status.to_string(), said }
            }
        }
    }

    /// Compares the ktsn there with `ours`, the answer of this one's `--version`.
    ///
    /// # Errors
    /// [`RemoteError::Version`] if they differ; as [`Remote::output`].
    pub fn check_version(&self, ours: &str) -> Result<(), RemoteError> {
        let theirs = self.output(&["--version"])?;
        let (ours, theirs) = (ours.trim(), theirs.trim());
        if ours == theirs {
            return Ok(());
        }
        let target = self.target.clone();
        Err(RemoteError::Version { target, ours: ours.to_owned(), theirs: plain(theirs) })
    }

    /// What holds the clock there.
    ///
    /// # Errors
    /// As [`Remote::output`]; an answer of another form.
    pub fn clock(&self) -> Result<ClockFacts, RemoteError> {
        let answer = self.output(&["remote", "clock"])?;
        let read = serde_json::from_str(&answer).map(hosts::cleaned).and_then(serde_json::from_value);
        read.map_err(|error| RemoteError::Untrue {
            target: self.target.clone(),
            problem: no_json("what holds its clock", &error),
        })
    }
}

/// The problem of an answer that is not of its form.
pub(crate) fn no_json(what: &str, error: &serde_json::Error) -> String {
    format!(
        "its answer is not valid JSON of {what}: {}; install the same ktsn on both hosts",
        plain(&error.to_string())
    )
}

/// A name or an error of the other host, on one line: neither control characters nor more than [`NAME_CHARACTERS_MAX`].
pub(crate) fn plain(text: &str) -> String {
    cut(text, NAME_CHARACTERS_MAX)
}

/// A text of the other host, on one line and no longer than this.
fn cut(text: &str, characters_max: usize) -> String {
    let mut letters = text.chars().map(|letter| if letter == '\n' { ' ' } else { letter });
    let mut letters = letters.by_ref().filter(|letter| !letter.is_control());
    let mut plain: String = letters.by_ref().take(characters_max).collect();
    if letters.next().is_some() {
        plain.push('…');
    }
    plain
}

/// The end of what was said, or `otherwise` where that is nothing.
fn words_or(said: &[u8], otherwise: &str) -> String {
    let said = printable(said);
    let said = end_of(&said);
    if said.is_empty() { otherwise.to_owned() } else { said.to_owned() }
}

/// What came of a command whose answer is short.
#[derive(Debug)]
enum Short {
    /// How it ended, its answer, and the end of its words.
    Whole(ExitStatus, Vec<u8>, Vec<u8>),
    TooLong,
    Late,
}

/// Runs a command that another host may hold up: not longer than `within`, nor after a stop was asked for.
fn short_answer(mut command: Command, within: Duration) -> Result<Short, RemoteError> {
    sys::inherit(&mut command, &[]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Ends(command.spawn().map_err(no_ssh)?);
    let errors = child.0.stderr.take().map(|pipe| std::thread::spawn(move || lines::last_of(pipe)));
    // Read before the wait: a full pipe would never end. One octet more than is allowed shows the excess.
    let answer = child.0.stdout.take().map(|pipe| {
        std::thread::spawn(move || {
            let mut said = Vec::new();
            pipe.take(ANSWER_OCTETS_MAX + 1).read_to_end(&mut said).map(|_| said)
        })
    });
    let until = Instant::now() + within;
    let mut status = None;
    while answer.as_ref().is_some_and(|thread| !thread.is_finished()) || status.is_none() {
        if stop_requested() {
            return Err(LabError::Stopped.into());
        }
        if Instant::now() > until {
            return Ok(Short::Late);
        }
        std::thread::sleep(LOOK_AGAIN);
        status = child.0.try_wait().map_err(LabError::system("wait"))?;
        if status.is_none() && answer.as_ref().is_some_and(JoinHandle::is_finished) {
            // What has said more than allowed may wait for a reader.
            break;
        }
    }
    let said = answer.and_then(|thread| thread.join().ok()).transpose();
    let said = said.map_err(LabError::system("ssh's output"))?.unwrap_or_default();
    if said.len() as u64 > ANSWER_OCTETS_MAX {
        return Ok(Short::TooLong);
    }
    while status.is_none() && Instant::now() <= until && !stop_requested() {
        std::thread::sleep(LOOK_AGAIN);
        status = child.0.try_wait().map_err(LabError::system("wait"))?;
    }
    let Some(status) = status else { return Ok(Short::Late) };
    // Another process may hold its end of the pipe.
    while errors.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() <= until {
        std::thread::sleep(LOOK_AGAIN);
    }
    let errors = errors.filter(JoinHandle::is_finished).and_then(|thread| thread.join().ok());
    Ok(Short::Whole(status, said, errors.unwrap_or_default()))
}

/// A process that is killed on drop.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn no_ssh(source: std::io::Error) -> LabError {
    LabError::Start { command: "ssh".to_owned(), source, remedy: "; install openssh-client" }
}

/// What a local command says, or nothing where there is none: `chronyc`, `pmc`.
fn said_by(program: &str, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null());
    output_of(command, || OsString::from(program).to_string_lossy().into_owned()).ok()
}
