// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench datapaths`: the ways between a virtual machine's network device and the uplink of its host.
//!
//! In: which paths, directions and loads, for how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report. Exit status 1
//! when a frame was lost that no counter accounts for.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_lab::datapaths::path::{Direction, End, Ends, Load, Path, Sharing};
use ktsn_lab::datapaths::{self, Guests, INTERVAL, Plan, bars};
use ktsn_lab::vm::Cache;
use ktsn_lab::{Event, LabError};

use super::super::vm::{Wish, tools};
use super::args::{ModeArgs, ResultArgs, TimeArgs};
use super::carry_out;
use super::hosts::HostsArgs;
use super::vm::prepare;

const EXAMPLES: &str = "\
Examples:
  make bench-datapaths
  ktsn bench datapaths --seconds 900 --rounds 5 --json datapaths.json --report datapaths.html
  ktsn bench datapaths --path tap-bridge,tap-xdp --direction ingress --load idle
  ktsn bench datapaths --ends both --path tap-bridge,ovs-dpdk
  ktsn bench datapaths --hosts local,ssh:plc-2 --uplink eth1 --within 5us

Paths:
  vfio        the network device itself (needs one that the host gives away, and another host)
  macvtap     macvtap on the uplink
  tap-bridge  tap and the kernel's bridge
  tap-xdp     tap and two eBPF programs, the bridge as slow path
  tap-ovs     tap and Open vSwitch in user space
  ovs-afxdp   tap and uplink by AF_XDP in Open vSwitch
  ovs-dpdk    vhost-user and uplink by AF_XDP in OVS-DPDK (512 MiB of huge pages)

The virtual machine is a stand-in: a program that owns the tap as QEMU does, or the front end of the vhost-user socket; with --ends guest \
or both it is a guest of `ktsn vm`, with a clock that follows the host's. Guests run by KVM where one boots with it, else by TCG: such times \
stand apart, and are only compared with others under TCG. A path that this machine lacks is skipped with its reason. Everything is set up in \
network namespaces of its own and removed afterwards. Needs root and two CPUs. With --hosts the remote host is another machine, which needs \
the same ktsn and root.

Exit status: 0 done; 1 a frame was lost that no counter accounts for, or the experiment failed (with --strict-bars also: a bar is missed); \
2 wrong usage; 3 not possible here.";

/// The ways from a virtual machine to the uplink of its host: which datapath?
#[derive(Args, Clone, Debug)]
#[command(
    after_help = EXAMPLES,
    mut_arg("seconds", |arg| arg.default_value("10.5").help(
        "Seconds of traffic per path, direction and load, all rounds together; the document that this repeats has 900"
    ))
)]
pub(super) struct DatapathsArgs {
    /// Paths, in the order of their turns.
    #[arg(long, value_delimiter = ',', value_name = "PATH,…", default_values_t = Path::ALL)]
    path: Vec<Path>,
    /// Directions of the measured frames: egress, ingress.
    #[arg(long, value_delimiter = ',', value_name = "DIRECTION,…", default_values_t = Direction::ALL)]
    direction: Vec<Direction>,
    /// What the sender sends beside them: idle, udp (three streams).
    #[arg(long, value_delimiter = ',', value_name = "LOAD,…", default_values_t = Load::ALL)]
    load: Vec<Load>,
    /// What is on the virtual machine's side: stand-in, guest, both.
    #[arg(long, default_value_t = Ends::StandIn, value_name = "WHAT")]
    ends: Ends,
    /// How a stand-in shares two CPUs: apart (each end has one, a switch shares the sender's), together (a switch has one, the ends share
    /// the other).
    #[arg(long, default_value_t = Sharing::Apart, value_name = "HOW")]
    sharing: Sharing,
    /// How guests' instructions run.
    #[arg(long, default_value = "auto")]
    accelerator: Wish,
    /// How long a guest may take to boot.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = humantime::parse_duration)]
    boot_timeout: Duration,
    #[command(flatten)]
    time: TimeArgs,
    #[command(flatten)]
    hosts: HostsArgs,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
}

impl DatapathsArgs {
    /// The plan; its guests are not there yet.
    fn plan(&self) -> anyhow::Result<Plan> {
        Ok(Plan {
            paths: self.path.clone(),
            directions: self.direction.clone(),
            loads: self.load.clone(),
            rounds: self.time.rounds,
            frames: self.time.periods(INTERVAL),
            ends: self.ends,
            guests: Err("there are no guests".to_owned()),
            sharing: self.sharing,
            hosts: self.hosts.hosts()?,
            setup: self.mode.setup()?,
        })
    }
}

/// Measures the datapaths.
pub(super) fn run(args: &DatapathsArgs) -> anyhow::Result<ExitCode> {
    let mut plan = args.plan()?;
    plan.check()?;
    let has_guests = args.ends.each().contains(&End::Guest);
    if has_guests {
        plan.setup.tools = tools()?;
    }
    carry_out(&args.results, bars::violations, |watch| {
        if has_guests {
            plan.guests = guests(args, &plan, watch)?;
        }
        datapaths::run(&plan, watch)
    })
}

/// How guests run here; what keeps them from it is a reason to skip them.
fn guests(
    args: &DatapathsArgs,
    plan: &Plan,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Result<Guests, String>, LabError> {
    let cache = Cache::find(None);
    match prepare(args.accelerator, &cache, &plan.setup.tools, watch) {
        Ok(choice) => Ok(Ok(Guests { cache, choice, boot_within: args.boot_timeout })),
        Err(LabError::Impossible { what, remedy }) => {
            Ok(Err(format!("guest_missing: {what}; remedy: {remedy}")))
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cmd::parsed;

    fn plan(line: &str) -> Result<Plan, String> {
        parsed::<DatapathsArgs>(line)?.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn all_paths_both_ways_idle_and_loaded_are_the_default() {
        let whole = plan("").unwrap();
        assert_eq!(
            (whole.paths.len(), whole.directions.len(), whole.loads.len(), whole.rounds),
            (7, 2, 2, 3)
        );
        // 10,000 frames for each row at least.
        assert!(whole.frames * u64::from(whole.rounds) >= 10_000, "{}", whole.frames);
        let part = plan("--path tap-xdp,macvtap --direction ingress --load idle --seconds 1.006 --rounds 1")
            .unwrap();
        assert_eq!((part.paths, part.frames), (vec![Path::TapXdp, Path::Macvtap], 1_000));
        assert_eq!((part.directions, part.loads), (vec![Direction::Ingress], vec![Load::Idle]));
    }

    #[test]
    fn the_remote_host_may_be_another_machine() {
        assert!(plan("--hosts local").unwrap().hosts.is_none());
        let two = plan("--hosts local,ssh:plc --uplink eth1 --within 5us").unwrap();
        two.check().unwrap();
        assert_eq!(two.hosts.unwrap().uplinks, ["eth1", "eth1"].map(str::to_owned));
        let shared = plan("--hosts local,ssh:plc --uplink eth1 --sharing together").unwrap();
        assert!(shared.check().unwrap_err().to_string().contains("leave it out with two hosts"));
    }

    #[test]
    fn wrong_values_are_named() {
        for (line, word) in [
            ("--path bridge", "tap-bridge"),
            ("--direction up", "egress"),
            ("--load netperf", "udp"),
            ("--ends near", "stand-in"),
            ("--sharing near", "together"),
            ("--seconds 0", "86400"),
            ("--records", "--json"),
            ("--hosts local,ssh:plc", "--uplink"),
        ] {
            let error = plan(line).unwrap_err();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
