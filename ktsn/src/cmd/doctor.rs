// SPDX-License-Identifier: Apache-2.0
//! `ktsn doctor`: what this machine lets KTSN do, and how to get more.
//!
//! In: nothing, or a program. Out: findings for people or as JSON. Exit status 0 without a `fail`, else 1.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ktsn_host::{HostError, find_program};
use ktsn_realtime::RealTime;
use ktsn_time::Nanos;
use ktsn_traffic::clock::stop_on_signals;
use serde_json::json;

use crate::doctor::finding::{Finding, State};
use crate::doctor::vm::Side;
use crate::doctor::{self, program, wake_ups};
use crate::{control, output};

const EXAMPLES: &str = "\
Examples:
  ktsn doctor
  ktsn doctor --program ./controller
  ktsn doctor --capture
  ktsn doctor --vm
  ktsn doctor --rt 1
  ktsn doctor --wake-ups 10s
  ktsn doctor --program ./controller --json | jq .program
  ktsn doctor --json | jq '.findings[] | select(.state != \"ok\")'

A finding is ok, warn, fail or \"not known\": then its source, which stands below each finding, does not say.
The trials of queueing disciplines make the kernel load its modules sch_etf, sch_taprio, sch_fq and sch_mqprio, where it has them; they stay \
loaded. Nothing else is changed.

Exit status: 0 nothing failed (there may be warnings and things that are not known); 1 something failed;
  2 wrong usage, no such program or no such CPU.";

/// Look at this machine, and say what to change.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Also check whether libktsn can serve this program.
    #[arg(long, value_name = "PROGRAM")]
    program: Option<OsString>,
    /// Also measure how much earlier a program has to send that kernel capture serves: a second of traffic in network
    /// namespaces of its own (root).
    #[arg(long)]
    capture: bool,
    /// Look at a virtual machine instead: in a guest at what its host gives it, on a host at its guests (QEMU, as root).
    #[arg(
        long,
        value_name = "SIDE",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "auto",
        conflicts_with_all = ["program", "capture"]
    )]
    vm: Option<Side>,
    /// Look at what makes wake-ups late instead, for a program on this CPU.
    #[arg(long, value_name = "CPU", conflicts_with_all = ["program", "capture", "vm"])]
    rt: Option<u32>,
    /// Measure how late a real-time thread wakes up instead, for TIME and without a load, and hold that against what services ask for; needs
    /// cyclictest (Debian: rt-tests) and the right to SCHED_FIFO.
    #[arg(
        long,
        value_name = "TIME",
        value_parser = wake_ups::duration_of,
        conflicts_with_all = ["program", "capture", "vm", "rt"]
    )]
    wake_ups: Option<Nanos>,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Directory of the ktsnd to look at [default: KTSN_RUN_DIR, else /run/ktsn].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
}

/// Looks at the machine and shows the findings.
pub(crate) fn run(args: &DoctorArgs) -> ExitCode {
    match show(args) {
        Ok(status) => status.into(),
        Err((status, what)) => {
            eprintln!("ktsn doctor: {what}");
            status.into()
        }
    }
}

fn show(args: &DoctorArgs) -> Result<u8, (u8, String)> {
    let run_dir =
        control::run_dir(args.run_dir.as_deref()).map_err(|error| (2, format!("--run-dir: {error}")))?;
    let program = match &args.program {
        None => None,
        Some(name) => Some(find_program(name).ok_or_else(|| {
            let what = "no such program; give its path or a name on the search path (PATH)";
            (2, format!("--program {}: {what}", name.display()))
        })?),
    };
    let mut measured = None;
    let findings = match (args.vm, args.rt, args.wake_ups) {
        (Some(side), _, _) => doctor::look_at_vm(side),
        (None, Some(cpu), _) => {
            doctor::look_at_wake_ups(cpu).map_err(|what| (2, format!("--rt {cpu}: {what}")))?
        }
        (None, None, Some(lasts)) => {
            stop_on_signals();
            let found = wake_ups::measure(lasts);
            if let Err(stopped @ HostError::Stopped) = found {
                return Err((1, stopped.to_string()));
            }
            let finding = wake_ups::finding(&found);
            measured = found.ok();
            vec![finding]
        }
        (None, None, None) => doctor::look(&run_dir, program.as_deref(), args.capture),
    };
    let text = if args.json {
        json_of(&run_dir, &findings, program.as_deref(), measured.as_ref())
    } else {
        text_of(&findings)
    };
    output::show(&text).map_err(|what| (1, what))?;
    Ok(u8::from(count(&findings, State::Fail) > 0))
}

/// The findings about this machine as JSON, without a program and without a measurement.
pub(super) fn document(run_dir: &Path) -> serde_json::Value {
    value_of(run_dir, &doctor::look(run_dir, None, false), None)
}

fn count(findings: &[Finding], state: State) -> usize {
    findings.iter().filter(|finding| finding.state == state).count()
}

fn text_of(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for finding in findings {
        let state = finding.state.word();
        text.push_str(&format!("{state:>9}  {:width$}  {}\n", finding.name, finding.value));
        let indent = " ".repeat(width + 13);
        if finding.state != State::Ok {
            text.push_str(&format!("{indent}means:  {}\n", finding.meaning));
            text.push_str(&format!("{indent}remedy: {}\n", finding.remedy.as_deref().unwrap_or("-")));
        }
        text.push_str(&format!("{indent}source: {}\n", finding.source));
    }
    let [ok, unknown, warn, fail] =
        [State::Ok, State::NotKnown, State::Warn, State::Fail].map(|state| count(findings, state));
    text.push_str(&format!("\n{ok} ok, {unknown} not known, {warn} warnings, {fail} failed\n"));
    text
}

/// `measured` becomes the member `realtime`, as in the results of `ktsn rt run`.
fn json_of(
    run_dir: &Path,
    findings: &[Finding],
    program: Option<&Path>,
    measured: Option<&RealTime>,
) -> String {
    let mut value = value_of(run_dir, findings, program);
    if let Some(measured) = measured {
        value["realtime"] = json!(measured);
    }
    format!("{value:#}\n")
}

fn value_of(run_dir: &Path, findings: &[Finding], program: Option<&Path>) -> serde_json::Value {
    let program = program.and_then(|path| program::inspect(path).ok()).map(|it| it.to_json());
    json!({
        "program": program,
        "run_dir": run_dir.to_string_lossy(),
        "ok": count(findings, State::Ok),
        "not_known": count(findings, State::NotKnown),
        "warn": count(findings, State::Warn),
        "fail": count(findings, State::Fail),
        "findings": findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Look;

    #[test]
    fn what_is_not_ok_is_explained() {
        let findings = [
            Look::at("kernel", "/proc/version").ok("6.1", "new enough"),
            Look::at("clock", "adjtimex").warn("no", "off by the difference", "run ptp4l"),
            Look::at("cpus", "/sys").not_known("no list", "unknown", "mount /sys"),
            Look::at("af_packet", "socket").fail("refused", "no port", "grant CAP_NET_RAW"),
        ];
        let text = text_of(&findings);
        assert!(text.contains("       ok  kernel     6.1\n"), "{text}");
        assert!(text.contains("not known  cpus       no list\n"), "{text}");
        assert!(
            text.contains("means:  off by the difference\n") && text.contains("remedy: run ptp4l\n"),
            "{text}"
        );
        assert!(text.contains("source: /proc/version\n") && text.contains("source: socket\n"), "{text}");
        assert!(!text.contains("new enough"), "{text}");
        assert!(text.ends_with("1 ok, 1 not known, 1 warnings, 1 failed\n"), "{text}");
        let value: serde_json::Value =
            serde_json::from_str(&json_of(Path::new("/x"), &findings, None, None)).unwrap();
        assert_eq!(value["findings"][3]["state"], "fail");
        assert_eq!(value["findings"][0]["remedy"], serde_json::Value::Null);
        assert_eq!((&value["findings"][2]["state"], &value["not_known"]), (&"not known".into(), &1.into()));
        assert_eq!((&value["findings"][1]["source"], &value["fail"]), (&"adjtimex".into(), &1.into()));
    }
}
