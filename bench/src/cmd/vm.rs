// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm`: programs in throw-away guests.
//!
//! In: a program, a machine. Out: the program's own output and exit status; on standard error a progress line, and a result line that says
//! how the guest ran. Exit status of `run`: the program's, 128+N if signal N ended it, 127 if the guest has no such program, 126 if it
//! cannot be executed; 1 the guest failed, 2 wrong usage, 3 not possible here.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use ktsn_lab::vm::protocol::{Clock, Ended};
use ktsn_lab::vm::{
    self, Accelerator, Address, Cache, Cpus, Datapath, Done, Errand, Kind, Machine, Renew, Report, Stream,
    Watch,
};
use ktsn_lab::{LabError, Tools};
use ktsn_measure::clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;

use super::vm_config;
use crate::{installed, output, programs};

/// POSIX' PIPE_BUF on Linux.
const PIPE_BUF: usize = 4096;
/// How long a full output is waited for before the limits are looked at again.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

const EXAMPLES: &str = "\
Examples:
  ktsn vm image
  ktsn vm run -- chronyc -v
  ktsn vm run --host-files -- ./controller --cycle 1ms
  ktsn vm config --format libvirt --schedule schedule.yaml --datapath tap-bridge
  ktsn vm clean";

/// Run programs in throw-away virtual machines.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct VmArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Image(ImageArgs),
    Run(Box<RunArgs>),
    Clean(CleanArgs),
    Config(Box<vm_config::ConfigArgs>),
    /// The first process of a guest.
    #[command(hide = true)]
    Guest(GuestArgs),
    /// The end of a datapath in a guest.
    #[command(hide = true)]
    Station(StationArgs),
}

/// The end of a datapath in a guest, which `ktsn bench datapaths` boots.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn vm station eth0")]
struct StationArgs {
    /// The guest's network device.
    device: String,
}

#[derive(Args, Clone, Debug)]
struct GuestArgs {
    #[arg(long, default_value_t)]
    kind: Kind,
}

#[derive(Args, Clone, Debug)]
struct CacheArgs {
    /// Where images are kept [default: KTSN_VM_CACHE, else ktsn/vm in the user's cache directory].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

const IMAGE_EXAMPLES: &str = "\
Examples:
  ktsn vm image
  ktsn vm image --refresh --json
  ktsn vm image --kind uml

The image has Debian's real-time kernel, busybox, iproute2, ethtool, chrony and cyclictest, from Debian's packages (85 MB, fetched once \
by apt with a state of its own; nothing is installed). `ktsn vm run` makes it when it is needed. With --kind uml it has Debian's \
User-mode Linux in place of that kernel (56 MB).

Exit status: 0 done; 1 failed; 2 wrong usage; 3 not possible here.";

/// Make the image that guests start from, unless it is there.
#[derive(Args, Clone, Debug)]
#[command(after_help = IMAGE_EXAMPLES)]
struct ImageArgs {
    /// What the guests are: qemu, or uml (User-mode Linux).
    #[arg(long, default_value_t, value_name = "KIND")]
    kind: Kind,
    /// Build it again from the packages that are there.
    #[arg(long)]
    rebuild: bool,
    /// Fetch the newest packages, then build it again.
    #[arg(long)]
    refresh: bool,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    cache: CacheArgs,
}

const RUN_EXAMPLES: &str = "\
Examples:
  ktsn vm run -- uname -a
  ktsn vm run --host-files -- python3 send.py
  ktsn vm run --cpus 2 --memory 1024 -- cyclictest -p 90 -m -D 10 -q
  ktsn vm run --datapath tap --queues 4 -- tc qdisc show dev eth0
  ktsn vm run --datapath bridge:br0@host-a --address 10.0.0.2/24 --pin 1 -- ktsn listen 5000
  ktsn vm run --datapath vhost-user:/run/a.sock --address 10.0.0.3/24 -- ktsn talk 10.0.0.2:5000
  ktsn vm run --clock vptp -- chronyc tracking
  ktsn vm run --clock chrony --datapath bridge:br0 --address 10.0.0.2/24 -- chronyc tracking
  ktsn vm run --json run.json --timeout 30s -- ktsn doctor
  ktsn vm run --kind uml --datapath bridge:br0 --address 10.0.0.4/24 -- ktsn talk 10.0.0.2:5000

The program runs as root, with no input. Without --host-files it sees the image's files, ktsn, ktsnd and libktsn.so among them. With \
them it sees this machine's files, in the same directory: it may read what the caller may, and what it writes is gone with the guest.

--kind uml is User-mode Linux: a kernel that is a program of this machine. It boots sooner than QEMU without KVM, and has one CPU, no \
real-time kernel, and a device with one queue. A program that controls such a kernel has the caller's rights: run none in it that you would not run here.

Exit status: the program's; 128+N if signal N ended it; 127 there is no such program in the guest;
  126 it cannot be executed; 1 the guest failed; 2 wrong usage; 3 not possible here.";

/// Run a program in a guest that is gone afterwards.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
struct RunArgs {
    /// What the guest is: qemu, or uml (User-mode Linux: one CPU, one queue, no KVM needed).
    #[arg(long, default_value_t, value_name = "KIND")]
    kind: Kind,
    /// Virtual CPUs.
    #[arg(long, default_value_t = Machine::default().cpus, value_name = "N")]
    cpus: u32,
    /// Memory in MiB.
    #[arg(long, default_value_t = Machine::default().memory_mib, value_name = "MIB")]
    memory: u32,
    /// The guest's network device: none; user: reaches what this machine reaches, one queue; tap: leads nowhere; bridge:NAME: a port of a
    /// bridge that is there; vhost-user:SOCKET: a virtual switch connects there. tap and bridge need root; all but user have several queues.
    #[arg(long, default_value_t, value_name = "NAME")]
    datapath: Datapath,
    /// Queue pairs of the network device.
    #[arg(long, default_value_t = 1, value_name = "N")]
    queues: u32,
    /// The network device's address, such as 10.0.0.2/24; the device is then up when the program starts.
    #[arg(long, value_name = "ADDRESS/LENGTH")]
    address: Option<Address>,
    /// Run all of the guest's threads on these CPUs, such as 0,2-3.
    #[arg(long, value_name = "CPUS")]
    pin: Option<Cpus>,
    /// What the guest's clock follows: none: its own; vptp: this machine's clock, through shared memory; kvm: the clock that KVM offers, by
    /// chrony; chrony: this machine's clock, over --datapath bridge:…. The program starts when the clock follows.
    #[arg(long, default_value_t, value_name = "NAME")]
    clock: Clock,
    /// QEMU's monitor (QMP) listens at this socket: to pause the guest, or to move it.
    #[arg(long, value_name = "SOCKET")]
    qmp: Option<PathBuf>,
    /// How the guest's instructions run.
    #[arg(long, default_value = "auto")]
    accelerator: Wish,
    /// The program sees this machine's files, and may change none of them.
    #[arg(long)]
    host_files: bool,
    /// How long the guest may take to boot.
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = humantime::parse_duration)]
    boot_timeout: Duration,
    /// How long the program may take [default: without limit].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// Write how the guest ran to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Neither progress nor result line.
    #[arg(long)]
    quiet: bool,
    #[command(flatten)]
    cache: CacheArgs,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// How the guest's instructions shall run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Wish {
    /// By KVM where a guest boots with it (tried once after each start of this machine), else by QEMU.
    Auto,
    /// By the processor.
    Kvm,
    /// By QEMU, many times slower.
    Tcg,
}

impl Wish {
    /// What was asked for; `None`: what is found out.
    pub(super) const fn accelerator(self) -> Option<Accelerator> {
        match self {
            Self::Auto => None,
            Self::Kvm => Some(Accelerator::Kvm),
            Self::Tcg => Some(Accelerator::Tcg),
        }
    }
}

/// Remove what runs left that were killed.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  ktsn vm clean\n  ktsn vm clean --all")]
struct CleanArgs {
    /// Remove images and packages, too.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    cache: CacheArgs,
}

/// Carries the command out.
pub(crate) fn run(args: &VmArgs) -> ExitCode {
    clock::stop_on_signals();
    let (name, done) = match &args.command {
        Command::Image(args) => ("image", image(args)),
        Command::Run(args) => ("run", run_program(args)),
        Command::Clean(args) => ("clean", clean(args)),
        Command::Config(args) => ("config", Ok(vm_config::run(args))),
        Command::Station(args) => ("station", station(args)),
        Command::Guest(args) => {
            ("guest", vm::run_guest(args.kind).map(|()| ExitCode::SUCCESS).map_err(Into::into))
        }
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn vm {name}: {failed}");
        ExitCode::from(failed.downcast_ref::<LabError>().map_or(1, LabError::exit_status))
    })
}

fn station(args: &StationArgs) -> anyhow::Result<ExitCode> {
    match ktsn_lab::datapaths::serve(&args.device)? {}
}

/// A line on the terminal that says what goes on; nothing elsewhere.
fn progress(is_quiet: bool) -> ProgressBar {
    if is_quiet {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn image(args: &ImageArgs) -> anyhow::Result<ExitCode> {
    let renew = match (args.refresh, args.rebuild) {
        (true, _) => Renew::Packages,
        (_, true) => Renew::Image,
        _ => Renew::Nothing,
    };
    let bar = progress(false);
    let image = vm::image(&Cache::find(args.cache.cache.as_deref()), args.kind, renew, &mut |step| {
        bar.set_message(step.to_owned());
    });
    bar.finish_and_clear();
    let image = image?;
    let (directory, facts) = (image.directory.display(), &image.facts);
    let text = if args.json {
        let packages = &facts.packages;
        format!(
            "{:#}\n",
            json!({ "kind": args.kind.to_string(), "key": image.key, "directory": image.directory, "kernel": facts.kernel, "packages": packages })
        )
    } else {
        format!(
            "image {}: kernel {}, {} packages, in {directory}\n",
            image.key,
            facts.kernel,
            facts.packages.len()
        )
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn clean(args: &CleanArgs) -> anyhow::Result<ExitCode> {
    let cache = Cache::find(args.cache.cache.as_deref());
    let removed = vm::clean(&cache)?;
    let mut text =
        format!("killed runs: {} removed, {} guests ended\n", removed.records, removed.processes.len());
    if removed.sockets > 0 {
        text.push_str(&format!("sockets of killed runs: {} removed\n", removed.sockets));
    }
    for (what, names) in
        [("namespaces", ktsn_lab::testbed::sweep().len()), ("virtual switches", ktsn_lab::ovs::sweep().len())]
    {
        if names > 0 {
            text.push_str(&format!("{what} of killed experiments: {names} removed\n"));
        }
    }
    if args.all {
        vm::remove_images(&cache)?;
        text.push_str("images and packages removed\n");
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The programs that a guest gets: none is missing.
pub(super) fn tools() -> Result<Tools, LabError> {
    let tools = programs::tools()?;
    Ok(Tools { ktsnd: installed::daemon()?, libktsn: installed::library()?, ..tools })
}

/// Passes the program's output on, below the progress line.
struct Show<'a>(&'a ProgressBar);

impl Watch for Show<'_> {
    fn ready(&mut self) {
        self.0.finish_and_clear();
    }

    fn waits_for_clock(&mut self) {
        self.0.set_message("waiting until the guest's clock follows");
    }

    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<usize> {
        match stream {
            Stream::Stdout => write_some(io::stdout().as_fd(), octets),
            Stream::Stderr => write_some(io::stderr().as_fd(), octets),
        }
    }
}

/// Writes from the beginning of `octets` what `to` takes without a wait, after waiting a little until it takes anything.
fn write_some(to: BorrowedFd<'_>, octets: &[u8]) -> io::Result<usize> {
    // A pipe that poll(2) calls writable takes so many octets at once; more could wait for its reader.
    let part = &octets[..octets.len().min(PIPE_BUF)];
    let mut polled = [PollFd::new(&to, PollFlags::OUT)];
    match poll(&mut polled, Some(&LOOK_AGAIN)) {
        Ok(0) | Err(Errno::INTR) => Ok(0),
        Ok(_) => rustix::io::write(to, part).map_err(Into::into),
        Err(error) => Err(error.into()),
    }
}

fn run_program(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let errand = errand(args)?;
    errand.check()?;
    let (cache, tools) = (Cache::find(args.cache.cache.as_deref()), tools()?);
    let bar = progress(args.quiet);
    let mut step = |step: &str| bar.set_message(step.to_owned());
    let done = errand.carry_out(&cache, &tools, &mut step, &mut Show(&bar));
    bar.finish_and_clear();
    let done = done?;
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", document(&errand, &done));
        std::fs::write(path, text).map_err(|error| anyhow::anyhow!("--json {}: {error}", path.display()))?;
    }
    if let Ended::NotStarted(number) = done.report.ended {
        eprintln!("ktsn vm run: {}", not_started(args, number));
    }
    if !args.quiet {
        eprintln!("{}", line(&errand, &done));
    }
    Ok(ExitCode::from(exit_status(done.report.ended)))
}

fn errand(args: &RunArgs) -> io::Result<Errand> {
    let machine = Machine {
        cpus: args.cpus,
        memory_mib: args.memory,
        datapath: args.datapath.clone(),
        queues: args.queues,
        address: args.address,
        pin: args.pin.clone(),
        monitor: args.qmp.clone(),
    };
    Ok(Errand {
        accelerator: args.accelerator.accelerator(),
        machine,
        clock: args.clock,
        has_host_files: args.host_files,
        directory: if args.host_files { std::env::current_dir()? } else { "/root".into() },
        boot_within: args.boot_timeout,
        program_within: args.timeout,
        ..Errand::new(args.kind, args.program.clone())
    })
}

fn not_started(args: &RunArgs, number: u8) -> String {
    let error = io::Error::from_raw_os_error(i32::from(number));
    let name = args.program[0].display();
    let hint = if args.host_files { "" } else { "; with --host-files the guest has this machine's files" };
    format!("{name} cannot be started in the guest: {error}{hint}")
}

fn exit_status(ended: Ended) -> u8 {
    match ended {
        Ended::Exited(status) => status,
        Ended::Killed(signal) => 128_u8.saturating_add(signal),
        // ENOENT, as shells have it.
        Ended::NotStarted(2) => 127,
        Ended::NotStarted(_) => 126,
    }
}

fn how_it_ended(ended: Ended) -> String {
    match ended {
        Ended::Exited(status) => format!("exit status {status}"),
        Ended::Killed(signal) => format!("signal {signal}"),
        Ended::NotStarted(_) => "not started".to_owned(),
    }
}

fn line(errand: &Errand, done: &Done) -> String {
    let (machine, choice, report) = (&errand.machine, &done.choice, &done.report);
    let because = if choice.reason.is_empty() { String::new() } else { format!(" ({})", choice.reason) };
    let accelerator = match errand.kind {
        Kind::Qemu => format!("qemu {}", choice.accelerator),
        Kind::Uml => "uml".to_owned(),
    };
    format!(
        "guest: {accelerator}{because}, kernel {}, {} CPU, {} MiB, datapath {} with {} queue(s){}; booted in {:.1} s, program ran {:.1} s, {}",
        done.kernel,
        machine.cpus,
        machine.memory_mib,
        machine.datapath,
        machine.queues,
        clock_words(errand.clock, report),
        report.boot.as_secs_f64(),
        report.program.as_secs_f64(),
        how_it_ended(report.ended)
    )
}

/// How well the guest's clock followed at the end.
fn clock_words(clock: Clock, report: &Report) -> String {
    if clock == Clock::None {
        return String::new();
    }
    let state = clock_state(report);
    let nanos = |name: &str| state[name].as_i64().map(|value| output::span(value.unsigned_abs()));
    let off = nanos("error_ns").map_or(String::new(), |off| format!(", {off} off this machine's"));
    let bound = nanos("error_bound_ns").map_or(String::new(), |bound| format!(", bound {bound}"));
    format!(", clock {clock} {}{off}{bound}", state["state"].as_str().unwrap_or("unknown"))
}

/// What the guest said about its clock; it is not trusted.
fn clock_state(report: &Report) -> serde_json::Value {
    report.clock.as_deref().and_then(|state| serde_json::from_str(state).ok()).unwrap_or_default()
}

fn document(errand: &Errand, done: &Done) -> serde_json::Value {
    let (machine, choice, report) = (&errand.machine, &done.choice, &done.report);
    let (exit_status, signal) = match report.ended {
        Ended::Exited(status) => (Some(status), None),
        Ended::Killed(signal) => (None, Some(signal)),
        Ended::NotStarted(_) => (None, None),
    };
    json!({
        "kind": errand.kind.to_string(),
        "accelerator": choice.accelerator.to_string(),
        "accelerator_reason": choice.reason,
        "kernel": done.kernel,
        "cpus": machine.cpus,
        "memory_mib": machine.memory_mib,
        "datapath": machine.datapath.to_string(),
        "queues": machine.queues,
        "address": machine.address.map(|address| address.to_string()),
        "pin": machine.pin.as_ref().map(ToString::to_string),
        "clock": errand.clock.to_string(),
        "clock_state": clock_state(report),
        "boot_seconds": report.boot.as_secs_f64(),
        "program_seconds": report.program.as_secs_f64(),
        "exit_status": exit_status,
        "signal": signal,
    })
}
