// SPDX-License-Identifier: Apache-2.0
//! Expected-arrival receive where the talker, the machine or the listener's own end does not let things go on as they were.

use std::io::{BufRead as _, BufReader, Lines, Read as _};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ktsn_lab::exclusive::MeasureLock;
use ktsn_proto::v1;
use ktsn_ring::receive::ReceiveCount;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port, worker_cpu};
use ktsn_tests::faults::stands_still;
use ktsn_tests::faults::talker::arrive;
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook::{self, Running};
use ktsn_tests::peer::{Behaviour, Events, Peer};

/// How long anything may take: a process that loses its CPU pauses its spinning for 10 s.
const LIMIT: Duration = Duration::from_secs(60);
const COMPLAINT: Duration = Duration::from_secs(20);
/// So many hits show that arrivals are expected.
const HITS: u64 = 20;
/// A stream that ended is expected no more often: each of four tracks ends by eight misses.
const MISSES_MAX: u64 = 32;

/// A daemon that grants a whole CPU.
fn granting() -> Behaviour {
    Behaviour { receive_share: Some(1_000), ..Behaviour::default() }
}

fn total(events: &Events, count: ReceiveCount) -> u64 {
    events.receiving.iter().map(|area| area.total.get(count)).sum()
}

/// An ordinary listener, `periodic_listener`.
struct Listener {
    running: Running,
    lines: Lines<BufReader<ChildStdout>>,
    errors: ChildStderr,
}

impl Listener {
    /// Starts it by `command`, to which its port is added.
    fn start(mut command: Command, port: u16) -> Self {
        command.arg(port.to_string()).env("KTSN_RECEIVE", "expect").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("listener");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let errors = child.stderr.take().expect("its errors");
        let mut listener = Self { running: Running(child), lines, errors };
        assert_eq!(listener.line(), "ready");
        listener
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a line").expect("text")
    }

    /// Its first line on standard error; `None` after a while without one.
    fn complaint(&mut self) -> Option<String> {
        let fd = &self.errors;
        let limit = rustix::event::Timespec { tv_sec: COMPLAINT.as_secs().cast_signed(), tv_nsec: 0 };
        let mut asked = [rustix::event::PollFd::new(fd, rustix::event::PollFlags::IN)];
        if rustix::event::poll(&mut asked, Some(&limit)).expect("poll") == 0 {
            return None;
        }
        // It is written by one call.
        let mut octets = [0; 1000];
        let count = self.errors.read(&mut octets).expect("a line");
        Some(String::from_utf8_lossy(&octets[..count]).into_owned())
    }

    /// After an empty datagram: everything came, and in order. What it wrote to standard error.
    fn finish(mut self) -> String {
        let said = self.line();
        assert!(said.ends_with(" in order"), "{said}");
        assert!(self.running.0.wait().expect("its status").success());
        let mut errors = String::new();
        self.errors.read_to_string(&mut errors).expect("text");
        errors
    }
}

/// What a talker does now.
#[derive(Debug, Default)]
struct TalkerState {
    /// Microseconds between two datagrams; 0: silence.
    period: AtomicU64,
    /// Microseconds by which its grid is later.
    shift: AtomicU64,
    is_over: AtomicBool,
    /// The kernel's number of its thread.
    tid: AtomicU64,
}

/// A talker on the loopback device, whose datagrams are numbered from 0 on.
struct Talker {
    state: Arc<TalkerState>,
    thread: JoinHandle<()>,
}

impl Talker {
    fn start(port: u16) -> Self {
        let state = Arc::new(TalkerState::default());
        let shared = Arc::clone(&state);
        Self { state, thread: std::thread::spawn(move || talk(&shared, port)) }
    }

    /// It sleeps nearly always: its turn comes at once, where the machine allows that.
    fn hurry(&self) {
        let tid = eventually("the talker's number", LIMIT, || match self.state.tid.load(SeqCst) {
            0 => None,
            tid => Some(tid.to_string()),
        });
        Command::new("chrt").args(["-f", "-p", "1", &tid]).output().expect("chrt");
    }

    fn change(&self, period: u64, shift: u64) {
        self.state.shift.store(shift, SeqCst);
        self.state.period.store(period, SeqCst);
    }

    /// Its last datagram is empty.
    fn end(self) {
        self.state.is_over.store(true, SeqCst);
        self.thread.join().expect("the talker");
    }
}

fn talk(state: &TalkerState, port: u16) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    state.tid.store(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs().into(), SeqCst);
    let (begin, mut number) = (Instant::now(), 0_u32);
    while !state.is_over.load(SeqCst) {
        let (period, shift) = (state.period.load(SeqCst), state.shift.load(SeqCst));
        if period == 0 {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let passed = u64::try_from(begin.elapsed().as_micros()).expect("a short test");
        let next = (passed / period + 1) * period + shift;
        std::thread::sleep((begin + Duration::from_micros(next)).saturating_duration_since(Instant::now()));
        socket.send_to(&number.to_be_bytes(), ("127.0.0.1", port)).expect("sent");
        number += 1;
    }
    socket.send_to(&[], ("127.0.0.1", port)).expect("sent");
}

/// The talker stops, comes back with another phase, doubles its rate, halves it twice: each time its arrivals are expected again, and
/// while it is silent only a few are.
#[test]
fn a_talker_that_changes_is_followed() {
    const PORT: u16 = 7711;
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), granting());
    let listener = Listener::start(hook::hooked(hook::compiled("periodic_listener"), run_dir.path()), PORT);
    let talker = Talker::start(PORT);
    let of = |count| total(&peer.events(), count);
    for (period, shift, is_silent_before) in
        [(1000, 0, false), (1000, 300, true), (500, 0, false), (2000, 700, false), (1000, 0, true)]
    {
        if is_silent_before {
            talker.change(0, 0);
            let before = of(ReceiveCount::Missed);
            let after = stands_still("nothing is expected any more", LIMIT, || of(ReceiveCount::Missed));
            assert!(after - before <= MISSES_MAX, "{before} to {after} misses of a silent talker");
        }
        let before = of(ReceiveCount::Hit);
        talker.change(period, shift);
        let is_hit = peer.wait(LIMIT, |events| total(events, ReceiveCount::Hit) >= before + HITS);
        assert!(is_hit, "{period} {shift}: {:?}", peer.events().receiving);
    }
    talker.end();
    listener.finish();
}

/// A control group with a CPU quota. It is removed on drop; its processes must be gone then.
struct Quota(PathBuf);

impl Quota {
    /// 3 of every 50 ms.
    fn new() -> Result<Self, String> {
        let (root, is_second) = match Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            true => (Path::new("/sys/fs/cgroup"), true),
            false => (Path::new("/sys/fs/cgroup/cpu"), false),
        };
        let group = root.join(format!("ktsn-quota-{}", std::process::id()));
        std::fs::create_dir(&group).map_err(|error| format!("{}: {error}", group.display()))?;
        let quota = Self(group);
        let set = |name: &str, value: &str| {
            std::fs::write(quota.0.join(name), value).map_err(|error| format!("{name}: {error}"))
        };
        if is_second {
            set("cpu.max", "3000 50000")?;
        } else {
            set("cpu.cfs_period_us", "50000")?;
            set("cpu.cfs_quota_us", "3000")?;
        }
        Ok(quota)
    }

    fn take(&self, process: u32) {
        std::fs::write(self.0.join("cgroup.procs"), process.to_string()).expect("a process of the group");
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// A listener that is throttled stops spinning by itself and says so in one line; it goes on receiving. On a busy machine arrivals may be
/// too irregular to be expected before the quota is used up: such a round shows nothing.
#[test]
fn a_throttled_listener_stops_spinning_and_says_so() {
    const ROUNDS: u32 = 3;
    let quota = match Quota::new() {
        Ok(quota) => quota,
        Err(error) => {
            println!("SKIP cpu_quota_missing: {error}");
            return;
        }
    };
    assert!((0..ROUNDS).any(|_| throttled_by(&quota)), "it says nothing in {ROUNDS} rounds");
}

/// One round; whether the listener said that it is throttled.
fn throttled_by(quota: &Quota) -> bool {
    const PORT: u16 = 7712;
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), granting());
    // Both come to their turn whatever else this machine does: the quota alone takes the CPU away.
    let mut command = hook::hooked("setsid", run_dir.path());
    let first = "[ ! -e /proc/self/autogroup ] || echo -20 >/proc/self/autogroup; exec nice -n -20 \"$@\"";
    command.args(["sh", "-c", first, "sh"]).arg(hook::compiled("periodic_listener"));
    let mut listener = Listener::start(command, PORT);
    let talker = Talker::start(PORT);
    talker.hurry();
    talker.change(1000, 0);
    let hits = || total(&peer.events(), ReceiveCount::Hit);
    assert!(
        peer.wait(LIMIT, |events| total(events, ReceiveCount::Hit) >= HITS),
        "it is awake without a quota"
    );
    quota.take(listener.running.0.id());
    let Some(said) = listener.complaint() else {
        talker.end();
        return false;
    };
    assert!(said.contains("loses the CPU") && said.contains("CPU quota"), "{said}");
    // For 10 s nothing is hit: what is still under way may be.
    stands_still("it pauses", LIMIT, hits);
    talker.end();
    let more = listener.finish();
    assert_eq!(more, "", "it says so once");
    true
}

fn receive(daemon: &Daemon) -> v1::ReceiveCounts {
    daemon.control().counters(NAME).receive.and_then(|receive| receive.counts).unwrap_or_default()
}

fn wait_for_hits(daemon: &Daemon, what: &str) {
    let before = receive(daemon).hit;
    eventually(what, LIMIT, || receive(daemon).hit >= before + HITS);
}

/// The talker of `periodic_listener`, one datagram each 2 ms; it ends with its standard input.
fn talker(program: &Path, port: u16) -> Command {
    let mut command = Command::new(program);
    command.args([&port.to_string(), "2000"]).stdin(Stdio::piped()).stdout(Stdio::null());
    command
}

/// ktsnd, its worker and a listener of SCHED_FIFO above all of them share one CPU: the listener expects its datagrams, and what ktsnd
/// and the kernel have to do there is done, also while the talker is silent.
#[test]
fn a_real_time_listener_leaves_its_cpu_to_others() {
    const PORT: u16 = 7713;
    let _alone = MeasureLock::take(&lock(), || ()).expect("the lock");
    if !Command::new("chrt").args(["-f", "50", "true"]).output().is_ok_and(|done| done.status.success()) {
        println!("SKIP real_time_not_allowed: chrt -f 50 is refused");
        return;
    }
    let bed = Bed::new();
    let expecting = Attachment::pod_a(&bed).with("receive = \"expect\"").toml();
    let port = pinned_port("auto").replace("priority = 0", "priority = 10");
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{port}{expecting}"));
    daemon.spawn();
    let cpu = worker_cpu().to_string();
    let moved = Command::new("taskset").args(["-acp", &cpu, &daemon.pid().to_string()]).output();
    assert!(moved.expect("taskset").status.success());
    let tap = Tap::open(&bed.host_b, UPLINK);
    let program = hook::compiled("periodic_listener");
    let mut command = hook::hooked("taskset", daemon.run_dir());
    command.args(["-c", &cpu, "chrt", "-f", "50"]).arg(program);
    let listener = within(&bed.pod_a, || Listener::start(command, PORT));
    let mut talker = within(&bed.pod_a, || Running(talker(program, PORT).spawn().expect("talker")));
    wait_for_hits(&daemon, "arrivals are hit");
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 1, 20);
    wait_for_hits(&daemon, "arrivals are still hit");
    // The listener waits on for what does not come.
    rustix::process::kill_process(rustix::process::Pid::from_child(&talker.0), rustix::process::Signal::STOP)
        .expect("stopped");
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 2, 20);
    stands_still("nothing is expected any more", LIMIT, || receive(&daemon).missed);
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 3, 20);
    rustix::process::kill_process(rustix::process::Pid::from_child(&talker.0), rustix::process::Signal::CONT)
        .expect("continued");
    wait_for_hits(&daemon, "arrivals are hit again");
    drop(talker.0.stdin.take());
    assert!(talker.0.wait().expect("the talker").success());
    listener.finish();
}

fn lock() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../out/.measure.lock")
}

/// A listener that is killed while it expects leaves its share and its entry to the next one, and its counts to the attachment.
#[test]
fn a_killed_listener_leaves_nothing_but_its_counts() {
    const PORT: u16 = 7714;
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).with("receive = \"expect\"")]);
    let program = hook::compiled("periodic_listener");
    let mut before = v1::ReceiveCounts::default();
    for round in 0..5 {
        let command = hook::hooked(program, daemon.run_dir());
        let mut listener = within(&bed.pod_a, || Listener::start(command, PORT));
        let talker = within(&bed.pod_a, || Running(talker(program, PORT).spawn().expect("talker")));
        wait_for_hits(&daemon, "arrivals are hit");
        listener.running.0.kill().expect("killed");
        drop((listener, talker));
        eventually("its share is free", LIMIT, || {
            let receive = daemon.control().counters(NAME).receive?;
            (receive.processes == 0 && receive.granted_permille == 0).then_some(())
        });
        let after = receive(&daemon);
        assert!(after.hit >= before.hit + HITS, "{round}: {before:?} {after:?}");
        before = after;
        assert_eq!(daemon.clients(), 0, "{round}");
    }
}
