// SPDX-License-Identifier: Apache-2.0
//! `ktsn doctor`: its findings are complete, honest about missing rights, and leave nothing behind.

#[allow(dead_code)]
use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Command, Output};

use ktsn_tests::cli::{err, folder, ktsn, out, run};
use serde_json::Value;

/// The findings of an answer, after checking the form of each.
fn findings(output: &Output) -> Vec<Value> {
    let value: Value = serde_json::from_str(&out(output)).unwrap_or_else(|e| panic!("{e}: {}", out(output)));
    let findings = value["findings"].as_array().unwrap().clone();
    let mut names = BTreeSet::new();
    for finding in &findings {
        let text = |key: &str| finding[key].as_str().unwrap_or_default();
        assert!(names.insert(text("name").to_owned()), "twice: {finding}");
        assert!(
            !text("name").is_empty() && !text("value").is_empty() && !text("meaning").is_empty(),
            "{finding}"
        );
        assert!(["ok", "not known", "warn", "fail"].contains(&text("state")), "{finding}");
        assert!(!text("source").is_empty(), "what it was read from: {finding}");
        assert_eq!(
            text("remedy").is_empty(),
            text("state") == "ok",
            "a remedy exactly where one is needed: {finding}"
        );
    }
    let count = |state: &str| findings.iter().filter(|finding| finding["state"] == state).count();
    let failed = count("fail");
    assert_eq!((&value["fail"], &value["not_known"]), (&failed.into(), &count("not known").into()));
    assert_eq!(output.status.code(), Some(i32::from(failed > 0)), "{}", err(output));
    findings
}

fn named<'a>(findings: &'a [Value], name: &str) -> &'a Value {
    findings
        .iter()
        .find(|finding| finding["name"] == name)
        .unwrap_or_else(|| panic!("no {name} in {findings:?}"))
}

#[test]
fn a_guest_and_a_host_are_looked_at_from_the_side_that_is_named() {
    let names = |arguments: &[&str]| {
        let findings = findings(&run(arguments));
        let place = named(&findings, "vm_place")["value"].as_str().unwrap().to_owned();
        let has = |name: &str| findings.iter().any(|finding| finding["name"] == name);
        (place, has("vm_queues"), has("vm_guests"))
    };
    let (place, is_guest, is_host) = names(&["doctor", "--vm=guest", "--json"]);
    assert!(place.starts_with("guest, as you say (") && is_guest && !is_host, "{place}");
    let (place, is_guest, is_host) = names(&["doctor", "--vm=host", "--json"]);
    assert!(place.starts_with("host, as you say (") && !is_guest && is_host, "{place}");
    let (place, is_guest, is_host) = names(&["doctor", "--vm", "--json"]);
    let says = |word: &str| place.starts_with(word);
    assert!((says("guest") && is_guest) || (says("host") && is_host) || says("unclear"), "{place}");
    assert_eq!(run(&["doctor", "--vm", "--program", "true"]).status.code(), Some(2));
}

#[test]
fn everything_is_looked_at() {
    let output = run(&["doctor", "--json"]);
    let findings = findings(&output);
    for name in [
        "kernel",
        "cap_net_admin",
        "cap_net_raw",
        "cap_ipc_lock",
        "cap_sys_nice",
        "clock_source",
        "clock_synchronised",
        "tai_offset",
        "rt_throttling",
        "rt_budget",
        "sched_fifo",
        "locked_memory",
        "af_xdp",
        "af_packet",
        "timer_slack",
        "preemption",
        "cpu_idle",
        "cpu_governor",
        "cpus",
        "tsn_qdiscs",
        "client_socket",
        "ktsnd",
        "libktsn",
        "txtime",
    ] {
        named(&findings, name);
    }
    // Root without a sandbox has these on every kernel that KTSN supports.
    for name in ["kernel", "cap_net_admin", "af_packet", "libktsn"] {
        assert_eq!(named(&findings, name)["state"], "ok", "{findings:?}");
    }
    assert_eq!(named(&findings, "ktsnd")["state"], "warn");
    assert_eq!(err(&output), "");
}

#[test]
fn people_see_the_remedies() {
    let output = run(&["doctor"]);
    assert!(out(&output).contains("warn  client_socket"), "{}", out(&output));
    assert!(out(&output).contains("source: connect(2) to the socket"), "{}", out(&output));
    assert!(out(&output).contains("remedy: start ktsnd"), "{}", out(&output));
}

#[test]
fn missing_rights_are_failures_with_remedies() {
    let output = Command::new("setpriv")
        .args(["--bounding-set", "-all", "--inh-caps", "-all"])
        .arg(folder().join("ktsn"))
        .args(["doctor", "--json", "--run-dir", "/nonexistent/ktsn"])
        .env("KTSN_LIB", ktsn_tests::hook::library())
        .output()
        .unwrap();
    let findings = findings(&output);
    for name in ["cap_net_admin", "cap_net_raw"] {
        assert_eq!(named(&findings, name)["state"], "fail");
    }
    assert_eq!(named(&findings, "cap_sys_nice")["state"], "warn");
    assert_eq!(
        named(&findings, "network_trials")["state"],
        "not known",
        "no namespace without CAP_SYS_ADMIN"
    );
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_library_that_does_not_load_is_a_failure() {
    let dir = tempfile::tempdir().unwrap();
    let library = dir.path().join("libktsn.so");
    std::fs::write(&library, "no library").unwrap();
    for (path, expected) in [(library.as_path(), "not loaded"), (&dir.path().join("missing"), "not found")] {
        let output = ktsn().args(["doctor", "--json"]).env("KTSN_LIB", path).output().unwrap();
        let findings = findings(&output);
        let finding = named(&findings, "libktsn");
        assert_eq!(finding["state"], "fail");
        assert!(finding["value"].as_str().unwrap().contains(expected), "{finding}");
    }
}

#[test]
fn programs_are_judged() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("none.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    for (compiler, flag, state, word) in [
        ("gcc", "-static", "fail", "statically linked"),
        ("gcc", "-O1", "ok", "glibc"),
        ("musl-gcc", "-O1", "ok", "musl"),
    ] {
        let program = dir.path().join(format!("{compiler}{flag}"));
        let compiled =
            Command::new(compiler).arg(flag).arg("-o").arg(&program).arg(&source).status().unwrap();
        assert!(compiled.success());
        let output = run(&["doctor", "--json", "--program", &program.display().to_string()]);
        let findings = findings(&output);
        let finding = named(&findings, "program");
        assert_eq!(finding["state"], state, "{finding}");
        assert!(finding.to_string().contains(word), "{finding}");
    }
    let json_of = |program: &std::path::Path| {
        let output = run(&["doctor", "--json", "--program", &program.display().to_string()]);
        let value: Value = serde_json::from_str(&out(&output)).unwrap();
        (value["program"].clone(), named(&findings(&output), "program_io_uring")["state"].clone())
    };
    let (program, ring) = json_of(&dir.path().join("gcc-static"));
    assert_eq!((&program["needs_capture"], &program["obstacle"]), (&true.into(), &"program_static".into()));
    assert_eq!((&program["libc"], ring), (&"none".into(), "ok".into()));
    let (program, _) = json_of(&dir.path().join("musl-gcc-O1"));
    assert_eq!((&program["libc"], &program["needs_capture"]), (&"musl".into(), &false.into()));
    std::fs::write(
        &source,
        "int io_uring_submit(void) { return 0; }\nint main(void) { return io_uring_submit(); }\n",
    )
    .unwrap();
    let ring_program = dir.path().join("ring");
    assert!(Command::new("gcc").arg("-o").arg(&ring_program).arg(&source).status().unwrap().success());
    let (program, ring) = json_of(&ring_program);
    assert_eq!((&program["io_uring"], ring), (&true.into(), "warn".into()));
    let damaged = dir.path().join("damaged");
    std::fs::write(&damaged, b"\x7fELF\x02\x01").unwrap();
    let output = run(&["doctor", "--json", "--program", &damaged.display().to_string()]);
    assert_eq!(named(&findings(&output), "program")["state"], "fail");
    let output = run(&["doctor", "--program", "no-such-program"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("no such program"), "{}", err(&output));
}

#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = ktsn().args(["doctor", "--json"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        err(&output).contains("standard output") && !err(&output).contains("panicked"),
        "{}",
        err(&output)
    );
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = ktsn().arg("doctor").stdout(writer).output().unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(0), ""));
}

/// A FIFO has no end that could be read: it is refused at once, by `run` as well.
#[test]
fn what_is_no_program_and_no_cpu_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let fifo = dir.path().join("fifo").display().to_string();
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let limited = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command
            .arg("60")
            .arg(folder().join("ktsn"))
            .args(arguments)
            .env("KTSN_LIB", ktsn_tests::hook::library());
        command.output().unwrap()
    };
    let output = limited(&["doctor", "--json", "--program", &fifo]);
    let finding = named(&findings(&output), "program").clone();
    assert_eq!(finding["state"], "fail");
    assert!(finding["value"].as_str().unwrap().ends_with("fifo: no ordinary file"), "{finding}");
    assert_eq!(limited(&["run", &fifo]).status.code(), Some(126));
    let output = limited(&["doctor", "--rt", "4000"]);
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(2), ""));
    assert!(err(&output).contains("--rt 4000: there is no such CPU online; there are 0"), "{}", err(&output));
}

#[test]
fn nothing_stays_behind() {
    let state = || {
        let links = std::fs::read_dir("/sys/class/net").unwrap().map(|link| link.unwrap().file_name());
        links.filter(|name| name.to_string_lossy().starts_with("ktsndr")).count()
    };
    assert_eq!(run(&["doctor"]).status.code(), Some(0));
    assert_eq!(state(), 0);
}

#[test]
fn the_lead_that_capture_needs_is_measured() {
    let output = run(&["doctor", "--capture", "--json"]);
    let findings = findings(&output);
    let lead = named(&findings, "capture_lead");
    // A busy machine may make a frame late, which is reported; but it is measured.
    let value = lead["value"].as_str().unwrap();
    assert!(value.contains("p99") && value.contains("(1000 frames)"), "{lead}");
    assert!(lead["meaning"].as_str().unwrap().contains("error reports"), "{lead}");
}
