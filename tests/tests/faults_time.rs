// SPDX-License-Identifier: Apache-2.0
//! Transmit times that are wrong, and programs that end while frames wait.

use std::time::{Duration, Instant};

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, arrive, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);

/// How long a frame may take that is sent at once; generous, the worker is no real-time thread here.
const AT_ONCE_NS: i64 = 10_000_000_000;

/// A MONOTONIC TxTime of zero or in the past is sent at once; a TAI one is dropped: `invalid_time`, `missed`.
#[test]
fn zero_and_past() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed).by_clock()]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "clock=1 count=5 zero=1");
    talk(&daemon, &bed.pod_a, POD_B, 2, "clock=1 count=5 past=1 lead_us=20000");
    assert_eq!(tap.wait(1, 5, SOON).len(), 5, "{:?}", daemon.control().counters(NAME));
    let past = tap.wait(2, 5, SOON);
    assert_eq!(past.len(), 5);
    assert!(past.iter().all(|a| a.after_ns > 19_000_000 && a.after_ns < AT_ONCE_NS), "{past:?}");
    assert!(past.iter().all(|a| a.is_overlay));
    let before = daemon.control().counters_of(NAME, 10, SOON);
    // Zero is fq's word for "at once": nothing to be late for, and nothing that a distribution could show.
    let measured = before.transmit_error.as_ref().expect("histogram").count;
    assert_eq!((before.sent, before.late, before.overrun, measured), (10, 5, 0, 0), "{before:?}");
    talk(&daemon, &bed.pod_a, POD_B, 3, "clock=11 count=5 zero=1");
    talk(&daemon, &bed.pod_a, POD_B, 4, "clock=11 count=5 past=1 lead_us=20000");
    let counters = eventually("ten drops", SOON, || {
        let counters = daemon.control().counters(NAME);
        (counters.dropped.values().sum::<u64>() >= 10).then_some(counters)
    });
    assert_eq!(counters.sent, 10, "{counters:?}");
    let dropped = |word| reason(&counters.dropped, word);
    assert_eq!((dropped("invalid_time"), dropped("missed")), (5, 5), "{counters:?}");
    assert!(tap.of(3).is_empty() && tap.of(4).is_empty());
}

/// 37 s ahead is the difference of TAI and UTC: refused as `beyond_horizon`, and the log gives that hint.
#[test]
fn the_tai_utc_mistake() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=3 burst=1 lead_us=37000000");
    arrive(&daemon, &tap, &bed.pod_a, POD_B, 2, 3);
    let counters = eventually("the drops", SOON, || {
        let counters = daemon.control().counters(NAME);
        // A first one is lost, counted, where the machine stands still while its socket is looked at.
        let all: u64 = counters.dropped.values().sum();
        (counters.sent + all == 6).then_some(counters)
    });
    let (far, absent) =
        (reason(&counters.dropped, "beyond_horizon"), reason(&counters.dropped, "daemon_absent"));
    assert!(far >= 2 && counters.sent >= 2 && counters.sent + far + absent == 6, "{counters:?}");
    assert!(tap.of(1).is_empty());
    let log = daemon.log();
    assert!(log.contains("beyond_horizon") && log.contains("TAI"), "no hint: {log}");
}

/// A frame 9 s ahead is kept; a detach drops it as `detached`, and the counter of a later attachment is its own.
#[test]
fn nine_seconds_ahead_then_detached() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let mut talker =
        Talker::start(&daemon, &bed.pod_a, POD_B, 1, "count=4 burst=1 lead_us=9000000 hold_ms=60000");
    eventually("four frames are taken", SOON, || daemon.control().counters(NAME).taken == 4);
    let began = Instant::now();
    daemon.control().detach(NAME).expect("detach");
    assert!(daemon.control().list().attachments.is_empty());
    // The program is alive and keeps its socket; its frames are not sent.
    std::thread::sleep(Duration::from_secs(10).saturating_sub(began.elapsed()));
    assert!(tap.of(1).is_empty());
    assert!(talker.child().try_wait().expect("talker").is_none());
}

/// Ten future sends, then exit(0): all ten leave at their times.
#[test]
fn frames_outlive_their_program() {
    let bed = Bed::new();
    let daemon = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=10 burst=1 period_us=20000 lead_us=3000000");
    assert!(tap.of(1).is_empty(), "the program ended before its first TxTime");
    let arrived = tap.wait(1, 10, SOON);
    assert_eq!(arrived.iter().map(|a| a.sequence).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    eventually("the client is gone", SOON, || daemon.clients() == 0);
}

/// SIGTERM: nothing new is taken, what is queued leaves at its time, then the daemon ends with 0.
#[test]
fn sigterm_drains() {
    let bed = Bed::new();
    let mut daemon = Daemon::start_in_order(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let talker = Talker::start(
        &daemon,
        &bed.pod_a,
        POD_B,
        1,
        "count=20 burst=1 period_us=50000 lead_us=3000000 hold_ms=6000",
    );
    eventually("frames are taken", SOON, || daemon.control().counters(NAME).taken == 20);
    assert_eq!(daemon.terminate(SOON), Some(0), "{}", daemon.log());
    let arrived = tap.wait(1, 20, SOON);
    assert_eq!(arrived.iter().map(|a| a.sequence).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let (values, errors) = talker.finish();
    assert_eq!(values["failed"], 0, "{errors}");
}
