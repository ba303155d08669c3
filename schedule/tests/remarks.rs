// SPDX-License-Identifier: Apache-2.0
//! What a reader says about a text that it takes, and what KTSN does not execute of it.

use ktsn_schedule::analysis::{Link, Warning, analyse};
use ktsn_schedule::{Format, parse_with_remarks, write};
use ktsn_time::Nanos;

const COMMAND: &str = "tc qdisc replace dev eth0 root taprio num_tc 2 map 0 1 queues 1@0 1@1 base-time 0 sched-entry S 3 1000000 clockid CLOCK_TAI";

/// The remarks about a text, each with its place.
fn remarks(text: &str) -> Vec<String> {
    let (_, remarks) =
        parse_with_remarks(text, Format::Auto).unwrap_or_else(|faults| panic!("{text}: {faults}"));
    remarks.iter().map(ToString::to_string).collect()
}

#[test]
fn a_command_is_found_where_people_put_it() {
    let fine: [String; 6] = [
        COMMAND.to_owned(),
        format!("# a comment\n\n{COMMAND}\n"),
        format!("sudo -E {COMMAND}"),
        format!("IF=eth0 sudo {COMMAND}"),
        format!("ip netns exec plant /usr/sbin/{COMMAND} # comment"),
        COMMAND.replace(" map", " \\\n    map").replace(" clockid", " \\\n    'clockid'"),
    ];
    for text in fine {
        assert_eq!(remarks(&text), Vec::<String>::new(), "{text}");
    }
    for (before, expected) in [
        ("user@host:~# ", "1:1: user@host:~# before tc is taken for a prompt"),
        ("[root@plc1 ~]# ", "1:1: ~]# before tc is taken for a prompt"),
        ("$ ", "1:1: $ before tc is taken for a prompt"),
        ("$ sudo ", "1:1: $ before tc is taken for a prompt"),
        ("# ", "1:3: the command stands behind #: taken for a prompt, not for a comment"),
    ] {
        assert_eq!(remarks(&format!("{before}{COMMAND}")), [expected]);
    }
    let continued = COMMAND.replace(" map", " \\\n> map");
    assert_eq!(remarks(&format!("$ {continued}")).len(), 1);
    let script = format!(
        "#!/bin/sh\nset -e; ip link set eth0 up\n{COMMAND}\ntc qdisc replace dev eth0 parent 1:1 etf\n"
    );
    assert_eq!(
        remarks(&script),
        ["2:1: 3 other commands (set, ip, tc …) are not read: only the taprio command is"]
    );
    let piped = format!("{COMMAND} && tc qdisc show dev eth0 | grep taprio");
    assert_eq!(remarks(&piped).len(), 1);
}

#[test]
fn what_tc_ignores_is_said() {
    for (from, to, expected) in [
        (
            "clockid CLOCK_TAI",
            "clockid CLOCK_TAI cycle-time soon flags 1",
            "soon is no number of nanoseconds: tc ignores it, and the 2 words",
        ),
        ("num_tc 2", "num_tc 3 num_tc 2", "num_tc stands twice: tc takes the last"),
        ("1@0 1@1", "1@0 1@1 1@2", "queues has 3 values for 2 classes"),
        ("S 3 ", "S 103 ", "the gate mask 103 has bits above class 7"),
        ("base-time 0", "base-time -5", "base-time before 1970"),
        ("base-time 0", "base-time 0 max-sdu 0 0 900", "max-sdu has 3 values for 2 classes"),
        ("root", "root estimator 1sec 4sec", "estimator: the kernel's rate estimator is not kept"),
        ("replace", "change", "where a taprio is there already"),
    ] {
        let text = COMMAND.replacen(from, to, 1);
        let remarks = remarks(&text);
        assert!(remarks.len() == 1 && remarks[0].contains(expected), "{text}: {remarks:?}");
    }
}

/// It is read and written for tc, and said in no format that KTSN executes.
#[test]
fn what_ktsn_does_not_execute_is_a_limit() {
    for (from, to, limit) in [
        ("CLOCK_TAI", "CLOCK_REALTIME", "clockid: found CLOCK_REALTIME, expected CLOCK_TAI"),
        ("1000000", "20000", "admin-cycle-time: found 20 µs, expected 50 us to 10 s"),
        ("base-time 0", "base-time 5000000000000000000", "admin-base-time: found 5000000000 s"),
    ] {
        let text = COMMAND.replacen(from, to, 1);
        let (schedule, _) =
            parse_with_remarks(&text, Format::Taprio).unwrap_or_else(|faults| panic!("{faults}"));
        let limits: Vec<String> = schedule.limits().iter().map(ToString::to_string).collect();
        assert!(limits.len() == 1 && limits[0].starts_with(limit), "{limits:?}");
        assert!(write(&schedule, Format::Taprio).is_ok());
        assert_eq!(write(&schedule, Format::Yaml).unwrap_err().to_string(), limits[0]);
    }
}

/// As 802.1Q says, in each format: the last entry holds, or the list is cut.
#[test]
fn a_cycle_beside_another_sum_is_a_warning() {
    let yaml = "link-speed: 1G\npriority-map: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\ngate-parameter-table:\n  \
                gate-enabled: true\n  admin-cycle-time: CYCLE\n  admin-control-list: [{gate-states-value: 1, time-interval-value: 1ms}]\n";
    let command = format!("# ktsn link-speed: 1000000000\n{COMMAND} cycle-time CYCLE");
    for text in [yaml, &command] {
        for (cycle, expected) in [
            ("1500000", Some(Warning::ListShorter(Nanos::from_micros(500)))),
            ("600000", Some(Warning::ListLonger(Nanos::from_micros(400)))),
            ("1000000", None),
        ] {
            let text = text.replace("CYCLE", cycle);
            let (schedule, _) =
                parse_with_remarks(&text, Format::Auto).unwrap_or_else(|faults| panic!("{faults}"));
            let warnings = analyse(&schedule, &Link::of(&schedule, None, None, None)).warnings;
            assert_eq!(warnings, Vec::from_iter(expected), "{text}");
        }
    }
}
