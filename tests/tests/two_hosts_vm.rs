// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench vm` with the subscriber's host on another machine, without guests: between two network namespaces with a sshd of the test's
//! own, as a user runs it. tests/vm_bench.rs has the guests. Nothing here judges a time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ktsn_tests::cli::{err, out};
use ktsn_tests::two_hosts::{CHRONY, CLOSE, Hosts, Programs, ssh_of};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(30);
const NO_GUESTS: [&str; 4] = ["vm", "--datapath=no-vm", "--payload=16,256", "--rounds=1"];

fn bench(hosts: &Hosts, programs: &Programs, arguments: &[&str]) -> Command {
    let mut command = hosts.bench([&programs.ktsn(), &programs.ktsn()], &NO_GUESTS);
    command.args(CLOSE).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_subscriber_is_on_another_host() {
    let (hosts, programs) = (Hosts::held(), Programs::new());
    let arguments =
        ["--schedule=send,ktsnd", "--seconds=0.3", "--json=v.json", "--report=v.html", "--records"];
    let output = bench(&hosts, &programs, &arguments).output().unwrap();
    assert!(output.status.success(), "{}\n{}", out(&output), err(&output));
    let at = |name: &str| hosts.at("here").join(name);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(at("v.json")).unwrap()).unwrap();
    let all: Vec<&Value> =
        document["series"].as_array().unwrap().iter().filter(|series| series["round"] == "all").collect();
    // Two schedules, two loads, two payloads.
    assert_eq!(all.len(), 8);
    for series in all {
        let count = |name: &str| series[name].as_u64().unwrap();
        assert_eq!((count("frames_sent"), count("frames_received") + count("lost")), (300, 300), "{series}");
        assert!(count("frames_received") > 150 && series["latency_ns"]["min"].is_i64(), "{series}");
        assert_eq!(series["load"] == "udp", series["load_bit_rate"].as_f64() > Some(1e6), "{series}");
    }
    // Both hosts' counters: each lost frame has a reason.
    let checks = document["checks"].as_array().unwrap();
    assert!(checks.len() == 4 && checks.iter().all(|check| check["outcome"] == "passed"), "{checks:?}");
    let two = &document["parameters"]["hosts"];
    assert_eq!((&two["clock_bound_ns"], &two["remote"]), (&220_302.into(), &"ssh:peer".into()));
    assert!(document["parameters"]["clock"].as_str().unwrap().contains("two machines"));
    let page = std::fs::read_to_string(at("v.html")).unwrap();
    assert!(page.contains("220302") && page.contains("Two hosts"), "the bound is not in the report");
    assert!(out(&output).contains("clocks within 220302 ns (asked for: 1000000 ns)"), "{}", out(&output));
    hosts.wait_until_clean();
}

#[test]
fn clocks_that_are_no_longer_held_leave_no_result() {
    let (hosts, programs) = (Hosts::held(), Programs::new());
    let once = format!("[ -e {0} ] || {{ touch {0}; echo '{CHRONY}'; }}", hosts.at("asked").display());
    hosts.script("there/chronyc", &once);
    let arguments = ["--schedule=send", "--load=idle", "--seconds=0.1", "--json=no.json"];
    let output = bench(&hosts, &programs, &arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert!(err(&output).contains("no result: the clock of ssh:peer is not held"), "{}", err(&output));
    assert!(!hosts.at("here").join("no.json").exists());
    hosts.wait_until_clean();
}

#[test]
fn a_connection_that_is_cut_under_traffic_leaves_nothing() {
    let (hosts, programs) = (Hosts::held(), Programs::new());
    let arguments = ["--schedule=send", "--load=udp", "--seconds=60", "--json=no.json"];
    let running = bench(&hosts, &programs, &arguments).spawn().unwrap();
    let until = Instant::now() + LONG;
    let flows = || {
        let listens = hosts.there().args(["sh", "-c", "pgrep -f 'iperf3.*--server'"]).output().unwrap();
        listens.status.success() && hosts.namespaces_there().lines().count() == 2
    };
    while !flows() || ssh_of(running.id()).is_none() {
        assert!(Instant::now() < until, "no run");
        std::thread::sleep(Duration::from_millis(50));
    }
    let ssh = ssh_of(running.id()).unwrap();
    assert!(Command::new("kill").args(["-KILL", &ssh.to_string()]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ssh:peer: the connection ended in the middle of"), "{said}");
    assert!(!hosts.at("here").join("no.json").exists());
    hosts.wait_until_clean();
}
