// SPDX-License-Identifier: Apache-2.0
//! Short commands of the system (`ip`, `bridge`, `iptables`).
//!
//! In: a command line, and a namespace or none. Out: nothing, or the command with what it wrote to standard error.
//! Nothing here outlives its call.

use crate::error::HostError;
use crate::process::end_of;
use crate::sys;
use ktsn_traffic::clock::stop_requested;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

/// How often a wait checks again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Splits `line` at spaces and runs it; in the named namespace when one is given.
///
/// # Errors
/// The command cannot be started or fails.
pub fn run(namespace: Option<&str>, line: &str) -> Result<(), HostError> {
    output(namespace, line).map(drop)
}

/// Runs `line` as [`run`] does, and returns what the command wrote to standard output.
pub fn output(namespace: Option<&str>, line: &str) -> Result<String, HostError> {
    let shown = || namespace.map_or_else(|| line.to_owned(), |name| format!("ip netns exec {name} {line}"));
    let mut words = line.split_whitespace();
    let program = words.next().ok_or_else(|| HostError::Usage("an empty command".to_owned()))?;
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    if let Some(name) = namespace {
        sys::enter_namespace(&mut command, name)?;
    }
    output_of(command, shown)
}

/// Runs a command to its end, and returns what it wrote to standard output; `shown` is its line in errors.
///
/// # Errors
/// The command cannot be started or fails.
pub fn output_of(mut command: Command, shown: impl Fn() -> String) -> Result<String, HostError> {
    let output = command.output().map_err(|source| HostError::Start {
        command: shown(),
        remedy: if source.kind() == std::io::ErrorKind::NotFound { "; `make setup` installs it" } else { "" },
        source,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(HostError::Command { command: shown(), status: output.status.to_string(), stderr })
}

/// Runs a command that may take long to its end; what it writes to standard output is lost unless the caller has set it. When the caller is
/// asked to stop, the command and its children are.
///
/// # Errors
/// The command cannot be started or fails; [`HostError::Stopped`].
pub fn carry_out(mut command: Command, shown: impl Fn() -> String) -> Result<(), HostError> {
    sys::inherit(&mut command, &[]);
    command.stdin(Stdio::null()).stderr(Stdio::piped()).process_group(0);
    let mut child =
        command.spawn().map_err(|source| HostError::Start { command: shown(), remedy: "", source })?;
    let mut pipe = child.stderr.take();
    let said = std::thread::spawn(move || {
        let mut said = Vec::new();
        // What cannot be read cannot be shown.
        let _ = pipe.as_mut().map(|pipe| pipe.read_to_end(&mut said));
        String::from_utf8_lossy(&said).trim().to_owned()
    });
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let status = loop {
        if let Some(status) = child.try_wait().map_err(HostError::system("waitpid"))? {
            break status;
        }
        if let Some(group) = group.filter(|_| stop_requested()) {
            // Where it has just ended there is nothing to stop.
            let _ = kill_process_group(group, Signal::TERM);
            child.wait().map_err(HostError::system("waitpid"))?;
            return Err(HostError::Stopped);
        }
        std::thread::sleep(LOOK_AGAIN);
    };
    let stderr = said.join().unwrap_or_default();
    if status.success() {
        return Ok(());
    }
    Err(HostError::Command {
        command: shown(),
        status: status.to_string(),
        stderr: end_of(&stderr).to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_the_command_and_what_it_said() {
        let error = run(None, "ls /nowhere-at-all").unwrap_err().to_string();
        assert!(error.contains("`ls /nowhere-at-all`") && error.contains("No such file"), "{error}");
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo ignored; echo the reason >&2; exit 3"]).stdout(Stdio::null());
        let error = carry_out(shell, || "a script".to_owned()).unwrap_err().to_string();
        assert!(error.contains("`a script` failed") && error.contains("the reason"), "{error}");
        carry_out(Command::new("true"), String::new).unwrap();
        let error = run(None, "no-such-program-here").unwrap_err().to_string();
        assert!(error.contains("make setup"), "{error}");
        let error = run(Some("no-such-namespace"), "true").unwrap_err().to_string();
        assert!(error.contains("/run/netns/no-such-namespace"), "{error}");
    }
}
