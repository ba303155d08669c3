// SPDX-License-Identifier: Apache-2.0
//! `ktsn guest` on a device of a namespace, as in a guest: mode ktsnd whole, the other modes with a `tc` that answers as told.
//!
//! The qdiscs themselves are set in a real guest: tests/tests/vm_guest.rs.

use std::path::Path;
use std::process::{Command, Output};

use ktsn_eventually::make_program;
use ktsn_tests::cli::{err, folder, out};
use serde_json::Value;

use ktsn_tests::hook;

/// A `tc` that keeps the root qdisc in a file, and fails for what the file `fails` names.
const TC: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case "$*" in
*" show "*) cat "$here/shown" 2>/dev/null || echo '[]' ;;
*" del "*) rm -f "$here/shown" ;;
*"$(cat "$here/fails")"*) echo "Error: Specified qdisc kind is unknown." >&2; exit 2 ;;
*" root "*) echo '[{"kind":"x","handle":"6b74:","root":true}]' >"$here/shown" ;;
esac
"#;

/// Runs a script in a namespace with the devices `va` and `vb` of four queues; `$KTSN guest` is ktsn with records in `directory`.
fn inside(directory: &Path, script: &str) -> Output {
    let setup = "ip link add va numtxqueues 4 numrxqueues 4 type veth peer name vb && ip link set vb up\n";
    let mut shell = Command::new("unshare");
    shell.args(["--net", "sh", "-c", &format!("{setup}{script}")]);
    shell.env("KTSN", folder().join("ktsn")).env("KTSN_LIB", hook::library()).env("DIR", directory);
    shell.env("KTSN_CACHE_DIR", directory).env_remove("KTSN_RUN_DIR").env_remove("LD_PRELOAD");
    shell.env("PATH", format!("{}:{}", directory.display(), std::env::var("PATH").unwrap()));
    shell.output().expect("unshare starts")
}

fn with_tc(fails: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("fails"), fails).unwrap();
    make_program(&directory.path().join("tc"), TC.as_bytes());
    directory
}

fn calls(directory: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(directory.join("calls")).unwrap_or_default();
    text.lines().filter(|line| !line.contains(" show ")).map(str::to_owned).collect()
}

#[test]
fn ktsnd_is_set_up_serves_and_is_gone_after_undo() {
    let directory = tempfile::tempdir().unwrap();
    let output = inside(
        directory.path(),
        r#"set -e
        g() { "$KTSN" guest "$@" --device va --records "$DIR/records"; }
        g setup --mode ktsnd --run-dir "$DIR/run" --verify 20 --lead 100ms --attach overrun_limit=500ms --json >"$DIR/json"
        ip -o link show va | grep -q '[<,]UP'
        "$KTSN" status --run-dir "$DIR/run" --json | grep -q guest/va
        ! g setup --mode etf 2>/dev/null || exit 9
        ! "$KTSN" status --run-dir "$DIR/run" 2>/dev/null || exit 8
        g undo"#,
    );
    assert_eq!(
        (output.status.code(), out(&output).as_str()),
        (Some(0), "va: there is no set-up\n"),
        "{}",
        err(&output)
    );
    let document: Value =
        serde_json::from_slice(&std::fs::read(directory.path().join("json")).unwrap()).unwrap();
    let verified = &document["verified"];
    let number = |field: &str| verified[field].as_u64().unwrap();
    assert_eq!(number("left") + number("missed") + number("invalid"), 20, "{document:#}");
    assert!(number("left") >= 10 && number("early") == 0 && number("unaccounted") == 0, "{document:#}");
    assert!(document["run"].as_str().unwrap().starts_with("ktsn run --run-dir "), "{document:#}");
    assert!(!directory.path().join("run").exists(), "the run directory is left");
}

#[test]
fn a_set_up_that_fails_half_way_is_taken_back() {
    let directory = with_tc(" etf ");
    let output = inside(
        directory.path(),
        r#""$KTSN" guest setup --mode etf --device va --records "$DIR/records"; status=$?
        ip -o link show va | grep '[<,]UP'; ls "$DIR/records"; exit $status"#,
    );
    assert_eq!((output.status.code(), out(&output).as_str()), (Some(3), "lock\n"), "{}", err(&output));
    assert!(err(&output).contains("this kernel has no qdisc etf"), "{}", err(&output));
    let calls = calls(directory.path());
    assert_eq!(calls.len(), 3, "{calls:#?}");
    assert!(
        calls[0].contains(" mqprio ") && calls[1].contains(" etf ") && calls[2] == "qdisc del dev va root"
    );
}

#[test]
fn a_second_set_up_replaces_the_first_and_another_qdisc_is_left_alone() {
    let directory = with_tc("nothing");
    let output = inside(
        directory.path(),
        r#"set -e
        g() { "$KTSN" guest "$@" --device va --records "$DIR/records"; }
        g setup --mode etf --verify 0
        g setup --mode etf --verify 0 --delta 1ms | grep 'was taken back'
        echo '[{"kind":"fq","handle":"9:","root":true}]' >"$DIR/shown"
        g undo
        ! g setup --mode etf || exit 9"#,
    );
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    assert!(
        err(&output).contains("its root qdisc is fq 9:; expected the kernel's default"),
        "{}",
        err(&output)
    );
    let calls = calls(directory.path());
    let deletions = calls.iter().filter(|call| call.contains(" del ")).count();
    // The qdisc that came from elsewhere is not deleted.
    assert_eq!((calls.len(), deletions), (5, 1), "{calls:#?}");
}

/// Frames that nothing holds back until their time leave too early: the check sees it, and the set-up is taken back.
#[test]
fn a_set_up_that_keeps_no_time_is_taken_back() {
    let directory = with_tc("nothing");
    let output = inside(
        directory.path(),
        r#""$KTSN" guest setup --mode etf --device va --records "$DIR/records" --verify 20 --lead 4ms"#,
    );
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(
        err(&output).contains("was taken back: fewer than half of the frames left in time"),
        "{}",
        err(&output)
    );
    assert_eq!(calls(directory.path()).last().map(String::as_str), Some("qdisc del dev va root"));
}

#[test]
fn wrong_usage_names_field_value_and_expectation() {
    let directory = tempfile::tempdir().unwrap();
    for (arguments, status, words) in [
        ("setup --mode etf --device none0", 2, "--device none0: no such device"),
        ("setup --mode etf --device lo", 2, "expected an Ethernet device"),
        ("setup --mode taprio --device va", 2, "--schedule: missing"),
        ("setup --mode taprio --schedule /nowhere --device va", 2, "/nowhere: No such file"),
        ("setup --mode etf --classes 9 --device va", 2, "--classes 9: expected 2 to 8"),
        ("setup --mode etf --classes 5 --device va", 3, "device va: 4 queue pair(s); expected 5"),
        ("verify --device va", 2, "--device va: it is down"),
        ("verify --device vb --lead 2s", 2, "--lead"),
    ] {
        let output = inside(directory.path(), &format!("\"$KTSN\" guest {arguments}"));
        assert_eq!(output.status.code(), Some(status), "{arguments}: {}", err(&output));
        assert!(err(&output).contains(words), "{arguments}: {}", err(&output));
    }
}
