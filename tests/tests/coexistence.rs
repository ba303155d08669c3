// SPDX-License-Identifier: Apache-2.0
//! Timed streams of one pod by two uplinks, beside best-effort traffic of the same pod through Flannel: datagrams at a steady
//! pace and a TCP connection, there and back at some 100 Mbit/s (at full speed it drives others out of the kernel's own
//! queues, with or without KTSN). Each timed frame leaves once, in order and not early; the others reach the other pod.
//!
//! ```text
//!   pod A ─┬─ eth0 ── cni0 ─┬─ flannel.1 ─┬─ uplink ════ uplink ── flannel.1 ── cni0 ── pod B   best effort: all the way
//!          │                └─ ktsnd ─────┘                                                   timed: ktsnd, uplink
//!          └─ net1 ─── ktsnd ─────────────── up2 ═══════ up2                                  timed: ktsnd, up2
//! ```

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port};
use ktsn_tests::faults::second::{self, FAR1};
use ktsn_tests::faults::talker::{Talker, binary};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);
const COUNT: u64 = 3000;
/// Best-effort datagrams, two a millisecond, and octets that go each way by TCP.
const DATAGRAMS: u64 = 4000;
const OCTETS: usize = 24 << 20;
/// Of the TCP connection in one write, and the pause behind it.
const PIECE: usize = 65_536;
const PAUSE: Duration = Duration::from_millis(5);
const PORTS: [u16; 2] = [9100, 9101];

fn start(bed: &Bed) -> Daemon {
    let _ = binary();
    second::link(bed);
    // Attachments of one namespace say the same of what they may take.
    let both = Attachment::pod_a(bed).to(&["10.244.1.0/24", "10.250.1.0/24"]);
    let net1 = second::attachment(&both);
    let text =
        format!("{}{}{}{net1}", pinned_port("auto"), pinned_port("auto").replace(UPLINK, "up2"), both.toml());
    let mut daemon = Daemon::prepare(&bed.host_a, &text);
    daemon.spawn();
    daemon
}

/// Octet `at` of what TCP carries from one side.
fn octet(at: usize, side: usize) -> u8 {
    (at.wrapping_mul(31).wrapping_add(at >> 12) ^ (side * 0x55)) as u8
}

/// Sends `OCTETS` and takes as many of the other side's at once; whether those are right.
fn exchange(stream: &TcpStream, side: usize) -> bool {
    stream.set_read_timeout(Some(3 * SOON)).expect("timeout");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut out = stream;
            let mut at = 0;
            while at < OCTETS {
                let piece: Vec<u8> = (at..at + PIECE).map(|at| octet(at, side)).collect();
                out.write_all(&piece).expect("the connection");
                at += piece.len();
                std::thread::sleep(PAUSE);
            }
        });
        let (mut from, mut octets, mut at) = (stream, vec![0; PIECE], 0);
        while at < OCTETS {
            let count = from.read(&mut octets).expect("the connection");
            let is_right = (at..).zip(&octets[..count]).all(|(at, found)| *found == octet(at, 1 - side));
            if count == 0 || !is_right {
                return false;
            }
            at += count;
        }
        true
    })
}

/// Datagrams at a steady pace; the numbers that arrived.
fn datagrams(bed: &Bed) -> Vec<u64> {
    let to = within(&bed.pod_b, || UdpSocket::bind((POD_B, PORTS[0])).expect("listener"));
    to.set_read_timeout(Some(SOON / 4)).expect("timeout");
    // The listener is an ordinary thread on a busy machine.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&to, 8 << 20).expect("a buffer");
    let from = within(&bed.pod_a, || UdpSocket::bind(("0.0.0.0", 0)).expect("sender"));
    std::thread::scope(|scope| {
        let heard = scope.spawn(move || {
            let mut octets = [0; 2000];
            let one = || {
                to.recv(&mut octets).ok()?;
                Some(u64::from_ne_bytes(octets[..8].try_into().expect("eight octets")))
            };
            std::iter::from_fn(one).collect()
        });
        for number in 0..DATAGRAMS {
            let mut octets = [7; 700];
            octets[..8].copy_from_slice(&number.to_ne_bytes());
            from.send_to(&octets, (POD_B, PORTS[0])).expect("sent");
            std::thread::sleep(Duration::from_micros(450));
        }
        heard.join().expect("the listener")
    })
}

fn came(way: &Tap, other: &Tap, sender: u32) {
    let arrived = way.wait(sender, COUNT as usize, SOON);
    let numbers: Vec<u64> = arrived.iter().map(|arrival| arrival.sequence).collect();
    assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>(), "sender {sender}: each once, in order");
    assert!(
        arrived.iter().all(|a| a.is_overlay && a.after_ns >= 0),
        "sender {sender}: in its tunnel, not early"
    );
    assert!(other.of(sender).is_empty(), "sender {sender} by both uplinks");
}

#[test]
fn timed_streams_by_two_uplinks_beside_best_effort_traffic_of_the_same_pod() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let (first, other) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.host_b, "up2"));
    let pod = Tap::open(&bed.pod_b, "eth0");
    let server = within(&bed.pod_b, || TcpListener::bind((POD_B, PORTS[1])).expect("server"));
    let keys = format!("count={COUNT} period_us=1000 lead_us=200000 clock=1");
    let talkers = [(1, POD_B, ""), (2, FAR1, ""), (3, POD_B, " priority=5")]
        .map(|(sender, to, more)| Talker::start(&daemon, &bed.pod_a, to, sender, &format!("{keys}{more}")));
    eventually("all three talk", SOON, || {
        !first.of(1).is_empty() && !other.of(2).is_empty() && !first.of(3).is_empty()
    });
    let client = within(&bed.pod_a, || TcpStream::connect((POD_B, PORTS[1])).expect("a connection"));
    let (accepted, _) = server.accept().expect("a connection");
    let (heard, is_right) = std::thread::scope(|scope| {
        let theirs = scope.spawn(|| exchange(&accepted, 1));
        let ours = scope.spawn(|| exchange(&client, 0));
        let heard = datagrams(&bed);
        (heard, [theirs, ours].map(|side| side.join().expect("one side")))
    });
    assert_eq!(is_right, [true, true], "TCP carries what was written");
    let mut heard = heard;
    heard.sort_unstable(); // their sender keeps to no CPU
    assert_eq!(heard, (0..DATAGRAMS).collect::<Vec<_>>(), "best-effort datagrams, each once");
    for talker in talkers {
        let (values, errors) = talker.finish();
        assert_eq!((values["sent"], values["failed"]), (COUNT.cast_signed(), 0), "{errors}");
    }
    came(&first, &other, 1);
    came(&other, &first, 2);
    came(&first, &other, 3);
    // What went to pod B is there, once and in order; what the second network's pod would get is not checked here.
    for sender in [1, 3] {
        let numbers: Vec<u64> = pod.wait(sender, COUNT as usize, SOON).iter().map(|a| a.sequence).collect();
        assert_eq!(numbers, (0..COUNT).collect::<Vec<_>>(), "sender {sender} in the pod");
    }
    let mut control = daemon.control();
    for (name, count) in [(NAME, 2 * COUNT), ("net1", COUNT)] {
        let counters = control.counters_of(name, count, SOON);
        assert_eq!(
            (counters.taken, counters.sent, counters.dropped.len()),
            (count, count, 0),
            "{name}: {counters:?}"
        );
        assert_eq!(
            reason(&counters.bypassed, "no_txtime"),
            0,
            "sockets without SO_TXTIME are nobody's business"
        );
    }
}
