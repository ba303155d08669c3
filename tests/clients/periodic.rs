// SPDX-License-Identifier: Apache-2.0
//! Ordinary listeners whose datagrams come periodically, so that their arrivals are expected.
//!
//! In: programs of `programs/`, in pod A; a talker in pod B, or a child of the program on the loopback device. Out: one cell for each
//! program, call and mode. What the program prints is the kernel's, and ktsnd's counters show that the program was awake for its
//! datagrams. Where it did not ask, no daemon grants it, or it cannot be served, they show nothing. Under the measurement lock: threads of SCHED_FIFO.

use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use ktsn_tests::faults::bed::{POD_A, within};
use ktsn_tests::faults::control::Control;
use ktsn_tests::faults::try_eventually;
use ktsn_tests::hook::{self, ARRIVAL_CALLS, Libc, Running};

use crate::languages::{has, must};
use crate::programs::rustc;
use crate::report::Report;
use crate::world::{Mode, Receive, World, lines};

/// Where the programs listen.
const PORT: &str = "7200";
/// The talker's period in microseconds.
const PERIOD: &str = "1000";
/// So many arrivals at least find a program awake that expects them.
const HITS_MIN: u64 = 20;
/// How long that may take: a process that loses its CPU pauses its spinning for 10 s.
const HITS_WITHIN: Duration = Duration::from_secs(60);
/// A program that expects nothing receives for so long.
const UNEXPECTED: Duration = Duration::from_millis(200);
/// How long a program may take for its start, and for its end.
const START_MAX: Duration = Duration::from_secs(20);

/// The ways of `periodic.py`.
const PYTHON: [&str; 10] =
    ["recv", "recvfrom", "recvmsg", "read", "timeout", "select", "poll", "selectors", "asyncio", "thread"];

/// One listener.
struct Row {
    name: String,
    /// The program that must be on the path, and the word in the list of skips.
    needs: (&'static str, &'static str),
    script: String,
    /// Its datagrams come from a child of its own, until its standard input ends.
    talks: bool,
    /// It is run in every mode, not beside the daemon alone.
    is_whole: bool,
    /// Its arrivals are expected where the daemon grants it.
    is_served: bool,
}

/// All of them. `$F` runs a program in real time, `$P` is the port, `$S` the folder of sources, `$B` what is compiled.
fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for (libc, name, own) in [(Libc::Gnu, "c-glibc", &["epoll_pwait2"][..]), (Libc::Musl, "c-musl", &[])] {
        for call in ARRIVAL_CALLS.iter().chain(own) {
            let script = format!("exec $F {} quiet 'arrivals {call}'", hook::steps(libc).display());
            let (name, needs) = (format!("{name}/{call}"), ("bash", ""));
            rows.push(Row { name, needs, script, talks: true, is_whole: false, is_served: true });
        }
    }
    let mut ordinary = |name: &str, needs: (&'static str, &'static str), script: &str| {
        let (name, script) = (name.to_owned(), script.to_owned());
        rows.push(Row { name, needs, script, talks: false, is_whole: true, is_served: true });
    };
    for how in PYTHON {
        let script = format!("exec $F /usr/bin/python3 $S/periodic.py {how} $P");
        ordinary(&format!("python/{how}"), ("python3", ""), &script);
    }
    ordinary("rust/recv", ("rustc", ""), "exec $F $B/periodic $P");
    ordinary("rust/timeout", ("rustc", ""), "exec $F $B/periodic $P 20000");
    ordinary("node/dgram", ("node", "node_missing"), "exec $F node $S/periodic.js $P");
    ordinary("java/receive", ("java", "java_missing"), "exec $F java -cp $B Periodic $P");
    // It writes numbers of four octets; an empty datagram ends it.
    ordinary(
        "socat/udp",
        ("socat", ""),
        "$F socat -u UDP-RECV:$P,null-eof STDOUT | /usr/bin/python3 -c '
import sys; data = sys.stdin.buffer.read(); n = len(data) // 4
print(data == b\"\".join(i.to_bytes(4, \"big\") for i in range(n))); print(\"received\", n)'",
    );
    // A JVM has handlers with and without SA_RESTART, and which of them has run cannot be seen (docs/design/expected-arrival.md).
    let java = rows.iter_mut().find(|row| row.name == "java/receive").expect("a row");
    java.is_served = false;
    rows
}

/// What all rows need.
struct Tools {
    /// What is compiled for them.
    programs: tempfile::TempDir,
    sources: PathBuf,
    /// `chrt -f 10`, where this machine allows that.
    real_time: &'static str,
}

impl Tools {
    fn new(root: &Path) -> anyhow::Result<Self> {
        let programs = hook::open_directory();
        let sources = root.join("tests/programs");
        rustc(root, "periodic", programs.path())?;
        if has("javac") && has("java") {
            must(Command::new("javac").arg("-d").arg(programs.path()).arg(sources.join("Periodic.java")))?;
        }
        let may = must(Command::new("chrt").args(["-f", "10", "true"])).is_ok();
        Ok(Self { programs, sources, real_time: if may { "chrt -f 10" } else { "" } })
    }

    /// The talker, to pod A; it ends when its standard input does.
    fn talker(&self, world: &World) -> anyhow::Result<(Running, Option<ChildStdin>)> {
        let mut command = Command::new("sh");
        let program = hook::compiled("periodic_listener").display();
        command.args(["-c", &format!("exec {} {program} {PORT} {PERIOD} {POD_A}", self.real_time)]);
        let mut child = Running(within(&world.bed().pod_b, || command.stdin(Stdio::piped()).spawn())?);
        let input = child.0.stdin.take();
        Ok((child, input))
    }
}

/// Runs all rows whose cells contain `filter`.
///
/// # Errors
/// When a program that is compiled here does not build.
pub(crate) fn run(world: &mut World, root: &Path, filter: &str, report: &mut Report) -> anyhow::Result<()> {
    let rows = rows();
    let mut tools = None;
    let lock = std::fs::File::create(root.join("out/.measure.lock"))?;
    lock.lock()?;
    for row in &rows {
        let mut kernel = None;
        for receive in [Receive::Kernel, Receive::Expect] {
            for mode in [Mode::Library, Mode::Daemon, Mode::Run] {
                // Without asking, the daemon's counters alone are of interest.
                let is_of_row = match receive {
                    Receive::Kernel => row.is_whole && mode == Mode::Daemon,
                    Receive::Expect => row.is_whole || mode == Mode::Daemon,
                };
                world.set_receive(receive);
                let cell = world.cell(&format!("periodic/{}/{}", row.name, mode.name()));
                if !is_of_row || !cell.contains(filter) {
                    continue;
                }
                let (needs, missing) = row.needs;
                if !has(needs) {
                    report.skip(&cell, missing, &format!("no {needs} on this machine"));
                    continue;
                }
                if tools.is_none() {
                    tools = Some(Tools::new(root)?);
                }
                let tools = tools.as_ref().context("just made")?;
                let mut once = |mode| one(world, tools, row, mode).map_err(|error| format!("{error:#}"));
                let kernel = kernel.get_or_insert_with(|| once(Mode::Kernel)).clone();
                let result = match (kernel, once(mode)) {
                    (Ok(kernel), Ok(seen)) if seen == kernel => Ok(()),
                    (Ok(kernel), Ok(seen)) => Err(format!("{seen}\ninstead of\n{kernel}")),
                    (Err(error), _) => Err(format!("on the kernel alone: {error}")),
                    (_, Err(error)) => Err(error),
                };
                report.add(&cell, result);
            }
        }
    }
    Ok(())
}

/// How many arrivals were expected, and how many of these were hit, by the counters of the daemon in `run_dir`.
fn expected(run_dir: &Path) -> Option<(u64, u64)> {
    let counters = Control::connect(run_dir).ok()?.statistics_of("").ok()?.attachments;
    let counts = counters.into_iter().filter_map(|counters| counters.receive?.counts);
    Some(counts.fold((0, 0), |sum, counts| (sum.0 + counts.expected, sum.1 + counts.hit)))
}

/// Output and exit status of one run, the number of datagrams aside.
fn one(world: &mut World, tools: &Tools, row: &Row, mode: Mode) -> anyhow::Result<String> {
    let place = hook::open_directory();
    let mut run_dir = place.path().join("run");
    let arguments = ["timeout", "--kill-after=1", "120", "bash", "-c", &row.script].map(str::to_owned);
    let mut command = world.command_at(&arguments, mode, Some(&run_dir));
    command.env("F", tools.real_time).env("P", PORT).env("S", &tools.sources);
    command.env("B", tools.programs.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    if mode == Mode::Daemon {
        world.daemon().run_dir().clone_into(&mut run_dir);
    }
    let before = expected(&run_dir).unwrap_or_default();
    let mut child = Running(within(&world.bed().pod_a, || command.spawn())?);
    let out = lines(child.0.stdout.take().context("stdout")?);
    let errors = lines(child.0.stderr.take().context("stderr")?);
    let mut inputs = vec![child.0.stdin.take()];
    let mut talker = None;
    if !row.talks {
        wait_for_listener(world, &mut child)?;
        let (running, input) = tools.talker(world)?;
        talker = Some(running);
        inputs.push(input);
    }
    let expects =
        row.is_served && world.receive() == Receive::Expect && matches!(mode, Mode::Daemon | Mode::Run);
    let hit = wait_for_hits(&mut child, &run_dir, before, expects);
    drop(inputs);
    let ended = try_eventually(START_MAX, || child.0.try_wait().transpose());
    let status = ended.context("it does not end")??;
    if let Some(mut talker) = talker {
        ensure!(talker.0.wait()?.success(), "the talker fails");
    }
    let mut text = String::new();
    for line in out.iter() {
        text += if line.starts_with("received ") { "received N" } else { &line };
        text.push('\n');
    }
    // What `ktsn run` says of its ktsnd is not the program's.
    let errors: Vec<String> = errors.iter().filter(|line| !line.starts_with("ktsn run: ")).collect();
    text += &errors.concat();
    hit.with_context(|| text.clone())?;
    ensure!(status.success() && text.contains("received N\n"), "{status}: {text}");
    Ok(text)
}

/// Waits until enough arrivals were hit; where none is expected, for a while, in which none may be.
fn wait_for_hits(
    child: &mut Running,
    run_dir: &Path,
    before: (u64, u64),
    expects: bool,
) -> anyhow::Result<()> {
    if !expects {
        std::thread::sleep(UNEXPECTED);
        let after = expected(run_dir).unwrap_or_default();
        ensure!(after == before, "{} arrivals were expected", after.0 - before.0);
        return Ok(());
    }
    let mut after = before;
    let done = try_eventually(HITS_WITHIN, || {
        after = expected(run_dir).unwrap_or_default();
        (after.1 >= before.1 + HITS_MIN)
            .then_some(Ok(()))
            .or_else(|| ended_before(child, "its arrivals were hit"))
    });
    let (expected, hit) = (after.0 - before.0, after.1 - before.1);
    done.with_context(|| format!("{expected} arrivals were expected and {hit} hit"))?
}

/// Waits until a socket of pod A has the port.
fn wait_for_listener(world: &World, child: &mut Running) -> anyhow::Result<()> {
    let port = format!(":{:04X} ", PORT.parse::<u16>()?);
    // The local address is the second word.
    let has_port =
        |line: &str| line.split_whitespace().nth(1).is_some_and(|name| format!("{name} ").ends_with(&port));
    let listens = try_eventually(START_MAX, || {
        let sockets = within(&world.bed().pod_a, || {
            let tables = ["udp", "udp6"].map(|name| format!("/proc/thread-self/net/{name}"));
            tables.map(|table| std::fs::read_to_string(table).unwrap_or_default()).concat()
        });
        sockets.lines().any(has_port).then_some(Ok(())).or_else(|| ended_before(child, "it listens"))
    });
    listens.context("it does not listen")?
}

/// The fault of a program that has ended before `what`.
fn ended_before(child: &mut Running, what: &str) -> Option<anyhow::Result<()>> {
    let ended = child.0.try_wait().transpose()?;
    Some(ended.map_err(Into::into).and_then(|status| bail!("{status} before {what}")))
}
