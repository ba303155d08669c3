// SPDX-License-Identifier: Apache-2.0
//! Where a datagram leaves: the overlay, the pod's own interface, or the kernel with a named reason.

use std::net::UdpSocket;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_B6, POD_Q, UPLINK, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, configuration};
use ktsn_tests::faults::talker::{PORT, Talker, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);

fn listen(namespace: &str, address: &str) -> UdpSocket {
    // A process that another test forks keeps the socket before this one open until it executes its program.
    let socket =
        eventually("the port is free", SOON, || within(namespace, || UdpSocket::bind((address, PORT))).ok());
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    socket
}

fn hear(socket: &UdpSocket) -> usize {
    socket.recv(&mut [0; 65536]).expect("a datagram")
}

fn bypassed(daemon: &Daemon, word: &str, count: u64) {
    eventually(format!("{count} {word}"), SOON, || {
        let counters = daemon.control().counters(NAME);
        reason(&counters.bypassed, word) == count
    });
}

/// Both families leave by VXLAN and come in at the other pod, from the pod's own address and port.
#[test]
fn the_overlay_in_both_families() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    for (sender, to, own) in [(1, POD_B, POD_A), (2, POD_B6, "fd10:244:0:0::5")] {
        for (n, keys) in ["count=5", "count=5 connect=1 clock=1"].into_iter().enumerate() {
            let socket = listen(&bed.pod_b, to);
            let sender = sender * 10 + n as u32;
            let values = talk(&daemon, &bed.pod_a, to, sender, keys);
            let (octets, from) = socket.recv_from(&mut [0; 100]).expect("a datagram");
            assert_eq!((octets, i64::from(from.port())), (64, values["port"]));
            assert_eq!(from.ip().to_string(), own.parse::<std::net::IpAddr>().expect("address").to_string());
            let arrived = tap.wait(sender, 5, SOON);
            assert_eq!(arrived.len(), 5);
            assert!(
                arrived.iter().all(|a| a.is_overlay && a.source == from.ip() && a.after_ns >= 0),
                "{arrived:?}"
            );
        }
    }
    let counters = daemon.control().counters_of(NAME, 20, SOON);
    assert_eq!((counters.taken, counters.sent), (20, 20), "{counters:?}");
}

/// `take`: datagrams without a transmit time leave through the daemon at once, from the priority on that was asked for.
#[test]
fn untimed_datagrams_are_taken_where_asked_for() {
    let bed = Bed::new();
    for (take, below, from) in [("{ priority_min = 4 }", 0, 20), ("\"all\"", 20, 20), ("\"txtime\"", 0, 0)] {
        let take = format!("take = {take}");
        let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).with(&take)]);
        let tap = Tap::open(&bed.host_b, UPLINK);
        for (sender, priority) in [(1, 3), (2, 4)] {
            // The first timed one brings the attachment.
            talk(
                &daemon,
                &bed.pod_a,
                POD_B,
                sender,
                &format!("count=20 untimed=1 lead_us=0 priority={priority}"),
            );
            assert_eq!(tap.wait(sender, 20, SOON).len(), 20, "{take}: by whatever way");
        }
        let counters = daemon.control().counters_of(NAME, below + from, SOON);
        assert_eq!((counters.taken, counters.sent), (below + from, below + from), "{take}: {counters:?}");
        bypassed(&daemon, "no_txtime", 40 - below - from);
    }
    let attachment = Attachment::pod_a(&bed).with("take = { priority_min = 16 }");
    let refused = Daemon::prepare(&bed.host_a, &configuration(&[attachment]));
    let (status, errors) = refused.fails(&mut refused.command());
    assert_eq!(status, Some(2));
    assert!(errors.contains("attachment[0].take.priority_min: \"16\": expected 0 to 15"), "{errors}");
}

/// The greatest datagram that fits is taken; one more octet goes to the kernel, in pieces, and is counted.
#[test]
fn over_the_mtu() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let socket = listen(&bed.pod_b, POD_B);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=1 octets=1422");
    assert_eq!(tap.wait(1, 1, SOON).len(), 1, "{:?}", daemon.control().counters(NAME));
    assert_eq!(hear(&socket), 1422);
    assert_eq!(daemon.control().counters_of(NAME, 1, SOON).sent, 1);
    for (count, octets) in [(1, 1423), (2, 4000), (3, 65507)] {
        talk(&daemon, &bed.pod_a, POD_B, 1 + octets, &format!("count=1 octets={octets}"));
        assert_eq!(hear(&socket), octets as usize);
        bypassed(&daemon, "over_mtu", count);
        assert!(tap.wait(1 + octets, 1, SOON).iter().all(|a| a.is_fragment));
    }
    let six = listen(&bed.pod_b, POD_B6);
    talk(&daemon, &bed.pod_a, POD_B6, 9, "count=1 octets=1402");
    assert_eq!(hear(&six), 1402);
    talk(&daemon, &bed.pod_a, POD_B6, 10, "count=1 octets=1403");
    assert_eq!(hear(&six), 1403);
    bypassed(&daemon, "over_mtu", 4);
    let counters = daemon.control().counters_of(NAME, 2, SOON);
    assert_eq!((counters.sent, counters.dropped.len()), (2, 0), "{counters:?}");
}

/// What is not on the list is the kernel's: the second pod, the host, another network.
#[test]
fn not_allowed() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    for (count, namespace, address) in
        [(3, &bed.pod_q, POD_Q), (6, &bed.host_a, "10.244.0.1"), (9, &bed.host_a, "192.168.50.1")]
    {
        let socket = listen(namespace, address);
        talk(&daemon, &bed.pod_a, address, 1, "count=3");
        for _ in 0..3 {
            assert_eq!(hear(&socket), 64);
        }
        bypassed(&daemon, "not_allowed", count);
    }
    assert_eq!(daemon.control().counters(NAME).taken, 0);
}

/// Own addresses are the kernel's even where the list would allow them.
#[test]
fn own_addresses() {
    let bed = Bed::new();
    let attachment = Attachment::pod_a(&bed).to(&["10.244.0.0/16", "127.0.0.0/8"]);
    let daemon = Daemon::start(&bed, &[attachment]);
    for (count, address) in [(2, POD_A), (4, "127.0.0.1")] {
        let socket = listen(&bed.pod_a, address);
        talk(&daemon, &bed.pod_a, address, 1, "count=2");
        assert_eq!((hear(&socket), hear(&socket)), (64, 64));
        bypassed(&daemon, "own_address", count);
    }
    assert_eq!(daemon.control().counters(NAME).taken, 0);
}

/// A pod on the same node is reached by the pod's own interface, on time. Nobody knows its MAC address at first: the frames
/// wait for it.
#[test]
fn a_pod_on_the_same_node() {
    let bed = Bed::new();
    let attachment = Attachment::pod_a(&bed).to(&["10.244.0.0/16", "fd10:244::/62"]);
    let daemon = Daemon::start(&bed, &[attachment]);
    let tap = Tap::open(&bed.pod_q, "eth0");
    for (sender, to) in [(1, POD_Q), (2, "fd10:244:0:0::6")] {
        let socket = listen(&bed.pod_q, to);
        talk(&daemon, &bed.pod_a, to, sender, "count=20 lead_us=8000000");
        let arrived = tap.wait(sender, 20, SOON);
        assert_eq!(arrived.len(), 20, "{:?}", daemon.control().counters(NAME));
        assert!(arrived.iter().all(|a| !a.is_overlay), "{arrived:?}");
        assert_eq!(hear(&socket), 64);
    }
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let counters = daemon.control().counters_of(NAME, 40, SOON);
    assert!(
        counters.sent == 40 && counters.dropped.is_empty() && counters.bypassed.is_empty(),
        "{counters:?}"
    );
}

/// Nobody knows the other node's MAC address: frames whose time comes are dropped by that name until the kernel has asked for it,
/// without any help from a frame of the kernel's own; and again after it was forgotten.
#[test]
fn a_missing_neighbour_is_found() {
    let bed = Bed::new();
    let forget = format!("ip -n {} neigh del 192.168.50.2 dev {UPLINK}", bed.host_a);
    bed.run(&forget);
    // Late frames on MONOTONIC are sent: a busy machine costs none.
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).by_clock()]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "clock=1 count=2000");
    eventually("frames", SOON, || tap.of(1).len() > 100);
    bed.run(&format!("ip -n {} neigh flush dev {UPLINK}", bed.host_a));
    let (values, errors) = talker.finish();
    assert_eq!((values["failed"], values["sent"]), (0, 2000), "{errors}");
    let counters = eventually("an end for every frame", SOON, || {
        let counters = daemon.control().counters(NAME);
        (counters.sent + counters.dropped.values().sum::<u64>() == 2000).then_some(counters)
    });
    assert_eq!(2000, counters.sent + reason(&counters.dropped, "no_neighbour"), "{:?}", counters.dropped);
    let arrived = tap.wait(1, usize::try_from(counters.sent).expect("count"), SOON);
    assert_eq!(
        arrived.last().map(|last| last.sequence),
        Some(1999),
        "it was found again: {:?}",
        counters.dropped
    );
    assert!(tap.early().is_empty(), "{:?}", tap.early());
}

/// Multicast and broadcast leave by the pod's interface, on time.
#[test]
fn multicast_and_broadcast() {
    let bed = Bed::new();
    let attachment = Attachment::pod_a(&bed).to(&["239.0.0.0/8", "10.244.0.0/24", "ff05::/16"]);
    let daemon = Daemon::start(&bed, &[attachment]);
    let tap = Tap::open(&bed.pod_q, "eth0");
    for (sender, to) in [(1, "239.1.2.3"), (2, "10.244.0.255"), (3, "ff05::1:3")] {
        talk(&daemon, &bed.pod_a, to, sender, "count=5");
        let arrived = tap.wait(sender, 5, SOON);
        assert_eq!(arrived.len(), 5, "{to}: {:?}", daemon.control().counters(NAME));
        assert!(arrived.iter().all(|a| !a.is_overlay && a.destination.to_string() == to), "{arrived:?}");
    }
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let counters = daemon.control().counters_of(NAME, 15, SOON);
    assert_eq!((counters.sent, counters.bypassed.len()), (15, 0), "{counters:?}");
}

/// Without any destination nothing is ever taken: the log says so when the attachment is made. A log in a file has no colours.
#[test]
fn an_attachment_without_destinations_is_warned_of() {
    let bed = Bed::new();
    let bare = Attachment::pod_a(&bed).without_overlay();
    for (attachment, warns) in [
        (bare.clone(), true),
        (format!("{bare}destinations = [\"10.244.0.0/16\"]\n"), false),
        (format!("{bare}destinations = [\"01:00:5e:00:00:07\"]\n"), false),
        (Attachment::pod_a(&bed).toml(), false),
    ] {
        let port = configuration(&[]);
        let mut daemon = Daemon::prepare(&bed.host_a, &format!("{port}{attachment}"));
        daemon.spawn();
        let log = daemon.log();
        assert_eq!(log.contains("no destination is allowed"), warns, "{attachment}\n{log}");
        assert!(log.contains("attached") && !log.contains('\u{1b}'), "{log}");
    }
}
