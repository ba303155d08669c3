// SPDX-License-Identifier: Apache-2.0
//! Devices and namespaces that go away under traffic.

use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, arrive, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);

/// Waits until `left` attachments are left.
fn released(daemon: &Daemon, left: usize) {
    eventually("the attachment is gone", SOON, || daemon.control().list().attachments.len() == left);
}

fn pod_q(bed: &Bed) -> Attachment {
    Attachment { name: "pod-q".to_owned(), namespace: bed.pod_q.clone(), ..Attachment::pod_a(bed) }
}

/// The pod's processes end and its namespace is deleted while frames flow and wait: everything that the daemon
/// holds in it is let go within a second, and the other pod loses nothing.
#[test]
fn a_namespace_is_deleted_under_traffic() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed), pod_q(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let other = Talker::start(&daemon, &bed.pod_q, POD_B, 1, "count=3000");
    let mut doomed = Talker::start(&daemon, &bed.pod_a, POD_B, 2, "count=100000 lead_us=500000");
    eventually("traffic", SOON, || tap.of(2).len() > 100 && tap.of(1).len() > 100);
    assert!(bed.has_link("pod5"));
    doomed.child().kill().expect("kill");
    bed.delete(&bed.pod_a);
    drop(doomed);
    released(&daemon, 1);
    eventually("its port is gone", SOON, || daemon.control().list().ports.len() == 2);
    // Nobody holds the namespace; how long the kernel takes to clear up is its own affair.
    eventually("the host's end of the interface is gone", SOON, || !bed.has_link("pod5"));
    let (values, errors) = other.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    assert_eq!(tap.wait(1, 3000, SOON).len(), 3000);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    // A pod of the same name may come again.
    bed.run(&format!(
        "ip netns add {pa}\nip -n {ha} link add pod5 mtu 1450 type veth peer name eth0 netns {pa}\n\
         ip -n {ha} link set pod5 master cni0 up\nip -n {pa} addr add 10.244.0.5/24 dev eth0\n\
         ip -n {pa} link set eth0 up mtu 1450\nip -n {pa} route add default via 10.244.0.1\n",
        pa = bed.pod_a,
        ha = bed.host_a
    ));
    let again = serde_json::json!({
        "name": NAME, "netns": bed.pod_a, "interface": "eth0", "uplink": UPLINK, "overrun_limit": "10s",
        "destinations": ["10.244.0.0/16"],
    });
    daemon.control().attach(again).expect("attach");
    let mut sender = 2;
    eventually("a frame arrives", SOON, || {
        sender += 1;
        talk(&daemon, &bed.pod_a, POD_B, sender, "count=20");
        let second = Duration::from_secs(1);
        !tap.wait(sender, 1, second).is_empty()
    });
}

/// Only the interface is removed: the same.
#[test]
fn an_interface_is_removed() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed), pod_q(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let doomed = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=100000");
    eventually("traffic", SOON, || tap.of(1).len() > 50);
    bed.run(&format!("ip -n {} link del pod5", bed.host_a));
    released(&daemon, 1);
    arrive(&daemon, &tap, &bed.pod_q, POD_B, 2, 20);
    drop(doomed);
}

/// The uplink goes down under traffic and comes back: frames meanwhile are dropped by name, the program goes on.
#[test]
fn the_uplink_goes_down_and_comes_back() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=60000 last=500");
    eventually("traffic", SOON, || tap.of(1).len() > 100);
    bed.run(&format!("ip -n {} link set {UPLINK} down", bed.host_a));
    let dropped = || daemon.control().counters(NAME).dropped.values().sum::<u64>();
    eventually("frames are dropped", SOON, || dropped() > 100);
    bed.run(&format!("ip -n {} link set {UPLINK} up", bed.host_a));
    let down_until = tap.of(1).len();
    talker.go();
    let (values, errors) = talker.finish();
    assert_eq!(values["failed"], 0, "{errors}");
    let sent = values["sent"].cast_unsigned();
    let last =
        eventually("traffic again", SOON, || tap.of(1).last().filter(|a| a.sequence == sent - 1).cloned());
    let arrived = tap.of(1);
    assert!(arrived.len() > down_until + 100 && last.after_ns >= 0, "{}", arrived.len());
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let counters = daemon.control().counters_of(NAME, sent, SOON);
    assert_eq!(counters.taken, counters.sent + counters.dropped.values().sum::<u64>(), "{counters:?}");
    assert!((arrived.len() as u64) < sent && counters.dropped.values().sum::<u64>() > 0, "{counters:?}");
}
