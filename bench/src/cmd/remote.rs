// SPDX-License-Identifier: Apache-2.0
//! `ktsn remote`: whether an experiment can run between this host and another one, over ssh.
//!
//! In: `ssh:HOST`. Out: the version there, what holds both clocks, and within which bound they agree. Exit status 0; 1 something failed;
//! 2 wrong usage; 3 no experiment is possible: no connection, another version, clocks that are not held.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use ktsn_lab::remote::clock::{self, ClockFacts, Holder};
use ktsn_lab::remote::{Guarded, Outcome, Remote, RemoteError, Target, guard};
use ktsn_lab::{LabError, control_loop, datapaths, realtime, vm_bench};
use ktsn_measure::clock::stop_on_signals;
use ktsn_time::Nanos;
use serde_json::json;

use super::observer::span;
use crate::{output, programs};

const EXAMPLES: &str = "\
Examples:
  ktsn remote check ssh:plc-2
  ktsn remote check ssh:root@192.0.2.7 --within 100us --json

ssh is used with your own configuration, keys and known hosts. It asks no question: `ssh -o BatchMode=yes HOST true` must work.

Exit status: 0 an experiment is possible; 1 something failed; 2 wrong usage;
  3 no connection, another version of ktsn, or clocks that are not held within the bound.";

/// Look whether an experiment can run between this host and another one.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RemoteArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Clone, Debug)]
enum Command {
    Check(CheckArgs),
    /// Say what holds this host's clock, as JSON.
    #[command(hide = true)]
    Clock,
    /// Run ktsn for as long as the first host lives.
    #[command(hide = true)]
    Guard(GuardArgs),
    /// Serve the second side of an experiment.
    #[command(hide = true)]
    Side {
        /// Which one.
        experiment: Experiment,
    },
}

/// An experiment with two sides.
#[derive(ValueEnum, Clone, Copy, Debug)]
enum Experiment {
    Datapaths,
    Loop,
    Vm,
    Rt,
}

/// How the other host is reached, and what its clock must hold.
#[derive(Args, Clone, Debug)]
pub(super) struct OtherArgs {
    /// How far both clocks may differ at most; there is no result beyond.
    #[arg(long, value_name = "TIME", default_value = "1us", value_parser = span)]
    pub(super) within: Nanos,
    #[command(flatten)]
    reach: ReachArgs,
}

/// How the other host is reached.
#[derive(Args, Clone, Debug)]
pub(super) struct ReachArgs {
    /// The program ktsn on the other host.
    #[arg(long, value_name = "PATH", default_value = "ktsn")]
    remote_ktsn: String,
    /// A configuration file for ssh in place of your own.
    #[arg(long, value_name = "FILE")]
    ssh_config: Option<PathBuf>,
}

impl OtherArgs {
    pub(super) fn remote(&self, target: Target) -> Remote {
        self.reach.remote(target)
    }
}

impl ReachArgs {
    pub(super) fn remote(&self, target: Target) -> Remote {
        Remote { target, ssh_config: self.ssh_config.clone(), ktsn: self.remote_ktsn.clone() }
    }
}

/// Check the connection, the version there, and both clocks.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
struct CheckArgs {
    /// The other host: ssh:HOST or ssh:USER@HOST.
    #[arg(value_name = "ssh:HOST")]
    target: Target,
    #[command(flatten)]
    other: OtherArgs,
    /// JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Clone, Debug)]
struct GuardArgs {
    /// After this time without a sign of life the program is ended.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    silence: Duration,
    /// The command takes --ready-fd, and says there that it is ready.
    #[arg(long)]
    ready: bool,
    /// Arguments of ktsn.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENT")]
    arguments: Vec<OsString>,
}

/// Carries the command out.
pub(crate) fn run(args: &RemoteArgs) -> ExitCode {
    let done = match &args.command {
        Command::Check(args) => check(args),
        Command::Clock => here(),
        Command::Guard(args) => guarded(args),
        Command::Side { experiment } => side(*experiment),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ktsn remote: {error}");
        ExitCode::from(error.exit_status())
    })
}

/// What `--version` prints.
pub(super) fn version() -> String {
    format!("ktsn {}", env!("CARGO_PKG_VERSION"))
}

fn show(text: &str) -> Result<(), RemoteError> {
    output::show(text)
        .map(drop)
        .map_err(|problem| LabError::Contents { path: "standard output".into(), problem }.into())
}

fn check(args: &CheckArgs) -> Result<ExitCode, RemoteError> {
    let remote = args.other.remote(args.target.clone());
    remote.check_version(&version())?;
    let (here, there) = (ClockFacts::here(), remote.clock()?);
    let host = args.target.to_string();
    let bound = clock::check(&here, &there, &host, args.other.within)?;
    show(&if args.json {
        let value = json!({
            "remote": host,
            "version": version(),
            "clock_bound_ns": bound.get(),
            "within_ns": args.other.within.get(),
            "here": here,
            "there": there,
        });
        format!("{value:#}\n")
    } else {
        format!(
            "{host}: {}; clocks agree within {bound} (asked for: {})\nthis host: {}\n{host}: {}\n",
            version(),
            args.other.within,
            line(&here),
            line(&there)
        )
    })?;
    Ok(ExitCode::SUCCESS)
}

fn line(facts: &ClockFacts) -> String {
    match &facts.holder {
        Holder::Chrony { source, bound_ns, .. } => {
            format!("chrony follows {source}, error at most {}", Nanos::new(*bound_ns))
        }
        Holder::Ptp4l { source, offset_ns } => {
            format!("ptp4l follows {source}, last offset {}", Nanos::new(*offset_ns))
        }
        Holder::Nothing => "nothing holds the clock".to_owned(),
    }
}

fn here() -> Result<ExitCode, RemoteError> {
    let text = serde_json::to_string(&ClockFacts::here()).unwrap_or_default();
    show(&format!("{text}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn guarded(args: &GuardArgs) -> Result<ExitCode, RemoteError> {
    let program = programs::ktsn()?;
    let guarded = Guarded {
        program: &program,
        arguments: &args.arguments,
        says_ready: args.ready,
        silence_max: args.silence,
    };
    Ok(match guard(&guarded)? {
        Outcome::Done => ExitCode::SUCCESS,
        Outcome::Abandoned => {
            eprintln!("ktsn remote guard: the first host is gone");
            ExitCode::FAILURE
        }
    })
}

/// Serves the first host's questions; what this machine has set up for them ends with it.
fn side(experiment: Experiment) -> Result<ExitCode, RemoteError> {
    stop_on_signals();
    let tools = programs::tools()?;
    match experiment {
        Experiment::Datapaths => datapaths::far::serve()?,
        Experiment::Loop => control_loop::far::serve(&tools)?,
        Experiment::Vm => vm_bench::serve(&tools)?,
        Experiment::Rt => realtime::serve()?,
    }
    Ok(ExitCode::SUCCESS)
}
