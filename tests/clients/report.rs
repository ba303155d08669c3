// SPDX-License-Identifier: Apache-2.0
//! What is known of each cell, and the verdict.
//!
//! In: cells as they are found, the list of known failures, the list of allowed skips. Out: progress lines, a table,
//! `out/test/clients.json` and the closing line. A known failure that passes fails the run, so the list only shrinks.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// What became of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The result is the expected one.
    Passed,
    /// The result is not the expected one.
    Failed,
    /// Not run, for a reason that is on the list of skips.
    Skipped,
    /// Not as expected, and on the list of known failures.
    Known,
}

/// One program in one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    /// `table/CASE/LANGUAGE/MODE`, `selftest/…`, `program/…` or `periodic/…`; with `--receive expect` it ends with `/expect`.
    pub(crate) name: String,
    /// What became of it.
    pub(crate) outcome: Outcome,
    /// What differed, or why it was skipped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    /// A cell's name; `*` stands for any text.
    cell: String,
    reason: String,
    since: toml::value::Datetime,
}

#[derive(Debug, Default, Deserialize)]
struct KnownFile {
    #[serde(default)]
    known: Vec<Known>,
}

#[derive(Debug, Deserialize)]
struct Skip {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
struct SkipFile {
    #[serde(default)]
    skip: Vec<Skip>,
}

/// The verdicts so far.
pub(crate) struct Report {
    cells: Vec<Cell>,
    known: Vec<(Known, bool)>,
    skips: Vec<String>,
    facts: BTreeMap<String, serde_json::Value>,
    output: PathBuf,
    is_whole: bool,
}

/// Whether `pattern`, in which `*` stands for any text, is the whole of `text`.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            (0..=rest.len()).any(|at| rest.is_char_boundary(at) && matches(tail, &rest[at..]))
        }),
    }
}

impl Report {
    /// An empty one. `is_whole` says that every cell is run: only then a known failure must show itself.
    ///
    /// # Errors
    /// When a list is not as it should be.
    pub(crate) fn new(root: &Path, is_whole: bool) -> anyhow::Result<Self> {
        let known: KnownFile =
            toml::from_str(&std::fs::read_to_string(root.join("tests/clients/known.toml"))?)?;
        for entry in &known.known {
            anyhow::ensure!(!entry.reason.trim().is_empty(), "{}: no reason", entry.cell);
            anyhow::ensure!(entry.since.date.is_some(), "{}: since is no date", entry.cell);
        }
        let skips: SkipFile = toml::from_str(&std::fs::read_to_string(root.join("tests/skips.toml"))?)?;
        Ok(Self {
            cells: Vec::new(),
            known: known.known.into_iter().map(|entry| (entry, false)).collect(),
            skips: skips.skip.into_iter().map(|skip| skip.name).collect(),
            facts: BTreeMap::new(),
            output: root.join("out/test/clients.json"),
            is_whole,
        })
    }

    /// Takes down a cell: `Ok`, or what differed.
    pub(crate) fn add(&mut self, name: &str, result: Result<(), String>) {
        let known = self.known.iter_mut().find(|(entry, _)| matches(&entry.cell, name));
        let (outcome, reason) = match (result, known) {
            (Ok(()), None) => (Outcome::Passed, String::new()),
            (Ok(()), Some((entry, _))) => {
                (Outcome::Failed, format!("passes now: take {} off tests/clients/known.toml", entry.cell))
            }
            (Err(difference), None) => (Outcome::Failed, difference),
            (Err(difference), Some((entry, is_seen))) => {
                *is_seen = true;
                (Outcome::Known, format!("{}: {difference}", entry.reason))
            }
        };
        self.push(name, outcome, reason);
    }

    /// Takes down a cell that cannot be run here; `word` must be on the list of skips.
    pub(crate) fn skip(&mut self, name: &str, word: &str, reason: &str) {
        if self.skips.iter().any(|listed| listed == word) {
            self.push(name, Outcome::Skipped, format!("{word}: {reason}"));
        } else {
            self.push(name, Outcome::Failed, format!("skip not on the list: {word}: {reason}"));
        }
    }

    /// A fact that is no verdict: what this kernel alone does.
    pub(crate) fn fact(&mut self, name: &str, value: impl Into<serde_json::Value>) {
        self.facts.insert(name.to_owned(), value.into());
    }

    fn push(&mut self, name: &str, outcome: Outcome, reason: String) {
        let shown = reason.replace('\n', "\n        ");
        match outcome {
            Outcome::Passed => println!("  ok      {name}"),
            Outcome::Failed => println!("  FAILED  {name}\n        {shown}"),
            Outcome::Skipped => println!("  skipped {name}: {shown}"),
            Outcome::Known => println!("  known   {name}: {}", shown.lines().next().unwrap_or_default()),
        }
        let _ = std::io::stdout().flush();
        self.cells.push(Cell { name: name.to_owned(), outcome, reason });
    }

    fn count(&self, prefix: &str, outcome: Outcome) -> usize {
        self.cells.iter().filter(|c| c.outcome == outcome && c.name.starts_with(prefix)).count()
    }

    /// Writes the JSON, prints the table and the closing line; whether nothing failed.
    ///
    /// # Errors
    /// When the JSON cannot be written.
    pub(crate) fn finish(mut self) -> anyhow::Result<bool> {
        if self.is_whole {
            let unseen: Vec<String> = self
                .known
                .iter()
                .filter(|(_, is_seen)| !is_seen)
                .map(|(entry, _)| entry.cell.clone())
                .collect();
            for cell in unseen {
                self.push(
                    "known.toml",
                    Outcome::Failed,
                    format!("{cell}: no such cell failed: take it off the list"),
                );
            }
        }
        println!("\n{:<28} {:>7} {:>7} {:>7} {:>7}", "", "passed", "failed", "known", "skipped");
        let mut groups: Vec<String> =
            self.cells.iter().map(|c| c.name.split('/').take(2).collect::<Vec<_>>().join("/")).collect();
        groups.dedup();
        for group in ["table".to_owned(), "selftest".to_owned(), "program".to_owned(), "periodic".to_owned()]
            .iter()
            .chain(&groups)
        {
            let prefix = format!("{group}/");
            let counts = [Outcome::Passed, Outcome::Failed, Outcome::Known, Outcome::Skipped]
                .map(|outcome| self.count(&prefix, outcome));
            if counts.iter().sum::<usize>() > 0 {
                println!("{group:<28} {:>7} {:>7} {:>7} {:>7}", counts[0], counts[1], counts[2], counts[3]);
            }
        }
        let count = |outcome| self.count("", outcome);
        let (known, skipped) = (count(Outcome::Known), count(Outcome::Skipped));
        let document = serde_json::json!({
            "schema": "ktsn.results/1", "experiment": "test-clients", "command": ["make", "test-clients"],
            "checks": self.cells, "facts": self.facts,
        });
        if let Some(directory) = self.output.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&self.output, serde_json::to_string_pretty(&document)? + "\n")?;
        println!(
            "\n{} written; {known} of the skipped are known failures (tests/clients/known.toml)",
            self.output.display()
        );
        // Known failures proved nothing: they are counted with what was not run.
        println!(
            "{} passed, {} failed, {} skipped",
            count(Outcome::Passed),
            count(Outcome::Failed),
            skipped + known
        );
        Ok(count(Outcome::Failed) == 0 && !self.cells.is_empty())
    }
}

/// What a list of patterns may match.
///
/// # Errors
/// When [`matches`] is wrong: the list of known failures would then hide anything.
pub(crate) fn self_test() -> anyhow::Result<()> {
    for (pattern, text, expected) in [
        ("a", "a", true),
        ("a", "ab", false),
        ("a/*/c", "a/b/c", true),
        ("a/*/c", "a/b/d", false),
        ("*", "", true),
    ] {
        anyhow::ensure!(matches(pattern, text) == expected, "self-test: {pattern} and {text}");
    }
    Ok(())
}
