// SPDX-License-Identifier: Apache-2.0
//! `ktsn run`: a program under libktsn.
//!
//! In: the program and its arguments, untouched. Out: its exit status. Without `--with-daemon` this process becomes
//! the program; with it a ktsnd of its own lives exactly as long as the program (`with_daemon`).

use std::ffi::{OsStr, OsString};
use std::io;
use std::ops::RangeInclusive;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ktsn_host::find_program;

use super::with_daemon::{self, Failed};
use crate::doctor::habits;
use crate::doctor::program::{self, Obstacle};
use crate::{control, installed};

/// `sun_path` without its NUL, less the client socket's name: a longer directory cannot be connected to.
const RUN_DIR_OCTETS_MAX: usize = 107 - "/client/ktsn.sock".len();

/// What shells return for a program that is not there.
const NOT_FOUND: u8 = 127;
/// What shells return for a program that cannot be executed.
const NOT_EXECUTABLE: u8 = 126;

/// What happens to timed sends while no daemon was ever there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// The kernel sends them, with one warning.
    Kernel,
    /// They fail.
    Strict,
}

/// How sends are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Capture {
    /// By libktsn.so, preloaded.
    Preload,
    /// By the kernel, at the host end of the pod's veth: for static and Go programs (docs/guide/capture.md).
    Kernel,
}

/// How the program waits for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Receive {
    /// As the kernel has it: a thread that waits sleeps until the frame is there.
    Kernel,
    /// A thread that waits is awake when a periodic frame is expected, where ktsnd grants it (docs/guide/configuration.md).
    Expect,
}

impl Receive {
    /// The word in `KTSN_RECEIVE`, and in an attachment's `receive`.
    const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Expect => "expect",
        }
    }
}

const EXAMPLES: &str = "\
Examples:
  ktsn run -- ./controller --cycle 1ms
  ktsn run --receive expect -- ./listener --port 5000
  ktsn run --receive expect --receive-period 1ms -- ./listener --port 5000
  ktsn run --with-daemon eth0 --receive expect -- ktsn listen 5000 --count 1000
  ktsn run --policy strict -- python3 send.py
  ktsn run --emulate-hwtstamp -- ./talker --interface eth0
  ktsn run --capture kernel -- ./static-go-program
  ktsn run --with-daemon eth0 -- ktsn talk 192.0.2.7:5000 --count 1000
  ktsn run --with-daemon eth0,destination=192.0.2.0/24,late=drop -- ./controller

With --with-daemon, standard error gets a line at the end for each reason why frames were dropped, or passed to the kernel
instead of being sent by ktsnd; and a warning at once where all timed frames go to the kernel.

Exit status: the program's; with --with-daemon 128+N if signal N ended it.
  127 the program is not found; 126 it cannot be executed;
  1 the daemon of its own did not start; 2 wrong usage; 3 not possible here.";

/// Run a program so that its SO_TXTIME sends leave on time.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// Directory of the ktsnd to use [default: KTSN_RUN_DIR, else /run/ktsn].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// What timed sends do where no ktsnd serves the program [default: KTSN_POLICY, else kernel].
    #[arg(long)]
    policy: Option<Policy>,
    /// How sends are seen.
    #[arg(long, default_value = "preload")]
    capture: Capture,
    /// How blocking receives wait for periodic frames [default: KTSN_RECEIVE, else kernel]. expect needs an attachment
    /// with receive = \"expect\"; --with-daemon makes its attachment so.
    #[arg(long)]
    receive: Option<Receive>,
    /// The period of what the program receives, 50us to 10s: it is expected one datagram sooner [default:
    /// KTSN_RECEIVE_PERIOD, else the attachment's receive_period, else learnt]. A wrong one is learnt over.
    #[arg(long, value_name = "TIME", value_parser = receive_period)]
    receive_period: Option<Duration>,
    /// Claim hardware timestamps on the attachment's interface, for programs that refuse one without them; none are
    /// made.
    #[arg(long)]
    emulate_hwtstamp: bool,
    /// Start a ktsnd of its own for this interface, with the keys of `ktsnd --attach`; needs root. Every
    /// destination is allowed unless one is named.
    #[arg(long, value_name = "IFACE[,key=value…]")]
    with_daemon: Option<String>,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

/// Why the program was not run.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("{0}")]
    Usage(String),
    #[error("not possible here: {reason}: {what}")]
    NotPossible { reason: &'static str, what: String },
}

impl Refused {
    fn report(&self) -> ExitCode {
        eprintln!("ktsn run: {self}");
        ExitCode::from(if matches!(self, Self::Usage(_)) { 2 } else { 3 })
    }
}

/// Runs the program; comes back only with `--with-daemon` or when it could not be started.
pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let (mut command, run_dir) = match prepare(args) {
        Ok(prepared) => prepared,
        Err(refused) => return refused.report(),
    };
    let Some(attach) = &args.with_daemon else {
        let error = command.exec();
        return cannot_start(&args.program[0], &error);
    };
    let own_dir = args.run_dir.is_some().then_some(run_dir.as_path());
    let receive = args.receive.map(Receive::word);
    match with_daemon::run(&mut command, attach, own_dir, receive) {
        Ok(status) => status.into(),
        Err(Failed::Program(error)) => cannot_start(&args.program[0], &error),
        Err(Failed::Daemon(what)) => {
            eprintln!("ktsn run: {what}");
            1.into()
        }
        Err(Failed::NotPossible(missing)) => {
            Refused::NotPossible { reason: "ktsnd_missing", what: missing.to_string() }.report()
        }
    }
}

/// A period that libktsn takes.
fn receive_period(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected a time from 50us to 10s with its unit, such as 1ms";
    const BOUNDS: RangeInclusive<Duration> = Duration::from_micros(50)..=Duration::from_secs(10);
    humantime::parse_duration(text)
        .ok()
        .filter(|period| BOUNDS.contains(period))
        .ok_or_else(|| EXPECTED.to_owned())
}

/// Whether the program asks to expect datagrams, by the flag or else by its environment.
fn expects(receive: Option<Receive>) -> bool {
    match receive {
        Some(receive) => receive == Receive::Expect,
        None => std::env::var_os("KTSN_RECEIVE").is_some_and(|value| value == "expect"),
    }
}

/// The command with its environment, and the run directory it names.
fn prepare(args: &RunArgs) -> Result<(Command, PathBuf), Refused> {
    let run_dir = control::run_dir(args.run_dir.as_deref())
        .map_err(|error| Refused::Usage(format!("--run-dir: {error}; give an absolute directory")))?;
    if run_dir.as_os_str().len() > RUN_DIR_OCTETS_MAX {
        return Err(Refused::Usage(format!(
            "--run-dir {}: longer than {RUN_DIR_OCTETS_MAX} octets, which a socket's address cannot hold; give a \
             shorter directory",
            run_dir.display()
        )));
    }
    if args.capture == Capture::Kernel {
        return captured(args, &run_dir).map(|command| (command, run_dir));
    }
    let library = installed::library()
        .map_err(|missing| Refused::NotPossible { reason: "libktsn_missing", what: missing.to_string() })?;
    look_at_program(&args.program[0], args.policy, &run_dir)?;
    let mut command = Command::new(&args.program[0]);
    command
        .args(&args.program[1..])
        .env("LD_PRELOAD", preload(&library, std::env::var_os("LD_PRELOAD").as_deref()))
        .env("KTSN_RUN_DIR", &run_dir);
    if args.emulate_hwtstamp {
        command.env("KTSN_EMULATE_HWTSTAMP", "1");
    }
    if let Some(receive) = args.receive {
        command.env("KTSN_RECEIVE", receive.word());
        if receive == Receive::Expect && args.with_daemon.is_none() {
            warn_without_grant(&run_dir);
        }
    }
    if let Some(period) = args.receive_period {
        if !expects(args.receive) {
            let what =
                "--receive-period: this program expects no datagrams; add --receive expect, or leave it away";
            return Err(Refused::Usage(what.to_owned()));
        }
        command.env("KTSN_RECEIVE_PERIOD", format!("{}ns", period.as_nanos()));
    }
    match args.policy {
        Some(Policy::Kernel) => drop(command.env("KTSN_POLICY", "kernel")),
        Some(Policy::Strict) => drop(command.env("KTSN_POLICY", "strict")),
        None => {}
    }
    Ok((command, run_dir))
}

/// The program as it is: nothing is preloaded, and nothing in its environment changes but ktsnd's place.
fn captured(args: &RunArgs, run_dir: &Path) -> Result<Command, Refused> {
    if args.with_daemon.is_some() {
        let what = "--capture kernel: a ktsnd of --with-daemon runs in the program's own network namespace, and capture \
                    at the other end of its veth, in the host's; run `ktsnd --attach NETNS:INTERFACE,capture=kernel` \
                    there, and here `ktsn run --capture kernel` without --with-daemon";
        return Err(Refused::Usage(what.to_owned()));
    }
    if args.emulate_hwtstamp {
        let what = "--capture kernel: libktsn answers for --emulate-hwtstamp, and nothing is preloaded; leave one of both away";
        return Err(Refused::Usage(what.to_owned()));
    }
    if args.receive == Some(Receive::Expect) {
        let what = "--capture kernel: libktsn is what waits for --receive expect, and nothing is preloaded; leave one of both away";
        return Err(Refused::Usage(what.to_owned()));
    }
    if args.receive_period.is_some() {
        let what = "--capture kernel: libktsn is what uses --receive-period, and nothing is preloaded; leave one of both away";
        return Err(Refused::Usage(what.to_owned()));
    }
    if let Err(missing) = crate::captured::check(run_dir) {
        if is_strict(args.policy) {
            return Err(Refused::NotPossible { reason: "capture_kernel", what: missing.to_string() });
        }
        if is_told() {
            eprintln!("ktsn run: warning: capture_kernel: {missing}");
        }
    }
    let mut command = Command::new(&args.program[0]);
    command.args(&args.program[1..]).env("KTSN_RUN_DIR", run_dir);
    Ok(command)
}

/// Our library first, so that its hooks come before those of other libraries.
fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = library.as_os_str().as_bytes().to_vec();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(b':');
        value.extend_from_slice(before.as_bytes());
    }
    OsString::from_vec(value)
}

/// Warns of a program that no preloaded library can serve; under `strict` that is an error. Where kernel capture takes what it
/// sends, it needs no library.
fn look_at_program(name: &OsStr, policy: Option<Policy>, run_dir: &Path) -> Result<(), Refused> {
    // The start reports a program that is missing or unreadable.
    let Some(Ok(inspection)) = find_program(name).map(|path| program::inspect(&path)) else { return Ok(()) };
    if habits::is_ended_by_asan(inspection.names) && is_told() {
        let (meaning, remedy) = (habits::ASAN_MEANING, habits::ASAN_REMEDY);
        eprintln!("ktsn run: warning: program_asan: {}: {meaning}; {remedy}", inspection.executed.display());
    }
    let Some(obstacle) = inspection.obstacle else { return Ok(()) };
    if crate::captured::check(run_dir).is_ok() {
        return Ok(());
    }
    let what = format!("{} {obstacle}; {}", inspection.executed.display(), obstacle.remedy());
    if is_strict(policy) {
        return Err(Refused::NotPossible { reason: obstacle.word(), what });
    }
    warn(obstacle, &what);
    Ok(())
}

/// Warns where no attachment of this network namespace grants `--receive expect`. Where ktsnd cannot be asked, as it is root's to
/// ask, nothing is known and nothing said.
fn warn_without_grant(run_dir: &Path) {
    let Ok(attachments) = crate::captured::attachments_here(run_dir) else { return };
    let grants = attachments.iter().any(|attachment| attachment["receive"] == "expect");
    if !grants && is_told() {
        eprintln!(
            "ktsn run: warning: --receive expect: no attachment of this network namespace has receive = \"expect\", so the \
             program waits as the kernel has it; detach it and attach it again with receive = \"expect\", or use --with-daemon"
        );
    }
}

fn is_strict(policy: Option<Policy>) -> bool {
    match policy {
        Some(policy) => policy == Policy::Strict,
        None => std::env::var_os("KTSN_POLICY").is_some_and(|value| value == "strict"),
    }
}

fn warn(obstacle: Obstacle, what: &str) {
    if is_told() {
        eprintln!("ktsn run: warning: {}: KTSN cannot serve this program: {what}", obstacle.word());
    }
}

fn is_told() -> bool {
    std::env::var_os("KTSN_LOG").is_none_or(|value| value != "off")
}

/// Tells why the program did not start, with the status that shells use.
fn cannot_start(name: &OsStr, error: &io::Error) -> ExitCode {
    let shown = name.display();
    let (status, remedy) = match (error.kind(), find_program(name)) {
        (io::ErrorKind::NotFound, Some(path)) if path.is_file() => {
            (NOT_FOUND, "the interpreter that it names does not exist; install it".to_owned())
        }
        (io::ErrorKind::NotFound, _) => {
            (NOT_FOUND, "give the path of a program or a name on the search path (PATH)".to_owned())
        }
        (io::ErrorKind::PermissionDenied, _) => {
            (NOT_EXECUTABLE, format!("make it executable: chmod +x {shown}"))
        }
        _ => (NOT_EXECUTABLE, "give a program that this machine can execute".to_owned()),
    };
    eprintln!("ktsn run: {shown}: {error}; {remedy}");
    status.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_comes_first() {
        let library = Path::new("/a/libktsn.so");
        assert_eq!(preload(library, None), "/a/libktsn.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/a/libktsn.so");
        assert_eq!(preload(library, Some(OsStr::new("/b.so /c.so"))), "/a/libktsn.so:/b.so /c.so");
    }
}
