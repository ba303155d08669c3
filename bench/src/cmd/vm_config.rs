// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm config`: a guest's definition for the user's own hypervisor.
//!
//! In: a schedule, a datapath, the guest's machine. Out: the definition on standard output. Exit status 0; 1 it could not be written; 2
//! wrong usage, or the schedule has faults.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueEnum};
use ktsn_schedule::Format as ScheduleFormat;

use super::schedule;
use crate::output;
use crate::vm_config::{
    self, Accelerator, Classes, Clock, Datapath, DiskFormat, Format, Pages, Placement, Request,
};

const EXAMPLES: &str = "\
Examples:
  ktsn vm config --format qemu --schedule s.yaml --datapath tap-bridge --disk /var/plc.qcow2
  ktsn vm config --format qemu --schedule s.yaml --datapath tap-xdp --pin 2-4 --emulator-cpus 1
  ktsn vm config --format libvirt --schedule s.yaml --datapath ovs-dpdk --clock page
  ktsn vm config --format kubevirt --schedule s.yaml --datapath macvtap --disk plc

The device gets a queue for each traffic class of the schedule. Nothing on this machine is looked at or changed.

Exit status: 0 done; 1 it could not be written; 2 wrong usage, or the schedule has faults.";

/// Print a guest's definition for QEMU, libvirt or KubeVirt.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ConfigArgs {
    /// The definition's language.
    #[arg(long, value_enum)]
    format: Format,
    /// The gate schedule of the guest's device; - is standard input.
    #[arg(long, value_name = "FILE")]
    schedule: PathBuf,
    /// How frames reach the host's network: the names of `ktsn bench datapaths`.
    #[arg(long, value_parser = PossibleValuesParser::new(Datapath::WORDS).try_map(|word| word.parse::<Datapath>()), value_name = "NAME")]
    datapath: Datapath,
    /// The guest's name.
    #[arg(long, default_value = "tsn-guest")]
    name: String,
    /// Virtual CPUs [default: one for each queue].
    #[arg(long, value_name = "N")]
    cpus: Option<u32>,
    /// Memory in MiB.
    #[arg(long, default_value_t = 2048, value_name = "MIB")]
    memory: u32,
    /// Pages of the guest's memory.
    #[arg(long, value_enum, default_value = "2M", value_name = "SIZE")]
    hugepages: Pages,
    /// CPUs of the host, one for each virtual CPU, such as 2,4-6.
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, requires = "emulator_cpus")]
    pin: Option<Cpus>,
    /// CPUs of the host for QEMU's other threads and for vhost's.
    #[arg(long, value_name = "CPUS", value_parser = cpu_list, requires = "pin")]
    emulator_cpus: Option<Cpus>,
    /// Priority of the pinned virtual CPUs and of vhost's threads (SCHED_FIFO); 0: ordinary threads.
    #[arg(long, default_value_t = 1, value_name = "N")]
    priority: u8,
    /// How the guest gets the host's time [default: ptp-kvm, with --accelerator tcg none].
    #[arg(long, value_enum, value_name = "NAME")]
    clock: Option<ClockName>,
    /// --clock page: the file that `ktsn clock publish` writes for this guest; beside it lies NAME.exchange [default: /dev/shm/NAME.page].
    #[arg(long, value_name = "FILE")]
    clock_page: Option<String>,
    /// The guest's disk: a file of the host, or the PersistentVolumeClaim of kubevirt [default: none].
    #[arg(long, value_name = "FILE")]
    disk: Option<String>,
    /// The disk's format.
    #[arg(long, value_enum, default_value = "qcow2", value_name = "NAME")]
    disk_format: DiskFormat,
    /// The bridge: Linux' for tap-bridge and tap-xdp, else Open vSwitch's.
    #[arg(long, default_value = "br0", value_name = "NAME")]
    bridge: String,
    /// The tap or macvtap device to make.
    #[arg(long, default_value = "tsn0", value_name = "NAME")]
    tap: String,
    /// macvtap: the host's interface below it; vfio: the PCI address.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// ovs-afxdp, ovs-dpdk: the socket of vhost-user [default: /run/ktsn-vm/NAME.sock].
    #[arg(long, value_name = "FILE")]
    socket: Option<String>,
    /// kubevirt: the NetworkAttachmentDefinition of the guest's device.
    #[arg(long, default_value = "tsn", value_name = "NAME")]
    network: String,
    /// How the guest's instructions run.
    #[arg(long, value_enum, default_value = "kvm", value_name = "NAME")]
    accelerator: Accelerator,
}

/// A list of CPUs.
#[derive(Clone, Debug)]
struct Cpus(Vec<u32>);

fn cpu_list(text: &str) -> Result<Cpus, String> {
    vm_config::parse_cpu_list(text).map(Cpus)
}

/// The name of a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClockName {
    /// The guest's driver ptp_kvm asks the host's kernel.
    PtpKvm,
    /// A page in shared memory, which `ktsn clock publish` writes.
    Page,
    /// No device.
    None,
}

/// Prints the definition.
pub(super) fn run(args: &ConfigArgs) -> ExitCode {
    match definition(args) {
        Ok(text) => match output::show(&text) {
            Ok(_) => ExitCode::SUCCESS,
            Err(error) => failed(&error, 1),
        },
        Err(error) => failed(&error, 2),
    }
}

fn failed(error: &str, status: u8) -> ExitCode {
    eprintln!("ktsn vm config: {error}");
    ExitCode::from(status)
}

fn definition(args: &ConfigArgs) -> Result<String, String> {
    let schedule = schedule::load(&args.schedule, ScheduleFormat::Auto)?;
    let clock = clock(args)?;
    let placement = args.pin.clone().zip(args.emulator_cpus.clone()).map(|(pin, emulator)| Placement {
        vcpus: pin.0,
        emulator: emulator.0,
        priority: Some(args.priority).filter(|priority| *priority > 0),
    });
    let request = Request {
        name: args.name.clone(),
        format: args.format,
        datapath: args.datapath,
        classes: Classes::of(&schedule, &args.schedule.to_string_lossy()),
        cpus: args.cpus,
        memory_mib: args.memory,
        pages: args.hugepages,
        accelerator: args.accelerator,
        clock,
        placement,
        disk: args.disk.clone(),
        disk_format: args.disk_format,
        bridge: args.bridge.clone(),
        tap: args.tap.clone(),
        device: args.device.clone(),
        socket: args.socket.clone(),
        network: args.network.clone(),
    };
    vm_config::definition(&request).map_err(|refused| refused.to_string())
}

fn clock(args: &ConfigArgs) -> Result<Clock, String> {
    let name = args.clock.unwrap_or(match args.accelerator {
        Accelerator::Kvm => ClockName::PtpKvm,
        Accelerator::Tcg => ClockName::None,
    });
    match (name, &args.clock_page) {
        (ClockName::Page, page) => {
            Ok(Clock::Page(page.clone().unwrap_or_else(|| format!("/dev/shm/{}.page", args.name))))
        }
        (_, Some(page)) => Err(format!("--clock-page {page}: expected --clock page with it")),
        (ClockName::PtpKvm, None) => Ok(Clock::PtpKvm),
        (ClockName::None, None) => Ok(Clock::None),
    }
}
