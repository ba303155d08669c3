// SPDX-License-Identifier: Apache-2.0
//! An overlay without configured peers: learnt from Flannel's device, kept current while frames leave, and what
//! happens when something of it is missing.

use std::time::Duration;

use ktsn_proto::v1::{self, set_peers_request::Target};
use ktsn_tests::faults::bed::{Bed, POD_B, POD_B6, PODS_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, port};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};
use tonic::Code;

const SOON: Duration = Duration::from_secs(20);

fn learning(bed: &Bed) -> Daemon {
    let attachment = Attachment::pod_a(bed).learning_from("flannel.1");
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{attachment}", port("auto")));
    daemon.spawn();
    daemon
}

fn overlay(daemon: &Daemon) -> v1::OverlayState {
    daemon.control().list().attachments.remove(0).overlay.expect("an overlay")
}

/// Flannel's device on host A with all that flanneld puts there, as the bed makes it at first.
fn flannel(bed: &Bed, mac: &str) -> String {
    let a = &bed.host_a;
    format!(
        "ip -n {a} link add flannel.1 address {mac} mtu 1450 type vxlan id 1 local 192.168.50.1 dev {UPLINK} dstport 8472 nolearning
ip -n {a} addr add 10.244.0.0/32 dev flannel.1
ip -n {a} link set flannel.1 up
ip -n {a} neigh add 10.244.1.0 lladdr 02:00:00:00:01:02 dev flannel.1 nud permanent
bridge -n {a} fdb add 02:00:00:00:01:02 dev flannel.1 dst 192.168.50.2
ip -n {a} route add {PODS_B} via 10.244.1.0 dev flannel.1 onlink
"
    )
}

/// The kernel's VXLAN at the other end hands them to the pod, IPv4 and IPv6.
#[test]
fn flannels_peers_serve_without_a_configured_one() {
    let bed = Bed::new();
    let daemon = learning(&bed);
    let (wire, pod) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.pod_b, "eth0"));
    for (sender, to) in [(1, POD_B), (2, POD_B6)] {
        talk(&daemon, &bed.pod_a, to, sender, "count=20");
        assert_eq!(wire.wait(sender, 20, SOON).len(), 20, "{}", daemon.log());
        assert!(wire.of(sender).iter().all(|arrival| arrival.is_overlay && arrival.after_ns >= 0));
        assert_eq!(pod.wait(sender, 20, SOON).len(), 20);
    }
    assert_eq!(daemon.control().counters_of(NAME, 40, SOON).sent, 40);
    let overlay = overlay(&daemon);
    assert_eq!((overlay.vni, overlay.port, overlay.local.as_str()), (1, 8472, "192.168.50.1"));
    assert_eq!((overlay.peers["learnt"], overlay.peers_missing, overlay.fault.as_str()), (2, 0, ""));
}

/// A thousand nodes come, move and go, while one frame a millisecond leaves for another: none is lost.
#[test]
fn churn_of_a_thousand_peers_loses_no_frame() {
    let bed = Bed::new();
    let daemon = learning(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker =
        Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=4000 period_us=1000 lead_us=20000 clock=1");
    let _ = tap.wait(1, 50, SOON);
    let each = |line: &dyn Fn(String, String) -> String| -> String {
        (0..1000)
            .map(|i| line(format!("{}.{}", i / 250, i % 250), format!("{:02x}:{:02x}", i / 250, i % 250)))
            .collect()
    };
    let (a, batch) = (&bed.host_a, |program: &str, lines: String| {
        format!("{program} -n {} -batch - <<'END'\n{lines}END\n", bed.host_a)
    });
    bed.run(&batch(
        "ip",
        each(&|n, m| format!("neigh add 10.{n}.0 lladdr 02:00:00:01:{m} dev flannel.1 nud permanent\n")),
    ));
    bed.run(&batch(
        "bridge",
        each(&|n, m| format!("fdb add 02:00:00:01:{m} dev flannel.1 dst 10.128.{n} self\n")),
    ));
    bed.run(&batch("ip", each(&|n, _| format!("route add 10.{n}.0/24 via 10.{n}.0 dev flannel.1 onlink\n"))));
    eventually("all are learnt", SOON, || {
        let overlay = overlay(&daemon);
        overlay.peers["learnt"] == 1002 && overlay.peers_missing == 0
    });
    bed.run(&batch(
        "bridge",
        each(&|n, m| format!("fdb replace 02:00:00:01:{m} dev flannel.1 dst 10.129.{n} self\n")),
    ));
    bed.run(&batch("ip", each(&|n, _| format!("route del 10.{n}.0/24\n"))));
    bed.run(&format!("ip -n {a} neigh flush dev flannel.1 to 10.0.0.0/14 nud permanent"));
    let (values, errors) = talker.finish();
    assert_eq!((values["sent"], values["failed"]), (4000, 0), "{errors}");
    let arrived = tap.wait(1, 4000, SOON);
    let counters = daemon.control().counters_of(NAME, 4000, SOON);
    assert_eq!(arrived.len(), 4000, "dropped {:?}, to the kernel {:?}", counters.dropped, counters.bypassed);
    assert_eq!((counters.sent, counters.dropped.len()), (4000, 0));
    assert!(tap.early().is_empty());
    eventually("all are gone", SOON, || overlay(&daemon).peers["learnt"] == 2);
}

/// What cannot leave is dropped and counted, never sent another way; it goes on when the tables are whole again.
#[test]
fn a_missing_tunnel_end_and_a_device_made_anew_under_traffic() {
    let bed = Bed::new();
    let daemon = learning(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let a = &bed.host_a;
    let dropped = || reason(&daemon.control().counters(NAME).dropped, "no_neighbour");
    let talker =
        Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=6000 period_us=1000 lead_us=5000 clock=1");
    let _ = tap.wait(1, 20, SOON);
    bed.run(&format!("bridge -n {a} fdb del 02:00:00:00:01:02 dev flannel.1 dst 192.168.50.2 self"));
    eventually("drops are counted", SOON, || dropped() >= 20);
    let missing = daemon.control().peers(NAME).expect("peers");
    assert!(
        missing.iter().all(|peer| peer.missing == "no forwarding entry for 02:00:00:00:01:02"),
        "{missing:?}"
    );
    bed.run(&format!("bridge -n {a} fdb add 02:00:00:00:01:02 dev flannel.1 dst 192.168.50.2"));
    let so_far = tap.of(1).len();
    let _ = tap.wait(1, so_far + 50, SOON);
    let before = dropped();

    // flanneld restarted with other parameters: the device is another one, with another MAC address.
    bed.run(&format!("ip -n {a} link del flannel.1"));
    eventually("drops are counted", SOON, || dropped() >= before + 20);
    assert_eq!(overlay(&daemon).fault, "flannel.1: no such device");
    bed.run(&flannel(&bed, "02:00:00:00:01:77"));
    let so_far = tap.of(1).len();
    let _ = tap.wait(1, so_far + 50, SOON);
    let (values, errors) = talker.finish();
    assert_eq!((values["sent"], values["failed"]), (6000, 0), "{errors}");
    eventually("every frame is accounted for", SOON, || {
        let counters = daemon.control().counters(NAME);
        assert_eq!(counters.bypassed.len(), 0, "none went to the kernel: {:?}", counters.bypassed);
        assert!(counters.dropped.keys().all(|reason| reason == "no_neighbour"), "{:?}", counters.dropped);
        counters.sent + reason(&counters.dropped, "no_neighbour") == 6000
    });
    let sent = daemon.control().counters(NAME).sent as usize;
    assert_eq!(tap.wait(1, sent, SOON).len(), sent);
    assert!(tap.early().is_empty() && dropped() < 5500, "it went on");
    assert_eq!(overlay(&daemon).mac, "02:00:00:00:01:77");
}

/// The uplink goes, and the VXLAN device with it; both come back under their names.
#[test]
fn a_replaced_uplink_recovers() {
    let bed = Bed::new();
    let daemon = learning(&bed);
    let (a, b) = (&bed.host_a, &bed.host_b);
    {
        let tap = Tap::open(b, UPLINK);
        talk(&daemon, &bed.pod_a, POD_B, 1, "count=5");
        assert_eq!(tap.wait(1, 5, SOON).len(), 5);
    }
    // Longer than a busy kernel takes for all this.
    let held = Talker::start(&daemon, &bed.pod_a, POD_B, 2, "count=3000 period_us=4000 lead_us=5000 clock=1");
    bed.replace_uplink();
    bed.run(&format!(
        "ip -n {a} neigh replace 192.168.50.2 lladdr 02:00:00:00:00:02 dev {UPLINK} nud permanent
{}",
        flannel(&bed, "02:00:00:00:01:01")
    ));
    let tap = Tap::open(b, UPLINK);
    assert!(!tap.wait(2, 100, SOON).is_empty(), "{}", daemon.log());
    let (values, errors) = held.finish();
    assert_eq!((values["sent"], values["failed"]), (3000, 0), "{errors}");
    talk(&daemon, &bed.pod_a, POD_B, 3, "count=20");
    assert_eq!(tap.wait(3, 20, SOON).len(), 20, "{}", daemon.log());
}

/// ktsnd comes before Flannel: programs go on with the kernel until the device is there.
#[test]
fn a_device_that_comes_later_is_waited_for() {
    let bed = Bed::new();
    bed.run(&format!("ip -n {} link del flannel.1", bed.host_a));
    let daemon = learning(&bed);
    assert_eq!(overlay(&daemon).fault, "flannel.1: no such device");
    assert!(daemon.log().contains("flannel.1: no such device"), "{}", daemon.log());
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=3");
    let bypassed = daemon.control().counters(NAME).bypassed;
    eventually("left to the kernel", SOON, || {
        reason(&daemon.control().counters(NAME).bypassed, "not_allowed") == 3
    });
    assert!(bypassed.len() <= 1);
    bed.run(&flannel(&bed, "02:00:00:00:01:01"));
    eventually("it is learnt", SOON, || overlay(&daemon).fault.is_empty());
    let tap = Tap::open(&bed.host_b, UPLINK);
    // Until the program's table is the new one, the kernel sends them, at once.
    let mut sender = 1;
    let taken = eventually("a frame is taken", SOON, || {
        sender += 1;
        let before = daemon.control().counters(NAME).taken;
        talk(&daemon, &bed.pod_a, POD_B, sender, "count=1");
        (daemon.control().counters(NAME).taken > before).then_some(sender)
    });
    assert_eq!(tap.wait(taken, 1, SOON).len(), 1);
    assert!(tap.early().iter().all(|arrival| arrival.sender != taken), "{:?}", tap.early());
}

fn peer(prefix: &str, vtep: &str, mac: &str) -> v1::VxlanPeer {
    v1::VxlanPeer { prefix: prefix.to_owned(), vtep: vtep.to_owned(), mac: mac.to_owned() }
}

/// SetPeers: whole lists, checked before anything changes, before what is learnt, kept over a restart.
#[test]
fn peers_by_the_control_api() {
    let bed = Bed::new();
    // Nothing can be learnt for pod B.
    bed.run(&format!("ip -n {} route del {PODS_B}", bed.host_a));
    let mut daemon = learning(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let of_b = || peer(PODS_B, "192.168.50.2", "02:00:00:00:01:02");
    let attachment = || Target::Attachment(NAME.to_owned());
    for (target, peers, code, message) in [
        (Target::Attachment("nobody".into()), vec![of_b()], Code::NotFound, "\"nobody\": no such attachment"),
        (Target::Attachment(String::new()), vec![], Code::InvalidArgument, "attachment: missing"),
        (Target::Vni(0), vec![of_b()], Code::InvalidArgument, "vni: \"0\": expected 1 to 16777215"),
        (
            attachment(),
            vec![of_b(), of_b()],
            Code::InvalidArgument,
            "peers[1].prefix: \"10.244.1.0/24\" is used twice",
        ),
        (
            attachment(),
            vec![peer(PODS_B, "x", "y")],
            Code::InvalidArgument,
            "peers[0].vtep: \"x\": expected an IP",
        ),
        (
            attachment(),
            vec![peer(PODS_B, "fd00::2", "02:00:00:00:01:02")],
            Code::InvalidArgument,
            "peers[0].vtep: \"fd00::2\": expected an address of the same family",
        ),
        (
            Target::Vni(1),
            vec![of_b(); 4097],
            Code::InvalidArgument,
            "peers: \"4097\": expected at most 4096 peers",
        ),
    ] {
        let error = daemon.control().set_peers(target, peers).expect_err(message);
        assert_eq!(error.code(), code, "{error}");
        assert!(error.message().contains(message), "{message}: {error}");
    }
    assert_eq!(daemon.control().peers("nobody").expect_err("no such").code(), Code::NotFound);
    let others = daemon.control().peers(NAME).expect("peers");
    assert!(others.iter().all(|state| state.source == "learnt"), "nothing was changed: {others:?}");

    daemon.control().set_peers(Target::Vni(1), vec![of_b()]).expect("peers");
    let served = |daemon: &Daemon| {
        let peers = daemon.control().peers(NAME).expect("peers");
        peers.into_iter().find(|state| state.peer.as_ref().is_some_and(|peer| peer.prefix == PODS_B))
    };
    assert_eq!(served(&daemon).expect("in force at once").source, "control-api");
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5");
    assert_eq!(tap.wait(1, 5, SOON).len(), 5, "{}", daemon.log());

    // Another claim, by the attachment's own list: reported, and the winner is the same after a restart.
    let wrong = peer(PODS_B, "192.168.50.9", "02:00:00:00:01:09");
    daemon.control().set_peers(attachment(), vec![wrong]).expect("peers");
    let told = overlay(&daemon);
    assert_eq!((told.conflicts_count, told.conflicts.len()), (1, 1));
    assert!(told.conflicts[0].contains("10.244.1.0/24 is claimed by 192.168.50.9"), "{:?}", told.conflicts);
    assert!(daemon.log().contains("peers in conflict"), "{}", daemon.log());
    daemon.kill();
    daemon.spawn();
    let vtep = served(&daemon).and_then(|state| state.peer).expect("kept").vtep;
    assert_eq!(vtep, "192.168.50.9");
    daemon.control().set_peers(attachment(), Vec::new()).expect("an empty list forgets");
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=5");
    assert_eq!(tap.wait(2, 5, SOON).len(), 5, "{}", daemon.log());
    assert!(overlay(&daemon).conflicts.is_empty());
}

/// What the tunnel leaves of a smaller MTU decides what programs hand over; the rest is the kernel's.
#[test]
fn an_uplink_with_a_smaller_mtu() {
    let bed = Bed::new();
    let daemon = learning(&bed);
    let tap = Tap::open(&bed.host_b, UPLINK);
    bed.run(&format!("ip -n {} link set {UPLINK} mtu 1300", bed.host_a));
    let left = || reason(&daemon.control().counters(NAME).bypassed, "over_mtu");
    let sent = || daemon.control().counters(NAME).sent;
    // Between the device's new MTU and the tables' it is dropped.
    let counted = || sent() + left() + reason(&daemon.control().counters(NAME).dropped, "too_long");
    let mut tries = 0;
    // 1300 - 50 - 28 fit, once it is known.
    eventually("one octet more is too much", SOON, || {
        talk(&daemon, &bed.pod_a, POD_B, 3, "count=1 octets=1223");
        tries += 1;
        // A program's own counts come when it is gone.
        eventually("each datagram is counted", SOON, || counted() == tries);
        left() > 0
    });
    let before = (sent(), left());
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=5 octets=1222");
    assert_eq!(tap.wait(1, 5, SOON).len(), 5);
    talk(&daemon, &bed.pod_a, POD_B, 2, "count=5 octets=1223");
    eventually("each datagram is counted", SOON, || counted() == tries + 10);
    assert_eq!((sent(), left()), (before.0 + 5, before.1 + 5), "{}", daemon.log());
}

/// A segment that the kernel bridges at the other end: stations and tunnel ends are learnt, groups reach every end.
#[test]
fn a_learnt_segment_reaches_stations_and_groups() {
    let bed = Bed::new();
    for (host, pod, n, m) in [(&bed.host_a, &bed.pod_a, 1, 2), (&bed.host_b, &bed.pod_b, 2, 1)] {
        bed.run(&format!(
            "ip -n {host} link add br7 type bridge
ip -n {host} link set br7 mtu 1450 up
ip -n {host} link add vx7 mtu 1450 type vxlan id 7 local 192.168.50.{n} dev {UPLINK} dstport 8472 nolearning
ip -n {host} link set vx7 master br7 up
ip -n {host} link add net1 mtu 1450 type veth peer name net1 address 02:00:00:00:07:0{n} netns {pod}
ip -n {host} link set net1 master br7 up
ip -n {pod} link set net1 mtu 1450 up
ip -n {pod} addr add 10.77.0.{n}/24 brd + dev net1
ip -n {pod} route add 239.0.0.0/8 dev net1
ip -n {pod} neigh add 10.77.0.{m} lladdr 02:00:00:00:07:0{m} dev net1 nud permanent
bridge -n {host} fdb append 00:00:00:00:00:00 dev vx7 dst 192.168.50.{m} self
bridge -n {host} fdb add 02:00:00:00:07:0{m} dev vx7 dst 192.168.50.{m} self
"
        ));
    }
    let overlay_of = "overlay = { vxlan = { mode = \"bridged\", learn_from = \"vx7\" } }";
    let attachment = format!(
        "[[attachment]]\nname = \"{NAME}\"\nnetns = \"{}\"\ninterface = \"net1\"\nuplink = \"{UPLINK}\"\n\
         overrun_limit = \"10s\"\ndestinations = [\"10.77.0.0/24\", \"239.0.0.0/8\"]\n{overlay_of}\n",
        bed.pod_a
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{attachment}", port("auto")));
    daemon.spawn();
    let shown = overlay(&daemon);
    assert_eq!((shown.vni, shown.port, shown.local.as_str()), (7, 8472, "192.168.50.1"));
    let (wire, pod) = (Tap::open(&bed.host_b, UPLINK), Tap::open(&bed.pod_b, "net1"));
    for (sender, to) in [(1, "10.77.0.2"), (2, "239.7.7.7")] {
        talk(&daemon, &bed.pod_a, to, sender, "count=20 clock=1");
        assert_eq!(wire.wait(sender, 20, SOON).len(), 20, "{to}: {}", daemon.log());
        assert!(wire.of(sender).iter().all(|arrival| arrival.is_overlay && arrival.after_ns >= 0));
        assert_eq!(pod.wait(sender, 20, SOON).len(), 20, "{to}");
    }
    assert_eq!(daemon.control().counters_of(NAME, 40, SOON).sent, 40);
    // No peer has the station any more: what goes to it is flooded, and arrives all the same.
    bed.run(&format!("bridge -n {} fdb del 02:00:00:00:07:02 dev vx7 dst 192.168.50.2 self", bed.host_a));
    // ktsnd reads it meanwhile, which nothing tells.
    std::thread::sleep(Duration::from_millis(300));
    talk(&daemon, &bed.pod_a, "10.77.0.2", 3, "count=20 clock=1");
    assert_eq!(pod.wait(3, 20, SOON).len(), 20);
}
