// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path, what it leaves to the kernel and why: listeners of layer 2, malformed frames, rules of the node, a
//! device that is not up, and two pods with one MAC address.

use std::net::UdpSocket;
use std::time::Duration;

use ktsn_proto::v1::IngressStatistics;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, UPLINK, within};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{self, Attachment, Daemon};
use ktsn_tests::faults::frames::{Frames, inject};
use ktsn_tests::faults::talker::{PORT, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);
const POD: &str = "pod-b";

/// ktsnd on host B with this pod, whose frames take the ingress fast path.
fn start(bed: &Bed, rest: &str) -> Daemon {
    let table = format!(
        "{}[[attachment]]\nname = \"{POD}\"\nnetns = \"{}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         ingress = \"short\"\noverlay = {{ vxlan = {{ local = \"192.168.50.2\", peers = [\n  {{ prefix = \"10.244.0.0/24\", \
         vtep = \"192.168.50.1\", mac = \"02:00:00:00:01:01\" }} ] }} }}\n{rest}",
        daemon::port("auto"),
        bed.pod_b
    );
    let mut daemon = Daemon::prepare(&bed.host_b, &table);
    daemon.spawn();
    daemon
}

fn counted(daemon: &Daemon) -> IngressStatistics {
    daemon.control().counters(POD).ingress.expect("ingress is short")
}

/// A rule against what arrives ends the ingress fast path; the kernel, which has the rule, delivers what it lets pass.
#[test]
fn a_rule_about_what_arrives_is_met() {
    let bed = Bed::new();
    let (receiving, sending) = (start(&bed, ""), Daemon::start(&bed, &[Attachment::pod_a(&bed)]));
    let tap = Tap::open(&bed.pod_b, "eth0");
    talk(&sending, &bed.pod_a, POD_B, 1, "count=50 lead_us=100000");
    assert_eq!(tap.wait(1, 50, SOON).len(), 50);
    assert_eq!((counted(&receiving).taken, counted(&receiving).idle.as_str()), (50, ""));
    let rule = format!("FORWARD -d {POD_B} -p udp --dport 9 -j DROP");
    bed.run(&format!("ip netns exec {} iptables -A {rule}", bed.host_b));
    eventually("it is met", SOON, || counted(&receiving).idle.contains("a rule"));
    talk(&sending, &bed.pod_a, POD_B, 2, "count=50 lead_us=100000");
    assert_eq!(tap.wait(2, 50, SOON).len(), 50, "by the kernel");
    assert_eq!(counted(&receiving).taken, 50);
    bed.run(&format!("ip netns exec {} iptables -D {rule}", bed.host_b));
    eventually("it is gone", SOON, || counted(&receiving).idle.is_empty());
    talk(&sending, &bed.pod_a, POD_B, 3, "count=50 lead_us=100000");
    assert_eq!((tap.wait(3, 50, SOON).len(), counted(&receiving).taken), (50, 100));
}

/// Attaching goes on where the host's end is no bridge's port yet, or a device is down; then all is the kernel's, and the
/// status says so.
#[test]
fn without_a_way_in_everything_is_the_kernels_until_there_is_one() {
    let bed = Bed::new();
    let b = &bed.host_b;
    bed.run(&format!("ip -n {b} link set flannel.1 down"));
    let receiving = start(&bed, "");
    assert!(counted(&receiving).idle.contains("is not up"), "{:?}", counted(&receiving));
    assert!(receiving.log().contains("ingress fast path: nothing is taken"), "{}", receiving.log());
    bed.run(&format!(
        "ip -n {b} link set flannel.1 up\nip -n {b} route replace 10.244.0.0/24 via 10.244.0.0 dev flannel.1 onlink"
    ));
    eventually("taking", SOON, || counted(&receiving).idle.is_empty());
    bed.run(&format!("ip -n {b} link set pod5 down"));
    eventually("the host's end is down", SOON, || !counted(&receiving).idle.is_empty());
    bed.run(&format!("ip -n {b} link set pod5 up"));
    eventually("taking again", SOON, || counted(&receiving).idle.is_empty());
}

/// Frames that only an attacker sends: counted, none reaches the pod, and the right ones go on.
#[test]
fn malformed_frames_are_counted_and_go_nowhere() {
    let bed = Bed::new();
    let (receiving, sending) = (start(&bed, ""), Daemon::start(&bed, &[Attachment::pod_a(&bed)]));
    let wire = Frames::open(&bed.host_b, UPLINK);
    talk(&sending, &bed.pod_a, POD_B, 1, "count=1 lead_us=100000");
    let good = wire.wait(1, SOON)[0].frame.clone();
    assert_eq!(counted(&receiving).taken, 1);
    let inner = 14 + 20 + 8 + 8;
    let send = |frame: &[u8]| inject(&bed.host_a, UPLINK, frame);
    let tap = Tap::open(&bed.pod_b, "eth0");
    let changed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut frame = good.clone();
        change(&mut frame);
        // Without an outer checksum nothing but the change is wrong.
        frame[14 + 20 + 6..14 + 20 + 8].fill(0);
        frame
    };
    let bad: [(&str, Vec<u8>); 4] = [
        ("malformed", changed(&|frame| frame[inner + 14] = 0x65)), // version 6 in an IPv4 frame
        ("malformed", changed(&|frame| frame[inner + 14 + 10] ^= 0x55)), // header checksum
        ("malformed", changed(&|frame| frame[inner + 14 + 3] ^= 0x40)), // total length beyond the frame
        ("other_mac", changed(&|frame| frame[inner] ^= 0x02)),     // not for the VXLAN device
    ];
    for (number, (_, frame)) in (1_u64..).zip(&bad) {
        send(frame);
        let all = || counted(&receiving).left.values().sum::<u64>();
        eventually("counted", SOON, || all() == number);
    }
    let counters = counted(&receiving);
    assert_eq!(
        (reason(&counters.left, "malformed"), reason(&counters.left, "other_mac")),
        (3, 1),
        "{counters:?}"
    );
    // No VXLAN at all: it concerns no attachment, is not counted, and does no harm.
    send(&changed(&|frame| frame[14 + 20 + 8] = 0));
    send(&changed(&|frame| frame.truncate(inner - 3)));
    talk(&sending, &bed.pod_a, POD_B, 2, "count=50 lead_us=100000");
    assert_eq!(tap.wait(2, 50, SOON).len(), 50);
    assert_eq!(tap.of(1).len(), 0, "nothing of the malformed ones came in");
    assert_eq!((counted(&receiving).taken, counted(&receiving).failed), (51, 0));
}

/// The second pod comes to have the first one's MAC address: neither gets its frames, the status warns, and it is mended.
#[test]
fn a_mac_address_that_two_pods_come_to_have_is_nobodys() {
    let bed = Bed::new();
    let mut receiving = Daemon::prepare(
        &bed.host_a,
        &[&bed.pod_a, &bed.pod_q].iter().fold(daemon::port("auto"), |text, namespace| {
            format!(
                "{text}[[attachment]]\nname = \"{namespace}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
                 ingress = \"short\"\noverlay = {{ vxlan = {{ local = \"192.168.50.1\" }} }}\n"
            )
        }),
    );
    receiving.spawn();
    let sender = within(&bed.pod_b, || UdpSocket::bind((POD_B, 0)).expect("sender"));
    let seen = || {
        let counters = receiving.control().counters(&bed.pod_a).ingress.expect("short");
        counters.taken + counters.left.values().sum::<u64>()
    };
    let send = || {
        for _ in 0..10 {
            sender.send_to(&[7; 64], (POD_A, PORT)).expect("sent");
        }
    };
    send();
    eventually("all are seen", SOON, || seen() == 10);
    let mac = "02:00:00:00:0a:0a";
    bed.run(&format!(
        "ip -n {} link set eth0 address {mac}\nip -n {} link set eth0 address {mac}",
        bed.pod_a, bed.pod_q
    ));
    let said = format!("MAC address {mac} in VNI 1 is claimed by several");
    eventually("told", SOON, || {
        let warnings = receiving.control().health().expect("health").warnings;
        warnings.iter().any(|text| text.contains(&said))
    });
    let before = seen();
    send();
    // Nothing tells of frames that were not seen.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(seen(), before, "none of both has it");
    bed.run(&format!("ip -n {} link set eth0 address 02:00:00:00:0a:0b", bed.pod_q));
    eventually("it is pod A's again", SOON, || {
        send();
        seen() > before
    });
}
