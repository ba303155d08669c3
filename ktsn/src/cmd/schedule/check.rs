// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule check`: every fault of a file, then what it probably did not mean.

use std::process::ExitCode;

use clap::Args;
use ktsn_schedule::Schedule;
use ktsn_schedule::analysis::{Analysis, analyse};
use ktsn_schedule::taprio::needs;
use ktsn_schedule::units::show_span;

use super::Input;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  ktsn schedule check schedule.yaml
  ktsn schedule check schedule.yaml --link-speed 100M --mtu 256 --strict
  ktsn schedule convert schedule.yaml --format taprio --dev eth0 | ktsn schedule check -

A fault is FILE:LINE:COLUMN: LEAF: what was found, what was expected (the rule). Warnings: a class that never opens, a \
frame that fits into no window, a window shorter than its guard band, an unknown link speed; of a tc command also what tc ignores, and what \
KTSN does not execute. What the device must have for a tc command is said in a line of its own.

Exit status: 0 no fault; 2 wrong usage or faults; with --strict also 2 for warnings.";

/// Check a schedule: every fault with line, leaf and rule.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct CheckArgs {
    #[command(flatten)]
    input: Input,
    /// Warnings count as faults.
    #[arg(long)]
    strict: bool,
}

/// Checks and says what was found.
pub(super) fn run(args: &CheckArgs) -> ExitCode {
    let Some((schedule, remarks)) = args.input.load() else { return 2.into() };
    let name = args.input.name();
    let analysis = analyse(&schedule, &args.input.link.of(&schedule));
    let mut warnings: Vec<String> = remarks
        .iter()
        .map(|remark| format!("{name}:{}:{}: warning: {}", remark.at.line, remark.at.column, remark.text))
        .collect();
    warnings.extend(
        schedule.limits().iter().map(|limit| format!("{name}: warning: KTSN does not execute it: {limit}")),
    );
    warnings.extend(analysis.warnings.iter().map(|warning| format!("{name}: warning: {warning}")));
    for warning in &warnings {
        eprintln!("{warning}");
    }
    if args.strict && !warnings.is_empty() {
        return 2.into();
    }
    let mut text = format!("{name}: {}\n", summary(&schedule, &analysis, warnings.len()));
    let needs = needs(&schedule);
    if !needs.is_empty() {
        text.push_str(&format!("{name}: for tc the device must have: {}\n", needs.join("; ")));
    }
    output::finish("schedule check", output::write(&text).map(drop))
}

/// The schedule in one line.
fn summary(schedule: &Schedule, analysis: &Analysis, warnings_count: usize) -> String {
    let name = schedule.name.as_ref().map(|name| format!("{name}: ")).unwrap_or_default();
    let warnings = match warnings_count {
        0 => String::new(),
        1 => ", 1 warning".to_owned(),
        count => format!(", {count} warnings"),
    };
    let admin = &schedule.admin;
    if !admin.gate_enabled || admin.control_list.is_empty() {
        return format!("{name}valid, gates stay at {:#04x}{warnings}", admin.gate_states.bits());
    }
    let (entries, cycle) = (admin.control_list.len(), show_span(admin.cycle_time.get()));
    let opened = analysis.classes.iter().filter(|class| !class.windows.is_empty()).count();
    let entries = if entries == 1 { "1 entry".into() } else { format!("{entries} entries") };
    format!("{name}valid, {entries} in a cycle of {cycle}, {opened} of 8 classes open{warnings}")
}
