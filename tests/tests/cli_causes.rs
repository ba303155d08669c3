// SPDX-License-Identifier: Apache-2.0
//! A program that KTSN cannot serve has a line with the true cause and the remedy, and `ktsn doctor --program` knows it before.

#[allow(dead_code)]
use std::process::{Command, Output};

use ktsn_tests::cli::{err, inside, ktsn, out};
use ktsn_tests::hook;
use serde_json::Value;

const WITH_DAEMON: [&str; 4] = ["run", "--with-daemon", "va", "--"];
/// Without any right, and with 4 MiB that may be locked.
const CONFINED: [&str; 7] = [
    "prlimit",
    "--memlock=4194304:4194304",
    "setpriv",
    "--reuid=65534",
    "--clear-groups",
    "--inh-caps=-all",
    "--bounding-set=-all",
];

fn causes() -> String {
    hook::compiled("causes").display().to_string()
}

fn served(words: &[&str]) -> Output {
    let output = inside(&[&WITH_DAEMON, words].concat()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    output
}

/// State and value of a finding of `ktsn doctor --program`.
fn found(program: &str, name: &str, options: &str) -> (String, String) {
    let mut command = ktsn();
    let output = command
        .args(["doctor", "--json", "--program", program])
        .env("ASAN_OPTIONS", options)
        .output()
        .unwrap();
    let all: Value = serde_json::from_str(&out(&output)).unwrap_or_else(|e| panic!("{e}: {}", err(&output)));
    let finding = all["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == name).unwrap();
    let text = |key: &str| finding[key].as_str().unwrap().to_owned();
    assert!(!text("source").is_empty(), "{finding}");
    (text("state"), text("value"))
}

#[test]
fn memory_that_may_not_be_locked_is_the_cause() {
    let causes = causes();
    let locked = err(&served(&[&CONFINED[..], &[&causes, "lock", "2"]].concat()));
    let line = locked.lines().find(|line| line.starts_with("ktsn: ")).unwrap_or_else(|| panic!("{locked}"));
    assert!(line.contains("mlockall") && line.contains("RLIMIT_MEMLOCK"), "{line}");
    assert!(!locked.contains("no ktsnd"), "{locked}");
    // The same user without mlockall is served.
    let plain = err(&served(&[&CONFINED[..], &[&causes, "plain", "2"]].concat()));
    assert!(!plain.contains("ktsn: "), "{plain}");
}

#[test]
fn a_changed_root_is_the_cause() {
    let root = tempfile::tempdir().unwrap();
    let said = err(&served(&[&causes(), "chroot", &root.path().display().to_string(), "2"]));
    let line = said.lines().find(|line| line.starts_with("ktsn: ")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("(chroot)") && line.contains("before chroot"), "{line}");
    let (state, value) = found(&causes(), "program_chroot", "");
    assert_eq!((state.as_str(), value.as_str()), ("not known", "chroot or pivot_root is named"));
}

/// Whoever starts `ktsn run` in a container may be outside its PID namespace: the session is 0 there.
#[test]
fn a_program_that_goes_to_the_background_is_found_in_a_pid_namespace() {
    let causes = causes();
    let run = inside(&[&WITH_DAEMON[..], &[&causes, "daemon", "60"]].concat());
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc"]).arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let output = command.output().unwrap();
    let said = err(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("went to the background: causes (process "), "{said}");
}

/// What goes to the background is served as long as it runs, and that is said.
#[test]
fn a_program_that_goes_to_the_background_is_served_until_it_ends() {
    let said = err(&served(&[&causes(), "daemon", "60"]));
    let line =
        said.lines().find(|line| line.contains("went to the background")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.starts_with("ktsn run: the program went to the background: causes (process "), "{line}");
    for bad in ["daemon_absent", "not_attached", "no ktsnd"] {
        assert!(!said.contains(bad), "{said}");
    }
    assert_eq!(found(&causes(), "program_daemon", "").0, "not known");
    // A job of a shell's is none, and is not waited for.
    let output = served(&["sh", "-c", "sleep 600 >/dev/null 2>&1 & echo $!"]);
    assert!(!err(&output).contains("went to the background"), "{}", err(&output));
    let still_runs = Command::new("kill").arg(out(&output).trim()).status().unwrap();
    assert!(still_runs.success());
}

#[test]
fn asan_before_the_library_is_the_cause() {
    let dir = hook::open_directory();
    let program = dir.path().join("asan").display().to_string();
    let source = dir.path().join("asan.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let compiled =
        Command::new("gcc").args(["-fsanitize=address", "-o", &program]).arg(&source).status().unwrap();
    assert!(compiled.success());
    assert_eq!(found(&program, "program_asan", "").0, "fail");
    assert_eq!(found(&program, "program_asan", "verify_asan_link_order=0:halt_on_error=1").0, "ok");
    assert_eq!(found(&causes(), "program_asan", "").0, "ok");
    let ran = |options: &str| {
        let mut command = inside(&[&WITH_DAEMON[..], &[&program]].concat());
        command.env("ASAN_OPTIONS", options).output().unwrap()
    };
    let refused = ran("");
    assert!(!refused.status.success(), "{}", err(&refused));
    let said = err(&refused);
    let line = said.lines().find(|line| line.starts_with("ktsn run: warning: program_asan: "));
    assert!(line.is_some_and(|line| line.contains("verify_asan_link_order=0")), "{said}");
    let taken = ran("verify_asan_link_order=0");
    assert!(taken.status.success() && !err(&taken).contains("program_asan"), "{}", err(&taken));
}
