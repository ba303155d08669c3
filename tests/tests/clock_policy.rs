// SPDX-License-Identifier: Apache-2.0
//! `unsynchronised` of the shipped daemon. The clock's source is chronyd's tool, and the tool is the test's: the machine's own
//! clock is neither asked nor set.

use std::path::Path;
use std::time::Duration;

use ktsn_eventually::make_program;
use ktsn_proto::v1;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME, port};
use ktsn_tests::faults::talker::{Talker, arrive, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(60);

/// A tool that says what the test wants.
struct Chronyc(tempfile::TempDir);

impl Chronyc {
    fn new(is_good: bool) -> Self {
        let tool = Self(tempfile::tempdir().expect("directory"));
        let script = format!("#!/bin/sh\nexec cat {}/answer\n", tool.0.path().display());
        make_program(&tool.0.path().join("chronyc"), script.as_bytes());
        tool.say(is_good);
        tool
    }

    fn say(&self, is_good: bool) {
        let leap = if is_good { "Normal" } else { "Not synchronised" };
        let path = |name: &str| self.0.path().join(name);
        let answer = format!("0,x,3,1700000000.1,-0.000001,0.0,0.0,0.0,0.0,0.0,0.004,0.0005,64.0,{leap}\n");
        std::fs::write(path("new"), answer).expect("answer");
        std::fs::rename(path("new"), path("answer")).expect("answer");
    }

    fn path(&self) -> String {
        let own: &Path = self.0.path();
        format!("{}:{}", own.display(), std::env::var("PATH").unwrap_or_default())
    }
}

fn start(bed: &Bed, tool: &Chronyc, policy: &str) -> Daemon {
    let text = format!(
        "[daemon]\nclock_source = \"chrony\"\n{}unsynchronised = \"{policy}\"\n{}",
        port("auto"),
        Attachment::pod_a(bed).toml()
    );
    let mut daemon = Daemon::prepare(&bed.host_a, &text).with_variable("PATH", tool.path());
    daemon.spawn();
    daemon
}

fn clock(daemon: &Daemon, is_good: bool) -> v1::ClockState {
    eventually("the clock is seen", SOON, || {
        let clock = daemon.control().health().ok()?.clock?;
        (clock.is_good == is_good).then_some(clock)
    })
}

#[test]
fn drop_is_for_what_depends_on_tai() {
    let (bed, tool) = (Bed::new(), Chronyc::new(true));
    let daemon = start(&bed, &tool, "drop");
    let tap = Tap::open(&bed.host_b, UPLINK);
    let good = clock(&daemon, true);
    assert_eq!((good.source.as_str(), good.transitions, good.holding.len()), ("chrony", 0, 0), "{good:?}");
    assert_eq!(good.error_ns, Some(2_501_000));
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 1, 3);
    tool.say(false);
    let bad = clock(&daemon, false);
    assert_eq!((bad.transitions, bad.holding.as_slice()), (1, &[UPLINK.to_owned()][..]), "{bad:?}");
    assert!(bad.reason.contains("not synchronised"), "{bad:?}");
    let before = daemon.control().counters(NAME);
    talk(&daemon, &bed.pod_a, POD_B, 2, "clock=11 count=5");
    eventually("they are dropped", SOON, || {
        let now = daemon.control().counters(NAME);
        let dropped = |word| reason(&now.dropped, word) - reason(&before.dropped, word);
        dropped("unsynchronised") + dropped("daemon_absent") == 5
    });
    talk(&daemon, &bed.pod_a, POD_B, 3, "clock=1 count=5");
    eventually("MONOTONIC is not concerned", SOON, || tap.of(3).len() >= 4);
    assert!(tap.of(2).is_empty());
    tool.say(true);
    assert_eq!(clock(&daemon, true).transitions, 2);
    talk(&daemon, &bed.pod_a, POD_B, 4, "clock=11 count=5");
    eventually("TAI is good again", SOON, || tap.of(4).len() >= 4);
    let log = daemon.log();
    let told = |text: &str| log.lines().filter(|line| line.contains(text)).count();
    assert_eq!((told("the clock is good"), told("the clock is not good")), (2, 1), "{log}");
}

#[test]
fn hold_sends_when_the_clock_is_good() {
    let (bed, tool) = (Bed::new(), Chronyc::new(false));
    let daemon = start(&bed, &tool, "hold");
    let tap = Tap::open(&bed.host_b, UPLINK);
    clock(&daemon, false);
    let keys = "clock=11 count=4 burst=1 lead_us=1000000 hold_ms=60000";
    let _talker = Talker::start(&daemon, &bed.pod_a, POD_B, 1, keys);
    // Behind them in time, and by the other clock.
    talk(&daemon, &bed.pod_a, POD_B, 2, "clock=1 count=3 burst=1 lead_us=2000000");
    eventually("MONOTONIC passes them", SOON, || tap.of(2).len() >= 2);
    assert!(tap.of(1).is_empty());
    tool.say(true);
    clock(&daemon, true);
    eventually("they leave, or are told to be too late", SOON, || {
        let now = daemon.control().counters(NAME);
        assert_eq!(reason(&now.dropped, "unsynchronised"), 0, "{now:?}");
        let others = ["missed", "overrun", "daemon_absent"].map(|word| reason(&now.dropped, word));
        tap.of(1).len() as u64 + others.iter().sum::<u64>() >= 4
    });
}
