// SPDX-License-Identifier: Apache-2.0
//! `ktsn status` where no ktsnd answers: it says where it looked and what to do, and never hangs.

use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use ktsn_tests::cli::{err, folder, out, run};
use ktsn_tests::faults::eventually;

#[test]
fn each_way_of_not_being_there_has_its_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("empty")).unwrap();
    std::fs::create_dir(at("stale")).unwrap();
    std::fs::write(at("file"), "").unwrap();
    drop(UnixListener::bind(at("stale/ktsnd.sock")).unwrap());
    // A child that another test starts has it open until it runs its program.
    let is_stale = || UnixStream::connect(at("stale/ktsnd.sock")).is_err();
    eventually("nothing listens", Duration::from_secs(20), is_stale);
    for (name, expected) in [
        ("missing", "does not exist"),
        ("empty", "ktsnd --run-dir"),
        ("stale", "left over"),
        ("file", "--run-dir or KTSN_RUN_DIR"),
    ] {
        for flags in [&[][..], &["--json"], &["--watch"]] {
            let place = at(name).display().to_string();
            let output = run(&[&["status", "--run-dir", &place], flags].concat());
            assert_eq!(output.status.code(), Some(1), "{name}: {}", err(&output));
            assert!(err(&output).contains(expected), "{name}: {}", err(&output));
            assert!(err(&output).contains(&place), "{name}: {}", err(&output));
            assert_eq!(out(&output), "");
        }
    }
}

#[test]
fn the_environment_names_the_directory_too() {
    let output = run(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("/nonexistent/ktsn/ktsnd.sock"), "{}", err(&output));
}

#[test]
fn a_daemon_that_says_nothing_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("ktsnd.sock")).unwrap();
    // Without a bound of its own it would wait for ever, and this test with it.
    let output = run(&["status", "--run-dir", &dir.path().display().to_string()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(err(&output).contains("does not answer"), "{}", err(&output));
    drop(listener);
}

#[test]
fn a_stranger_is_sent_to_root() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("ktsnd.sock")).unwrap();
    std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    // Not root's identity, but a binary that a stranger may read.
    let copy = ktsn_tests::hook::open_directory();
    let binary = copy.path().join("ktsn");
    // By a process of its own: what this one writes to, a child that another test starts may have open, and then it does not run.
    assert!(Command::new("cp").arg(folder().join("ktsn")).arg(&binary).status().unwrap().success());
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--clear-groups"])
        .arg(&binary)
        .args(["status", "--run-dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("as root"), "{}", err(&output));
    drop(listener);
}

#[test]
fn wrong_usage_is_2() {
    assert_eq!(run(&["status", "--no-such-flag"]).status.code(), Some(2));
    assert_eq!(run(&["status", "argument"]).status.code(), Some(2));
}
