// SPDX-License-Identifier: Apache-2.0
//! The property suite of `sched`, run by `cargo test`. In: a workspace. Out: a check for each property, passed only
//! if its tests ran in this very command and passed.

use crate::error::LabError;
use ktsn_measure::results::Check;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// A property, and the tests that show it.
const PROPERTIES: [(&str, &[&str]); 14] = [
    ("nothing starts in a closed gate", &["clause_8_6_8_4_nothing_starts_in_a_closed_gate"]),
    ("nothing crosses a close", &["clause_8_6_8_4_nothing_crosses_a_close"]),
    ("FIFO within a class", &["clause_8_6_6_fifo_within_a_class"]),
    ("highest eligible class first", &["clause_8_6_8_1_highest_eligible_class_first"]),
    ("work conserving", &["clause_8_6_8_work_conserving"]),
    ("conservation of frames", &["conservation_of_frames"]),
    ("queueMaxSDU", &["clause_8_6_8_4_queue_max_sdu"]),
    ("change exactly at ConfigChangeTime", &["clause_8_6_9_3_change_exactly_at_config_change_time"]),
    (
        "jumping to WakeAt equals polling each nanosecond",
        &["jumping_to_wake_at_equals_polling_each_nanosecond"],
    ),
    ("a shift by k cycles changes nothing", &["clause_8_6_9_1_a_shift_by_whole_cycles_changes_nothing"]),
    ("splitting an entry changes nothing", &["clause_8_6_9_2_splitting_an_entry_changes_nothing"]),
    (
        "a clock step leaves nothing in a closed window of the new time",
        &["clause_8_6_9_a_clock_step_leaves_nothing_in_a_closed_window"],
    ),
    (
        "a flood's effect on others is bounded",
        &[
            "a_flood_in_a_lower_class_costs_at_most_one_frame",
            "a_flood_outside_an_exclusive_window_costs_nothing",
        ],
    ),
    (
        "no disagreement with the reference",
        &[
            "agrees_with_the_reference_whatever_happens",
            "agrees_with_the_reference_while_clocks_are_steady",
            "agrees_with_the_reference_at_real_sizes",
        ],
    ),
];

/// Runs the suite in `workspace`.
///
/// # Errors
/// `cargo` cannot be started. Everything else, a suite that does not build included, is a failed check.
pub(super) fn run(workspace: &Path, cases: Option<u32>) -> Result<Vec<Check>, LabError> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(&cargo);
    command.current_dir(workspace).args(["test", "--locked", "-p", "ktsn-sched", "--test", "gates"]);
    if let Some(cases) = cases {
        command.env("KTSN_CASES", cases.to_string());
    }
    let output = command.output().map_err(|source| LabError::Start {
        command: cargo.to_string_lossy().into_owned(),
        source,
        remedy: "; the property suite is built from source: run this in the workspace",
    })?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    let outcomes = outcomes(&String::from_utf8_lossy(&output.stdout));
    let problem = (!output.status.success()).then(|| last_lines(&stderr));
    Ok(checks(&outcomes, problem.as_deref()))
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(3)..].join("; ")
}

/// The outcome of each test by its name without modules: `test properties::NAME ... ok`.
fn outcomes(text: &str) -> BTreeMap<String, String> {
    let outcome = |line: &str| {
        let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
        let name = name.rsplit("::").next().unwrap_or(name);
        Some((name.to_owned(), outcome.trim().to_owned()))
    };
    text.lines().filter_map(outcome).collect()
}

/// `problem`: what cargo said, when the suite as a whole did not succeed.
fn checks(outcomes: &BTreeMap<String, String>, problem: Option<&str>) -> Vec<Check> {
    let reason = |tests: &[&str]| {
        tests.iter().find_map(|test| match outcomes.get(*test).map(String::as_str) {
            Some("ok") => None,
            Some(outcome) => Some(format!("{test}: {outcome}")),
            None => Some(format!(
                "{test} did not run{}",
                problem.map_or_else(String::new, |said| format!(" ({said})"))
            )),
        })
    };
    let mut checks: Vec<Check> =
        PROPERTIES.iter().map(|(name, tests)| Check::unless(*name, reason(tests))).collect();
    let failed: Vec<&str> =
        outcomes.iter().filter(|(_, outcome)| *outcome != "ok").map(|(name, _)| name.as_str()).collect();
    let whole = match (failed.is_empty(), problem) {
        (true, None) if !outcomes.is_empty() => None,
        (true, None) => Some("no test ran".to_owned()),
        (true, Some(said)) => Some(said.to_owned()),
        (false, _) => Some(failed.join(", ")),
    };
    checks.push(Check::unless("every other test of the suite", whole));
    checks
}

#[cfg(test)]
mod tests {
    use super::*;
    use ktsn_measure::results::CheckOutcome;

    fn all_ok() -> String {
        let line = |test: &&str| format!("test properties::{test} ... ok\n");
        PROPERTIES.iter().flat_map(|(_, tests)| tests.iter().map(line)).collect()
    }

    fn of<'a>(checks: &'a [Check], name: &str) -> &'a Check {
        checks.iter().find(|check| check.name == name).unwrap()
    }

    #[test]
    fn a_property_is_passed_only_if_its_tests_ran_and_passed() {
        let text = format!("running 30 tests\n{}test result: ok. 30 passed; 0 failed\n", all_ok());
        let checks = super::checks(&outcomes(&text), None);
        assert_eq!(checks.len(), 15);
        assert!(checks.iter().all(|check| check.outcome == CheckOutcome::Passed), "{checks:?}");

        let failed = text.replace("conservation_of_frames ... ok", "conservation_of_frames ... FAILED");
        let checks = super::checks(&outcomes(&failed), Some("error: test failed"));
        assert_eq!(of(&checks, "conservation of frames").outcome, CheckOutcome::Failed);
        assert_eq!(of(&checks, "every other test of the suite").outcome, CheckOutcome::Failed);
        assert_eq!(of(&checks, "queueMaxSDU").outcome, CheckOutcome::Passed);

        let one_of_two =
            text.replace("test properties::a_flood_outside_an_exclusive_window_costs_nothing ... ok\n", "");
        let checks = super::checks(&outcomes(&one_of_two), None);
        let flood = of(&checks, "a flood's effect on others is bounded");
        assert!(flood.reason.as_ref().unwrap().contains("did not run"), "{flood:?}");
        let ignored =
            text.replace("clause_8_6_8_work_conserving ... ok", "clause_8_6_8_work_conserving ... ignored");
        assert_eq!(
            of(&super::checks(&outcomes(&ignored), None), "work conserving").outcome,
            CheckOutcome::Failed
        );
    }

    #[test]
    fn a_suite_that_does_not_build_proves_nothing() {
        let checks = super::checks(&outcomes("error: could not compile"), Some("could not compile"));
        assert!(checks.iter().all(|check| check.outcome == CheckOutcome::Failed));
        assert!(checks[0].reason.as_ref().unwrap().contains("could not compile"));
        assert!(super::checks(&outcomes(""), None).iter().all(|check| check.outcome == CheckOutcome::Failed));
    }
}
