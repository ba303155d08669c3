// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt compare`: what a change brought. In: two results of `ktsn rt run`. Out: what was not measured alike, and the table of both tests.
//! Exit status 0 nothing is worse; 1 something is; 2 wrong usage or a wrong file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::LabError;
use ktsn_measure::results::Document;
use ktsn_measure::table;
use ktsn_realtime::compare;

use crate::output;
use crate::plain::{escaped, plain};

const COMPARE_EXAMPLES: &str = "\
Examples:
  ktsn rt compare monday/rt.json tuesday/rt.json

Each system and profile that both files measured is tested twice, with Holm's correction, at 1 %. The usual latencies: Mann and Whitney's \
rank sum, two-sided; a conclusion also needs that a latency after exceeds one before in more than 56 % of all pairs, or in less than 44 %. \
The tail: how many latencies exceed 1.1 times the lesser percentile 99.9; a conclusion also needs that the share doubles, or falls to half. \
Worse in either is worse.

What was not measured alike (duration, excursion limit, environment, priority, CPU) is said above the table, with --json on stderr. \
Different periods are refused.

Exit status: 0 nothing is worse; 1 something is; 2 wrong usage or a wrong file.";

/// Say what a change brought, with a statistical test.
#[derive(Args, Clone, Debug)]
#[command(after_help = COMPARE_EXAMPLES)]
pub(super) struct CompareArgs {
    /// Results before the change.
    before: PathBuf,
    /// Results after it.
    after: PathBuf,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Compares, and shows what was found.
pub(super) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let (before, after) = (load(&args.before)?, load(&args.after)?);
    let files = format!("{} and {}", args.before.display(), args.after.display());
    let differences = compare::differences(&before, &after)
        .map_err(|error| LabError::Usage(format!("{files}: realtime.{error}")))?;
    let mut names = Vec::new();
    let mut changes = Vec::new();
    for cell in &before.cells {
        let Some(other) = after.cell(&cell.system, cell.profile) else { continue };
        // Without a change one of them has no latency: it was skipped.
        if let Some(change) = compare::compare(&cell.histogram, &other.histogram) {
            names.push(format!("{} {}", cell.system, cell.profile));
            changes.push(change);
        }
    }
    if changes.is_empty() {
        let text = "measured no system under the same profile: nothing can be compared";
        return Err(LabError::Usage(format!("{files} {text}")).into());
    }
    compare::conclude(&mut changes);
    let is_worse = changes.iter().any(|change| change.conclusion == compare::Conclusion::Worse);
    let rows: Vec<_> = names.into_iter().zip(changes).collect();
    let differences = table::differences(&differences);
    if args.json {
        eprint!("{differences}");
        let rows: Vec<_> =
            rows.iter().map(|(name, change)| serde_json::json!({ "cell": name, "change": change })).collect();
        output::write(&format!(
            "{}\n",
            serde_json::to_string_pretty(&rows)?.lines().map(escaped).collect::<Vec<_>>().join("\n")
        ))?;
    } else {
        output::write(&format!("{differences}{}", table::changes(&rows)))?;
    }
    Ok(if is_worse { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What a file must be, and where it comes from.
const EXPECTED: &str = "expected the rt.json that `ktsn rt run --out DIR` writes into DIR; files of cyclictest itself (--json, --histogram, \
OSADL's plots) do not say what ran beside it, and cannot be compared";

/// The member `realtime` of a results file. The file may come from another machine: an error repeats no control character.
fn load(file: &Path) -> Result<ktsn_realtime::RealTime, LabError> {
    let usage = |problem: String| LabError::Usage(format!("{}: {}", file.display(), plain(&problem)));
    let other = |problem: String| usage(format!("{problem}: {EXPECTED}"));
    let octets = std::fs::read(file).map_err(|error| usage(error.to_string()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&octets).map_err(|error| other(format!("no JSON: {error}")))?;
    if value.get("schema").is_none() {
        return Err(other("JSON without the field schema".to_owned()));
    }
    let document = Document::from_value(&value).map_err(|wrong| usage(wrong.to_string()))?;
    let found = document
        .realtime
        .ok_or_else(|| other(format!("results of the experiment {}", document.experiment)))?;
    found.check().map_err(usage)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::super::{Command, RtArgs};
    use super::*;
    use crate::cmd::parsed;
    use ktsn_realtime::{BoxStatistics, Cell, Histogram, Profile, RealTime};
    use ktsn_time::Span;

    #[test]
    fn only_results_of_a_run_can_be_compared() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("r.json");
        let error = |text: &str| {
            std::fs::write(&file, text).unwrap();
            load(&file).unwrap_err().to_string()
        };
        // A JSON file of rt-tests, a histogram of cyclictest, octets that are no text, results of another experiment.
        for (text, words) in [
            (
                "{\"file_version\": 1, \"cmdline\": \"cyclictest -m\", \"thread\": {}}",
                "JSON without the field schema",
            ),
            ("# Histogram\n000000 000000\n000001 000231\n", "no JSON"),
            ("{", "no JSON"),
            ("[]", "JSON without the field schema"),
            ("{\"schema\": \"ktsn.results/1\", \"experiment\": \"vm\"}", "results of the experiment vm"),
        ] {
            let error = error(text);
            assert!(
                error.contains(words) && error.contains("rt.json that `ktsn rt run --out DIR`"),
                "{error}"
            );
        }
        std::fs::write(&file, b"\xff\xfe0\n").unwrap();
        assert!(load(&file).unwrap_err().to_string().contains("rt.json that"));
        assert!(error("{\"schema\": \"ktsn.results/2\", \"experiment\": \"rt\"}").contains("ktsn.results/2"));
        let text =
            "{\"schema\": \"ktsn.results/1\", \"experiment\": \"rt\", \"realtime\": {\"period_ns\": \"x\"}}";
        assert!(error(text).contains("realtime.period_ns"));
    }

    /// A result of one cell with these latencies.
    fn result(folder: &Path, name: &str, latencies: impl Iterator<Item = u64>) -> PathBuf {
        let histogram: Histogram = latencies.map(Span::from_nanos).collect();
        let statistics = BoxStatistics::of(&histogram);
        let cell = Cell { histogram, statistics, ..Cell::new("host\u{1b}[2J", Profile::ALL[0]) };
        let mut document = Document::new("rt", Vec::new());
        let found = RealTime { period_ns: 10_000_000, cells: vec![cell], ..Default::default() };
        document.realtime = Some(found);
        let file = folder.join(name);
        document.save(&file).unwrap();
        file
    }

    fn compared(before: &Path, after: &Path) -> Result<ExitCode, String> {
        let line = format!("compare {} {}", before.display(), after.display());
        let args: RtArgs = parsed(&line)?;
        let Command::Compare(args) = args.command else { return Err("another command".to_owned()) };
        run(&args).map_err(|error| {
            assert_eq!(error.downcast_ref::<LabError>().map(LabError::exit_status), Some(2), "{error}");
            error.to_string()
        })
    }

    #[test]
    fn a_ruined_tail_is_worse() {
        let folder = tempfile::tempdir().unwrap();
        let usual = |i: u64| 20_000 + i * 7_919 % 10_007;
        let before = result(folder.path(), "a.json", (0..100_000).map(usual));
        let ruined = (0..100_000).map(|i| if i % 50 == 0 { 50_000_000 } else { usual(i) });
        let after = result(folder.path(), "b.json", ruined);
        assert_eq!(compared(&before, &before), Ok(ExitCode::SUCCESS));
        assert_eq!(compared(&before, &after), Ok(ExitCode::FAILURE));
        assert_eq!(compared(&after, &before), Ok(ExitCode::SUCCESS));
    }

    #[test]
    fn impossible_or_other_results_are_refused_with_file_and_field() {
        let folder = tempfile::tempdir().unwrap();
        let before = result(folder.path(), "a.json", 10..20);
        let text = std::fs::read_to_string(&before).unwrap();
        let file = folder.path().join("b.json");
        for (from, to, words) in [
            (
                "\"period_ns\": 10000000",
                "\"period_ns\": 1000000",
                "realtime.period_ns: 10000000 before, 1000000",
            ),
            ("\"sum_ns\": \"145\"", "\"sum_ns\": \"9145\"", "realtime.cells[0].histogram: sum_ns: 9145"),
            ("\"samples\": 10", "\"samples\": 9", "realtime.cells[0].statistics.samples: 9: expected 10"),
            ("\"host\\u001b[2J\"", "7", "realtime.cells[0].system"),
            ("\"profile\": 1", "\"profile\": \"\\u001b[2J\"", "realtime.cells[0].profile"),
        ] {
            let changed = text.replace(from, to);
            assert_ne!(changed, text, "{from}");
            std::fs::write(&file, changed).unwrap();
            let error = compared(&before, &file).unwrap_err();
            assert!(error.contains("b.json") && error.contains(words), "{error}");
            assert!(!error.contains(char::is_control), "{error:?}");
        }
    }
}
