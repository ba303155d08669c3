// SPDX-License-Identifier: Apache-2.0
//! Guests behind a private OVS-DPDK, by vhost-user: frames reach the other guest, and a switch that is killed under traffic ends the
//! experiment by name and leaves nothing. Needs huge pages, so it is a suite of `make test-dpdk`.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, ktsn, out};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(100);

/// `ktsn bench vm` with these arguments, in a directory with a lock of its own; `None` where there is no image, with the skip's line.
fn bench(directory: &Path, arguments: &[&str]) -> Option<Command> {
    let image = ktsn().args(["vm", "image"]).output().expect("ktsn starts");
    if image.status.code() == Some(3) && err(&image).contains("cannot be fetched") {
        println!("SKIP guest_packages_missing: {}", err(&image).lines().next().unwrap_or_default());
        return None;
    }
    assert!(image.status.success(), "{}", err(&image));
    let mut command = ktsn();
    command.args([
        "bench",
        "vm",
        "--functional",
        "--accelerator",
        "tcg",
        "--payload",
        "64",
        "--load",
        "idle",
    ]);
    command.args(["--datapath", "ovs-dpdk"]).args(arguments).current_dir(directory);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    Some(command)
}

/// The reason why the row could not be tried, by the skip's name.
fn skipped(document: &Value) -> Option<String> {
    let check = document["checks"].as_array()?.iter().find(|check| check["outcome"] == "skipped")?;
    let reason = check["reason"].as_str()?;
    let name = if reason.contains("huge pages") { "huge_pages_missing" } else { "ovs_dpdk_missing" };
    Some(format!("SKIP {name}: {reason}"))
}

/// The processes below `parent` whose program has this name.
fn below(parent: u32, name: &str) -> Vec<u32> {
    let mut found = Vec::new();
    for thread in std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten() {
        let children = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|number| number.parse().ok()) {
            let called = std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default();
            if called.trim().starts_with(name) {
                found.push(child);
            }
            found.extend(below(child, name));
        }
    }
    found
}

fn left_of(run: u32) -> usize {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    names.filter(|name| name.file_name().to_string_lossy().starts_with(&format!("ktsnlab-{run}-"))).count()
}

fn huge_pages() -> String {
    std::fs::read_to_string("/proc/sys/vm/nr_hugepages").unwrap()
}

#[test]
fn frames_pass_two_switches_and_lost_ones_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let before = huge_pages();
    // Not etf, whose setup is tested elsewhere: beside a switch that polls, two emulated guests are at times too slow for it.
    let Some(mut run) =
        bench(directory.path(), &["--schedule", "send", "--seconds", "0.5", "--json", "vm.json"])
    else {
        return;
    };
    let run = run.spawn().unwrap();
    let pid = run.id();
    let output = run.wait_with_output().unwrap();
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    let text = std::fs::read(directory.path().join("vm.json")).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    if let Some(line) = skipped(&document) {
        return println!("{line}");
    }
    let series = &document["series"][0];
    let count = |name: &str| series[name].as_u64().unwrap();
    assert_eq!((&series["path"], &series["accelerator"]), (&"ovs-dpdk-send".into(), &"tcg".into()));
    assert_eq!(count("frames_received") + count("lost"), count("frames_sent"), "{document:#}");
    assert!(count("frames_sent") == 500 && count("frames_received") > 100, "{document:#}");
    assert_eq!(document["checks"][0]["outcome"], "passed", "{document:#}");
    assert_eq!((left_of(pid), huge_pages()), (0, before));
}

/// Whether it comes before the run ends.
fn comes(run: &mut Child, what: &str, is_there: impl Fn(u32) -> bool) -> bool {
    eventually(what, LONG, || {
        if is_there(run.id()) {
            return Some(true);
        }
        run.try_wait().unwrap().map(|_| false)
    })
}

#[test]
fn a_switch_that_is_killed_under_traffic_ends_the_experiment() {
    let directory = tempfile::tempdir().unwrap();
    let before = huge_pages();
    let arguments = ["--schedule", "send", "--seconds", "60", "--json", "vm.json"];
    let Some(mut run) = bench(directory.path(), &arguments) else { return };
    let mut run = run.spawn().unwrap();
    let pid = run.id();
    let is_running = comes(&mut run, "a second guest", |pid| below(pid, "qemu-system").len() == 2);
    if is_running {
        let switch = below(pid, "ovs-vswitchd")[0];
        assert!(Command::new("kill").args(["-KILL", &switch.to_string()]).status().unwrap().success());
    }
    let output = run.wait_with_output().unwrap();
    if !is_running {
        let text = std::fs::read(directory.path().join("vm.json")).unwrap_or_default();
        let document: Value = serde_json::from_slice(&text).unwrap_or_default();
        let line = skipped(&document).unwrap_or_else(|| panic!("{}", err(&output)));
        return println!("{line}");
    }
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("ovs-vswitchd ended while it was needed"), "{}", err(&output));
    assert_eq!((left_of(pid), huge_pages()), (0, before));
}
