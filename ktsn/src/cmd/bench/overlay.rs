// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench overlay`: every way from pod to pod, idle and beside best-effort traffic of the same pods, and one ktsnd with
//! many attachments.
//!
//! In: which paths, payloads and loads, for how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report
//! with the published figures beside ours. Exit status 1 when a frame of KTSN was lost, early, duplicated or reordered.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ktsn_lab::Tools;
use ktsn_lab::container::{self, Load, Path};
use ktsn_lab::overlay::{self, ATTACHMENTS, Plan};
use ktsn_time::Nanos;

use super::{KeepArgs, LOCK, command, frames, seconds, span, tell, told};

const EXAMPLES: &str = "\
Examples:
  ktsn bench overlay --json out/bench/overlay.json --report out/bench/overlay.html
  ktsn bench overlay --rounds 1 --payload 64 --path flannel,ktsn --load idle --attachments 0
  ktsn bench overlay --path ktsn,bare-spin --load idle,iperf3-udp --json r.json --records

The load is 100 Mbit/s of UDP between the same pods through Flannel, on the listener's CPU. Everything is set up in network \
namespaces of its own and removed afterwards. Needs root, two CPUs and iperf3.

Exit status: 0 done; 1 a frame of KTSN was lost, early, duplicated or reordered, or the experiment failed; 2 wrong usage; \
3 not possible here.";

/// Every way from pod to pod, idle and loaded; and one ktsnd with 200 attachments.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct OverlayArgs {
    /// Seconds of traffic per path, payload and load, all rounds together.
    #[arg(long, default_value_t = 3.0, value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Octets of payload.
    #[arg(long, default_value = "64,256,1024", value_delimiter = ',', value_name = "OCTETS,…")]
    payload: Vec<usize>,
    /// Distance of two transmit times.
    #[arg(long, default_value = "1ms", value_parser = span)]
    period: Nanos,
    /// Paths: flannel, flannel-spin, flannel-other, ktsn, ktsn-short, bare, bare-spin [default: all of them].
    #[arg(long, value_delimiter = ',', value_name = "PATH,…")]
    path: Vec<Path>,
    /// Loads: idle, iperf3-udp.
    #[arg(long, default_value = "idle,iperf3-udp", value_delimiter = ',', value_name = "LOAD,…")]
    load: Vec<Load>,
    /// Attachments of the part with many; 0 leaves it out.
    #[arg(long, default_value_t = ATTACHMENTS, value_name = "N")]
    attachments: usize,
    #[command(flatten)]
    keep: KeepArgs,
}

impl OverlayArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let paths = container::Plan {
            experiment: "overlay",
            paths: if self.path.is_empty() { Path::OVERLAY.to_vec() } else { self.path.clone() },
            payloads: self.payload.clone(),
            loads: self.load.clone(),
            rounds: self.rounds,
            frames: frames(self.seconds, self.period, self.rounds),
            period: self.period,
            tools: Tools::beside(&std::env::current_exe()?),
            lock: Some(PathBuf::from(LOCK)),
            command: command(),
            functional: self.keep.functional,
        };
        Ok(Plan { paths, attachments: self.attachments })
    }
}

/// Measures and tells.
pub(super) fn run(args: &OverlayArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    let saved = args.keep.results.saved(plan.paths.experiment);
    let document = told(&saved, plan.paths.runs(), |watch| overlay::run(&plan, watch))?;
    Ok(tell(&document, &overlay::bars::violations(&document), args.keep.results.strict_bars))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;

    fn plan(line: &str) -> Result<Plan, String> {
        parsed::<OverlayArgs>(line)?.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn the_default_is_the_whole_experiment() {
        let whole = plan("").unwrap();
        // 7 paths, 3 payloads, 2 loads, 3 rounds of 1 s.
        assert_eq!((whole.paths.runs(), whole.paths.frames, whole.attachments), (126, 1_000, 200));
        let part =
            plan("--seconds 1 --rounds 1 --payload 64 --path ktsn --load idle --attachments 0").unwrap();
        assert_eq!((part.paths.runs(), part.paths.frames, part.attachments), (1, 1_000, 0));
    }

    #[test]
    fn wrong_values_are_named() {
        for (line, word) in [
            ("--path wifi", "ktsn-short"),
            ("--load flood", "iperf3-udp"),
            ("--seconds 0", "86400"),
            ("--records", "--json"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
