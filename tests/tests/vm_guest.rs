// SPDX-License-Identifier: Apache-2.0
//! `ktsn guest` in a guest: the modes one after the other on a multi-queue device, each checked by frames, taken back, replaced; a set-up
//! that fails half-way, one that is killed half-way, and what is refused.
//!
//! No time is judged: at least half of the frames leave (20 ms apart, sent 15 ms ahead), and each other frame is reported or counted.

use std::collections::BTreeMap;

use ktsn_tests::cli::{err, out};
use serde_json::Value;

use super::{Cache, image, skip};

/// How these scripts begin: a schedule of three classes, and `note`, which runs a command and prints its name, exit status and outputs.
pub(super) const BEGIN: &str = r#"
cat >/tmp/s.yaml <<X
priority-map: [0, 0, 0, 0, 5, 5, 7, 7, 0, 0, 0, 0, 0, 0, 0, 0]
gate-parameter-table:
  gate-enabled: true
  admin-gate-states: 0xff
  admin-base-time: 0
  admin-cycle-time: 20ms
  admin-control-list:
    gate-control-entry:
      - { index: 0, gate-states-value: 0b10000000, time-interval-value: 8ms }
      - { index: 1, gate-states-value: 0b00100001, time-interval-value: 12ms }
X
note() { name=$1; shift; "$@" >/tmp/out 2>&1; status=$?; echo "== $name $status"; cat /tmp/out; }
"#;

/// Runs commands, and prints for each its name, exit status and outputs.
const SCRIPT: &str = r#"
mkdir /tmp/fails /tmp/waits
cat >/tmp/fails/tc <<'X'
#!/bin/sh
case "$*" in *" etf "*) echo "Error: Specified qdisc kind is unknown." >&2; exit 2;; esac
exec /usr/sbin/tc "$@"
X
cat >/tmp/waits/tc <<'X'
#!/bin/sh
case "$*" in *" etf "*) : >/tmp/waits.here; exec sleep 100;; esac
exec /usr/sbin/tc "$@"
X
chmod +x /tmp/fails/tc /tmp/waits/tc
state() {
    echo "queues $(ethtool -l eth0 | awk '/Combined/ { now = $2 } END { print now }')"
    echo "speed $(cat /sys/class/net/eth0/speed 2>/dev/null)"
    echo "up $(ip -o link show eth0 | grep -c '[<,]UP')"
    echo "qdiscs $(tc -j qdisc show dev eth0 | tr ',' '\n' | grep -c '"\(mqprio\|etf\|taprio\)"')"
    echo "records $(ls /run/ktsn-guest 2>/dev/null | grep -c json)"
    echo "ktsnd $(ps | grep '[k]tsnd --config' | grep -vc '\]$')"
    echo "run $(ls -d /run/ktsn 2>/dev/null)"
}
setup() { ktsn guest setup --json --verify 40 --period 20ms --lead 15ms --delta 4ms "$@"; }
note before state
note etf setup --mode etf
note etf-state state
ip addr add 192.0.2.1/24 dev eth0
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent
note etf-talk ktsn talk 192.0.2.2:7000 --count 40 --period 20ms --lead 15ms --fifo 50 --json -
note etf-count tc -j -s qdisc show dev eth0
note taprio setup --mode taprio --schedule /tmp/s.yaml
note taprio-state state
note taprio-shown tc -j qdisc show dev eth0
PATH=/tmp/fails:$PATH note half-way setup --mode etf
note half-way-state state
PATH=/tmp/waits:$PATH ktsn guest setup --mode etf --verify 0 >/dev/null 2>&1 &
while [ ! -e /tmp/waits.here ]; do usleep 20000; done
kill -9 $!
note killed-state state
note killed-undo ktsn guest undo
note killed-undone state
note ktsnd setup --mode ktsnd --schedule /tmp/s.yaml --attach late=send,overrun_limit=15ms
note ktsnd-state state
ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev eth0 nud permanent
note ktsnd-talk ktsn run -- ktsn talk 192.0.2.2:7000 --count 40 --period 20ms --lead 15ms --fifo 50 --json -
note ktsnd-count ktsn status --json
note ktsnd-undo ktsn guest undo
note ktsnd-undone state
note none ktsn guest undo
ip link add v0 type veth peer name v1
note one-queue ktsn guest setup --mode taprio --schedule /tmp/s.yaml --device v0
tc qdisc add dev eth0 root handle 9: taprio num_tc 1 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 base-time 0 sched-entry S 1 1000000 clockid CLOCK_TAI
ethtool -L eth0 combined 4
tc qdisc add dev eth0 root handle 9: taprio num_tc 1 map 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 queues 1@0 base-time 0 sched-entry S 1 1000000 clockid CLOCK_TAI
note stalls ktsn guest setup --mode etf
"#;

/// What the script printed, by name: exit status and text.
pub(super) fn parts(text: &str) -> BTreeMap<String, (i32, String)> {
    let mut parts = BTreeMap::new();
    for part in text.split("== ").skip(1) {
        let (head, rest) = part.split_once('\n').unwrap_or((part, ""));
        let (name, status) = head.split_once(' ').expect("a name and a status");
        parts.insert(name.to_owned(), (status.parse().expect("a status"), rest.to_owned()));
    }
    parts
}

/// A check of frames: half of them or more left, none too early, and each other one is accounted for.
pub(super) fn assert_checked(name: &str, document: &Value, gates_count: bool) {
    let verified = &document["verified"];
    let number =
        |field: &str| verified[field].as_u64().unwrap_or_else(|| panic!("{name}: {field}: {document:#}"));
    let (frames, left) = (number("frames"), number("left"));
    assert!(frames == 40 && left >= 20 && number("early") <= left - 20, "{name}: {verified:#}");
    let refused = frames - number("sent");
    let known = left + number("missed") + number("invalid") + number("unaccounted") + refused;
    assert_eq!(known, frames, "{name}: {verified:#}");
    // A drop without a report is in the qdiscs' counters.
    let without_report = number("unaccounted");
    assert!(
        without_report == 0 || gates_count && without_report <= number("qdisc_drops"),
        "{name}: {verified:#}"
    );
}

#[test]
fn a_guests_device_is_set_up_checked_replaced_and_taken_back() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let output = cache.run(&[
        "--datapath",
        "tap",
        "--queues",
        "4",
        "--timeout",
        "100s",
        "--",
        "sh",
        "-c",
        &[BEGIN, SCRIPT].concat(),
    ]);
    println!("{}{}", out(&output), err(&output));
    let parts = parts(&out(&output));
    let part =
        |name: &str| parts.get(name).unwrap_or_else(|| panic!("no {name}: {}{}", out(&output), err(&output)));
    let json = |name: &str| {
        let (status, text) = part(name);
        assert_eq!(*status, 0, "{name}: {text}");
        // Warnings come before it.
        let from = text.find(['{', '[']).unwrap_or_else(|| panic!("{name}: {text}"));
        serde_json::from_str::<Value>(&text[from..]).unwrap_or_else(|error| panic!("{name}: {error}: {text}"))
    };
    let state = |name: &str| part(name).1.clone();
    let before = state("before");
    let none = "queues 1\nspeed \nup 0\nqdiscs 0\nrecords 0\nktsnd 0\nrun \n";
    assert_eq!(before, none);

    let etf = json("etf");
    assert_checked("etf", &etf, true);
    assert_eq!((&etf["mode"], &etf["replaced"]), (&"etf".into(), &Value::Null));
    assert_eq!(state("etf-state"), "queues 4\nspeed -1\nup 1\nqdiscs 2\nrecords 1\nktsnd 0\nrun \n");
    // The same talker as everywhere; each datagram left or was counted as dropped.
    assert_eq!(json("etf-talk")["frames_intended"], 40);
    let qdiscs = json("etf-count");
    let etf_s = qdiscs.as_array().unwrap().iter().find(|qdisc| qdisc["kind"] == "etf").expect("an etf");
    let counted = etf_s["packets"].as_u64().unwrap() + etf_s["drops"].as_u64().unwrap();
    assert!(counted >= 80 && etf_s["packets"].as_u64().unwrap() >= 40, "{qdiscs:#}");

    let taprio = json("taprio");
    assert_checked("taprio", &taprio, true);
    assert_eq!(taprio["replaced"], "etf");
    assert_eq!(state("taprio-state"), "queues 3\nspeed 1000\nup 1\nqdiscs 4\nrecords 1\nktsnd 0\nrun \n");
    assert!(part("taprio-shown").1.contains("txtime_delay"), "{}", part("taprio-shown").1);

    let (status, text) = part("half-way");
    assert!(*status == 3 && text.contains("this kernel has no qdisc etf"), "{text}");
    assert_eq!(state("half-way-state"), none);
    assert_eq!(state("killed-state"), "queues 4\nspeed -1\nup 1\nqdiscs 1\nrecords 1\nktsnd 0\nrun \n");
    let (status, text) = part("killed-undo");
    assert!(*status == 0 && text.contains("mode etf on eth0 was taken back"), "{text}");
    assert_eq!(state("killed-undone"), none);

    assert_checked("ktsnd", &json("ktsnd"), false);
    assert_eq!(
        state("ktsnd-state"),
        "queues 1\nspeed 1000\nup 1\nqdiscs 0\nrecords 1\nktsnd 1\nrun /run/ktsn\n"
    );
    assert_eq!(json("ktsnd-talk")["frames_sent"], 40);
    let served = json("ktsnd-count").to_string();
    assert!(served.contains("guest/eth0"), "{served}");
    let (status, text) = part("ktsnd-undo");
    assert!(*status == 0 && text.contains("end ktsnd"), "{text}");
    assert_eq!(state("ktsnd-undone"), none);
    assert_eq!(part("none"), &(0, "eth0: there is no set-up\n".to_owned()));

    let (status, text) = part("one-queue");
    assert!(*status == 3 && text.contains("device v0: 1 queue pair(s); expected 3"), "{text}");
    let (status, text) = part("stalls");
    assert!(*status == 2 && text.contains("taprio 9:") && text.contains("stalls all queues"), "{text}");
}
