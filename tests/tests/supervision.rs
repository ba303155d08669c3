// SPDX-License-Identifier: Apache-2.0
//! A thread of the shipped daemon that panics or hangs: the process ends, or Health says so.
//!
//! The fault is one that debug builds let happen (`KTSND_TEST_FAULT`).

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, UPLINK, within};
use ktsn_tests::faults::control::Control;
use ktsn_tests::faults::daemon::{Attachment, Daemon, configuration};
use ktsn_tests::faults::eventually;
use ktsn_tests::faults::raw::Raw;
use ktsn_tests::hook::Running;

/// Generous: what counts is that it happens.
const SOON: Duration = Duration::from_secs(60);
const SIGABRT: i32 = 6;

/// ktsnd with an attachment, and the file that says which thread is to fail.
struct Faulty {
    bed: Bed,
    daemon: Daemon,
    process: Running,
    directory: tempfile::TempDir,
}

impl Faulty {
    fn start() -> Self {
        let bed = Bed::new();
        let daemon = Daemon::prepare(&bed.host_a, &configuration(&[Attachment::pod_a(&bed)]));
        let directory = tempfile::tempdir().expect("directory");
        let log = std::fs::File::create(directory.path().join("log")).expect("log");
        let mut command = daemon.command();
        command.env("KTSND_TEST_FAULT", directory.path().join("fault")).stdout(Stdio::null()).stderr(log);
        let process = Running(within(&bed.host_a, || command.spawn()).expect("ktsnd"));
        let mut faulty = Self { bed, daemon, process, directory };
        eventually("ktsnd serves", SOON, || faulty.health().filter(|health| health.serving));
        faulty
    }

    fn health(&mut self) -> Option<v1::HealthReply> {
        Control::connect(self.daemon.run_dir()).ok()?.health().ok()
    }

    fn fail(&self, what: &str) {
        let path = |name: &str| -> PathBuf { self.directory.path().join(name) };
        std::fs::write(path("new"), what).expect("fault");
        std::fs::rename(path("new"), path("fault")).expect("fault");
    }

    fn stuck(&mut self, thread: &str) -> v1::HealthReply {
        eventually("Health says so", SOON, || {
            let health = self.health()?;
            health.threads.iter().any(|it| it.is_stuck && it.name == thread).then_some(health)
        })
    }

    fn end(&mut self) -> ExitStatus {
        eventually("ktsnd ends", SOON, || self.process.0.try_wait().expect("its state"))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }
}

#[test]
fn a_panic_in_the_worker_ends_the_process_with_one_line() {
    let mut faulty = Faulty::start();
    let health = faulty.health().expect("health");
    for thread in ["ktsn-worker", "ktsn-registrar", "ktsn-notifier", "ktsn-returned", "ktsn-freed", "ktsnd"] {
        assert!(health.threads.iter().any(|it| it.name == thread && !it.is_stuck), "{thread}: {health:?}");
    }
    faulty.fail("panic ktsn-worker");
    assert_eq!(faulty.end().signal(), Some(SIGABRT));
    let log = faulty.log();
    let line = log.lines().find(|line| line.starts_with("ktsnd: panic in thread ktsn-worker at "));
    assert!(line.is_some_and(|line| line.contains("as the test asked for; the process ends")), "{log}");
}

#[test]
fn a_panic_in_the_control_thread_ends_the_process() {
    let mut faulty = Faulty::start();
    faulty.fail("panic ktsnd");
    assert_eq!(faulty.end().signal(), Some(SIGABRT));
}

#[test]
fn a_worker_that_hangs_is_told_takes_no_attachment_and_ends_the_process() {
    let mut faulty = Faulty::start();
    faulty.fail("stall ktsn-worker");
    let health = faulty.stuck("ktsn-worker");
    assert!(!health.serving, "{health:?}");
    let worker = health.threads.iter().find(|it| it.is_stuck).expect("the worker");
    assert!(worker.device == UPLINK && worker.silent_ns >= 1_000_000_000, "{worker:?}");
    assert!(health.warnings.iter().any(|text| text.contains("thread ktsn-worker of")), "{health:?}");
    let another = serde_json::json!({
        "name": "another", "netns": faulty.bed.pod_a, "interface": "eth0", "uplink": UPLINK,
    });
    let refused = faulty.daemon.control().attach(another).expect_err("refused");
    assert!(refused.message().contains("is stuck"), "{refused}");
    assert_eq!(faulty.end().signal(), Some(SIGABRT));
    let log = faulty.log();
    assert!(log.contains("stays stuck"), "{log}");
}

#[test]
fn a_registrar_that_hangs_is_told() {
    let mut faulty = Faulty::start();
    faulty.fail("stall ktsn-registrar");
    // It waits for clients, which is no fault, until one comes.
    let health = eventually("Health says so", SOON, || {
        let _ = Raw::connect(faulty.daemon.run_dir());
        let health = faulty.health()?;
        health.threads.iter().any(|it| it.is_stuck && it.name == "ktsn-registrar").then_some(health)
    });
    assert!(!health.serving);
    assert!(faulty.process.0.try_wait().expect("its state").is_none(), "{}", faulty.log());
}
