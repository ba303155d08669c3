// SPDX-License-Identifier: Apache-2.0
//! `ktsn rt run` with another machine as a system: between two network namespaces with a sshd of the test's own. Nothing here judges a time;
//! the runs hold the measuring lock, since their probes are real-time threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, folder, out};
use ktsn_tests::two_hosts::{Hosts, ssh_of};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(60);

/// `ktsn rt run` on the first host, with this ktsn on the second one. The lock is that of the source tree.
fn rt(hosts: &Hosts, there: &Path, arguments: &[&str]) -> Command {
    let mut command = hosts.ktsn(&folder().join("ktsn"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."));
    command.args(["rt", "run", "--workers=2", "--worker-mib=8", "--out"]).arg(hosts.at("out"));
    command.arg("--ssh-config").arg(hosts.ssh_config()).arg("--remote-ktsn").arg(there).args(arguments);
    command
}

fn results(hosts: &Hosts) -> Value {
    let text = std::fs::read_to_string(hosts.at("out").join("rt.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["realtime"].take()
}

fn samples(cell: &Value) -> u64 {
    cell["measured_ns"].as_u64().unwrap() / 10_000_000
}

/// Processes that work in the second host's directory: its side, its probe, its load.
fn running_there(hosts: &Hosts) -> Vec<PathBuf> {
    let scratch = hosts.at("scratch");
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let places = processes.filter_map(|entry| std::fs::read_link(entry.path().join("cwd")).ok());
    places.filter(|place| place.starts_with(&scratch)).collect()
}

fn wait_until_clean(hosts: &Hosts) {
    let what = std::fmt::from_fn(|f| write!(f, "{:?} and {:?} go", hosts.left(), running_there(hosts)));
    eventually(what, LONG, || hosts.left().is_empty() && running_there(hosts).is_empty());
}

#[test]
fn another_machine_measures_itself_beside_this_one() {
    let hosts = Hosts::new();
    let arguments = ["--system=ssh:peer,host", "--profile=1,3", "--duration=500ms"];
    let output = rt(&hosts, &folder().join("ktsn"), &arguments).output().unwrap();
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    let found = results(&hosts);
    let cells = found["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 4);
    for (cell, system) in cells.iter().zip(["ssh:peer", "ssh:peer", "host", "host"]) {
        assert_eq!((&cell["system"], samples(cell), &cell["skip"]), (&system.into(), 50, &Value::Null));
        assert_eq!((&cell["fifo_priority"], &cell["segments"]), (&99.into(), &1.into()), "{cell}");
        let environment = cell["environment"].as_str().unwrap_or_default();
        assert_eq!(environment.contains("reached by ssh; "), system == "ssh:peer", "{environment}");
        // Every wake-up above the limit was looked into, over there as here.
        assert_eq!(cell["excursions"], cell["kept"].as_array().unwrap().len(), "{cell}");
    }
    // A machine without this register counts no interrupts of the firmware, and says so.
    if !Path::new("/dev/cpu/0/msr").exists() {
        let environment = cells[0]["environment"].as_str().unwrap();
        let unseen = environment.split_once("no counter shows there: ").map_or("", |(_, causes)| causes);
        assert!(unseen.split(", ").any(|cause| cause == "smi"), "{environment}");
    }
    assert!(found["verdicts"].as_array().unwrap().iter().any(|verdict| verdict["system"] == "ssh:peer"));
    assert!(out(&output).contains("ssh:peer: Linux "), "{}", out(&output));
    // What limits a run over there is said with its name.
    let limit = std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").unwrap();
    assert!(limit.trim() == "-1" || err(&output).contains("ssh:peer: real-time threads"), "{}", err(&output));
    wait_until_clean(&hosts);
}

#[test]
fn a_run_whose_connection_was_cut_goes_on() {
    let hosts = Hosts::new();
    let arguments = ["--system=ssh:peer", "--profile=3", "--duration=4s", "--resume"];
    let there = folder().join("ktsn");
    let mut command = rt(&hosts, &there, &arguments);
    let running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let records = hosts.at("out").join("records/ssh:peer-3.rt");
    eventually("header, start, and some latencies are recorded", LONG, || {
        std::fs::read_to_string(&records).is_ok_and(|text| text.lines().count() >= 4)
    });
    let ssh = ssh_of(running.id()).unwrap();
    assert!(Command::new("kill").args(["-KILL", &ssh.to_string()]).status().unwrap().success());
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert!(
        output.status.code() == Some(1) && said.contains("ssh:peer: the connection ended in the middle of"),
        "{said}"
    );
    wait_until_clean(&hosts);
    let output = rt(&hosts, &there, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    let cell = &results(&hosts)["cells"][0];
    assert_eq!((samples(cell), &cell["segments"]), (400, &2.into()), "{cell}");
    wait_until_clean(&hosts);
}

/// A ktsn that answers as the other side of a run does, but with `read` to the question for latencies.
fn lying(hosts: &Hosts, looked: &str, read: &str) -> PathBuf {
    let version = env!("CARGO_PKG_VERSION");
    hosts.script(
        "lying",
        &format!(
            r#"[ "$1" = --version ] && {{ echo "ktsn {version}"; exit; }}
exec python3 -c '
import sys
def message(kind, payload=b""):
    sys.stdout.buffer.write(kind + len(payload).to_bytes(4, "big") + payload)
    sys.stdout.buffer.flush()
message(b"s")
answers = {{"\"look\"": sys.argv[1], "begin": "{{\"fifo\": 99, \"cpu\": null}}", "\"read\"": sys.argv[2]}}
for line in sys.stdin:
    if line.startswith("say "):
        answer = next((answer for word, answer in answers.items() if word in line), "{{\"kernel\": \"x\"}}")
        message(b"o", ("{{\"done\": " + answer + "}}\n").encode())
' '{looked}' '{read}'"#
        ),
    )
}

#[test]
fn an_answer_that_is_none_is_refused() {
    let hosts = Hosts::new();
    let quiet = r#"{"notices": ["a\u001b[2Jb"], "skips": [], "unseen": []}"#;
    let many = format!(r#"{{"ns": [{}1], "late": [], "is_last": false}}"#, "1, ".repeat(60));
    let skip =
        r#"{"notices": [], "skips": [[1, {"kind": "no_fifo_right", "reason": "why\nnot"}]], "unseen": []}"#;
    for (looked, read, expected) in [
        (quiet, many.as_str(), "it gave 61 latencies, 50 were left of those asked for"),
        (
            quiet,
            r#"{"ns": [1], "late": [{"index": 7, "lateness_ns": 1, "causes": []}], "is_last": true}"#,
            "its late wake-up 7 is none of those",
        ),
        (
            quiet,
            r#"{"ns": [1], "late": [], "is_last": true, "run": "x"}"#,
            "is not valid JSON of an answer to read",
        ),
        (quiet, r#"{"ns": [], "late": [], "is_last": true}"#, "ended without a latency"),
        (r#"{"notices": []}"#, "5", "is not valid JSON of an answer to look"),
        (skip, "5", "why not (no_fifo_right)"),
    ] {
        let there = lying(&hosts, looked, read);
        let arguments = ["--system=ssh:peer", "--profile=1", "--duration=500ms"];
        let output: Output = rt(&hosts, &there, &arguments).output().unwrap();
        let said = err(&output);
        assert!(!output.status.success() && said.contains(expected), "{read}: {said}");
        assert!(!said.contains('\u{1b}') && !hosts.at("out").join("rt.json").exists(), "{said}");
        let _ = std::fs::remove_dir_all(hosts.at("out"));
    }
    // A machine that cannot be had is a typed skip: this one is measured all the same.
    let older = hosts.program("older", "ktsn 0.0.9");
    let arguments = ["--system=host,ssh:peer", "--profile=1", "--duration=100ms"];
    let output = rt(&hosts, &older, &arguments).output().unwrap();
    assert!(output.status.success(), "{}", err(&output));
    let found = results(&hosts);
    let skip = &found["cells"][1]["skip"];
    assert_eq!(skip["kind"], "host_missing");
    assert!(skip["reason"].as_str().unwrap().contains("ktsn 0.0.9 runs there"), "{skip}");
    assert_eq!((samples(&found["cells"][0]), samples(&found["cells"][1])), (10, 0));
}
