// SPDX-License-Identifier: Apache-2.0
//! Grants of expected arrival by the shipped daemon, to clients that speak the receive area by hand: who gets which share, when a grant
//! ends, and what is shown. A second process is this test program once more.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use ktsn_lab::exclusive::MeasureLock;
use ktsn_proto::v1;
use ktsn_ring::ClientMapping;
use ktsn_ring::control::Expect;
use ktsn_ring::receive::{Listener, ListenerName, Receive, ReceiveCount};
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::raw::{ABI, Accepted, Raw, accepted};
use ktsn_tests::faults::talker::arrive;
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook::{self, Libc};
use ktsn_time::{Monotonic, Nanos};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);
/// The listener's port, and the period of what it hears.
const PORT: u16 = 7700;
const PERIOD: Duration = Duration::from_millis(2);
/// In the environment of a test program that is a listener: the run directory and the namespace.
const RUN_DIR: &str = "KTSN_TEST_RUN_DIR";
const NAMESPACE: &str = "KTSN_TEST_NAMESPACE";
/// What a listener's lines begin with, among those of the test program.
const LINE: &str = "listener: ";

fn now() -> Monotonic {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = Monotonic::ZERO.saturating_add(Nanos::from_seconds(now.tv_sec));
    seconds.saturating_add(Nanos::new(now.tv_nsec))
}

/// A client in this process.
struct Client {
    /// Its connection; its end is the client's.
    accepted: Accepted,
    mapping: ClientMapping,
}

impl Client {
    /// Attaches, maps the region, and asks.
    fn new(run_dir: &Path, namespace: &str) -> Self {
        let accepted = accepted(run_dir, namespace);
        let mapping = ClientMapping::open(&accepted.region).expect("a region");
        accepted.raw.send(&Expect.encode(), &[]).expect("Expect");
        Self { accepted, mapping }
    }

    fn receive(&self) -> Receive {
        self.mapping.producer().receive().expect("this daemon announces an area")
    }

    fn claim(&self, port: u16) -> Listener {
        self.receive().claim(ListenerName::Udp4(port), u64::from(port)).expect("an entry")
    }

    fn grant(&self) -> u32 {
        self.receive().grant(now())
    }

    fn wait_for_grant(&self, what: &str, share: u32) {
        eventually(what, SOON, || self.grant() == share);
    }
}

/// A client in a process of its own.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it; it has one listener.
    fn new(run_dir: &Path, namespace: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("test binary"));
        command.args(["expected_arrival::a_listener_by_itself", "--exact", "--nocapture"]);
        command.env(RUN_DIR, run_dir).env(NAMESPACE, namespace).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let input = child.stdin.take().expect("its input");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        let mut process = Self { child, input, output };
        assert_eq!(process.line(), "ready");
        process
    }

    /// The next line that the listener says.
    fn line(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("a line") > 0, "the listener has ended");
            // libtest writes the test's name before the first one.
            if let Some((_, said)) = line.split_once(LINE) {
                return said.trim_end().to_owned();
            }
        }
    }

    /// Its share now.
    fn grant(&mut self) -> u32 {
        self.input.write_all(b"grant\n").expect("it reads");
        self.line().parse().expect("a share")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process: what [`Process`] starts. By itself it finds no daemon, and so nothing to ask.
#[test]
fn a_listener_by_itself() {
    let (Some(run_dir), Ok(namespace)) = (std::env::var_os(RUN_DIR), std::env::var(NAMESPACE)) else {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(Raw::connect(directory.path()).is_err(), "without a daemon there is no grant");
        return;
    };
    let client = Client::new(Path::new(&run_dir), &namespace);
    client.claim(7001);
    println!("\n{LINE}ready");
    for line in std::io::stdin().lines() {
        assert_eq!(line.expect("a line"), "grant");
        println!("{LINE}{}", client.grant());
    }
}

fn expecting(bed: &Bed) -> Attachment {
    Attachment::pod_a(bed).with("receive = \"expect\"")
}

fn receive(daemon: &Daemon) -> v1::ReceiveStatistics {
    daemon.control().counters(NAME).receive.expect("receive is expect")
}

/// A process that uses an entry has half of the cap; a second one the other half; a third process leaves a third for each. One that
/// frees its entry, or ends, takes no share.
#[test]
fn shares_follow_use() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[expecting(&bed)]);
    let run_dir = daemon.run_dir();
    let own = Client::new(run_dir, &bed.pod_a);
    let mut other = Process::new(run_dir, &bed.pod_a);
    eventually("half of the cap is one process's", SOON, || other.grant() == 100);
    assert_eq!(own.grant(), 0, "a process without a listener has no share");
    let listener = own.claim(7000);
    own.wait_for_grant("two processes have a half each", 100);
    assert_eq!(other.grant(), 100);
    // The same process once more is no further one.
    let again = Client::new(run_dir, &bed.pod_a);
    again.claim(7002);
    again.wait_for_grant("both regions of a process hold its share", 100);
    let mut third = Process::new(run_dir, &bed.pod_a);
    eventually("three processes", SOON, || third.grant() == 66 && other.grant() == 66);
    own.wait_for_grant("the third as well", 66);
    let shown = receive(&daemon);
    assert_eq!((shown.processes, shown.granted_permille), (3, 198));
    drop(again);
    own.receive().free(listener);
    own.wait_for_grant("no listener, no share", 0);
    eventually("two are left", SOON, || other.grant() == 100);
    drop(third);
    eventually("one is left", SOON, || receive(&daemon).processes == 1);
    assert_eq!(other.grant(), 100, "never more than half of the cap");
}

/// A command in the pod that waits for no other program's CPU time, where this machine allows that.
fn real_time(program: &Path, run_dir: Option<&Path>) -> Command {
    let may =
        Command::new("chrt").args(["-f", "10", "true"]).output().is_ok_and(|done| done.status.success());
    let with = if may { Path::new("chrt") } else { program };
    let mut command = run_dir.map_or_else(|| Command::new(with), |run_dir| hook::hooked(with, run_dir));
    if may {
        command.args(["-f", "10"]).arg(program);
    }
    command.arg(PORT.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// A program that only listens, under the shipped libktsn, gets a grant from the shipped ktsnd and expects its datagrams: the counters say
/// so, and each datagram is received once and in order.
#[test]
fn an_unmodified_listener_expects_its_datagrams() {
    let _alone = MeasureLock::take(&lock(), || ()).expect("the lock");
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[expecting(&bed)]);
    let program = hook::compiled("periodic_listener");
    let start = |mut command: Command| {
        hook::Running(
            within(&bed.pod_a, || command.env("KTSN_RECEIVE", "expect").spawn()).expect("a program"),
        )
    };
    let mut listener = start(real_time(program, Some(daemon.run_dir())));
    let mut lines = BufReader::new(listener.0.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "ready");
    let mut talk = real_time(program, None);
    talk.arg(PERIOD.as_micros().to_string());
    let mut talker = start(talk);
    let counts = eventually("arrivals are hit", 3 * SOON, || {
        receive(&daemon).counts.filter(|counts| counts.hit >= 20)
    });
    assert!(counts.expected >= counts.hit && counts.spun_ns > 0, "{counts:?}");
    let shown = daemon.control().list().attachments.remove(0).clients.remove(0);
    assert_eq!((shown.receive_granted_permille, shown.listeners.len()), (100, 1));
    drop(talker.0.stdin.take());
    assert!(talker.0.wait().expect("the talker").success());
    let said = lines.next().expect("a line").expect("text");
    assert!(said.ends_with(" in order"), "{said}");
}

/// How many listeners ktsnd knows once a program has received four datagrams, 50 ms apart: a listener shows itself when it expects one.
fn listeners_after_four(bed: &Bed, daemon: &Daemon, period: Option<&str>) -> usize {
    let mut command = hook::scenario(Libc::Gnu, daemon.run_dir(), "arrivals-few recv", PORT);
    command.env("KTSN_RECEIVE", "expect").envs(period.map(|period| ("KTSN_RECEIVE_PERIOD", period)));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = hook::Running(within(&bed.pod_a, || command.spawn()).expect("a program"));
    let mut lines = BufReader::new(program.0.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "received 4");
    // It asked some calls before it said so.
    let listed = || daemon.control().list().attachments.remove(0).clients;
    let client = eventually("the program is a client", SOON, || listed().pop());
    let listeners = client.listeners.len();
    drop(program.0.stdin.take());
    assert!(program.0.wait().expect("the program").success());
    eventually("its end", SOON, || daemon.clients() == 0);
    listeners
}

/// A listener with a stated period expects its fifth datagram, one without never does: the attachment states it, or the program.
#[test]
fn a_stated_period_locks_with_fewer_arrivals() {
    let _alone = MeasureLock::take(&lock(), || ()).expect("the lock");
    let bed = Bed::new();
    // Arrivals on a busy machine may be too uneven to be expected: then the next try counts.
    let locks = |daemon: &Daemon, period| (0..40).any(|_| listeners_after_four(&bed, daemon, period) == 1);
    let never = |daemon: &Daemon, period| {
        for _ in 0..3 {
            assert_eq!(listeners_after_four(&bed, daemon, period), 0, "{period:?}");
        }
    };
    let daemon = Daemon::start(&bed, &[expecting(&bed)]);
    never(&daemon, None);
    never(&daemon, Some("30ms"));
    assert!(locks(&daemon, Some("50ms")), "four datagrams are enough with the program's period");
    drop(daemon);
    let stated = expecting(&bed).with("receive_period = \"50ms\"");
    let daemon = Daemon::start(&bed, &[stated]);
    assert_eq!(daemon.control().list().attachments.remove(0).fields()["receive_period"], "50ms");
    assert!(locks(&daemon, None), "four datagrams are enough with the attachment's period");
    never(&daemon, Some("30ms"));
}

fn lock() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../out/.measure.lock")
}

/// What a client counts is listed by socket and summed up by attachment, also when the client and the attachment are gone.
#[test]
fn counts_are_shown_and_kept() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[expecting(&bed)]);
    let client = Client::new(daemon.run_dir(), &bed.pod_a);
    let listener = client.claim(7000);
    client.wait_for_grant("a grant", 100);
    let counts = [ReceiveCount::Expected, ReceiveCount::Hit, ReceiveCount::Early, ReceiveCount::Missed];
    for (which, count) in counts.into_iter().zip([100, 90, 7, 3]) {
        client.receive().add(listener, which, count);
    }
    client.receive().add_spun(listener, Nanos::from_millis(2));
    let expected = v1::ReceiveCounts { expected: 100, hit: 90, early: 7, missed: 3, spun_ns: 2_000_000 };
    let listed = daemon.control().list().attachments.remove(0).clients.remove(0);
    assert_eq!((listed.pid, listed.receive_granted_permille), (std::process::id(), 100));
    let [shown] = listed.listeners.as_slice() else { panic!("one listener: {listed:?}") };
    assert_eq!((shown.socket.as_str(), shown.cookie, shown.counts), ("udp4:7000", 7000, Some(expected)));
    assert_eq!(receive(&daemon).counts, Some(expected));
    // A last count that nothing has read yet.
    client.receive().add(listener, ReceiveCount::Hit, 1);
    drop(client);
    let more = v1::ReceiveCounts { hit: 91, ..expected };
    eventually("the client's end", SOON, || daemon.clients() == 0);
    assert_eq!(receive(&daemon).counts, Some(more));
    daemon.control().detach(NAME).expect("detached");
    let detached = daemon.control().statistics_of("").expect("statistics").detached.expect("sums");
    assert_eq!(detached.receive.expect("its sums").counts, Some(more));
}

/// A grant ends at once with the attachment or a drain, and without a word when the daemon is killed.
#[test]
fn grants_end() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[expecting(&bed)]);
    let client = Client::new(daemon.run_dir(), &bed.pod_a);
    client.claim(7000);
    client.wait_for_grant("a grant", 100);
    daemon.control().detach(NAME).expect("detached");
    assert_eq!(client.grant(), 0, "withdrawn before detach answers");
    assert!(client.accepted.raw.is_ended(), "the connection ends, so that the program can attach again");
    let attachment = json!({
        "name": NAME, "netns": bed.pod_a, "interface": "eth0", "uplink": UPLINK, "destinations": ["10.0.0.0/8"],
        "receive": "expect",
    });
    daemon.control().attach(attachment).expect("attached again");
    let client = Client::new(daemon.run_dir(), &bed.pod_a);
    client.claim(7000);
    client.wait_for_grant("a grant of the new attachment", 100);
    daemon.kill();
    client.wait_for_grant("the lease of a killed daemon ends", 0);
    daemon.spawn();
    let client = Client::new(daemon.run_dir(), &bed.pod_a);
    client.claim(7000);
    client.wait_for_grant("the next daemon grants again", 100);
    assert_eq!(daemon.terminate(SOON), Some(0));
    assert_eq!(client.grant(), 0, "a daemon that drains withdraws first");
}

/// With `receive = "kernel"`, the default, nothing is granted to a client that asks; its key by the API changes that. A cap of 0 grants
/// nothing either.
#[test]
fn the_attachment_decides() {
    let bed = Bed::new();
    let attachment = Attachment::pod_a(&bed);
    let daemon = Daemon::start(&bed, std::slice::from_ref(&attachment));
    let client = Client::new(daemon.run_dir(), &bed.pod_a);
    let listener = client.claim(7000);
    client.receive().add(listener, ReceiveCount::Missed, 1);
    // Shown by a round of grants that gave it none.
    eventually("its counts are read", SOON, || {
        let receive = daemon.control().counters(NAME).receive?;
        (receive.counts?.missed == 1 && receive.processes == 0).then_some(())
    });
    assert_eq!(client.grant(), 0);
    let fields: Value = daemon.control().list().attachments.remove(0).fields();
    assert_eq!(fields["receive"], "kernel");
    let wrong = json!({ "name": "b", "netns": bed.pod_a, "interface": "eth0", "receive": "spin" });
    let refused = daemon.control().check_attach(&wrong).expect_err("no such word");
    assert!(
        refused.message().contains("attachment.receive: \"spin\": expected kernel or expect"),
        "{refused}"
    );
    let wrong = json!({
        "name": "b", "netns": bed.pod_a, "interface": "eth0", "receive": "expect", "receive_period": "10us",
    });
    let refused = daemon.control().check_attach(&wrong).expect_err("too short");
    let expected = "attachment.receive_period: \"10us\": expected a time from 50us to 10s";
    assert!(refused.message().contains(expected), "{refused}");
}

/// A client that neither asks nor looks behind its region is served as ever; messages after Expect are read as before it, and an Expect
/// with a descriptor ends the connection.
#[test]
fn older_libraries_are_served() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[expecting(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    // libktsn itself: it sends.
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 1, 20);
    let older = accepted(daemon.run_dir(), &bed.pod_a);
    let mapping = ClientMapping::open(&older.region).expect("a region");
    assert_eq!(mapping.producer().layout().region_octets() % 4096, 0);
    mapping.producer().receive().expect("announced").claim(ListenerName::Udp4(1), 1).expect("an entry");
    let asks = Client::new(daemon.run_dir(), &bed.pod_a);
    asks.claim(7000);
    asks.wait_for_grant("who asks has a grant", 100);
    let silent = mapping.producer().receive().expect("announced");
    assert_eq!(silent.grant(now()), 0, "who did not ask has none");
    let raw = Raw::connect(daemon.run_dir()).expect("connection");
    assert_eq!(raw.hello(&bed.pod_a, (ABI, ABI)).0.abi, ABI);
    raw.send(&Expect.encode(), &[raw.fd()]).expect("sent");
    assert!(raw.is_ended(), "Expect brings no descriptor");
}
