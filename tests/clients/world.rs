// SPDX-License-Identifier: Apache-2.0
//! Where the programs run: pods on a testbed, the daemon, a listener, and one run of a program.
//!
//! In: a program's command line and a mode. Out: what it printed and what its listener heard. It judges nothing.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use ktsn_eventually::try_eventually;
use ktsn_tests::faults::bed::{Bed, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, configuration};
use ktsn_tests::hook::{self, Running};

use crate::cases::PORT;

/// How long a program may take.
const PROGRAM_MAX: Duration = Duration::from_secs(30);
/// How long the listener waits for something that must come, and where that has no known length.
const ARRIVAL_MAX: Duration = Duration::from_secs(20);
const OPEN_MAX: Duration = Duration::from_millis(1500);
/// How long it then waits for what must not come.
const QUIET: Duration = Duration::from_millis(15);
/// Until the frames before a pause have left: they are due within 20 ms.
const BEFORE_PAUSE: Duration = Duration::from_millis(400);

/// How a program is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The kernel alone.
    Kernel,
    /// libktsn, and no daemon.
    Library,
    /// libktsn and ktsnd.
    Daemon,
    /// `ktsn run --with-daemon`, as users start a program.
    Run,
    /// libktsn, and ktsnd is killed at the pause.
    Dies,
}

impl Mode {
    /// Its name in cells.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Library => "library",
            Self::Daemon => "daemon",
            Self::Run => "run",
            Self::Dies => "dies",
        }
    }
}

/// How the programs wait for datagrams: what `ktsn run --receive` says, and the attachment's `receive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receive {
    /// As the kernel has it.
    Kernel,
    /// Awake for expected arrivals; the daemon grants it.
    Expect,
}

impl Receive {
    /// The word of `--receive` and of an attachment.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Expect => "expect",
        }
    }
}

/// What one run showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Standard output, one line each.
    pub(crate) says: Vec<String>,
    /// Standard error without the word `pause`.
    pub(crate) errors: Vec<String>,
    /// The listener's lines.
    pub(crate) heard: Vec<String>,
    /// The exit status, as text.
    pub(crate) status: String,
}

/// The testbed with its daemon.
pub(crate) struct World {
    bed: Bed,
    daemon: Option<Daemon>,
    receive: Receive,
    nowhere: tempfile::TempDir,
    listener: PathBuf,
}

impl World {
    /// Sets it up; `listener` is the steps program.
    pub(crate) fn new(listener: &Path) -> Self {
        let bed = Bed::new();
        // Refused datagrams are logged each time, not once a second.
        for key in ["net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"] {
            bed.run(&format!("ip netns exec {} sysctl -qw {key}", bed.pod_b));
        }
        Self {
            bed,
            daemon: None,
            receive: Receive::Kernel,
            nowhere: hook::open_directory(),
            listener: listener.to_owned(),
        }
    }

    fn attachment(&self) -> Attachment {
        let prefixes = [
            "10.244.0.0/16",
            "fd10:244::/62",
            "239.0.0.0/8",
            "ff05::/16",
            "02:00:00:00:99:01",
            "ff:ff:ff:ff:ff:ff",
        ];
        let attachment = Attachment::pod_a(&self.bed).to(&prefixes).by_clock();
        attachment.with(&format!("receive = \"{}\"", self.receive.word()))
    }

    /// From now on programs are run with this `--receive`, and the daemon grants what they ask for.
    pub(crate) fn set_receive(&mut self, receive: Receive) {
        if self.receive != receive {
            self.stop_daemon();
            self.receive = receive;
        }
    }

    /// How programs wait now.
    pub(crate) const fn receive(&self) -> Receive {
        self.receive
    }

    /// A cell's name: those of the run with `--receive expect` end with `/expect`.
    pub(crate) fn cell(&self, name: &str) -> String {
        match self.receive {
            Receive::Kernel => name.to_owned(),
            Receive::Expect => format!("{name}/expect"),
        }
    }

    /// The namespaces.
    pub(crate) const fn bed(&self) -> &Bed {
        &self.bed
    }

    /// A serving daemon; started if it does not run.
    pub(crate) fn daemon(&mut self) -> &Daemon {
        if self.daemon.is_none() {
            let attachment = self.attachment();
            self.daemon = Some(Daemon::start(&self.bed, &[attachment]));
        }
        self.daemon.as_ref().expect("just started")
    }

    /// A daemon whose worker runs in real time, for what is timed.
    pub(crate) fn restart_in_real_time(&mut self) {
        let text = configuration(&[self.attachment()]).replace("priority = 0", "priority = 50");
        self.daemon = None;
        let mut daemon = Daemon::prepare(&self.bed.host_a, &text);
        daemon.spawn();
        self.daemon = Some(daemon);
    }

    /// Whatever runs is killed.
    pub(crate) fn stop_daemon(&mut self) {
        self.daemon = None;
    }

    /// The environment of a mode.
    pub(crate) fn prepare(&mut self, command: &mut Command, mode: Mode) {
        if mode == Mode::Kernel {
            return;
        }
        // Without a daemon a warning is right; with one, a program that has to tell of something is a fault.
        let log = if mode == Mode::Library { "off" } else { "warn" };
        let run_dir = if mode == Mode::Library {
            self.nowhere.path().to_owned()
        } else {
            self.daemon().run_dir().to_owned()
        };
        command.env("LD_PRELOAD", hook::library()).env("KTSN_RUN_DIR", run_dir).env("KTSN_LOG", log);
        if self.receive == Receive::Expect {
            command.env("KTSN_RECEIVE", "expect");
        }
    }

    /// The program's command in a mode.
    pub(crate) fn command(&mut self, arguments: &[String], mode: Mode) -> Command {
        self.command_at(arguments, mode, None)
    }

    /// The program's command in a mode; a ktsnd of [`Mode::Run`] has this run directory.
    pub(crate) fn command_at(&mut self, arguments: &[String], mode: Mode, run_dir: Option<&Path>) -> Command {
        if mode == Mode::Run {
            let mut command = Command::new(hook::ktsn());
            // As users have it, but for the machine: a worker that comes late is not the program's fault.
            command.args(["run", "--with-daemon", "eth0,overrun_limit=10s"]);
            if let Some(run_dir) = run_dir {
                command.arg("--run-dir").arg(run_dir);
            }
            if self.receive == Receive::Expect {
                command.args(["--receive", "expect"]);
            }
            command
                .arg("--")
                .args(arguments)
                .env("KTSN_LIB", hook::library())
                .env_remove("KTSN_RUN_DIR")
                .env_remove("LD_PRELOAD");
            return command;
        }
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        self.prepare(&mut command, mode);
        command
    }

    /// Runs a program in pod A while a listener hears in another pod, until `expected` lines were heard and it is
    /// quiet.
    ///
    /// # Errors
    /// When a process cannot be run or does not end.
    pub(crate) fn run(&mut self, arguments: &[String], mode: Mode, peer: Peer<'_>) -> anyhow::Result<Seen> {
        let pod = if peer.pod == "q" { self.bed.pod_q.clone() } else { self.bed.pod_b.clone() };
        let mut listener = Listener::start(&self.listener, &pod, peer.group)?;
        let mut command = self.command(arguments, mode);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let pod_a = self.bed.pod_a.clone();
        let child = within(&pod_a, || command.spawn()).with_context(|| arguments[0].clone())?;
        let mut child = Running(child);
        let out = lines(child.0.stdout.take().context("stdout")?);
        let err = lines(child.0.stderr.take().context("stderr")?);
        let mut input = child.0.stdin.take();
        let begin = Instant::now();
        let mut errors = Vec::new();
        let status = loop {
            match err.recv_timeout(Duration::from_millis(2)) {
                Ok(line) if line == "pause" => {
                    if mode == Mode::Dies {
                        std::thread::sleep(BEFORE_PAUSE);
                        self.stop_daemon();
                    }
                    if let Some(input) = &mut input {
                        input.write_all(b"\n")?;
                    }
                }
                Ok(line) => errors.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if let Some(status) = child.0.try_wait()? {
                break status;
            }
            if begin.elapsed() > PROGRAM_MAX {
                bail!("it does not end; so far {:?} {errors:?}", out.try_iter().collect::<Vec<_>>());
            }
        };
        errors.extend(err.iter().filter(|line| line != "pause"));
        // What `ktsn run` says of its ktsnd is not the program's.
        errors.retain(|line| mode != Mode::Run || !line.starts_with("ktsn run: "));
        let heard = listener.finish(peer.expected)?;
        Ok(Seen { says: out.iter().collect(), errors, heard, status: status.to_string() })
    }
}

/// Who listens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer<'a> {
    /// `b` or `q`.
    pub(crate) pod: &'a str,
    /// A multicast group to join.
    pub(crate) group: Option<&'a str>,
    /// Number of lines that must come.
    pub(crate) expected: usize,
}

/// The lines of a pipe as they come.
pub(crate) fn lines(pipe: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
            if sender.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    receiver
}

struct Listener {
    child: Running,
    lines: Receiver<String>,
}

impl Listener {
    fn start(program: &Path, pod: &str, group: Option<&str>) -> anyhow::Result<Self> {
        let mut command = Command::new(program);
        command.args(["peer", PORT]).args(group).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child: Child = within(pod, || command.spawn()).context("listener")?;
        let lines = lines(child.stdout.take().context("stdout")?);
        let child = Running(child);
        let first = lines.recv_timeout(ARRIVAL_MAX).context("the listener does not start")?;
        anyhow::ensure!(first == "ready", "the listener says {first}");
        Ok(Self { child, lines })
    }

    /// Waits for `expected` lines, then for silence; its end empties its sockets.
    fn finish(&mut self, expected: usize) -> anyhow::Result<Vec<String>> {
        let begin = Instant::now();
        let mut heard = Vec::new();
        while heard.len() < expected {
            let most = if expected == usize::MAX { OPEN_MAX } else { ARRIVAL_MAX };
            let left = most.saturating_sub(begin.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => heard.push(line),
                Err(_) => break,
            }
        }
        std::thread::sleep(QUIET);
        drop(self.child.0.stdin.take());
        let ended = try_eventually(ARRIVAL_MAX, || self.child.0.try_wait().transpose());
        ended.context("the listener does not end")??;
        heard.extend(self.lines.iter());
        Ok(heard)
    }
}
