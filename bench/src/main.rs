// SPDX-License-Identifier: Apache-2.0
//! `ktsn-bench`: the laboratory's command line. `ktsn bench`, `ktsn rt`, `ktsn vm` and the like start it with the same words.
//!
//! In: arguments. Out: what the subcommand says, and an exit status. Thin: the work is done by `ktsn-lab` and `ktsn-measure`.

mod advice;
mod cmd;
mod programs;
mod vm_config;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use ktsn_cli::{generate, installed, output};
use ktsn_measure::plain;

/// Measure KTSN, machines and guests.
#[derive(Parser, Clone, Debug)]
#[command(
    name = "ktsn-bench",
    bin_name = "ktsn",
    version,
    after_help = "Example:\n  ktsn bench container --report report.html"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Bench(cmd::bench::BenchArgs),
    Report(cmd::report::ReportArgs),
    Rt(cmd::rt::RtArgs),
    Vm(cmd::vm::VmArgs),
    Remote(cmd::remote::RemoteArgs),
    Control(cmd::control_loop::ControlArgs),
    Answer(cmd::control_loop::AnswerArgs),
    Frames(cmd::frames::FramesArgs),
    #[command(hide = true)]
    CaptureLead(cmd::capture_lead::CaptureLeadArgs),
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Report(args) => cmd::report::run(&args),
        Command::Rt(args) => cmd::rt::run(&args),
        Command::Vm(args) => cmd::vm::run(&args),
        Command::Remote(args) => cmd::remote::run(&args),
        Command::Control(args) => cmd::control_loop::control(&args),
        Command::Answer(args) => cmd::control_loop::answer(&args),
        Command::Frames(args) => cmd::frames::run(&args),
        Command::CaptureLead(args) => cmd::capture_lead::run(&args),
        Command::Generate(args) => generate::run_as_commands_of("ktsn", Cli::command(), &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_every_help_are_shown_whole() {
        ktsn_cli::check_examples(&Cli::command());
    }
}
