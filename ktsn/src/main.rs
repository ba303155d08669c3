// SPDX-License-Identifier: Apache-2.0
//! `ktsn`: the user's one command line.
//!
//! In: arguments. Out: what the subcommand says, and an exit status. Thin: the work is done by `ktsn-measure`,
//! `ktsn-lab` and ktsnd; here it is only asked for and shown.

mod captured;
mod cmd;
mod control;
mod doctor;
mod installed;
mod k8s;
mod output;
mod running;
#[allow(unsafe_code)]
mod sys;
mod vm_config;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use ktsn_measure::plain;

/// Exact transmit times for programs that use SO_TXTIME.
#[derive(Parser, Clone, Debug)]
#[command(name = "ktsn", version, after_help = "Example:\n  ktsn run --with-daemon eth0 -- ./controller")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Run(cmd::run::RunArgs),
    Talk(cmd::talk::TalkArgs),
    Listen(cmd::listen::ListenArgs),
    Tap(cmd::tap::TapArgs),
    Control(cmd::control_loop::ControlArgs),
    Answer(cmd::control_loop::AnswerArgs),
    Bench(cmd::bench::BenchArgs),
    Report(cmd::report::ReportArgs),
    Rt(cmd::rt::RtArgs),
    Status(cmd::status::StatusArgs),
    Top(cmd::top::TopArgs),
    Schedule(cmd::schedule::ScheduleArgs),
    Doctor(cmd::doctor::DoctorArgs),
    Debug(cmd::debug::DebugArgs),
    K8s(cmd::k8s::K8sArgs),
    Vm(cmd::vm::VmArgs),
    Clock(cmd::clock::ClockArgs),
    Guest(cmd::guest::GuestArgs),
    #[command(hide = true)]
    Generate(cmd::generate::GenerateArgs),
    Remote(cmd::remote::RemoteArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => cmd::run::run(&args),
        Command::Talk(args) => cmd::talk::run(&args),
        Command::Listen(args) => cmd::listen::run(&args),
        Command::Tap(args) => cmd::tap::run(&args),
        Command::Control(args) => cmd::control_loop::control(&args),
        Command::Answer(args) => cmd::control_loop::answer(&args),
        Command::Bench(args) => cmd::bench::run(&args),
        Command::Report(args) => cmd::report::run(&args),
        Command::Rt(args) => cmd::rt::run(&args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Top(args) => cmd::top::run(&args),
        Command::Schedule(args) => cmd::schedule::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Debug(args) => cmd::debug::run(&args),
        Command::K8s(args) => cmd::k8s::run(&args),
        Command::Vm(args) => cmd::vm::run(&args),
        Command::Clock(args) => cmd::clock::run(&args),
        Command::Guest(args) => cmd::guest::run(&args),
        Command::Remote(args) => cmd::remote::run(&args),
        Command::Generate(args) => cmd::generate::run(Cli::command(), &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longer lines are broken in two by clap: prose may be, an example may not.
    const COLUMNS: usize = 100;

    fn look(command: &clap::Command, path: &str) {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            assert!(line.chars().count() <= COLUMNS, "{path} --help: {line}");
        }
        for inner in command.get_subcommands() {
            look(inner, &format!("{path} {}", inner.get_name()));
        }
    }

    #[test]
    fn examples_of_every_help_are_shown_whole() {
        look(&Cli::command(), "ktsn");
    }
}
