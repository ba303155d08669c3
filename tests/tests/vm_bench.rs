// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench vm`: a publisher in one guest reaches a subscriber in another one, each lost frame has a counted reason, and a guest that is
//! killed ends the experiment with its name and leaves nothing. Nothing here judges a time.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, ktsn};
use ktsn_tests::two_hosts::{CLOSE, Hosts, Programs};
use serde_json::Value;

use super::{Cache, LONG, image, skip, wait_until_gone};

/// The namespaces of experiments of a process.
pub(super) fn namespaces_of(pid: u32) -> usize {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let begin = format!("ktsnlab-{pid}-");
    names.filter(|name| name.file_name().to_string_lossy().starts_with(&begin)).count()
}

fn bench(cache: &Cache, arguments: &[&str]) -> Command {
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
    // The lock of measurements is the test's own.
    command.args(arguments).current_dir(cache.0.path()).env("KTSN_VM_CACHE", cache.0.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The "all" entry of a path.
fn series<'a>(document: &'a Value, path: &str) -> &'a Value {
    let all = document["series"].as_array().unwrap();
    all.iter().find(|one| one["path"] == path && one["round"] == "all").unwrap_or(&Value::Null)
}

#[test]
fn frames_reach_the_other_guest_and_lost_ones_are_counted() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let json = cache.0.path().join("vm.json");
    let arguments = ["--datapath", "no-vm,bridge", "--schedule", "send", "--seconds", "0.5", "--json"];
    let mut run = bench(&cache, &arguments);
    run.arg(&json).args(["--report", "vm.html"]);
    let run = run.spawn().unwrap();
    let pid = run.id();
    let Output { status, stderr, .. } = run.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let document: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let bridge = series(&document, "bridge-send");
    assert_eq!(
        (&bridge["frames_sent"], &bridge["accelerator"]),
        (&500.into(), &"tcg".into()),
        "{document:#}"
    );
    let count = |name: &str| bridge[name].as_u64().unwrap();
    assert_eq!(count("frames_received") + count("lost"), 500, "{bridge}");
    assert!(count("frames_received") > 250, "{bridge}");
    // Both guests' clocks follow this machine's, which saw the frames at both taps.
    assert!(bridge["clock"] == "vptp" && bridge["latency_ns"]["min"].as_i64().unwrap() > 0, "{bridge}");
    assert!(bridge["taps_ns"]["min"].as_i64().unwrap() > 0, "{bridge}");
    let bare = series(&document, "no-vm-send");
    assert!(bare["accelerator"].is_null() && bare["latency_ns"]["min"].as_i64().unwrap() > 0, "{bare}");
    let checks = document["checks"].as_array().unwrap();
    assert!(checks.len() == 2 && checks.iter().all(|check| check["outcome"] == "passed"), "{checks:?}");
    assert_eq!((namespaces_of(pid), cache.records()), (0, 0));
    let page = std::fs::read_to_string(cache.0.path().join("vm.html")).unwrap();
    assert!(page.contains("“vm”: without guests") && page.contains("“vm”: guests under TCG"));
}

/// The numbers of the processes that the cache's records name.
pub(super) fn guests(cache: &Path) -> Vec<u32> {
    let records = std::fs::read_dir(cache.join("runs")).into_iter().flatten().flatten();
    let texts = records.filter_map(|record| std::fs::read_to_string(record.path()).ok());
    texts.filter_map(|text| text.split(' ').next()?.parse().ok()).collect()
}

#[test]
fn a_guest_that_is_killed_ends_the_experiment_by_name_and_leaves_nothing() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let mut run = bench(&cache, &["--datapath", "bridge", "--schedule", "send", "--seconds", "60"]);
    let run = run.spawn().unwrap();
    let pid = run.id();
    // Two boots, one after the other.
    let mut first = Vec::new();
    let publisher = eventually("a second guest", 2 * LONG, || match guests(cache.0.path())[..] {
        [one] => {
            first = vec![one];
            None
        }
        [one, other] => first.first().map(|first| if *first == one { other } else { one }),
        _ => None,
    });
    assert!(Command::new("kill").args(["-KILL", &publisher.to_string()]).status().unwrap().success());
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(err(&output).contains("the publisher's guest ended before its program did"), "{}", err(&output));
    wait_until_gone(first[0]);
    assert_eq!((namespaces_of(pid), cache.records()), (0, 0));
}

#[test]
fn the_subscriber_s_guest_is_on_another_host() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let (cache, hosts, programs) = (Cache::new(image, true), Hosts::held(), Programs::new());
    // One file system: the image of both hosts is the same.
    let there = format!(
        "export KTSN_VM_CACHE='{}'; exec '{}' \"$@\"",
        cache.0.path().display(),
        programs.ktsn().display()
    );
    let there = hosts.script("ktsn-there", &there);
    let arguments = [
        "vm",
        "--accelerator=tcg",
        "--datapath=bridge",
        "--schedule=send",
        "--payload=64",
        "--load=idle,udp",
        "--load-mbit=20",
        "--seconds=0.5",
        "--json=vm.json",
        "--report=vm.html",
    ];
    let mut run = hosts.bench([&programs.ktsn(), &there], &arguments);
    let output = run.args(CLOSE).env("KTSN_VM_CACHE", cache.0.path()).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    let text = std::fs::read(hosts.at("here").join("vm.json")).unwrap();
    let document: Value = serde_json::from_slice(&text).unwrap();
    for load in ["idle", "udp"] {
        let all = document["series"].as_array().unwrap();
        let one = all.iter().find(|one| one["load"] == load && one["round"] == "all").unwrap();
        let count = |name: &str| one[name].as_u64().unwrap();
        assert_eq!((count("frames_sent"), count("frames_received") + count("lost")), (500, 500), "{one}");
        assert!(count("frames_received") > 250 && one["accelerator"] == "tcg", "{one}");
        // Each guest's clock follows its own host's, which saw the frames at its tap.
        assert!(one["clock"] == "vptp" && one["latency_ns"]["min"].as_i64() > Some(0), "{one}");
        assert!(one["taps_ns"]["min"].as_i64() > Some(0), "{one}");
    }
    let checks = document["checks"].as_array().unwrap();
    assert!(checks.len() == 2 && checks.iter().all(|check| check["outcome"] == "passed"), "{checks:?}");
    assert_eq!(document["parameters"]["hosts"]["remote"], "ssh:peer");
    hosts.wait_until_clean();
    assert_eq!(cache.records(), 0);
}
