// SPDX-License-Identifier: Apache-2.0
//! Timed packet sockets (AF_PACKET) of an ordinary program, with the shipped library and daemon: what reaches the wire
//! and when, what the kernel gets, what a call answers.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, POD_Q, UPLINK, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::frames::{Arrived, Frames, Kind, talker};
use ktsn_tests::faults::stands_still;
use ktsn_tests::faults::talker::talk;
use ktsn_tests::hook;

const SOON: Duration = Duration::from_secs(20);
/// Nobody's: the bridge floods it.
const PEER: &str = "02:00:00:00:99:01";
/// The host's end of pod A's interface.
const HOST_END: &str = "pod5";

fn mac(text: &str) -> Vec<u8> {
    text.split(':').map(|octet| u8::from_str_radix(octet, 16).expect("octet")).collect()
}

fn own_mac(bed: &Bed) -> Vec<u8> {
    let shown =
        Command::new("ip").args(["-n", &bed.pod_a, "-o", "link", "show", "eth0"]).output().expect("ip");
    let text = String::from_utf8(shown.stdout).expect("text");
    mac(text.split("link/ether ").nth(1).expect("Ethernet")[..17].trim())
}

fn arguments(destination: &str, kind: Kind, count: u64, lead_us: u64, gap_us: u64) -> Vec<String> {
    let mut all = vec!["eth0".to_owned(), destination.to_owned(), "frames".to_owned()];
    all.extend([kind as u64, count, lead_us, gap_us].map(|value| value.to_string()));
    all
}

/// Runs the talker in pod A to its end.
fn send(
    daemon: &Daemon,
    bed: &Bed,
    destination: &str,
    kind: Kind,
    count: u64,
    lead_us: u64,
) -> BTreeMap<String, i64> {
    let child = daemon.program(&bed.pod_a, talker(), &arguments(destination, kind, count, lead_us, 1_000));
    let values = hook::values(&child.wait_with_output().expect("talker"));
    assert_eq!((values["sent"], values["failed"]), (count.cast_signed(), 0), "{kind:?} {values:?}");
    values
}

/// The octets before the talker's payload.
fn headers(own: &[u8], kind: Kind) -> Vec<u8> {
    let rest: &[u8] = match kind {
        Kind::Tagged => &[0x81, 0x00, 0xa0, 0x07, 0x88, 0x92],
        Kind::Ipv4 => {
            &[0x08, 0x00, 0x45, 0, 0, 84, 0, 0, 0x40, 0, 1, 253, 0, 0, 10, 244, 0, 5, 10, 244, 0, 6]
        }
        _ => &[0x22, 0xf0],
    };
    let foreign = [2, 0, 0, 0, 0xee, 0xee];
    [&mac(PEER)[..], if kind == Kind::Foreign { &foreign } else { own }, rest].concat()
}

/// Their numbers, sorted: receive queues belong to CPUs, and where the worker, which is no real-time thread here, moves
/// from one to the other between two frames the listener may be shown the second one first.
fn numbers(arrived: &[Arrived]) -> Vec<u64> {
    let mut numbers: Vec<u64> = arrived.iter().map(|a| a.number).collect();
    numbers.sort_unstable();
    numbers
}

/// All arrived once, octet by octet as they should be.
fn check(arrived: &[Arrived], count: u64, headers: &[u8]) {
    assert_eq!(numbers(arrived), (0..count).collect::<Vec<u64>>());
    for a in arrived {
        assert_eq!(a.frame, a.expected(headers), "number {}", a.number);
    }
}

/// They waited: without a schedule each would be 20 ms early or more. How late they are is not for this machine to say.
fn waited(arrived: &[Arrived]) {
    assert!(arrived.iter().all(|a| a.after_ns >= 0), "early: {arrived:?}");
}

fn bypassed(daemon: &Daemon, word: &str, count: u64) {
    eventually(format!("{count} {word}"), SOON, || {
        let counters = daemon.control().counters(NAME);
        reason(&counters.bypassed, word) == count
    });
}

#[test]
fn every_kind_of_frame_leaves_at_its_time_octet_by_octet() {
    let bed = Bed::new();
    let own = own_mac(&bed);
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).to(&["10.244.0.0/16"])]);
    let kinds = [Kind::Raw, Kind::Tagged, Kind::Ipv4, Kind::Datagram, Kind::Bound, Kind::Many, Kind::Split];
    for (done, kind) in (0u64..).zip(kinds) {
        let tap = Frames::open(&bed.host_a, HOST_END);
        send(&daemon, &bed, PEER, kind, 40, 50_000);
        let arrived = tap.wait(40, SOON);
        assert!(arrived.iter().all(|a| a.kind == kind as u32));
        check(&arrived, 40, &headers(&own, kind));
        waited(&arrived);
        let counters = daemon.control().counters_of(NAME, 40 * (done + 1), SOON);
        assert_eq!((counters.taken, counters.sent), (40 * (done + 1), 40 * (done + 1)), "{counters:?}");
    }
    let counters = daemon.control().counters(NAME);
    assert!(counters.dropped.is_empty() && counters.bypassed.is_empty(), "{counters:?}");
}

/// [802.1Q 6.9] `vlan` and `pcp`: frames without a tag get this one, frames with it are left alone, frames with another
/// go to the kernel.
#[test]
fn a_configured_tag_is_added_once() {
    let bed = Bed::new();
    let own = own_mac(&bed);
    for (vlan, taken) in [(7, 20), (8, 0)] {
        let attachment = Attachment::pod_a(&bed).with(&format!("vlan = {vlan}\npcp = 3"));
        let daemon = Daemon::start(&bed, &[attachment]);
        let mut tagged = headers(&own, Kind::Raw);
        tagged.splice(12..12, [0x81, 0x00, 0x60, vlan]);
        for kind in [Kind::Raw, Kind::Datagram] {
            let tap = Frames::open(&bed.host_a, HOST_END);
            send(&daemon, &bed, PEER, kind, 20, 20_000);
            let arrived = tap.wait(20, SOON);
            check(&arrived, 20, &tagged);
            waited(&arrived);
        }
        let tap = Frames::open(&bed.host_a, HOST_END);
        send(&daemon, &bed, PEER, Kind::Tagged, 20, 20_000);
        check(&tap.wait(20, SOON), 20, &headers(&own, Kind::Tagged));
        let counters = daemon.control().counters_of(NAME, 40 + taken, SOON);
        assert_eq!(counters.sent, 40 + taken, "{counters:?}");
        bypassed(&daemon, "not_allowed", 20 - taken);
    }
}

/// Datagrams by the interface get the tag too; through the tunnel there is none.
#[test]
fn datagrams_get_the_configured_tag_by_the_interface() {
    let bed = Bed::new();
    let own = own_mac(&bed);
    let attachment = Attachment::pod_a(&bed).to(&["10.244.0.0/16"]).with("vlan = 7\npcp = 5");
    let daemon = Daemon::start(&bed, &[attachment]);
    bed.run(&format!("ip -n {} neigh replace {POD_Q} lladdr {PEER} dev eth0 nud permanent", bed.pod_a));
    let (tap, uplink) = (Frames::open(&bed.host_a, HOST_END), Frames::open(&bed.host_b, UPLINK));
    // The neighbour was made just now.
    eventually("the daemon knows the neighbour", SOON, || {
        talk(&daemon, &bed.pod_a, POD_Q, 1, "count=1 clock=1");
        !tap.wait(1, Duration::from_millis(500)).is_empty()
    });
    let before = tap.arrived().len();
    talk(&daemon, &bed.pod_a, POD_Q, 1, "count=10 clock=1");
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=10 clock=1");
    let arrived = tap.wait(before + 10, SOON);
    assert_eq!(arrived.len(), before + 10);
    let tagged = [&mac(PEER)[..], &own, &[0x81, 0x00, 0xa0, 0x07, 0x08, 0x00, 0x45]].concat();
    assert!(arrived.iter().all(|a| a.frame.starts_with(&tagged) && a.after_ns >= 0), "{arrived:?}");
    let arrived = uplink.wait(10, SOON);
    assert_eq!(arrived.len(), 10);
    assert!(arrived.iter().all(|a| a.kind == 2 && a.frame[12..14] == [0x08, 0x00]), "{arrived:?}");
}

/// What the attachment does not allow goes to the kernel at its time, with a named reason: a foreign source, reserved groups,
/// MAC addresses (where these are listed) and IP destinations that are not.
#[test]
fn what_is_not_allowed_is_the_kernels_at_its_time() {
    let bed = Bed::new();
    let own = own_mac(&bed);
    let lldp = "01:80:c2:00:00:0e";
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    for (destination, kind) in [(PEER, Kind::Foreign), (lldp, Kind::Raw), (lldp, Kind::Datagram)] {
        let tap = Frames::open(&bed.host_a, HOST_END);
        send(&daemon, &bed, destination, kind, 10, 500_000);
        let arrived = tap.wait(10, SOON);
        let mut expected = headers(&own, kind);
        expected[..6].copy_from_slice(&mac(destination));
        check(&arrived, 10, &expected);
        assert!(arrived.iter().all(|a| a.after_ns >= 0), "{kind:?}: {arrived:?}");
    }
    assert_eq!(daemon.control().counters(NAME).taken, 0);
    bypassed(&daemon, "not_allowed", 30);
    drop(daemon);

    let listed = Attachment::pod_a(&bed).to(&[lldp, "10.244.0.0/24"]).with("ethernet = \"listed\"");
    let daemon = Daemon::start(&bed, &[listed]);
    for (destination, kind) in [(lldp, Kind::Raw), (PEER, Kind::Ipv4), (PEER, Kind::Raw)] {
        let tap = Frames::open(&bed.host_a, HOST_END);
        send(&daemon, &bed, destination, kind, 10, 500_000);
        let arrived = tap.wait(10, SOON);
        assert_eq!(arrived.len(), 10);
        assert!(arrived.iter().all(|a| a.after_ns >= 0), "{kind:?} to {destination}");
    }
    let counters = daemon.control().counters_of(NAME, 20, SOON);
    assert_eq!((counters.taken, counters.sent), (20, 20), "{counters:?}");
    bypassed(&daemon, "not_allowed", 10);
}

fn answers(mut command: Command, namespace: &str) -> Vec<String> {
    command.args(["eth0", PEER, "errnos"]).stdin(Stdio::null());
    let output = within(namespace, || command.output()).expect("talker");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// Short and long frames, odd names and options: each call answers what it answers on the kernel alone, with a daemon,
/// without one, and where the interface is down.
#[test]
fn every_odd_call_answers_as_on_the_kernel_alone() {
    let bed = Bed::new();
    let alone = answers(Command::new(talker()), &bed.pod_a);
    assert!(alone.len() > 100, "{alone:?}");
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let hooked = || hook::hooked(talker(), daemon.run_dir());
    assert_eq!(answers(hooked(), &bed.pod_a), alone);
    let counters = daemon.control().counters(NAME);
    assert!(counters.taken > 20 && counters.dropped.is_empty(), "{counters:?}");

    bed.run(&format!("ip -n {} link set eth0 down", bed.pod_a));
    let down = answers(Command::new(talker()), &bed.pod_a);
    assert_ne!(down, alone);
    eventually("the daemon has seen it", SOON, || {
        let seen = answers(hooked(), &bed.pod_a);
        seen == down
    });
    bed.run(&format!("ip -n {} link set eth0 up", bed.pod_a));
    let run_dir = daemon.run_dir().to_owned();
    daemon.kill();
    assert_eq!(answers(hook::hooked(talker(), &run_dir), &bed.pod_a), alone, "never attached");
}

/// The program dies at a system call that is no doorbell; how long a send takes is said, and not judged here.
#[test]
fn a_send_costs_no_system_call() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let all = ["eth0", PEER, "cost"].map(str::to_owned);
    let child = daemon.program(&bed.pod_a, talker(), &all);
    let values = hook::values(&child.wait_with_output().expect("talker"));
    println!(
        "an intercepted sendmsg: SOCK_RAW {} ns, SOCK_DGRAM {} ns",
        values["raw-ns"], values["dgram-ns"]
    );
    eventually("all were taken", SOON, || daemon.control().counters(NAME).taken == 800);
}

/// The daemon is killed under a program: sends go on succeeding without waiting, nothing reaches the wire behind the
/// schedule's back, and with a new daemon frames leave again.
#[test]
fn a_killed_daemon_returns() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Frames::open(&bed.host_a, HOST_END);
    let all = arguments(PEER, Kind::Raw, 8_000, 5_000, 1_000);
    let child = daemon.program(&bed.pod_a, talker(), &all);
    eventually("frames leave", SOON, || tap.arrived().len() > 200);
    daemon.kill();
    let before = stands_still("what had left arrives", SOON, || tap.arrived().len());
    // The program goes on sending.
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(tap.arrived().len(), before, "nothing behind the schedule's back");
    daemon.spawn();
    let values = hook::values(&child.wait_with_output().expect("talker"));
    assert_eq!((values["sent"], values["failed"]), (8_000, 0), "{values:?}");
    assert_eq!(values["waits"], 0, "a send waits for no daemon: {values:?}");
    let arrived = tap.wait(before + 1, SOON);
    assert!(arrived.iter().all(|a| a.after_ns >= 0), "early");
    let numbers = numbers(&arrived);
    assert!(numbers.is_sorted_by(|a, b| a < b), "each once");
    assert_eq!(numbers.last(), Some(&7_999));
    let counters = daemon.control().counters(NAME);
    assert!(reason(&counters.dropped, "daemon_absent") > 0, "{counters:?}");
    let later = (arrived.len() - before) as u64;
    eventually("all are counted", SOON, || daemon.control().counters(NAME).sent == later);
}
