// SPDX-License-Identifier: Apache-2.0
//! `ktsn clock`: a guest's clock that follows its host's (vPTP).
//!
//! In: the page and the exchange area, as files on the host and as devices in the guest. Out: the page; the guest's time, its error and its
//! bound, as lines, JSON and Prometheus text. Exit status: 0 done, 1 failed, 2 wrong usage, 3 not possible here.

mod follow;
mod publish;
mod status;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use ktsn_traffic::clock;

pub(crate) use status::Snapshot;

/// What a `ktsn clock follow` on this machine says; `None`: there is none.
pub(crate) fn follower() -> Option<Snapshot> {
    Snapshot::read(Path::new(status::FILE)).ok()
}

const EXAMPLES: &str = "\
Examples:
  ktsn clock publish --page /dev/shm/guest1.page --exchange /dev/shm/guest1.exchange # on the host
  ktsn clock follow --discipline self                                               # in the guest
  ktsn clock status

`ktsn vm run --clock vptp` does all of that for a throw-away guest.";

/// Let a guest's clock follow its host's, through shared memory.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClockArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Publish(publish::PublishArgs),
    Follow(follow::FollowArgs),
    Status(status::StatusArgs),
    Sample(status::SampleArgs),
}

/// Carries the command out.
pub(crate) fn run(args: &ClockArgs) -> ExitCode {
    clock::stop_on_signals();
    let (name, done) = match &args.command {
        Command::Publish(args) => ("publish", publish::run(args)),
        Command::Follow(args) => ("follow", follow::run(args)),
        Command::Status(args) => ("status", status::run(args)),
        Command::Sample(args) => ("sample", status::sample(args)),
    };
    done.unwrap_or_else(|failed| {
        eprintln!("ktsn clock {name}: {failed}");
        let is_missing = failed.downcast_ref::<ktsn_clock::guest::FindError>().is_some();
        ExitCode::from(if is_missing { 3 } else { 1 })
    })
}
