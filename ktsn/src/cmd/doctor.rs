// SPDX-License-Identifier: Apache-2.0
//! `ktsn doctor`: what this machine lets KTSN do, and how to get more.
//!
//! In: nothing, or a program. Out: findings for people or as JSON. Exit status 0 without a `fail`, else 1.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::doctor::finding::{Finding, State};
use crate::doctor::vm::Side;
use crate::doctor::{self, program};
use crate::{control, output};

const EXAMPLES: &str = "\
Examples:
  ktsn doctor
  ktsn doctor --program ./controller
  ktsn doctor --capture
  ktsn doctor --vm
  ktsn doctor --rt 1
  ktsn doctor --program ./controller --json | jq .program
  ktsn doctor --json | jq '.findings[] | select(.state != \"ok\")'

Exit status: 0 nothing failed (there may be warnings); 1 something failed;
  2 wrong usage or no such program.";

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
        Some(name) => Some(program::find(name).ok_or_else(|| {
            let what = "no such program; give its path or a name on the search path (PATH)";
            (2, format!("--program {}: {what}", name.display()))
        })?),
    };
    let findings = match (args.vm, args.rt) {
        (Some(side), _) => doctor::look_at_vm(side),
        (None, Some(cpu)) => doctor::look_at_wake_ups(cpu),
        (None, None) => doctor::look(&run_dir, program.as_deref(), args.capture),
    };
    let text = if args.json { json_of(&run_dir, &findings, program.as_deref()) } else { text_of(&findings) };
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
        text.push_str(&format!("{:>4}  {:width$}  {}\n", finding.state.word(), finding.name, finding.value));
        if finding.state != State::Ok {
            let indent = " ".repeat(width + 8);
            text.push_str(&format!("{indent}means:  {}\n", finding.meaning));
            text.push_str(&format!("{indent}remedy: {}\n", finding.remedy.as_deref().unwrap_or("-")));
        }
    }
    let [ok, warn, fail] = [State::Ok, State::Warn, State::Fail].map(|state| count(findings, state));
    text.push_str(&format!("\n{ok} ok, {warn} warnings, {fail} failed\n"));
    text
}

fn json_of(run_dir: &Path, findings: &[Finding], program: Option<&Path>) -> String {
    format!("{:#}\n", value_of(run_dir, findings, program))
}

fn value_of(run_dir: &Path, findings: &[Finding], program: Option<&Path>) -> serde_json::Value {
    let program = program.and_then(|path| program::inspect(path).ok()).map(|it| it.to_json());
    json!({
        "program": program,
        "run_dir": run_dir.to_string_lossy(),
        "ok": count(findings, State::Ok),
        "warn": count(findings, State::Warn),
        "fail": count(findings, State::Fail),
        "findings": findings,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ok_is_explained() {
        let findings = [
            Finding::ok("kernel", "6.1", "new enough"),
            Finding::warn("clock", "no", "off by the difference", "run ptp4l"),
            Finding::fail("af_packet", "refused", "no port", "grant CAP_NET_RAW"),
        ];
        let text = text_of(&findings);
        assert!(text.contains("  ok  kernel     6.1\n"), "{text}");
        assert!(
            text.contains("means:  off by the difference\n") && text.contains("remedy: run ptp4l\n"),
            "{text}"
        );
        assert!(!text.contains("new enough"), "{text}");
        assert!(text.ends_with("1 ok, 1 warnings, 1 failed\n"), "{text}");
        let value: serde_json::Value =
            serde_json::from_str(&json_of(Path::new("/x"), &findings, None)).unwrap();
        assert_eq!(value["findings"][2]["state"], "fail");
        assert_eq!(value["findings"][0]["remedy"], serde_json::Value::Null);
        assert_eq!(value["fail"], 1);
    }
}
