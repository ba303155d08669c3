// SPDX-License-Identifier: Apache-2.0
//! `make test-hostile`: unprivileged pods attack a daemon, each beside an innocent 1 kHz stream of another attachment on the same
//! uplink.
//!
//! In: root's rights, the built programs, the environment as `--help` says. Out: progress, a table,
//! `out/hostile/results.json`, and the closing line 'N passed, N failed, N skipped'. The rule is `hostile::judge`.

mod cases;
mod fault;
mod report;
mod run;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use ktsn_lab::exclusive::{MeasureLock, check_machine};
use ktsn_measure::clock::{stop_on_signals, stop_requested};
use ktsn_tests::hostile::judge::{ROUNDS_MAX, ROUNDS_MIN};

use report::Report;

const HELP: &str = "\
Attack a daemon beside an innocent stream, and judge the stream (root)

Usage: make test-hostile [ONLY=names] [ROUNDS=10] [FRAMES=1500] [QUIET=0] [VERBOSE=1]
       PROGRAMS=directory scripts/hostile.sh      with ktsn, ktsnd and libktsn.so of another build

  ONLY       parts of cases' names, with commas: full,punch; `list` lists them
  ROUNDS     rounds of each side, 3 to 12; control and attack by turns
  FRAMES     frames of a round, 1 ms apart
  QUIET      0: rounds do not wait for a quiet machine
  VERBOSE    1: both sides of each round in full
  DEBUG_KTSND  ktsnd of cases panic and stall [default: it is built]
  MEMORY_MIB most resident memory of ktsnd [default: the limit of the Helm chart]

Examples:
  make test-hostile                                     33 cases, about 27 minutes
  make test-hostile ONLY=punch ROUNDS=3                 both ways to punch holes
  PROGRAMS=/tmp/old ONLY=full-64 scripts/hostile.sh     the same attack against an older build

Exit status: 0 all passed, 1 a case failed, 2 wrong usage.";

/// What the environment asks for.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Where ktsn, ktsnd and libktsn.so are.
    pub(crate) programs: PathBuf,
    pub(crate) only: Vec<String>,
    pub(crate) rounds: u32,
    pub(crate) frames: u64,
    pub(crate) is_quiet: bool,
    pub(crate) is_verbose: bool,
    pub(crate) memory_mib: usize,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn number<T: std::str::FromStr>(name: &str, otherwise: T) -> anyhow::Result<T> {
    match variable(name) {
        None => Ok(otherwise),
        Some(text) => text.parse().ok().with_context(|| format!("{name}={text} is no number")),
    }
}

/// The chart's limit of ktsnd's memory, MiB: the first one of its values.
fn chart_limit(root: &Path) -> anyhow::Result<usize> {
    let path = root.join("k8s/deploy/helm/ktsn/values.yaml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let limit = text
        .split_once("\nktsnd:")
        .and_then(|(_, rest)| rest.split_once("limits: {memory: "))
        .map(|(_, rest)| rest);
    limit
        .and_then(|rest| rest.split_once("Mi"))
        .and_then(|(number, _)| number.parse().ok())
        .with_context(|| format!("{}: no ktsnd.resources.limits.memory in Mi", path.display()))
}

impl Options {
    fn read(root: &Path) -> anyhow::Result<Self> {
        let programs = variable("PROGRAMS").map_or_else(|| root.join("target/release"), PathBuf::from);
        let programs = programs.canonicalize().with_context(|| programs.display().to_string())?;
        for name in ["ktsn", "ktsnd", "libktsn.so"] {
            ensure!(
                programs.join(name).is_file(),
                "{}/{name} is missing: `make build` makes it",
                programs.display()
            );
        }
        let options = Self {
            programs,
            only: variable("ONLY").map_or(Vec::new(), |text| text.split(',').map(str::to_owned).collect()),
            rounds: number("ROUNDS", 10)?,
            frames: number("FRAMES", 1500)?,
            is_quiet: number("QUIET", 1)? != 0,
            is_verbose: number("VERBOSE", 0)? != 0,
            memory_mib: number("MEMORY_MIB", chart_limit(root)?)?,
        };
        let rounds = options.rounds as usize;
        ensure!(
            (ROUNDS_MIN..=ROUNDS_MAX).contains(&rounds),
            "ROUNDS={rounds} is not in {ROUNDS_MIN} to {ROUNDS_MAX}"
        );
        Ok(options)
    }

    /// A debug build of ktsnd, which can be made to fail.
    pub(crate) fn debug_ktsnd(&self) -> PathBuf {
        variable("DEBUG_KTSND").map_or_else(|| ktsn_tests::faults::daemon::binary().to_owned(), PathBuf::from)
    }

    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()))
    }
}

fn run(root: &Path) -> anyhow::Result<bool> {
    let options = Options::read(root)?;
    let mut wanted: Vec<_> = cases::ALL.iter().filter(|case| options.wants(case.name)).collect();
    if wanted.iter().any(|case| matches!(case.kind, cases::Kind::Stream(_)))
        && !options.wants(cases::COMPUTING.name)
    {
        wanted.insert(0, &cases::COMPUTING);
    }
    if wanted.is_empty() {
        bail!("no case is called so: ONLY={}; ONLY=list lists them", options.only.join(","));
    }
    check_machine()?;
    stop_on_signals();
    ktsn_tests::hostile::attack::binary();
    if wanted.iter().any(|case| matches!(case.kind, cases::Kind::Fault(_))) {
        println!("test-hostile: the debug ktsnd, which can be told to fail");
        options.debug_ktsnd();
    }
    let lock = root.join("out/.measure.lock");
    let _lock = MeasureLock::take(&lock, || println!("test-hostile: waiting for {}", lock.display()))?;
    let mut report = Report::new(root.join("out/hostile/results.json"));
    println!(
        "test-hostile: {} cases, {} rounds, {}",
        wanted.len(),
        options.rounds,
        options.programs.display()
    );
    let mut computing = 0;
    for (index, case) in wanted.iter().enumerate() {
        println!("{} of {}: {}: {}", index + 1, wanted.len(), case.name, case.about);
        let found = catch_unwind(AssertUnwindSafe(|| run::case(&options, case, &mut computing)));
        if stop_requested() {
            bail!("stopped by a signal");
        }
        let found = found.map_err(|_| "the test itself panicked: see above".to_owned());
        report.add(case, found.and_then(|result| result.map_err(|error| format!("{error:#}"))));
    }
    report.finish(&options)
}

fn main() -> ExitCode {
    if std::env::args().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    if variable("ONLY").as_deref() == Some("list") {
        cases::ALL.iter().for_each(|case| println!("{:<16} {}", case.name, case.about));
        return ExitCode::SUCCESS;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize();
    match root.map_err(anyhow::Error::from).and_then(|root| run(&root)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("test-hostile: {error:#}");
            println!("0 passed, 1 failed, 0 skipped");
            ExitCode::from(2)
        }
    }
}
