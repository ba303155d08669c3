// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench gates`: three classes behind real gates, held against windows that nobody but the list decides.
//!
//! In: for how long, in how many rounds. Out: tables, `ktsn.results/1`, raw records, the report with a plot of the phase
//! in the cycle. Exit status 1 when a frame was outside its window, early, lost, doubled or out of order.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use ktsn_lab::Tools;
use ktsn_lab::gates::{self, Outcome, Plan, traffic::CYCLE_TIME};
use ktsn_measure::table;

use super::{KeepArgs, LOCK, command, save, seconds, tell, writable};
use crate::output;

/// Three classes behind gates: is every frame handed over, and seen, inside its window?
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  ktsn bench gates --seconds 10 --json out/bench/gates.json --report gates.html"
)]
pub(super) struct GatesArgs {
    /// Seconds, shared by the rounds.
    #[arg(long, default_value_t = 10.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    #[command(flatten)]
    keep: KeepArgs,
    /// Give the daemon no schedule: what the judge says of a port without gates.
    #[arg(long)]
    ungated: bool,
    /// Run without the watchdog: to see what it costs. No overrun can be proven then.
    #[arg(long)]
    no_watchdog: bool,
}

impl GatesArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let cycles = self.seconds * 1e9 / CYCLE_TIME.get() as f64 / f64::from(self.rounds);
        Ok(Plan {
            rounds: self.rounds,
            cycles: cycles.ceil() as u64,
            gated: !self.ungated,
            watchdog: !self.no_watchdog,
            tools: Tools::beside(&std::env::current_exe()?),
            lock: PathBuf::from(LOCK),
            command: command(),
            functional: self.keep.functional,
        })
    }
}

/// Measures and tells.
pub(super) fn run(args: &GatesArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    for file in [&args.keep.results.json, &args.keep.results.report].into_iter().flatten() {
        writable(file)?;
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(std::time::Duration::from_millis(500));
    let outcome = gates::run(&plan, &mut |what| bar.set_message(what.to_owned()));
    bar.finish_and_clear();
    let Outcome { document, runs } = outcome?;
    let mut text = table::document(&document);
    let saved = args.keep.results.saved("gates");
    for line in save(&saved, &document, &runs)? {
        text.push_str(&format!("{line}\n"));
    }
    output::write(&text)?;
    Ok(tell(&document, &gates::violations(&document), args.keep.results.strict_bars))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;

    fn plan(line: &str) -> Result<Plan, String> {
        parsed::<GatesArgs>(line)?.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn seconds_are_shared_by_the_rounds() {
        let whole = plan("").unwrap();
        assert_eq!((whole.cycles, whole.rounds, whole.gated, whole.watchdog), (3_334, 3, true, true));
        let part = plan("--seconds 2 --rounds 1 --ungated --no-watchdog").unwrap();
        assert_eq!((part.cycles, part.gated, part.watchdog), (2_000, false, false));
    }

    #[test]
    fn wrong_values_are_named() {
        for (line, word) in [("--seconds 0", "86400"), ("--rounds 0", "--rounds"), ("--records", "--json")] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
