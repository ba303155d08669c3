// SPDX-License-Identifier: Apache-2.0
//! The program that runs the guests: `virtio-net/test/experiments.py`.
//!
//! In: a plan and a round's number. Out: the lines of JSON that the program writes, one after the other. The program and its guests end
//! with the call.

use super::Plan;
use crate::error::LabError;
use crate::process::end_of;
use crate::sys;
use ktsn_measure::clock::stop_requested;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Octets of the program's messages.
pub(super) const MESSAGE_OCTETS: usize = 1448;
/// Where the program stands in the workspace.
const PROGRAM: &str = "virtio-net/test/experiments.py";
/// Where the guests are built.
const OUT: &str = "out/bench/rtos";
/// The exit status of a machine that lacks something.
const NOT_POSSIBLE: i32 = 3;
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// One run of a guest: round trips, or a TCP stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Run {
    pub(super) path: String,
    pub(super) load: String,
    pub(super) payload_octets: usize,
    pub(super) round: u32,
    pub(super) tcp_octets: u64,
    /// The bound of posted receive buffers; `None`: the guest's driver has none.
    pub(super) posted_max: Option<u64>,
    #[serde(default)]
    pub(super) trips_ns: Vec<i64>,
    pub(super) octets: Option<u64>,
    pub(super) nanoseconds: Option<u64>,
    pub(super) messages: u64,
    pub(super) interrupts: u64,
    pub(super) posted_peak_octets: Option<u64>,
    pub(super) buffer_octets: Option<u64>,
}

/// What the program says.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// The next step.
    Step(String),
    /// Versions and devices.
    RanOn(Map<String, Value>),
    /// A run has ended.
    Run(Run),
}

/// A line as the program writes it: an object with one member.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Written {
    Step(String),
    RanOn(Map<String, Value>),
    Run(Run),
    Missing { what: String, remedy: String },
}

/// Reads one line.
///
/// # Errors
/// [`LabError::Impossible`] if the line says what the machine lacks; [`LabError::Contents`] if the line is not understood.
pub(super) fn read(line: &str) -> Result<Line, LabError> {
    match serde_json::from_str(line) {
        Ok(Written::Step(step)) => Ok(Line::Step(step)),
        Ok(Written::RanOn(facts)) => Ok(Line::RanOn(facts)),
        Ok(Written::Run(run)) => Ok(Line::Run(run)),
        Ok(Written::Missing { what, remedy }) => Err(LabError::Impossible { what, remedy }),
        Err(error) => {
            let shown: String = line.chars().take(200).collect();
            Err(LabError::Contents { path: PROGRAM.into(), problem: format!("its line {shown:?}: {error}") })
        }
    }
}

fn command(plan: &Plan, round: u32) -> Command {
    let list = |values: &[u64]| values.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let mut command = Command::new("python3");
    command.arg(plan.workspace.join(PROGRAM)).arg("--out").arg(plan.workspace.join(OUT)).args([
        format!("--round={round}"),
        format!("--trips={}", plan.trips),
        format!("--octets={}", plan.stream_mib << 20),
        format!("--tcp={}", list(&plan.tcp_kib)),
        format!("--posted={}", list(&plan.posted)),
        format!("--usual-posted={}", plan.usual_posted),
        format!("--dropping-posted={}", list(&plan.dropping_posted)),
        format!(
            "--backend={}",
            plan.backends.iter().map(|backend| backend.name()).collect::<Vec<_>>().join(",")
        ),
    ]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    sys::inherit(&mut command, &[]);
    command
}

/// The program; killed on drop, and its guests with it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended by itself; then both have nothing to do.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one round. `heard` gets each line when it comes.
///
/// # Errors
/// The program is not there, lacks something, fails, or the caller was asked to stop.
pub(super) fn round(plan: &Plan, round: u32, heard: &mut dyn FnMut(Line)) -> Result<(), LabError> {
    let program = plan.workspace.join(PROGRAM);
    if !program.is_file() {
        return Err(LabError::Impossible {
            what: format!("{} does not exist", program.display()),
            remedy: "run it in the workspace, or name the workspace with --workspace".to_owned(),
        });
    }
    let child = command(plan, round).spawn().map_err(|source| LabError::Start {
        command: format!("python3 {PROGRAM}"),
        source,
        remedy: "; `make setup` installs python3",
    })?;
    let mut running = Running(child);
    let (Some(stdout), Some(mut stderr)) = (running.0.stdout.take(), running.0.stderr.take()) else {
        return Err(LabError::Usage("the pipes of a child were asked for and are not there".to_owned()));
    };
    let (lines, received) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        // What cannot be read cannot be shown.
        let _ = stderr.read_to_string(&mut text);
        text
    });
    loop {
        if stop_requested() {
            return Err(LabError::Stopped);
        }
        match received.recv_timeout(LOOK_AGAIN) {
            Ok(line) => heard(read(&line)?),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = running.0.wait().map_err(LabError::system("waitpid"))?;
    judge(status, &said.join().unwrap_or_default())
}

fn judge(status: ExitStatus, said: &str) -> Result<(), LabError> {
    if status.success() {
        return Ok(());
    }
    if stop_requested() {
        return Err(LabError::Stopped);
    }
    let stderr = end_of(said).to_owned();
    if status.code() == Some(NOT_POSSIBLE) {
        return Err(LabError::Impossible { what: stderr, remedy: "`make setup`".to_owned() });
    }
    Err(LabError::Command { command: format!("python3 {PROGRAM}"), status: status.to_string(), stderr })
}
