// SPDX-License-Identifier: Apache-2.0
//! Carries actions out.
//!
//! In: one [`Action`]. Out: the machine is changed, or the typed reason why not. Taking back what is gone already is no error.

use super::device;
use super::plan::{Action, HANDLE};
use super::sys;
use crate::control;
use ktsn_host::HostError;
use ktsn_host::command;
use ktsn_proto::v1;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for ktsnd to serve: a guest without KVM is slow.
const SERVE_MAX: Duration = Duration::from_secs(30);
/// Longest wait for ktsnd to send what is queued and end.
const END_MAX: Duration = Duration::from_secs(12);
const LOOK_AGAIN: Duration = Duration::from_millis(20);
const LOG: &str = "ktsnd.log";
/// The configuration, in ktsnd's run directory: the one of `/etc` is not for this ktsnd.
const CONFIG: &str = "ktsnd.toml";
/// How much of ktsnd's log an error shows.
const LOG_LINES: usize = 12;

/// Keeps what takes an action back.
pub(super) type Keep<'a> = dyn FnMut(Action) -> Result<(), HostError> + 'a;

/// What an action does, for people.
pub(super) fn describe(action: &Action) -> String {
    match action {
        Action::Queues(count) => format!("{count} queue pairs"),
        Action::Link(u32::MAX, _) => "link speed unknown".to_owned(),
        Action::Link(speed, _) => format!("link speed {speed} Mbit/s"),
        Action::Up(true) => "device up".to_owned(),
        Action::Up(false) => "device down".to_owned(),
        Action::Tc(arguments) => format!("tc {}", arguments.join(" ")),
        Action::StartDaemon(program, run_dir, attach, _) => {
            format!("{} --run-dir {} --attach {attach}", program.display(), run_dir.display())
        }
        Action::StopDaemon { pid, .. } => format!("end ktsnd {pid}"),
        Action::Gates(_, file) => format!("gates of {}", file.display()),
    }
}

/// Carries an action out on a device. `keep` gets the action that takes it back, where only the doing tells it, as soon as it is known.
///
/// # Errors
/// [`HostError::Impossible`] where the kernel lacks something; [`HostError::Command`], [`HostError::System`]; those of `keep`.
pub(super) fn carry_out(device: &str, action: &Action, keep: &mut Keep<'_>) -> Result<(), HostError> {
    match action {
        Action::Queues(count) => {
            sys::set_queues(device, *count)
                .map_err(HostError::system("setting the number of queue pairs"))?;
        }
        Action::Link(speed, duplex) => {
            sys::set_link(device, *speed, *duplex).map_err(HostError::system("setting the link's speed"))?;
        }
        Action::Up(is_up) => {
            sys::set_up(device, *is_up).map_err(HostError::system("taking the device up or down"))?;
        }
        Action::Tc(arguments) => tc(arguments)?,
        Action::StartDaemon(program, run_dir, attach, config) => {
            start(program, run_dir, [attach, config], keep)?;
        }
        Action::StopDaemon { pid, start, run_dir, is_dir_ours } => {
            stop(*pid, *start)?;
            if *is_dir_ours {
                remove(run_dir)?;
            }
        }
        Action::Gates(run_dir, file) => gates(device, run_dir, file)?,
    }
    Ok(())
}

/// Takes an action back by `undo`. What another hand has changed since is left alone.
///
/// # Errors
/// Those of [`carry_out`].
pub(super) fn take_back(device: &str, undo: &Action) -> Result<(), HostError> {
    let is_gone = match undo {
        Action::Tc(_) => {
            device::root_of(device::qdiscs(device)?).is_none_or(|root| root.handle != format!("{HANDLE}:"))
        }
        _ => false,
    };
    // What takes back has nothing that takes it back.
    if is_gone { Ok(()) } else { carry_out(device, undo, &mut |_| Ok(())) }
}

fn tc(arguments: &[String]) -> Result<(), HostError> {
    let line = format!("tc {}", arguments.join(" "));
    match command::run(None, &line) {
        Err(HostError::Command { command, status, stderr }) => Err(refused(command, status, stderr)),
        Err(HostError::Start { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Err(HostError::Impossible {
                what: "tc is not here, which sets qdiscs".to_owned(),
                remedy: "apt-get install iproute2, or --mode ktsnd".to_owned(),
            })
        }
        done => done,
    }
}

/// The error of a `tc` that failed.
pub(super) fn refused(command: String, status: String, stderr: String) -> HostError {
    let kind =
        ["taprio", "mqprio", "etf"].into_iter().find(|kind| command.split(' ').any(|word| word == *kind));
    if let (true, Some(kind)) = (stderr.contains("qdisc kind is unknown"), kind) {
        let option = kind.to_uppercase();
        return HostError::Impossible {
            what: format!("this kernel has no qdisc {kind}"),
            remedy: format!("a kernel with CONFIG_NET_SCH_{option}, or --mode ktsnd, which needs no qdisc"),
        };
    }
    if stderr.contains("Operation not permitted") {
        return HostError::Impossible {
            what: format!("`{command}`: {stderr}"),
            remedy: "run it as root (CAP_NET_ADMIN)".to_owned(),
        };
    }
    HostError::Command { command, status, stderr }
}

/// The state letter and the start time of a process; `None` if there is none.
fn process(pid: u32) -> Option<(String, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The program's name, in parentheses, may hold any octets.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(((*fields.first()?).to_owned(), fields.get(19)?.parse().ok()?))
}

/// Whether the process of this number and start time runs: a zombie does not.
fn runs(pid: u32, start: u64) -> bool {
    process(pid).is_some_and(|(state, begun)| begun == start && state != "Z" && state != "X")
}

/// Whether a ktsnd of this run directory says that it serves.
fn serves(run_dir: &Path) -> bool {
    let Ok(runtime) = control::runtime() else { return false };
    let health = runtime.block_on(async {
        let mut client = control::connect(run_dir).await?;
        control::answer(run_dir, client.health(v1::HealthRequest {})).await
    });
    health.is_ok_and(|health| health.serving)
}

fn start(
    program: &Path,
    run_dir: &Path,
    [attach, config]: [&str; 2],
    keep: &mut Keep<'_>,
) -> Result<(), HostError> {
    if run_dir.join("ktsnd.sock").exists() && serves(run_dir) {
        return Err(HostError::Usage(format!(
            "--run-dir {}: a ktsnd serves there already; expected a directory without one",
            run_dir.display()
        )));
    }
    let is_dir_ours = !run_dir.exists();
    std::fs::create_dir_all(run_dir).map_err(HostError::file(run_dir))?;
    let path = run_dir.join(LOG);
    let log = File::create(&path).map_err(HostError::file(&path))?;
    let file = run_dir.join(CONFIG);
    std::fs::write(&file, config).map_err(HostError::file(&file))?;
    let mut command = Command::new(program);
    command
        .arg("--config")
        .arg(&file)
        .arg("--run-dir")
        .arg(run_dir)
        .args(["--attach", attach])
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(HostError::file(&path))?)
        .stderr(log)
        // It goes on when this command has ended, whatever ends the terminal.
        .process_group(0);
    let mut child = command.spawn().map_err(|source| HostError::Start {
        command: program.display().to_string(),
        source,
        remedy: "",
    })?;
    let pid = child.id();
    let begun = process(pid).map_or(0, |(_, start)| start);
    // Before it serves, which takes a while: a kill meanwhile leaves a record of it.
    let kept = keep(Action::StopDaemon { pid, start: begun, run_dir: run_dir.to_owned(), is_dir_ours });
    let until = Instant::now() + SERVE_MAX;
    let problem = loop {
        if let Err(error) = &kept {
            break format!("was ended: {error}");
        }
        if let Some(status) = child.try_wait().map_err(HostError::system("waitpid"))? {
            break format!("ended before it served ({status})");
        }
        if serves(run_dir) {
            return Ok(());
        }
        if Instant::now() >= until {
            break format!("does not serve within {SERVE_MAX:?}");
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    let said = std::fs::read_to_string(&path).unwrap_or_default();
    let lines: Vec<&str> = said.lines().collect();
    let end = lines[lines.len().saturating_sub(LOG_LINES)..].join("\n");
    // Both may have ended by themselves.
    let _ = child.kill();
    let _ = child.wait();
    if is_dir_ours {
        remove(run_dir)?;
    }
    Err(HostError::Process { name: "ktsnd".to_owned(), problem, stderr: format!("; its log:\n{end}") })
}

fn remove(run_dir: &Path) -> Result<(), HostError> {
    match std::fs::remove_dir_all(run_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(HostError::file(run_dir)(error)),
        _ => Ok(()),
    }
}

/// Lets the process send what is queued, and ends it.
fn stop(pid: u32, start: u64) -> Result<(), HostError> {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
    for (signal, longest) in [(Signal::TERM, END_MAX), (Signal::KILL, Duration::from_secs(2))] {
        if !runs(pid, start) {
            return Ok(());
        }
        // It may end meanwhile.
        let _ = kill_process(number, signal);
        let until = Instant::now() + longest;
        while runs(pid, start) && Instant::now() < until {
            std::thread::sleep(LOOK_AGAIN);
        }
    }
    if runs(pid, start) {
        return Err(HostError::Process {
            name: "ktsnd".to_owned(),
            problem: format!("(process {pid}) does not end"),
            stderr: String::new(),
        });
    }
    Ok(())
}

/// Gives ktsnd the gates, by this program's own `schedule apply`.
fn gates(device: &str, run_dir: &Path, file: &Path) -> Result<(), HostError> {
    let program = std::env::current_exe().map_err(HostError::system("the path of this program"))?;
    let mut apply = Command::new(program);
    apply
        .args(["schedule", "apply"])
        .arg(file)
        .args(["--port", device, "--run-dir"])
        .arg(run_dir)
        .stdin(Stdio::null());
    command::output_of(apply, || format!("ktsn schedule apply {} --port {device}", file.display())).map(drop)
}
