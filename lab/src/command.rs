// SPDX-License-Identifier: Apache-2.0
//! Short commands of the system (`ip`, `bridge`, `iptables`).
//!
//! In: a command line, and a namespace or none. Out: nothing, or the command with what it wrote to standard error.
//! Nothing here outlives its call.

use crate::error::LabError;
use crate::sys;
use std::process::{Command, Stdio};

/// Splits `line` at spaces and runs it; in the named namespace when one is given.
///
/// # Errors
/// The command cannot be started or fails.
pub(crate) fn run(namespace: Option<&str>, line: &str) -> Result<(), LabError> {
    output(namespace, line).map(drop)
}

/// Runs `line` as [`run`] does, and returns what the command wrote to standard output.
pub(crate) fn output(namespace: Option<&str>, line: &str) -> Result<String, LabError> {
    let shown = || namespace.map_or_else(|| line.to_owned(), |name| format!("ip netns exec {name} {line}"));
    let mut words = line.split_whitespace();
    let program = words.next().ok_or_else(|| LabError::Usage("an empty command".to_owned()))?;
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
pub(crate) fn output_of(mut command: Command, shown: impl Fn() -> String) -> Result<String, LabError> {
    let output = command.output().map_err(|source| LabError::Start {
        command: shown(),
        remedy: if source.kind() == std::io::ErrorKind::NotFound { "; `make setup` installs it" } else { "" },
        source,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LabError::Command { command: shown(), status: output.status.to_string(), stderr })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_show_the_command_and_what_it_said() {
        let error = run(None, "ls /nowhere-at-all").unwrap_err().to_string();
        assert!(error.contains("`ls /nowhere-at-all`") && error.contains("No such file"), "{error}");
        let error = run(None, "no-such-program-here").unwrap_err().to_string();
        assert!(error.contains("make setup"), "{error}");
        let error = run(Some("no-such-namespace"), "true").unwrap_err().to_string();
        assert!(error.contains("/run/netns/no-such-namespace"), "{error}");
    }
}
