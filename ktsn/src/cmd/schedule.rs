// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule`: gate schedules as files, and the gates of a running ktsnd.
//!
//! In: a file (or `-`, standard input). Out: its faults with their places, a drawing, or the same schedule in another
//! format; or the gates that a port has then. Exit status 0; 1 a file could not be written; 2 wrong usage, or the schedule has faults.

mod apply;
mod check;
mod convert;
mod show;
pub(super) mod status;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use ktsn_cli::schedule::read;
use ktsn_schedule::analysis::Link;
use ktsn_schedule::{Format, Remark, Schedule, units};
use ktsn_time::Nanos;

const EXAMPLES: &str = "\
Examples:
  ktsn schedule check examples/schedules/three-classes.yaml --link-speed 1G
  ktsn schedule show examples/schedules/three-classes.yaml --svg three-classes.svg
  ktsn schedule convert schedule.yaml --format taprio --dev eth0
  ktsn schedule apply schedule.yaml --port eth1
  ktsn schedule status --port eth1

Exit status: 0 done; 1 a file could not be written; 2 wrong usage, or the schedule has faults.";

/// Check, draw, convert and apply gate schedules (802.1Q gate control lists).
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ScheduleArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Check(check::CheckArgs),
    Show(show::ShowArgs),
    Convert(convert::ConvertArgs),
    Apply(apply::ApplyArgs),
    Status(status::StatusArgs),
}

/// Does what the subcommand says.
pub(crate) fn run(args: &ScheduleArgs) -> ExitCode {
    match &args.command {
        Command::Check(args) => check::run(args),
        Command::Show(args) => show::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Apply(args) => apply::run(args),
        Command::Status(args) => status::run(args),
    }
}

/// The format of a file.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InputFormat {
    /// Found from the text.
    #[default]
    Auto,
    Yaml,
    Json,
    /// A `tc qdisc … taprio …` command.
    Taprio,
}

/// The file and the link that it is meant for.
#[derive(Args, Clone, Debug)]
struct Input {
    /// The schedule; - is standard input.
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The file's format.
    #[arg(long, value_enum, default_value_t)]
    format: InputFormat,
    #[command(flatten)]
    link: LinkArgs,
}

/// What the port is; it counts before what the schedule says.
#[derive(Args, Clone, Copy, Debug)]
struct LinkArgs {
    /// Link speed in bit/s, or like 100M, 2.5G [default: the schedule's link-speed].
    #[arg(long, value_name = "SPEED", value_parser = link_speed)]
    link_speed: Option<u64>,
    /// Largest service data unit in octets [default: the schedule's mtu, else 1500].
    #[arg(long, value_name = "OCTETS", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    mtu: Option<u32>,
    /// From handing a frame to the port until it is on the wire, like 20us [default: the schedule's hand-over, else 0].
    #[arg(long, value_name = "SPAN", value_parser = hand_over)]
    hand_over: Option<Nanos>,
}

impl LinkArgs {
    fn of(&self, schedule: &Schedule) -> Link {
        Link::of(schedule, self.link_speed, self.mtu, self.hand_over)
    }
}

fn link_speed(text: &str) -> Result<u64, String> {
    let bits = units::speed(text).ok().and_then(|bits| u64::try_from(bits).ok());
    bits.filter(|bits| (1_000..=10_000_000_000_000).contains(bits))
        .ok_or("expected 1k to 10T, for example 1G".into())
}

fn hand_over(text: &str) -> Result<Nanos, String> {
    let nanos = units::span(text).ok().and_then(|nanos| i64::try_from(nanos).ok());
    nanos
        .filter(|nanos| (0..=10_000_000_000).contains(nanos))
        .map(Nanos::new)
        .ok_or("expected a span from 0 to 10s, for example 20us".into())
}

impl From<InputFormat> for Format {
    fn from(format: InputFormat) -> Self {
        match format {
            InputFormat::Auto => Self::Auto,
            InputFormat::Yaml => Self::Yaml,
            InputFormat::Json => Self::Json,
            InputFormat::Taprio => Self::Taprio,
        }
    }
}

impl Input {
    /// The name of the file in faults.
    fn name(&self) -> String {
        if self.file.as_os_str() == "-" { "standard input".into() } else { self.file.display().to_string() }
    }

    /// The schedule and what its reader remarks; without one every fault is printed on a line with file, line and column.
    fn load(&self) -> Option<(Schedule, Vec<Remark>)> {
        read(&self.file, self.format.into()).map_err(|faults| eprintln!("{faults}")).ok()
    }
}
