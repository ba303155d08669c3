// SPDX-License-Identifier: Apache-2.0
//! The short way in: frames out of the overlay straight from the uplink into a pod behind a veth.

use std::net::UdpSocket;
use std::time::Duration;

use ktsn_proto::v1::IngressStatistics;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_B6, UPLINK, within};
use ktsn_tests::faults::daemon::{self, Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{PORT, Talker};

const SOON: Duration = Duration::from_secs(5);
const POD: &str = "pod-b";

/// The table of an attachment on host B.
fn on_b(name: &str, namespace: &str) -> String {
    format!(
        "[[attachment]]\nname = \"{name}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         ingress = \"short\"\noverlay = {{ vxlan = {{ local = \"192.168.50.2\", peers = [\n  {{ prefix = \"10.244.0.0/24\", \
         vtep = \"192.168.50.1\", mac = \"02:00:00:00:01:01\" }} ] }} }}\n"
    )
}

/// ktsnd on host B, whose pod takes the short way in.
fn start(bed: &Bed) -> Daemon {
    let configuration = format!("{}{}", daemon::port("auto"), on_b(POD, &bed.pod_b));
    let mut daemon = Daemon::prepare(&bed.host_b, &configuration);
    daemon.spawn();
    daemon
}

fn counted(daemon: &Daemon) -> IngressStatistics {
    daemon.control().counters(POD).ingress.expect("ingress is short")
}

/// The talker's number of a datagram.
fn number(payload: &[u8]) -> u64 {
    u64::from_ne_bytes(payload[8..16].try_into().expect("eight octets"))
}

#[test]
fn frames_of_a_talker_arrive_once_in_order_and_whole() {
    let bed = Bed::new();
    let receiving = start(&bed);
    let sending = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let mut before = 0;
    for (round, to) in [POD_B, POD_B6].into_iter().enumerate() {
        let socket = within(&bed.pod_b, || UdpSocket::bind((to, PORT)).expect("listener"));
        socket.set_read_timeout(Some(SOON)).expect("timeout");
        let talker = Talker::start(
            &sending,
            &bed.pod_a,
            to,
            round as u32,
            "count=500 period_us=1000 lead_us=100000 octets=200",
        );
        let mut octets = [0; 2000];
        for sequence in 0..500_u64 {
            let (length, from) = socket.recv_from(&mut octets).expect("a datagram");
            assert_eq!(length, 200);
            assert!(from.is_ipv6() || from.ip().to_string() == POD_A);
            assert_eq!(number(&octets), sequence, "once, in order");
        }
        drop(talker);
        let counters = counted(&receiving);
        assert_eq!(counters.taken, 500 * (round as u64 + 1), "{counters:?}");
        let headers = if round == 0 { 14 + 20 + 8 } else { 14 + 40 + 8 };
        assert_eq!(counters.taken_octets - before, 500 * (200 + headers), "{counters:?}");
        before = counters.taken_octets;
        assert!(counters.left.is_empty() && counters.failed == 0, "{counters:?}");
    }
    assert_eq!(sending.control().counters(NAME).sent, 1000);
}
