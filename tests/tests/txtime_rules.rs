// SPDX-License-Identifier: Apache-2.0
//! Which rule of the kernel a timed socket has, by its clock and flags, and which word says why a frame was late:
//! docs/txtime.md, "Flags and clocks".

use std::time::Duration;

use ktsn_proto::v1::AttachmentStatistics;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hook;
use rustix::process::{Pid, Signal, kill_process};

const SOON: Duration = Duration::from_secs(20);

fn pod_a(bed: &Bed) -> Attachment {
    Attachment {
        more: "overrun_limit = \"50ms\"\nslots = 64".to_owned(),
        ..Attachment::pod_a(bed).by_clock()
    }
}

/// Stops the daemon for `span`.
fn stopped(daemon: &Daemon, span: Duration) {
    let pid = Pid::from_raw(i32::try_from(daemon.pid()).expect("pid")).expect("pid");
    kill_process(pid, Signal::STOP).expect("SIGSTOP");
    std::thread::sleep(span);
    kill_process(pid, Signal::CONT).expect("SIGCONT");
}

/// The counters when so many frames have been taken, and each has left or was dropped. The talker may end before ktsnd has taken its last.
fn settled(daemon: &Daemon, taken: u64) -> AttachmentStatistics {
    eventually("each frame has left or was dropped", SOON, || {
        let counters = daemon.control().counters(NAME);
        let is_settled = counters.sent + counters.dropped.values().sum::<u64>() == counters.taken;
        (is_settled && counters.taken >= taken).then_some(counters)
    })
}

/// etf's deadline mode, and the same on MONOTONIC: a frame leaves at once, and never after its time.
#[test]
fn a_deadline_is_the_last_instant() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    for (sender, clock) in [(1, 11), (2, 1)] {
        talk(
            &daemon,
            &bed.pod_a,
            POD_B,
            sender,
            &format!("clock={clock} flags=1 count=20 period_us=5000 lead_us=5000000"),
        );
        let arrived = tap.wait(sender, 20, SOON);
        assert_eq!(arrived.len(), 20, "{:?}", daemon.control().counters(NAME));
        assert!(arrived.iter().all(|a| a.after_ns < 0), "{arrived:?}");
        let order: Vec<_> = arrived.iter().map(|a| a.sequence).collect();
        assert!(order.is_sorted(), "{order:?}");
        // Its deadline has passed: never sent.
        talk(
            &daemon,
            &bed.pod_a,
            POD_B,
            sender + 10,
            &format!("clock={clock} flags=1 count=5 past=1 lead_us=20000"),
        );
    }
    eventually("drops", SOON, || reason(&daemon.control().counters(NAME).dropped, "missed") == 10);
    assert!(tap.of(11).is_empty() && tap.of(12).is_empty());
    // The same socket without the flag: not before its time.
    talk(&daemon, &bed.pod_a, POD_B, 3, "clock=1 count=5 lead_us=300000");
    assert!(tap.wait(3, 5, SOON).iter().all(|a| a.after_ns >= 0));
}

/// The worker comes too late: etf's rule drops, fq's rule sends, and neither is the program's fault.
#[test]
fn an_overslept_frame_goes_by_its_clocks_rule() {
    let bed = Bed::new();
    for (late, sent_on_monotonic) in [("by-clock", true), ("drop", false)] {
        let daemon = Daemon::start(&bed, &[Attachment { late, ..pod_a(&bed) }]);
        let tap = Tap::open(&bed.host_b, UPLINK);
        let mut overruns = 0;
        for (clock, is_sent) in [(1, sent_on_monotonic), (11, false)] {
            let before = daemon.control().counters(NAME);
            let keys = format!("clock={clock} burst=1 count=10 period_us=1000 lead_us=3000000 hold_ms=7000");
            let talker = Talker::start(&daemon, &bed.pod_a, POD_B, clock, &keys);
            eventually("all are taken", SOON, || daemon.control().counters(NAME).taken == before.taken + 10);
            stopped(&daemon, Duration::from_secs(4));
            let counters = settled(&daemon, before.taken + 10);
            assert_eq!(
                counters.sent - before.sent,
                if is_sent { 10 } else { 0 },
                "{late} {clock}: {counters:?}"
            );
            // The tap's thread may be behind the counter.
            let arrived = if is_sent { tap.wait(clock, 10, SOON) } else { tap.of(clock) };
            assert_eq!(arrived.len(), if is_sent { 10 } else { 0 });
            overruns += if is_sent { 0 } else { 10 };
            assert_eq!(reason(&counters.dropped, "overrun"), overruns, "{counters:?}");
            assert_eq!(
                (reason(&counters.dropped, "missed"), counters.late, counters.waited),
                (0, 0, 0),
                "{counters:?}"
            );
            assert_eq!(counters.overrun, if sent_on_monotonic { 10 } else { 0 }, "{counters:?}");
            drop(talker);
        }
    }
}

/// A full ring: a send that waits for a slot until its time has passed is late for that reason, and one that does not wait is
/// counted.
#[test]
fn a_full_ring_has_its_own_words() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[pod_a(&bed)]);
    // 64 find a slot; the others are handed over when the first have left, at the instant that all ask for.
    talk(&daemon, &bed.pod_a, POD_B, 1, "clock=11 burst=1 count=100 period_us=0 lead_us=1000000");
    let counters = settled(&daemon, 100);
    let (waited, overrun) = (reason(&counters.dropped, "waited"), reason(&counters.dropped, "overrun"));
    assert_eq!((counters.taken, waited, counters.sent + overrun), (100, 36, 64), "{counters:?}");
    talk(&daemon, &bed.pod_a, POD_B, 2, "clock=1 burst=1 count=100 period_us=0 lead_us=1000000");
    let counters = settled(&daemon, 200);
    assert_eq!((counters.taken, counters.waited, counters.late), (200, 36, 0), "{counters:?}");
    assert_eq!((counters.ring_full, reason(&counters.dropped, "missed")), (0, 0), "{counters:?}");
    let keys = "clock=1 burst=1 count=100 nonblock=1 period_us=0 lead_us=1000000 hold_ms=2000";
    let (values, errors) = Talker::start(&daemon, &bed.pod_a, POD_B, 3, keys).finish();
    assert_eq!((values["sent"], values["failed"], values["errno"]), (64, 36, 11), "{errors}");
    eventually("they are counted", SOON, || daemon.control().counters(NAME).ring_full == 36);
}

/// One socket queues as far ahead as it can; another of the same process finds slots.
#[test]
fn a_socket_that_queues_far_ahead_starves_no_other() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[pod_a(&bed)]);
    for burst in ["1", "64"] {
        let script = format!(
            "timed 0 clock=mono
            timed 1 clock=mono
            connect 0 {POD_B},7788
            connect 1 {POD_B},7788
            greedy: flood 0 to=none tx=mono:+3000000000 count={burst}
            modest: flood 1 to=none tx=mono:+3000000000 count={burst}
            close 1
            sleep 4000
            alone: flood 0 to=none tx=mono:+100000000 count={burst}"
        );
        let arguments = hook::arguments(&script, 7788);
        let child = daemon.program(&bed.pod_a, hook::steps(hook::Libc::Gnu), &arguments);
        let output = child.wait_with_output().expect("program");
        let values = hook::values(&output);
        // 64 slots: the first socket gets all but an eighth, the other one as many as are left.
        assert_eq!((values["greedy"], values["modest"]), (56, 8), "{burst} {values:?}");
        assert_eq!(values["alone"], 64, "{burst} {values:?}");
    }
}

/// The counters of a daemon that was asked to end are the next one's to begin with.
#[test]
fn counters_go_on_over_a_restart() {
    let bed = Bed::new();
    let mut daemon = Daemon::start(&bed, &[pod_a(&bed)]);
    talk(&daemon, &bed.pod_a, POD_B, 1, "clock=1 count=7 past=1 lead_us=1000");
    eventually("all are sent", SOON, || daemon.control().counters(NAME).late == 7);
    assert_eq!(daemon.terminate(SOON), Some(0));
    daemon.spawn();
    let counters = eventually("it serves again", SOON, || daemon.control().statistics_of(NAME).ok());
    let counted = &counters.attachments[0];
    assert_eq!((counted.taken, counted.sent, counted.late), (7, 7, 7), "{counted:?}");
    talk(&daemon, &bed.pod_a, POD_B, 2, "clock=1 count=3 past=1 lead_us=1000");
    eventually("they go on", SOON, || daemon.control().counters(NAME).late == 10);
    // One that is killed leaves nothing, and nothing is counted twice.
    daemon.kill();
    daemon.spawn();
    let counters = eventually("it serves again", SOON, || daemon.control().statistics_of(NAME).ok());
    assert_eq!(counters.attachments[0].sent, 0, "{counters:?}");
}
