// SPDX-License-Identifier: Apache-2.0
//! `ktsn debug`: what a person needs who looks into a fault on another machine.
//!
//! In: a subcommand. Out: what it says. Exit status 0 done, 1 failed.

mod bundle;
mod facts;
mod redact;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// Collect what is needed to look into a fault.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Example:\n  ktsn debug bundle -o bundle.tar.gz")]
pub(crate) struct DebugArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Bundle(bundle::BundleArgs),
}

/// Does what the subcommand says.
pub(crate) fn run(args: &DebugArgs) -> ExitCode {
    match &args.command {
        Command::Bundle(args) => bundle::run(args),
    }
}
