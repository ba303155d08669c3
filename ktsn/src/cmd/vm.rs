// SPDX-License-Identifier: Apache-2.0
//! `ktsn vm`: programs in throw-away guests.
//!
//! In: a program, a machine. Out: the program's own output and exit status; on standard error a progress line, and a result line that says
//! how the guest ran. Exit status of `run`: the program's, 128+N if signal N ended it, 127 if the guest has no such program, 126 if it
//! cannot be executed; 1 the guest failed, 2 wrong usage, 3 not possible here.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use indicatif::ProgressBar;
use ktsn_lab::vm::protocol::{Ended, Job};
use ktsn_lab::vm::{
    self, Accelerator, Cache, Choice, Datapath, Machine, Renew, Report, Request, Stream, Watch,
};
use ktsn_lab::{LabError, Tools};
use ktsn_measure::clock;
use serde_json::json;

use crate::{installed, output};

const EXAMPLES: &str = "\
Examples:
  ktsn vm image
  ktsn vm run -- chronyc -v
  ktsn vm run --host-files -- ./controller --cycle 1ms
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
    Run(RunArgs),
    Clean(CleanArgs),
    /// The first process of a guest.
    #[command(hide = true)]
    Guest,
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

The image has Debian's real-time kernel, busybox, iproute2, ethtool, chrony and cyclictest, from Debian's packages (85 MB, fetched once \
by apt with a state of its own; nothing is installed). `ktsn vm run` makes it when it is needed.

Exit status: 0 done; 1 failed; 2 wrong usage; 3 not possible here.";

/// Make the image that guests start from, unless it is there.
#[derive(Args, Clone, Debug)]
#[command(after_help = IMAGE_EXAMPLES)]
struct ImageArgs {
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
  ktsn vm run --json run.json --timeout 30s -- ktsn doctor

The program runs as root, with no input. Without --host-files it sees the image's files, ktsn, ktsnd and libktsn.so among them. With \
them it sees this machine's files, in the same directory: it may read what the caller may, and what it writes is gone with the guest.

Exit status: the program's; 128+N if signal N ended it; 127 there is no such program in the guest;
  126 it cannot be executed; 1 the guest failed; 2 wrong usage; 3 not possible here.";

/// Run a program in a guest that is gone afterwards.
#[derive(Args, Clone, Debug)]
#[command(after_help = RUN_EXAMPLES)]
struct RunArgs {
    /// Virtual CPUs.
    #[arg(long, default_value_t = Machine::default().cpus, value_name = "N")]
    cpus: u32,
    /// Memory in MiB.
    #[arg(long, default_value_t = Machine::default().memory_mib, value_name = "MIB")]
    memory: u32,
    /// The guest's network device: none; user: reaches what this machine reaches, one queue; tap: leads nowhere, several queues (root).
    #[arg(long, default_value_t, value_name = "NAME")]
    datapath: Datapath,
    /// Queue pairs of the network device.
    #[arg(long, default_value_t = 1, value_name = "N")]
    queues: u32,
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
enum Wish {
    /// By KVM where a guest boots with it (tried once after each start of this machine), else by QEMU.
    Auto,
    /// By the processor.
    Kvm,
    /// By QEMU, many times slower.
    Tcg,
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
        Command::Guest => ("guest", vm::run_guest().map(|()| ExitCode::SUCCESS).map_err(Into::into)),
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn vm {name}: {failed}");
        ExitCode::from(failed.downcast_ref::<LabError>().map_or(1, LabError::exit_status))
    })
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
    let image = vm::image(&Cache::find(args.cache.cache.as_deref()), renew, &mut |step| {
        bar.set_message(step.to_owned());
    });
    bar.finish_and_clear();
    let image = image?;
    let (directory, facts) = (image.directory.display(), &image.facts);
    let text = if args.json {
        let packages = &facts.packages;
        format!(
            "{:#}\n",
            json!({ "key": image.key, "directory": image.directory, "kernel": facts.kernel, "packages": packages })
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
        format!("killed runs: {} removed, {} QEMU ended\n", removed.records, removed.processes.len());
    if args.all {
        vm::remove_images(&cache)?;
        text.push_str("images and packages removed\n");
    }
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn tools() -> anyhow::Result<Tools> {
    let missing = |missing: installed::Missing| LabError::Impossible {
        what: missing.to_string(),
        remedy: "`make build`".to_owned(),
    };
    let ktsn = std::env::current_exe()?;
    Ok(Tools {
        ktsn,
        ktsnd: installed::daemon().map_err(missing)?,
        libktsn: installed::library().map_err(missing)?,
    })
}

/// Passes the program's output on, below the progress line.
struct Show<'a>(&'a ProgressBar);

impl Watch for Show<'_> {
    fn ready(&mut self) {
        self.0.finish_and_clear();
    }

    fn wrote(&mut self, stream: Stream, octets: &[u8]) -> io::Result<()> {
        let to: &mut dyn io::Write = match stream {
            Stream::Stdout => &mut io::stdout(),
            Stream::Stderr => &mut io::stderr(),
        };
        to.write_all(octets)?;
        to.flush()
    }
}

fn run_program(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let machine =
        Machine { cpus: args.cpus, memory_mib: args.memory, datapath: args.datapath, queues: args.queues };
    machine.check()?;
    let (cache, tools) = (Cache::find(args.cache.cache.as_deref()), tools()?);
    vm::clean(&cache)?;
    let bar = progress(args.quiet);
    let step = |step: &str| bar.set_message(step.to_owned());
    let mut image = || vm::image(&cache, Renew::Nothing, &mut |text| step(text));
    let choice = match args.accelerator {
        Wish::Kvm => Choice { accelerator: Accelerator::Kvm, reason: String::new() },
        Wish::Tcg => Choice { accelerator: Accelerator::Tcg, reason: "--accelerator tcg".to_owned() },
        Wish::Auto => vm::choose(&cache, &tools, &mut image, &mut |text| step(text))?,
    };
    let image = image()?;
    let kernel = image.facts.kernel.clone();
    step(&format!("booting a guest ({})", choice.accelerator));
    let job = Job {
        in_host_tree: args.host_files,
        has_user_network: args.datapath == Datapath::User,
        directory: if args.host_files { std::env::current_dir()? } else { "/root".into() },
        program: args.program.clone(),
    };
    let request = Request {
        machine,
        accelerator: choice.accelerator,
        job,
        tools,
        boot_within: args.boot_timeout,
        program_within: args.timeout,
    };
    let ran = vm::run(&cache, image, &request, &mut Show(&bar));
    bar.finish_and_clear();
    let report = ran?;
    if let Some(path) = &args.json {
        let text = format!("{:#}\n", document(&request, &choice, &kernel, &report));
        std::fs::write(path, text).map_err(|error| anyhow::anyhow!("--json {}: {error}", path.display()))?;
    }
    if let Ended::NotStarted(number) = report.ended {
        eprintln!("ktsn vm run: {}", not_started(args, number));
    }
    if !args.quiet {
        eprintln!("{}", line(&request, &choice, &kernel, &report));
    }
    Ok(ExitCode::from(exit_status(report.ended)))
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

fn line(request: &Request, choice: &Choice, kernel: &str, report: &Report) -> String {
    let (machine, why) = (&request.machine, &choice.reason);
    let because = if why.is_empty() { String::new() } else { format!(" ({why})") };
    format!(
        "guest: qemu {}{because}, kernel {kernel}, {} CPU, {} MiB, datapath {} with {} queue(s); booted in {:.1} s, program ran {:.1} s, {}",
        choice.accelerator,
        machine.cpus,
        machine.memory_mib,
        machine.datapath,
        machine.queues,
        report.boot.as_secs_f64(),
        report.program.as_secs_f64(),
        how_it_ended(report.ended)
    )
}

fn document(request: &Request, choice: &Choice, kernel: &str, report: &Report) -> serde_json::Value {
    let machine = &request.machine;
    let (exit_status, signal) = match report.ended {
        Ended::Exited(status) => (Some(status), None),
        Ended::Killed(signal) => (None, Some(signal)),
        Ended::NotStarted(_) => (None, None),
    };
    json!({
        "kind": "qemu",
        "accelerator": choice.accelerator.to_string(),
        "accelerator_reason": choice.reason,
        "kernel": kernel,
        "cpus": machine.cpus,
        "memory_mib": machine.memory_mib,
        "datapath": machine.datapath.to_string(),
        "queues": machine.queues,
        "boot_seconds": report.boot.as_secs_f64(),
        "program_seconds": report.program.as_secs_f64(),
        "exit_status": exit_status,
        "signal": signal,
    })
}
