// SPDX-License-Identifier: Apache-2.0
//! `ktsn guest`: the network device of this machine, usually a guest, is set up for timed frames.
//!
//! In: a mode and a device. Out: what was changed, and what became of the frames that check it. Exit status: 0 done; 1 failed, and taken
//! back; 2 wrong usage; 3 not possible here.

use std::path::PathBuf;
use std::process::{Command as Program, ExitCode, Stdio};

use crate::guest::{self, Check, Daemon, Done, Gates, Mode, Request, Rhythm, Verified};
use clap::{Args, Subcommand, ValueEnum};
use ktsn_cli::schedule;
use ktsn_host::HostError;
use ktsn_schedule::Format;
use ktsn_time::{Nanos, Tai};
use ktsn_traffic::clock;
use serde_json::json;

use super::observer::span;
use crate::{installed, output};

const EXAMPLES: &str = "\
Examples:
  ktsn guest setup --mode etf
  ktsn guest setup --mode taprio --schedule three-classes.yaml --priority 5
  ktsn guest setup --mode ktsnd
  ktsn guest verify --count 1000 --period 1ms
  ktsn guest undo";

/// Set up the network device of a guest for timed frames.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GuestArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Setup(SetupArgs),
    Verify(VerifyArgs),
    Undo(UndoArgs),
}

/// Who keeps the transmit times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Keeper {
    /// The kernel: mqprio, and etf below the class of timed frames.
    Etf,
    /// The kernel: a schedule's gates by taprio with txtime-assist, and etf below each class.
    Taprio,
    /// A ktsnd on the device, with a schedule's gates or without.
    Ktsnd,
}

/// How long ktsnd spins before a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpinMargin {
    Auto,
    Adaptive,
    Fixed(Nanos),
}

/// Reads a spin margin: what ktsnd takes, or `auto`.
fn margin(text: &str) -> Result<SpinMargin, String> {
    match text {
        "auto" => Ok(SpinMargin::Auto),
        "adaptive" => Ok(SpinMargin::Adaptive),
        _ => match span(text) {
            Ok(margin) if (1_000..=10_000_000).contains(&margin.get()) => Ok(SpinMargin::Fixed(margin)),
            _ => Err("expected auto, adaptive, or 1us to 10ms".to_owned()),
        },
    }
}

/// The device, and where its record is.
#[derive(Args, Clone, Debug)]
struct DeviceArgs {
    /// The network device.
    #[arg(long, default_value = "eth0", value_name = "DEV")]
    device: String,
    /// Where the record of what was changed is kept.
    #[arg(long, default_value = guest::RECORDS, value_name = "DIR")]
    records: PathBuf,
}

/// The frames of a check.
#[derive(Args, Clone, Copy, Debug)]
struct FramesArgs {
    /// Least distance of two frames of the check.
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = span)]
    period: Nanos,
    /// How far ahead of its transmit time a frame of the check is sent.
    #[arg(long, value_name = "TIME", default_value = "3ms", value_parser = span)]
    lead: Nanos,
}

const SETUP_EXAMPLES: &str = "\
Examples:
  ktsn guest setup --mode etf
  ktsn guest setup --mode etf --classes 2 --priority 3 --delta 300us
  ktsn guest setup --mode taprio --schedule three-classes.yaml --priority 5
  ktsn guest setup --mode ktsnd --schedule three-classes.yaml
  ktsn vm run --datapath tap --queues 4 -- sh -c 'ktsn guest setup --mode etf && ./talker'

The modes etf and taprio need one queue pair for each traffic class: a multi-queue device. Mode ktsnd needs one queue. A second set-up \
replaces the first, and `ktsn guest undo` takes it back. A root qdisc that was set by another hand is refused.
Frames are sent to an address that no station has (EtherType 0x88b5) and counted. If fewer than half of them leave in time, the set-up is taken back.
Afterwards, in the modes etf and taprio, any program with SO_TXTIME on CLOCK_TAI is served as it is:
  ktsn talk 192.0.2.7:5000 --lead 3ms
In mode ktsnd it runs with libktsn:
  ktsn run -- ktsn talk 192.0.2.7:5000 --lead 3ms

Exit status: 0 done; 1 failed, and taken back; 2 wrong usage; 3 not possible here.";

/// Set up a device: queues and qdiscs, or a ktsnd.
#[derive(Args, Clone, Debug)]
#[command(after_help = SETUP_EXAMPLES)]
struct SetupArgs {
    /// Who keeps the transmit times.
    #[arg(long)]
    mode: Keeper,
    #[command(flatten)]
    device: DeviceArgs,
    /// The gate schedule of the modes taprio and ktsnd: YAML, JSON, or a `tc … taprio` command.
    #[arg(long, value_name = "FILE")]
    schedule: Option<PathBuf>,
    /// Mode etf: traffic classes, 2 to 8 [default: 4, or as many as the device has queues].
    #[arg(long, value_name = "N")]
    classes: Option<u32>,
    /// SO_PRIORITY of timed frames. In mode etf it has a traffic class of its own.
    #[arg(long, default_value_t = 6, value_name = "N")]
    priority: u8,
    /// How long before its transmit time etf wakes for a frame; it is sent then.
    #[arg(long, default_value = "500us", value_name = "TIME", value_parser = span)]
    delta: Nanos,
    /// Mode ktsnd: its run directory.
    #[arg(long, default_value = "/run/ktsn", value_name = "DIR")]
    run_dir: PathBuf,
    /// Mode ktsnd: how long it spins before a frame, to be awake in time: a time, `adaptive` (ktsnd's own, up to 120us), or `auto`, which
    /// measures how late this machine wakes a thread, and spins up to 400us.
    #[arg(long, default_value = "auto", value_name = "TIME", value_parser = margin)]
    spin_margin: SpinMargin,
    /// Mode ktsnd: further keys of its attachment, as `ktsnd --attach` takes them.
    #[arg(long, value_name = "KEY=VALUE,…")]
    attach: Option<String>,
    /// Frames of the check; 0: none.
    #[arg(long, default_value_t = 100, value_name = "N")]
    verify: u32,
    #[command(flatten)]
    frames: FramesArgs,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

const VERIFY_EXAMPLES: &str = "\
Examples:
  ktsn guest verify
  ktsn guest verify --device eth0 --count 1000 --period 1ms --json
  ktsn run -- ktsn guest verify

Exit status: 0 at least half of the frames left, not too early; 1 fewer; 2 wrong usage; 3 not possible here.";

/// Send timed frames through a device and count what becomes of them.
#[derive(Args, Clone, Debug)]
#[command(after_help = VERIFY_EXAMPLES)]
struct VerifyArgs {
    /// The network device.
    #[arg(long, default_value = "eth0", value_name = "DEV")]
    device: String,
    /// Frames.
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    #[command(flatten)]
    frames: FramesArgs,
    /// SO_PRIORITY of the frames.
    #[arg(long, default_value_t = 6, value_name = "N", value_parser = clap::value_parser!(u8).range(0..=15))]
    priority: u8,
    /// Transmit times are whole cycles after this instant, nanoseconds of CLOCK_TAI.
    #[arg(long, default_value_t = 0, value_name = "NANOS")]
    base_time: u64,
    /// How long before its transmit time a frame may leave; etf hands over up to its delta too early.
    #[arg(long, default_value = "500us", value_name = "TIME", value_parser = span)]
    early: Nanos,
    /// The cycle; the distance of two frames is a multiple of it.
    #[arg(long, default_value = "1us", value_name = "TIME", value_parser = span)]
    cycle: Nanos,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// Take a set-up back.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:\n  ktsn guest undo\n  ktsn guest undo --device eth1")]
struct UndoArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

/// Carries the command out.
pub(crate) fn run(args: &GuestArgs) -> ExitCode {
    clock::stop_on_signals();
    let (name, done) = match &args.command {
        Command::Setup(args) => ("setup", setup(args)),
        Command::Verify(args) => ("verify", verify(args)),
        Command::Undo(args) => ("undo", undo(args)),
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn guest {name}: {failed}");
        ExitCode::from(failed.downcast_ref::<HostError>().map_or(1, HostError::exit_status))
    })
}

/// The schedule of a file; its faults are wrong usage.
fn gates(args: &SetupArgs) -> Result<Option<Gates>, HostError> {
    let Some(file) = &args.schedule else { return Ok(None) };
    let schedule = schedule::load(file, Format::Auto).map_err(HostError::Usage)?;
    let file = std::path::absolute(file)
        .map_err(|error| HostError::Usage(format!("--schedule {}: {error}", file.display())))?;
    Ok(Some(Gates { file, schedule }))
}

/// ktsnd's `--attach`: the device of ktsnd's own network namespace is its own uplink.
fn attach(device: &str, keys: Option<&str>) -> String {
    let rest = keys.map(|keys| format!(",{keys}")).unwrap_or_default();
    format!(
        "/proc/self/ns/net:{device},name=guest/{device},uplink={device},destination=0.0.0.0/0,destination=::/0,address=interface{rest}"
    )
}

fn request(args: &SetupArgs) -> Result<Request, HostError> {
    let mode = match args.mode {
        Keeper::Etf => Mode::Etf,
        Keeper::Taprio => Mode::Taprio,
        Keeper::Ktsnd => Mode::Ktsnd,
    };
    let daemon = if mode == Mode::Ktsnd {
        let program = installed::daemon()?;
        let device = &args.device.device;
        Some(Daemon {
            program,
            run_dir: args.run_dir.clone(),
            attach: attach(device, args.attach.as_deref()),
            spin_margin: match args.spin_margin {
                SpinMargin::Auto => guest::spin_margin(),
                SpinMargin::Adaptive => None,
                SpinMargin::Fixed(margin) => Some(margin),
            },
        })
    } else {
        None
    };
    Ok(Request {
        mode,
        device: args.device.device.clone(),
        classes: args.classes,
        priority: args.priority,
        delta: args.delta,
        gates: gates(args)?,
        daemon,
    })
}

fn setup(args: &SetupArgs) -> anyhow::Result<ExitCode> {
    let request = request(args)?;
    let check_of = |rhythm: Rhythm| Check {
        device: request.device.clone(),
        rhythm,
        count: args.verify,
        period: args.frames.period,
        lead: args.frames.lead,
        early_max: if request.mode == Mode::Ktsnd { Nanos::ZERO } else { args.delta },
    };
    let done =
        guest::setup(&request, &args.device.records, &mut |rhythm| match (args.verify, request.mode) {
            (0, _) => Ok(None),
            (_, Mode::Ktsnd) => served(&check_of(rhythm), &args.run_dir).map(Some),
            _ => guest::verify(&check_of(rhythm)).map(Some),
        })?;
    let text = if args.json { format!("{:#}\n", document(args, &done)) } else { text(args, &done) };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Sends the frames of a check in a program with libktsn.
fn served(check: &Check, run_dir: &std::path::Path) -> Result<Verified, HostError> {
    let system = |what| move |source| HostError::System { what, source };
    let own = std::env::current_exe().map_err(system("the path of this program"))?;
    let nanos = |span: Nanos| format!("{}ns", span.get());
    let mut program = Program::new(&own);
    program.args(["run", "--policy", "strict", "--run-dir"]).arg(run_dir).arg("--").arg(&own);
    program.args(["guest", "verify", "--json", "--device", &check.device]);
    program.args(["--count", &check.count.to_string(), "--priority", &check.rhythm.priority.to_string()]);
    program.args(["--period", &nanos(check.period), "--lead", &nanos(check.lead)]);
    program.args(["--cycle", &nanos(check.rhythm.cycle), "--early", &nanos(check.early_max)]);
    program.args(["--base-time", &check.rhythm.base.as_nanos().to_string()]);
    let ended = program.stdin(Stdio::null()).output().map_err(system("starting `ktsn run`"))?;
    serde_json::from_slice(&ended.stdout).map_err(|_| HostError::Command {
        command: "ktsn run -- ktsn guest verify".to_owned(),
        status: ended.status.to_string(),
        stderr: String::from_utf8_lossy(&ended.stderr).trim().to_owned(),
    })
}

/// What to run afterwards.
fn next(args: &SetupArgs) -> String {
    let run = match args.mode {
        Keeper::Ktsnd if args.run_dir.as_os_str() == "/run/ktsn" => "ktsn run -- ".to_owned(),
        Keeper::Ktsnd => format!("ktsn run --run-dir {} -- ", args.run_dir.display()),
        _ => String::new(),
    };
    format!("{run}ktsn talk ADDRESS:PORT --priority {} --lead 3ms", args.priority)
}

fn undo_line(args: &SetupArgs) -> String {
    let mut line = format!("ktsn guest undo --device {}", args.device.device);
    if args.device.records.as_os_str() != guest::RECORDS {
        line.push_str(&format!(" --records {}", args.device.records.display()));
    }
    line
}

fn text(args: &SetupArgs, done: &Done) -> String {
    let mut text = format!("mode {} on {}\n", done.mode, done.device);
    if let Some(mode) = done.replaced {
        text.push_str(&format!("  mode {mode} was taken back before\n"));
    }
    for step in &done.steps {
        text.push_str(&format!("  {step}\n"));
    }
    for note in &done.notes {
        text.push_str(&format!("  note: {note}\n"));
    }
    if let Some(verified) = &done.verified {
        text.push_str(&format!("check: {}\n", verified.line()));
    }
    text.push_str(&format!("run:   {}\nundo:  {}\n", next(args), undo_line(args)));
    text
}

fn document(args: &SetupArgs, done: &Done) -> serde_json::Value {
    json!({
        "mode": done.mode,
        "device": done.device,
        "replaced": done.replaced,
        "steps": done.steps,
        "notes": done.notes,
        "verified": done.verified,
        "run": next(args),
        "undo": undo_line(args),
    })
}

fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let rhythm = Rhythm { priority: args.priority, base: Tai::from_nanos(args.base_time), cycle: args.cycle };
    let found = guest::verify(&Check {
        device: args.device.clone(),
        rhythm,
        count: args.count,
        period: args.frames.period,
        lead: args.frames.lead,
        early_max: args.early,
    })?;
    let text = if args.json {
        format!("{:#}\n", serde_json::to_value(&found)?)
    } else {
        format!("{}\n", found.line())
    };
    output::write(&text)?;
    Ok(if found.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn undo(args: &UndoArgs) -> anyhow::Result<ExitCode> {
    let device = &args.device.device;
    let text = match guest::undo(device, &args.device.records)? {
        None => format!("{device}: there is no set-up\n"),
        Some((mode, undone)) => {
            let lines: Vec<String> = undone.iter().map(|line| format!("  {line}\n")).collect();
            format!("mode {mode} on {device} was taken back\n{}", lines.concat())
        }
    };
    output::write(&text)?;
    Ok(ExitCode::SUCCESS)
}
