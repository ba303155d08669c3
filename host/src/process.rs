// SPDX-License-Identifier: Apache-2.0
//! Processes of an experiment.
//!
//! In: a program, its arguments, a namespace, environment. Out: a [`Process`] that has said it is ready. It dies with
//! its [`Process`] value and with the thread that started it; waiting never lasts longer than the caller allows, and
//! ends when the caller is asked to stop. What it writes goes to a file and into the error.

use crate::error::HostError;
use crate::sys;
use ktsn_traffic::clock::stop_requested;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, Read};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a wait checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How much of what a process wrote an error shows.
const SHOWN_OCTETS: usize = 2000;

/// The end of what a program said, as errors show it.
pub fn end_of(said: &str) -> &str {
    let said = said.trim();
    let from = (said.len().saturating_sub(SHOWN_OCTETS)..said.len()).find(|&at| said.is_char_boundary(at));
    from.map_or("", |at| &said[at..])
}

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    namespace: Option<String>,
    says_ready: Option<ReadyBy>,
}

/// Where a program says that it is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadyBy {
    /// A descriptor of its own.
    Descriptor,
    /// The standard output of the program: the only one that reaches into a pod and back.
    Stdout,
}

impl Program {
    /// `program`, called `name` in errors.
    #[must_use]
    pub fn new(name: &str, program: &Path) -> Self {
        Self {
            name: name.to_owned(),
            program: program.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            namespace: None,
            says_ready: None,
        }
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<S: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl Into<OsString>) -> Self {
        self.environment.push((key.into(), value.into()));
        self
    }

    /// Starts it in the named network namespace.
    #[must_use]
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// It gets `--ready-fd N` and writes a byte there when it is ready.
    #[must_use]
    pub const fn says_ready(mut self) -> Self {
        self.says_ready = Some(ReadyBy::Descriptor);
        self
    }

    /// The program gets `--ready-fd 1` and writes a byte to its standard output when it is ready; that output is then not
    /// in its log.
    #[must_use]
    pub const fn says_ready_on_stdout(mut self) -> Self {
        self.says_ready = Some(ReadyBy::Stdout);
        self
    }

    /// Starts it; what it writes goes to a file in `directory`.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn start(&self, directory: &Path) -> Result<Process, HostError> {
        let log = directory.join(format!("{}.log", self.name));
        let file = File::create(&log).map_err(HostError::file(&log))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().map(|(key, value)| (key, value)));
        let output = file.try_clone().map_err(HostError::file(&log))?;
        command.stdin(Stdio::null()).stdout(output).stderr(file);
        let mut pipe =
            self.says_ready.map(|_| std::io::pipe()).transpose().map_err(HostError::system("pipe"))?;
        let mut inherited = None;
        match (self.says_ready, &mut pipe) {
            (Some(ReadyBy::Descriptor), Some((_, write))) => {
                inherited = Some(write.as_raw_fd());
                command.arg("--ready-fd").arg(write.as_raw_fd().to_string());
            }
            (Some(ReadyBy::Stdout), Some((_, write))) => {
                command.args(["--ready-fd", "1"]);
                command.stdout(write.try_clone().map_err(HostError::system("dup"))?);
            }
            _ => {}
        }
        sys::inherit(&mut command, inherited.as_slice());
        if let Some(namespace) = &self.namespace {
            sys::enter_namespace(&mut command, namespace)?;
        }
        let child = command.spawn().map_err(|source| HostError::Start {
            command: self.program.display().to_string(),
            remedy: if source.kind() == std::io::ErrorKind::NotFound {
                "; `make build` makes it"
            } else {
                ""
            },
            source,
        })?;
        // The write ends close here: from now on the child's end of file means that it ended.
        drop(command);
        let ready = pipe.map(|(read, _)| read);
        Ok(Process { name: self.name.clone(), child, ready, said: None, log })
    }
}

/// A started process; killed on drop.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// The pipe on which the process says that it is ready, until it has.
    ready: Option<PipeReader>,
    /// The pipe afterwards: what else the process writes there must find a reader.
    said: Option<PipeReader>,
    log: PathBuf,
}

impl Process {
    /// The number of the process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    /// It ended or stayed silent for `longest`.
    pub fn wait_ready(&mut self, longest: Duration) -> Result<(), HostError> {
        let Some(mut pipe) = self.ready.take() else { return Ok(()) };
        let until = Instant::now() + longest;
        loop {
            stop()?;
            if Instant::now() >= until {
                return Err(self.failed(format!("was not ready within {longest:?}")));
            }
            let slice = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
            match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&slice)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => break,
                Err(error) => return Err(HostError::system("poll")(error.into())),
            }
        }
        if pipe.read(&mut [0]).map_err(HostError::system("readiness pipe"))? == 1 {
            self.said = Some(pipe);
            return Ok(());
        }
        Err(self.failed("ended before it was ready".to_owned()))
    }

    /// Waits for its end with one of the `accepted` statuses.
    ///
    /// # Errors
    /// It did not end within `longest`, or otherwise.
    pub fn wait(&mut self, longest: Duration, accepted: &[i32]) -> Result<(), HostError> {
        match self.wait_any(longest)? {
            Some(exit) => match exit.code() {
                Some(status) if accepted.contains(&status) => Ok(()),
                Some(status) => Err(self.failed(format!("ended with status {status}"))),
                None => Err(self.failed("was ended by a signal".to_owned())),
            },
            None => Err(self.failed(format!("did not end within {longest:?}"))),
        }
    }

    /// Waits for its end, whatever it is; `None` when it still runs after `longest`.
    ///
    /// # Errors
    /// The caller was asked to stop.
    pub fn wait_any(&mut self, longest: Duration) -> Result<Option<ExitStatus>, HostError> {
        let until = Instant::now() + longest;
        loop {
            if let Some(exit) = self.child.try_wait().map_err(HostError::system("waitpid"))? {
                return Ok(Some(exit));
            }
            stop()?;
            if Instant::now() >= until {
                return Ok(None);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Asks it to end (SIGTERM).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ask_to_end(&mut self) -> Result<(), HostError> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        match (self.child.try_wait(), pid) {
            // A process that has not been waited for keeps its number.
            (Ok(None), Some(pid)) => {
                kill_process(pid, Signal::TERM).map_err(|error| HostError::system("kill")(error.into()))
            }
            _ => Ok(()),
        }
    }

    /// Waits for its end after it was asked to; it is killed after `longest`. A stop of the caller does not cut this short.
    pub fn end_within(&mut self, longest: Duration) {
        let until = Instant::now() + longest;
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_AGAIN);
        }
        // One that has ended has nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Stops all its threads until [`Self::go_on`].
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn pause(&self) -> Result<(), HostError> {
        self.signal(Signal::STOP)
    }

    /// Lets the threads go on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn go_on(&self) -> Result<(), HostError> {
        self.signal(Signal::CONT)
    }

    /// Sends a signal to the process; it has not been waited for, so that its number is its own.
    fn signal(&self, signal: Signal) -> Result<(), HostError> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        pid.map_or(Ok(()), |pid| {
            kill_process(pid, signal).map_err(|error| HostError::system("kill")(error.into()))
        })
    }

    /// Kills it at once, without a chance to clean up.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn kill(&mut self) -> Result<(), HostError> {
        self.child.kill().map_err(HostError::system("kill"))
    }

    /// What it has written to its log so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// An error with what the process wrote.
    pub fn failed(&self, problem: String) -> HostError {
        let said = self.said();
        let said = end_of(&said);
        let shown = if said.is_empty() { String::new() } else { format!("; it said:\n{said}") };
        HostError::Process { name: self.name.clone(), problem, stderr: shown }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended by itself; then both have nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn stop() -> Result<(), HostError> {
    if stop_requested() { Err(HostError::Stopped) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Program {
        Program::new("shell", Path::new("/bin/sh")).args(["-c", script, "sh"])
    }

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn readiness_and_end_are_seen() {
        let directory = tempfile::tempdir().unwrap();
        // $1 $2 are --ready-fd N. A path, since sh redirects to single digits only and N may be 10 or more.
        let ready = shell("printf x >/proc/self/fd/$2; sleep 0.05").says_ready();
        let mut process = ready.start(directory.path()).unwrap();
        process.wait_ready(LONG).unwrap();
        process.wait(Duration::from_secs(60), &[0]).unwrap();
    }

    #[test]
    fn readiness_on_standard_output_leaves_it_open() {
        let directory = tempfile::tempdir().unwrap();
        let script = "echo ready; sleep 0.05; echo more && echo written >&2";
        let mut process = shell(script).says_ready_on_stdout().start(directory.path()).unwrap();
        process.wait_ready(LONG).unwrap();
        process.wait(LONG, &[0]).unwrap();
        assert_eq!(std::fs::read_to_string(directory.path().join("shell.log")).unwrap(), "written\n");
    }

    #[test]
    fn a_failure_is_told_with_what_the_process_said() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell("echo the reason >&2; exit 3").says_ready().start(directory.path()).unwrap();
        let error = process.wait_ready(LONG).unwrap_err().to_string();
        assert!(error.contains("ended before it was ready"), "{error}");
        let error = process.wait(LONG, &[0]).unwrap_err().to_string();
        assert!(error.contains("status 3") && error.contains("the reason"), "{error}");
        let absent =
            Program::new("x", Path::new("/nowhere/x")).start(directory.path()).unwrap_err().to_string();
        assert!(absent.contains("make build"), "{absent}");
    }

    #[test]
    fn it_dies_with_its_value() {
        let directory = tempfile::tempdir().unwrap();
        let mut process = shell("exec sleep 600").start(directory.path()).unwrap();
        assert_eq!(process.wait_any(Duration::from_millis(20)).unwrap(), None);
        let error = process.wait(Duration::from_millis(20), &[0]).unwrap_err().to_string();
        assert!(error.contains("did not end within"), "{error}");
        let pid = process.pid();
        drop(process);
        assert!(!sys::exists(pid));
    }
}
