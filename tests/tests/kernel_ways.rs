// SPDX-License-Identifier: Apache-2.0
//! A pod whose routes change under traffic, or whose own packet filter or routers change the way of its datagrams: no frame is lost, and
//! frames under KTSN take the way that the kernel's own take. What KTSN does not follow it hands to the kernel, by name.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ktsn_tests::faults::bed::{Bed, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::frames::{Arrived, Frames};
use ktsn_tests::faults::talker::{Talker, binary};

const SOON: Duration = Duration::from_secs(20);
const TO: &str = "10.99.0.7";
const PREFIX: &str = "10.99.0.0/16";
const TO6: &str = "fd99::7";
const PREFIX6: &str = "fd99::/64";
const OCTETS: usize = 200;
/// Frames of a talker that sends while something changes; it sends every 2 ms.
const COUNT: usize = 2000;
const RULES: &str = "routing_rules";

/// A pod whose datagrams to [`PREFIX`] and [`PREFIX6`] have a router as next hop: .3 or .4, or the node.
struct Ways {
    bed: Bed,
    daemon: Daemon,
    wire: Frames,
    pod_mac: Vec<u8>,
    to: &'static str,
    /// More keys of the talkers.
    keys: &'static str,
    octets: usize,
    number: u32,
    /// Frames that the pod's port refused so far.
    refused: u64,
}

/// The part of a frame that is compared.
#[derive(Debug, PartialEq, Eq)]
struct Way {
    macs: Vec<u8>,
    /// Octets of the IP packet.
    octets: usize,
    /// Type of service, TTL, and the IPv4 flags and the fragment's offset; for IPv6 traffic class, hop limit and next header.
    marks: Vec<u8>,
    addresses: Vec<u8>,
    /// The destination port, or what stands there in a fragment's header.
    port: Vec<u8>,
}

fn way(arrived: &Arrived) -> Way {
    let frame = &arrived.frame;
    let octets = |at: usize| usize::from(u16::from_be_bytes([frame[at], frame[at + 1]]));
    let macs = frame[..12].to_vec();
    if frame[12..14] == [0x86, 0xdd] {
        let marks = vec![frame[14] << 4 | frame[15] >> 4, frame[21], frame[20]];
        let port = frame[56..58].to_vec();
        return Way { macs, octets: octets(18) + 40, marks, addresses: frame[22..54].to_vec(), port };
    }
    let marks = vec![frame[15], frame[22], frame[20], frame[21]];
    Way { macs, octets: octets(16), marks, addresses: frame[26..34].to_vec(), port: frame[36..38].to_vec() }
}

impl Ways {
    fn start(route: &str) -> Self {
        let bed = Bed::new();
        let _ = binary();
        let pod = &bed.pod_a;
        for last in [3, 4] {
            bed.run(&format!(
                "ip -n {pod} neigh replace 10.244.0.{last} lladdr 02:00:00:00:00:0{last} dev eth0 nud permanent"
            ));
        }
        bed.run(&route.replace("POD", pod).replace("HOST", &bed.host_a));
        let Attachment { namespace, late, more, .. } = Attachment::pod_a(&bed);
        let text = format!(
            "{}[[attachment]]\nname = \"{NAME}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
             destinations = [\"{PREFIX}\", \"{PREFIX6}\"]\nlate = \"{late}\"\n{more}\n",
            pinned_port("auto")
        );
        let mut daemon = Daemon::prepare(&bed.host_a, &text);
        daemon.spawn();
        let wire = Frames::open(&bed.host_a, "pod5");
        let (pod_mac, to, keys, octets) = (Vec::new(), TO, "", OCTETS);
        let (number, refused) = (0, 0);
        let mut ways = Self { bed, daemon, wire, pod_mac, to, keys, octets, number, refused };
        ways.pod_mac = ways.send(false)[0].macs[6..12].to_vec();
        ways
    }

    fn run(&self, line: &str) {
        self.bed.run(&line.replace("POD", &self.bed.pod_a).replace("HOST", &self.bed.host_a));
    }

    /// The frames that a talker's datagrams left the pod in: those with the beginning of the payload.
    fn of(&self, number: u32) -> Vec<Arrived> {
        let is_its = |arrived: &Arrived| {
            let is_pods = self.pod_mac.is_empty() || arrived.frame[6..12] == *self.pod_mac;
            arrived.kind == number && is_pods
        };
        self.wire.arrived().into_iter().filter(is_its).collect()
    }

    /// Sends one datagram, by KTSN or by the kernel alone; the frames that left the pod.
    fn send(&mut self, is_timed: bool) -> Vec<Way> {
        self.number += 1;
        let (number, octets, keys) = (self.number, self.octets, self.keys);
        let how = if is_timed { "lead_us=50000" } else { "untimed=1 lead_us=0" };
        // Its socket stays: while rules come, a frame that was taken may become the kernel's.
        let keys = format!("count=1 {how} octets={octets} clock=1 stay=1 {keys}");
        let mut talker = Talker::start(&self.daemon, &self.bed.pod_a, self.to, number, &keys);
        eventually("the frame", SOON, || (!self.of(number).is_empty()).then_some(()));
        talker.go();
        let (values, said) = talker.finish();
        assert_eq!(values["failed"], 0, "{values:?} {said}");
        self.of(number).iter().map(way).collect()
    }

    fn talker(&self, number: u32, count: usize) -> Talker {
        let (octets, keys) = (self.octets, self.keys);
        let keys = format!("count={count} period_us=2000 lead_us=20000 octets={octets} clock=1 {keys}");
        Talker::start(&self.daemon, &self.bed.pod_a, self.to, number, &keys)
    }

    /// All datagrams of a talker left, each once.
    fn assert_whole(&mut self, number: u32, talker: Talker, count: usize) {
        let (values, said) = talker.finish();
        // A connected socket's next call has the error that an ICMP message brought.
        let failed = if self.keys.contains("connect=1") { values["failed"].min(1) } else { 0 };
        let sent = count as i64 - failed;
        assert_eq!((values["sent"], values["failed"]), (sent, failed), "{said}");
        let count = sent as usize;
        // On a machine that is busy the pod's port, an ordinary thread by then, may refuse frames, and counts them.
        let (mut refused, mut whole) = (0, false);
        let until = Instant::now() + SOON;
        while !whole && Instant::now() < until {
            sleep(Duration::from_millis(20));
            refused = reason(&self.daemon.control().counters(NAME).dropped, "port_error") - self.refused;
            whole = self.of(number).len() as u64 + refused >= count as u64;
        }
        self.refused += refused;
        let frames = self.of(number);
        let numbers: BTreeSet<u64> = frames.iter().map(|arrived| arrived.number).collect();
        let counters = self.daemon.control().counters(NAME);
        let dropped = (&counters.dropped, &counters.kernel_dropped);
        assert_eq!(
            (frames.len(), numbers.len() as u64 + refused),
            (numbers.len(), count as u64),
            "{dropped:?}"
        );
    }

    /// KTSN takes datagrams soon.
    fn is_served(&mut self, what: &str) {
        let before = self.daemon.control().counters(NAME).taken;
        eventually(what, SOON, || {
            self.send(true);
            (self.daemon.control().counters(NAME).taken > before).then_some(())
        });
    }

    /// A datagram of KTSN and one of the kernel alone leave in the same way.
    fn assert_equal(&mut self, what: &str) {
        let before = self.daemon.control().counters(NAME).taken;
        let (ours, kernels) = (self.send(true), self.send(false));
        assert_eq!(ours, kernels, "{what}");
        assert!(self.daemon.control().counters(NAME).taken > before, "{what}: KTSN took none");
    }

    /// A datagram with a transmit time and one without leave in the same way, the first as this reason says by the kernel.
    fn assert_left(&mut self, what: &str, word: &str) {
        let left = |ways: &Self| reason(&ways.daemon.control().counters(NAME).bypassed, word);
        let before = left(self);
        let (ours, kernels) = (self.send(true), self.send(false));
        assert_eq!(ours, kernels, "{what}");
        assert!(left(self) > before, "{what}: not {word}");
    }
}

/// Each frame leaves, once, to one of the routers that the route had; and soon to the one that it has.
#[test]
fn a_route_that_changes_under_traffic_is_followed() {
    const CHANGES: usize = 20;
    const COUNT: usize = 400;
    let mut ways = Ways::start("ip -n POD route add 10.99.0.0/16 via 10.244.0.4 dev eth0");
    ways.assert_equal("before");
    let sender = 1000;
    let talker = ways.talker(sender, COUNT);
    for change in 0..CHANGES {
        let last = [3, 4][change % 2];
        ways.run(&format!("ip -n POD route change {PREFIX} via 10.244.0.{last} dev eth0"));
        let frames = (change + 1) * COUNT / (2 * CHANGES);
        eventually("frames pass between two changes", SOON, || {
            (ways.of(sender).len() >= frames).then_some(())
        });
    }
    ways.assert_whole(sender, talker, COUNT);
    assert!(
        ways.of(sender)
            .iter()
            .all(|arrived| arrived.frame[..5] == [2, 0, 0, 0, 0] && [3, 4].contains(&arrived.frame[5]))
    );
    for (last, what) in [(3, "one router"), (4, "another one"), (3, "the first again")] {
        ways.run(&format!("ip -n POD route change {PREFIX} via 10.244.0.{last} dev eth0"));
        eventually(what, SOON, || (ways.send(true)[0].macs[5] == last).then_some(()));
        ways.assert_equal(what);
    }
}

/// The route by which the tests of the pod's packet filter begin; and a table that a mark may lead to.
const BY_4: &str = "ip -n POD addr add 10.244.0.7/24 dev eth0
ip -n POD route add 10.99.0.0/16 via 10.244.0.4 dev eth0
ip -n POD route add 10.99.0.0/16 via 10.244.0.3 dev eth0 table 100
ip -n POD rule add fwmark 5 lookup 100";

/// A change of the pod's packet filter, which some field of its frames shows.
struct Change {
    what: &'static str,
    keys: &'static str,
    up: &'static str,
    down: &'static str,
    shows: fn(&Way) -> bool,
}

const CHANGES: [Change; 6] = [
    Change {
        what: "mark",
        keys: "",
        up: "add table ip t; add chain ip t o { type route hook output priority mangle; };
add rule ip t o ip daddr 10.99.0.0/16 meta mark set 5",
        down: "delete table ip t",
        shows: |way| way.macs[5] == 3,
    },
    Change {
        what: "masquerade",
        keys: "from=10.244.0.7",
        up: "add table ip t; add chain ip t p { type nat hook postrouting priority srcnat; };
add rule ip t p oifname eth0 masquerade",
        down: "delete table ip t",
        shows: |way| way.addresses[..4] == [10, 244, 0, 5],
    },
    Change {
        what: "snat",
        keys: "",
        up: "add table inet t; add chain inet t p { type nat hook postrouting priority srcnat; };
add rule inet t p meta nfproto ipv4 ip saddr 10.244.0.5 snat ip to 10.244.0.7",
        down: "delete table inet t",
        shows: |way| way.addresses[..4] == [10, 244, 0, 7],
    },
    Change {
        what: "dnat",
        keys: "",
        up: "add table ip t; add chain ip t o { type nat hook output priority -100; };
add chain ip t d; add rule ip t d udp dport 7788 dnat to 10.99.0.8:7799; add rule ip t o ip daddr 10.99.0.7 jump d",
        down: "delete table ip t",
        shows: |way| way.addresses[4..] == [10, 99, 0, 8] && way.port == [30, 119],
    },
    Change {
        what: "dscp",
        keys: "",
        up: "add table inet t; add chain inet t p { type filter hook postrouting priority mangle; };
add rule inet t p meta l4proto udp ip dscp set ef",
        down: "delete table inet t",
        shows: |way| way.marks[0] == 46 << 2,
    },
    Change {
        what: "ttl",
        keys: "",
        up: "add table ip t; add chain ip t o { type filter hook output priority 0; }; add rule ip t o ip ttl set 9",
        down: "flush chain ip t o",
        shows: |way| way.marks[1] == 9,
    },
];

/// Whatever the pod's packet filter does to the kernel's own datagrams it does to those with a transmit time, soon after it changed.
#[test]
fn a_packet_filter_of_the_pod_that_changes_frames_under_traffic_is_followed() {
    let mut ways = Ways::start(BY_4);
    let pod = ways.bed.pod_a.clone();
    let nft =
        |ways: &Ways, rules: &str| ways.run(&format!("ip netns exec {pod} nft -f - <<EOF\n{rules}\nEOF"));
    for (number, Change { what, keys, up, down, shows }) in (1000..).zip(CHANGES) {
        ways.keys = keys;
        ways.assert_equal(what);
        let talker = ways.talker(number, COUNT);
        let last_shows = |ways: &Ways| ways.of(number).last().is_some_and(|last| shows(&way(last)));
        eventually("frames", SOON, || (ways.of(number).len() > 10).then_some(()));
        nft(&ways, up);
        eventually(format!("{what} comes"), SOON, || last_shows(&ways).then_some(()));
        ways.assert_left(what, RULES);
        nft(&ways, down);
        ways.assert_whole(number, talker, COUNT);
        ways.is_served(what);
        ways.assert_equal(&format!("without {what}"));
    }
}

/// Rules that cannot change a datagram that KTSN takes leave it with KTSN.
#[test]
fn a_packet_filter_of_the_pod_that_changes_no_frame_takes_nothing_away() {
    let mut ways = Ways::start(BY_4);
    let pod = ways.bed.pod_a.clone();
    let dns = "-t nat -N DOCKER_OUTPUT
-t nat -N DOCKER_POSTROUTING
-t nat -A OUTPUT -d 127.0.0.11/32 -j DOCKER_OUTPUT
-t nat -A POSTROUTING -d 127.0.0.11/32 -j DOCKER_POSTROUTING
-t nat -A DOCKER_OUTPUT -d 127.0.0.11/32 -p tcp -m tcp --dport 53 -j DNAT --to-destination 127.0.0.11:40001
-t nat -A DOCKER_OUTPUT -d 127.0.0.11/32 -p udp -m udp --dport 53 -j DNAT --to-destination 127.0.0.11:40002
-t nat -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p tcp -m tcp --sport 40001 -j SNAT --to-source :53
-t nat -A DOCKER_POSTROUTING -s 127.0.0.11/32 -p udp -m udp --sport 40002 -j SNAT --to-source :53";
    let others = "-t nat -N PROXY
-t nat -A OUTPUT -p tcp -j PROXY
-t nat -A PROXY -p tcp -j REDIRECT --to-ports 15001
-t nat -A OUTPUT -m addrtype --dst-type LOCAL -j REDIRECT
-t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-t mangle -A OUTPUT -o wlan+ -j MARK --set-mark 5
-t mangle -A POSTROUTING -d 10.98.0.0/16 -j TOS --set-tos 0x10
-t filter -A INPUT -i eth0 -p udp -j DROP
-t filter -P FORWARD DROP
-t filter -A OUTPUT -m mark --mark 0x8000/0x8000 -j DROP
-t filter -A OUTPUT -j ACCEPT
-t filter -A OUTPUT -j DROP";
    let mut tools = vec!["iptables-nft"];
    if Command::new("ip")
        .args(["netns", "exec", &pod, "iptables-legacy", "-S"])
        .output()
        .is_ok_and(|done| done.status.success())
    {
        tools.push("iptables-legacy");
    } else {
        println!("SKIP iptables_legacy_missing: this kernel or machine has no iptables-legacy");
    }
    ways.run(&format!(
        "ip netns exec {pod} nft -f - <<EOF
add table inet t
add chain inet t o {{ type filter hook output priority 0; policy accept; }}
add rule inet t o meta l4proto udp counter accept
EOF"
    ));
    ways.assert_equal("empty");
    for tool in tools {
        for (what, rules) in [("the container's resolver", dns), ("others", others)] {
            for rule in rules.lines() {
                ways.run(&format!("ip netns exec {pod} {tool} {rule}"));
            }
            // Were one of them followed, that would have been seen by then.
            ways.run(&format!(
                "ip netns exec {pod} {tool} -t mangle -A OUTPUT -d {TO} -j TOS --set-tos 0x08"
            ));
            eventually("the last rule", SOON, || (ways.send(true)[0].marks[0] == 8).then_some(()));
            ways.assert_left(tool, RULES);
            ways.run(&format!(
                "ip netns exec {pod} {tool} -t mangle -D OUTPUT -d {TO} -j TOS --set-tos 0x08"
            ));
            ways.is_served("without it");
            ways.assert_equal(&format!("{tool}: {what}"));
            let left = reason(&ways.daemon.control().counters(NAME).bypassed, RULES);
            ways.assert_equal(&format!("{tool}: {what}"));
            assert_eq!(reason(&ways.daemon.control().counters(NAME).bypassed, RULES), left);
        }
    }
}

/// The node as the pod's router to [`PREFIX`] and [`PREFIX6`], which lie behind a device of 1300 octets.
const NARROW: &str = "ip -n HOST link add way0 mtu 1300 type veth peer name way1
ip -n HOST link set way0 up
ip -n HOST link set way1 up
ip -n HOST route add 10.99.0.0/16 dev way0
ip -n HOST -6 route add fd99::/64 dev way0
ip -n POD route add 10.99.0.0/16 via 10.244.0.1 dev eth0";

/// A datagram that a router found too big is the first one of its size that goes so: the others leave in fragments, as the kernel's.
#[test]
fn an_mtu_that_a_router_names_under_traffic_is_followed() {
    const LEARNED: usize = 1300;
    let mut ways = Ways::start(NARROW);
    ways.octets = 1380;
    for (number, to, keys) in
        [(1000, TO, "discover=1"), (2000, TO6, "discover=1"), (3000, TO, "discover=1 connect=1")]
    {
        (ways.to, ways.keys) = (to, keys);
        let flush = if to == TO { "-4" } else { "-6" };
        ways.run(&format!("ip -n POD {flush} route flush cache"));
        let talker = ways.talker(number, COUNT);
        eventually("fragments", SOON, || {
            ways.of(number).last().is_some_and(|last| way(last).octets <= LEARNED).then_some(())
        });
        ways.assert_left(to, "over_mtu");
        // What fits still is KTSN's.
        ways.octets = OCTETS;
        ways.assert_equal(to);
        ways.octets = 1380;
        ways.assert_whole(number, talker, COUNT);
        // Once it is known, nothing over it leaves whole.
        let frames = ways.of(number);
        let first = frames.iter().position(|frame| way(frame).octets <= LEARNED).expect("a fragment");
        let late = frames[first..].iter().filter(|frame| way(frame).octets > LEARNED).count();
        assert!(late <= 40, "{to}: {late} of {} frames left whole later", frames.len());
        // The kernel refuses at the call what may not be fragmented.
        for keys in ["discover=2", "discover=2 connect=1"] {
            let how = format!("count=1 lead_us=50000 octets=1380 clock=1 {keys}");
            let refused = |untimed: &str| {
                let talker =
                    Talker::start(&ways.daemon, &ways.bed.pod_a, to, 9000, &format!("{how} {untimed}"));
                let values = talker.finish().0;
                (values["failed"], values["errno"])
            };
            assert_eq!((refused(""), refused("untimed=1")), ((1, 90), (1, 90)), "{to} {keys}");
        }
    }
}

/// The node as the pod's router, which knows a better one on the pod's own link.
const REDIRECTED: &str = "ip -n HOST neigh replace 10.244.0.3 lladdr 02:00:00:00:00:03 dev cni0 nud permanent
ip -n HOST neigh replace fe80::3 lladdr 02:00:00:00:00:03 dev cni0 nud permanent
ip -n POD neigh replace fe80::3 lladdr 02:00:00:00:00:03 dev eth0 nud permanent
ip netns exec HOST sysctl -qw net.ipv4.conf.all.send_redirects=1 net.ipv4.conf.cni0.send_redirects=1
ip netns exec POD sysctl -qw net.ipv4.conf.all.accept_redirects=1 net.ipv4.conf.eth0.accept_redirects=1 \
net.ipv6.conf.all.accept_redirects=1 net.ipv6.conf.eth0.accept_redirects=1
ip -n HOST route add 10.99.0.0/16 via 10.244.0.3 dev cni0
ip -n HOST -6 route add fd99::/64 via fe80::3 dev cni0
ip -n POD route add 10.99.0.0/16 via 10.244.0.1 dev eth0
ip -n POD -6 route add fd99::/64 dev eth0 via \
$(ip -n HOST -6 -o addr show dev cni0 scope link | sed 's/.*inet6 //; s,/.*,,')";

/// A destination that the pod's kernel was redirected for has the new router, for KTSN's frames as for the kernel's own.
#[test]
fn a_redirect_under_traffic_is_followed() {
    let mut ways = Ways::start(REDIRECTED);
    // Linux looks at redirects of IPv6 for sockets that are bound to a device only.
    for (number, to, keys) in [(1000, TO, ""), (2000, TO6, "device=eth0")] {
        (ways.to, ways.keys) = (to, keys);
        let talker = ways.talker(number, COUNT);
        eventually(format!("the new router to {to}"), SOON, || {
            ways.of(number).last().is_some_and(|last| way(last).macs[..6] == [2, 0, 0, 0, 0, 3]).then_some(())
        });
        ways.assert_equal(to);
        ways.assert_whole(number, talker, COUNT);
        let family = if to == TO { "-4" } else { "-6" };
        assert_eq!(ways.send(true)[0].macs[5], 3, "{to}");
        // Without the exception the old router is the next hop again.
        ways.run(&format!(
            "ip netns exec HOST sysctl -qw net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.cni0.send_redirects=0
ip -n POD {family} route flush cache"
        ));
        eventually("the old router", SOON, || {
            (ways.send(true)[0].macs[..6] != [2, 0, 0, 0, 0, 3]).then_some(())
        });
    }
}
