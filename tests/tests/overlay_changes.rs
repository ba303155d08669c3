// SPDX-License-Identifier: Apache-2.0
//! Tunnel ends that change, and several that claim one address, while frames leave: each frame goes to the one end that the
//! tables name then, once and in order.

use std::net::UdpSocket;
use std::thread::JoinHandle;
use std::time::Duration;

use ktsn_proto::v1::{self, set_peers_request::Target};
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK, within};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::frames::{Arrived, Frames};
use ktsn_tests::faults::talker::{PORT, Talker, binary};

const SOON: Duration = Duration::from_secs(20);

/// ktsnd on host A with Flannel's peers; host B's tunnel end answers at two addresses.
fn start(bed: &Bed) -> Daemon {
    let _ = binary();
    let (a, b) = (&bed.host_a, &bed.host_b);
    bed.run(&format!(
        "ip -n {b} addr add 192.168.50.3/24 dev {UPLINK}
ip -n {a} neigh replace 192.168.50.3 lladdr 02:00:00:00:00:02 dev {UPLINK} nud permanent
"
    ));
    let attachment = Attachment::pod_a(bed).learning_from("flannel.1");
    let mut daemon = Daemon::prepare(a, &format!("{}{attachment}", pinned_port("auto")));
    daemon.spawn();
    daemon
}

/// A datagram of pod A's each millisecond, and who hears them: in pod B, and on the wire.
struct Traffic {
    talker: Talker,
    heard: JoinHandle<Vec<u64>>,
    wire: Frames,
}

const COUNT: u64 = 3000;

impl Traffic {
    fn start(bed: &Bed, daemon: &Daemon) -> Self {
        let socket = within(&bed.pod_b, || UdpSocket::bind((POD_B, PORT)).expect("listener"));
        socket.set_read_timeout(Some(SOON)).expect("timeout");
        // The listener is an ordinary thread on a busy machine.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 8 << 20).expect("a buffer");
        let heard = std::thread::spawn(move || {
            let mut octets = [0; 2000];
            let one = || {
                socket.recv(&mut octets).ok()?;
                Some(u64::from_ne_bytes(octets[8..16].try_into().expect("eight octets")))
            };
            std::iter::from_fn(one).take(COUNT as usize).collect()
        });
        let wire = Frames::open(&bed.host_b, UPLINK);
        let keys = format!("count={COUNT} period_us=1000 lead_us=200000 clock=1");
        let talker = Talker::start(daemon, &bed.pod_a, POD_B, 1, &keys);
        let _ = wire.wait(50, SOON);
        Self { talker, heard, wire }
    }

    /// Waits until frames go to the end 192.168.50.`last`.
    fn goes_to(&self, last: u8) {
        let from = self.wire.arrived().len();
        eventually("frames to that end", SOON, || {
            ends(&self.wire.arrived()[from..]).iter().filter(|end| **end == last).count() > 200
        });
    }

    /// All arrived once and in order; the ends that they went to, one after the other.
    fn finish(self, daemon: &Daemon) -> Vec<u8> {
        let (values, errors) = self.talker.finish();
        assert_eq!((values["sent"], values["failed"]), (COUNT.cast_signed(), 0), "{errors}");
        let heard = self.heard.join().expect("the listener");
        let counters = daemon.control().counters_of(NAME, COUNT, SOON);
        let told = (&counters.dropped, &counters.bypassed, counters.late);
        assert!(heard.iter().copied().eq(0..COUNT), "once, in order: {told:?}, {heard:?}");
        assert_eq!((counters.sent, counters.dropped.len()), (COUNT, 0), "{:?}", counters.dropped);
        let frames = self.wire.wait(COUNT as usize, SOON);
        assert!(frames.iter().all(|arrived| arrived.after_ns >= 0), "not early");
        assert_eq!(frames.len() as u64, COUNT, "to one end each");
        let mut ends = ends(&frames);
        ends.dedup();
        ends
    }
}

/// Outer destinations by their last octet.
fn ends(frames: &[Arrived]) -> Vec<u8> {
    frames.iter().map(|arrived| arrived.frame[33]).collect()
}

#[test]
fn a_tunnel_end_moves_under_traffic() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let traffic = Traffic::start(&bed, &daemon);
    for last in [3, 2, 3] {
        bed.run(&format!(
            "bridge -n {} fdb replace 02:00:00:00:01:02 dev flannel.1 dst 192.168.50.{last} self",
            bed.host_a
        ));
        traffic.goes_to(last);
    }
    assert_eq!(traffic.finish(&daemon), [2, 3, 2, 3]);
}

/// One node says that the whole network is behind it, another that one pod of it is: the longer prefix has it, and while two
/// claim that, the stronger source. Both conflicts end without a frame lost.
#[test]
fn two_nodes_that_claim_one_pods_address() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let a = &bed.host_a;
    let traffic = Traffic::start(&bed, &daemon);
    let claim = || v1::VxlanPeer {
        prefix: format!("{POD_B}/32"),
        vtep: "192.168.50.3".to_owned(),
        mac: "02:00:00:00:01:02".to_owned(),
    };
    let attachment = || Target::Attachment(NAME.to_owned());
    let conflicts = || {
        let state = daemon.control().list().attachments.remove(0);
        state.overlay.expect("an overlay").conflicts
    };
    daemon.control().set_peers(attachment(), vec![claim()]).expect("peers");
    traffic.goes_to(3);
    // Prefixes of two lengths are no conflict; that both ends have one MAC address is reported, and each is served.
    let same_mac = conflicts();
    let is_mac = |told: &String| told.starts_with("02:00:00:00:01:02 is at");
    assert!(!same_mac.is_empty() && same_mac.iter().all(is_mac), "{same_mac:?}");
    // The kernel learns that the same pod is behind the first node: reported, and the control API's peer stays in force.
    bed.run(&format!("ip -n {a} route add {POD_B}/32 via 10.244.1.0 dev flannel.1 onlink"));
    eventually("a conflict", SOON, || {
        conflicts().iter().any(|told| told.contains(&format!("{POD_B}/32 is claimed by")))
    });
    traffic.goes_to(3);
    daemon.control().set_peers(attachment(), Vec::new()).expect("peers");
    traffic.goes_to(2);
    assert!(conflicts().is_empty());
    assert_eq!(traffic.finish(&daemon), [2, 3, 2]);
}
