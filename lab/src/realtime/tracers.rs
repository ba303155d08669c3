// SPDX-License-Identifier: Apache-2.0
//! The kernel's own tracers on this machine: `hwlatdetect`, `rtla osnoise`, `rtla timerlat`. In: a span for each. Out: their figures, or why
//! there are none. They run one after the other, after the cells: each of them keeps CPUs busy.

use super::limits::is_installed;
use crate::error::LabError;
use crate::process::{Program, end_of};
use ktsn_realtime::results::Skip;
use ktsn_realtime::tracers::{Kind, Tracer};
use ktsn_time::{Nanos, Span};
use std::path::Path;
use std::time::Duration;

/// A tracer runs at most so long: it shows what kind of noise there is, not how rare it is.
const LONGEST: Nanos = Nanos::from_seconds(10);
/// What a program may take beside its span.
const SPARE: Duration = Duration::from_secs(30);
/// Where a kernel lists its tracers.
const LISTS: [&str; 2] =
    ["/sys/kernel/tracing/available_tracers", "/sys/kernel/debug/tracing/available_tracers"];

/// Runs the tracers that this machine has, each as long as a cell, ten seconds at most.
///
/// # Errors
/// The caller was asked to stop.
pub(super) fn run(duration: Nanos, log: &Path) -> Result<Vec<Tracer>, LabError> {
    let available = LISTS.iter().find_map(|path| std::fs::read_to_string(path).ok());
    let seconds = (duration.min(LONGEST).get() / 1_000_000_000).max(1).unsigned_abs();
    let one = |&kind: &Kind| match skip(kind, available.as_deref(), is_installed(line(kind)[0])) {
        Some(skip) => Ok(Tracer { kind, skip: Some(skip), measured_ns: 0, traced: Vec::new() }),
        None => trace(kind, seconds, log),
    };
    Kind::ALL.iter().map(one).collect()
}

/// The tracer's program and its first arguments.
const fn line(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::Hwlat => &["hwlatdetect"],
        Kind::Osnoise => &["rtla", "osnoise", "top", "--quiet", "--duration"],
        Kind::Timerlat => &["rtla", "timerlat", "top", "--quiet", "--duration"],
    }
}

/// Why a tracer cannot run; `None` when it can.
fn skip(kind: Kind, available: Option<&str>, is_installed: bool) -> Option<Skip> {
    let tracer = kind.tracer();
    let skip = |kind: &str, reason: String| Some(Skip { kind: kind.to_owned(), reason });
    match available {
        None => skip("no_tracer", format!("the kernel shows no tracers ({} is not there)", LISTS[0])),
        Some(list) if !list.split_whitespace().any(|word| word == tracer) => {
            skip("no_tracer", format!("the kernel has no tracer {tracer}"))
        }
        Some(_) if !is_installed => {
            let program = line(kind)[0];
            let package = if kind == Kind::Hwlat { "rt-tests" } else { "rtla" };
            skip("program_missing", format!("{program} is not installed: apt-get install {package}"))
        }
        Some(_) => None,
    }
}

fn trace(kind: Kind, seconds: u64, log: &Path) -> Result<Tracer, LabError> {
    let words = line(kind);
    let span = if kind == Kind::Hwlat { format!("--duration={seconds}s") } else { format!("{seconds}s") };
    let name = format!("tracer-{}", kind.tracer());
    let program = Program::new(&name, Path::new(words[0])).args(words[1..].iter().copied()).args([span]);
    let failed = |reason: String| {
        let skip = Some(Skip { kind: "tracer_failed".to_owned(), reason });
        Ok(Tracer { kind, skip, measured_ns: 0, traced: Vec::new() })
    };
    let mut process = match program.start(log) {
        Ok(process) => process,
        Err(error) => return failed(error.to_string()),
    };
    // hwlatdetect ends with status 1 where samples exceed its threshold: what it wrote decides.
    match process.wait(Duration::from_secs(seconds) + SPARE, &[0, 1]) {
        Err(LabError::Stopped) => return Err(LabError::Stopped),
        Err(error) => return failed(super::guests::one_line(&error.to_string())),
        Ok(()) => {}
    }
    let said = process.said();
    match kind.read(&said) {
        Ok(traced) => {
            let measured_ns = Span::from_nanos(seconds * 1_000_000_000).as_nanos();
            Ok(Tracer { kind, skip: None, measured_ns, traced })
        }
        Err(problem) => failed(format!("{problem}; it wrote: {}", super::guests::one_line(end_of(&said)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_tracer_is_a_typed_skip() {
        let kind = |kind, available: Option<&str>, is_installed| {
            skip(kind, available, is_installed).map(|skip| skip.kind)
        };
        assert_eq!(kind(Kind::Osnoise, None, true).as_deref(), Some("no_tracer"));
        assert_eq!(kind(Kind::Osnoise, Some("timerlat nop\n"), true).as_deref(), Some("no_tracer"));
        assert_eq!(kind(Kind::Timerlat, Some("timerlat nop\n"), false).as_deref(), Some("program_missing"));
        assert_eq!(kind(Kind::Timerlat, Some("timerlat nop\n"), true), None);
    }

    #[test]
    fn all_tracers_have_a_result_here() {
        let folder = tempfile::tempdir().unwrap();
        let found = run(Nanos::from_seconds(1), folder.path()).unwrap();
        assert_eq!(found.iter().map(|one| one.kind).collect::<Vec<_>>(), Kind::ALL);
        assert!(found.iter().all(|one| one.skip.is_some() == one.traced.is_empty()), "{found:?}");
    }
}
