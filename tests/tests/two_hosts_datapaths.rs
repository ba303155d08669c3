// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench datapaths` with the remote host on another host: between two network namespaces, as `two_hosts.rs` has them. Nothing here
//! judges a time.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ktsn_eventually::eventually;
use ktsn_tests::cli::{err, folder, out};
use ktsn_tests::two_hosts::{CHRONY, CLOSE, Hosts, ssh_of};
use serde_json::Value;

const LONG: Duration = Duration::from_secs(30);

/// What the experiments of a process have left.
fn namespaces_of(pid: u32) -> Vec<String> {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("ktsnlab-{pid}-"))).collect()
}

/// A round of 60 frames.
fn short(hosts: &Hosts, arguments: &[&str]) -> (u32, Output) {
    let ktsn = folder().join("ktsn");
    let mut command = hosts.bench([&ktsn, &ktsn], &["datapaths", "--rounds=1", "--seconds=0.06"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = command.spawn().unwrap();
    (running.id(), running.wait_with_output().unwrap())
}

fn document(path: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// It is refused with status 3 and these words; no file, nothing left.
fn refused(hosts: &Hosts, arguments: &[&str], expected: &str) {
    let (pid, output) =
        short(hosts, &[arguments, &["--path=macvtap", "--load=idle", "--json=no.json"]].concat());
    let said = err(&output);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains(expected) && !hosts.at("here").join("no.json").exists(), "{said}");
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
}

#[test]
fn frames_pass_to_another_host_both_ways_and_are_accounted_for() {
    let hosts = Hosts::held();
    let files = ["--json=d.json", "--report=d.html", "--records"];
    let paths = ["--path=vfio,macvtap,tap-bridge,tap-xdp"];
    let (pid, output) = short(&hosts, &[&CLOSE[..], &files, &paths].concat());
    assert!(output.status.success(), "{}\n{}", out(&output), err(&output));
    let at = |name: &str| hosts.at("here").join(name);
    let document = document(&at("d.json"));
    let series = document["series"].as_array().unwrap();
    let all: Vec<&Value> = series.iter().filter(|series| series["round"] == "all").collect();
    // Two paths, two directions, two loads.
    assert_eq!(all.len(), 8, "{document:#}");
    for series in all {
        assert_eq!((&series["lost"], &series["lost_uncounted"]), (&0.into(), &0.into()), "{series}");
        assert_eq!(
            (&series["frames_sent"], &series["frames_received"]),
            (&60.into(), &60.into()),
            "{series}"
        );
        let (p50, max) = (&series["network_latency_ns"]["p50"], &series["network_latency_ns"]["max"]);
        assert!(p50.as_i64().unwrap() > 0 && max.is_i64(), "{series}");
        assert!(series["talker_cpu_ratio"].as_f64().unwrap() > 0.0, "{series}");
        assert!(series["listener_cpu_ratio"].as_f64().unwrap() > 0.0, "{series}");
        let is_loaded = series["load"].as_str().unwrap().ends_with("-udp");
        assert_eq!(series["load_received"].as_u64().unwrap() > 0, is_loaded, "{series}");
    }
    let two = &document["parameters"]["hosts"];
    assert_eq!((&two["clock_bound_ns"], &two["clock_within_ns"]), (&220_302.into(), &1_000_000.into()));
    assert_eq!((&two["remote"], &two["uplink"]), (&"ssh:peer".into(), &"to-there".into()));
    let checks = document["checks"].as_array().unwrap();
    let reason = |name: &str| {
        let check = checks.iter().find(|check| check["name"] == name).unwrap();
        assert_eq!(check["outcome"], "skipped", "{check}");
        check["reason"].as_str().unwrap()
    };
    assert!(reason("tap-xdp").starts_with("xdp_driver_missing: "));
    assert!(reason("vfio").starts_with("vfio_"));
    let page = std::fs::read_to_string(at("d.html")).unwrap();
    assert!(page.contains("220302") && page.contains("Two hosts"), "the bound is not in the report");
    assert!(out(&output).contains("clocks within 220302 ns (asked for: 1000000 ns)"), "{}", out(&output));
    assert!(at("records/tap-bridge-64-egress-udp.csv.zst").is_file());
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
    hosts.wait_until_clean();
}

#[test]
fn a_switch_reads_and_writes_the_uplink_to_another_host() {
    if ktsn_lab::ovs::missing().is_some() {
        println!("SKIP ovs_dpdk_missing: Debian's openvswitch-switch-dpdk is not installed");
        return;
    }
    let hosts = Hosts::held();
    let (pid, output) = short(&hosts, &[&CLOSE[..], &["--path=tap-ovs,ovs-afxdp", "--json=d.json"]].concat());
    assert!(output.status.success(), "{}\n{}", out(&output), err(&output));
    let document = document(&hosts.at("here").join("d.json"));
    let series = document["series"].as_array().unwrap();
    let all: Vec<&Value> = series.iter().filter(|series| series["round"] == "all").collect();
    assert_eq!(all.len(), 8, "{document:#}");
    for series in all {
        // A busy machine may make a ring full; nothing may vanish.
        assert!(series["frames_received"].as_u64().unwrap() >= 30, "{series}");
        assert_eq!(series["lost_uncounted"], 0, "{series}");
    }
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
    hosts.wait_until_clean();
}

#[test]
fn there_is_no_result_without_clocks_that_agree() {
    let hosts = Hosts::held();
    refused(&hosts, &["--remote-uplink=to-here"], "the clocks agree within 220302 ns only");
    // Held when it begins, and no longer when it ends.
    let once = format!("[ -e {0} ] || {{ touch {0}; echo '{CHRONY}'; }}", hosts.at("asked").display());
    hosts.script("there/chronyc", &once);
    refused(&hosts, &CLOSE, "no result: the clock of ssh:peer is not held");
    hosts.wait_until_clean();
}

#[test]
fn a_wire_that_passes_no_frame_is_said_with_the_remedy() {
    let hosts = Hosts::held();
    for line in ["ip link add nowhere type veth peer name end", "ip link set nowhere up"] {
        assert!(hosts.there().args(line.split(' ')).status().unwrap().success());
    }
    let expected = "macvtap passed no frame between both hosts within 10s (egress); remedy: both devices must be on one Ethernet segment";
    refused(&hosts, &["--within=1ms", "--remote-uplink=nowhere"], expected);
    let expected = "ssh:peer: not possible here: the device nodev cannot be the uplink";
    refused(&hosts, &["--within=1ms", "--remote-uplink=nodev"], expected);
    hosts.wait_until_clean();
}

fn both_stand(hosts: &Hosts, pid: u32) -> bool {
    hosts.namespaces_there().lines().count() == 1 && namespaces_of(pid).len() == 1
}

#[test]
fn a_connection_that_is_cut_ends_the_run_at_once_and_leaves_nothing() {
    let hosts = Hosts::held();
    let ktsn = folder().join("ktsn");
    let arguments = ["datapaths", "--rounds=1", "--seconds=900", "--path=macvtap", "--json=no.json"];
    let mut command = hosts.bench([&ktsn, &ktsn], &arguments);
    let mut running = command.args(CLOSE).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = running.id();
    let ssh = eventually("both namespaces stand: the run has begun, or is about to", LONG, || {
        ssh_of(pid).filter(|_| both_stand(&hosts, pid))
    });
    // Into the traffic: no sign of it can be seen from outside.
    std::thread::sleep(Duration::from_secs(1));
    assert!(Command::new("kill").args(["-KILL", &ssh.to_string()]).status().unwrap().success());
    eventually("it ends before the end of its traffic", LONG, || running.try_wait().unwrap());
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("ssh:peer: the connection ended in the middle of"), "{said}");
    assert!(!hosts.at("here").join("no.json").exists());
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
    hosts.wait_until_clean();
}

/// A ktsn whose far side says `to` for `from`, in files and answers.
fn lying(hosts: &Hosts, from: &str, to: &str) -> PathBuf {
    assert_eq!(from.len(), to.len(), "a file's size is stated before it");
    changing(hosts, "said.replace(*words)", [from, to])
}

/// A ktsn whose far side says what an expression of Python makes of `said`, with two `words`.
fn changing(hosts: &Hosts, expression: &str, words: [&str; 2]) -> PathBuf {
    let ktsn = folder().join("ktsn");
    hosts.script(
        "lying",
        &format!(
            r#"case "$*" in *guard*) ;; *) exec '{ktsn}' "$@" ;; esac
exec python3 -c '
import re, subprocess, sys
guard = subprocess.Popen(sys.argv[3:], stdin=sys.stdin, stdout=subprocess.PIPE)
words = [word.encode() for word in sys.argv[1:3]]
while header := guard.stdout.read(5):
    said = guard.stdout.read(int.from_bytes(header[1:], "big"))
    sys.stdout.buffer.write(header + {expression})
    sys.stdout.buffer.flush()
sys.exit(guard.wait())
' '{from}' '{to}' '{ktsn}' "$@""#,
            from = words[0],
            to = words[1],
            ktsn = ktsn.display()
        ),
    )
}

/// One direction of one path fails with status 1 and these words; no file, nothing left.
fn is_refused(hosts: &Hosts, there: &Path, direction: &str, expected: &str) {
    let arguments = ["datapaths", "--rounds=1", "--seconds=0.06", "--path=macvtap", "--load=idle"];
    let mut command = hosts.bench([&folder().join("ktsn"), there], &arguments);
    command.args(CLOSE).args(["--json=no.json", "--direction", direction]);
    let output = command.output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{expected}: {said}");
    assert!(said.contains(expected) && said.contains("nothing of its answers is used"), "{expected}: {said}");
    assert!(!said.contains('\u{1b}') && !hosts.at("here").join("no.json").exists(), "{said}");
    hosts.wait_until_clean();
}

#[test]
fn an_answer_that_is_none_is_refused() {
    let hosts = Hosts::held();
    for (direction, from, to, expected) in [
        ("egress", "\"at_ns\":1", "\"at_ns\":2", "the clocks do not agree: it has an instant at 2"),
        ("egress", "clock own", "clock \u{1b}[2", "its answer has the line \"clock \\u{1b}[2\""),
        ("egress", "{\"cpu_ns\"", "{\"cpu_us\"", "its answer is not valid JSON of an answer to end: "),
    ] {
        is_refused(&hosts, &lying(&hosts, from, to), direction, expected);
    }
}

/// Its instants are off by half a second: within the run, and a latency below zero.
#[test]
fn clocks_that_do_not_agree_make_no_result() {
    let hosts = Hosts::held();
    let expected = "the clocks do not agree: frame 0 arrived ";
    for (direction, line, sign) in [("egress", "got", "-"), ("ingress", "sent", "+")] {
        // Of both lines the last instants are by the far side's clock alone; the frame itself has the others.
        let fields =
            if direction == "egress" { r"\d+ \d+) (\d+) (\d+)" } else { r"\d+ \d+ \d+) (\d+) (\d+)" };
        let change = format!(
            r#"re.sub(rb"(?m)^({line} {fields}", lambda found: b"%s %d %d" % (found[1], int(found[2]) {sign} 500000000, int(found[3]) {sign} 500000000), said)"#
        );
        is_refused(&hosts, &changing(&hosts, &change, ["", ""]), direction, expected);
    }
}

/// Processes of a command of ktsn in the second host's network namespace.
fn processes_there(hosts: &Hosts, words: &str) -> Vec<u32> {
    let inside = out(&hosts.there().args(["readlink", "/proc/self/ns/net"]).output().unwrap());
    let is_one = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let namespace = std::fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(words)
            && namespace == Path::new(inside.trim())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_one).collect()
}

#[test]
fn a_far_side_that_is_killed_ends_the_run_and_is_named() {
    let hosts = Hosts::held();
    let ktsn = folder().join("ktsn");
    let arguments = ["datapaths", "--rounds=1", "--seconds=900", "--path=macvtap", "--json=no.json"];
    let mut command = hosts.bench([&ktsn, &ktsn], &arguments);
    let mut running = command.args(CLOSE).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = running.id();
    eventually("both namespaces stand", LONG, || both_stand(&hosts, pid));
    let sides = processes_there(&hosts, "ktsn-bench remote side datapaths");
    assert_eq!(sides.len(), 1, "{sides:?}");
    assert!(Command::new("kill").args(["-KILL", &sides[0].to_string()]).status().unwrap().success());
    eventually("it waits for no answer that cannot come", LONG, || running.try_wait().unwrap());
    let output = running.wait_with_output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("failed (signal: 9): it said nothing before; signal 9 killed ktsn there"),
        "{said}"
    );
    assert!(!hosts.at("here").join("no.json").exists());
    assert_eq!(namespaces_of(pid), Vec::<String>::new());
    // The guard removes its directory; the namespace is for the next experiment there to remove.
    let what = std::fmt::from_fn(|f| write!(f, "{:?} goes", hosts.left()));
    eventually(what, LONG, || hosts.left().is_empty());
}
