// SPDX-License-Identifier: Apache-2.0
//! Overlays in bridged mode against VXLAN devices of the kernel: over IPv4 and IPv6, unicast, broadcast and multicast of
//! both families. What we send is, octet by octet, what the kernel's own device sends; it takes it, and it answers.
//!
//! ```text
//!   pod A ── cni0 ── vx42 ── uplink ════ uplink ── vx42 ── br42 ── pod B
//!                            host A      host B
//! ```

use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, UPLINK, path, within};
use ktsn_tests::faults::daemon::{Daemon, NAME, port};
use ktsn_tests::faults::frames::{Arrived, Frames, Kind, talker};
use ktsn_tests::faults::talker::{PORT, talk};
use ktsn_tests::{faults::eventually, hook};

const SOON: Duration = Duration::from_secs(20);
/// Pods A and B on the segment.
const A: [&str; 2] = ["10.9.0.1", "fd09::1"];
const B: [&str; 2] = ["10.9.0.2", "fd09::2"];
const GROUP4: Ipv4Addr = Ipv4Addr::new(239, 9, 1, 2);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 0, 0x912);
const BROADCAST: &str = "10.9.0.255";
/// Where a segment over IPv4 and one over IPv6 have their ends; host B's second end hears copies too.
const ENDS4: [&str; 3] = ["192.168.50.1", "192.168.50.2", "192.168.50.3"];
const ENDS6: [&str; 3] = ["fd50::1", "fd50::2", "fd50::3"];

/// The segment on both hosts, with the kernel's own devices.
fn segment(bed: &Bed, ends: [&str; 3]) {
    let Bed { host_a: a, host_b: b, pod_a, pod_b, .. } = bed;
    let [end_a, end_b, end_c] = ends;
    bed.run(&format!(
        "ip -n {a} addr add fd50::1/64 dev {UPLINK} nodad
ip -n {b} addr add fd50::2/64 dev {UPLINK} nodad
ip -n {b} addr add fd50::3/64 dev {UPLINK} nodad
ip -n {b} addr add 192.168.50.3/24 dev {UPLINK}
for end in {end_b} {end_c}; do ip -n {a} neigh replace $end lladdr 02:00:00:00:00:02 dev {UPLINK} nud permanent; done
ip -n {b} neigh replace {end_a} lladdr 02:00:00:00:00:01 dev {UPLINK} nud permanent
ip -n {a} link add vx42 type vxlan id 42 local {end_a} dev {UPLINK} dstport 8472 nolearning
ip -n {b} link add vx42 type vxlan id 42 local {end_b} dev {UPLINK} dstport 8472 nolearning
ip -n {b} link add br42 type bridge mcast_snooping 0
ip -n {a} link set cni0 type bridge mcast_snooping 0
ip -n {a} link set vx42 master cni0 up
ip -n {b} link set vx42 master br42 up
bridge -n {a} fdb append 00:00:00:00:00:00 dev vx42 dst {end_b}
bridge -n {b} fdb append 00:00:00:00:00:00 dev vx42 dst {end_a}
ip -n {b} link set br42 up
ip -n {b} link add seg5 mtu 1430 type veth peer name seg0 address 02:00:00:00:09:02 netns {pod_b}
ip -n {b} link set seg5 master br42 up
ip -n {pod_b} link set seg0 mtu 1430 up
ip -n {pod_b} addr add {b4}/24 brd + dev seg0
ip -n {pod_b} addr add {b6}/64 dev seg0 nodad
ip -n {pod_a} link set eth0 mtu 1430
ip -n {pod_a} addr add {a4}/24 brd + dev eth0
ip -n {pod_a} addr add {a6}/64 dev eth0 nodad
for to in {b4} {b6}; do ip -n {pod_a} neigh replace $to lladdr 02:00:00:00:09:02 dev eth0 nud permanent; done
",
        a4 = A[0],
        a6 = A[1],
        b4 = B[0],
        b6 = B[1],
    ));
}

/// Our daemon on host A with this table and flood list.
fn daemon(bed: &Bed, ends: [&str; 3], peers: &str, flood: &[&str], more: &str) -> Daemon {
    let text = format!(
        "{}[[attachment]]\nname = \"{NAME}\"\nnetns = \"{}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\noverrun_limit = \"10s\"\n\
         destinations = [\"10.9.0.0/24\", \"fd09::/64\", \"{GROUP4}/32\", \"{GROUP6}/128\", \"02:00:00:00:09:02\", \"ff:ff:ff:ff:ff:ff\"]\n\
         [attachment.overlay.vxlan]\nmode = \"bridged\"\nvni = 42\nlocal = \"{}\"\npeers = [{peers}]\nflood = {flood:?}\n{more}\n",
        port("auto"),
        path(&bed.pod_a),
        ends[0],
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &text);
    daemon.spawn();
    daemon
}

/// A listener in pod B, in both groups.
fn listener(bed: &Bed, address: &str) -> UdpSocket {
    let socket = within(&bed.pod_b, || {
        // A program that another test starts just now holds the last listener until it runs.
        let socket = eventually("the port is free", SOON, || UdpSocket::bind((address, PORT)).ok());
        if address == "0.0.0.0" {
            socket.join_multicast_v4(&GROUP4, &B[0].parse().expect("address"))?;
        } else {
            let index = std::fs::read_to_string("/proc/thread-self/net/if_inet6")?;
            let line = index.lines().find(|line| line.ends_with("seg0")).expect("seg0");
            let index =
                u32::from_str_radix(line.split_whitespace().nth(1).expect("index"), 16).expect("hexadecimal");
            socket.join_multicast_v6(&GROUP6, index)?;
        }
        Ok::<_, std::io::Error>(socket)
    });
    let socket = socket.expect("listener");
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    socket
}

/// Octets of the outer headers.
fn outer_octets(frame: &[u8]) -> usize {
    14 + if frame[12..14] == [0x08, 0x00] { 20 } else { 40 } + 8 + 8
}

/// Octets of a frame's headers that may differ between us and the kernel: identification and checksum of IPv4, flow label of
/// IPv6, a VXLAN source port and its checksum.
fn blank(frame: &mut [u8], is_outer: bool) {
    let udp_at = if frame[12..14] == [0x08, 0x00] {
        frame[18..20].fill(0);
        frame[24..26].fill(0);
        34
    } else {
        frame[15] &= 0xf0;
        frame[16..18].fill(0);
        54
    };
    if is_outer {
        frame[udp_at..udp_at + 2].fill(0);
        frame[udp_at + 6..udp_at + 8].fill(0);
    }
}

/// The headers of a frame in its tunnel, without what may differ.
fn headers(arrived: &Arrived) -> Vec<u8> {
    let mut frame = arrived.frame.clone();
    let inner_at = outer_octets(&frame);
    blank(&mut frame, true);
    let inner = &mut frame[inner_at..];
    blank(inner, false);
    let udp_at = if inner[12..14] == [0x08, 0x00] { 34 } else { 54 };
    // The talkers' ports differ from run to run, and with them the checksum.
    inner[udp_at..udp_at + 2].fill(0);
    inner[udp_at + 6..udp_at + 8].fill(0);
    frame.truncate(inner_at + udp_at + 8);
    frame
}

/// To a station, a broadcast address, groups; each is checked against the kernel's frame for the same.
fn as_the_kernel_does(ends: [&str; 3]) {
    let bed = Bed::new();
    segment(&bed, ends);
    let peers = format!("{{ mac = \"02:00:00:00:09:02\", vtep = \"{}\" }}", ends[1]);
    let daemon = daemon(&bed, ends, &peers, &ends[1..2], "");
    let (group4, group6) = (GROUP4.to_string(), GROUP6.to_string());
    let wire = Frames::open(&bed.host_b, UPLINK);
    let mut seen = 0;
    for (sender, to) in [(1, B[0]), (2, B[1]), (3, BROADCAST), (4, &group4), (5, &group6)] {
        let heard = listener(&bed, if to.contains(':') { "::" } else { "0.0.0.0" });
        // Without a transmit time it is the kernel's.
        talk(&daemon, &bed.pod_a, to, sender + 10, "count=1 untimed=1 lead_us=0 clock=1");
        heard.recv(&mut [0; 100]).unwrap_or_else(|error| panic!("{to}: the kernel's own: {error}"));
        let values = talk(&daemon, &bed.pod_a, to, sender, "count=3 lead_us=30000 clock=1");
        for _ in 0..3 {
            let (octets, from) =
                heard.recv_from(&mut [0; 100]).unwrap_or_else(|error| panic!("{to}: {error}: {values:?}"));
            assert_eq!((octets, i64::from(from.port())), (64, values["port"]));
        }
        seen += 4;
        let frames = wire.wait(seen, SOON);
        let of = |sender: u32| frames.iter().filter(move |a| a.kind == sender);
        assert_eq!((of(sender).count(), of(sender + 10).count()), (3, 1), "{to}: {frames:?}");
        let theirs = headers(of(sender + 10).next().expect("one"));
        for ours in of(sender) {
            assert_eq!(headers(ours), theirs, "{to}");
            assert!(ours.after_ns >= 0, "{to}: early by {} ns", -ours.after_ns);
        }
    }
    let counters = daemon.control().counters_of(NAME, 15, SOON);
    assert_eq!((counters.sent, counters.copies, counters.dropped.len()), (15, 0, 0), "{counters:?}");
    // And the kernel's answer comes back to the pod.
    for (to, any) in [(A[0], "0.0.0.0"), (A[1], "::")] {
        let socket = listener(&bed, any);
        let answer = within(&bed.pod_a, || UdpSocket::bind((any, PORT + 1))).expect("socket");
        answer.set_read_timeout(Some(SOON)).expect("timeout");
        socket.send_to(b"answer", (to, PORT + 1)).expect("sent");
        assert_eq!(answer.recv(&mut [0; 100]).expect("the answer"), 6, "{to}");
    }
}

#[test]
fn over_ipv4_frames_are_the_kernels() {
    as_the_kernel_does(ENDS4);
}

#[test]
fn over_ipv6_frames_are_the_kernels() {
    as_the_kernel_does(ENDS6);
}

/// Groups, and stations that the table does not know, go to each end once; each copy is counted, and none is early.
#[test]
fn groups_and_unknown_stations_go_to_every_end() {
    let bed = Bed::new();
    segment(&bed, ENDS4);
    let daemon =
        daemon(&bed, ENDS4, "", &["192.168.50.3", "192.168.50.2", "192.168.50.1"], "tos = 184\nttl = 9");
    let heard = listener(&bed, "0.0.0.0");
    let wire = Frames::open(&bed.host_b, UPLINK);
    for (n, to) in [(1_usize, B[0]), (2, BROADCAST), (3, "239.9.1.2")] {
        let values = talk(&daemon, &bed.pod_a, to, n as u32, "count=4 lead_us=30000 clock=1");
        let frames = wire.wait(8 * n, SOON);
        let mut ends: Vec<u8> = frames.iter().filter(|a| a.kind == n as u32).map(|a| a.frame[33]).collect();
        ends.sort_unstable();
        assert_eq!(ends, [2, 2, 2, 2, 3, 3, 3, 3], "{to}");
        assert!(
            frames.iter().all(|a| a.after_ns >= 0 && (a.frame[15], a.frame[22]) == (184, 9)),
            "{to}: {frames:?}"
        );
        // Both ends are host B's, so what is in the copies arrives twice.
        for _ in 0..8 {
            let (_, from) = heard.recv_from(&mut [0; 100]).expect("a datagram");
            assert_eq!(i64::from(from.port()), values["port"]);
        }
    }
    let counters = daemon.control().counters_of(NAME, 12, SOON);
    assert_eq!((counters.taken, counters.sent, counters.copies), (12, 12, 12), "{counters:?}");
    assert_eq!((counters.copies_lost, counters.transmit_error.map(|error| error.count)), (0, Some(12)));
}

/// A packet socket's frame in its tunnel, without what may differ. The talker's payload says when it was sent.
fn wrapped(arrived: &Arrived) -> Vec<u8> {
    let mut frame = arrived.frame.clone();
    blank(&mut frame, true);
    let payload_at = frame.windows(4).position(|octets| octets == b"KTSP").expect("the talker's mark");
    frame.truncate(payload_at);
    frame
}

/// Frames of packet sockets to a station and to everybody, tagged or not: they take the tunnel as the kernel's
/// bridge and VXLAN device have them take it, only on time.
fn frames_as_the_kernel_does(ends: [&str; 3]) {
    const COUNT: usize = 5;
    let (station, everybody) = ("02:00:00:00:09:02", "ff:ff:ff:ff:ff:ff");
    let bed = Bed::new();
    segment(&bed, ends);
    // The kernel's device knows the station, as our table does.
    bed.run(&format!("bridge -n {} fdb replace {station} dev vx42 master static", bed.host_a));
    bed.run(&format!("bridge -n {} fdb replace {station} dev vx42 dst {} self", bed.host_a, ends[1]));
    let peers = format!("{{ mac = \"{station}\", vtep = \"{}\" }}", ends[1]);
    let daemon = daemon(&bed, ends, &peers, &ends[1..2], "");
    let (wire, heard) = (Frames::open(&bed.host_b, UPLINK), Frames::open(&bed.pod_b, "seg0"));
    let mut seen = 0;
    for to in [station, everybody] {
        // The talker's IPv4 header is none that the bridge's filter lets pass.
        for kind in [Kind::Raw, Kind::Tagged, Kind::Datagram] {
            let arguments =
                ["eth0", to, "frames", &(kind as u32).to_string(), &COUNT.to_string(), "30000", "1000"]
                    .map(str::to_owned);
            let child = daemon.program(&bed.pod_a, talker(), &arguments);
            let values = hook::values(&child.wait_with_output().expect("talker"));
            assert_eq!((values["sent"], values["failed"]), (COUNT as i64, 0), "{to} {kind:?} {values:?}");
            let ours = wire.wait(seen + COUNT, SOON).split_off(seen);
            let sent =
                within(&bed.pod_a, || Command::new(talker()).args(&arguments).output()).expect("talker");
            assert!(sent.status.success(), "{sent:?}");
            let theirs = wire.wait(seen + 2 * COUNT, SOON).split_off(seen + COUNT);
            seen += 2 * COUNT;
            assert_eq!((ours.len(), theirs.len()), (COUNT, COUNT), "{to} {kind:?}");
            for our in &ours {
                assert_eq!(wrapped(our), wrapped(&theirs[0]), "{to} {kind:?}");
                assert!(our.after_ns >= 0, "{to} {kind:?}: early by {} ns", -our.after_ns);
            }
        }
    }
    // Pod B's own kernel took all of them out of the tunnel.
    assert_eq!(heard.wait(seen, SOON).len(), seen);
    let all = 6 * COUNT as u64;
    let counters = daemon.control().counters_of(NAME, all, SOON);
    assert_eq!((counters.taken, counters.sent, counters.dropped.len()), (all, all, 0), "{counters:?}");
}

#[test]
fn frames_of_packet_sockets_take_the_tunnel_over_ipv4() {
    frames_as_the_kernel_does(ENDS4);
}

#[test]
fn frames_of_packet_sockets_take_the_tunnel_over_ipv6() {
    frames_as_the_kernel_does(ENDS6);
}

/// Listeners of layer 2 in a pod with the ingress fast path: what it takes reaches packet sockets at the pod's interface, and
/// what they and groups hear beside it, tagged frames too, comes by the kernel, all of it once.
#[test]
fn the_ingress_fast_path_leaves_layer_2_its_frames() {
    let bed = Bed::new();
    segment(&bed, ENDS4);
    let Bed { pod_b, host_b, .. } = &bed;
    let peers = format!("{{ mac = \"02:00:00:00:09:02\", vtep = \"{}\" }}", ENDS4[1]);
    let sending = daemon(&bed, ENDS4, &peers, &ENDS4[1..2], "");
    let mut receiving = Daemon::prepare(
        host_b,
        &format!(
            "{}[[attachment]]\nname = \"{NAME}\"\nnetns = \"{}\"\ninterface = \"seg0\"\nuplink = \"{UPLINK}\"\n\
             ingress = \"short\"\ndestinations = [\"10.9.0.0/24\"]\n[attachment.overlay.vxlan]\nmode = \"bridged\"\n\
             vni = 42\nlocal = \"{}\"\nflood = [\"{}\"]\n",
            port("auto"),
            path(pod_b),
            ENDS4[1],
            // Frames of a tunnel end that is not named are the kernel's.
            ENDS4[0],
        ),
    );
    receiving.spawn();
    let taken = || receiving.control().counters(NAME).ingress.expect("short").taken;
    let (group, heard) = (listener(&bed, "0.0.0.0"), Frames::open(pod_b, "seg0"));
    talk(&sending, &bed.pod_a, B[0], 1, "count=10 lead_us=30000 clock=1");
    assert_eq!(heard.wait(10, SOON).len(), 10, "a packet socket hears unicast UDP");
    eventually("it is counted", SOON, || taken() == 10);
    talk(&sending, &bed.pod_a, &GROUP4.to_string(), 2, "count=10 lead_us=30000 clock=1");
    talk(&sending, &bed.pod_a, BROADCAST, 3, "count=10 lead_us=30000 clock=1");
    for _ in 0..30 {
        group.recv(&mut [0; 100]).expect("one of each");
    }
    assert_eq!((heard.wait(30, SOON).len(), taken()), (30, 10), "groups are the kernel's");
    for kind in [Kind::Raw, Kind::Tagged] {
        let arguments =
            ["eth0", "02:00:00:00:09:02", "frames", &(kind as u32).to_string(), "5", "30000", "1000"]
                .map(str::to_owned);
        let child = sending.program(&bed.pod_a, talker(), &arguments);
        let values = hook::values(&child.wait_with_output().expect("talker"));
        assert_eq!(values["sent"], 5, "{kind:?} {values:?}");
    }
    let all = heard.wait(40, SOON);
    let is_tagged = |arrived: &&Arrived| arrived.frame[12..14] == [0x81, 0x00];
    assert_eq!(
        (all.len(), all.iter().filter(is_tagged).count()),
        (40, 5),
        "all at the interface, once, tags too"
    );
    assert_eq!(taken(), 10, "frames without IP, of VLANs and of other protocols are the kernel's");
}
