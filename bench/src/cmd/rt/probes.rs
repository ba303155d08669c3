// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt probes`: our own probe beside cyclictest. In: rounds, how long each, a CPU, the source tree. Out: percentiles with their
//! intervals, as text or JSON. Exit status 1 when the two disagree.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::realtime::{Agreement, DISTANCE_MAX, Parts, Plan, System, compare_probes};
use ktsn_lab::vm::Cache;
use ktsn_realtime::Profile;
use ktsn_realtime::requirements::table_1;
use ktsn_realtime::verdict::Share;
use ktsn_time::Nanos;

use crate::cmd::observer::span;
use crate::cmd::progress::{LOCK, Progress};
use crate::output;

const EXAMPLES: &str = "\
Examples (in the source tree):
  ktsn rt probes
  ktsn rt probes --rounds 10 --duration 10s --period 1ms --cpu 1 --json

The probe of the RTOS guest is built for this machine, and run by turns with cyclictest: same CPU, same priority, same period. They agree \
when the intervals (bootstrap over the rounds, 95 %) of median and 99th percentile overlap, and the medians are within 10 %.

Exit status: 0 they agree; 1 they do not; 2 wrong usage; 3 not possible here.";

/// Hold our own probe against cyclictest.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ProbesArgs {
    /// How often each probe runs.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000), value_name = "N")]
    rounds: u32,
    /// How long each probe runs in a round.
    #[arg(long, default_value = "5s", value_name = "TIME", value_parser = span)]
    duration: Nanos,
    /// Time between two wake-ups.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = span)]
    period: Nanos,
    /// The CPU of both probes [default: the last one].
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,
    /// Where our probe is built.
    #[arg(long, default_value = "out/rt-probes", value_name = "DIR")]
    out: PathBuf,
    /// The source tree.
    #[arg(long, default_value = ".", value_name = "DIR")]
    workspace: PathBuf,
    /// JSON instead of a table.
    #[arg(long)]
    json: bool,
}

impl ProbesArgs {
    fn plan(&self) -> Plan {
        Plan {
            systems: vec![System::Host],
            profiles: vec![Profile::ALL[1]],
            period: self.period,
            duration: self.duration,
            limit: Nanos::from_millis(1),
            requirements: table_1(),
            share: Share::default(),
            workers: ktsn_lab::realtime::WORKERS,
            worker_mib: ktsn_lab::realtime::WORKER_MIB,
            cpu: self.cpu,
            out: self.out.clone(),
            resume: false,
            lock: Some(PathBuf::from(LOCK)),
            other: None,
            guests: Parts {
                tools: Err("not used".to_owned()),
                cache: Cache::find(None),
                accelerator: None,
                workspace: self.workspace.clone(),
            },
            command: Vec::new(),
        }
    }
}

/// Runs both probes by turns.
pub(super) fn run(args: &ProbesArgs) -> anyhow::Result<ExitCode> {
    let progress = Progress::of("ktsn rt probes");
    let found = compare_probes(&args.plan(), args.rounds, &mut |event| progress.show(event));
    drop(progress);
    let found = found?;
    let text = if args.json { format!("{}\n", serde_json::to_string_pretty(&found)?) } else { text(&found) };
    output::write(&text)?;
    Ok(if found.holds { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn text(found: &Agreement) -> String {
    let mut text = format!(
        "{} rounds of {} wake-ups each, CPU {}, SCHED_FIFO {}; in µs: median of the rounds (95 % interval)\n",
        found.rounds, found.samples, found.cpu, found.fifo
    );
    for one in &found.percentiles {
        let shown = |estimate: &ktsn_realtime::bootstrap::Estimate| {
            let [median, low, high] =
                [estimate.median, estimate.low, estimate.high].map(|nanos| nanos as f64 / 1e3);
            format!("{median:.2} ({low:.2} to {high:.2})")
        };
        text.push_str(&format!(
            "{}: cyclictest {}, our probe {}, ratio {:.3}, intervals {}\n",
            one.name,
            shown(&one.cyclictest),
            shown(&one.own),
            one.ratio,
            if one.overlaps { "overlap" } else { "do not overlap" }
        ));
    }
    let bar = DISTANCE_MAX * 100.0;
    let word = if found.holds { "agree" } else { "do not agree" };
    text + &format!("the probes {word} (bar: intervals overlap, p50 within {bar:.0} %)\n")
}
