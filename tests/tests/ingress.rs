// SPDX-License-Identifier: Apache-2.0
//! The ingress fast path: frames out of the overlay straight from the uplink into a pod behind a veth.

use std::net::UdpSocket;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use ktsn_proto::v1::IngressStatistics;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_B6, UPLINK, within};
use ktsn_tests::faults::control::{reason, with};
use ktsn_tests::faults::daemon::{self, Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{PORT, Talker, talk};
use ktsn_tests::faults::{Tap, eventually};
use serde_json::{Value, json};

const SOON: Duration = Duration::from_secs(20);
const POD: &str = "pod-b";

/// The table of an attachment on host B.
fn on_b(name: &str, namespace: &str) -> String {
    format!(
        "[[attachment]]\nname = \"{name}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         ingress = \"short\"\noverlay = {{ vxlan = {{ local = \"192.168.50.2\", peers = [\n  {{ prefix = \"10.244.0.0/24\", \
         vtep = \"192.168.50.1\", mac = \"02:00:00:00:01:01\" }} ] }} }}\n"
    )
}

/// ktsnd on host B with these tables.
fn start_with(bed: &Bed, tables: &str) -> Daemon {
    let mut daemon = Daemon::prepare(&bed.host_b, &format!("{}{tables}", daemon::port("auto")));
    daemon.spawn();
    daemon
}

/// ktsnd on host B, whose pod uses the ingress fast path.
fn start(bed: &Bed) -> Daemon {
    start_with(bed, &on_b(POD, &bed.pod_b))
}

fn counted(daemon: &Daemon) -> IngressStatistics {
    daemon.control().counters(POD).ingress.expect("ingress is short")
}

/// The counters once so many frames are taken: one is at its receiver before it is counted.
fn taken(daemon: &Daemon, count: u64) -> IngressStatistics {
    eventually("the frames are counted", SOON, || Some(counted(daemon)).filter(|found| found.taken == count))
}

/// The talker's number of a datagram.
fn number(payload: &[u8]) -> u64 {
    u64::from_ne_bytes(payload[8..16].try_into().expect("eight octets"))
}

/// Hears `count` datagrams in pod B; their numbers, in the order of arrival. Fewer when none comes for a long time.
fn hear(bed: &Bed, to: &str, count: usize) -> JoinHandle<Vec<u64>> {
    let socket = within(&bed.pod_b, || UdpSocket::bind((to, PORT)).expect("listener"));
    // Where the worker stood still, frames come all at once: they are not to be lost at the listener.
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, 16 << 20).expect("room");
    // The talker and its library may have to be built first.
    socket.set_read_timeout(Some(6 * SOON)).expect("timeout");
    std::thread::spawn(move || {
        let mut octets = [0; 9000];
        std::iter::from_fn(|| {
            socket.recv(&mut octets).ok()?;
            socket.set_read_timeout(Some(SOON)).ok()?;
            Some(number(&octets))
        })
        .take(count)
        .collect()
    })
}

/// All that the daemon of host A sent, once and in order.
fn assert_whole(heard: &[u64], sending: &Daemon) {
    assert!(heard.is_sorted_by(|a, b| a < b), "once, in order");
    // The daemon counts a frame after it has left.
    eventually("every frame is counted", SOON, || {
        sending.control().counters(NAME).sent == heard.len() as u64
    });
}

/// Waits until a frame to `to`, an address of pod B, is taken and arrives; how many are taken by then.
fn until_taken(bed: &Bed, sending: &Daemon, receiving: &Daemon, to: &str) -> u64 {
    let heard = within(&bed.pod_b, || UdpSocket::bind((to, PORT)).expect("listener"));
    heard.set_read_timeout(Some(SOON / 40)).expect("timeout");
    eventually("the daemon follows", SOON, || {
        let before = counted(receiving).taken;
        let _ = talk(sending, &bed.pod_a, to, 77, "count=1 lead_us=1000");
        heard.recv(&mut [0; 100]).ok()?;
        let after = counted(receiving).taken;
        (after > before).then_some(after)
    })
}

/// Waits until none to `to` is taken any more; how many are taken by then.
fn until_left(bed: &Bed, sending: &Daemon, receiving: &Daemon, to: &str) -> u64 {
    eventually("the daemon follows", SOON, || {
        let before = until_taken(bed, sending, receiving, POD_B);
        let _ = talk(sending, &bed.pod_a, to, 78, "count=1 lead_us=1000");
        let after = until_taken(bed, sending, receiving, POD_B);
        (after == before + 1).then_some(after)
    })
}

fn in_order(count: u64) -> Vec<u64> {
    (0..count).collect()
}

fn take_off(daemon: &Daemon) {
    let [link] = daemon.links()[..] else { panic!("one link") };
    let done = Command::new("bpftool").args(["link", "detach", "id", &link.to_string()]).output();
    assert!(done.expect("bpftool").status.success());
}

#[test]
fn frames_of_a_talker_arrive_once_in_order_and_whole() {
    let bed = Bed::new();
    let receiving = start(&bed);
    let sending = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    let mut before = 0;
    for (round, to) in [POD_B, POD_B6].into_iter().enumerate() {
        let socket = within(&bed.pod_b, || UdpSocket::bind((to, PORT)).expect("listener"));
        socket.set_read_timeout(Some(6 * SOON)).expect("timeout");
        // Packet sockets in the pod hear it too.
        let tap = Tap::open(&bed.pod_b, "eth0");
        let talker = Talker::start(
            &sending,
            &bed.pod_a,
            to,
            round as u32,
            "count=500 period_us=1000 lead_us=400000 octets=200",
        );
        let mut octets = [0; 2000];
        for sequence in 0..500_u64 {
            let (length, from) = socket.recv_from(&mut octets).expect("a datagram");
            assert_eq!(length, 200);
            assert!(from.is_ipv6() || from.ip().to_string() == POD_A);
            assert_eq!(number(&octets), sequence, "once, in order");
        }
        drop(talker);
        assert_eq!(tap.wait(round as u32, 500, SOON).len(), 500);
        let counters = taken(&receiving, 500 * (round as u64 + 1));
        let headers = if round == 0 { 14 + 20 + 8 } else { 14 + 40 + 8 };
        assert_eq!(counters.taken_octets - before, 500 * (200 + headers), "{counters:?}");
        before = counters.taken_octets;
        assert!(counters.left.is_empty() && counters.failed == 0, "{counters:?}");
    }
    assert_eq!(sending.control().counters_of(NAME, 1000, SOON).sent, 1000);
}

#[test]
fn everything_else_is_the_kernels() {
    let bed = Bed::new();
    let receiving = start(&bed);
    bed.stream_is_byte_exact();
    let counters = counted(&receiving);
    assert_eq!(counters.taken, 0, "{counters:?}");
    assert!(reason(&counters.left, "not_udp") > 10, "{counters:?}");
    // Datagrams over the MTU, and those whose checksums the virtual links leave unfinished.
    let sender = within(&bed.pod_a, || UdpSocket::bind((POD_A, 0)).expect("sender"));
    let socket = within(&bed.pod_b, || UdpSocket::bind((POD_B, PORT)).expect("listener"));
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    for octets in [5000, 64, 1400] {
        sender.send_to(&vec![7; octets], (POD_B, PORT)).expect("sent");
        assert_eq!(socket.recv(&mut [0; 9000]).expect("a datagram"), octets);
    }
    let counters = counted(&receiving);
    assert!(reason(&counters.left, "fragment") >= 4, "{counters:?}");
    assert!(counters.taken + reason(&counters.left, "checksum") >= 2, "{counters:?}");
    assert_eq!(counters.failed, 0, "{counters:?}");
}

#[test]
fn a_program_that_somebody_takes_off_is_put_there_again_and_nothing_is_lost() {
    let bed = Bed::new();
    let (receiving, sending) = (start(&bed), Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]));
    let heard = hear(&bed, POD_B, 3000);
    let talker = Talker::start(&sending, &bed.pod_a, POD_B, 1, "count=3000 period_us=1000 lead_us=400000");
    eventually("frames are taken", 3 * SOON, || counted(&receiving).taken > 300);
    take_off(&receiving);
    eventually("attached again", SOON, || counted(&receiving).reattached == 1);
    let before = counted(&receiving).taken;
    eventually("frames are taken again", SOON, || counted(&receiving).taken > before + 300);
    let heard = heard.join().expect("the listener");
    drop(talker);
    assert_whole(&heard, &sending);
    assert!(counted(&receiving).taken < 3000, "some took the kernel's way");
    assert!(receiving.log().contains("the ingress fast path's program was removed from the uplink"));
}

#[test]
fn a_daemon_that_dies_or_ends_leaves_the_kernels_way_and_loses_nothing() {
    let bed = Bed::new();
    let (mut receiving, sending) = (start(&bed), Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]));
    let heard = hear(&bed, POD_B, 4000);
    let talker = Talker::start(&sending, &bed.pod_a, POD_B, 1, "count=4000 period_us=1000 lead_us=400000");
    eventually("frames are taken", 3 * SOON, || counted(&receiving).taken > 300);
    receiving.kill();
    receiving.spawn();
    eventually("frames are taken again", SOON, || counted(&receiving).taken > 300);
    assert_eq!(receiving.terminate(SOON), Some(0));
    let heard = heard.join().expect("the listener");
    drop(talker);
    assert_whole(&heard, &sending);
    assert!(heard.len() > 3900, "{}", heard.len());
}

#[test]
fn everything_is_let_go_with_the_pod_and_with_the_attachment() {
    let bed = Bed::new();
    let (receiving, sending) = (start(&bed), Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]));
    assert_eq!(receiving.links().len(), 1);
    let talker = Talker::start(&sending, &bed.pod_a, POD_B, 1, "count=500 period_us=1000 lead_us=400000");
    eventually("frames are taken", 3 * SOON, || counted(&receiving).taken > 100);
    bed.delete(&bed.pod_b);
    eventually("let go", SOON, || receiving.links().is_empty());
    eventually("no map or program is held", SOON, || {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", receiving.pid())).expect("descriptors");
        let held = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        held.into_iter().all(|target| !target.to_string_lossy().contains("bpf"))
    });
    drop(talker);
}

fn attachment(name: &str, namespace: &str) -> Value {
    json!({
        "name": name, "netns": namespace, "interface": "eth0", "uplink": UPLINK, "ingress": "short",
        "overlay": { "vxlan": { "local": "192.168.50.2" } },
    })
}

#[test]
fn what_has_no_host_end_or_no_overlay_is_refused() {
    let bed = Bed::new();
    let receiving = start(&bed);
    bed.run(&format!("ip -n {} link add name br0 type bridge\nip -n {0} link set br0 up", bed.pod_b));
    let bridge = || with(attachment("bridge", &bed.pod_b), &json!({ "interface": "br0" }));
    // Once the tables know of it.
    eventually("refused as no veth", SOON, || {
        let refused = receiving.control().attach(bridge()).expect_err("no veth");
        refused.message().contains("attachment.ingress: the interface is no veth")
    });
    let none = with(attachment("none", &bed.pod_b), &json!({ "overlay": "none" }));
    let refused = receiving.control().attach(none).expect_err("no overlay");
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(receiving.control().list().attachments.len(), 1);
    assert_eq!(receiving.links().len(), 1, "the first goes on");
    receiving.control().detach(POD).expect("it is from the file, and goes");
    assert!(receiving.links().is_empty());
    assert!(!receiving.control().attach(attachment(POD, &bed.pod_b)).expect("attached"));
    assert_eq!(receiving.links().len(), 1);
}

/// Where the namespace is trusted: `addresses = "interface"`.
#[test]
fn the_pods_addresses_are_followed() {
    let bed = Bed::new();
    let receiving = start_with(&bed, &format!("{}addresses = \"interface\"\n", on_b(POD, &bed.pod_b)));
    let sending = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    const OTHER: &str = "10.244.1.77";
    bed.run(&format!("ip -n {} addr add {OTHER}/24 dev eth0", bed.pod_b));
    let before = until_taken(&bed, &sending, &receiving, OTHER);
    let heard = hear(&bed, OTHER, 200);
    let _ = talk(&sending, &bed.pod_a, OTHER, 1, "count=200 period_us=1000 lead_us=400000");
    assert_eq!(heard.join().expect("the listener"), in_order(200));
    assert_eq!(counted(&receiving).taken, before + 200);
    // Another MAC address, and another bridge's. The host asks again which device has the pod's address.
    bed.run(&format!("ip -n {} link set eth0 address 02:00:00:00:09:09", bed.pod_b));
    bed.run(&format!(
        "ip -n {} link set cni0 address 02:00:00:00:09:01\nip -n {0} neigh flush dev cni0",
        bed.host_b
    ));
    let before = until_taken(&bed, &sending, &receiving, OTHER);
    let heard = hear(&bed, OTHER, 200);
    let _ = talk(&sending, &bed.pod_a, OTHER, 2, "count=200 period_us=1000 lead_us=400000");
    assert_eq!(heard.join().expect("the listener"), in_order(200));
    assert_eq!(counted(&receiving).taken, before + 200);
    bed.run(&format!("ip -n {} addr del {OTHER}/24 dev eth0", bed.pod_b));
    let before = until_left(&bed, &sending, &receiving, OTHER);
    let _ = talk(&sending, &bed.pod_a, OTHER, 3, "count=50 period_us=1000 lead_us=400000");
    assert_eq!(counted(&receiving).taken, before, "it is nobody's");
}

#[test]
fn a_segment_of_its_own_needs_no_device_of_the_host() {
    let bed = Bed::new();
    let mac = "02:00:00:00:09:09";
    bed.run(&format!(
        "ip -n {} link set eth0 address {mac}\nip -n {0} addr add 10.9.0.2/24 dev eth0",
        bed.pod_b
    ));
    bed.run(&format!(
        "ip -n {} addr add 10.9.0.1/24 dev eth0\nip -n {0} neigh add 10.9.0.2 lladdr {mac} dev eth0 nud permanent",
        bed.pod_a
    ));
    let segment = |local: u8, remote: u8, more: &str| {
        format!(
            "overlay = {{ vxlan = {{ mode = \"bridged\", vni = 77, local = \"192.168.50.{local}\", peers = [ {{ prefix = \
             \"10.9.0.0/24\", vtep = \"192.168.50.{remote}\" }} ] }} }}\n{more}"
        )
    };
    let table = |name: &str, namespace: &str, rest: String| {
        format!(
            "[[attachment]]\nname = \"{name}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n{rest}"
        )
    };
    let receiving = start_with(&bed, &table(POD, &bed.pod_b, segment(2, 1, "ingress = \"short\"\n")));
    let configuration = format!(
        "{}{}",
        daemon::port("auto"),
        table(NAME, &bed.pod_a, segment(1, 2, "overrun_limit = \"10s\"\n"))
    );
    let mut sending = Daemon::prepare(&bed.host_a, &configuration);
    sending.spawn();
    let heard = hear(&bed, "10.9.0.2", 200);
    let _ = talk(&sending, &bed.pod_a, "10.9.0.2", 1, "count=200 period_us=1000 lead_us=400000");
    assert_eq!(heard.join().expect("the listener"), in_order(200), "{:?}", sending.control().counters(NAME));
    let _ = taken(&receiving, 200);
}

#[test]
fn an_uplink_that_is_replaced_is_followed() {
    let bed = Bed::new();
    let receiving = start(&bed);
    let (a, b) = (&bed.host_a, &bed.host_b);
    bed.run(&format!("ip -n {b} link del {UPLINK}"));
    eventually("seen", SOON, || receiving.log().contains("no such device"));
    let mut again = format!(
        "ip -n {a} link add {UPLINK} address 02:00:00:00:00:01 type veth peer name {UPLINK} address 02:00:00:00:00:02 netns {b}\n"
    );
    for (host, n, m) in [(a, 0, 1), (b, 1, 0)] {
        let (local, remote) = (n + 1, m + 1);
        again += &format!(
            "ip -n {host} addr add 192.168.50.{local}/24 dev {UPLINK}\nip -n {host} link set {UPLINK} up\n\
             ip -n {host} neigh replace 192.168.50.{remote} lladdr 02:00:00:00:00:0{remote} dev {UPLINK} nud permanent\n\
             ip -n {host} link add flannel.1 address 02:00:00:00:01:0{local} mtu 1450 type vxlan id 1 local \
             192.168.50.{local} dev {UPLINK} dstport 8472 nolearning\n\
             ip -n {host} link set flannel.1 up\n\
             ip -n {host} neigh add 10.244.{m}.0 lladdr 02:00:00:00:01:0{remote} dev flannel.1 nud permanent\n\
             ip -n {host} route add 10.244.{m}.0/24 via 10.244.{m}.0 dev flannel.1 onlink\n\
             bridge -n {host} fdb add 02:00:00:00:01:0{remote} dev flannel.1 dst 192.168.50.{remote}\n"
        );
    }
    bed.run(&again);
    let sending = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    let before = until_taken(&bed, &sending, &receiving, POD_B);
    let heard = hear(&bed, POD_B, 200);
    let _ = talk(&sending, &bed.pod_a, POD_B, 1, "count=200 period_us=1000 lead_us=400000");
    assert_eq!(heard.join().expect("the listener"), in_order(200));
    assert_eq!(counted(&receiving).taken, before + 200, "{:?}", counted(&receiving));
}

/// An attachment on host A with `addresses = "interface"`.
fn attachment_on_a(name: &str, namespace: &str) -> Value {
    let overlay = json!({ "vxlan": { "local": "192.168.50.1" } });
    with(attachment(name, namespace), &json!({ "overlay": overlay, "addresses": "interface" }))
}

/// The MAC address of a device.
fn mac(namespace: &str, device: &str) -> String {
    let shown =
        Command::new("ip").args(["-n", namespace, "-br", "link", "show", device]).output().expect("ip");
    String::from_utf8_lossy(&shown.stdout).split_whitespace().nth(2).expect("an address").to_owned()
}

#[test]
fn an_address_that_two_pods_come_to_claim_is_nobodys() {
    let bed = Bed::new();
    // The pods resolve no address, so the host does not learn of them by itself.
    let bridge = mac(&bed.host_a, "cni0");
    for pod in [&bed.pod_a, &bed.pod_q] {
        bed.run(&format!("ip -n {pod} neigh replace 10.244.0.1 lladdr {bridge} dev eth0 nud permanent"));
    }
    let mut receiving = Daemon::prepare(&bed.host_a, &daemon::port("auto"));
    receiving.spawn();
    let attach = |name: &str, namespace: &str| receiving.control().attach(attachment_on_a(name, namespace));
    attach(NAME, &bed.pod_a).expect("the first");
    // An address, then a MAC address that is taken.
    let (mac_a, mac_q) = (mac(&bed.pod_a, "eth0"), mac(&bed.pod_q, "eth0"));
    bed.run(&format!("ip -n {} addr add {POD_A}/32 dev eth0", bed.pod_q));
    let refused = attach("pod-q", &bed.pod_q).expect_err("an address of pod A's");
    assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
    let text = refused.message();
    assert!(text.contains("attachment.ingress: 10.244.0.5 in VNI 1 is attachment pod-a's already"), "{text}");
    bed.run(&format!("ip -n {} addr del {POD_A}/32 dev eth0", bed.pod_q));
    bed.run(&format!("ip -n {} link set eth0 address {mac_a}", bed.pod_q));
    let refused = attach("pod-q", &bed.pod_q).expect_err("pod A's MAC address");
    assert!(
        refused.message().contains(&format!("MAC address {mac_a} in VNI 1 is attachment pod-a's")),
        "{refused:?}"
    );
    bed.run(&format!("ip -n {} link set eth0 address {mac_q}", bed.pod_q));
    attach("pod-q", &bed.pod_q).expect("the second");
    // Pod A goes on answering for it: the host knows its MAC address, the bridge where that is.
    bed.run(&format!("ip -n {} neigh replace {POD_A} lladdr {mac_a} dev cni0 nud permanent", bed.host_a));
    let socket = within(&bed.pod_a, || UdpSocket::bind((POD_A, PORT)).expect("listener"));
    socket.set_read_timeout(Some(SOON)).expect("timeout");
    let sender = within(&bed.pod_b, || UdpSocket::bind((POD_B, 0)).expect("sender"));
    let seen = || {
        let counters = receiving.control().counters(NAME).ingress.expect("short");
        counters.taken + counters.left.values().sum::<u64>()
    };
    let send = || {
        socket.send_to(&[0], ("10.244.0.1", 9)).expect("to the gateway");
        for _ in 0..10 {
            sender.send_to(&[7; 64], (POD_A, PORT)).expect("sent");
            assert_eq!(socket.recv(&mut [0; 100]).expect("a datagram"), 64);
        }
    };
    send();
    eventually("all are seen", SOON, || seen() == 10);
    // The host knows who answers for it: the other pod's claim is none.
    let told = || {
        let warnings = receiving.control().health().expect("health").warnings;
        warnings.iter().any(|text| text.contains("10.244.0.5 in VNI 1 is claimed by several"))
    };
    bed.run(&format!(
        "ip -n {0} addr add {POD_A}/32 dev eth0\nip -n {0} addr add 10.244.0.78/32 dev eth0",
        bed.pod_q
    ));
    eventually("the other address is seen", SOON, || taken_for(&bed, &receiving, "10.244.0.78"));
    let before = seen();
    send();
    eventually("pod A has it still", SOON, || seen() == before + 10);
    assert!(!told());
    // It knows no device: neither has the address until one answers.
    bed.run(&format!("ip -n {} neigh del {POD_A} dev cni0", bed.host_a));
    eventually("told", SOON, told);
    // Other tables, of which this is no news.
    bed.run(&format!("ip -n {} addr add 10.244.0.77/32 dev eth0", bed.pod_q));
    // It is not said again.
    std::thread::sleep(Duration::from_millis(300));
    let log = receiving.log();
    assert_eq!(log.matches("is claimed by several attachments").count(), 1, "said once: {log}");
    bed.run(&format!("ip -n {} neigh replace {POD_A} lladdr {mac_a} dev cni0 nud permanent", bed.host_a));
    eventually("it is pod A's again", SOON, || {
        let before = seen();
        send();
        seen() == before + 10
    });
}

/// Whether a frame for an address of pod Q is seen by its ingress fast path.
fn taken_for(bed: &Bed, receiving: &Daemon, to: &str) -> bool {
    let sender = within(&bed.pod_b, || UdpSocket::bind((POD_B, 0)).expect("sender"));
    let seen = || {
        let counters = receiving.control().counters("pod-q").ingress.expect("short");
        counters.taken + counters.left.values().sum::<u64>()
    };
    let before = seen();
    sender.send_to(&[7; 64], (to, PORT)).expect("sent");
    // Nothing tells of a frame that was not seen.
    std::thread::sleep(Duration::from_millis(100));
    seen() > before
}
