// SPDX-License-Identifier: Apache-2.0
//! No overlay, as Flannel's host-gw backend: the node's own routes lead to the other pods. What leaves here is what the
//! node's kernel would have forwarded, octet by octet; it reaches the pod behind the other node, each once and in order; and it
//! follows the node's routes while they change.
//!
//! ```text
//!   pod A ── cni0 ── uplink ════ uplink ── cni0 ── pod B      routes 10.244.N.0/24 via 192.168.50.N+1, IPv6 alike
//!            host A              host B
//! ```

use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, POD_B6, PODS_B, UPLINK, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port};
use ktsn_tests::faults::frames::{Arrived, Frames};
use ktsn_tests::faults::talker::{PORT, Talker, binary, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);
/// It lasts until the test's last step, however long the machine takes for the steps; then come 500 more datagrams.
const STREAM: &str = "count=60000 last=500 period_us=1000 lead_us=200000 clock=1";
const PODS_B6: &str = "fd10:244:0:1::/64";

/// Both hosts without an overlay; host B has a second device and address on the link between them.
fn routed(bed: &Bed) {
    let (a, b) = (&bed.host_a, &bed.host_b);
    bed.run(&format!(
        "ip -n {a} link del flannel.1
ip -n {b} link del flannel.1
ip -n {a} addr add fd50::1/64 dev {UPLINK} nodad
ip -n {b} addr add fd50::2/64 dev {UPLINK} nodad
ip -n {b} link add second link {UPLINK} address 02:00:00:00:00:03 type macvlan mode bridge
ip -n {b} addr add 192.168.50.3/32 dev second
ip -n {b} link set second up
ip netns exec {b} sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.second.rp_filter=0 net.ipv4.conf.{UPLINK}.rp_filter=0
ip -n {b} neigh replace fd50::1 lladdr 02:00:00:00:00:01 dev {UPLINK} nud permanent
ip -n {b} route add 10.244.0.0/24 via 192.168.50.1 dev {UPLINK}
ip -n {b} -6 route add fd10:244:0:0::/64 via fd50::1 dev {UPLINK}
"
    ));
    on_a(bed);
}

/// What host A needs beyond the uplink's address: neighbours and routes.
fn on_a(bed: &Bed) {
    let a = &bed.host_a;
    bed.run(&format!(
        "ip -n {a} neigh replace 192.168.50.2 lladdr 02:00:00:00:00:02 dev {UPLINK} nud permanent
ip -n {a} neigh replace 192.168.50.3 lladdr 02:00:00:00:00:03 dev {UPLINK} nud permanent
ip -n {a} neigh replace fd50::2 lladdr 02:00:00:00:00:02 dev {UPLINK} nud permanent
ip -n {a} route replace {PODS_B} via 192.168.50.2 dev {UPLINK}
ip -n {a} -6 route replace {PODS_B6} via fd50::2 dev {UPLINK}
"
    ));
}

/// ktsnd on host A, for pod A without an overlay. Late frames are sent all the same.
fn start(bed: &Bed) -> Daemon {
    // The talker is compiled before anything is waited for.
    let _ = binary();
    let Attachment { namespace, late, more, .. } = Attachment::pod_a(bed);
    let text = format!(
        "{}[[attachment]]\nname = \"{NAME}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         destinations = [\"{PODS_B}\", \"{PODS_B6}\"]\nlate = \"{late}\"\n{more}\n",
        pinned_port("auto")
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &text);
    daemon.spawn();
    daemon
}

/// Hears in pod B; the talker's numbers in the order of arrival, when nothing has come for a while.
fn hear(bed: &Bed, to: &str) -> JoinHandle<Vec<u64>> {
    let socket = within(&bed.pod_b, || UdpSocket::bind((to, PORT)).expect("listener"));
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    // The listener is an ordinary thread on a busy machine.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("a buffer");
    std::thread::spawn(move || {
        let mut octets = [0; 2000];
        std::iter::from_fn(|| {
            socket.recv(&mut octets).ok()?;
            socket.set_read_timeout(Some(Duration::from_secs(4))).ok()?;
            Some(u64::from_ne_bytes(octets[8..16].try_into().expect("eight octets")))
        })
        .collect()
    })
}

/// The ones' complement sum of 16-bit words, folded.
fn sum(octets: &[u8]) -> u32 {
    let words = octets.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
    let sum: u32 = words.sum();
    let once = (sum >> 16) + (sum & 0xffff);
    (once >> 16) + (once & 0xffff)
}

/// Headers without what differs from datagram to datagram (identification, source port, UDP checksum), after its checksums were
/// found right.
fn headers(frame: &[u8]) -> Vec<u8> {
    let is_v4 = frame[12..14] == [0x08, 0x00];
    let udp_at = if is_v4 { 34 } else { 54 };
    let addresses = if is_v4 { &frame[26..34] } else { &frame[22..54] };
    let pseudo = sum(addresses) + 17 + u32::try_from(frame.len() - udp_at).expect("a length");
    let all = sum(&frame[udp_at..]) + pseudo;
    assert_eq!((all >> 16) + (all & 0xffff), 0xffff, "UDP checksum: {frame:02x?}");
    let mut headers = frame[..udp_at + 8].to_vec();
    if is_v4 {
        assert_eq!(sum(&frame[14..34]), 0xffff, "header checksum: {frame:02x?}");
        headers[18..20].fill(0);
        headers[24..26].fill(0);
    } else {
        headers[15] &= 0xf0;
        headers[16..18].fill(0);
    }
    headers[udp_at..udp_at + 2].fill(0);
    headers[udp_at + 6..udp_at + 8].fill(0);
    headers
}

/// Both families, small and as large as fits: the frames on the wire are the kernel's own.
#[test]
fn frames_are_what_the_node_forwards_and_reach_the_pod() {
    let bed = Bed::new();
    routed(&bed);
    // So that the kernel finishes checksums where we can see them.
    bed.run(&format!("ip netns exec {} ethtool -K eth0 tx off", bed.pod_a));
    let daemon = start(&bed);
    let wire = Frames::open(&bed.host_b, UPLINK);
    let beside = Tap::open(&bed.host_a, "pod5");
    let mut seen = 0;
    for (sender, to, octets, priority) in
        [(1, POD_B, 64, 0), (2, POD_B6, 64, 0), (3, POD_B, 1422, 3), (4, POD_B6, 1402, 3)]
    {
        let heard = hear(&bed, to);
        // Without a transmit time it is the kernel's.
        let common = format!("octets={octets} priority={priority} clock=1");
        talk(&daemon, &bed.pod_a, to, sender + 10, &format!("count=1 untimed=1 lead_us=0 {common}"));
        talk(&daemon, &bed.pod_a, to, sender, &format!("count=100 period_us=1000 lead_us=200000 {common}"));
        let heard = heard.join().expect("the listener");
        let counters = daemon.control().counters(NAME);
        let told = (counters.taken, counters.sent, &counters.dropped, wire.arrived().len());
        assert_eq!(heard, [0].into_iter().chain(0..100).collect::<Vec<_>>(), "{to}: {told:?}");
        seen += 101;
        let frames = wire.wait(seen, SOON);
        let of = |sender: u32| -> Vec<&Arrived> { frames.iter().filter(|a| a.kind == sender).collect() };
        let ([theirs], ours) = (&of(sender + 10)[..], of(sender)) else {
            panic!("{to}: one of the kernel's")
        };
        assert_eq!(ours.len(), 100, "{to}");
        let expected = headers(&theirs.frame);
        let ttl_at = if to.contains(':') { 21 } else { 22 };
        assert_eq!((expected[ttl_at], &expected[..6]), (63, &[2, 0, 0, 0, 0, 2][..]));
        for (number, arrived) in ours.iter().enumerate() {
            assert_eq!(headers(&arrived.frame), expected, "{to}");
            assert_eq!((arrived.number, arrived.frame.len()), (number as u64, theirs.frame.len()));
            assert!(arrived.after_ns >= 0, "{to}: early by {} ns", -arrived.after_ns);
        }
        assert!(beside.of(sender).is_empty() && beside.of(sender + 10).len() == 1, "past the node's bridge");
    }
    let counters = daemon.control().counters_of(NAME, 400, SOON);
    assert_eq!((counters.taken, counters.sent, counters.dropped.len()), (400, 400, 0), "{counters:?}");
}

/// Ends a `STREAM`; how many datagrams it sent.
fn rest(mut talker: Talker) -> u64 {
    talker.go();
    let (values, errors) = talker.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    u64::try_from(values["sent"]).expect("a count")
}

/// What leaves follows the node's route at once: not one frame is lost, doubled or overtaken.
#[test]
fn the_next_hop_changes_under_traffic() {
    let bed = Bed::new();
    routed(&bed);
    let daemon = start(&bed);
    let wire = Frames::open(&bed.host_b, UPLINK);
    let heard = hear(&bed, POD_B);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, STREAM);
    let hop = |last: u8| {
        let before = wire.wait(50, SOON).len();
        bed.run(&format!("ip -n {} route replace {PODS_B} via 192.168.50.{last} dev {UPLINK}", bed.host_a));
        eventually("frames to the other hop", SOON, || {
            let to = |arrived: &Arrived| arrived.frame[5] == last;
            wire.arrived()[before..].iter().filter(|arrived| to(arrived)).count() > 200
        });
    };
    hop(3);
    hop(2);
    hop(3);
    let sent = rest(talker);
    assert_eq!(heard.join().expect("the listener"), (0..sent).collect::<Vec<_>>());
    let frames = wire.wait(sent as usize, SOON);
    let mut hops: Vec<u8> = frames.iter().map(|arrived| arrived.frame[5]).collect();
    assert_eq!(hops.len() as u64, sent);
    hops.dedup();
    assert_eq!(hops, [2, 3, 2, 3], "each change takes effect once");
    let counters = daemon.control().counters_of(NAME, sent, SOON);
    assert_eq!((counters.sent, counters.dropped.len()), (sent, 0), "{counters:?}");
}

/// While the uplink is down the node has no route for what the pod sends: such datagrams are the kernel's, which says so to the
/// program, and none of them counts as sent.
#[test]
fn what_a_down_uplink_loses_does_not_count_as_sent() {
    let bed = Bed::new();
    routed(&bed);
    let daemon = start(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, STREAM);
    assert!(tap.wait(1, 100, SOON).len() >= 100);
    bed.run(&format!("ip -n {} link set {UPLINK} down", bed.host_a));
    let bypassed = |daemon: &Daemon| daemon.control().counters(NAME).bypassed.values().sum::<u64>();
    eventually("datagrams are the kernel's", SOON, || bypassed(&daemon) > 50);
    let before = daemon.control().counters(NAME).sent;
    let so_far = bypassed(&daemon);
    eventually("more of them are", SOON, || bypassed(&daemon) > so_far + 100);
    assert_eq!(daemon.control().counters(NAME).sent, before, "{}", daemon.log());
    drop(talker);
}

/// The uplink goes and comes back under its name, with its routes: nothing is sent twice, out of order or early, all is
/// accounted for, and in the end everything arrives again.
#[test]
fn a_replaced_uplink_is_followed() {
    let bed = Bed::new();
    routed(&bed);
    let daemon = start(&bed);
    let (a, b) = (&bed.host_a, &bed.host_b);
    let heard = hear(&bed, POD_B);
    let talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, STREAM);
    let before = Tap::open(b, UPLINK);
    assert!(before.wait(1, 100, SOON).len() >= 100);
    bed.replace_uplink();
    bed.run(&format!(
        "ip -n {a} addr add fd50::1/64 dev {UPLINK} nodad
ip -n {b} neigh replace 192.168.50.1 lladdr 02:00:00:00:00:11 dev {UPLINK} nud permanent
ip -n {b} route add 10.244.0.0/24 via 192.168.50.1 dev {UPLINK}
"
    ));
    on_a(&bed);
    let after = Tap::open(b, UPLINK);
    assert!(after.wait(1, 500, SOON).len() >= 500, "{}", daemon.log());
    let sent = rest(talker);
    let heard = heard.join().expect("the listener");
    assert!(
        heard.is_sorted_by(|a, b| a < b) && heard.last() == Some(&(sent - 1)),
        "once, in order, to the end"
    );
    assert!(before.early().is_empty() && after.early().is_empty());
    let counters = eventually("all is accounted for", SOON, || {
        let counters = daemon.control().counters(NAME);
        let dropped: u64 = counters.dropped.values().sum();
        (counters.sent + counters.passed + dropped == counters.taken).then_some(counters)
    });
    let bypassed: u64 = counters.bypassed.values().sum();
    assert_eq!(counters.taken + bypassed - counters.passed, sent, "{counters:?}");
    // A frame that waits for the interface while its route moves back to the uplink is dropped: the other port has a queue of
    // its own. Nothing else is missing.
    let numbers: Vec<u64> = after.of(1).iter().map(|arrival| arrival.sequence).collect();
    let missing = sent - numbers[0] - numbers.len() as u64;
    assert!(numbers.is_sorted_by(|a, b| a < b) && missing <= counters.dropped.values().sum(), "{counters:?}");
    assert!(numbers.ends_with(&(sent - 500..sent).collect::<Vec<_>>()), "it goes on without a gap");
}
