// SPDX-License-Identifier: Apache-2.0
//! A pod with two attached interfaces, each with an uplink and an overlay of its own: one program sends by both, as the
//! pod's own routes choose.

use std::process::Child;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, port};
use ktsn_tests::faults::second::{self, FAR1, NET1};
use ktsn_tests::faults::tap::tai_now;
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook;

const SOON: Duration = Duration::from_secs(20);
const COUNT: usize = 40;

/// What the machine does to the program must not cost a frame: late ones are sent.
fn first(bed: &Bed) -> Attachment {
    Attachment::pod_a(bed).to(&["10.244.0.0/16", "10.250.0.0/16"])
}

fn start(bed: &Bed) -> Daemon {
    second::link(bed);
    let configuration = format!(
        "{}{}{}{}",
        port("auto"),
        port("auto").replace(UPLINK, "up2"),
        first(bed).toml(),
        second::attachment(&first(bed))
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration);
    daemon.spawn();
    daemon
}

fn program(daemon: &Daemon, bed: &Bed, how: &str, count: usize, rest: &[&str]) -> Child {
    let program = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/several_ways.py");
    let mut command = hook::hooked("python3", daemon.run_dir());
    command.arg(program).arg(how).arg(count.to_string()).args([POD_B, FAR1]).args(rest);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    within(&bed.pod_a, || command.spawn()).expect("python3")
}

fn run(daemon: &Daemon, bed: &Bed, how: &str, rest: &[&str]) {
    let output = program(daemon, bed, how, COUNT, rest).wait_with_output().expect("python3");
    let values = hook::values(&output);
    assert_eq!(values["failed"], 0, "{how}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Everything that a sender sent came by this tap, each once and in order, not early, and in VXLAN; nothing by the other.
fn came(way: &Tap, other: &Tap, sender: u32, source: &str) {
    let arrived = way.wait(sender, COUNT, SOON);
    let numbers: Vec<u64> = arrived.iter().map(|arrival| arrival.sequence).collect();
    assert_eq!(numbers, (0..COUNT as u64).collect::<Vec<_>>(), "sender {sender}");
    let is_right = |a: &ktsn_tests::faults::tap::Arrival| a.is_overlay && a.after_ns >= 0;
    assert!(arrived.iter().all(is_right), "sender {sender}: {arrived:?}");
    assert!(arrived.iter().all(|a| a.source.to_string() == source), "sender {sender}: {arrived:?}");
    assert!(other.of(sender).is_empty(), "sender {sender} by both");
}

/// A socket has one send buffer, whichever way its datagrams leave.
#[test]
fn a_send_buffer_is_one_over_both_interfaces() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let filled = |to: [&str; 2]| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/several_ways.py");
        let mut command = hook::hooked("python3", daemon.run_dir());
        command.arg(path).args(["buffer", "1"]).args(to);
        let values = hook::values(&within(&bed.pod_a, || command.output()).expect("python3"));
        assert_eq!(values["failed"], 1);
        values["sent"]
    };
    let alone = filled([POD_B, POD_B]);
    assert!((2..100).contains(&alone), "{alone} datagrams in a buffer of 16 KiB");
    assert_eq!(filled([POD_B, FAR1]), alone);
}

#[test]
fn one_program_sends_by_both_interfaces_of_its_pod() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let (first, second) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.host_b, "up2"));
    let pods_a = "10.244.0.5";
    run(&daemon, &bed, "alternate", &[]);
    came(&first, &second, 1, pods_a);
    came(&second, &first, 2, NET1);
    run(&daemon, &bed, "connected", &[]);
    came(&first, &second, 3, pods_a);
    came(&second, &first, 4, NET1);
    // A device of its own: what the routes send elsewhere is the kernel's, and leaves neither way through KTSN.
    run(&daemon, &bed, "device", &["eth0", "net1"]);
    came(&first, &second, 5, pods_a);
    came(&second, &first, 8, NET1);
    assert!(second.of(6).is_empty() && first.of(7).is_empty());
    // So does an address: the kernel sends with the source that the program asked for.
    run(&daemon, &bed, "source", &[pods_a, NET1]);
    came(&first, &second, 9, pods_a);
    came(&second, &first, 12, NET1);
    // So does a message: what it asks for is what KTSN does anyway, or the kernel's.
    run(&daemon, &bed, "info", &["eth0", "net1"]);
    came(&first, &second, 15, pods_a);
    came(&second, &first, 18, NET1);
    assert!(second.of(16).is_empty() && first.of(17).is_empty());
    let (first, second) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.host_b, "up2"));
    run(&daemon, &bed, "info", &[pods_a, NET1]);
    came(&first, &second, 15, pods_a);
    came(&second, &first, 18, NET1);
    // Packet sockets name their interface.
    let hosts = ["pod5", "second5"].map(|device| Tap::open(&bed.host_a, device));
    run(&daemon, &bed, "packet", &["eth0", "net1"]);
    for (sender, tap) in [(13, &hosts[0]), (14, &hosts[1])] {
        let arrived = tap.wait(sender, COUNT, SOON);
        assert_eq!(arrived.len(), COUNT, "sender {sender}");
        assert!(arrived.iter().all(|a| a.after_ns >= 0), "{arrived:?}");
    }
    let mut control = daemon.control();
    let own = |count: usize| (COUNT * count) as u64;
    for name in [NAME, "net1"] {
        let counters = control.counters_of(name, own(7), SOON);
        assert_eq!((counters.taken, counters.sent), (own(7), own(7)), "{name}: {counters:?}");
    }
    // One process is a client of each attachment.
    let mut child = program(&daemon, &bed, "alternate", 2000, &[]);
    let listed = || {
        let list = daemon.control().list();
        let pids: Vec<Vec<u32>> =
            list.attachments.iter().map(|a| a.clients.iter().map(|c| c.pid).collect()).collect();
        pids == [[child.id()], [child.id()]]
    };
    eventually("both list the process", SOON, listed);
    child.kill().expect("kill");
    child.wait().expect("wait");
    eventually("the process is gone from both", SOON, || daemon.clients() == 0);
}

/// One attachment goes while the other goes on: what was its is lost as on a link without carrier, never sent by the
/// kernel at once; it comes back by itself. An attachment that comes later is used by programs that run.
#[test]
fn one_attachment_goes_and_comes_back_beside_the_other() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let (first, second) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.host_b, "up2"));
    let kernels = Tap::open(&bed.host_a, "second5");
    let child = program(&daemon, &bed, "alternate", 1500, &[]);
    eventually("traffic on both", SOON, || second.of(2).len() > 100 && first.of(1).len() > 100);
    let attached = daemon.control().list().attachments;
    let net1 = attached.iter().find(|a| a.name == "net1").expect("net1").clone();
    daemon.control().detach("net1").expect("detach");
    let detached = tai_now();
    let before = first.of(1).len();
    eventually("the other goes on", SOON, || first.of(1).len() > before + 200);
    // The tap may have been told late of what had left before.
    let later: Vec<_> = second.of(2).into_iter().filter(|a| a.at() > detached).collect();
    assert!(later.is_empty(), "frames of a detached attachment left: {later:?}");
    let lost_from = second.of(2).len();
    assert!(kernels.of(2).is_empty(), "{:?}", kernels.of(2));
    let again = net1.fields();
    daemon.control().attach(again).expect("attach");
    eventually("traffic on both again", SOON, || second.of(2).len() > lost_from + 100);
    let output = child.wait_with_output().expect("python3");
    assert_eq!(hook::values(&output)["failed"], 0);
    let numbers: Vec<u64> = first.wait(1, 1500, SOON).iter().map(|a| a.sequence).collect();
    assert_eq!(numbers, (0..1500).collect::<Vec<_>>());
    eventually("the last of the others", SOON, || second.of(2).iter().any(|a| a.sequence == 1499));
    let came: Vec<u64> = second.of(2).iter().map(|a| a.sequence).collect();
    assert!(came.is_sorted() && came.last() == Some(&1499) && came.len() < 1500, "{}", came.len());
    assert!(kernels.of(2).is_empty() && first.early().is_empty() && second.early().is_empty());
}

/// The daemon is killed under a program that sends by both: what was lost is counted at the attachment whose it was.
#[test]
fn what_a_killed_daemon_took_along_is_counted_at_its_own_attachment() {
    let bed = Bed::new();
    let mut daemon = start(&bed);
    let (first, second) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.host_b, "up2"));
    let child = program(&daemon, &bed, "alternate", 5000, &[]);
    eventually("traffic on both", SOON, || second.of(2).len() > 100 && first.of(1).len() > 100);
    daemon.kill();
    // The program sends while no ktsnd runs.
    std::thread::sleep(Duration::from_millis(300));
    let before = [first.of(1).len(), second.of(2).len()];
    daemon.spawn();
    eventually("traffic on both again", SOON, || {
        first.of(1).len() > before[0] + 100 && second.of(2).len() > before[1] + 100
    });
    assert_eq!(hook::values(&child.wait_with_output().expect("python3"))["failed"], 0);
    let is_last = |tap: &Tap, sender| tap.of(sender).iter().any(|a| a.sequence == 4999);
    eventually("the last frames", SOON, || is_last(&first, 1) && is_last(&second, 2));
    for (name, came) in [(NAME, first.of(1).len()), ("net1", second.of(2).len())] {
        let absent = reason(&daemon.control().counters(name).dropped, "daemon_absent");
        let lost = 5000 - came as u64;
        // The fate of the frame that it was just handing over is unknown.
        assert!(lost > 0 && (lost..=lost + 1).contains(&absent), "{name}: {absent} counted, {lost} lost");
    }
}
