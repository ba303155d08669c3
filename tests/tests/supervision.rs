// SPDX-License-Identifier: Apache-2.0
//! A thread of the shipped daemon that panics or hangs: the process ends, or Health says so.
//!
//! The fault is one that debug builds let happen (`KTSND_TEST_FAULT`).

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::Control;
use ktsn_tests::faults::daemon::{Attachment, Daemon, configuration};
use ktsn_tests::faults::raw::Raw;
use ktsn_tests::faults::talker::arrive;
use ktsn_tests::faults::{Tap, eventually};

/// Generous: what counts is that it happens.
const SOON: Duration = Duration::from_secs(60);
const SIGABRT: i32 = 6;

/// ktsnd with an attachment, and the file that says which thread is to fail.
struct Faulty {
    bed: Bed,
    daemon: Daemon,
    directory: tempfile::TempDir,
}

impl Faulty {
    fn start() -> Self {
        let bed = Bed::new();
        let directory = tempfile::tempdir().expect("directory");
        let daemon = Daemon::prepare(&bed.host_a, &configuration(&[Attachment::pod_a(&bed)]));
        let mut daemon = daemon.with_variable("KTSND_TEST_FAULT", directory.path().join("fault"));
        daemon.spawn();
        let mut faulty = Self { bed, daemon, directory };
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
        eventually("ktsnd ends", SOON, || self.daemon.has_ended())
    }

    fn log(&self) -> String {
        self.daemon.log()
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
    assert!(faulty.daemon.has_ended().is_none(), "{}", faulty.log());
}

/// Each thread that asks the kernel for its RTNL lock waits, as while a driver holds it: the self-test of a card takes 16 s.
/// Frames leave meanwhile, Health is answered with the cause, and no thread counts as stuck.
#[test]
fn a_driver_that_holds_rtnl_stops_neither_frames_nor_health_and_is_named() {
    let mut faulty = Faulty::start();
    let tap = Tap::open(&faulty.bed.host_b, UPLINK);
    arrive(&faulty.daemon, &tap, &faulty.bed.pod_a, POD_B, 1, 5);
    faulty.fail("hold rtnl");
    let waits = |health: &v1::HealthReply, thread: &str| {
        let start = format!("thread {thread} of {UPLINK} has waited for the kernel for ");
        let start =
            if thread == "ktsnd" { "thread ktsnd has waited for the kernel for ".to_owned() } else { start };
        health.warnings.iter().any(|text| text.starts_with(&start) && text.contains("RTNL lock"))
    };
    eventually("the uplink's thread waits, and Health says so", SOON, || {
        faulty.health().filter(|health| waits(health, "ktsn-uplink"))
    });
    // An attachment that asks the kernel waits, too; the node with it.
    let another = serde_json::json!({
        "name": "another", "netns": faulty.bed.pod_q, "interface": "eth0", "uplink": UPLINK,
        "destinations": ["10.244.1.0/24"],
    });
    let mut control = faulty.daemon.control();
    let attaching = std::thread::spawn(move || control.attach(another));
    let health = eventually("the node waits, and Health says so", SOON, || {
        faulty.health().filter(|health| waits(health, "ktsnd"))
    });
    assert!(health.serving && !health.threads.iter().any(|thread| thread.is_stuck), "{health:?}");
    let silent = faulty.daemon.control().statistics_of("").expect_err("the node waits");
    assert!(silent.code() == tonic::Code::Unavailable && silent.message().contains("RTNL lock"), "{silent}");
    let talked = ktsn_tests::faults::talker::talk(&faulty.daemon, &faulty.bed.pod_a, POD_B, 2, "count=20");
    assert_eq!(talked["failed"], 0);
    assert_eq!(tap.wait(2, 20, SOON).len(), 20, "{}", faulty.log());
    assert!(!attaching.is_finished(), "{}", faulty.log());
    faulty.fail("nothing more");
    let attached = attaching.join().expect("its thread");
    assert!(
        matches!(attached, Ok(false)) || attached.is_err_and(|error| error.code() == tonic::Code::Cancelled)
    );
    eventually("nothing waits", SOON, || {
        faulty.health().filter(|health| !health.warnings.iter().any(|text| text.contains("RTNL lock")))
    });
    assert!(faulty.daemon.has_ended().is_none(), "{}", faulty.log());
    let log = faulty.log();
    assert!(!log.contains("is stuck") && log.contains("waits for the kernel"), "{log}");
}
