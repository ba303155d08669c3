// SPDX-License-Identifier: Apache-2.0
//! Runs the scripts of publisher and subscriber, each in a guest or in a host's namespace.
//!
//! In: a script and its place. Out: the files that the script writes out, as they come. A script and all that it started end with the
//! call, within a limit, or when its run is not wanted any more.

use super::plan::Plan;
use super::script::Files;
use crate::error::LabError;
use crate::process::end_of;
use crate::sys;
use crate::vm::protocol::{Clock, Ended, Job};
use crate::vm::{self, Machine, Renew, Request, Stream, Watch};
use ktsn_measure::clock::stop_requested;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Octets of one file that a script writes out: the records of a day would not fit.
const FILE_OCTETS_MAX: usize = 256 << 20;
/// How much of a script's words is kept for an error.
const SAID_OCTETS_MAX: usize = 16 << 10;
/// What a script needs beyond its frames: schedules, counters, files.
pub(super) const SCRIPT_EXTRA: Duration = Duration::from_secs(120);
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// What is known of a script that runs, and whether it shall go on.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
    changed: Condvar,
    is_unwanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    files: Files,
    said: Vec<u8>,
}

impl Progress {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the script soon.
    pub(super) fn end(&self) {
        self.is_unwanted.store(true, Ordering::Relaxed);
    }

    fn is_wanted(&self) -> bool {
        !self.is_unwanted.load(Ordering::Relaxed)
    }

    /// Waits a little for a file: whether it is there.
    pub(super) fn has(&self, name: &str) -> bool {
        let state = self.state();
        if state.files.has(name) {
            return true;
        }
        let (state, _) = self.changed.wait_timeout(state, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner);
        state.files.has(name)
    }

    /// All files; there are none afterwards.
    pub(super) fn take_files(&self) -> Files {
        std::mem::take(&mut self.state().files)
    }

    fn take(&self, octets: &[u8]) -> io::Result<()> {
        let taken = self.state().files.take(octets, FILE_OCTETS_MAX);
        self.changed.notify_all();
        taken.map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem))
    }

    fn say(&self, octets: &[u8]) {
        let mut state = self.state();
        state.said.extend_from_slice(octets);
        let excess = state.said.len().saturating_sub(SAID_OCTETS_MAX);
        state.said.drain(..excess);
    }

    /// An error of the script, with the end of what it said.
    pub(super) fn failed(&self, name: &str, problem: String) -> LabError {
        let said = vm::printable(&self.state().said);
        let said = end_of(&said);
        let stderr = if said.is_empty() { String::new() } else { format!("; it said:\n{said}") };
        LabError::Process { name: name.to_owned(), problem, stderr }
    }
}

impl Watch for &Progress {
    fn ready(&mut self) {}

    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<usize> {
        match stream {
            Stream::Stdout => self.take(octets)?,
            Stream::Stderr => self.say(octets),
        }
        Ok(octets.len())
    }

    fn is_wanted(&self) -> bool {
        Progress::is_wanted(self)
    }
}

/// Where a script runs.
#[derive(Debug)]
pub(super) enum Place {
    /// In a guest with this machine.
    Guest(Box<Machine>),
    /// In a host's namespace.
    Namespace(String),
}

impl Place {
    /// Runs the script to its end.
    ///
    /// # Errors
    /// The guest does not boot, ends or takes too long, with its console; the script fails, with what it said; [`LabError::Stopped`].
    pub(super) fn run(
        &self,
        name: &str,
        plan: &Plan,
        script: &str,
        progress: &Progress,
    ) -> Result<(), LabError> {
        let longest = plan.traffic() + SCRIPT_EXTRA;
        match self {
            Self::Guest(machine) => in_guest(name, plan, machine, script, longest, progress),
            Self::Namespace(namespace) => in_namespace(name, plan, namespace, script, longest, progress),
        }
    }
}

fn in_guest(
    name: &str,
    plan: &Plan,
    machine: &Machine,
    script: &str,
    longest: Duration,
    mut progress: &Progress,
) -> Result<(), LabError> {
    let image = vm::image(&plan.cache, plan.choice.accelerator.kind(), Renew::Nothing, &mut |_| {})?;
    let job = Job {
        in_host_tree: false,
        has_user_network: false,
        address: machine.address.map_or_else(String::new, |address| address.to_string()),
        clock: plan.clock,
        time_server: String::new(),
        directory: "/root".into(),
        bring: Vec::new(),
        program: ["sh", "-c", script].map(Into::into).into(),
    };
    let request = Request {
        machine: machine.clone(),
        accelerator: plan.choice.accelerator,
        job,
        tools: plan.setup.tools.clone(),
        boot_within: plan.boot_within,
        program_within: Some(longest),
    };
    let named = |error| match error {
        LabError::Process { problem, stderr, .. } => {
            LabError::Process { name: format!("the {name}'s guest"), problem, stderr }
        }
        error => error,
    };
    let report = vm::run(&plan.cache, image, &request, &mut progress).map_err(named)?;
    match report.ended {
        Ended::Exited(0) => followed(name, plan.clock, report.clock.as_deref(), progress),
        Ended::Exited(status) => Err(progress.failed(name, format!("ended with status {status}"))),
        Ended::Killed(signal) => Err(progress.failed(name, format!("was ended by signal {signal}"))),
        Ended::NotStarted(number) => {
            let error = io::Error::from_raw_os_error(i32::from(number));
            Err(progress.failed(name, format!("cannot be started in the guest: {error}")))
        }
    }
}

/// A guest whose clock did not follow at the end has no latencies to tell.
fn followed(name: &str, clock: Clock, state: Option<&str>, progress: &Progress) -> Result<(), LabError> {
    if clock == Clock::None {
        return Ok(());
    }
    let state: serde_json::Value =
        state.and_then(|state| serde_json::from_str(state).ok()).unwrap_or_default();
    match state["state"].as_str() {
        Some("following") => Ok(()),
        other => {
            let problem =
                format!("the guest's clock ({clock}) was {} at the end", other.unwrap_or("unknown"));
            Err(progress.failed(name, problem))
        }
    }
}

/// A shell; it and all that it started end with the value.
struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself; then both have nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn in_namespace(
    name: &str,
    plan: &Plan,
    namespace: &str,
    script: &str,
    longest: Duration,
    progress: &Progress,
) -> Result<(), LabError> {
    // The shell is process 1 of a space of its own: all that it started ends with it.
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script]);
    let tools = &plan.setup.tools;
    let beside = tools.ktsn.parent().unwrap_or(Path::new("/"));
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{}:{path}", beside.display())).env("KTSN_LIB", &tools.libktsn);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::inherit(&mut command, &[]);
    sys::enter_namespace(&mut command, namespace)?;
    let child = command.spawn().map_err(|source| LabError::Start {
        command: "unshare".to_owned(),
        source,
        remedy: "; apt-get install util-linux",
    })?;
    let mut shell = Shell(child);
    let until = Instant::now() + longest;
    let (pieces, received) = channel();
    let (stdout, stderr) = (shell.0.stdout.take(), shell.0.stderr.take());
    forward(stdout, Stream::Stdout, pieces.clone());
    forward(stderr, Stream::Stderr, pieces);
    loop {
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        if !progress.is_wanted() {
            return Err(progress.failed(name, "was ended: its run is not wanted any more".to_owned()));
        }
        if Instant::now() > until {
            return Err(progress.failed(name, format!("did not end within {longest:?}")));
        }
        match received.recv_timeout(LOOK_AGAIN) {
            Ok((stream, octets)) => {
                let mut watch = progress;
                let wrote = Watch::wrote(&mut watch, stream, &octets);
                wrote.map_err(LabError::system("output of a script"))?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = shell.0.wait().map_err(LabError::system("waitpid"))?;
    if status.success() { Ok(()) } else { Err(progress.failed(name, format!("ended ({status})"))) }
}

/// Reads an output on a thread of its own, which ends with the output.
fn forward(
    output: Option<impl Read + Send + 'static>,
    stream: Stream,
    pieces: std::sync::mpsc::Sender<(Stream, Vec<u8>)>,
) {
    let Some(mut output) = output else { return };
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(octets) = output.read(&mut buffer) {
            if octets == 0 || pieces.send((stream, buffer[..octets].to_vec())).is_err() {
                break;
            }
        }
    });
}

/// Writes a file that a script has written out where the readers of records find it.
///
/// # Errors
/// The script wrote no such file, or it cannot be kept.
pub(super) fn keep(files: &Files, name: &str, directory: &Path) -> Result<std::path::PathBuf, LabError> {
    let path = directory.join(name);
    let content = files.get(name).ok_or_else(|| LabError::Contents {
        path: name.into(),
        problem: "a script ended well and did not write this file".to_owned(),
    })?;
    File::create(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, content))
        .map_err(LabError::file(&path))?;
    Ok(path)
}
