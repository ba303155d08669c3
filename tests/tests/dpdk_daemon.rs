// SPDX-License-Identifier: Apache-2.0
//! A ktsnd that was built with DPDK, its uplink one of DPDK's ports: from an ordinary program under libktsn to the far end
//! of the wire. `net_af_packet` on a veth, no huge pages, no PCI: it shows the way, not what a card would gain.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ktsn_tests::faults::Tap;
use ktsn_tests::faults::bed::{Bed, POD_A, POD_B, POD_B6, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::talk;

const SOON: Duration = Duration::from_secs(20);

/// ktsnd with the feature.
fn ktsnd(folder: &Path) -> PathBuf {
    let program = folder.join("ktsnd-dpdk");
    ktsn_eventually::build_with("ktsnd/dpdk", &program);
    program
}

/// ktsnd on host A with this device of DPDK as its uplink.
fn prepared(bed: &Bed, program: &Path, devargs: &str) -> Daemon {
    let port = format!(
        "[[port]]\ndevice = \"{UPLINK}\"\npriority = 0\nadapter = \"dpdk\"\ndevargs = \"{devargs}\"\n"
    );
    let configuration = format!("{port}{}", Attachment::pod_a(bed).toml());
    Daemon::prepare(&bed.host_a, &configuration).of(program)
}

#[test]
fn a_program_s_datagrams_leave_on_time_by_a_port_of_dpdk() {
    const COUNT: usize = 300;
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    let program = ktsnd(folder.path());
    let mut daemon = prepared(&bed, &program, &format!("net_af_packet0,iface={UPLINK},qdisc_bypass=1"));
    daemon.spawn();
    let port =
        daemon.control().list().ports.into_iter().find(|port| port.device == UPLINK).expect("the uplink");
    assert_eq!((port.adapter.as_str(), port.adapter_reason.as_str(), port.up), ("dpdk", "", true));
    let tap = Tap::open(&bed.host_b, UPLINK);
    for (sender, to) in [(1, POD_B), (2, POD_B6)] {
        let keys = format!("count={COUNT} period_us=1000 lead_us=50000 octets=200");
        let values = talk(&daemon, &bed.pod_a, to, sender, &keys);
        assert_eq!((values["sent"], values["failed"]), (COUNT as i64, 0), "{values:?}");
        let arrived = tap.wait(sender, COUNT, SOON);
        assert_eq!(arrived.len(), COUNT);
        assert!(arrived.iter().map(|arrival| arrival.sequence).eq(0..COUNT as u64), "once, in order");
        assert!(arrived.iter().all(|arrival| arrival.is_overlay && arrival.destination.to_string() == to));
        assert!(to != POD_B || arrived.iter().all(|arrival| arrival.source.to_string() == POD_A));
        let mut after: Vec<i64> = arrived.iter().map(|arrival| arrival.after_ns).collect();
        after.sort_unstable();
        println!("to {to}: after its TxTime p50 {} ns, p90 {} ns", after[COUNT / 2], after[COUNT * 9 / 10]);
    }
    // A port that ignores TxTime would be 50 ms early.
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let all = 2 * COUNT as u64;
    let counters = daemon.control().counters_of(NAME, all, SOON);
    assert_eq!((counters.taken, counters.sent, counters.dropped.len()), (all, all, 0), "{counters:?}");
    let ports = daemon.control().statistics_of("").expect("statistics").ports;
    let uplink =
        ports.iter().find(|port| port.device == UPLINK && port.netns.is_empty()).expect("the uplink");
    assert_eq!(uplink.frames.iter().sum::<u64>(), all);
    assert_eq!(daemon.terminate(SOON), Some(0), "{}", daemon.log());
}

#[test]
fn a_device_that_dpdk_does_not_have_is_named_and_waited_for() {
    let (bed, folder) = (Bed::new(), tempfile::tempdir().expect("folder"));
    let program = ktsnd(folder.path());
    let mut daemon = prepared(&bed, &program, "net_af_packet0,iface=none-such");
    daemon.spawn();
    let health = daemon.control().health().expect("health");
    let warning = health.warnings.iter().find(|text| text.contains("is not attached"));
    assert!(warning.is_some_and(|text| text.contains("iface=none-such")), "{health:?}");
    assert!(daemon.control().list().attachments.is_empty());
    assert_eq!(daemon.terminate(SOON), Some(0), "{}", daemon.log());
}
