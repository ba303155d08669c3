// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench vm` with the subscriber's host on another machine, without guests: between two network namespaces with a sshd of the test's
//! own, as a user runs it. tests/vm_bench.rs has the guests. Nothing here judges a time.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ktsn_eventually::eventually;
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

/// Whether a program of the second host listens in a host of the experiment.
fn listens(hosts: &Hosts, sockets: [&str; 2]) -> bool {
    let namespaces = hosts.namespaces_there();
    let names = namespaces.lines().filter_map(|line| line.split(' ').next());
    names.filter(|name| name.ends_with("vb")).any(|name| {
        let command = ["ip", "netns", "exec", name, "ss"];
        !out(&hosts.there().args(command).args(sockets).output().unwrap()).is_empty()
    })
}

#[test]
fn a_subscriber_is_on_another_host() {
    let (hosts, programs) = (Hosts::held(), Programs::new());
    let arguments =
        ["--schedule=send,etf,ktsnd", "--seconds=0.3", "--json=v.json", "--report=v.html", "--records"];
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
        assert!(count("frames_received") > 150, "{series}");
        assert!(series["latency_ns"]["min"].as_i64() > Some(0), "{series}");
        assert_eq!(series["load"] == "udp", series["load_bit_rate"].as_f64() > Some(1e6), "{series}");
    }
    // Both hosts' counters: each lost frame has a reason. A macvlan has one queue: no etf.
    let checks = document["checks"].as_array().unwrap();
    let outcomes = |outcome: &str| checks.iter().filter(|check| check["outcome"] == outcome).count();
    assert_eq!((outcomes("passed"), outcomes("skipped"), checks.len()), (4, 2, 6), "{checks:?}");
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
    let ssh = eventually("the load runs", LONG, || {
        ssh_of(running.id()).filter(|_| listens(&hosts, ["-Hltn", "sport = :5201"]))
    });
    assert!(Command::new("kill").args(["-KILL", &ssh.to_string()]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ssh:peer: the connection ended in the middle of"), "{said}");
    assert!(!hosts.at("here").join("no.json").exists());
    hosts.wait_until_clean();
}

#[test]
fn what_leads_to_no_other_host_is_said_before_the_first_row() {
    let (hosts, programs) = (Hosts::held(), Programs::new());
    let refused = |uplinks: [&str; 2], expected: &str| {
        let mut command = hosts.ktsn(&programs.ktsn());
        command
            .current_dir(hosts.at("here"))
            .arg("bench")
            .args(NO_GUESTS)
            .args(["--schedule=send", "--load=idle"]);
        command.args([
            "--functional",
            "--hosts=local,ssh:peer",
            "--within=1ms",
            "--json=no.json",
            "--ssh-config",
        ]);
        command.arg(hosts.ssh_config()).arg("--remote-ktsn").arg(programs.ktsn());
        let [here, there] = uplinks;
        let output = command.args(["--uplink", here, "--remote-uplink", there]).output().unwrap();
        let said = err(&output);
        assert!(output.status.code() == Some(3) && said.contains(expected), "{:?} {said}", output.status);
        assert!(!hosts.at("here").join("no.json").exists());
    };
    refused(["nodev", "to-here"], "the device nodev cannot be the uplink");
    refused(["to-there", "nodev"], "not possible here: ssh:peer: the device nodev cannot be the uplink");
    refused(["lo", "to-here"], "the device lo cannot be the uplink");
    // A device without a cable.
    let line = "link add lonely type veth peer name alone";
    assert!(hosts.here().arg("ip").args(line.split(' ')).status().unwrap().success());
    assert!(hosts.here().args(["ip", "link", "set", "lonely", "up"]).status().unwrap().success());
    refused(["lonely", "to-here"], "no datagram passes between both hosts");
    hosts.wait_until_clean();
}

#[test]
fn a_far_side_that_is_killed_ends_the_run_soon() {
    let (hosts, programs) = (Hosts::held(), Programs::new());
    let arguments = ["--schedule=send", "--load=idle", "--seconds=60", "--json=no.json"];
    let begun = Instant::now();
    let running = bench(&hosts, &programs, &arguments).spawn().unwrap();
    let side = || {
        let all = out(&Command::new("pgrep").args(["-f", "remote side vm"]).output().unwrap());
        let of_this_test = |pid: &&str| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let place = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap_or_default();
            place.starts_with(hosts.at("scratch")) && line.windows(5).any(|word| word == b"side\0")
        };
        all.lines().find(of_this_test).map(str::to_owned)
    };
    let pid = eventually("the far side listens", LONG, || {
        if listens(&hosts, ["-Hlun", "sport = :7000"]) { side() } else { None }
    });
    assert!(Command::new("kill").args(["-KILL", &pid]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(begun.elapsed() < 2 * LONG, "{:?}", begun.elapsed());
    assert!(!hosts.at("here").join("no.json").exists());
    // The next run there removes its namespaces.
    let again = ["--schedule=send", "--load=idle", "--seconds=0.1"];
    let output = bench(&hosts, &programs, &again).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    hosts.wait_until_clean();
}
