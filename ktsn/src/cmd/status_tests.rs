// SPDX-License-Identifier: Apache-2.0
//! What people and programs read from made answers.

use super::*;

fn filter() -> v1::StreamFilterStatistics {
    v1::StreamFilterStatistics {
        stream_filter_instance_id: 30,
        stream_handle: Some(3),
        flow_meter_ref: Some(8),
        matching_frames_count: 5_000,
        red_frames_count: 4_321,
        mark_all_frames_red: true,
        ..Default::default()
    }
}

fn detached() -> v1::AttachmentStatistics {
    let dropped = [("detached".into(), 12)].into();
    v1::AttachmentStatistics { taken: 70_707, dropped, ..Default::default() }
}

fn worker() -> v1::WorkerStatistics {
    v1::WorkerStatistics { uplink: "up0".into(), wake_ups: 99, spin_margin_ns: 38_000, ..Default::default() }
}

fn made() -> Answers {
    let attachment = json!({
        "name": "pod/eth0", "netns": "/run/netns/pod", "interface": "eth0",
        "overlay": { "vxlan": { "vni": 7 } },
    });
    let stream = v1::Stream { cookie: 4711, local: "10.0.0.2:5000".into(), peer: String::new() };
    let clients =
        vec![v1::Client { pid: 42, streams: vec![stream], ..Default::default() }, v1::Client::default()];
    let statistics = v1::AttachmentStatistics {
        name: "pod/eth0".into(),
        taken: 1_000,
        dropped: [("no_route".into(), 2), ("missed".into(), 30), ("bug".into(), 0), ("newer".into(), 1)]
            .into(),
        transmit_error: Some(v1::Histogram {
            count: 968,
            p50: 80,
            p90: 450,
            p99: 12_300,
            max: 70_000,
            ..Default::default()
        }),
        ..Default::default()
    };
    Answers {
        others: vec!["/run/ktsn-run.7.0".into()],
        version: v1::VersionReply { version: "0.1.0".into(), ring_abi_min: 1, ring_abi_max: 1 },
        health: v1::HealthReply {
            serving: true,
            warnings: vec!["memory is not locked".into()],
            ..Default::default()
        },
        list: v1::ListReply {
            ports: vec![v1::Port {
                device: "up0".into(),
                adapter: "af_packet".into(),
                adapter_reason: "EBUSY".into(),
                schedule: "three-classes".into(),
                ..Default::default()
            }],
            attachments: vec![v1::AttachmentState {
                name: "pod/eth0".into(),
                attachment: attachment.to_string(),
                clients,
                ..Default::default()
            }],
        },
        statistics: v1::StatisticsReply {
            attachments: vec![statistics],
            workers: vec![worker()],
            ports: vec![v1::PortStatistics {
                device: "up0".into(),
                stream_filters: vec![filter()],
                refused: [("no_buffer".to_owned(), 4), ("dropped".to_owned(), 1)].into(),
                retried: 3,
                ..Default::default()
            }],
            detached: Some(detached()),
            ..Default::default()
        },
        gates: vec![v1::ScheduleState {
            port: "up0".into(),
            is_open: true,
            gate_enabled: true,
            transmission_overrun: vec![0, 0, 0, 0, 0, 0, 5, 0],
            ..Default::default()
        }],
        peers: None,
        guest_clock: serde_json::from_value(follower()).ok(),
    }
}

/// What `ktsn clock follow` keeps.
fn follower() -> Value {
    json!({
        "state": "hold-over", "updated_at_ns": 1, "discipline": "self", "error_ns": -40, "error_bound_ns": 312, "page_age_ns": 900_000_000,
        "exchanges": 3, "exchange_failures": 0, "round_trip_ticks": 900, "steps": 1, "cpu_ns": 5, "events": [],
    })
}

#[test]
fn the_tables_hold_everything() {
    let text = text_of(Path::new("/run/ktsn"), &made());
    assert!(text.contains("another ktsnd, beside a program, in /run/ktsn-run.7.0"), "{text}");
    assert!(text.contains("guest's clock hold-over: CLOCK_REALTIME is -40 ns off the host's"), "{text}");
    assert!(text.contains("bound 312 ns, page 900.00 ms old"), "{text}");
    for part in [
        "ktsnd 0.1.0 in /run/ktsn: serving, ring ABI 1-1",
        "clock NOT SYNCHRONISED, TAI - UTC = 0 s",
        "warning: memory is not locked",
        "EBUSY",
        "running  three-classes",
        "up0: 5 transmission overruns",
        "up0: not taken 1 dropped, 4 no_buffer; 3 frames left when tried again",
        "4321  mark-all-frames-red",
        "DOWN",
        "vxlan 7",
        "4711",
        "10.0.0.2:5000",
        "12.30 µs",
        "38.00 µs",
        "pod/eth0: dropped: missed 30, no_route 2, newer 1 (0: invalid_time ",
        "(detached)  70707",
        "(detached): dropped: detached 12 (0: ",
        "pod/eth0: passed to the kernel: none (0: no_txtime ",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(!text.contains("missed 30, no_route 2, newer 1 (0: missed"), "{text}");
}

#[test]
fn an_idle_daemon_is_shown_too() {
    let text = text_of(Path::new("/run/ktsn"), &Answers::default());
    assert!(text.contains("NOT SERVING") && text.contains("Attachments: 0"), "{text}");
}

#[test]
fn json_holds_the_same() {
    let value = json_of(Path::new("/run/ktsn"), &made());
    assert_eq!(value["attachments"][0]["clients"][0]["streams"][0]["cookie"], 4711);
    assert_eq!(value["statistics"]["attachments"][0]["dropped"]["missed"], 30);
    assert_eq!(value["statistics"]["attachments"][0]["transmit_error_ns"]["p99"], 12_300);
    assert_eq!(value["statistics"]["workers"][0]["spin_margin_ns"], 38_000);
    assert_eq!(value["statistics"]["ports"][0]["stream_filters"][0]["red-frames-count"], 4_321);
    assert_eq!(value["statistics"]["ports"][0]["refused"]["no_buffer"], 4);
    assert_eq!(value["statistics"]["ports"][0]["retried"], 3);
    assert_eq!(value["statistics"]["ports"][0]["stream_filters"][0]["priority-spec"], Value::Null);
    assert_eq!(value["statistics"]["detached"]["dropped"]["detached"], 12);
    assert_eq!(value["ports"][0]["adapter_reason"], "EBUSY");
    assert_eq!(value["ports"][0]["gates"]["gates"], "running");
}
