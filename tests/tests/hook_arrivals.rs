// SPDX-License-Identifier: Apache-2.0
//! KTSN_RECEIVE=expect, call by call: the same datagrams in the same order, time limits and signals as the kernel has them.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ktsn_ring::receive::ReceiveCount;
use ktsn_tests::faults::stands_still;
use ktsn_tests::hook::{self, ARRIVAL_CALLS, LIBCS, Libc, Running, until_hits};
use ktsn_tests::peer::{Behaviour, Events, Peer};

const LIMIT: Duration = Duration::from_secs(40);

/// A daemon that grants a whole CPU.
fn granting() -> Behaviour {
    Behaviour { receive_share: Some(1_000), ..Behaviour::default() }
}

fn expecting(libc: Libc, run_dir: &Path, script: &str) -> Command {
    let mut command = hook::scenario(libc, run_dir, script, 9);
    command.env("KTSN_RECEIVE", "expect").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn hits(events: &Events) -> u64 {
    events.receiving.iter().map(|area| area.total.get(ReceiveCount::Hit)).sum()
}

/// Runs a script that ends by itself; what it printed, and how many arrivals it was awake for.
fn run(libc: Libc, script: &str) -> (BTreeMap<String, i64>, u64) {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), granting());
    let output = expecting(libc, run_dir.path(), script).output().expect("program");
    let hits = hits(&peer.events());
    (hook::values(&output), hits)
}

/// A listener that receives until its standard input ends.
fn listening(libc: Libc, run_dir: &Path, how: &str) -> Running {
    let mut command = expecting(libc, run_dir, &format!("arrivals {how}"));
    Running(command.stdin(Stdio::piped()).spawn().expect("program"))
}

fn finish(mut listener: Running) -> BTreeMap<String, i64> {
    let child: &mut Child = &mut listener.0;
    drop(child.stdin.take());
    let mut text = String::new();
    std::io::Read::read_to_string(&mut child.stdout.take().expect("stdout"), &mut text).expect("text");
    assert!(child.wait().expect("status").success(), "{text}");
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(what, value)| (what.to_owned(), value.parse().expect("number")))
        .collect()
}

fn assert_all_received(values: &BTreeMap<String, i64>, how: &str) {
    assert_eq!((values["disordered"], values["failed"]), (0, 0), "{how}: {values:?}");
    assert!(values["received"] > 0, "{how}: {values:?}");
}

/// Every call is awake for arrivals, and gets what the kernel would have given it.
fn is_awake_by(libc: Libc, how: &str) {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), granting());
    let listener = listening(libc, run_dir.path(), how);
    assert!(peer.wait(LIMIT, |events| hits(events) >= 50), "{how} {libc:?}: {:?}", peer.events().receiving);
    assert_all_received(&finish(listener), how);
    let events = peer.events();
    let [expected, hit, early, missed, spun] = events.receiving[0].total.to_array();
    assert_eq!(expected, hit + early + missed, "{how}");
    assert!(spun > 0 && events.clients == 1, "{how}");
}

#[test]
fn every_call_is_awake_for_arrivals() {
    for how in ARRIVAL_CALLS {
        is_awake_by(Libc::Gnu, how);
    }
    is_awake_by(Libc::Gnu, "epoll_pwait2");
}

#[test]
fn every_call_of_musl_is_awake_for_arrivals() {
    for how in ARRIVAL_CALLS {
        is_awake_by(Libc::Musl, how);
    }
}

/// Without a grant, and from the moment on at which it is withdrawn, the kernel alone wakes the program.
#[test]
fn nothing_is_expected_without_a_grant() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), Behaviour::default());
    let listener = listening(Libc::Gnu, run_dir.path(), "recv");
    assert!(peer.wait(LIMIT, |events| events.clients == 1));
    // With a grant, datagrams of so long are hits.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(hits(&peer.events()), 0);
    peer.change(|behaviour| behaviour.receive_share = Some(1_000));
    assert!(peer.wait(LIMIT, |events| hits(events) >= 20));
    peer.change(|behaviour| behaviour.receive_share = Some(0));
    // What was begun may end; then the number stands still.
    stands_still("nothing is expected any more", LIMIT, || hits(&peer.events()));
    assert_all_received(&finish(listener), "recv");
}

#[test]
fn without_a_daemon_everything_is_the_kernels() {
    let nowhere = hook::open_directory();
    for how in ARRIVAL_CALLS {
        let listener = listening(Libc::Gnu, nowhere.path(), how);
        // Datagrams come; nobody counts them before the program's end.
        std::thread::sleep(Duration::from_millis(100));
        assert_all_received(&finish(listener), how);
    }
}

#[test]
fn a_daemon_that_returns_grants_again() {
    let run_dir = hook::open_directory();
    let peer = Peer::start(run_dir.path(), granting());
    let listener = listening(Libc::Gnu, run_dir.path(), "recv");
    assert!(peer.wait(LIMIT, |events| hits(events) >= 20));
    drop(peer);
    let peer = Peer::start(run_dir.path(), granting());
    assert!(peer.wait(LIMIT, |events| hits(events) >= 20), "{:?}", peer.events().receiving);
    assert_all_received(&finish(listener), "recv");
}

/// The daemon lives and has ended this client without a word: the grant ends by itself, and the doorbell's other end is closed.
#[test]
fn a_listener_that_was_ended_without_a_word_attaches_again() {
    let run_dir = hook::open_directory();
    let lease = Duration::from_secs(1);
    let peer = Peer::start(run_dir.path(), Behaviour { receive_lease: lease, ..granting() });
    let listener = listening(Libc::Gnu, run_dir.path(), "recv");
    assert!(peer.wait(LIMIT, |events| hits(events) >= 20));
    peer.change(|behaviour| behaviour.ends_clients = true);
    peer.passes_again();
    let before = {
        peer.change(|behaviour| behaviour.ends_clients = false);
        peer.events().clients
    };
    let hits_of_last =
        |events: &Events| events.receiving.last().map_or(0, |area| area.total.get(ReceiveCount::Hit));
    let is_back = peer.wait(LIMIT, |events| events.clients > before && hits_of_last(events) >= 20);
    assert!(is_back, "{:?}", peer.events().receiving);
    assert_all_received(&finish(listener), "recv");
}

#[test]
fn a_time_limit_ends_a_call() {
    for how in ["recv", "readv", "poll", "ppoll", "select", "pselect", "epoll", "epoll_pwait"] {
        until_hit(Libc::Gnu, &format!("arrivals-timeout {how}"), |values| {
            assert_eq!((values["failed"], values["early"], values["wrong"]), (0, 0, 0), "{how}");
        });
    }
}

/// A seed for what happens at any instant. A failure names it.
fn seed() -> u32 {
    std::env::var("KTSN_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(std::process::id)
}

/// Runs a script until calls of it were awake for arrivals. Each time `check` judges what it printed.
fn until_hit(libc: Libc, script: &str, check: impl Fn(&BTreeMap<String, i64>)) {
    until_hits(1, || {
        let (values, hits) = run(libc, script);
        check(&values);
        hits
    });
}

/// Signals at any instant of an expecting call: each handler runs once, and the call ends or goes on as the kernel's.
fn signals(libc: Libc, script: &str, rounds: i64) {
    let script = format!("arrivals-signal {script} rounds={rounds} seed={}", seed());
    until_hit(libc, &script, |values| {
        let found = (values["failed"], values["lost"], values["wrong"], values["handled"]);
        assert_eq!(found, (0, 0, 0, rounds), "{script} {libc:?}");
    });
}

/// Without SA_RESTART a handler ends every call; with it, it ends those that never go on, and those with a time limit of the socket.
#[test]
fn a_handler_ends_the_calls_that_the_kernel_ends() {
    for libc in LIBCS {
        for script in [
            "recv",
            "recv restart=1",
            "recv timed=1",
            "recv restart=1 timed=1",
            "readv",
            "recvmmsg restart=1",
            "poll",
            "poll restart=1",
            "select",
            "epoll restart=1",
        ] {
            signals(libc, script, 25);
        }
    }
}

/// SIGRTMIN is 34 in glibc: a number that musl keeps for itself.
#[test]
fn the_first_real_time_signal_ends_a_call() {
    for libc in LIBCS {
        for script in ["recv realtime=1", "recv realtime=1 restart=1", "poll realtime=1"] {
            signals(libc, script, 20);
        }
    }
}

/// While an entry is in the error queue, every wait says "ready", and a receive call does not.
#[test]
fn a_handler_ends_a_call_beside_an_error_queue() {
    for script in ["recv error=1", "recv error=1 restart=1", "recv error=1 restart=1 timed=1"] {
        signals(Libc::Gnu, script, 25);
    }
}
