// SPDX-License-Identifier: Apache-2.0
//! `ktsn run`: what the program gets, what its caller gets back, and what is said when it cannot be served.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use ktsn_eventually::make_program;
use ktsn_tests::cli::{err, ktsn, out, run};

fn script(path: &Path, text: &str, mode: u32) {
    make_program(path, text.as_bytes());
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn exit_statuses_and_signals_are_the_programs() {
    for status in [0, 1, 2, 3, 7, 126, 255] {
        let output = run(&["run", "--", "sh", "-c", &format!("exit {status}")]);
        assert_eq!(output.status.code(), Some(status), "{}", err(&output));
    }
    for signal in [2, 9, 15] {
        // Whoever runs the tests in the background may ignore SIGINT, and a shell can't take that back.
        let kill = format!("kill -{signal} $$");
        let output = run(&["run", "--", "env", "--default-signal=INT", "sh", "-c", &kill]);
        assert_eq!(output.status.signal(), Some(signal), "{output:?}");
    }
}

#[test]
fn the_program_takes_our_place() {
    let child = ktsn()
        .args(["run", "--", "sh", "-c", "echo $$"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("ktsn starts");
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(out(&output).trim(), pid.to_string());
}

#[test]
fn arguments_and_streams_are_untouched() {
    let strange = ["", " ", "--help", "-x", "--", "a\nb", "$HOME", "*", "ü", "--run-dir"];
    let output = ktsn().args(["run", "--", "printf", "[%s]"]).args(strange).output().unwrap();
    let expected: String = strange.iter().map(|argument| format!("[{argument}]")).collect();
    assert_eq!(out(&output), expected);
    let bytes = std::ffi::OsStr::from_bytes(b"\xff\xfe");
    let output = ktsn().args(["run", "printf", "%s"]).arg(bytes).output().unwrap();
    assert_eq!(output.stdout, b"\xff\xfe");
    // Options after the program's name are the program's, with or without `--`.
    assert_eq!(out(&run(&["run", "echo", "--policy", "strict"])).trim(), "--policy strict");
}

#[test]
fn the_environment_names_library_directory_and_policy() {
    let library = ktsn_tests::hook::library().canonicalize().unwrap();
    let output = ktsn()
        .args(["run", "--run-dir", "some/dir", "--policy", "strict", "--"])
        .args(["sh", "-c", "echo $LD_PRELOAD; echo $KTSN_RUN_DIR; echo $KTSN_POLICY"])
        .env("LD_PRELOAD", "libm.so.6")
        .current_dir("/")
        .output()
        .unwrap();
    assert_eq!(
        out(&output),
        format!("{}:libm.so.6\n/some/dir\nstrict\n", library.display()),
        "{}",
        err(&output)
    );
    let output = run(&["run", "--", "cat", "/proc/self/maps"]);
    assert!(out(&output).contains(&library.display().to_string()), "{}", err(&output));
    let output = run(&["run", "--emulate-hwtstamp", "printenv", "KTSN_EMULATE_HWTSTAMP"]);
    assert_eq!(out(&output), "1\n", "{}", err(&output));
    assert_eq!(run(&["run", "printenv", "KTSN_EMULATE_HWTSTAMP"]).status.code(), Some(1));
    // A policy that is not on the command line stays as it was.
    let output =
        ktsn().args(["run", "printenv", "KTSN_POLICY"]).env("KTSN_POLICY", "strict").output().unwrap();
    assert_eq!(out(&output), "strict\n");
}

#[test]
fn how_the_program_waits_is_in_its_environment() {
    let says = ["sh", "-c", "echo ${KTSN_RECEIVE-none}"];
    for (flags, said) in
        [(&[][..], "none"), (&["--receive", "expect"], "expect"), (&["--receive", "kernel"], "kernel")]
    {
        let output = ktsn().arg("run").args(flags).arg("--").args(says).output().unwrap();
        assert_eq!(out(&output).trim(), said, "{}", err(&output));
    }
    let output = run(&["run", "--receive", "often", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    let output = run(&["run", "--receive", "expect", "--capture", "kernel", "--", "true"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("leave one of both away"), "{}", err(&output));
}

/// `--receive-period` comes to libktsn in its own form; one that it would refuse is refused here, with the flag, the value and the bounds.
#[test]
fn a_period_is_checked_before_the_program_runs() {
    let run = |flags: &[&str], environment: &[(&str, &str)]| {
        let flags = flags.iter().copied().chain(["--", "printenv", "KTSN_RECEIVE_PERIOD"]);
        ktsn().arg("run").args(flags).envs(environment.iter().copied()).output().unwrap()
    };
    for (text, said) in
        [("50us", "50000ns"), ("1ms", "1000000ns"), ("10s", "10000000000ns"), ("1ms 500us", "1500000ns")]
    {
        let output = run(&["--receive", "expect", "--receive-period", text], &[]);
        assert_eq!(out(&output).trim(), said, "{}", err(&output));
    }
    let output = run(&["--receive-period", "1ms"], &[("KTSN_RECEIVE", "expect")]);
    assert_eq!(out(&output).trim(), "1000000ns", "{}", err(&output));
    for text in ["49us", "49999ns", "10s 1ns", "0s", "1", "soon", ""] {
        let output = run(&["--receive", "expect", "--receive-period", text], &[]);
        assert_eq!(output.status.code(), Some(2), "{text}: {}", err(&output));
        let told =
            format!("invalid value '{text}' for '--receive-period <TIME>': expected a time from 50us to 10s");
        // clap has its own words for an empty value.
        assert!(err(&output).contains(&told) || text.is_empty(), "{}", err(&output));
    }
    for (flags, environment) in [
        (&["--receive-period", "1ms"][..], &[][..]),
        (&["--receive", "kernel", "--receive-period", "1ms"], &[("KTSN_RECEIVE", "expect")]),
        (&["--receive", "expect", "--receive-period", "1ms", "--capture", "kernel"], &[]),
    ] {
        let output = run(flags, environment);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {}", err(&output));
        assert!(out(&output).is_empty());
    }
}

#[test]
fn what_cannot_start_is_told_as_shells_do() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    script(Path::new(&at("plain")), "x", 0o644);
    script(Path::new(&at("orphan")), "#!/no/such/interpreter\n", 0o755);
    for (program, status, remedy) in [
        ("no-such-program".to_owned(), 127, "search path"),
        (at("missing"), 127, "give the path"),
        (at("orphan"), 127, "interpreter"),
        (at("plain"), 126, "chmod +x"),
        (dir.path().display().to_string(), 126, ""),
        (String::new(), 127, "give the path"),
    ] {
        let output = run(&["run", "--", &program]);
        assert_eq!(output.status.code(), Some(status), "{program}: {}", err(&output));
        assert!(err(&output).contains(remedy), "{program}: {}", err(&output));
    }
}

#[test]
fn wrong_usage_is_2_and_what_is_not_possible_is_3() {
    let long = format!("/{}", "d".repeat(100));
    for arguments in [
        &["run"][..],
        &["run", "--"],
        &["run", "--policy", "other", "true"],
        &["run", "--capture", "other", "true"],
        &["run", "--no-such-flag", "true"],
        &["run", "--run-dir", &long, "true"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", err(&output));
        assert!(!err(&output).is_empty());
    }
    let captured = ["run", "--capture", "kernel", "--run-dir", "/no-such-directory"];
    let output = run(&[&captured[..], &["--policy", "strict", "--", "true"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(err(&output).contains("capture_kernel"), "{}", err(&output));
    let output = run(&[&captured[..], &["--", "true"]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert!(err(&output).contains("warning: capture_kernel"), "{}", err(&output));
    let output = run(&[&captured[..], &["--with-daemon", "eth0", "--", "true"]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("--with-daemon"), "{}", err(&output));
    let output = ktsn().args(["run", "true"]).env("KTSN_LIB", "/no/libktsn.so").output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(
        err(&output).contains("libktsn_missing") && err(&output).contains("KTSN_LIB"),
        "{}",
        err(&output)
    );
    let dir = tempfile::Builder::new().prefix("with space").tempdir().unwrap();
    let library = dir.path().join("libktsn.so");
    std::fs::copy(ktsn_tests::hook::library(), &library).unwrap();
    let output = ktsn().args(["run", "true"]).env("KTSN_LIB", &library).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", err(&output));
    assert!(err(&output).contains("space or colon"), "{}", err(&output));
}

#[test]
fn programs_that_no_library_can_serve_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("seven.c");
    std::fs::write(&source, "int main(void) { return 7; }\n").unwrap();
    let program = dir.path().join("seven");
    let compiled = Command::new("gcc").arg("-static").arg("-o").arg(&program).arg(&source).status().unwrap();
    assert!(compiled.success());
    let program = program.display().to_string();
    let output = run(&["run", "--", &program]);
    assert_eq!(output.status.code(), Some(7), "it runs all the same");
    assert!(err(&output).contains("program_static"), "{}", err(&output));
    let output = run(&["run", "--policy", "strict", "--", &program]);
    assert_eq!(output.status.code(), Some(3), "strict cannot be kept: {}", err(&output));
    let output = ktsn().args(["run", &program]).env("KTSN_LOG", "off").output().unwrap();
    assert_eq!((output.status.code(), err(&output).as_str()), (Some(7), ""));

    // Rights gained at the start: the loader ignores LD_PRELOAD.
    let gaining = dir.path().join("gaining");
    make_program(&gaining, &std::fs::read("/bin/true").unwrap());
    std::os::unix::fs::chown(&gaining, Some(12345), None).unwrap();
    std::fs::set_permissions(&gaining, std::fs::Permissions::from_mode(0o4755)).unwrap();
    let output = run(&["run", "--", &gaining.display().to_string()]);
    assert!(err(&output).contains("program_privileged"), "{}", err(&output));

    // An ordinary program is not commented on.
    assert_eq!(err(&run(&["run", "--", "true"])), "");
}

#[test]
fn every_command_has_an_example() {
    for command in ["run", "status", "doctor"] {
        let output = run(&[command, "--help"]);
        assert_eq!(output.status.code(), Some(0));
        let example = format!("  ktsn {command}");
        assert!(out(&output).contains("Example") && out(&output).contains(&example), "{}", out(&output));
    }
}
