// SPDX-License-Identifier: Apache-2.0
//! Ports, their classes and their schedules: what is accepted means what it says, the rest is named.

use ktsn_model::{GateOperation, GateStates};
use ktsn_time::{Nanos, Tai};

use super::*;

const GATES: &str = r#"
[[port]]
device = "uplink0"
link_speed = 1000000000
mode = "dedicated"
strategy = "time-aware"
schedule = "three"
[[port.class]]
traffic-class = 6
order = "fifo"
queue-max-sdu = 256
[[port.class]]
traffic-class = 5
idle-slope = 75000000
[[schedule]]
name = "three"
link-speed = "1G"
class-names = { 7 = "control" }
[schedule.gate-parameter-table]
gate-enabled = true
admin-gate-states = 129
admin-base-time = { seconds = 1, nanoseconds = 5 }
admin-cycle-time = { numerator = 1, denominator = 1000 }
admin-cycle-time-extension = 100
queue-max-sdu-table = [{ traffic-class = 7, queue-max-sdu = 512 }]
admin-control-list = { gate-control-entry = [
  { index = 0, gate-states-value = 128, time-interval-value = 300000 },
  { index = 1, gate-states-value = 127, time-interval-value = 700000, operation-name = "set-and-hold-mac" },
] }
"#;

#[test]
fn a_port_with_gates() {
    let config = Config::parse(GATES).unwrap();
    let port = &config.ports[0];
    assert_eq!((port.mode, port.selection), (Mode::Dedicated, SelectionChoice::TimeAware));
    assert_eq!(port.classes[6].order, Some(ClassOrder::Fifo));
    assert_eq!(port.classes[6].queue_max_sdu, Some(256));
    assert_eq!(port.classes[5].idle_slope, Some(75_000_000));
    assert_eq!(port.classes[4], ClassChoice::default());
    let schedule = &config.schedules[0];
    let admin = &schedule.admin;
    assert!(admin.gate_enabled);
    assert_eq!(admin.gate_states, GateStates::from_bits(129));
    assert_eq!(admin.base_time, Tai::from_nanos(1_000_000_005));
    assert_eq!((admin.cycle_time, admin.cycle_time_extension), (Nanos::from_millis(1), Nanos::new(100)));
    let list: Vec<_> = admin.control_list.iter().map(|e| (e.states.bits(), e.interval.get())).collect();
    assert_eq!(list, [(128, 300_000), (127, 700_000)]);
    assert_eq!(admin.control_list[1].operation, GateOperation::SetAndHoldMac);
    assert_eq!(schedule.queue_max_sdu[6..], [None, Some(512)]);
    assert_eq!(schedule.link_speed, Some(1_000_000_000));
    // The state file depends on it.
    assert_eq!(&read_schedule("again", &write_schedule(schedule)).unwrap(), schedule);
}

/// What is written instead of what, and a part of the answer.
const FAULTS: &[(&str, &str, &str)] = &[
    ("\"dedicated\"", "\"mine\"", "port[0].mode: \"mine\": expected shared or dedicated"),
    ("link_speed = 1000000000", "link_speed = 0", "port[0].link_speed: \"0\": expected bit/s"),
    ("\"time-aware\"", "\"fair\"", "port[0].strategy: \"fair\": expected time-aware, earliest-tx-time,"),
    (
        "\"time-aware\"",
        "\"strict-priority\"",
        "port[0].class[0].queue-max-sdu: \"256\": expected none, since strategy is strict",
    ),
    ("\"time-aware\"", "\"credit-based\"", "port[0].class[0].queue-max-sdu: \"256\": expected none, since"),
    ("\"time-aware\"", "\"earliest-tx-time\"", "port[0].class[0]: \"6\": expected no class options"),
    ("schedule = \"three\"", "schedule = \"four\"", "expected the name of a [[schedule]]: three"),
    (
        "traffic-class = 5\n",
        "traffic-class = 8\n",
        "port[0].class[1].traffic-class: \"8\": expected a traffic",
    ),
    ("traffic-class = 5\n", "traffic-class = 6\n", "port[0].class[1].traffic-class: \"6\" is used twice"),
    ("traffic-class = 5\n", "", "port[0].class[1].traffic-class: missing"),
    ("\"fifo\"", "\"lifo\"", "port[0].class[0].order: \"lifo\": expected tx-time or fifo"),
    ("queue-max-sdu = 256", "queue-max-sdu = 65536", "port[0].class[0].queue-max-sdu: \"65536\": expected 1"),
    ("queue-max-sdu = 256", "queue_max_sdu = 256", "unknown field `queue_max_sdu`"),
    ("idle-slope = 75000000", "idle-slope = 0", "port[0].class[1].idle-slope: \"0\": expected bit/s"),
    ("idle-slope = 75000000", "idle-slope = 1000000001", "expected at most the link's 1000000000 bit/s"),
    ("name = \"three\"", "", "schedule[0].name: missing"),
    (
        "states = 129",
        "states = 256",
        "schedule[0].gate-parameter-table.admin-gate-states: \"256\": expected gate",
    ),
    (
        "nanoseconds = 5",
        "nanoseconds = 1000000000",
        "schedule[0].gate-parameter-table.admin-base-time.nanoseconds",
    ),
    ("seconds = 1,", "seconds = -1,", "schedule[0].gate-parameter-table.admin-base-time.seconds: \"-1\""),
    ("denominator = 1000 ", "denominator = 3 ", "admin-cycle-time: \"1/3 s\": expected a whole number"),
    (
        "denominator = 1000 ",
        "denominator = 50000 ",
        "gate-parameter-table.admin-cycle-time: \"20 µs\": expected 50 us",
    ),
    ("\"set-and-hold-mac\"", "\"hold\"", "admin-control-list[1].operation-name: \"hold\": expected set-gate"),
    (
        "value = 700000",
        "value = 0",
        "schedule[0].gate-parameter-table.admin-control-list[1].time-interval-value",
    ),
    ("value = 127", "value = 512", "admin-control-list[1].gate-states-value: \"512\": expected gate states"),
    ("queue-max-sdu = 512", "queue-max-sdu = \"long\"", "queue-max-sdu-table[0].queue-max-sdu: \"long\""),
    ("admin-gate-states", "admin-gates", "schedule[0].gate-parameter-table"),
    ("link-speed = \"1G\"", "hand-over = 5", "schedule[0].hand-over: \"hand-over\": expected no such leaf"),
    (
        "link-speed = \"1G\"",
        "mtu = 1500",
        "schedule[0].mtu: \"mtu\": expected no such leaf: the device has one",
    ),
    ("gate-enabled = true", "gate-enabled = 1979-05-27", "schedule[0].gate-parameter-table.gate-enabled"),
];

/// Each wrong value is named with its field and what was expected.
#[test]
fn faults_name_field_value_and_expectation() {
    for (from, to, message) in FAULTS {
        assert!(GATES.contains(from), "{from}");
        let error = Config::parse(&GATES.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(message), "{to}: {error}");
    }
    let twice = format!("{GATES}\n{}", &GATES[GATES.find("[[schedule]]").unwrap()..]);
    assert!(
        Config::parse(&twice).unwrap_err().to_string().contains("schedule[1].name: \"three\" is used twice")
    );
}

#[test]
fn strategies_say_what_they_lack() {
    let port = |rest: &str| Config::parse(&format!("[[port]]\ndevice = \"u\"\n{rest}"));
    assert_eq!(port("").unwrap().ports[0].selection, SelectionChoice::TimeAware);
    assert_eq!(port("strategy = \"earliest-tx-time\"").unwrap().ports[0].schedule, None);
    let error = port("strategy = \"credit-based\"").unwrap_err().to_string();
    assert!(error.contains("port[0].class: missing; expected a class with idle-slope"), "{error}");
    let error =
        port("strategy = \"strict-priority\"\n[[port.class]]\ntraffic-class = 1\norder = \"tx-time\"");
    assert!(error.unwrap_err().to_string().contains("order: \"tx-time\": expected fifo"));
    let shaped = "[[port.class]]\ntraffic-class = 1\nidle-slope = 9000";
    assert!(port(&format!("strategy = \"credit-based\"\n{shaped}")).unwrap().ports[0].is_shaped());
    for (strategy, expected) in [
        ("credit-based", "expected no schedule beside strategy \"credit-based\""),
        ("strict-priority", "idle-slope: \"9000\": expected none, since strategy is strict-priority"),
    ] {
        let text = format!("strategy = \"{strategy}\"\nschedule = \"a\"\n{shaped}");
        let error = port(&text).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert!(port("schedule = \"a\"").unwrap_err().to_string().contains("this file has none"));
}

/// Devargs belong to DPDK, and a ktsnd without it says so.
#[test]
fn dpdk_is_named_where_it_is_missing_and_needs_its_devargs() {
    let port = |rest: &str| Config::parse(&format!("[[port]]\ndevice = \"u\"\n{rest}"));
    let fault = |rest: &str| port(rest).unwrap_err().to_string();
    let alone = fault("devargs = \"net_null0\"");
    assert!(alone.contains("port[0].devargs: \"net_null0\": expected no devargs but beside"), "{alone}");
    let whole = "adapter = \"dpdk\"\ndevargs = \"net_af_packet0,iface=u\"";
    #[cfg(not(feature = "dpdk"))]
    assert!(fault(whole).contains("built without the feature dpdk"), "{}", fault(whole));
    #[cfg(feature = "dpdk")]
    {
        let devargs = "net_af_packet0,iface=u".to_owned();
        assert_eq!(port(whole).unwrap().ports[0].adapter, AdapterChoice::Dpdk { devargs });
        assert!(fault("adapter = \"dpdk\"").contains("port[0].devargs: missing; expected a device of DPDK"));
        for wrong in ["", ",iface=u", "net_null0, size=64"] {
            let error = fault(&format!("adapter = \"dpdk\"\ndevargs = \"{wrong}\""));
            assert!(error.contains("port[0].devargs: \"") && error.contains("a device of DPDK"), "{error}");
        }
    }
}

/// What the guide shows is accepted.
#[test]
fn the_guide_is_right() {
    let guide = include_str!("../../../docs/guide/configuration.md");
    let blocks: Vec<&str> =
        guide.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() >= 2, "{} blocks", blocks.len());
    for block in &blocks {
        // The example of policing stands beside the port that another one shows.
        let port = if block.starts_with("[policing]") { "[[port]]\ndevice = \"eth1\"\n" } else { "" };
        if let Err(error) = Config::parse(&format!("{port}{block}")) {
            panic!("{error}\n{block}");
        }
    }
    let scheduled = blocks.iter().find(|block| block.contains("[[schedule]]")).unwrap();
    let config = Config::parse(scheduled).unwrap();
    assert_eq!(config.schedules[0].admin.control_list[0].states, GateStates::from_bits(128));
}

#[test]
fn the_clocks_policy_and_its_source() {
    use crate::config::ClockSource;
    use ktsn_model::UnsynchronisedPolicy;
    let read = |daemon: &str, policy: &str| {
        Config::parse(&format!("[daemon]\n{daemon}\n[[port]]\ndevice = \"uplink0\"\n{policy}\n"))
    };
    let default = read("", "").unwrap();
    assert_eq!((default.daemon.clock_source, default.daemon.clock_error_max), (ClockSource::Kernel, None));
    assert_eq!(default.ports[0].unsynchronised, UnsynchronisedPolicy::Send);
    for (word, policy) in [
        ("send", UnsynchronisedPolicy::Send),
        ("hold", UnsynchronisedPolicy::Hold),
        ("drop", UnsynchronisedPolicy::Drop),
    ] {
        let config = read(
            "clock_source = \"ptp4l\"\nclock_error_max = \"50us\"",
            &format!("unsynchronised = {word:?}"),
        );
        let config = config.unwrap();
        assert_eq!(config.ports[0].unsynchronised, policy);
        let (source, most) = (config.daemon.clock_source, config.daemon.clock_error_max);
        assert_eq!((source, most), (ClockSource::Ptp4l, Some(Nanos::from_micros(50))));
    }
    let wrong = |daemon: &str, policy: &str| read(daemon, policy).unwrap_err().to_string();
    let text = wrong("", "unsynchronised = \"wait\"");
    assert!(text.contains("port[0].unsynchronised") && text.contains("send, hold or drop"), "{text}");
    let text = wrong("clock_source = \"ntp\"", "");
    assert!(text.contains("daemon.clock_source") && text.contains("kernel, ptp4l or chrony"), "{text}");
    let text = wrong("clock_error_max = \"0s\"", "");
    assert!(text.contains("daemon.clock_error_max"), "{text}");
}
