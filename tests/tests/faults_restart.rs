// SPDX-License-Identifier: Apache-2.0
//! The daemon is killed and started again under traffic.

use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::tap::{Arrival, tai_now};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);
/// Frames that the dead daemon's last system call sent have arrived after so long.
const ON_THE_WAY: i64 = 50_000_000;

/// The program neither blocks nor dies, no frame is early, it is attached again, and what was lost is
/// counted as `daemon_absent`: what the daemon took along, too.
#[test]
fn killed_and_started_again() {
    let bed = Bed::new();
    let mut daemon = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    // It lasts until the daemon is found again, however long that takes.
    let keys = "count=60000 last=500 lead_us=100000";
    let mut talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, keys);
    eventually("traffic", SOON, || tap.of(1).len() > 500);
    daemon.kill();
    let killed = tai_now();
    // The program sends while no ktsnd runs.
    std::thread::sleep(Duration::from_millis(500));
    let restarted = tai_now();
    daemon.spawn();
    let serving = tai_now();
    let tenth = || tap.of(1).iter().map(Arrival::at).filter(|at| *at > serving).nth(10);
    eventually("attached again", SOON, tenth);
    talker.go();
    let (values, errors) = talker.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    let sent = values["sent"].cast_unsigned();
    // A send may not wait for a daemon.
    assert_eq!(values["waits"], 0, "{values:?}");
    eventually("the last frame", SOON, || tap.of(1).last().filter(|a| a.sequence == sent - 1).cloned());
    let arrived = tap.of(1);
    // Nothing leaves behind the schedule's back.
    let behind = arrived.iter().filter(|a| (killed + ON_THE_WAY..restarted).contains(&a.at())).count();
    assert_eq!(behind, 0);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert!(arrived.is_sorted_by_key(|a| a.sequence), "reordered");
    assert!(arrived.windows(2).all(|pair| pair[0].sequence != pair[1].sequence), "duplicated");
    let counters = daemon.control().counters(NAME);
    let absent = reason(&counters.dropped, "daemon_absent");
    let lost = sent - arrived.len() as u64;
    // The fate of the frame that it was just handing over is unknown.
    assert!(
        lost > 0 && (lost..=lost + 1).contains(&absent),
        "daemon_absent {absent}, {lost} lost: {counters:?}"
    );
}

/// Started after the program: the program was on the kernel, and the next one is served.
#[test]
fn a_program_without_a_daemon_goes_by_the_kernel() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    daemon.kill();
    let socket = ktsn_tests::faults::bed::within(&bed.pod_b, || {
        std::net::UdpSocket::bind((POD_B, ktsn_tests::faults::talker::PORT))
    })
    .expect("listener");
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    let (values, errors) = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=3").finish();
    assert_eq!(values["failed"], 0, "{errors}");
    assert_eq!(errors.lines().count(), 1, "one warning: {errors}");
    assert_eq!(socket.recv(&mut [0; 100]).expect("by the kernel"), 64);
    daemon.spawn();
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=3");
    assert_eq!(tap.wait(2, 3, SOON).len(), 3);
    assert_eq!(daemon.control().counters_of(NAME, 3, SOON).sent, 3);
}

/// The daemon starts after the program, which has been on the kernel: then its frames are the daemon's,
/// and none goes to the kernel any more.
#[test]
fn a_program_is_found_by_a_later_daemon() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    daemon.kill();
    let keys = "count=600 period_us=10000 lead_us=1000000";
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, keys);
    eventually("the kernel's frames", SOON, || tap.of(1).len() > 5);
    daemon.spawn();
    let (values, errors) = talker.finish();
    assert_eq!((values["failed"], values["sent"]), (0, 600), "{errors}");
    let last = |a: &Vec<Arrival>| a.last().is_some_and(|a| a.sequence == 599);
    let arrived = eventually("the last frame", SOON, || Some(tap.of(1)).filter(last));
    let early = tap.early();
    let numbers: Vec<u64> = early.iter().map(|a| a.sequence).collect();
    assert!(early.len() > 5 && numbers == (0..early.len() as u64).collect::<Vec<_>>(), "{numbers:?}");
    assert!(arrived.len() > early.len(), "the daemon has found the program");
    let ours = (arrived.len() - early.len()) as u64;
    assert_eq!(daemon.control().counters_of(NAME, ours, SOON).sent, ours);
}

/// A daemon that takes longer to answer than the program waits: the answer is used when it comes.
#[test]
fn a_late_answer_is_used() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let pid = rustix::process::Pid::from_raw(daemon.pid().cast_signed()).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("signal");
    let keys = "count=21 burst=1 lead_us=8000000 period_us=1000 settle_ms=3000";
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, keys);
    eventually("the kernel's frame", SOON, || tap.of(1).len() == 1);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("signal");
    let (values, errors) = talker.finish();
    assert_eq!((values["failed"], values["sent"]), (0, 21), "{errors}");
    assert_eq!(tap.wait(1, 21, SOON).len(), 21);
    let early: Vec<u64> = tap.early().iter().map(|a| a.sequence).collect();
    assert_eq!(early, [0]);
    assert_eq!(daemon.control().counters_of(NAME, 20, SOON).sent, 20);
}

/// Ten restarts in a row under one program.
#[test]
fn again_and_again() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=100000 lead_us=5000");
    for round in 0..10 {
        let before = tap.of(1).len();
        eventually("traffic", SOON, || tap.of(1).len() > before + 20);
        daemon.kill();
        // Also within the time in which the program looks for it.
        std::thread::sleep(Duration::from_millis(round * 30));
        daemon.spawn();
    }
    let before = tap.of(1).len();
    eventually("traffic", SOON, || tap.of(1).len() > before + 20);
    assert!(talker.child().try_wait().expect("talker").is_none(), "the program died");
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert_eq!(daemon.clients(), 1);
    // The queue of the one before is free again: no restart costs the better adapter.
    let ports = daemon.control().list().ports;
    assert!(ports.iter().any(|p| p.device == UPLINK && p.adapter == "af_xdp"), "{ports:?}");
}
