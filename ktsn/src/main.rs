// SPDX-License-Identifier: Apache-2.0
//! `ktsn`: the user's one command line.
//!
//! In: arguments. Out: what the subcommand says, and an exit status. Thin: the work is done by `ktsn-traffic`, ktsnd and
//! Kubernetes; here it is only asked for and shown. The laboratory's commands are another program's (`laboratory`).

mod captured;
mod cmd;
mod control;
mod doctor;
mod files;
mod guest;
mod k8s;
mod laboratory;
mod running;
#[allow(unsafe_code)]
mod sys;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use ktsn_cli::{generate, installed, output};
use ktsn_traffic::plain;

const EXAMPLE: &str = "Example:\n  ktsn run --with-daemon eth0 -- ./controller";

/// Exact transmit times for programs that use SO_TXTIME.
#[derive(Parser, Clone, Debug)]
#[command(name = "ktsn", version)]
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
    Status(cmd::status::StatusArgs),
    Top(cmd::top::TopArgs),
    Schedule(cmd::schedule::ScheduleArgs),
    Doctor(cmd::doctor::DoctorArgs),
    Debug(cmd::debug::DebugArgs),
    K8s(cmd::k8s::K8sArgs),
    Clock(cmd::clock::ClockArgs),
    Guest(cmd::guest::GuestArgs),
    #[command(hide = true)]
    Generate(generate::GenerateArgs),
}

/// The command line with the laboratory's commands, hidden or not.
fn whole(is_hidden: bool) -> clap::Command {
    Cli::command()
        .after_help(format!("{}\n{EXAMPLE}", laboratory::help()))
        .subcommands(laboratory::stubs(is_hidden))
}

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    if let Some(status) = laboratory::carry_out(&words) {
        return status;
    }
    let matches = whole(true).get_matches();
    let command = Cli::from_arg_matches(&matches).map(|cli| cli.command).unwrap_or_else(|error| error.exit());
    match command {
        Command::Run(args) => cmd::run::run(&args),
        Command::Talk(args) => cmd::talk::run(&args),
        Command::Listen(args) => cmd::listen::run(&args),
        Command::Tap(args) => cmd::tap::run(&args),
        Command::Status(args) => cmd::status::run(&args),
        Command::Top(args) => cmd::top::run(&args),
        Command::Schedule(args) => cmd::schedule::run(&args),
        Command::Doctor(args) => cmd::doctor::run(&args),
        Command::Debug(args) => cmd::debug::run(&args),
        Command::K8s(args) => cmd::k8s::run(&args),
        Command::Clock(args) => cmd::clock::run(&args),
        Command::Guest(args) => cmd::guest::run(&args),
        Command::Generate(args) => generate::run(whole(args.is_man()), &args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_of_every_help_are_shown_whole() {
        ktsn_cli::check_examples(&whole(true));
    }
}
