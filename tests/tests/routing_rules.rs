// SPDX-License-Identifier: Apache-2.0
//! A pod with routing rules: its datagrams take the way that its kernel would take, at their transmit times. KTSN asks the kernel about
//! each flow and sends what has a plain next hop by the pod's interface. The rest ktsnd hands to the kernel, counted by that name. Rules
//! that change under traffic lose no frame.

use std::time::Duration;

use ktsn_proto::v1::AttachmentStatistics;
use ktsn_tests::faults::bed::{Bed, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, pinned_port};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::frames::{Arrived, Frames};
use ktsn_tests::faults::talker::{Talker, binary, talk};

const SOON: Duration = Duration::from_secs(20);
const RULES: &str = "routing_rules";
const TO: &str = "10.99.0.7";
/// The main table's router, and the one that rules lead to.
const MAIN: u8 = 4;
const OTHER: u8 = 3;
/// A program sends so far ahead, in microseconds.
const LEAD: &str = "lead_us=100000 clock=1";

/// Pod A with a second address, two routers and a table 100; and ktsnd.
fn start(bed: &Bed) -> Daemon {
    let _ = binary();
    let pod = &bed.pod_a;
    bed.run(&format!("ip -n {pod} addr add 10.244.0.7/24 dev eth0"));
    for router in [MAIN, OTHER] {
        bed.run(&format!(
            "ip -n {pod} neigh replace 10.244.0.{router} lladdr 02:00:00:00:00:0{router} dev eth0 nud permanent"
        ));
    }
    bed.run(&format!("ip -n {pod} route add 10.99.0.0/16 via 10.244.0.{MAIN} dev eth0"));
    bed.run(&format!("ip -n {pod} route add 10.99.0.0/16 via 10.244.0.{OTHER} dev eth0 table 100"));
    let Attachment { namespace, late, more, .. } = Attachment::pod_a(bed);
    let text = format!(
        "{}[[attachment]]\nname = \"{NAME}\"\nnetns = \"{namespace}\"\ninterface = \"eth0\"\nuplink = \"{UPLINK}\"\n\
         destinations = [\"10.99.0.0/16\"]\nlate = \"{late}\"\n{more}\n",
        pinned_port("auto")
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &text);
    daemon.spawn();
    daemon
}

/// The frames of a talker.
fn of(frames: &[Arrived], sender: u32) -> Vec<&Arrived> {
    frames.iter().filter(|arrived| arrived.kind == sender).collect()
}

/// The last octet of the MAC addresses that a talker's frames went to.
fn routers(frames: &[Arrived], sender: u32) -> Vec<u8> {
    of(frames, sender).iter().map(|arrived| arrived.frame[5]).collect()
}

/// What became of all frames that were taken, once that is known.
fn settled(daemon: &Daemon) -> AttachmentStatistics {
    eventually("all frames have ended", SOON, || {
        let of = daemon.control().counters(NAME);
        let ended = of.sent + of.passed + of.dropped.values().sum::<u64>();
        let by_kernel = of.kernel_sent + of.kernel_dropped.values().sum::<u64>();
        (of.taken == ended && by_kernel >= of.passed).then_some(of)
    })
}

/// A rule that comes and goes is followed, and KTSN sends all that time.
#[test]
fn frames_go_to_the_router_that_the_rules_say() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let pod = &bed.pod_a;
    let wire = Frames::open(&bed.host_a, "pod5");
    let mut seen = 0;
    for (round, rule) in [None, Some("add"), Some("del")].into_iter().enumerate() {
        if let Some(verb) = rule {
            bed.run(&format!("ip -n {pod} rule {verb} ipproto udp to 10.99.0.0/16 lookup 100"));
        }
        let expected = if rule == Some("add") { OTHER } else { MAIN };
        let [ours, kernels] = [1, 2].map(|of| of + 10 * round as u32);
        talk(&daemon, pod, TO, kernels, "count=1 untimed=1 lead_us=0 octets=64 clock=1");
        seen += 1;
        // The daemon hears of the rule a moment after it.
        let mut told = 0;
        eventually("the rule is followed, by KTSN", SOON, || {
            let before = daemon.control().counters(NAME);
            talk(&daemon, pod, TO, ours, &format!("count=1 octets=64 {LEAD}"));
            (told, seen) = (told + 1, seen + 1);
            let frames = wire.wait(seen, SOON);
            let now = settled(&daemon);
            routers(&frames, ours).last() == Some(&expected) && now.sent > before.sent
        });
        let frames = wire.wait(seen, SOON);
        assert_eq!(routers(&frames, kernels), [expected], "round {round}: the kernel's");
        assert_eq!(routers(&frames, ours).len(), told, "round {round}: none is lost");
        assert!(
            of(&frames, ours).iter().all(|arrived| arrived.after_ns >= 0),
            "round {round}: none is early"
        );
    }
    let counters = settled(&daemon);
    assert!(counters.dropped.is_empty() && counters.kernel_dropped.is_empty(), "{counters:?}");
}

/// Rules with each selector, and routes that only the kernel knows.
fn each_rule(bed: &Bed) {
    let pod = &bed.pod_a;
    // All of them at once: each looks at something that the others do not.
    for (priority, selector) in [
        "from 10.244.0.7",
        "to 10.99.1.0/24",
        "tos 0x10",
        "fwmark 7",
        "uidrange 1000-1000",
        "ipproto udp sport 5555",
    ]
    .iter()
    .enumerate()
    {
        bed.run(&format!("ip -n {pod} rule add prio {} {selector} lookup 100", 100 + priority));
    }
    bed.run(&format!(
        "ip -n {pod} route add 10.99.2.0/24 nexthop via 10.244.0.{MAIN} nexthop via 10.244.0.{OTHER}"
    ));
    bed.run(&format!(
        "ip -n {pod} route add 10.99.3.0/24 via 10.244.0.{MAIN} mtu 1300 hoplimit 9 src 10.244.0.7"
    ));
}

/// Each selector of rules, several next hops, a metric: the frame goes where the kernel alone sends the same datagram, and KTSN sends it
/// itself unless only the kernel can.
#[test]
fn each_selector_has_its_say() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let pod = &bed.pod_a;
    let wire = Frames::open(&bed.host_a, "pod5");
    each_rule(&bed);
    let mut cases = vec![
        (TO, "", Some(MAIN)),
        (TO, "from=10.244.0.7", Some(OTHER)),
        (TO, "from=10.244.0.5", Some(MAIN)),
        ("10.99.1.7", "", Some(OTHER)),
        ("10.99.1.7", "connect=1", Some(OTHER)),
        (TO, "tos=16", Some(OTHER)),
        (TO, "uid=1000", Some(OTHER)),
        (TO, "uid=1001", Some(MAIN)),
        (TO, "own=5555", Some(OTHER)),
        (TO, "own=5556", Some(MAIN)),
        ("10.99.3.7", "", Some(MAIN)),
        // The source that it gets has a rule.
        ("10.99.3.7", "connect=1", None),
    ];
    let several: Vec<String> = (1..=12).map(|host| format!("10.99.2.{host}")).collect();
    cases.extend(several.iter().map(|to| (to.as_str(), "", None)));
    eventually("the rules are followed", SOON, || {
        let before = daemon.control().counters(NAME);
        talk(&daemon, pod, "10.99.1.9", 999, &format!("count=1 {LEAD}"));
        settled(&daemon).sent > before.sent && routers(&wire.arrived(), 999).last() == Some(&OTHER)
    });
    let before = settled(&daemon);
    let mut seen = wire.arrived().len();
    for (number, (to, keys, router)) in (0..).zip(&cases) {
        let [ours, kernels] = [1000, 2000].map(|of| of + number);
        talk(&daemon, pod, to, ours, &format!("count=3 octets=64 {LEAD} {keys}"));
        talk(&daemon, pod, to, kernels, &format!("count=1 untimed=1 lead_us=0 octets=64 clock=1 {keys}"));
        seen += 4;
        let frames = wire.wait(seen, SOON);
        let [ours, kernels] = [ours, kernels].map(|sender| of(&frames, sender));
        assert_eq!((ours.len(), kernels.len()), (3, 1), "{to} {keys}");
        // MAC addresses, EtherType, type of service, TTL, addresses.
        let parts = |frame: &[u8]| (frame[..14].to_vec(), frame[15], frame[22], frame[26..34].to_vec());
        for arrived in ours {
            assert_eq!(parts(&arrived.frame), parts(&kernels[0].frame), "{to} {keys}");
            assert!(arrived.after_ns >= 0, "{to} {keys}: {} ns early", -arrived.after_ns);
            assert!(router.is_none_or(|router| arrived.frame[5] == router), "{to} {keys}");
        }
    }
    let after = settled(&daemon);
    let [taken, sent, passed] =
        [after.taken - before.taken, after.sent - before.sent, after.passed - before.passed];
    let flows = 3 * cases.len() as u64;
    assert!(taken == flows && sent * 100 >= flows * 95 && sent + passed == flows, "{after:?}");
    let both: std::collections::BTreeSet<u8> =
        wire.arrived().iter().filter(|of| of.frame[30..33] == [10, 99, 2]).map(|of| of.frame[5]).collect();
    assert_eq!(both.into_iter().collect::<Vec<_>>(), [OTHER, MAIN], "both next hops");
    what_a_message_names(&daemon, pod, &wire);
}

/// A mark is the kernel's, and so is a source that a message names.
fn what_a_message_names(daemon: &Daemon, pod: &str, wire: &Frames) {
    let mut seen = wire.arrived().len();
    for (number, (keys, router, word)) in
        [("mark=7", OTHER, "unsupported_option"), ("source=10.244.0.7", OTHER, "unsupported_option")]
            .into_iter()
            .enumerate()
    {
        let before = daemon.control().counters(NAME);
        let sender = 3000 + number as u32;
        talk(daemon, pod, TO, sender, &format!("count=1 octets=64 {LEAD} {keys} hold_ms=300"));
        seen += 1;
        let frames = wire.wait(seen, SOON);
        assert_eq!(routers(&frames, sender), [router], "{keys}");
        assert!(of(&frames, sender)[0].after_ns >= 0, "{keys}: early");
        eventually("it is counted", SOON, || {
            let now = daemon.control().counters(NAME);
            let counted =
                |of: &AttachmentStatistics| reason(&of.bypassed, word) + reason(&of.bypassed, RULES);
            counted(&now) > counted(&before)
        });
    }
}

/// A rule that comes and goes under traffic: each frame arrives once, none before its time, and after the first that takes the new way
/// none takes the old one.
#[test]
fn a_rule_changes_under_traffic() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let pod = &bed.pod_a;
    let wire = Frames::open(&bed.host_a, "pod5");
    const COUNT: usize = 1500;
    let talker = Talker::start(
        &daemon,
        pod,
        TO,
        1,
        &format!("count={COUNT} period_us=2000 octets=64 {LEAD} hold_ms=500"),
    );
    eventually("it sends", SOON, || of(&wire.arrived(), 1).len() > 100);
    let mut ways = vec![MAIN];
    for verb in ["add", "del", "add", "del"] {
        bed.run(&format!("ip -n {pod} rule {verb} ipproto udp to 10.99.0.0/16 lookup 100"));
        let expected = if verb == "add" { OTHER } else { MAIN };
        ways.push(expected);
        eventually("the rule is followed", SOON, || routers(&wire.arrived(), 1).last() == Some(&expected));
    }
    let (values, errors) = talker.finish();
    assert_eq!((values["sent"], values["failed"]), (COUNT as i64, 0), "{errors}");
    let frames = wire.wait(COUNT, SOON);
    let frames = of(&frames, 1);
    let counters = settled(&daemon);
    let early: Vec<i64> = frames.iter().map(|arrived| arrived.after_ns).filter(|after| *after < 0).collect();
    assert_eq!((frames.len(), early.as_slice()), (COUNT, &[][..]), "{counters:?}");
    let mut numbers: Vec<u64> = frames.iter().map(|arrived| arrived.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), COUNT, "one is there twice");
    let mut taken: Vec<u8> = frames.iter().map(|arrived| arrived.frame[5]).collect();
    taken.dedup();
    assert_eq!(taken, ways, "{counters:?}");
    assert!(counters.dropped.is_empty() && counters.kernel_dropped.is_empty(), "{counters:?}");
    assert!(counters.sent * 100 >= counters.taken * 95, "{counters:?}");
}

/// What the kernel sends by another device is handed to it at its time, also when the program has ended or closed its socket by then.
/// So is what is longer than its route allows.
#[test]
fn what_only_the_kernel_can_send_leaves_at_its_time() {
    let bed = Bed::new();
    let daemon = start(&bed);
    let pod = &bed.pod_a;
    bed.run(&format!("ip -n {pod} link add there type veth peer name back"));
    bed.run(&format!("ip -n {pod} link set there up\nip -n {pod} link set back up"));
    bed.run(&format!("ip -n {pod} addr add 10.98.0.1/24 dev there"));
    bed.run(&format!("ip -n {pod} neigh replace 10.98.0.9 lladdr 02:00:00:00:00:09 dev there nud permanent"));
    bed.run(&format!("ip -n {pod} route add 10.99.4.0/24 via 10.98.0.9 table 101"));
    bed.run(&format!("ip -n {pod} rule add to 10.99.4.0/24 lookup 101"));
    bed.run(&format!("ip -n {pod} route add 10.99.3.0/24 via 10.244.0.{MAIN} mtu 1300"));
    let wire = Frames::open(&bed.host_a, "pod5");
    let there = Frames::open(pod, "back");
    eventually("the rule is followed", SOON, || {
        let before = settled(&daemon);
        talk(&daemon, pod, TO, 1, &format!("count=1 octets=64 {LEAD}"));
        settled(&daemon).sent > before.sent && daemon.control().counters(NAME).taken > 0
    });
    let before = settled(&daemon);
    // Sockets that stay, programs that end at once, and one that is connected.
    let cases = ["count=20 hold_ms=400", "count=20 burst=1", "count=1", "count=1"];
    let mut count = 0;
    for (sender, keys) in (10..).zip(cases) {
        let told = talk(&daemon, pod, "10.99.4.7", sender, &format!("octets=64 {LEAD} {keys}"));
        count += told["sent"] as usize;
        let frames = there.wait(count, SOON);
        let frames = of(&frames, sender);
        assert_eq!(frames.len(), told["sent"] as usize, "{keys}: {:?}", settled(&daemon));
        assert!(frames.iter().all(|arrived| arrived.after_ns >= 0 && arrived.frame[5] == 9), "{keys}");
    }
    let after = settled(&daemon);
    assert_eq!(after.passed - before.passed, count as u64, "{after:?}");
    assert_eq!(reason(&after.bypassed, RULES) - reason(&before.bypassed, RULES), count as u64, "{after:?}");
    // A socket that is closed at once: its datagram leaves all the same.
    let told = talk(&daemon, pod, "10.99.4.7", 19, &format!("count=30 burst=1 again=1 octets=64 {LEAD}"));
    count += told["sent"] as usize;
    assert_eq!(of(&there.wait(count, SOON), 19).len(), 30, "{:?}", settled(&daemon));
    // What KTSN sends needs no socket: its port is free for the next one when the close has returned.
    let seen = wire.arrived().len();
    talk(&daemon, pod, TO, 18, &format!("count=30 burst=1 again=1 own=5555 octets=64 {LEAD}"));
    assert_eq!(of(&wire.wait(seen + 30, SOON), 18).len(), 30, "{:?}", settled(&daemon));
    // Where the kernel has no route it says so at the call.
    for (kind, errno) in [("blackhole", libc::EINVAL), ("unreachable", libc::EHOSTUNREACH)] {
        bed.run(&format!("ip -n {pod} route replace {kind} 10.99.5.0/24"));
        let (values, errors) =
            Talker::start(&daemon, pod, "10.99.5.7", 20, &format!("count=1 octets=64 {LEAD}")).finish();
        assert_eq!((values["failed"], values["errno"]), (1, i64::from(errno)), "{kind} {errors}");
    }
    // Two fragments, of which the first has the mark.
    let seen = wire.arrived().len();
    talk(&daemon, pod, "10.99.3.7", 30, &format!("count=2 octets=1400 {LEAD} hold_ms=300"));
    let frames = wire.wait(seen + 2, SOON);
    let frames = of(&frames, 30);
    assert_eq!(frames.len(), 2);
    assert!(frames.iter().all(|of| of.after_ns >= 0 && of.frame[20] & 0x20 != 0), "at its time, more follow");
    let counters = settled(&daemon);
    assert_eq!(reason(&counters.bypassed, "over_mtu"), 2, "{counters:?}");
    assert!(counters.dropped.is_empty() && counters.kernel_dropped.is_empty(), "{counters:?}");
}
