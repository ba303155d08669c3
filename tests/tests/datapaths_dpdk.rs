// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench datapaths` over OVS-DPDK with vhost-user (make test-dpdk): frames both ways through the driver of `virtio-net/`, and what is
//! said without huge pages. Nothing here judges a time.

use std::process::{Command, Output};

use ktsn_tests::cli::{err, folder, ktsn, out};

const SHORT: [&str; 6] =
    ["bench", "datapaths", "--functional", "--rounds=1", "--seconds=0.1", "--path=ovs-dpdk"];
const PAGES: &str = "/proc/sys/vm/nr_hugepages";

fn pages() -> String {
    std::fs::read_to_string(PAGES).expect("a kernel with huge pages")
}

/// Whether the switch cannot be had here; then the skip is printed.
fn is_skipped(output: &Output) -> bool {
    let text = err(output);
    let name = match () {
        () if output.status.code() != Some(3) => return false,
        () if text.contains("huge pages") => "huge_pages_missing",
        () if text.contains("openvswitch-switch-dpdk") => "ovs_dpdk_missing",
        () => panic!("{text}"),
    };
    println!("SKIP {name}: {}", text.trim());
    true
}

#[test]
fn frames_pass_vhost_user_both_ways_and_the_pages_come_back() {
    let (directory, before) = (tempfile::tempdir().unwrap(), pages());
    let output = ktsn().current_dir(directory.path()).args(SHORT).arg("--json=d.json").output().unwrap();
    assert_eq!(pages(), before, "huge pages are given back");
    if is_skipped(&output) {
        return;
    }
    assert!(output.status.success(), "{}\n{}", out(&output), err(&output));
    let text = std::fs::read_to_string(directory.path().join("d.json")).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let series = document["series"].as_array().unwrap();
    let all: Vec<_> = series.iter().filter(|series| series["round"] == "all").collect();
    assert_eq!(all.len(), 4, "{text}");
    for series in all {
        assert_eq!(series["lost_uncounted"], 0, "{series}");
        let received = series["frames_received"].as_u64().unwrap();
        assert!(received >= 50, "{series}");
    }
}

/// A process that may not reserve huge pages (a read-only /proc/sys) hears of it, and nothing stays.
#[test]
fn without_huge_pages_it_is_said_and_nothing_stays() {
    if ktsn_lab::ovs::missing().is_some() {
        println!("SKIP ovs_dpdk_missing: Debian's openvswitch-switch-dpdk is not installed");
        return;
    }
    let (directory, before) = (tempfile::tempdir().unwrap(), pages());
    // A file in place of the kernel's: it says 0, whatever is written.
    let script = format!(
        "printf '0\\n' >p && mount --bind p {PAGES} && mount -o remount,ro,bind {PAGES} && exec \"$@\""
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(folder().join("ktsn")).args(SHORT);
    let output = command.current_dir(directory.path()).output().unwrap();
    assert_ne!(output.status.code(), Some(0), "{}", out(&output));
    assert!(err(&output).contains("nr_hugepages"), "{}", err(&output));
    assert_eq!(pages(), before);
}
