// SPDX-License-Identifier: Apache-2.0
//! One ktsnd with three uplinks, each configured otherwise: two gate schedules that are open in turn, a class with a
//! credit-based shaper, and strict priority without gates.

use std::time::Duration;

use ktsn_tests::faults::Tap;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::tap::Arrival;

const SOON: Duration = Duration::from_secs(20);
const MS: i64 = 1_000_000;
/// A gate is open for so long, and then as long closed.
const HALF: i64 = 200 * MS;
/// How much later a busy machine may show at the far end what left in time.
const TOLERANCE: i64 = 120 * MS;
/// Bit/s of the shaped class, and its frames: 64 octets of payload, 92 of headers, 24 that every frame has.
const SLOPE: i64 = 100_000;
const FRAME_BITS: i64 = (64 + 92 + 24) * 8;

/// Two more links between the hosts; VXLAN goes over the first of them as well.
fn links(bed: &Bed) {
    let (a, b) = (&bed.host_a, &bed.host_b);
    for (device, net) in [("up2", 52), ("up3", 53)] {
        bed.run(&format!(
            "ip -n {a} link add {device} type veth peer name {device} netns {b}
ip -n {a} addr add 192.168.{net}.1/24 dev {device}
ip -n {b} addr add 192.168.{net}.2/24 dev {device}
ip -n {a} link set {device} address 02:00:00:00:{net}:01 up
ip -n {b} link set {device} address 02:00:00:00:{net}:02 up
ip -n {a} neigh replace 192.168.{net}.2 lladdr 02:00:00:00:{net}:02 dev {device} nud permanent
"
        ));
    }
}

fn configuration(bed: &Bed) -> String {
    let schedule = |name: &str, first: u8, second: u8| {
        format!(
            "[[schedule]]\nname = \"{name}\"\n[schedule.gate-parameter-table]\ngate-enabled = true\nadmin-base-time = 0\n\
             admin-cycle-time = \"400ms\"\nadmin-control-list = [\n\
             {{ gate-states-value = {first}, time-interval-value = \"200ms\" }},\n\
             {{ gate-states-value = {second}, time-interval-value = \"200ms\" }} ]\n"
        )
    };
    let second =
        Attachment { name: "pod-q".to_owned(), namespace: bed.pod_q.clone(), ..Attachment::pod_a(bed) };
    let second = second.toml().replace(&format!("uplink = \"{UPLINK}\""), "uplink = \"up2\"");
    let second = second.replace("192.168.50.", "192.168.52.");
    format!(
        "[[port]]\ndevice = \"{UPLINK}\"\npriority = 0\nschedule = \"first\"\n\
         [[port]]\ndevice = \"up2\"\npriority = 0\nschedule = \"second\"\n\
         [[port.class]]\ntraffic-class = 3\nidle-slope = {SLOPE}\n\
         [[port]]\ndevice = \"up3\"\npriority = 0\nstrategy = \"strict-priority\"\n{}{}{}{second}\
         [[attachment]]\nname = \"host\"\nnetns = \"{}\"\ninterface = \"up3\"\nuplink = \"up3\"\n\
         destinations = [\"192.168.53.0/24\"]\noverrun_limit = \"10s\"\n",
        schedule("first", 0b1100_1111, 0b1000_1111),
        schedule("second", 0b1000_1111, 0b1100_1111),
        Attachment::pod_a(bed).toml(),
        bed.host_a,
    )
}

/// When it arrived, on its TxTime's clock.
fn at(arrival: &Arrival) -> i64 {
    arrival.tx_time + arrival.after_ns
}

/// 802.1Q 8.6.8.4 and 8.6.9: a gate schedule is its port's; 8.6.8.2: a shaped class's credit, 8.6.8.1: no gates.
#[test]
fn each_port_has_its_own_gates_and_classes() {
    let bed = Bed::new();
    links(&bed);
    let mut daemon = Daemon::prepare(&bed.host_a, &configuration(&bed));
    daemon.spawn();
    let taps = [UPLINK, "up2", "up3"].map(|device| Tap::open(&bed.host_b, device));
    // 1.2 s of TxTimes: three cycles.
    let keys = "count=60 period_us=20000 lead_us=600000 priority=6";
    let timed = [(1, &bed.pod_a, POD_B), (2, &bed.pod_q, POD_B), (3, &bed.host_a, "192.168.53.2")]
        .map(|(sender, namespace, to)| Talker::start(&daemon, namespace, to, sender, keys));
    talk(&daemon, &bed.pod_q, POD_B, 4, "count=30 burst=1 clock=1 zero=1 priority=3");
    for talker in timed {
        let (values, errors) = talker.finish();
        assert_eq!(values["failed"], 0, "{errors}");
    }
    for (index, opens) in [(0, 0), (1, HALF)] {
        let sender = index as u32 + 1;
        let arrived = taps[index].wait(sender, 60, SOON);
        let sequence: Vec<u64> = arrived.iter().map(|arrival| arrival.sequence).collect();
        assert_eq!(sequence, (0..60).collect::<Vec<_>>(), "{}", daemon.log());
        for arrival in &arrived {
            let offset = (at(arrival) - opens).rem_euclid(2 * HALF);
            assert!(
                offset < HALF + TOLERANCE && arrival.after_ns >= 0,
                "{offset} ns after opening: {arrival:?}"
            );
        }
        // The gate was closed when about half of them were due.
        let waited = arrived.iter().filter(|arrival| arrival.after_ns > 10 * MS).count();
        assert!(waited >= 15, "{waited} waited");
    }
    assert_eq!(taps[2].wait(3, 60, SOON).len(), 60);
    // No span carries more than the idle slope gives, but for what one frame may owe.
    let shaped = taps[1].wait(4, 30, SOON);
    assert_eq!(shaped.len(), 30);
    let span = at(&shaped[29]) - at(&shaped[0]);
    let least = 28 * FRAME_BITS * 1_000 * MS / SLOPE - TOLERANCE;
    assert!(span >= least, "{span} ns, at least {least}");

    let list = daemon.control().list();
    let shown = |device: &str| {
        let port =
            list.ports.iter().find(|port| port.device == device && port.netns.is_empty()).expect("port");
        (port.strategy.clone(), port.schedule.clone())
    };
    assert_eq!(shown(UPLINK), ("time-aware".into(), "first".into()));
    assert_eq!(shown("up2"), ("time-aware".into(), "second".into()));
    assert_eq!(shown("up3"), ("strict-priority".into(), String::new()));
    let ports = daemon.control().statistics_of("").expect("Statistics").ports;
    let frames = |device: &str| {
        let port = ports.iter().find(|port| port.device == device && port.netns.is_empty()).expect("port");
        port.frames.clone()
    };
    assert_eq!(frames(UPLINK), [0, 0, 0, 0, 0, 0, 60, 0]);
    assert_eq!(frames("up2"), [0, 0, 0, 30, 0, 0, 60, 0]);
    assert_eq!(frames("up3"), [0, 0, 0, 0, 0, 0, 60, 0]);
}
