// SPDX-License-Identifier: Apache-2.0
//! `ktsn run --with-daemon`, and `status` and `doctor` beside a real ktsnd. Each test has a network namespace of its own,
//! which ends with its processes.

#[allow(dead_code)]
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use ktsn_eventually::try_eventually;
use ktsn_tests::cli::{err, folder, inside, out};

/// A program under `run --with-daemon va` that says its run directory and its ktsnd's number, then goes on.
/// `first` comes before it says so.
fn started(first: &str, script: &str) -> (Child, String, u32) {
    let script = format!("{first} echo $KTSN_RUN_DIR; cut -d' ' -f2 $KTSN_RUN_DIR/lock; {script}");
    let mut child = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare starts");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let run_dir = lines.next().expect("the program began").unwrap();
    let daemon = lines.next().expect("the lock names ktsnd").unwrap().parse().unwrap();
    (child, run_dir, daemon)
}

fn is_gone(pid: u32) -> bool {
    let path = format!("/proc/{pid}/exe");
    try_eventually(Duration::from_secs(20), || !Path::new(&path).exists()).is_some()
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn the_program_has_a_daemon_as_long_as_it_runs() {
    let script = "$KTSN status --json && $KTSN status >&2 && exit 9";
    let output = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(9), "{}", err(&output));
    assert!(!err(&output).contains("drain"), "an idle ktsnd has nothing to drain: {}", err(&output));
    let status: serde_json::Value =
        serde_json::from_str(&out(&output)).unwrap_or_else(|e| panic!("{e}: {}", out(&output)));
    assert_eq!(status["health"]["serving"], true);
    assert_eq!(status["attachments"][0]["interface"], "va");
    assert_eq!(status["attachments"][0]["uplink"], "va");
    assert!(status["ports"].as_array().unwrap().iter().any(|port| port["device"] == "va"), "{status}");
    let run_dir = status["run_dir"].as_str().unwrap();
    assert!(!Path::new(run_dir).exists(), "{run_dir} is removed");
    assert!(err(&output).contains("run/va"), "{}", err(&output));
}

/// Who asks from another terminal need not know its directory. Other tests may run a ktsnd beside it: then they are named.
#[test]
fn status_finds_it_without_its_directory() {
    let (mut child, run_dir, _) = started("", "exec sleep 600");
    for verb in [["status"].as_slice(), &["top", "--once", "--interval", "100ms"]] {
        let output =
            Command::new(folder().join("ktsn")).args(verb).env_remove("KTSN_RUN_DIR").output().unwrap();
        let said = format!("{}{}", out(&output), err(&output));
        // `top` shows no directory.
        let is_shown = said.contains(&run_dir) || (verb[0] == "top" && output.status.success());
        assert!(is_shown, "{verb:?}: {said}");
    }
    signal(&child, "TERM");
    child.wait().unwrap();
}

#[test]
fn timed_sends_are_taken_and_sent_by_it() {
    let script = "$KTSN talk 192.0.2.2:5000 --count 100 >&2 && python3 -c \"$COUNTED\" 100";
    let output = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let status: serde_json::Value =
        serde_json::from_str(&out(&output)).unwrap_or_else(|e| panic!("{e}: {}", out(&output)));
    let of = &status["statistics"]["attachments"][0];
    let count = |key: &str| of[key].as_u64().unwrap();
    let late = ["missed", "overrun"].map(|word| of["dropped"][word].as_u64().unwrap_or(0));
    // On a busy machine a frame may be too late to be sent, but none is lost without a word.
    assert_eq!(count("taken"), 100, "{of}");
    assert_eq!(count("sent") + late.iter().sum::<u64>(), 100, "{of}");
    assert!(count("sent") > 0, "{of}");
}

/// Its counters go with it, so it says what they say.
#[test]
fn what_was_dropped_is_told_at_the_end() {
    let talk = |to: &str| {
        let talk = format!("$KTSN talk {to}:5000 --count 100 --lead 20ms");
        inside(&["run", "--with-daemon", "va", "--", "sh", "-c", &talk]).output().unwrap()
    };
    let output = talk("192.0.2.99");
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let told: Vec<String> =
        err(&output).lines().filter(|line| line.contains("dropped as")).map(str::to_owned).collect();
    let line = told.iter().find(|line| line.contains("dropped as no_neighbour: the MAC address"));
    assert!(line.is_some_and(|line| line.starts_with("ktsn run: ")), "{}", err(&output));
    // On a busy machine a frame may be too late to be sent.
    let count = |line: &String| line.split(' ').nth(2).and_then(|count| count.parse::<u64>().ok()).unwrap();
    assert_eq!(told.iter().map(count).sum::<u64>(), 100, "{told:?}");
    let output = talk("192.0.2.2");
    let lines = err(&output);
    let is_late = |line: &str| line.contains("as missed") || line.contains("as overrun");
    assert!(lines.lines().all(|line| !line.contains("dropped as") || is_late(line)), "{lines}");
}

/// A program that the kernel serves instead has a warning while it runs, and its account at the end.
#[test]
fn what_the_kernel_sent_is_said_at_once_and_at_the_end() {
    let talk = |attach: &str| {
        let talk = "$KTSN talk 192.0.2.2:5000 --count 1500 --lead 20ms";
        let output = inside(&["run", "--with-daemon", attach, "--", "sh", "-c", talk]).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        err(&output)
    };
    let said = talk("va,destination=198.51.100.0/24");
    let warning = said.lines().find(|line| line.starts_with("ktsn run: warning: all "));
    let warning = warning.unwrap_or_else(|| panic!("no warning: {said}"));
    assert!(
        warning.contains("timed frames so far went to the kernel") && warning.contains("not_allowed"),
        "{warning}"
    );
    let passed: Vec<_> = said.lines().filter(|line| line.contains("passed to the kernel as")).collect();
    assert_eq!(passed.len(), 1, "{said}");
    // Before the program was attached nothing was counted.
    let count: u64 = passed[0].split(' ').nth(2).unwrap().parse().unwrap();
    assert!((1..=1500).contains(&count) && passed[0].contains("as not_allowed: their destination"), "{said}");
    let said = talk("va");
    assert!(!said.contains("to the kernel"), "{said}");
}

#[test]
fn top_shows_the_rates_of_an_interval() {
    // It talks until it is ended; `timeout` ends with a status of its own.
    let script = "$KTSN talk 192.0.2.2:5000 --count 100000 --lead 20ms >&2 & python3 -c \"$COUNTED\" 500 >&2 && \
                  $KTSN top --once --json --interval 1s && $KTSN top --once --interval 300ms && timeout 3 $KTSN top --interval 200ms; \
                  kill $!; wait";
    let output = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
    let text = out(&output);
    let (first, rest) = text.split_once('\n').expect("JSON in one line");
    let top: serde_json::Value = serde_json::from_str(first).unwrap_or_else(|e| panic!("{e}: {text}"));
    let of = &top["attachments"][0];
    // One a millisecond, on a machine that may be busy.
    let sent = of["sent_per_second"].as_f64().unwrap();
    assert!((100.0..1_200.0).contains(&sent), "{top}");
    assert_eq!(of["streams"], 1, "{top}");
    assert!(of["transmit_error_ns"]["p50"].as_u64().is_some(), "{top}");
    assert!(top["ports"][0]["frames_per_second"].as_f64().unwrap() > 100.0, "{top}");
    assert!(rest.contains("run/va") && rest.contains("worker") && rest.contains("per second"), "{rest}");
    assert!(!rest.contains('\x1b'), "no terminal, no escapes: {rest}");
    let lines = rest.lines().filter(|line| line.contains("taken ") && line.contains(" per second; ")).count();
    assert!((2..=15).contains(&lines), "a line each interval: {rest}");
}

#[test]
fn signals_reach_the_program_and_the_daemon_ends_after_it() {
    let (mut child, run_dir, daemon) = started("trap 'exit 5' TERM;", "while :; do sleep 0.05; done");
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(5), "the program's own answer to the signal");
    assert!(is_gone(daemon) && !Path::new(&run_dir).exists());

    let (mut child, _, daemon) = started("", "exec sleep 60");
    signal(&child, "INT");
    assert_eq!(child.wait().unwrap().code(), Some(130), "128 + SIGINT");
    assert!(is_gone(daemon));
}

#[test]
fn a_killed_ktsn_leaves_no_daemon_and_no_directory() {
    let (mut child, run_dir, daemon) = started("", "echo $$; exec sleep 2");
    signal(&child, "KILL");
    child.wait().unwrap();
    assert!(is_gone(daemon), "ktsnd {daemon} still runs");
    assert!(!Path::new(&run_dir).exists(), "{run_dir} is left");
}

#[test]
fn a_daemon_that_dies_is_told_and_the_program_goes_on() {
    let script = "kill -9 $(cut -d' ' -f2 $KTSN_RUN_DIR/lock); sleep 3; exit 4";
    let output = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", script]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{}", err(&output));
    assert!(err(&output).contains("ktsnd ended before the program"), "{}", err(&output));
    assert!(err(&output).contains("daemon_absent"), "{}", err(&output));
}

#[test]
fn a_daemon_that_does_not_start_is_shown_with_its_log() {
    for (attach, expected) in
        [("nosuch", "nosuch"), ("va,colour=red", "colour"), ("va,horizon=soon", "horizon")]
    {
        let output = inside(&["run", "--with-daemon", attach, "--", "echo", "ran"]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{attach}: {}", err(&output));
        assert!(
            err(&output).contains("ktsnd did not start") && err(&output).contains(expected),
            "{}",
            err(&output)
        );
        assert_eq!(out(&output), "", "the program must not run without its daemon");
    }
    let output = inside(&["run", "--with-daemon", "va", "--", "no-such-program"]).output().unwrap();
    assert_eq!(output.status.code(), Some(127), "{}", err(&output));
}

#[test]
fn a_run_directory_in_use_is_refused() {
    let (mut child, run_dir, _) = started("", "exec sleep 60");
    let arguments = ["run", "--run-dir", &run_dir, "--with-daemon", "va", "--", "true"];
    let output = inside(&arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    assert!(err(&output).contains("another ktsnd"), "{}", err(&output));
    signal(&child, "TERM");
    assert_eq!(child.wait().unwrap().code(), Some(143));
}

#[test]
fn watching_goes_on_until_the_daemon_ends() {
    let (mut child, run_dir, _) = started("", "exec sleep 60");
    let mut watcher = ktsn_tests::cli::ktsn()
        .args(["status", "--watch", "--json", "--run-dir", &run_dir])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watcher.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["health"]["serving"], true);
    }
    signal(&child, "TERM");
    child.wait().unwrap();
    assert_eq!(watcher.wait().unwrap().code(), Some(1), "a daemon that is gone ends the watch");
}

#[test]
fn doctor_sees_the_daemon() {
    let script = "$KTSN doctor --json";
    let output = inside(&["run", "--with-daemon", "va", "--", "sh", "-c", script]).output().unwrap();
    let value: serde_json::Value =
        serde_json::from_str(&out(&output)).unwrap_or_else(|e| panic!("{e}: {}", out(&output)));
    let state = |name: &str| {
        let findings = value["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["name"] == name).unwrap()["state"].clone()
    };
    assert_eq!(state("client_socket"), "ok");
    assert_ne!(state("ktsnd"), "fail");
}
