// SPDX-License-Identifier: Apache-2.0
//! A program with a ktsnd of its own.
//!
//! In: the program's command, the interface. Out: the program's exit status. ktsnd lives in a process group of its
//! own (the terminal's Ctrl-C is the program's), ends by SIGTERM, which drains, after the program; it also ends when
//! this process is killed. Its log and sockets lie in a directory that is removed afterwards, so `ktsn run` says what it did not send.

mod asked;
mod left;
mod watch;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ktsn_proto::v1::StatisticsReply;
use ktsn_wire::MacAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::unserved;
use crate::sys::{self, Signals};
use crate::{control, installed, running};
use asked::{health, statistics};
use watch::Watch;

/// The longest wait for ktsnd to serve.
const READY_MAX: Duration = Duration::from_secs(5);
/// The longest wait for ktsnd to drain: the default horizon of a transmit time, and a little.
const DRAIN_MAX: Duration = Duration::from_secs(12);
/// Who still sends so long after the program's end is not waited for.
const GOES_ON: Duration = Duration::from_millis(500);
/// How much of ktsnd's log an error shows.
const LOG_LINES: usize = 12;

/// Passed on to the program. The first three also end the wait for ktsnd.
const FORWARDED: [i32; 8] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

/// Why there is no exit status of the program.
#[derive(Debug)]
pub(super) enum Failed {
    /// The program could not be started.
    Program(io::Error),
    /// ktsnd does not serve, or could not be looked after.
    Daemon(String),
    /// There is no ktsnd to start.
    NotPossible(installed::Missing),
}

/// Runs the program beside a ktsnd; `run_dir` = `None` for a directory that lives as long as they do. `receive`: the attachment's,
/// unless `attach` names one.
pub(super) fn run(
    program: &mut Command,
    attach: &str,
    run_dir: Option<&Path>,
    receive: Option<&str>,
) -> Result<u8, Failed> {
    let executable = installed::daemon().map_err(Failed::NotPossible)?;
    let io_failed = |what: &str| {
        let what = what.to_owned();
        move |error: io::Error| Failed::Daemon(format!("{what}: {error}"))
    };
    let place =
        Place::take(run_dir).map_err(io_failed("cannot make a run directory; give one with --run-dir"))?;
    let signals = Signals::hold(&FORWARDED).map_err(io_failed("signals"))?;
    let mut daemon = Daemon::start(&executable, &attach_flag(attach, receive), &place, &signals)
        .map_err(io_failed("ktsnd"))?;
    let warned = daemon.wait_until_serving(&place.run_dir, &signals)?;
    program.env("KTSN_RUN_DIR", &place.run_dir);
    signals.unhold_in(program);
    left::adopt().map_err(io_failed("prctl(PR_SET_CHILD_SUBREAPER)"))?;
    let mut child = program.spawn().map_err(Failed::Program)?;
    let watch = Watch::new(&place.run_dir, daemon.child.id(), warned);
    let status =
        look_after(&mut child, &mut daemon, &signals, watch).map_err(io_failed("waiting for the program"));
    // A program that goes to the background ends well.
    if matches!(status, Ok(0)) {
        left::wait(&mut daemon, &signals);
    }
    daemon.tell_unserved(&place.run_dir, receive == Some("expect"));
    daemon.drain();
    status
}

/// Forwards signals until the program ends, and warns once where the kernel sends all of its timed frames.
fn look_after(
    child: &mut Child,
    daemon: &mut Daemon,
    signals: &Signals,
    mut watch: Watch<'_>,
) -> io::Result<u8> {
    let ended = pidfd_of(child)?;
    let mut reported = false;
    loop {
        let mut watched = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&ended, PollFlags::IN),
            PollFd::new(&daemon.ended, PollFlags::IN),
        ];
        // A daemon that is gone stays readable: once is enough.
        watched.truncate(if reported { 2 } else { 3 });
        match poll(&mut watched, watch.pause().as_ref()) {
            Ok(0) => watch.look(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        while let Some(arrived) = signals.next() {
            if !arrived.by_terminal {
                sys::send_signal(child, arrived.signal);
            }
        }
        if let Some(status) = child.try_wait()? {
            return Ok(status_number(status));
        }
        if !reported && let Some(status) = daemon.child.try_wait()? {
            reported = true;
            eprintln!(
                "ktsn run: ktsnd ended before the program ({status}); its timed sends are dropped as daemon_absent. \
                 Its log:\n{}",
                daemon.last_lines()
            );
        }
    }
}

/// The program's own status, or 128 + the signal that ended it.
fn status_number(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(number).unwrap_or(1)
}

fn pidfd_of(child: &Child) -> io::Result<OwnedFd> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// A run directory; our own one goes when this goes.
#[derive(Debug)]
struct Place {
    run_dir: PathBuf,
    is_ours: bool,
}

impl Place {
    fn take(named: Option<&Path>) -> io::Result<Self> {
        if let Some(named) = named {
            std::fs::create_dir_all(named)?;
            return Ok(Self { run_dir: named.to_owned(), is_ours: false });
        }
        let mut result = Err(io::ErrorKind::NotFound.into());
        for parent in running::parents() {
            for number in 0..100 {
                let run_dir = parent.join(format!("{}{}.{number}", running::PREFIX, std::process::id()));
                // `create` fails on what is there, so no other process can have prepared the directory.
                match std::fs::DirBuilder::new().mode(0o700).create(&run_dir) {
                    Ok(()) => {
                        // The program may have become another user by the time it connects.
                        std::fs::set_permissions(&run_dir, std::fs::Permissions::from_mode(0o755))?;
                        return Ok(Self { run_dir, is_ours: true });
                    }
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => {
                        result = Err(error);
                        break;
                    }
                }
            }
        }
        result
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_ours {
            let _ = std::fs::remove_dir_all(&self.run_dir);
        }
    }
}

/// A ktsnd that is our child.
#[derive(Debug)]
struct Daemon {
    child: Child,
    ended: OwnedFd,
    log: PathBuf,
    /// Where its log begins in the file.
    log_begin: usize,
}

impl Daemon {
    fn start(executable: &Path, attach: &str, place: &Place, signals: &Signals) -> io::Result<Self> {
        let run_dir = &place.run_dir;
        // The account at the end is of this run alone.
        let _ = std::fs::remove_file(run_dir.join("counters.json"));
        let log = run_dir.join("ktsnd.log");
        // A named directory may hold the log of an earlier or, by mistake, of another daemon.
        let output = File::options().append(true).create(true).open(&log)?;
        let log_begin = usize::try_from(output.metadata()?.len()).unwrap_or(usize::MAX);
        let mut command = Command::new(executable);
        command
            // The node's own configuration is not for this one.
            .args(["--config", "/dev/null"])
            .arg("--run-dir")
            .arg(run_dir)
            .arg("--attach")
            .arg(attach)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        if let Some(dir) = cache_dir() {
            command.env("KTSN_CACHE_DIR", dir);
        }
        if place.is_ours {
            // Where we are killed, we cannot remove it.
            command.args(["--run-dir-of", &std::process::id().to_string()]);
        }
        signals.unhold_in(&mut command);
        sys::end_with_us(&mut command);
        let child = command.spawn()?;
        let ended = pidfd_of(&child)?;
        Ok(Self { child, ended, log, log_begin })
    }

    /// Returns when Health says so, with its warnings, which were shown.
    fn wait_until_serving(&mut self, run_dir: &Path, signals: &Signals) -> Result<Vec<String>, Failed> {
        let begin = Instant::now();
        let runtime = control::runtime().map_err(|error| Failed::Daemon(error.to_string()))?;
        let mut last = String::from("it does not answer");
        while begin.elapsed() < READY_MAX {
            match runtime.block_on(health(run_dir, self.child.id())) {
                Ok(reply) if reply.serving => {
                    for warning in &reply.warnings {
                        eprintln!("ktsn run: ktsnd: warning: {warning}");
                    }
                    return Ok(reply.warnings);
                }
                Ok(_) => last = String::from("it answers that it does not serve yet"),
                Err(error) => last = error,
            }
            let tick = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
            let mut watched = [PollFd::new(&self.ended, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            let _ = poll(&mut watched, Some(&tick));
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Failed::Daemon(format!(
                    "ktsnd did not start ({status}):\n{}",
                    self.last_lines()
                )));
            }
            if let Some(arrived) = signals.next().filter(|arrived| FORWARDED[..3].contains(&arrived.signal)) {
                self.drain();
                return Err(Failed::Daemon(format!(
                    "ended by signal {} before the program started",
                    arrived.signal
                )));
            }
        }
        Err(Failed::Daemon(format!(
            "ktsnd does not serve after {} s: {last}. Its log:\n{}",
            READY_MAX.as_secs(),
            self.last_lines()
        )))
    }

    /// The end of its log, or that there is nothing.
    fn last_lines(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(text.get(self.log_begin..).unwrap_or_default());
        let lines: Vec<&str> = text.lines().collect();
        let shown: Vec<String> =
            lines[lines.len().saturating_sub(LOG_LINES)..].iter().map(|line| format!("  {line}")).collect();
        if shown.is_empty() { String::from("  (it said nothing)") } else { shown.join("\n") }
    }

    /// Says what was dropped and what the kernel sent, once what is queued has left: its counters go with it. Where something
    /// that the program left behind goes on sending, what is known by then.
    fn tell_unserved(&mut self, run_dir: &Path, expects: bool) {
        let Ok(runtime) = control::runtime() else { return };
        let (began, mut last, mut pause) = (Instant::now(), None::<StatisticsReply>, 10_000_000);
        while matches!(self.child.try_wait(), Ok(None)) {
            let Ok(now) = runtime.block_on(statistics(run_dir)) else { break };
            let waited = began.elapsed();
            let is_same = last.as_ref().is_some_and(|last| last.attachments == now.attachments);
            let goes_on = last.as_ref().is_some_and(|last| unserved::taken(last) < unserved::taken(&now));
            let is_over =
                unserved::is_settled(&now) && is_same || goes_on && waited > GOES_ON || waited > DRAIN_MAX;
            if is_over {
                let unexpected = expects.then(|| unserved::unexpected(&now)).flatten();
                for line in unserved::lines(&now).into_iter().chain(unexpected) {
                    eprintln!("ktsn run: {line}");
                }
                return;
            }
            last = Some(now);
            let tick = Timespec { tv_sec: 0, tv_nsec: pause };
            // What waits for long is not disturbed by being asked after.
            pause = (pause * 2).min(200_000_000);
            let _ = poll(&mut [PollFd::new(&self.ended, PollFlags::IN)], Some(&tick));
        }
    }

    /// Lets it send what is queued, and ends it.
    fn drain(&mut self) {
        let until = Instant::now() + DRAIN_MAX;
        sys::send_signal(&self.child, libc::SIGTERM);
        loop {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let left = Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(1),
                tv_nsec: left.subsec_nanos().into(),
            };
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.ended.as_fd(), PollFlags::IN)], Some(&left));
        }
        eprintln!("ktsn run: ktsnd did not drain within {} s and was killed", DRAIN_MAX.as_secs());
        self.end();
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Already waited for after `drain`: then nothing is sent.
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}

/// `--attach` for our own namespace: the interface is its own uplink, and everything may be sent to, unless the user
/// says otherwise (the program and its daemon belong to one user here).
fn attach_flag(text: &str, receive: Option<&str>) -> String {
    let (interface, keys) = text.split_once(',').unwrap_or((text, ""));
    let has = |name: &str| keys.split(',').any(|key| key.split('=').next() == Some(name));
    let mut flag = format!("/proc/{}/ns/net:{interface}", std::process::id());
    let mut add = |key: &str| {
        flag.push(',');
        flag.push_str(key);
    };
    if !has("name") {
        add(&format!("name=run/{interface}"));
    }
    if !has("uplink") {
        add(&format!("uplink={interface}"));
    }
    // MAC addresses leave the other kind open.
    let has_prefix = keys.split(',').filter_map(|key| key.strip_prefix("destination=")).any(|to| !is_mac(to));
    if !has_prefix && !has("peer") {
        add("destination=0.0.0.0/0");
        add("destination=::/0");
    }
    // Whoever may change this interface's addresses may change the daemon's interface.
    if !has("address") {
        add("address=interface");
    }
    if let Some(receive) = receive.filter(|_| !has("receive")) {
        add(&format!("receive={receive}"));
    }
    if !keys.is_empty() {
        add(keys);
    }
    flag
}

/// Where the user's programs keep what they can learn again; `None` where `KTSN_CACHE_DIR` names a place, or the user has none.
fn cache_dir() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if named("KTSN_CACHE_DIR").is_some() {
        return None;
    }
    let cache = named("XDG_CACHE_HOME").or_else(|| named("HOME").map(|home| home.join(".cache")))?;
    // A ktsnd of root's makes no directory in another user's place.
    let there = cache.ancestors().find_map(|place| place.metadata().ok())?;
    let is_own = there.uid() == rustix::process::geteuid().as_raw();
    (cache.is_absolute() && is_own).then(|| cache.join("ktsn"))
}

/// Whether this is a MAC address, as ktsnd reads one: six pairs of hexadecimal digits.
fn is_mac(text: &str) -> bool {
    text.parse::<MacAddress>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mac_address_does_not_close_ip() {
        for (keys, is_open) in [
            ("destination=02:00:00:00:00:02", true),
            ("destination=01-80-C2-00-00-0E", true),
            ("destination=02:00:00:00:00:02,destination=10.0.0.0/8", false),
            ("destination=fd00::/8", false),
            ("destination=fe80::1", false),
            ("horizon=1s", true),
        ] {
            let flag = attach_flag(&format!("eth0,{keys}"), None);
            assert_eq!(flag.contains("destination=0.0.0.0/0,destination=::/0"), is_open, "{flag}");
        }
    }

    #[test]
    fn defaults_give_way_to_keys() {
        let own = format!("/proc/{}/ns/net", std::process::id());
        assert_eq!(
            attach_flag("eth0", None),
            format!(
                "{own}:eth0,name=run/eth0,uplink=eth0,destination=0.0.0.0/0,destination=::/0,address=interface"
            )
        );
        assert_eq!(
            attach_flag("e,uplink=u,destination=10.0.0.0/8,name=n", None),
            format!("{own}:e,address=interface,uplink=u,destination=10.0.0.0/8,name=n")
        );
        assert!(attach_flag("e,address=10.0.0.1", None).ends_with(",address=10.0.0.1"));
        assert!(!attach_flag("e,address=10.0.0.1", None).contains("interface"));
        assert!(attach_flag("e", Some("expect")).ends_with(",receive=expect"));
        let named = attach_flag("e,receive=kernel", Some("expect"));
        assert!(named.ends_with(",receive=kernel") && !named.contains("expect"), "{named}");
    }

    #[test]
    fn statuses_are_those_of_shells() {
        assert_eq!(status_number(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(status_number(ExitStatus::from_raw(15)), 143);
        assert_eq!(status_number(ExitStatus::from_raw(0)), 0);
    }

    #[test]
    fn an_own_place_goes_and_a_named_one_stays() {
        let first = Place::take(None).unwrap();
        let second = Place::take(None).unwrap();
        assert_ne!(first.run_dir, second.run_dir);
        let path = first.run_dir.clone();
        std::fs::write(path.join("ktsnd.log"), "x").unwrap();
        drop(first);
        assert!(!path.exists());
        let dir = tempfile::tempdir().unwrap();
        drop(Place::take(Some(dir.path())).unwrap());
        assert!(dir.path().exists());
    }
}
