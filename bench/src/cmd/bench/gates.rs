// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench gates`: three classes behind real gates, held against windows that follow from the gate control list alone.
//!
//! In: for how long, in how many rounds. Out: tables, `ktsn.results/1`, raw records, the report with a plot of the phase
//! in the cycle. Exit status 1 when a frame was outside its window, early, lost, doubled or out of order.

use std::process::ExitCode;

use clap::Args;
use ktsn_lab::gates::{self, Plan, traffic::CYCLE_TIME};

use super::args::{ModeArgs, ResultArgs, TimeArgs};
use super::carry_out;

/// Three classes behind gates: is every frame handed over, and seen, inside its window?
#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Example:\n  ktsn bench gates --seconds 10 --json out/bench/gates.json --report gates.html",
    mut_arg("seconds", |arg| arg.default_value("10").help("Seconds of traffic, all rounds together"))
)]
pub(super) struct GatesArgs {
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
    /// Give the daemon no schedule: what the judge says of a port without gates.
    #[arg(long)]
    ungated: bool,
    /// Run without the watchdog: to see what it costs. No overrun can be proven then.
    #[arg(long)]
    no_watchdog: bool,
}

impl GatesArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        Ok(Plan {
            rounds: self.time.rounds,
            cycles: self.time.periods(CYCLE_TIME),
            gated: !self.ungated,
            watchdog: !self.no_watchdog,
            setup: self.mode.setup()?,
        })
    }
}

/// Measures the classes.
pub(super) fn run(args: &GatesArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    carry_out(&args.results, gates::violations, |watch| gates::run(&plan, watch))
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
