// SPDX-License-Identifier: Apache-2.0
//! `ktsnd`: reads its command line and configuration, then runs the daemon until SIGTERM.
#![forbid(unsafe_code)]

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, ValueEnum as _};
use ktsn_pages::Kind;
use ktsnd::config::{Config, attach_keys, parse_attach};
use ktsnd::daemon::{self, Options};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

fn after_help() -> String {
    let keys = attach_keys();
    format!("Keys of --attach (docs/interfaces.md says what each means): {keys}.\n\n{EXAMPLES}")
}

const EXAMPLES: &str = "\
Examples:
  Serve what is written in /etc/ktsn/ktsnd.toml:
    ktsnd
  Start the next ktsnd while this one runs; it takes the run directory over when this one ends:
    ktsnd --take-over 600
  Serve one namespace without a file; remote pods behind one VXLAN peer:
    ktsnd --run-dir /run/ktsn-test --attach pod-a:eth0,uplink=eth1,local=192.168.50.1,\\
peer=10.244.1.0/24@192.168.50.2@02:00:00:00:00:02

Environment:
  KTSN_RUN_DIR     run directory when --run-dir is not given (default /run/ktsn)
  KTSN_CACHE_DIR   where ktsnd keeps how late this machine's sleeps end, for the next ktsnd, when the configuration
                   has no cache_dir (default /var/lib/ktsn)
  KTSN_TAKE_OVER   seconds to wait for the end of another ktsnd when --take-over is not given

SIGTERM and SIGINT drain: nothing new is taken, queued frames are sent, then ktsnd ends.
Exit status: 0 drained, 1 failed while running, 2 wrong usage or configuration.";

/// Sends the frames of attached programs at their transmit times.
#[derive(Debug, Parser)]
#[command(name = "ktsnd", version, after_help = after_help())]
struct Arguments {
    /// Configuration file; without it /etc/ktsn/ktsnd.toml is read if it is there
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory for sockets, lock and state [default: the configuration's run_dir, else KTSN_RUN_DIR, else /run/ktsn]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Attach a pod interface: NETNS is a name of `ip netns` or a path such as /proc/PID/ns/net; may be given several
    /// times
    #[arg(long, value_name = "NETNS:IFACE[,key=value…]")]
    attach: Vec<String>,
    /// Wait up to so many seconds (1 to 86400) for the end of a ktsnd that uses the run directory, and then serve at once
    /// [default: KTSN_TAKE_OVER, else such a ktsnd is an error]
    #[arg(long, value_name = "SECONDS")]
    take_over: Option<String>,
    /// error, warn, info, debug or trace; or a filter such as ktsnd=debug
    #[arg(long, default_value = "info", value_name = "LEVEL")]
    log: String,
    /// The process that removes the run directory; ktsnd removes it when that process is gone
    #[arg(long, value_name = "PID", hide = true)]
    run_dir_of: Option<u32>,
    /// Write the manual page or the completions into DIR, and end
    #[arg(long, num_args = 2, value_names = ["man|completions", "DIR"], hide = true)]
    generate: Option<Vec<String>>,
}

/// The filter of `--log`. A word that is no level would be a target of which everything is logged, and nothing else.
fn filter_of(text: &str) -> Result<Targets, String> {
    let expected = |problem: &str| {
        format!(
            "{problem}; expected the level error, warn, info, debug or trace, or targets with theirs (ktsnd=debug,warn)"
        )
    };
    let is_level = |part: &&str| part.contains('=') || part.trim().parse::<LevelFilter>().is_ok();
    match text.split(',').find(|part| !is_level(part)) {
        Some(part) => Err(expected(&format!("{part:?} is no level"))),
        None => text.parse().map_err(|error| expected(&format!("{error}"))),
    }
}

fn main() -> ExitCode {
    ktsnd::supervise::abort_on_panic();
    let arguments = Arguments::parse();
    if let Some([kind, directory]) = arguments.generate.as_deref() {
        return generate(kind, directory.as_ref());
    }
    let filter = match filter_of(&arguments.log) {
        Ok(filter) => filter,
        Err(error) => return wrong(&format!("--log: {:?}: {error}", arguments.log)),
    };
    // Colours are for a terminal: a file or a journal would keep their codes.
    let is_coloured =
        std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|no| no.is_empty());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_ansi(is_coloured);
    tracing_subscriber::registry().with(lines).with(filter).init();
    let mut config = match read(arguments.config.as_deref()) {
        Ok(config) => config,
        Err(message) => return wrong(&message),
    };
    for text in &arguments.attach {
        match parse_attach(text) {
            Ok(attachment) => {
                config.required.push(attachment.name.clone());
                config.attachments.push(attachment);
            }
            Err(error) => return wrong(&error.to_string()),
        }
    }
    let run_dir = arguments
        .run_dir
        .or_else(|| config.daemon.run_dir.clone())
        .or_else(|| std::env::var_os("KTSN_RUN_DIR").map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("/run/ktsn"));
    let cache_dir = config
        .daemon
        .cache_dir
        .clone()
        .or_else(|| std::env::var_os("KTSN_CACHE_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from))
        .unwrap_or_else(|| PathBuf::from("/var/lib/ktsn"));
    let take_over = match take_over(arguments.take_over.as_deref()) {
        Ok(take_over) => take_over,
        Err(message) => return wrong(&message),
    };
    match daemon::run(config, &Options { run_dir, cache_dir, run_dir_of: arguments.run_dir_of, take_over }) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ktsnd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the package installs beside ktsnd.
fn generate(kind: &str, directory: &Path) -> ExitCode {
    let Ok(kind) = Kind::from_str(kind, false) else {
        return wrong(&format!("--generate: {kind:?}: give man or completions"));
    };
    match ktsn_pages::write(Arguments::command(), kind, 8, directory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!(
                "ktsnd: --generate: {}: {error}; give a directory that can be written",
                directory.display()
            );
            ExitCode::FAILURE
        }
    }
}

/// Longest wait for another ktsnd.
const TAKE_OVER_SECONDS_MAX: u64 = 86_400;

/// How long to wait for the end of another ktsnd.
fn take_over(option: Option<&str>) -> Result<Option<Duration>, String> {
    let variable = std::env::var("KTSN_TAKE_OVER").ok().filter(|text| !text.is_empty());
    let (name, text) = match (option, variable.as_deref()) {
        (Some(text), _) => ("--take-over", text),
        (None, Some(text)) => ("KTSN_TAKE_OVER", text),
        (None, None) => return Ok(None),
    };
    match text.parse() {
        Ok(seconds @ 1..=TAKE_OVER_SECONDS_MAX) => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(format!("{name}: {text:?}: expected whole seconds, 1 to {TAKE_OVER_SECONDS_MAX}")),
    }
}

fn wrong(message: &str) -> ExitCode {
    eprintln!("ktsnd: {message}");
    ExitCode::from(2)
}

fn read(path: Option<&Path>) -> Result<Config, String> {
    let default = Path::new("/etc/ktsn/ktsnd.toml");
    let file = path.unwrap_or(default);
    match std::fs::read_to_string(file) {
        Ok(text) => Config::parse(&text).map_err(|e| format!("{}: {e}", file.display())),
        Err(error) if path.is_none() && error.kind() == std::io::ErrorKind::NotFound => Ok(Config::default()),
        Err(error) => Err(format!("--config {}: {error}", file.display())),
    }
}
