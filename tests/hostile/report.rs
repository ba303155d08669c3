// SPDX-License-Identifier: Apache-2.0
//! What was found. In: cases as they end. Out: the table, `out/hostile/results.json` and the closing line.

use std::path::PathBuf;

use ktsn_measure::environment::Environment;
use ktsn_tests::hostile::judge::{
    Bars, Figures, LEVEL, ONE_FRAME_NS, P50_PERCENT, P99_MORE_NS, SHARE_MORE, micros, p_value,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Options;
use crate::cases::Case;

/// What a case showed.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// What is worse than allowed; nothing: passed.
    pub(crate) worse: Vec<String>,
    /// Why nothing was shown, if so.
    pub(crate) void: Option<String>,
    /// Its figures, for the table: control, attacked, bar.
    pub(crate) row: [String; 3],
    /// Its rounds, for the file.
    pub(crate) rounds: Value,
}

#[derive(Clone, Debug, Serialize)]
struct Cell {
    name: &'static str,
    about: &'static str,
    outcome: &'static str,
    reasons: Vec<String>,
    control: String,
    attacked: String,
    bar: String,
    rounds: Value,
}

/// The verdicts so far.
pub(crate) struct Report {
    cells: Vec<Cell>,
    output: PathBuf,
    environment: Environment,
}

impl Report {
    pub(crate) fn new(output: PathBuf) -> Self {
        Self { cells: Vec::new(), output, environment: Environment::read() }
    }

    /// Takes a case down: what it showed, or why it could not be carried through.
    pub(crate) fn add(&mut self, case: &Case, found: Result<Found, String>) {
        let found = found.unwrap_or_else(|reason| Found {
            worse: vec![reason],
            void: None,
            row: [String::new(), String::new(), String::new()],
            rounds: Value::Null,
        });
        let outcome = match (&found.worse[..], &found.void) {
            ([], None) => "passed",
            ([], Some(_)) => "void",
            _ => "failed",
        };
        let reasons: Vec<String> = found.worse.into_iter().chain(found.void).collect();
        let [control, attacked, bar] = found.row;
        println!(
            "  {outcome}  {}{}",
            case.name,
            if reasons.is_empty() { "" } else { ": " }.to_owned() + &reasons.join("; ")
        );
        self.cells.push(Cell {
            name: case.name,
            about: case.about,
            outcome,
            reasons,
            control,
            attacked,
            bar,
            rounds: found.rounds,
        });
    }

    /// Prints the table and the closing line, writes the file; whether nothing failed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn finish(self, options: &Options) -> anyhow::Result<bool> {
        let head = ["case", "without", "under attack", "bar", ""].map(str::to_owned);
        let row = |cell: &Cell| {
            let parts = [cell.name, &cell.control, &cell.attacked, &cell.bar, cell.outcome];
            parts.map(str::to_owned)
        };
        let rows: Vec<[String; 5]> = std::iter::once(head).chain(self.cells.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..5).map(width).collect();
        println!();
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
        let count = |outcome| self.cells.iter().filter(|cell| cell.outcome == outcome).count();
        let (passed, failed, void) = (count("passed"), count("failed"), count("void"));
        let document = json!({
            "schema": "ktsn.hostile/1", "experiment": "test-hostile", "command": std::env::args().collect::<Vec<_>>(),
            "programs": options.programs, "rounds": options.rounds, "frames": options.frames,
            "environment": self.environment,
            "rule": format!("lost: exact one-sided permutation test over rounds, p > {LEVEL}; void: the 95 % bound of what is lost more > \
                             {SHARE_MORE} in 100,000; p99 <= control + {P99_MORE_NS} \
                             ns; p50 <= {P50_PERCENT} % of the control's, or that of case computing; where the attacker's frames are due in the same class, the control's + {ONE_FRAME_NS} ns; both medians over the rounds"),
            "cases": self.cells,
        });
        if let Some(directory) = self.output.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(&self.output, serde_json::to_string_pretty(&document)? + "\n")?;
        println!("\n{} written", self.output.display());
        if void > 0 {
            println!(
                "{void} void: the machine was too noisy for them; run them again in a quiet hour (ONLY=, ROUNDS=12)"
            );
        }
        println!("{passed} passed, {failed} failed, 0 skipped");
        Ok(failed == 0 && void == 0 && passed > 0)
    }
}

/// The columns of a stream: lost, p50, p99 of both sides, and the bars.
pub(crate) fn columns(control: &Figures, attacked: &Figures, frames: u64, bars: &Bars) -> [String; 3] {
    let side = |figures: &Figures| {
        let share = figures.lost as f64 * 100.0 / frames.max(1) as f64;
        format!(
            "{} lost ({share:.1} %) p50 {} p99 {}",
            figures.lost,
            micros(figures.p50),
            micros(figures.p99)
        )
    };
    let bar = format!("p50 {} p99 {}", micros(bars.p50(control)), micros(bars.p99(control)));
    [side(control), side(attacked), bar]
}

/// The test's value, for the progress line.
pub(crate) fn so_far(control: &[u64], attacked: &[u64]) -> String {
    let sum = |lost: &[u64]| lost.iter().sum::<u64>();
    format!("lost {} / {}, p = {:.3}", sum(control), sum(attacked), p_value(control, attacked))
}
