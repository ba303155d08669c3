// SPDX-License-Identifier: Apache-2.0
//! `ktsn bench datapaths` as a user runs it: figures, report, and what is said where something is missing. Nothing here judges a time.
//! `lab/src/datapaths/live_tests.rs` has the paths one by one, and their faults.

use std::process::{Command, Output};

use ktsn_tests::cli::{err, folder, ktsn, out};
use serde_json::Value;

/// A round of 60 frames.
const SHORT: [&str; 5] = ["bench", "datapaths", "--functional", "--rounds=1", "--seconds=0.06"];

/// `ktsn bench datapaths` in a directory of its own, where its lock lies.
fn bench(directory: &std::path::Path, arguments: &[&str]) -> Output {
    ktsn().current_dir(directory).args(SHORT).args(arguments).output().expect("ktsn starts")
}

/// The namespaces of labs whose process is this one's child that has ended: there must be none.
fn namespaces_of_the_dead() -> Vec<String> {
    let names = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_dead = |name: &String| {
        let pid = name.strip_prefix("ktsnlab-").and_then(|rest| rest.split('-').next());
        name.ends_with('r') && pid.is_some_and(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
    };
    names.filter(is_dead).collect()
}

#[test]
fn paths_are_measured_both_ways_and_the_report_answers() {
    let directory = tempfile::tempdir().unwrap();
    let output = bench(
        directory.path(),
        &["--path=vfio,tap-bridge,tap-xdp,macvtap", "--json=d.json", "--report=d.html", "--records"],
    );
    assert!(output.status.success(), "{}\n{}", out(&output), err(&output));
    let text = std::fs::read_to_string(directory.path().join("d.json")).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    let series = document["series"].as_array().unwrap();
    let all: Vec<&Value> = series.iter().filter(|series| series["round"] == "all").collect();
    // Three paths, two directions, two loads.
    assert_eq!(all.len(), 12, "{text}");
    let mut loaded = 0;
    for series in all {
        assert_eq!(
            (&series["lost"], &series["lost_uncounted"]),
            (&Value::from(0), &Value::from(0)),
            "{series}"
        );
        assert!(series["network_latency_ns"]["p50"].as_i64().unwrap() > 0, "{series}");
        assert!(series["stable_latency_ns"]["p50"].as_i64().unwrap() > 0, "{series}");
        // A sender that a busy machine keeps from its windows sends no load.
        let count = |name: &str| series[name].as_u64().unwrap();
        let has_load = count("load_sent") > 0;
        let is_loaded = series["load"].as_str().unwrap().ends_with("-udp");
        assert_eq!((count("load_received") > 0, is_loaded || !has_load), (has_load, true), "{series}");
        loaded += u32::from(has_load);
    }
    assert!(loaded > 0, "{text}");
    let account = &document["parameters"]["datapaths"];
    assert_eq!(account["stable_parts"].as_array().unwrap().len(), 12);
    let vfio = document["checks"].as_array().unwrap().iter().find(|check| check["name"] == "vfio").unwrap();
    assert_eq!(vfio["outcome"], "skipped");
    assert!(vfio["reason"].as_str().unwrap().starts_with("vfio_"), "{vfio}");
    let published = document["published"].as_array().unwrap();
    assert!(published.iter().any(|entry| entry["of"] == "tap+XDP, alone" && entry["value"] == 66_500.0));
    let page = std::fs::read_to_string(directory.path().join("d.html")).unwrap();
    for heading in
        ["Which datapath", "All frames, and the stable part", "Spikes and their causes", "tap+XDP, alone"]
    {
        assert!(page.contains(heading), "{heading}");
    }
    assert!(directory.path().join("records/tap-xdp-64-ingress-udp.csv.zst").is_file());
    // The page can be made again from both.
    let again =
        ktsn().current_dir(directory.path()).args(["report", "d.json", "-o", "again.html"]).output().unwrap();
    assert!(again.status.success(), "{}", err(&again));
    let left = namespaces_of_the_dead();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn what_is_not_possible_is_said_with_its_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let said = |output: &Output| (output.status.code(), err(output));
    let (status, text) = said(&bench(directory.path(), &["--path=vfio"]));
    assert_eq!(status, Some(3), "{text}");
    assert!(
        text.contains("nothing can be measured here:\n  vfio: vfio_") && text.contains("remedy: "),
        "{text}"
    );
    let (status, text) = said(&bench(directory.path(), &["--path=tap-xdp,tap-xdp"]));
    assert_eq!((status, text.contains("tap-xdp is named twice")), (Some(2), true), "{text}");
    let (status, text) = said(&bench(directory.path(), &["--seconds=0.001"]));
    assert_eq!(status, Some(2), "{text}");
    // Without root: a process that may not make namespaces makes nothing.
    let open = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
        .tempdir()
        .unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups"]).arg(folder().join("ktsn-bench")).args(SHORT);
    let output = command.current_dir(open.path()).arg("--path=tap-bridge").output().unwrap();
    let (status, text) = said(&output);
    // A folder that others may not enter hides the program itself.
    if status != Some(126) && status != Some(127) {
        assert_eq!(status, Some(3), "{text}");
        assert!(text.contains("run the command as root"), "{text}");
    }
}

/// Results that cannot be written are an error with the disk's word, and nothing half written stays.
#[test]
fn a_full_disk_is_said_and_leaves_no_half_of_a_file() {
    let (directory, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let place = disk.path().display();
    let script = format!(
        "mount -t tmpfs -o size=8k,mode=755 tmpfs {place} && \"$@\"; status=$?; ls -A {place}; exit $status"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script, "sh"]).arg(folder().join("ktsn")).args(SHORT);
    let json = format!("--json={place}/d.json");
    let output = command
        .current_dir(directory.path())
        .args(["--path=macvtap", "--load=idle", &json])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("No space left on device"), "{}", err(&output));
    assert_eq!(out(&output), "", "a file stayed");
}
