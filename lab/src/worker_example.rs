// SPDX-License-Identifier: Apache-2.0
//! Running the daemon's own example `worker_throughput`: it measures the shipped worker, which no other crate may link.
//!
//! In: the tools, arguments. Out: what it printed, one entry of `micro` a line.

use std::path::PathBuf;
use std::process::Command;

use crate::error::LabError;
use crate::tools::Tools;

/// The program.
#[derive(Clone, Debug)]
pub(crate) struct WorkerExample(pub(crate) PathBuf);

impl WorkerExample {
    /// The one beside ktsnd.
    ///
    /// # Errors
    /// It is not built: what to do.
    pub(crate) fn find(tools: &Tools) -> Result<Self, String> {
        let program = tools.ktsnd.with_file_name("examples").join("worker_throughput");
        if program.is_file() {
            return Ok(Self(program));
        }
        let shown = program.display();
        Err(format!(
            "{shown} is not built; remedy: `cargo build --release -p ktsnd --example worker_throughput`"
        ))
    }

    /// Runs it for `seconds`; its standard output, as `read` understands it.
    ///
    /// # Errors
    /// It cannot be started, fails, or prints what `read` refuses.
    pub(crate) fn run<T>(
        &self,
        seconds: u32,
        arguments: &[&str],
        read: impl FnOnce(&[u8]) -> Result<T, String>,
    ) -> Result<T, LabError> {
        let shown = self.0.display().to_string();
        let output = Command::new(&self.0)
            .args(["--seconds", &seconds.to_string()])
            .args(arguments)
            .output()
            .map_err(|source| LabError::Start { command: shown.clone(), source, remedy: "" })?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(LabError::Command { command: shown, status: output.status.to_string(), stderr });
        }
        read(&output.stdout).map_err(|problem| LabError::Contents { path: self.0.clone(), problem })
    }
}
