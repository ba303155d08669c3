// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench overlay`: every way from pod to pod, idle and beside best-effort traffic of the same pods, and one ktsnd with
//! many attachments.
//!
//! In: which paths, payloads and loads, for how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report
//! with the published figures beside ours. Exit status 1 when a frame of KTSN was lost, early, duplicated or reordered.

use std::process::ExitCode;

use clap::Args;
use ktsn_lab::container::{self, Load, Path};
use ktsn_lab::overlay::{self, ATTACHMENTS, Plan};

use super::args::{ModeArgs, ResultArgs, TrafficArgs};
use super::carry_out;

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
#[command(after_help = EXAMPLES, mut_arg("seconds", |arg| arg.default_value("3")))]
pub(super) struct OverlayArgs {
    #[command(flatten)]
    traffic: TrafficArgs,
    /// Paths: flannel, flannel-spin, flannel-other, ktsn, ktsn-short, ktsn-ovs-dpdk, dpdk-virtio-user, bare, bare-spin, packet-spin,
    /// packet-spin-free [default: all of them].
    #[arg(long, value_delimiter = ',', value_name = "PATH,…")]
    path: Vec<Path>,
    /// Loads: idle, iperf3-udp.
    #[arg(long, default_value = "idle,iperf3-udp", value_delimiter = ',', value_name = "LOAD,…")]
    load: Vec<Load>,
    /// Attachments of the part with many; 0 leaves it out.
    #[arg(long, default_value_t = ATTACHMENTS, value_name = "N")]
    attachments: usize,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

impl OverlayArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let paths = container::Plan {
            experiment: "overlay",
            paths: if self.path.is_empty() { Path::OVERLAY.to_vec() } else { self.path.clone() },
            payloads: self.traffic.payload.clone(),
            loads: self.load.clone(),
            rounds: self.traffic.time.rounds,
            frames: self.traffic.frames(),
            period: self.traffic.period,
            lead: container::LEAD,
            setup: self.mode.setup()?,
        };
        Ok(Plan { paths, attachments: self.attachments })
    }
}

/// Measures the paths and the many attachments.
pub(super) fn run(args: &OverlayArgs) -> anyhow::Result<ExitCode> {
    let plan = args.plan()?;
    carry_out(&args.results, overlay::bars::violations, |watch| overlay::run(&plan, watch))
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
        // 9 paths idle and 7 loaded, 3 payloads, 3 rounds of 1 s.
        assert_eq!((whole.paths.frames, whole.attachments), (1_000, 200));
        let part =
            plan("--seconds 1 --rounds 1 --payload 64 --path ktsn --load idle --attachments 0").unwrap();
        assert_eq!((part.paths.frames, part.attachments), (1_000, 0));
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
