// SPDX-License-Identifier: Apache-2.0
//! `ktsn schedule` as a user runs it: files, standard input, exit statuses, what is said where.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn ktsn(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ktsn")).arg("schedule").args(arguments).output().unwrap()
}

/// Runs ktsn with a text on standard input.
fn fed(arguments: &[&str], text: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ktsn"));
    let command = command.arg("schedule").args(arguments).stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    // A child that refuses early does not read to the end.
    let _ = input.write_all(text.as_bytes());
    drop(input);
    child.wait_with_output().unwrap()
}

fn example(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/schedules");
    folder.join(name).to_str().unwrap().to_owned()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path: PathBuf = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

const BAD: &str = "gate-parameter-table:
  gate-enabled: true
  admin-gate-states: 256
  colour: red
  admin-control-list:
    - { gate-states-value: 1, time-interval-value: 0 }
";

/// Class 1's largest frame fits into no window; priorities of classes 2 to 7 lead nowhere.
const DOUBTFUL: &str = "gate-parameter-table:
  gate-enabled: true
  admin-control-list:
    - { gate-states-value: 1, time-interval-value: 90us }
    - { gate-states-value: 2, time-interval-value: 10us }
";

#[test]
fn a_valid_schedule_is_one_line() {
    let (status, out, error) = said(&ktsn(&["check", &example("three-classes.yaml"), "--strict"]));
    assert_eq!((status, error.as_str()), (Some(0), ""), "{out}");
    assert!(
        out.ends_with("three classes: valid, 3 entries in a cycle of 1 ms, 3 of 8 classes open\n"),
        "{out}"
    );
    assert_eq!(out.lines().count(), 1);
}

#[test]
fn every_fault_has_its_file_line_and_rule() {
    let folder = tempfile::tempdir().unwrap();
    let file = written(&folder, "bad.yaml", BAD);
    for command in [&["check", &file][..], &["show", &file], &["convert", &file, "--format", "json"]] {
        let (status, out, error) = said(&ktsn(command));
        assert_eq!((status, out.as_str()), (Some(2), ""), "{command:?}");
        let lines: Vec<&str> = error.lines().collect();
        assert_eq!(lines.len(), 3, "{error}");
        assert!(
            lines[0].starts_with(&format!("{file}:3:22: gate-parameter-table.admin-gate-states: found 256"))
        );
        assert!(
            lines[1].starts_with(&format!("{file}:4:3: gate-parameter-table.colour: found an unknown leaf"))
        );
        assert!(lines[2].contains(":6:") && lines[2].ends_with("(802.1Q-2022 8.6.9.4)"), "{}", lines[2]);
    }
    let (status, _, error) = said(&fed(&["check", "-"], BAD));
    assert_eq!(status, Some(2));
    assert!(error.starts_with("standard input:3:22: "), "{error}");
}

#[test]
fn warnings_count_with_strict_only() {
    let flags = ["check", "-", "--link-speed", "1G"];
    let (status, out, error) = said(&fed(&flags, DOUBTFUL));
    assert_eq!(status, Some(0), "{error}");
    assert!(out.contains("valid, 2 entries") && out.contains("7 warnings"), "{out}");
    assert!(error.contains(
        "class 1: a frame with 1500 octets fits into none of its windows; queue-max-sdu 1208 does"
    ));
    assert!(error.contains("class 7 never opens"), "{error}");
    let (status, out, error) = said(&fed(&["check", "-", "--link-speed", "1G", "--strict"], DOUBTFUL));
    assert_eq!((status, out.as_str()), (Some(2), ""), "{error}");
    // What fits is enough; and a schedule without a speed gets a warning.
    let (_, _, error) = said(&fed(&["check", "-", "--link-speed", "1G", "--mtu", "1208"], DOUBTFUL));
    assert!(!error.contains("class 1"), "{error}");
    let (_, _, error) = said(&fed(&["check", "-"], DOUBTFUL));
    assert!(error.contains("link speed unknown") && !error.contains("class 1"), "{error}");
    let (_, _, error) =
        said(&fed(&["check", "-", "--link-speed", "1G", "--mtu", "1208", "--hand-over", "1us"], DOUBTFUL));
    assert!(error.contains("class 1"), "{error}");
}

#[test]
fn a_drawing_is_as_wide_as_asked_and_without_colours_in_a_pipe() {
    for columns in ["72", "160"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ktsn"));
        let output = command
            .args(["schedule", "show", &example("sixty-four-entries.yaml")])
            .env("COLUMNS", columns)
            .output()
            .unwrap();
        let (status, out, error) = said(&output);
        assert_eq!((status, error.as_str()), (Some(0), ""));
        assert!(!out.contains('\x1b'));
        let row = out.lines().find(|line| line.starts_with("7 axis control")).unwrap();
        assert_eq!(row.chars().count().to_string(), columns, "{out}");
        assert!(out.contains('╱') && out.contains("frames") && out.contains("14.336 µs"), "{out}");
    }
}

#[test]
fn an_svg_goes_to_a_file_or_to_standard_output() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.svg");
    let svg = path.to_str().unwrap();
    let (status, out, _) = said(&ktsn(&["show", &example("opcua-pubsub.yaml"), "--svg", svg]));
    assert_eq!((status, out.as_str()), (Some(0), ""));
    let (_, out, _) = said(&ktsn(&["show", &example("opcua-pubsub.yaml"), "--svg", "-"]));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), out);
    assert!(
        out.starts_with("<svg ") && out.contains("prefers-color-scheme") && out.contains("fast writer group")
    );
    let nowhere = folder.path().join("no/s.svg");
    let (status, _, error) =
        said(&ktsn(&["show", &example("opcua-pubsub.yaml"), "--svg", nowhere.to_str().unwrap()]));
    assert_eq!(status, Some(1));
    assert!(error.contains("no/s.svg"), "{error}");
}

#[test]
fn formats_are_converted_without_loss() {
    let (_, yaml, _) = said(&ktsn(&["convert", &example("three-classes.taprio"), "--format", "yaml"]));
    let (_, json, _) = said(&fed(&["convert", "-", "--format", "json"], &yaml));
    let (status, command, error) =
        said(&fed(&["convert", "-", "--format", "taprio", "--dev", "eth7"], &json));
    assert_eq!(status, Some(0), "{error}");
    assert!(command.starts_with("tc qdisc replace dev eth7 parent root handle 100 taprio"), "{command}");
    let (_, again, _) = said(&fed(&["convert", "-", "--format", "yaml"], &command));
    assert_eq!(again, yaml.replace("eth0", "eth7"));
}

#[test]
fn what_a_command_cannot_say_is_named() {
    let file = example("three-classes.yaml");
    let (status, out, error) = said(&ktsn(&["convert", &file, "--format", "taprio"]));
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert!(
        error.contains("admin-gate-states: found 0x00") && error.contains("taprio.device: found nothing"),
        "{error}"
    );
    let (status, _, error) = said(&ktsn(&["convert", &file, "--format", "yaml", "--dev", "eth0"]));
    assert_eq!(status, Some(2));
    assert!(error.contains("--dev"), "{error}");
}

#[test]
fn files_that_are_none_and_flags_that_are_wrong() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("latin1"), b"name: k\xfcche\n").unwrap();
    let latin1 = folder.path().join("latin1");
    let directory = folder.path().to_str().unwrap();
    let file = example("three-classes.yaml");
    for (line, words) in [
        (&["check", "/nonexistent.yaml"][..], "No such file"),
        (&["check", directory], "directory"),
        (&["check", latin1.to_str().unwrap()], "latin1:1:8: found octets that are no UTF-8"),
        (&["check", "/dev/zero"], "at most 1048576 octets"),
        (&["check", &file, "--format", "json"], "RFC 8259"),
        (&["check", &file, "--format", "taprio"], "tc-taprio(8)"),
        (&["check", &file, "--link-speed", "fast"], "1G"),
        (&["check", &file, "--mtu", "0"], "1..=65535"),
        (&["check", &file, "--hand-over", "11s"], "20us"),
        (&["convert", &file], "--format"),
    ] {
        let (status, out, error) = said(&ktsn(line));
        assert_eq!((status, out.as_str()), (Some(2), ""), "{line:?}: {error}");
        assert!(error.contains(words), "{line:?}: {error}");
    }
}

#[test]
fn every_help_has_an_example() {
    for command in ["check", "show", "convert"] {
        let (status, out, _) = said(&ktsn(&[command, "--help"]));
        assert_eq!(status, Some(0));
        assert!(out.contains("Examples:") && out.contains(&format!("ktsn schedule {command} ")), "{out}");
    }
    let (_, out, _) = said(&ktsn(&["--help"]));
    assert!(out.contains("Examples:"), "{out}");
}
