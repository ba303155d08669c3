// SPDX-License-Identifier: Apache-2.0
//! `[policing]`: a whole document, and every fault with its leaf, value and expectation.

use ktsn_model::Priority;
use ktsn_sched::policing::{FlowKey, FrameKey, StreamGateState, StreamHandle, StreamMatch};
use ktsn_time::{Nanos, Tai};

use super::*;

pub(super) const GOOD: &str = r#"
[[port]]
device = "uplink0"
[[attachment]]
name = "tenant-b/eth0"
netns = "b"
interface = "eth0"
uplink = "uplink1"

[policing]
ports = ["uplink0"]
[[policing.stream-identity]]
handle = 2
attachment = "tenant-b/eth0"
ip-stream-identification = { ip-destination = "10.244.1.0/24", next-protocol = "udp", destination-port = 5000 }
[[policing.stream-identity]]
handle = 1
attachment = "tenant-b/eth0"
[[policing.stream-identity]]
handle = 3
null-stream-identification = { destination-mac = "02:00:00:00:00:01", vlan = 5 }

[[policing.stream-filter-instance-table]]
stream-filter-instance-id = 20
stream-handle = 1
flow-meter-ref = 7
[[policing.stream-filter-instance-table]]
stream-filter-instance-id = 10
stream-handle = 2
priority-spec = 3
max-sdu-size = 512
stream-blocked-due-to-oversize-frame-enabled = true
stream-gate-ref = 4

[[policing.stream-gate-instance-table]]
stream-gate-instance-id = 4
gate-enabled = true
admin-gate-states = "closed"
admin-base-time = { seconds = 1, nanoseconds = 500 }
admin-cycle-time = "1ms"
admin-control-list = [
  { gate-state-value = "open", time-interval-value = "200us", ipv-spec = 6, interval-octet-max = 1500 },
  { gate-state-value = "closed", time-interval-value = 800_000 },
]
gate-closed-due-to-invalid-rx-enabled = true

[[policing.flow-meter-instance-table]]
flow-meter-instance-id = 7
committed-information-rate = 10_000_000
committed-burst-size = 3000
drop-on-yellow = true
"#;

#[test]
fn a_whole_document() {
    let policing = Config::parse(GOOD).unwrap().policing.unwrap();
    assert!(policing.is_on("uplink0") && !policing.is_on("uplink1"));
    // Filters are tried in the order of their identifiers.
    assert_eq!(policing.filters.iter().map(|name| name.id).collect::<Vec<_>>(), [10, 20]);
    assert_eq!((policing.filters[0].stream_gate_ref, policing.filters[1].flow_meter_ref), (Some(4), Some(7)));
    let [first, second] = &policing.config.stream_filters[..] else { panic!("two filters") };
    assert_eq!((first.stream, first.priority), (Some(StreamHandle(2)), Some(Priority::capped(3))));
    assert_eq!((first.max_sdu_octets, first.stream_gate, first.flow_meter), (Some(512), Some(0), None));
    assert!(first.blocked_due_to_oversize_frame_enabled);
    assert_eq!((second.stream, second.flow_meter), (Some(StreamHandle(1)), Some(0)));
    let gate = &policing.config.stream_gates[0];
    assert!(gate.gate_enabled && gate.closed_due_to_invalid_rx_enabled);
    assert_eq!(gate.gate_state, StreamGateState::Closed);
    assert_eq!((gate.base_time, gate.cycle_time), (Tai::from_nanos(1_000_000_500), Nanos::from_millis(1)));
    let [open, closed] = &gate.control_list[..] else { panic!("two entries") };
    assert_eq!((open.interval, open.ipv), (Nanos::from_micros(200), Some(Priority::capped(6))));
    assert_eq!((open.interval_octet_max, closed.interval_octet_max), (Some(1500), None));
    assert_eq!((closed.state, closed.interval), (StreamGateState::Closed, Nanos::from_micros(800)));
    let meter = policing.config.flow_meters[0];
    assert_eq!((meter.committed_information_rate, meter.committed_burst_size), (10_000_000, 3000));
    assert!(meter.drop_on_yellow);
}

/// An entry with an attachment is for its frames alone; of several that match, the first one counts.
#[test]
fn streams_are_told_apart_by_attachment() {
    let policing = Config::parse(GOOD).unwrap().policing.unwrap();
    let flow = FlowKey {
        source: "10.244.0.5".parse().unwrap(),
        destination: "10.244.1.7".parse().unwrap(),
        protocol: 17,
        source_port: Some(40_000),
        destination_port: Some(5000),
    };
    let elsewhere = FlowKey { destination_port: Some(5001), ..flow };
    let key =
        |vlan, flow| FrameKey { attachment: 9, destination: [2, 0, 0, 0, 0, 1], vlan, flow: Some(flow) };
    let table = policing.identification("tenant-b/eth0").unwrap();
    assert_eq!(table.identify(&key(None, flow)), Some(StreamHandle(2)));
    assert_eq!(table.identify(&key(Some(5), elsewhere)), Some(StreamHandle(1)));
    let other = policing.identification("tenant-c/eth0").unwrap();
    assert_eq!(other.identify(&key(None, flow)), None);
    assert_eq!(other.identify(&key(Some(5), flow)), Some(StreamHandle(3)));
    assert!(matches!(policing.identities[2].identity.matches, StreamMatch::MacVlan { vlan: Some(5), .. }));
}

/// What is written, what instead, and what is said about it; F, G and M stand for the tables.
const FAULTS: &[(&str, &str, &str)] = &[
    (
        "ports = [\"uplink0\"]",
        "ports = [\"upling\"]",
        "policing.ports[0]: \"upling\": expected the device of",
    ),
    ("ports = [\"uplink0\"]", "ports = []", "policing.ports: \"[]\": expected at least one"),
    ("ports = [\"uplink0\"]", "port = \"uplink0\"", "unknown field `port`"),
    ("handle = 3\n", "", "policing.stream-identity[2].handle: missing"),
    (
        "handle = 1\nattachment = \"tenant-b/eth0\"",
        "handle = 1",
        "policing.stream-identity[1]: missing; expected attachment,",
    ),
    (
        "handle = 1\nattachment = \"tenant-b/eth0\"",
        "handle = 1\nattachment = \"\"",
        "stream-identity[1].attachment: \"\": expected the name",
    ),
    (
        "02:00:00:00:00:01",
        "02:00",
        "stream-identity[2].null-stream-identification.destination-mac: \"02:00\": expected six octets",
    ),
    ("vlan = 5", "vlan = 4095", "null-stream-identification.vlan: \"4095\": expected 1 to 4094"),
    (
        "10.244.1.0/24",
        "10.244.1.1/24",
        "ip-stream-identification.ip-destination: \"10.244.1.1/24\": expected a prefix",
    ),
    (
        "ip-destination =",
        "ip-source = \"fd00::/8\", ip-destination =",
        "ip-source: \"fd00::/8\": expected a prefix of the same family",
    ),
    ("next-protocol = \"udp\"", "next-protocol = \"sctp\"", "next-protocol: \"sctp\": expected udp, tcp or"),
    ("next-protocol = \"udp\"", "next-protocol = 256", "next-protocol: \"256\": expected 0 to 255"),
    ("destination-port = 5000", "destination-port = 0", "destination-port: \"0\": expected 1 to 65535"),
    (
        "handle = 3\n",
        "handle = 3\nip-stream-identification = {}\n",
        "null-stream-identification: \"\": expected either",
    ),
    ("stream-filter-instance-id = 10\n", "", "{F}[1].stream-filter-instance-id: missing"),
    ("instance-id = 10\n", "instance-id = 20\n", "{F}[1].stream-filter-instance-id: \"20\" is used twice"),
    ("stream-handle = 1", "stream-handle = 9", "{F}[0].stream-handle: \"9\": expected the handle of"),
    ("priority-spec = 3", "priority-spec = 16", "{F}[1].priority-spec: \"16\": expected 0 to 15"),
    ("max-sdu-size = 512", "max-sdu-size = 0", "{F}[1].max-sdu-size: \"0\": expected 1 to 65535"),
    ("max-sdu-size = 512", "max-sdu-size = -1", "invalid value"),
    (
        "stream-gate-ref = 4",
        "stream-gate-ref = 0",
        "{F}[1].stream-gate-ref: \"0\": expected the stream-gate-instance-id",
    ),
    (
        "flow-meter-ref = 7",
        "flow-meter-ref = 8",
        "{F}[0].flow-meter-ref: \"8\": expected the flow-meter-instance-id",
    ),
    ("stream-gate-instance-id = 4\n", "", "{G}.stream-gate-instance-id: missing"),
    ("\"closed\"\nadmin", "\"ajar\"\nadmin", "{G}.admin-gate-states: \"ajar\": expected open or closed"),
    (
        "admin-cycle-time = \"1ms\"",
        "admin-cycle-time = \"1 fortnight\"",
        "{G}.admin-cycle-time: \"1 fortnight\": expected",
    ),
    (
        "admin-cycle-time = \"1ms\"",
        "admin-cycle-time = \"10us\"",
        "{G}.admin-cycle-time: \"10 µs\": expected 50 us to 10 s",
    ),
    (
        "nanoseconds = 500",
        "nanoseconds = 1_000_000_000",
        "{G}.admin-base-time.nanoseconds: \"1000000000\": expected 0 to",
    ),
    ("\"200us\"", "0", "{G}.admin-control-list[0].time-interval-value: \"0 ns\": expected more"),
    ("gate-state-value = \"closed\", ", "", "{G}.admin-control-list[1].gate-state-value: missing"),
    ("gate-state-value = \"closed\"", "gate-state-value = 0", "invalid type"),
    ("ipv-spec = 6", "ipv-spec = 8", "{G}.admin-control-list[0].ipv-spec: \"8\": expected 0 to 7"),
    ("gate-enabled = true\n", "", "{G}.gate-enabled"),
    ("flow-meter-instance-id = 7\n", "", "{M}.flow-meter-instance-id: missing"),
    (
        "committed-burst-size = 3000",
        "committed-burst-size = 0",
        "{M}.committed-burst-size: \"0\": expected at least one frame's",
    ),
    (
        "committed-burst-size = 3000",
        "committed-burst-size = 4294967296",
        "{M}.committed-burst-size: \"4294967296\": expected 0 to",
    ),
    ("committed-burst-size = 3000", "committed_burst_size = 3000", "unknown field `committed_burst_size`"),
];

/// Each wrong value is named with its field.
#[test]
fn faults_name_leaf_value_and_expectation() {
    for (from, to, message) in FAULTS {
        let message = message
            .replace("{F}", "policing.stream-filter-instance-table")
            .replace("{G}", "policing.stream-gate-instance-table[0]")
            .replace("{M}", "policing.flow-meter-instance-table[0]");
        assert!(GOOD.contains(from), "{from}");
        let error = Config::parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(&message), "{to}: {error}");
    }
}

/// What polices nothing is a mistake, not a configuration; and an entry that no frame reaches is one, too.
#[test]
fn tables_that_do_nothing_are_refused() {
    let error = Config::parse("[policing]\n").unwrap_err().to_string();
    assert!(error.starts_with("policing.stream-filter-instance-table: missing"), "{error}");
    let again = "[[policing.stream-identity]]\nhandle = 8\nattachment = \"tenant-b/eth0\"\n";
    let error = Config::parse(&format!("{GOOD}{again}")).unwrap_err().to_string();
    assert!(
        error.starts_with("policing.stream-identity[3]: \"the same as [1]\": expected frames that"),
        "{error}"
    );
    let other = again.replace("tenant-b", "tenant-c");
    assert!(Config::parse(&format!("{GOOD}{other}")).is_ok());
}

#[test]
fn more_than_a_table_holds() {
    let row =
        |i: usize| format!("[[policing.stream-filter-instance-table]]\nstream-filter-instance-id = {i}\n");
    let rows = |count: usize| (0..count).map(row).collect::<String>();
    assert!(Config::parse(&rows(256)).is_ok());
    let error = Config::parse(&rows(257)).unwrap_err().to_string();
    assert!(error.contains("stream-filter-instance-table: \"257\": expected at most 256"), "{error}");
    let meters =
        (0..257).map(|i| format!("[[policing.flow-meter-instance-table]]\nflow-meter-instance-id = {i}\n"));
    let error = Config::parse(&(rows(1) + &meters.collect::<String>())).unwrap_err().to_string();
    assert!(error.contains("policing.flow-meter-instance-table: \"257\": expected at most 256"), "{error}");
}
