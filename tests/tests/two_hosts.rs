// SPDX-License-Identifier: Apache-2.0
//! Experiments whose second side runs on another host: between two network namespaces with a sshd of the test's own, as a user runs them.
//! Nothing here judges a time.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, folder, out};
use ktsn_tests::two_hosts::{CHRONY, CLOSE, Hosts, Programs, ssh_of};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(30);
fn the_loop(hosts: &Hosts, ktsn: &Path, arguments: &[&str]) -> Output {
    let common = ["loop", "--rounds=1", "--seconds=0.2", "--path=flannel"];
    let mut command = hosts.bench([&folder().join("ktsn"), ktsn], &common);
    command.args(arguments).output().expect("ktsn starts")
}

#[test]
fn a_control_loop_has_its_device_on_another_host() {
    let hosts = Hosts::held();
    let paths = ["loop", "--rounds=1", "--seconds=0.2", "--path=bare,flannel,ktsn,ktsn-short-expect"];
    let programs = Programs::new();
    let mut command = hosts.bench([&programs.ktsn(), &programs.ktsn()], &paths);
    let output =
        command.args(CLOSE).args(["--json=l.json", "--report=l.html", "--records"]).output().unwrap();
    assert!(output.status.success(), "{}\n{}", out(&output), err(&output));
    let at = |name: &str| hosts.at("here").join(name);
    let document: Value = serde_json::from_str(&std::fs::read_to_string(at("l.json")).unwrap()).unwrap();
    let all: Vec<&Value> =
        document["series"].as_array().unwrap().iter().filter(|series| series["round"] == "all").collect();
    assert_eq!(all.len(), 4);
    for series in all {
        assert_eq!((&series["frames_intended"], &series["lost"]), (&200.into(), &0.into()), "{series}");
        // What the device saw has come back.
        assert!(series["request_ns"]["p50"].is_i64(), "{series}");
    }
    // The device's own account, of each run.
    let checks = document["checks"].as_array().unwrap();
    assert_eq!(checks.len(), 4);
    assert!(checks.iter().all(|check| check["outcome"] == "passed"), "{checks:?}");
    let two = &document["parameters"]["hosts"];
    assert_eq!((&two["clock_bound_ns"], &two["clock_within_ns"]), (&220_302.into(), &1_000_000.into()));
    assert_eq!((&two["remote"], &two["clock_there"]["holder"]["by"]), (&"ssh:peer".into(), &"chrony".into()));
    assert!(two["environment_there"]["kernel"].is_string(), "{two}");
    let page = std::fs::read_to_string(at("l.html")).unwrap();
    assert!(page.contains("220302") && page.contains("Two hosts"), "the bound is not in the report");
    assert!(out(&output).contains("clocks within 220302 ns (asked for: 1000000 ns)"), "{}", out(&output));
    assert!(at("records/flannel-64.csv.zst").is_file());
    hosts.wait_until_clean();
}

#[test]
fn there_is_no_result_without_clocks_that_agree() {
    let hosts = Hosts::new();
    let other = folder().join("ktsn");
    let refused = |arguments: &[&str], expected: &str| {
        let output = the_loop(&hosts, &other, &[arguments, &["--json=no.json"]].concat());
        let said = err(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        assert!(said.contains(expected) && !hosts.at("here").join("no.json").exists(), "{said}");
    };
    refused(&CLOSE, "no result: the clock of this host is not held");
    hosts.program("here/chronyc", CHRONY);
    refused(&CLOSE, "no result: the clock of ssh:peer is not held");
    hosts.program("there/chronyc", CHRONY);
    refused(&["--remote-uplink=to-here"], "the clocks agree within 220302 ns only");
    // Held when it begins, and no longer when it ends.
    let once = format!("[ -e {0} ] || {{ touch {0}; echo '{CHRONY}'; }}", hosts.at("asked").display());
    hosts.script("there/chronyc", &once);
    refused(&CLOSE, "no result: the clock of ssh:peer is not held");
    hosts.wait_until_clean();
}

#[test]
fn what_the_other_host_lacks_is_said() {
    let hosts = Hosts::held();
    let other = folder().join("ktsn");
    let failed = |ktsn: &Path, arguments: &[&str], status: i32, expected: &str| {
        let output = the_loop(&hosts, ktsn, &[&["--within=1ms"], arguments].concat());
        let said = err(&output);
        assert!(
            output.status.code() == Some(status) && said.contains(expected),
            "{:?} {said}",
            output.status
        );
    };
    let close = ["--remote-uplink=to-here"];
    failed(Path::new("/nonexistent/ktsn"), &close, 3, "there is no program /nonexistent/ktsn; copy");
    failed(&hosts.program("older", "ktsn 0.0.9"), &close, 3, "ktsn 0.0.9 runs there, ktsn ");
    failed(&other, &["--remote-uplink=nodev"], 3, "ssh:peer: not possible here: the device nodev cannot be");
    let line = format!("exec unshare --user --map-user=1000 '{}' \"$@\"", other.display());
    failed(
        &hosts.script("no-root", &line),
        &close,
        3,
        "ssh:peer: not possible here: network namespaces need root",
    );
    // Its directory for temporary files has room for nothing.
    let scratch = hosts.at("scratch");
    let mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs"];
    assert!(hosts.there().args(mount).arg(&scratch).status().unwrap().success());
    failed(&other, &close, 1, "No space left on device");
    assert!(hosts.there().arg("umount").arg(&scratch).status().unwrap().success());
    // The key is refused.
    std::fs::write(hosts.at("authorized"), "").unwrap();
    failed(&other, &close, 3, "ssh:peer: no connection: ");
    hosts.wait_until_clean();
}

#[test]
fn a_connection_that_is_cut_in_mid_run_leaves_nothing() {
    let hosts = Hosts::held();
    let arguments = ["loop", "--rounds=1", "--seconds=60", "--path=flannel", "--json=no.json"];
    let ktsn = folder().join("ktsn");
    let mut command = hosts.bench([&ktsn, &ktsn], &arguments);
    let running = command.args(CLOSE).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let is_there = || hosts.namespaces_there().lines().count() == 2;
    let ssh = eventually("the far half stands: the run has begun, or is about to", LONG, || {
        ssh_of(running.id()).filter(|_| is_there())
    });
    assert!(Command::new("kill").args(["-KILL", &ssh.to_string()]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ssh:peer: the connection ended in the middle of"), "{said}");
    assert!(!hosts.at("here").join("no.json").exists());
    hosts.wait_until_clean();
}
