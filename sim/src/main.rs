// SPDX-License-Identifier: Apache-2.0
//! `ktsn-sim`: runs seeds, prints what was broken and how to repeat it.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, anyhow};
use clap::Parser;
use ktsn_sim::check::RULES;
use ktsn_sim::{Broken, Options, Outcome, report, run, scenario};

const EXAMPLES: &str = "\
Examples:
  ktsn-sim --seeds 200                    seeds 0 to 199, as continuous integration does
  ktsn-sim --seed 17 --verbose            one run, with everything that happened in it
  ktsn-sim --seed 1000 --seconds 60       as many seeds from 1000 on as fit into a minute
  ktsn-sim --saturated                    a link full of best effort: jitter, dedicated and shared
  ktsn-sim --babbling                     a tenant that babbles behind a flow meter, and another one
  ktsn-sim --seeds 20 --break duplicate   shows that the checkers find a broken port
  ktsn-sim --seeds 200 --json checks.json results for `ktsn report`

The same seed gives the same run, bit for bit. Exit status: 0 all rules held, 1 one was broken, 2 bad usage.";

/// Runs ktsnd's shipped worker loop over virtual clocks, links, programs and faults, and checks it from outside.
#[derive(Debug, Parser)]
#[command(name = "ktsn-sim", version, after_help = EXAMPLES)]
struct Arguments {
    /// First seed
    #[arg(long, default_value_t = 0, value_name = "N")]
    seed: u64,
    /// How many seeds, one after the other
    #[arg(long, default_value_t = 1, value_name = "COUNT", conflicts_with = "seconds")]
    seeds: u64,
    /// Run seeds for so long instead
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Show the figures of a 1 Gbit/s link that best effort saturates instead of running seeds
    #[arg(long, conflicts_with_all = ["seeds", "seconds", "broken"])]
    saturated: bool,
    /// Show what a babbling tenant behind a flow meter does to another one instead of running seeds
    #[arg(long, conflicts_with_all = ["seeds", "seconds", "broken", "saturated"])]
    babbling: bool,
    /// Break a part on purpose; the run must then fail
    #[arg(long = "break", value_name = "PART", value_parser = broken)]
    broken: Option<Broken>,
    /// Write the outcome of every rule as `checks` of a results document
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print everything that happened in each run, and latency and jitter per class
    #[arg(long)]
    verbose: bool,
}

fn broken(word: &str) -> Result<Broken, String> {
    Broken::from_word(word).ok_or_else(|| {
        let words: Vec<_> = Broken::ALL.iter().map(|(_, word, _)| *word).collect();
        format!("expected one of {}", words.join(", "))
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match all(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ktsn-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn all(arguments: &Arguments) -> anyhow::Result<bool> {
    let mut broken_rules: BTreeMap<&'static str, String> = BTreeMap::new();
    let seeds_count = if arguments.saturated {
        let runs = scenario::saturated(arguments.seed).map_err(|error| anyhow!("{error}"))?;
        for run in &runs {
            note(&run.outcome, arguments, &mut broken_rules);
        }
        print!("{}", report::saturated_table(&runs));
        1
    } else if arguments.babbling {
        let runs = scenario::babbling(arguments.seed).map_err(|error| anyhow!("{error}"))?;
        for run in &runs {
            note(&run.outcome, arguments, &mut broken_rules);
        }
        print!("{}", report::babbling_table(&runs));
        1
    } else {
        seeds(arguments, &mut broken_rules)?
    };
    if let Some(path) = &arguments.json {
        let document =
            report::document(&broken_rules, arguments.seed, seeds_count, std::env::args().collect());
        document.save(path).context("the results could not be written")?;
    }
    Ok(broken_rules.is_empty())
}

fn seeds(arguments: &Arguments, broken_rules: &mut BTreeMap<&'static str, String>) -> anyhow::Result<u64> {
    let began = Instant::now();
    let kept_max = if arguments.verbose { usize::MAX } else { 40 };
    let options = Options { broken: arguments.broken.unwrap_or_default(), kept_max };
    let (mut runs, mut failed, mut frames, mut virtual_ns) = (0u64, 0u64, 0u64, 0u64);
    let goes_on = |runs| match arguments.seconds {
        Some(seconds) => began.elapsed().as_secs() < seconds,
        None => runs < arguments.seeds,
    };
    while goes_on(runs) {
        let outcome = run(arguments.seed + runs, options).map_err(|error| anyhow!("{error}"))?;
        runs += 1;
        frames += outcome.published;
        virtual_ns += outcome.lasted;
        failed += u64::from(!outcome.violations.is_empty());
        note(&outcome, arguments, broken_rules);
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{runs} seeds from {}, {frames} frames in {}.{:03} s of virtual time, {seconds:.1} s of real time",
        arguments.seed,
        virtual_ns / 1_000_000_000,
        virtual_ns / 1_000_000 % 1_000
    );
    if failed == 0 {
        println!("all {} rules held in every run", RULES.len());
    } else {
        println!("{failed} of {runs} runs broke a rule");
    }
    Ok(runs)
}

/// Prints a run as far as it is asked for, and remembers the rules that it broke.
fn note(outcome: &Outcome, arguments: &Arguments, broken_rules: &mut BTreeMap<&'static str, String>) {
    for violation in &outcome.violations {
        broken_rules
            .entry(violation.rule)
            .or_insert_with(|| format!("seed {}: {}", outcome.seed, violation.detail));
    }
    if !outcome.violations.is_empty() {
        print!("{}", report::failure(outcome, arguments.broken.unwrap_or_default()));
    } else if arguments.verbose {
        for line in &outcome.last {
            println!("{line}");
        }
    }
    if arguments.verbose {
        println!("seed {}: hash {:016x}, {} notes", outcome.seed, outcome.hash, outcome.notes);
        print!("{}", report::figures_table(&outcome.figures));
    }
}
