// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench vm`: publisher and subscriber in guests on two hosts.
//!
//! In: datapaths, schedules, loads, how long. Out: a progress bar, tables, `ktsn.results/1`, raw records, the report.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ktsn_lab::vm::protocol::Clock;
use ktsn_lab::vm::{Accelerator, Cache, Choice, Kind, Renew};
use ktsn_lab::vm_bench::{self, Datapath, Keeper, Load, Plan, bars};
use ktsn_lab::{LabError, Tools, vm};
use ktsn_time::Nanos;

use super::super::observer::span;
use super::super::vm::{Wish, tools};
use super::args::{ModeArgs, ResultArgs, seconds};
use super::carry_out;
use super::hosts::HostsArgs;

const EXAMPLES: &str = "\
Examples:
  make bench-vm
  ktsn bench vm --quick
  ktsn bench vm --datapath bridge,ovs-dpdk --schedule etf,ktsnd --seconds 20 --report vm.html
  ktsn bench vm --hosts local,ssh:plc-2 --uplink eth1 --within 5us --json vm.json

Unless --hosts names another machine, two hosts are network namespaces with a veth pair between them. On each of them is a guest: publisher (`ktsn talk`) and subscriber \
(`ktsn listen`). bridge: a tap device and the kernel's bridge. ovs-dpdk: vhost-user and a private OVS-DPDK, without PCI. no-vm: the same \
programs without guests. --schedule says what keeps the publisher's times: send (the program itself), etf (mqprio with etf in the guest), \
ktsnd (in the guest). The guests' clocks follow the host's through shared memory (vPTP).

With --hosts the subscriber's host is another machine, which needs the same ktsn, root and the guests' image; the publisher's host is this one.

Needs root; guests need QEMU (`ktsn vm image`), ovs-dpdk needs openvswitch-switch-dpdk and 512 huge pages of 2 MiB. Guests run by KVM where \
one boots with it, else by TCG: such times are only compared with others under TCG.

Exit status: 0 done; 1 a frame was lost without a counted reason, or the experiment failed; 2 wrong usage; 3 not possible here.";

/// Publisher and subscriber in guests on two hosts: a kernel bridge, OVS-DPDK, and no guests beside.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct VmArgs {
    /// Seconds of each row and payload, all rounds together; the publication measured 100.
    #[arg(long, default_value = "100", value_name = "S", value_parser = seconds)]
    seconds: f64,
    /// Rounds.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Octets of payload.
    #[arg(long, default_value = "16,64,256", value_delimiter = ',', value_name = "OCTETS,…")]
    payload: Vec<usize>,
    /// Time between two transmit times.
    #[arg(long, default_value = "1ms", value_name = "TIME", value_parser = span)]
    period: Nanos,
    /// What is between publisher and subscriber.
    #[arg(long, default_value = "no-vm,bridge,ovs-dpdk", value_delimiter = ',', value_name = "NAME,…")]
    datapath: Vec<Datapath>,
    /// What keeps the publisher's transmit times.
    #[arg(long, default_value = "send,etf,ktsnd", value_delimiter = ',', value_name = "NAME,…")]
    schedule: Vec<Keeper>,
    /// What goes over the same uplink: idle, udp.
    #[arg(long, default_value = "idle,udp", value_delimiter = ',', value_name = "NAME,…")]
    load: Vec<Load>,
    /// What the load `udp` sends, in Mbit/s; 0: as much as its sender can.
    #[arg(long, default_value_t = 100, value_name = "N")]
    load_mbit: u32,
    /// One short round without a load, to see that everything works.
    #[arg(long, conflicts_with_all = ["seconds", "rounds", "load"])]
    quick: bool,
    /// What the guests' clocks follow, as in `ktsn vm run`. none: their own; latencies are then shown above the fastest frame of their row.
    #[arg(long, default_value = "vptp", value_name = "NAME")]
    clock: Clock,
    /// How the guests' instructions run.
    #[arg(long, default_value = "auto")]
    accelerator: Wish,
    /// How long a guest may take to boot.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = humantime::parse_duration)]
    boot_timeout: Duration,
    #[command(flatten)]
    results: ResultArgs,
    #[command(flatten)]
    mode: ModeArgs,
    #[command(flatten)]
    hosts: HostsArgs,
}

/// Seconds of a row of `--quick`.
const QUICK_SECONDS: f64 = 3.0;

impl VmArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let (seconds, rounds) = if self.quick { (QUICK_SECONDS, 1) } else { (self.seconds, self.rounds) };
        let (hosts, mut setup) = (self.hosts.hosts()?, self.mode.setup()?);
        setup.tools = tools()?;
        Ok(Plan {
            datapaths: self.datapath.clone(),
            keepers: self.schedule.clone(),
            loads: if self.quick { vec![Load::Idle] } else { self.load.clone() },
            payloads: self.payload.clone(),
            period: self.period,
            frames: (seconds * 1e9 / self.period.get().max(1) as f64 / f64::from(rounds)).ceil() as u64,
            rounds,
            load_mbit: self.load_mbit,
            boot_within: self.boot_timeout,
            clock: self.clock,
            choice: Choice { accelerator: Accelerator::Tcg, reason: "there are no guests".to_owned() },
            cache: Cache::find(None),
            hosts,
            setup,
        })
    }
}

/// Measures guests.
pub(super) fn run(args: &VmArgs) -> anyhow::Result<ExitCode> {
    let mut plan = args.plan()?;
    plan.check()?;
    carry_out(&args.results, bars::violations, |watch| {
        // The image may take minutes: what is missing on the other host is said before.
        plan.hosts.as_ref().map_or(Ok(()), |hosts| hosts.check().map(drop))?;
        if plan.has_guests() {
            plan.choice = prepare(args.accelerator, &plan.cache, &plan.setup.tools, watch)?;
        }
        vm_bench::run(&plan, watch)
    })
}

/// The image, and how guests run here.
pub(super) fn prepare(
    wish: Wish,
    cache: &Cache,
    tools: &Tools,
    watch: &mut dyn FnMut(ktsn_lab::Event<'_>),
) -> Result<Choice, LabError> {
    vm::clean(cache)?;
    watch(ktsn_lab::Event::Step("the guests' image"));
    drop(vm::image(cache, Kind::Qemu, Renew::Nothing, &mut |step| watch(ktsn_lab::Event::Step(step)))?);
    match wish {
        Wish::Kvm => Ok(Choice { accelerator: Accelerator::Kvm, reason: String::new() }),
        Wish::Tcg => Ok(Choice { accelerator: Accelerator::Tcg, reason: "--accelerator tcg".to_owned() }),
        Wish::Auto => {
            let mut image = || vm::image(cache, Kind::Qemu, Renew::Nothing, &mut |_| {});
            vm::choose(cache, tools, &mut image, &mut |step| {
                watch(ktsn_lab::Event::Step(step));
            })
        }
    }
}
