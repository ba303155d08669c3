// SPDX-License-Identifier: Apache-2.0
//! `ktsn clock follow`: the guest's side.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use ktsn_clock::follower::{Backward, Settings, State};
use ktsn_clock::guest::{Areas, DEVICES};
use ktsn_clock::kernel;
use ktsn_clock::page::Leap;
use ktsn_clock::servo::Servo;
use ktsn_clock::session::{Look, Session};
use ktsn_time::Nanos;
use ktsn_traffic::clock;

use super::status::{self, Snapshot};
use crate::output::{self, Written};

const EXAMPLES: &str = "\
Examples:
  ktsn clock follow --discipline self
  ktsn clock follow --discipline chrony --chrony-socket /run/chrony.ktsn.sock
  ktsn clock follow --discipline none --json

chrony takes the samples by `refclock SOCK /run/chrony.ktsn.sock refid VPTP poll 0` in its configuration.

The guest needs the two ivshmem devices that `ktsn vm run --clock vptp` gives it (`ktsn clock publish --help`), and root. The clock is not \
set back after the start: when the host's clock was, it runs slower until both agree.";

/// Follow the host's clock, in a guest.
#[derive(Args, Clone, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FollowArgs {
    /// The page's file, instead of the devices.
    #[arg(long, value_name = "FILE", requires = "exchange")]
    page: Option<PathBuf>,
    /// The exchange area's file, instead of the devices.
    #[arg(long, value_name = "FILE", requires = "page")]
    exchange: Option<PathBuf>,
    /// What steers this system's clock.
    #[arg(long, default_value = "none")]
    discipline: Discipline,
    /// chrony's socket of the kind SOCK, which gets a sample each second.
    #[arg(long, value_name = "PATH", required_if_eq("discipline", "chrony"))]
    chrony_socket: Option<PathBuf>,
    /// After the host's clock was set back: run slower, or stand (as nearly as the kernel can: 10 % slower) until both agree.
    #[arg(long, default_value = "slew")]
    backward: Setback,
    /// How much slower, in parts per million.
    #[arg(long, default_value_t = 500.0, value_name = "PPM")]
    slew: f64,
    /// At the start, too, the clock is not set back.
    #[arg(long)]
    no_initial_step: bool,
    /// Where the state is kept for `ktsn clock status`.
    #[arg(long, default_value = status::FILE, value_name = "FILE")]
    status: PathBuf,
    /// A line of JSON each second.
    #[arg(long)]
    json: bool,
    /// Only events, no line each second.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
    /// Stop after this time [default: on SIGINT or SIGTERM].
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
}

/// What steers the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Discipline {
    /// Nothing: the host's time is only shown.
    None,
    /// This command.
    #[value(name = "self")]
    Own,
    /// chrony, which gets the samples.
    Chrony,
}

impl Discipline {
    const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Own => "self",
            Self::Chrony => "chrony",
        }
    }
}

/// After the host's clock was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Setback {
    /// Run slower.
    Slew,
    /// Stand.
    Hold,
}

/// chrony's socket. chronyd makes it, and may be started later or again.
struct ChronySocket<'a> {
    socket: UnixDatagram,
    path: &'a Path,
    fed_at: Option<Instant>,
}

/// What chronyd knows a sample by: "SOCK".
const CHRONY_MAGIC: i32 = 0x534f_434b;
const FEED_EVERY: Duration = Duration::from_millis(240);

impl ChronySocket<'_> {
    /// Sends a sample: at `CLOCK_REALTIME` the clock had to be moved by `offset`.
    fn feed(&mut self, look: &Look, leap: Leap) {
        let (Some(offset), State::Following) = (look.offset, look.state) else { return };
        if self.fed_at.is_some_and(|fed_at| fed_at.elapsed() < FEED_EVERY) {
            return;
        }
        let at = i64::try_from(look.pair.time.0).unwrap_or(i64::MAX);
        // The sample has microseconds: the offset belongs to that instant, within the clock's drift in one.
        let (seconds, micros) = (at / 1_000_000_000, at % 1_000_000_000 / 1000);
        let leap = match leap {
            Leap::InsertAhead => 1_i32,
            Leap::DeleteAhead => 2,
            _ => 0,
        };
        let sample = [
            &seconds.to_ne_bytes()[..],
            &micros.to_ne_bytes(),
            &(offset.get() as f64 * 1e-9).to_ne_bytes(),
            &0_i32.to_ne_bytes(),
            &leap.to_ne_bytes(),
            &0_i32.to_ne_bytes(),
            &CHRONY_MAGIC.to_ne_bytes(),
        ]
        .concat();
        if self.socket.send_to(&sample, self.path).is_ok() {
            self.fed_at = Some(Instant::now());
        }
    }
}

pub(super) fn run(args: &FollowArgs) -> anyhow::Result<ExitCode> {
    let share = args.slew * 1e-6;
    if !(1e-6..=0.0995).contains(&share) {
        anyhow::bail!("--slew {}: expected 1 to 99500", args.slew);
    }
    let backward = match args.backward {
        Setback::Slew => Backward::Slew(share),
        Setback::Hold => Backward::Hold,
    };
    let areas = match (&args.page, &args.exchange) {
        (Some(page), Some(exchange)) => Areas::open(page, exchange)?,
        _ => Areas::find(Path::new(DEVICES))?,
    };
    let servo = (args.discipline == Discipline::Own)
        .then(|| kernel::state().map(|state| Servo::new(backward, !args.no_initial_step, state.rate)))
        .transpose()?;
    let mut session = Session::new(areas, Settings { backward, ..Settings::default() }, servo);
    let mut socket = match &args.chrony_socket {
        Some(path) => Some(ChronySocket { socket: UnixDatagram::unbound()?, path, fed_at: None }),
        None => None,
    };
    let mut snapshot = Snapshot::new(args.discipline.name());
    let _alone = alone(&args.status)?;
    // A place that is wrong is said at the start.
    snapshot.write(&args.status)?;
    let began = Instant::now();
    let (mut shown, mut state, mut complained) = (None, None, false);
    while !clock::stop_requested() && args.duration.is_none_or(|duration| began.elapsed() < duration) {
        let look = session
            .look()
            .map_err(|error| anyhow::anyhow!("the kernel's clock: {error}; steering it needs root"))?;
        if let Some(socket) = &mut socket {
            socket.feed(&look, session.follower().page().map_or(Leap::None, |page| page.leap));
        }
        snapshot.take(&session, &look);
        for event in &look.events {
            eprintln!("ktsn clock: {event}");
        }
        if let Some(by) = look.stepped {
            eprintln!("ktsn clock: CLOCK_REALTIME was stepped by {}", Seconds(by));
        }
        let is_other = state.replace(look.state) != Some(look.state);
        if is_other {
            eprintln!("ktsn clock: {}", look.state.name());
        }
        let is_due = shown.is_none_or(|shown: Instant| shown.elapsed() >= Duration::from_secs(1));
        if is_due || is_other || !look.events.is_empty() {
            shown = Some(Instant::now());
            let (kept, said) = (snapshot.write(&args.status), show(args, &snapshot));
            let problem = match (kept, said) {
                (_, Ok(Written::NoReader)) => break,
                (Err(problem), _) | (_, Err(problem)) => Some(problem),
                _ => None,
            };
            let has_problem = problem.is_some();
            if let Some(problem) = problem.filter(|_| !complained) {
                eprintln!("ktsn clock: {problem}; the clock is followed all the same");
            }
            complained = has_problem;
        }
        std::thread::sleep(session.nap());
    }
    snapshot.write(&args.status)?;
    Ok(ExitCode::SUCCESS)
}

/// Keeps a second follower, which would steer against this one, away from the same status.
fn alone(status: &Path) -> anyhow::Result<File> {
    let said = |problem: String| anyhow::anyhow!("--status {}: {problem}", status.display());
    if let Some(directory) = status.parent() {
        std::fs::create_dir_all(directory).map_err(|error| said(error.to_string()))?;
    }
    let lock = File::options().create(true).truncate(false).write(true).open(status.with_extension("lock"));
    let lock = lock.map_err(|error| said(error.to_string()))?;
    lock.try_lock()
        .map_err(|_| said("another `ktsn clock follow` works; end it, or name another file".to_owned()))?;
    Ok(lock)
}

/// The line of a second, if one is wanted.
fn show(args: &FollowArgs, snapshot: &Snapshot) -> anyhow::Result<Written> {
    let line = match args.json {
        true => snapshot.json(),
        false if args.quiet => return Ok(Written::Whole),
        false => snapshot.line(),
    };
    output::show(&format!("{line}\n")).map_err(anyhow::Error::msg)
}

/// A span in seconds, with its sign.
struct Seconds(Nanos);

impl std::fmt::Display for Seconds {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{:+.9} s", self.0.get() as f64 * 1e-9)
    }
}
