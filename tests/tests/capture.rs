// SPDX-License-Identifier: Apache-2.0
//! Kernel capture: programs that nothing can be preloaded into, a static Go one and a static C one, behind a veth.

#[allow(dead_code)]
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_B6, POD_Q, UPLINK, within};
use ktsn_tests::faults::control::{reason, with};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::PORT;
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook;
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);

/// The programs, statically linked, built once.
fn programs() -> &'static (PathBuf, PathBuf) {
    static PROGRAMS: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let directory = hook::lasting_directory();
        let source = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name);
        let (go, c) = (directory.join("capture_talker"), directory.join("static_talker"));
        let build = |command: &mut Command| {
            let output = command.output().expect("the compiler");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        build(
            Command::new("go")
                .args(["build", "-buildvcs=false", "-o"])
                .arg(&go)
                .arg(source("capture_talker.go"))
                .env("CGO_ENABLED", "0")
                .env("GO111MODULE", "off"),
        );
        build(
            Command::new("gcc")
                .args(["-std=gnu11", "-O1", "-static", "-o"])
                .arg(&c)
                .arg(source("faults_talker.c")),
        );
        (go, c)
    })
}

fn go() -> &'static Path {
    &programs().0
}

fn c() -> &'static Path {
    &programs().1
}

/// Runs a talker in `namespace` without any library; every send must have succeeded.
fn talk(namespace: &str, program: &Path, to: &str, sender: u32, keys: &str) {
    let mut command = Command::new(program);
    command.args([to, &PORT.to_string(), &format!("sender={sender}")]).args(keys.split_whitespace());
    let child =
        within(namespace, || command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()).expect("talker");
    let output = child.wait_with_output().expect("talker");
    let values = hook::values(&output);
    assert_eq!(values["failed"], 0, "{output:?}");
}

fn captured(bed: &Bed) -> Attachment {
    Attachment::pod_a(bed).with("capture = \"kernel\"")
}

#[test]
fn all_frames_of_a_static_go_program_leave_at_their_times() {
    let bed = Bed::new();
    let daemon = Daemon::start_in_order(&bed, &[captured(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&bed.pod_a, go(), POD_B, 1, "count=5000 period_us=1000 lead_us=250000");
    let arrived = tap.wait(1, 5000, SOON);
    assert_eq!(arrived.len(), 5000, "{:?}", daemon.control().counters(NAME));
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert!(arrived.iter().all(|a| a.is_overlay && a.source.to_string() == POD_A && !a.is_fragment));
    assert!(arrived.iter().map(|a| a.sequence).eq(0..5000), "order");
    let counters = daemon.control().counters_of(NAME, 5000, SOON);
    assert_eq!((counters.taken, counters.sent), (5000, 5000), "{counters:?}");
    assert!(counters.dropped.is_empty(), "{counters:?}");
}

#[test]
fn both_clocks_both_families_both_languages() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[captured(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    // Sockets hear them, so checksums are whole.
    let sockets = within(&bed.pod_b, || {
        [POD_B, POD_B6].map(|address| UdpSocket::bind((address, PORT)).expect("listener"))
    });
    let mut sender = 0;
    for program in [go(), c()] {
        for (to, socket) in [POD_B, POD_B6].iter().zip(&sockets) {
            socket.set_read_timeout(Some(SOON)).expect("timeout");
            for clock in [1, 11] {
                sender += 1;
                talk(
                    &bed.pod_a,
                    program,
                    to,
                    sender,
                    &format!("count=50 octets=333 lead_us=100000 clock={clock}"),
                );
                assert_eq!(tap.wait(sender, 50, SOON).len(), 50, "{to} {clock}");
                for _ in 0..50 {
                    let (octets, from) = socket.recv_from(&mut [0; 2000]).expect("a datagram");
                    assert_eq!(octets, 333);
                    assert!(from.is_ipv6() || from.ip().to_string() == POD_A);
                }
            }
        }
    }
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert_eq!(daemon.control().counters_of(NAME, 400, SOON).sent, 400);
}

#[test]
fn a_gso_packet_leaves_as_its_datagrams() {
    let bed = Bed::new();
    let daemon = Daemon::start_in_order(&bed, &[captured(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let socket = within(&bed.pod_b, || UdpSocket::bind((POD_B, PORT)).expect("listener"));
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    // Room for all of them: the listener may run late.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("buffer");
    let hearing = std::thread::spawn(move || {
        (0..800).all(|_| socket.recv(&mut [0; 2000]).is_ok_and(|octets| octets == 1200))
    });
    talk(&bed.pod_a, go(), POD_B, 1, "count=20 gso=40 octets=1200 lead_us=300000 period_us=10000");
    let arrived = tap.wait(1, 800, SOON);
    assert_eq!(arrived.len(), 800, "{:?}", daemon.control().counters(NAME));
    assert!(arrived.iter().map(|a| a.sequence).eq(0..800), "order");
    assert!(arrived.chunks(40).all(|sent| sent.iter().all(|a| a.tx_time == sent[0].tx_time)));
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert!(hearing.join().expect("the listener"), "with right checksums");
    assert_eq!(daemon.control().counters_of(NAME, 800, SOON).sent, 800);
}

#[test]
fn everything_else_is_untouched() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[captured(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    bed.stream_is_byte_exact();
    talk(&bed.pod_a, c(), POD_B, 1, "untimed=1 count=300");
    assert_eq!(tap.wait(1, 300, SOON).len(), 300);
    // Timed, but not for us: over the MTU; a destination that is not allowed; a foreign port of the host.
    talk(&bed.pod_a, c(), POD_B, 2, "count=20 octets=4000 lead_us=1000");
    assert_eq!(tap.wait(2, 20, SOON).len(), 20);
    let neighbour = within(&bed.pod_q, || UdpSocket::bind((POD_Q, PORT)).expect("listener"));
    neighbour.set_read_timeout(Some(SOON)).expect("timeout");
    talk(&bed.pod_a, c(), POD_Q, 3, "count=20 lead_us=1000");
    for _ in 0..20 {
        assert_eq!(neighbour.recv(&mut [0; 100]).expect("by the kernel"), 64);
    }
    let counters = eventually("counted", SOON, || {
        let counters = daemon.control().counters(NAME);
        (reason(&counters.bypassed, "not_allowed") == 20).then_some(counters)
    });
    assert_eq!((counters.taken, counters.sent), (0, 0), "{counters:?}");
    assert!(reason(&counters.bypassed, "no_txtime") >= 300, "{counters:?}");
    assert!(reason(&counters.bypassed, "over_mtu") >= 60, "three pieces each: {counters:?}");
}

#[test]
fn a_peer_on_the_same_node_is_served_by_the_interface() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[captured(&bed).to(&["10.244.0.0/16"])]);
    let tap = Tap::open(&bed.pod_q, "eth0");
    talk(&bed.pod_a, go(), POD_Q, 1, "count=200 lead_us=8000000");
    assert_eq!(tap.wait(1, 200, SOON).len(), 200, "{:?}", daemon.control().counters(NAME));
    assert!(tap.early().is_empty(), "{:?}", tap.early());
}

#[test]
fn a_program_that_somebody_takes_off_is_put_there_again() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[captured(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let [link] = daemon.links()[..] else { panic!("one link") };
    let detached =
        Command::new("bpftool").args(["link", "detach", "id", &link.to_string()]).output().expect("bpftool");
    assert!(detached.status.success(), "{detached:?}");
    eventually("attached again", SOON, || daemon.control().counters(NAME).capture_reattached == 1);
    talk(&bed.pod_a, go(), POD_B, 1, "count=100 lead_us=100000");
    assert_eq!(tap.wait(1, 100, SOON).len(), 100);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    assert!(daemon.log().contains("the capture program was removed from the veth"));
}

#[test]
fn without_the_daemon_frames_take_the_kernels_way_at_once() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[captured(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&bed.pod_a, go(), POD_B, 1, "count=100 lead_us=100000");
    assert_eq!(tap.wait(1, 100, SOON).len(), 100);
    daemon.kill();
    // Nothing keeps the time behind a veth then: all of them come, and early.
    talk(&bed.pod_a, go(), POD_B, 2, "count=100 lead_us=20000000");
    assert_eq!(tap.wait(2, 100, SOON).len(), 100);
    assert_eq!(tap.early().len(), 100);
    daemon.spawn();
    talk(&bed.pod_a, go(), POD_B, 3, "count=100 lead_us=100000");
    assert_eq!(tap.wait(3, 100, SOON).len(), 100);
    assert_eq!(tap.early().len(), 100, "none of the third");
    // A daemon that ends in order sends what it has.
    talk(&bed.pod_a, c(), POD_B, 4, "burst=1 count=50 lead_us=300000");
    assert_eq!(daemon.terminate(SOON), Some(0));
    assert_eq!(tap.wait(4, 50, SOON).len(), 50);
    assert_eq!(tap.early().len(), 100, "none of the fourth");
}

#[test]
fn everything_is_let_go_with_the_namespace() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[captured(&bed)]);
    assert_eq!(daemon.links().len(), 1);
    bed.delete(&bed.pod_a);
    eventually("let go", SOON, || !bed.has_link("pod5") && daemon.links().is_empty());
    eventually("no map or program is held", SOON, || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).expect("descriptors");
        let held = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        held.into_iter().all(|target| !target.to_string_lossy().contains("bpf"))
    });
}

#[test]
fn what_has_no_host_end_is_refused() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[]);
    bed.run(&format!("ip -n {} link add dummy0 type bridge\nip -n {0} link set dummy0 up", bed.pod_a));
    let attachment = attachment_of(&bed);
    let refused = daemon.control().attach(attachment).expect_err("no veth");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    assert!(refused.message().contains("attachment.capture"), "{refused:?}");
    assert!(daemon.control().list().attachments.is_empty());
    // Nothing of it is left: another one goes there.
    let other = with(attachment_of(&bed), &json!({ "interface": "eth0" }));
    assert!(!daemon.control().attach(other).expect("attached"));
    assert_eq!(daemon.links().len(), 1);
    daemon.control().detach("d").expect("detached");
    assert!(daemon.links().is_empty());
}

fn attachment_of(bed: &Bed) -> Value {
    json!({
        "name": "d", "netns": bed.pod_a, "interface": "dummy0", "uplink": UPLINK, "capture": "kernel",
    })
}

#[test]
fn ktsn_run_says_whether_capture_serves() {
    let bed = Bed::new();
    let other =
        Attachment { name: "pod-q".to_owned(), namespace: bed.pod_q.clone(), ..Attachment::pod_a(&bed) };
    let daemon = Daemon::start(&bed, &[captured(&bed), other]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let run = |namespace: &str| {
        let mut command = ktsn_tests::cli::ktsn();
        command
            .args(["run", "--policy", "strict", "--capture", "kernel", "--run-dir"])
            .arg(daemon.run_dir())
            .arg("--");
        command.arg(go()).args([POD_B, &PORT.to_string(), "sender=1", "count=100", "lead_us=100000"]);
        within(namespace, || command.output()).expect("ktsn")
    };
    let served = run(&bed.pod_a);
    assert!(served.status.success() && served.stderr.is_empty(), "{served:?}");
    assert_eq!(tap.wait(1, 100, SOON).len(), 100);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    for (namespace, said) in [(&bed.pod_q, "pod-q has capture = \"preload\""), (&bed.pod_b, "no attachment")]
    {
        let refused = run(namespace);
        assert_eq!(refused.status.code(), Some(3), "{refused:?}");
        let text = ktsn_tests::cli::err(&refused);
        assert!(text.contains(said) && text.contains("capture"), "{text}");
    }
    assert_eq!(tap.of(1).len(), 100);
}
