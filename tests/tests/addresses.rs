// SPDX-License-Identifier: Apache-2.0
//! Addresses are given, not believed: what a pod's root adds to its interface sends nothing and receives nothing by the
//! ingress fast path, also after a restart.

use std::net::UdpSocket;
use std::time::Duration;

use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_Q, UPLINK, within};
use ktsn_tests::faults::control::{reason, with};
use ktsn_tests::faults::daemon::{self, Attachment, Daemon, NAME};
use ktsn_tests::faults::frames::{Kind, talker};
use ktsn_tests::faults::talker::{PORT, talk};
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook;
use serde_json::json;

const SOON: Duration = Duration::from_secs(20);
/// No host of the bed has them.
const FOREIGN: [&str; 2] = ["192.168.50.99", "8.8.8.8"];

fn withheld(daemon: &Daemon, name: &str) -> Vec<String> {
    let listed = daemon.control().list().attachments;
    let of = |state: &&v1::AttachmentState| state.name == name;
    listed.iter().find(of).expect("attached").withheld.clone()
}

fn given(daemon: &Daemon, name: &str) -> Vec<String> {
    let listed = daemon.control().list().attachments;
    let attachment = listed.iter().find(|state| state.name == name).expect("attached").fields();
    serde_json::from_value(attachment["addresses"].clone()).expect("a list")
}

/// The pod's root adds an address; waits until the daemon has seen it.
fn add(bed: &Bed, daemon: &Daemon, pod: &str, name: &str, address: &str) {
    bed.run(&format!("ip -n {pod} addr add {address}/32 dev eth0"));
    let is_seen = || withheld(daemon, name).iter().any(|one| one == address);
    eventually("the address is withheld", SOON, is_seen);
}

/// The node's own filter of sources, as distributions set it.
fn with_reverse_path_filter(bed: &Bed) {
    let host = &bed.host_a;
    for device in ["all", "cni0"] {
        bed.run(&format!("ip netns exec {host} sysctl -qw net.ipv4.conf.{device}.rp_filter=1"));
    }
}

#[test]
fn an_address_that_the_pod_adds_sends_nothing() {
    let bed = Bed::new();
    with_reverse_path_filter(&bed);
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    assert_eq!(given(&daemon, NAME)[..2], [POD_A, "fd10:244::5"]);
    let wire = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, &format!("count=20 lead_us=20000 from={POD_A}"));
    assert_eq!(wire.wait(1, 20, SOON).len(), 20);
    assert_eq!(daemon.control().counters_of(NAME, 20, SOON).sent, 20);
    let refused = || reason(&daemon.control().counters(NAME).bypassed, "not_allowed");
    for (sender, address) in (10..).zip(FOREIGN) {
        add(&bed, &daemon, &bed.pod_a, NAME, address);
        let (before, sent) = (refused(), daemon.control().counters(NAME).sent);
        talk(&daemon, &bed.pod_a, POD_B, sender, &format!("count=50 lead_us=5000 from={address}"));
        eventually("counted", SOON, || refused() == before + 50);
        assert_eq!(daemon.control().counters(NAME).sent, sent, "{address}");
    }
    // The neighbour's own address: the node's filter would let it pass, so the wire says nothing of KTSN.
    add(&bed, &daemon, &bed.pod_a, NAME, POD_Q);
    let (before, sent) = (refused(), daemon.control().counters(NAME).sent);
    talk(&daemon, &bed.pod_a, POD_B, 20, &format!("count=50 lead_us=5000 from={POD_Q}"));
    eventually("counted", SOON, || refused() == before + 50);
    assert_eq!(daemon.control().counters(NAME).sent, sent);
    // A socket that names no address leaves with a given one, whatever else there is.
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=20 lead_us=20000");
    let arrived = wire.wait(2, 20, SOON);
    assert_eq!(arrived.len(), 20);
    assert!(arrived.iter().all(|frame| frame.source.to_string() == POD_A), "{arrived:?}");
    assert_eq!((wire.of(10).len(), wire.of(11).len()), (0, 0), "the node's filter had them");
    assert!(daemon.log().contains("not given to the attachment"), "{}", daemon.log());
    assert_eq!(daemon.log().matches("not given to the attachment").count(), 1, "said once");
    bed.run(&format!("ip -n {} addr del {POD_Q}/32 dev eth0", bed.pod_a));
    eventually("forgotten", SOON, || !withheld(&daemon, NAME).contains(&POD_Q.to_owned()));
}

#[test]
fn what_is_given_is_the_configurations_word() {
    let bed = Bed::new();
    bed.run(&format!("ip -n {} addr add 10.244.0.8/24 dev eth0", bed.pod_a));
    let listed = Attachment::pod_a(&bed).with(&format!("addresses = [\"{POD_A}\", \"10.244.0.16/28\"]"));
    let daemon = Daemon::start(&bed, &[listed]);
    assert_eq!(given(&daemon, NAME), [POD_A, "10.244.0.16/28"]);
    let shown = withheld(&daemon, NAME);
    assert!(shown.contains(&"10.244.0.8".to_owned()) && !shown.contains(&POD_A.to_owned()), "{shown:?}");
    // Within the prefix an address may come later.
    let wire = Tap::open(&bed.host_b, UPLINK);
    bed.run(&format!("ip -n {} addr add 10.244.0.17/24 dev eth0", bed.pod_a));
    let mut sender = 0;
    eventually("it is followed", SOON, || {
        sender += 1;
        talk(&daemon, &bed.pod_a, POD_B, sender, "count=5 lead_us=20000 from=10.244.0.17");
        let arrived = wire.wait(sender, 5, SOON / 40);
        (daemon.control().counters(NAME).sent >= 5).then_some(()).filter(|()| arrived.len() == 5)
    });
}

#[test]
fn frames_of_packet_sockets_from_foreign_addresses_are_the_kernels() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).to(&["10.244.0.0/16"])]);
    let send = |kind: Kind| {
        let numbers = [kind as u64, 20, 20_000, 1_000].map(|number| number.to_string());
        let mut arguments = vec!["eth0".to_owned(), "02:00:00:00:99:01".to_owned(), "frames".to_owned()];
        arguments.extend(numbers);
        let child = daemon.program(&bed.pod_a, talker(), &arguments);
        let values = hook::values(&child.wait_with_output().expect("talker"));
        assert_eq!((values["sent"], values["failed"]), (20, 0), "{kind:?} {values:?}");
    };
    send(Kind::Ipv4);
    eventually("its own are taken", SOON, || daemon.control().counters(NAME).sent == 20);
    for (round, kind) in (1..).zip([Kind::Spoofed, Kind::SpoofedTagged, Kind::SpoofedArp]) {
        send(kind);
        let refused = || reason(&daemon.control().counters(NAME).bypassed, "not_allowed");
        eventually("counted", SOON, || refused() == 20 * round);
    }
    let counters = daemon.control().counters(NAME);
    assert_eq!((counters.taken, counters.sent), (20, 20), "{counters:?}");
}

/// ktsnd on host A with pod Q's ingress fast path, and on host B as the sender.
fn two_daemons(bed: &Bed, more: &str) -> (Daemon, Daemon) {
    let table = |name: &str, namespace: &str, (local, remote): (u8, u8), rest: &str| {
        format!(
            "{}[[attachment]]\nname = \"{name}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
             overrun_limit = \"10s\"\nlate = \"send\"\noverlay = {{ vxlan = {{ local = \"192.168.50.{local}\", peers = [ {{ prefix = \
             \"10.244.{}.0/24\", vtep = \"192.168.50.{remote}\", mac = \"02:00:00:00:01:0{remote}\" }} ] }} }}\n{rest}\n",
            daemon::port("auto"),
            remote - 1
        )
    };
    let short = format!("ingress = \"short\"\n{more}");
    let mut receiving = Daemon::prepare(&bed.host_a, &table("pod-q", &bed.pod_q, (1, 2), &short));
    receiving.spawn();
    let mut sending = Daemon::prepare(&bed.host_b, &table("pod-b", &bed.pod_b, (2, 1), ""));
    sending.spawn();
    (receiving, sending)
}

fn taken(daemon: &Daemon) -> u64 {
    daemon.control().counters("pod-q").ingress.expect("short").taken
}

/// Fifty datagrams to an address, and how many a listener in `place` gets.
fn heard(bed: &Bed, sending: &Daemon, place: &str, to: &str, sender: u32) -> usize {
    heard_within(SOON, bed, sending, place, to, sender)
}

/// The same, where each datagram may take so long.
fn heard_within(
    patience: Duration,
    bed: &Bed,
    sending: &Daemon,
    place: &str,
    to: &str,
    sender: u32,
) -> usize {
    let socket = within(place, || UdpSocket::bind((to, PORT)).expect("listener"));
    socket.set_read_timeout(Some(patience)).expect("timeout");
    talk(sending, &bed.pod_b, to, sender, "count=50 lead_us=100000");
    (0..50).take_while(|_| socket.recv(&mut [0; 2000]).is_ok()).count()
}

#[test]
fn the_ingress_fast_path_delivers_to_given_addresses_alone() {
    let bed = Bed::new();
    // The node's bridge, its VXLAN device, and the pod beside, which has no attachment.
    let others = [("10.244.0.1", &bed.host_a), ("10.244.0.0", &bed.host_a), (POD_A, &bed.pod_a)];
    for more in ["", "addresses = \"interface\""] {
        let (receiving, sending) = two_daemons(&bed, more);
        assert_eq!(heard(&bed, &sending, &bed.pod_q, POD_Q, 1), 50);
        eventually("all are counted", SOON, || taken(&receiving) == 50);
        for (sender, (address, place)) in (10..).zip(others) {
            // The node knows who has it.
            assert_eq!(heard(&bed, &sending, place, address, sender), 50);
            bed.run(&format!("ip -n {} addr add {address}/32 dev eth0", bed.pod_q));
            // An address that is seen as it comes says that the tables are those of now.
            bed.run(&format!("ip -n {} addr add 10.244.0.70/32 dev eth0", bed.pod_q));
            eventually("the daemon follows", SOON, || match more {
                "" => withheld(&receiving, "pod-q").iter().any(|one| one == "10.244.0.70"),
                _ => {
                    let heard = heard_within(SOON / 20, &bed, &sending, &bed.pod_q, "10.244.0.70", 9);
                    heard > 0 && taken(&receiving) > 50
                }
            });
            let inside = Tap::open(&bed.pod_q, "eth0");
            let before = taken(&receiving);
            assert_eq!(heard(&bed, &sending, place, address, 50 + sender), 50, "{address}: {more}");
            assert_eq!(taken(&receiving), before, "{address}: {more}");
            assert_eq!(inside.of(50 + sender).len(), 0, "{address}: {more}");
            bed.run(&format!(
                "ip -n {0} addr del {address}/32 dev eth0\nip -n {0} addr del 10.244.0.70/32 dev eth0",
                bed.pod_q
            ));
        }
        assert_eq!(heard(&bed, &sending, &bed.pod_q, POD_Q, 2), 50, "its own goes on");
    }
}

#[test]
fn what_was_given_is_given_after_a_restart() {
    let bed = Bed::new();
    let mut daemon = Daemon::prepare(&bed.host_a, &daemon::port("auto"));
    daemon.spawn();
    let attachment = || {
        json!({
            "name": NAME, "netns": bed.pod_a, "interface": "eth0", "uplink": UPLINK,
            "destinations": ["10.244.1.0/24"],
        })
    };
    assert!(!daemon.control().attach(attachment()).expect("attached"));
    assert!(daemon.control().attach(attachment()).expect("again"), "the same");
    let before = given(&daemon, NAME);
    assert!(before.contains(&POD_A.to_owned()), "{before:?}");
    add(&bed, &daemon, &bed.pod_a, NAME, FOREIGN[1]);
    daemon.kill();
    daemon.spawn();
    assert_eq!(given(&daemon, NAME), before, "a restart gives nothing");
    assert_eq!(withheld(&daemon, NAME), [FOREIGN[1]]);
    let other = with(attachment(), &json!({ "addresses": [FOREIGN[1]] }));
    assert_eq!(daemon.control().attach(other).expect_err("others").code(), tonic::Code::AlreadyExists);
    assert!(!daemon.log().contains("names no addresses"), "{}", daemon.log());
    // As an older ktsnd wrote it.
    daemon.kill();
    let path = daemon.run_dir().join("state.json");
    let mut state: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("state")).expect("JSON");
    let kept = state["attachments"][0].as_object_mut().expect("an attachment");
    kept.remove("addresses").expect("kept");
    // Without it an older ktsnd would serve the attachment wrongly.
    assert_eq!(kept.remove("needs"), Some(serde_json::json!(["addresses"])));
    std::fs::write(&path, state.to_string()).expect("state");
    bed.run(&format!("ip -n {} addr del {}/32 dev eth0", bed.pod_a, FOREIGN[1]));
    for _ in 0..2 {
        daemon.spawn();
        assert_eq!(given(&daemon, NAME), before);
        assert_eq!(daemon.log().matches("names no addresses").count(), 1, "said once: {}", daemon.log());
        daemon.kill();
    }
}
