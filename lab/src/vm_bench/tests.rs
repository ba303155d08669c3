// SPDX-License-Identifier: Apache-2.0
//! Plans, scripts, what scripts write, and comparisons. tests/tests/vm_bench.rs and ovs_guests.rs run guests.

use super::plan::{Datapath, Keeper, Load, Plan};
use super::script::{End, Files, publisher, subscriber};
use super::{bars, site};
use crate::experiment::Setup;
use crate::vm::protocol::Clock;
use crate::vm::{Accelerator, Cache, Choice};
use ktsn_measure::results::{Check, Document, Round, Series};
use ktsn_measure::stats::Statistics;
use ktsn_time::Nanos;
use std::time::Duration;

pub(super) fn plan() -> Plan {
    Plan {
        datapaths: vec![Datapath::NoVm, Datapath::Bridge],
        keepers: vec![Keeper::Send, Keeper::Ktsnd],
        loads: vec![Load::Idle, Load::Udp],
        payloads: vec![16, 256],
        period: Nanos::from_millis(1),
        frames: 500,
        rounds: 2,
        load_mbit: 100,
        boot_within: Duration::from_secs(60),
        clock: Clock::None,
        choice: Choice { accelerator: Accelerator::Tcg, reason: "test".to_owned() },
        cache: Cache::find(Some("/nowhere".as_ref())),
        hosts: None,
        setup: Setup::nowhere(),
    }
}

#[test]
fn a_plan_has_each_row_and_refuses_what_cannot_be() {
    let whole = plan();
    whole.check().unwrap();
    assert_eq!((whole.rows().len(), whole.traffic()), (8, Duration::from_secs(1)));
    assert_eq!(whole.rows()[3].path(), "bridge-ktsnd");
    for (wrong, words) in [
        (Plan { payloads: vec![15], ..plan() }, "payload 15: expected 16 to 1472"),
        (Plan { payloads: vec![1473], ..plan() }, "payload 1473"),
        (Plan { payloads: vec![64, 64], ..plan() }, "64 is named twice"),
        (Plan { keepers: Vec::new(), ..plan() }, "schedule: expected one at least"),
        (Plan { frames: 0, ..plan() }, "0 frames every"),
        (Plan { period: Nanos::from_micros(50), ..plan() }, "a period of 100 us at least"),
    ] {
        let error = wrong.check().unwrap_err();
        assert!(error.to_string().contains(words) && error.exit_status() == 2, "{error}");
    }
}

#[test]
fn the_scripts_are_shell_and_name_their_schedule() {
    let end = End {
        device: "eth0",
        peer: site::Addresses::HERE.ends[1],
        peer_mac: site::mac_of(site::Addresses::HERE.ends[1]),
        directory: "/tmp/end".to_owned(),
        fifo: Some(50),
        cpu: None,
    };
    assert_eq!(end.peer_mac, "02:4b:0a:4d:00:03");
    let mut scripts: Vec<String> = Keeper::ALL.map(|keeper| publisher(&plan(), &end, keeper)).into();
    for (script, words) in scripts.iter().zip(["--mode sleep", "--mode etf --classes 2", "--mode ktsnd"]) {
        assert!(script.contains(words) && script.contains("--first-sequence 500"), "{script}");
        // What sets a device up also takes it back, and nothing else touches its qdiscs.
        let [set_up, taken_back] =
            ["ktsn guest setup ", "ktsn guest undo "].map(|line| script.matches(line).count());
        assert!(set_up == taken_back && set_up <= 1 && !script.contains("tc qdisc add"), "{script}");
        // Two readings of ktsnd's CPU time for each payload, both written out.
        let readings = script.matches("\nbusy busy-").count();
        assert_eq!(readings, if words == "--mode ktsnd" { 2 * plan().payloads.len() } else { 0 }, "{script}");
        assert!(readings == 0 || script.contains(" busy-0-0 busy-0-1 "), "{script}");
    }
    scripts.push(subscriber(&plan(), &end));
    for script in scripts {
        let checked = std::process::Command::new("sh").args(["-n", "-c", &script]).output().unwrap();
        assert!(checked.status.success(), "{script}\n{}", String::from_utf8_lossy(&checked.stderr));
    }
}

#[test]
fn files_come_whole_in_pieces_of_any_length() {
    let written = b"== ready 0\n== a 3\nx\ny== b.zst 2\n\xff\n";
    for piece in 1..written.len() {
        let mut files = Files::default();
        written.chunks(piece).for_each(|part| files.take(part, 10).unwrap());
        assert_eq!(
            (files.get("a"), files.get("b.zst")),
            (Some(&b"x\ny"[..]), Some(&b"\xff\n"[..])),
            "{piece}"
        );
        assert!(files.has("ready") && !files.has("c"));
    }
    let refused = |octets: &[u8]| Files::default().take(octets, 10).unwrap_err();
    assert!(refused(b"hello\n").contains("begins no file"));
    assert!(refused(b"== a 11\n").contains("of 11 octets; expected 10 at most"));
    assert!(refused(b"== a -1\n").contains("begins no file"));
    assert!(refused(&[b'x'; 5000]).contains("5000 octets without a file"));
}

fn series(path: &str, accelerator: Option<&str>, p50: i64) -> Series {
    let statistics = Some(Statistics { p50, ..Statistics::default() });
    let (latency_ns, above_fastest_ns) =
        if accelerator.is_some() { (None, statistics) } else { (statistics, None) };
    Series {
        path: path.to_owned(),
        payload_octets: 64,
        load: Some("idle".to_owned()),
        accelerator: accelerator.map(str::to_owned),
        round: Round::All,
        latency_ns,
        above_fastest_ns,
        jitter_ns: statistics,
        ..Series::default()
    }
}

#[test]
fn guests_are_compared_with_guests_only() {
    let mut document = Document::new("vm", Vec::new());
    document.series = vec![
        series("no-vm-send", None, 50_000),
        series("bridge-send", Some("tcg"), 300_000),
        series("ovs-dpdk-send", Some("tcg"), 150_000),
    ];
    bars::compare(&mut document);
    let compared: Vec<_> =
        document.comparisons.iter().map(|one| (one.metric.as_str(), one.of.as_str(), one.ratio)).collect();
    assert_eq!(
        compared,
        [("above_fastest_ns.p50", "ovs-dpdk-send", Some(0.5)), ("jitter_ns.p50", "ovs-dpdk-send", Some(0.5)),]
    );
    // A latency above the fastest frame is no latency: nothing of ours stands beside the published one.
    let ours = |number: usize| document.published[number].ours.len();
    assert_eq!((ours(0), ours(1), ours(2), ours(3)), (0, 0, 0, 1));
    assert_eq!(document.published[3].ours[0].value, 50_000.0);
}

#[test]
fn ktsnd_in_a_guest_is_held_against_etf_at_the_tap() {
    let of = |keeper: &str, off: Option<i64>, lost: u64| Series {
        wire_offset_magnitude_ns: off.map(|p50| Statistics { p50, ..Statistics::default() }),
        lost: Some(lost),
        ..series(&format!("bridge-{keeper}"), Some("tcg"), 300_000)
    };
    let compared = |series: Vec<Series>| -> Vec<_> {
        let mut document = Document::new("vm", Vec::new());
        document.series = series;
        bars::compare(&mut document);
        document.comparisons.into_iter().map(|one| (one.metric, one.ratio, one.holds)).collect()
    };
    let off = "wire_offset_magnitude_ns.p50".to_owned();
    assert_eq!(
        compared(vec![of("etf", Some(400), 20), of("ktsnd", Some(100), 30)]),
        [(off.clone(), Some(0.25), Some(true)), ("lost".to_owned(), Some(1.5), Some(false))]
    );
    // As many are not fewer.
    assert_eq!(
        compared(vec![of("etf", Some(400), 20), of("ktsnd", Some(100), 20)])[1],
        ("lost".to_owned(), Some(1.0), Some(false))
    );
    // No ratio to nothing, and none where the guests have clocks of their own.
    assert_eq!(
        compared(vec![of("etf", Some(400), 0), of("ktsnd", Some(300), 0)]),
        [(off, Some(0.75), Some(false))]
    );
    assert!(compared(vec![of("etf", None, 20), of("ktsnd", None, 30)]).is_empty());
}

#[test]
fn a_lost_frame_without_a_reason_is_a_violation() {
    let mut document = Document::new("vm", Vec::new());
    document.checks = vec![
        Check::of("a", true, None),
        Check::skipped("b", "no etf".to_owned()),
        Check::of("c", false, Some("3 of 5 lost; counted: none".to_owned())),
    ];
    assert_eq!(bars::violations(&document), ["c: 3 of 5 lost; counted: none"]);
}
