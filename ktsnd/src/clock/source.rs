// SPDX-License-Identifier: Apache-2.0
//! The source that reports whether the clock is good: the kernel, ptp4l or chronyd. In: nothing. Out: readings.
//!  
//! ptp4l and chronyd are asked by their own tools, `pmc` and `chronyc`, which get a second for an answer. Their output is not
//! trusted: `parse` reads it.

use std::io::Read as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ktsn_time::Nanos;

use super::judge::Reading;
use super::parse;
use crate::config::ClockSource;

/// How often the kernel is asked; a tool is a process, and asked less often.
const PERIOD: Duration = Duration::from_millis(500);
const TOOL_PERIOD: Duration = Duration::from_secs(1);
/// How long a tool may take. Less than what a thread may be silent for.
const PATIENCE: Duration = Duration::from_millis(800);
/// Most octets of a tool's answer that are read.
const ANSWER_MAX: u64 = 16 << 10;

/// A source, and the error that it may admit.
#[derive(Debug)]
pub(crate) struct Source {
    of: ClockSource,
    error_max: Option<Nanos>,
}

impl Source {
    pub(crate) fn new(of: ClockSource, error_max: Option<Nanos>) -> Self {
        Self { of, error_max }
    }

    pub(super) fn period(&self) -> Duration {
        match self.of {
            ClockSource::Kernel => PERIOD,
            ClockSource::Ptp4l | ClockSource::Chrony => TOOL_PERIOD,
        }
    }

    pub(super) fn read(&mut self) -> Reading {
        let reading = match self.of {
            ClockSource::Kernel => kernel(crate::sys::clock_discipline()),
            ClockSource::Ptp4l => {
                answer("pmc", &["-u", "-b", "0", "GET TIME_STATUS_NP", "GET PORT_DATA_SET"], parse::pmc)
            }
            ClockSource::Chrony => answer("chronyc", &["-c", "tracking"], parse::chronyc),
        };
        reading.within(self.error_max)
    }
}

/// The kernel's clock discipline: whether it is synchronised, and the greatest error that its discipliner admits.
fn kernel(discipline: Option<(bool, Nanos)>) -> Reading {
    match discipline {
        Some((true, error)) => Reading::good(Some(error)),
        Some((false, _)) => Reading::bad("the kernel says: not synchronised"),
        None => Reading::bad("the kernel does not tell (adjtimex)"),
    }
}

/// The answer of a tool, read by `read`.
fn answer(program: &str, arguments: &[&str], read: fn(&str) -> Reading) -> Reading {
    match ask(program, arguments) {
        Ok(text) => read(&text),
        Err(why) => Reading::bad(why),
    }
}

fn ask(program: &str, arguments: &[&str]) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{program}: {error}");
    let mut command = Command::new(program);
    command.args(arguments).env("LC_ALL", "C").stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(failed)?;
    let until = Instant::now() + PATIENCE;
    // Its answer fits into the pipe; a longer one is no answer, and the tool is killed for it.
    while child.try_wait().map_err(failed)?.is_none() {
        if Instant::now() >= until {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("{program} does not answer within {PATIENCE:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut octets = Vec::new();
    if let Some(pipe) = child.stdout.take() {
        pipe.take(ANSWER_MAX).read_to_end(&mut octets).map_err(failed)?;
    }
    Ok(String::from_utf8_lossy(&octets).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_is_missing_or_silent_is_a_fault() {
        let echo = |text: &str| Reading::bad(text.trim());
        assert!(answer("ktsn-no-such-tool", &[], echo).fault.unwrap().starts_with("ktsn-no-such-tool: "));
        assert_eq!(answer("echo", &["hello"], echo).fault.as_deref(), Some("hello"));
        assert!(answer("sleep", &["60"], echo).fault.unwrap().contains("does not answer"));
        // Endless output neither blocks this thread nor fills the memory.
        assert!(answer("yes", &[], echo).fault.unwrap().contains("does not answer"));
    }

    #[test]
    fn the_kernel_is_believed() {
        let error = Nanos::from_millis(16);
        assert_eq!(kernel(Some((true, error))), Reading::good(Some(error)));
        assert!(kernel(Some((false, error))).fault.is_some() && kernel(None).fault.is_some());
    }
}
