// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench datapaths` with guests: frames pass both ways, TCG is said in each row, a guest that is killed ends the experiment with its
//! name and leaves nothing. Nothing here judges a time.

use std::process::{Command, Output, Stdio};

use ktsn_eventually::eventually;
use ktsn_tests::cli::{folder, ktsn};
use ktsn_tests::two_hosts::{CLOSE, Hosts};
use serde_json::Value;

use super::bench::{guests, namespaces_of};
use super::{Cache, LONG, image, skip, wait_until_gone};

fn bench(cache: &Cache, arguments: &[&str]) -> Command {
    let mut command = ktsn();
    command.args(["bench", "datapaths", "--functional", "--rounds=1", "--accelerator=tcg"]).args(arguments);
    // The lock of measurements is the test's own.
    command.current_dir(cache.0.path()).env("KTSN_VM_CACHE", cache.0.path());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn frames_pass_a_guest_both_ways_and_its_rows_stand_apart() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let arguments = ["--seconds=0.1", "--ends=both", "--path=macvtap,tap-xdp"];
    let run = bench(&cache, &[&arguments[..], &["--json=d.json", "--report=d.html", "--records"]].concat());
    let run = { run }.spawn().unwrap();
    let pid = run.id();
    let Output { status, stderr, .. } = run.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let document: Value =
        serde_json::from_slice(&std::fs::read(cache.0.path().join("d.json")).unwrap()).unwrap();
    let series = document["series"].as_array().unwrap();
    let all: Vec<&Value> = series.iter().filter(|one| one["round"] == "all").collect();
    // Two paths, two kinds of ends, two directions, two loads.
    assert_eq!(all.len(), 16, "{document:#}");
    for one in all {
        let is_guest = one["path"].as_str().unwrap().starts_with("guest-");
        let (accelerator, clock) =
            if is_guest { ("tcg".into(), "vptp".into()) } else { (Value::Null, Value::Null) };
        assert_eq!((&one["accelerator"], &one["clock"]), (&accelerator, &clock), "{one}");
        assert_eq!(one["lost_uncounted"], 0, "{one}");
        // A busy machine makes a guest late: its frames may be lost, but each with a counter.
        assert!(one["frames_received"].as_u64().unwrap() > 0, "{one}");
        // The kernels' stamps lie between the programs' instants: one clock, in guest and host.
        let p50 = |metric: &str| one[metric]["p50"].as_i64().unwrap();
        assert!(p50("network_latency_ns") > 0, "{one}");
        if is_guest {
            assert!(p50("latency_ns") > p50("network_latency_ns"), "{one}");
        }
    }
    let comparisons = document["comparisons"].as_array().unwrap();
    let mixed = comparisons.iter().find(|one| {
        let is_guest = |name: &str| one[name].as_str().map(|path| path.starts_with("guest-"));
        is_guest("to").is_some_and(|to| Some(to) != is_guest("of"))
    });
    assert_eq!(mixed, None);
    let checks = document["checks"].as_array().unwrap();
    let clocks =
        checks.iter().filter(|check| check["name"].as_str().unwrap().ends_with("has the host's time"));
    assert_eq!(clocks.filter(|check| check["outcome"] == "passed").count(), 2, "{checks:?}");
    let page = std::fs::read_to_string(cache.0.path().join("d.html")).unwrap();
    assert!(page.contains("“datapaths”: without guests") && page.contains("“datapaths”: guests under TCG"));
    assert!(cache.0.path().join("records/guest-tap-xdp-64-ingress-udp.csv.zst").is_file());
    assert_eq!((namespaces_of(pid), cache.records()), (0, 0));
}

/// The remote host is another one, the guest is here.
#[test]
fn frames_pass_between_a_guest_and_another_host() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let (cache, hosts, ktsn) = (Cache::new(image, true), Hosts::held(), folder().join("ktsn"));
    let arguments = ["datapaths", "--rounds=1", "--seconds=0.1", "--ends=guest", "--accelerator=tcg"];
    let mut run = hosts.bench([&ktsn, &ktsn], &arguments);
    run.current_dir(cache.0.path()).env("KTSN_VM_CACHE", cache.0.path()).args(CLOSE);
    run.args(["--path=tap-bridge", "--json=d.json"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let run = run.spawn().unwrap();
    let pid = run.id();
    let Output { status, stderr, .. } = run.wait_with_output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let document: Value =
        serde_json::from_slice(&std::fs::read(cache.0.path().join("d.json")).unwrap()).unwrap();
    let series = document["series"].as_array().unwrap();
    let all: Vec<&Value> = series.iter().filter(|one| one["round"] == "all").collect();
    // Two directions, two loads.
    assert_eq!(all.len(), 4, "{document:#}");
    for one in all {
        assert_eq!((&one["path"], &one["accelerator"]), (&"guest-tap-bridge".into(), &"tcg".into()), "{one}");
        assert_eq!(one["lost_uncounted"], 0, "{one}");
        assert!(one["frames_received"].as_u64().unwrap() > 0, "{one}");
    }
    assert_eq!(document["parameters"]["hosts"]["clock_bound_ns"], 220_302);
    assert_eq!((namespaces_of(pid), cache.records()), (0, 0));
}

#[test]
fn a_killed_guest_ends_the_experiment_and_nothing_is_left() {
    let image = match image() {
        Ok(image) => image,
        Err(reason) => return skip(reason),
    };
    let cache = Cache::new(image, true);
    let run = bench(&cache, &["--seconds=60", "--ends=guest", "--path=tap-bridge", "--json=d.json"]);
    let run = { run }.spawn().unwrap();
    let pid = run.id();
    let [qemu] = eventually("QEMU starts", LONG, || <[u32; 1]>::try_from(guests(cache.0.path())).ok());
    Command::new("kill").args(["-KILL", &qemu.to_string()]).status().unwrap();
    let Output { status, stderr, .. } = run.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the guest"), "{said}");
    wait_until_gone(qemu);
    assert!(!cache.0.path().join("d.json").exists());
    assert_eq!((namespaces_of(pid), cache.records()), (0, 0));
}

#[test]
fn a_station_refuses_to_run_outside_of_a_guest() {
    let output = ktsn().args(["vm", "station", "lo"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("runs in a guest"));
}
