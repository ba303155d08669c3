// SPDX-License-Identifier: Apache-2.0
//! What `make test-hostile` measures, without a time: pods attack, and each frame of an innocent one of another attachment has an
//! end that is counted.
//!
//! The workers here are ordinary threads and their limits long, so that a slow machine loses nothing: what is lost was dropped by
//! the daemon, and its counters say why.

use std::time::Duration;

use ktsn_proto::v1::AttachmentStatistics;
use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::control::reason;
use ktsn_tests::faults::daemon::{Attachment, Daemon, pinned_port};
use ktsn_tests::faults::stands_still;
use ktsn_tests::faults::talker::Talker;
use ktsn_tests::faults::{Tap, eventually};
use ktsn_tests::hostile::{ATTACKER, Attack, VICTIM, attachments, metered, rules};

const SOON: Duration = Duration::from_secs(60);
const FRAMES: usize = 400;
const SENDER: u32 = 1;
/// `ktsnd::limits::EMPTY_WAKE_UPS_A_SECOND`.
const EMPTY_WAKE_UPS_A_SECOND: u64 = 200;

/// Drops no frame because this machine is slow.
fn patient(attachment: Attachment) -> Attachment {
    Attachment { late: "send", ..attachment }.with("overrun_limit = \"10s\"")
}

/// A daemon with both attachments.
fn start(bed: &Bed, more: &str) -> Daemon {
    let tables = attachments(bed).map(|attachment| patient(attachment).toml());
    start_with(bed, &format!("{}{more}", tables.concat()))
}

fn start_with(bed: &Bed, tables: &str) -> Daemon {
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{tables}", pinned_port("auto")));
    daemon.spawn();
    daemon
}

/// Sends the innocent frames beside `words` and `meanwhile`: all of them have an end that is counted, in order, none is early.
fn beside(bed: &Bed, daemon: &Daemon, words: &str, meanwhile: impl FnOnce()) -> Attack {
    let tap = Tap::open(&bed.host_b, UPLINK);
    let before = daemon.control().counters(VICTIM);
    let ends = |counters: &AttachmentStatistics| counters.sent + counters.dropped.values().sum::<u64>();
    // It is attached before the attack: the first frame waits for the word.
    let keys = format!("count={FRAMES} lead_us=100000 go=1");
    let mut victim = Talker::start(daemon, &bed.pod_a, POD_B, SENDER, &keys);
    eventually("the innocent program's first frame", SOON, || !tap.of(SENDER).is_empty());
    let mut attack = Attack::start(daemon.run_dir(), &bed.pod_q, words).expect("the attack");
    victim.go();
    meanwhile();
    let (values, errors) = victim.finish();
    attack.end();
    assert_eq!(values["failed"], 0, "{errors}");
    let expected = u64::try_from(FRAMES).expect("few") - 1 + values["firsts"].unsigned_abs();
    eventually("each frame has an end", SOON, || {
        ends(&daemon.control().counters(VICTIM)) == ends(&before) + expected
    });
    let counters = daemon.control().counters(VICTIM);
    eventually("what was sent arrives", SOON, || tap.of(SENDER).len() as u64 == counters.sent - before.sent);
    let arrived = tap.of(SENDER);
    assert!(arrived.iter().all(|arrival| arrival.after_ns >= 0), "early: {counters:?}");
    let numbers: Vec<u64> =
        arrived.iter().map(|arrival| arrival.sequence).filter(|number| *number > 0).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next), "once, in order");
    let absent = reason(&counters.dropped, "daemon_absent");
    assert_eq!(counters.dropped.values().sum::<u64>(), absent, "dropped by the worker: {counters:?}");
    // Its first frames may come before it is attached; ktsnd is there all the time.
    let before_it = values["firsts"].unsigned_abs();
    assert!(
        absent - reason(&before.dropped, "daemon_absent") <= before_it,
        "{before_it} first frames: {counters:?}"
    );
    assert!(daemon.control().health().expect("health").serving);
    attack
}

fn clients_go(daemon: &Daemon) {
    eventually("the clients go", SOON, || daemon.clients() == 0);
}

#[test]
fn full_rings_of_many_connections() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    for words in ["fill clients=1 payload=64", "fill clients=32 payload=64"] {
        let attack = beside(&bed, &daemon, words, || ());
        assert!(attack.value("clients") > 0 && attack.value("pushed") > 1000, "{}", attack.said());
        clients_go(&daemon);
    }
}

#[test]
fn full_rings_beyond_the_horizon_and_beyond_a_meter_are_refused_with_their_reason() {
    let bed = Bed::new();
    let daemon = start(&bed, &metered());
    let attack = beside(&bed, &daemon, "fill clients=8 due=beyond", || ());
    let counters = daemon.control().counters(ATTACKER);
    assert!(attack.value("pushed") > 1000, "{}", attack.said());
    assert!(reason(&counters.dropped, "beyond_horizon") > 100 && counters.sent == 0, "{counters:?}");
    clients_go(&daemon);
    beside(&bed, &daemon, "fill clients=8", || ());
    let counters = daemon.control().counters(ATTACKER);
    assert!(reason(&counters.dropped, "policed") > 100, "{counters:?}");
}

#[test]
fn streams_that_come_and_go_on_full_rings() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    let words = "fill clients=8 due=beyond storm=1 every_us=10000";
    let attack = beside(&bed, &daemon, words, || ());
    assert!(attack.value("rounds") > 10, "{}", attack.said());
}

#[test]
fn an_interface_that_goes_away_under_full_rings() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    let line = format!("ip -n {} link del eth0", bed.pod_q);
    beside(&bed, &daemon, "fill clients=64 due=beyond every_us=1000", || {
        eventually("rings are full", SOON, || !daemon.control().counters(ATTACKER).dropped.is_empty());
        bed.run(&line);
    });
    eventually("the attacker's clients go", SOON, || daemon.clients() == 0);
}

#[test]
fn holes_in_the_own_region() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    for words in ["punch", "punch idle=1"] {
        let attack = beside(&bed, &daemon, words, || ());
        // A daemon that refuses it gives EPERM.
        let refused = attack.value("punch_errno") == i64::from(rustix::io::Errno::PERM.raw_os_error());
        assert!(attack.value("punched") > 0 || refused, "{}", attack.said());
        clients_go(&daemon);
    }
}

#[test]
fn thousands_of_frames_for_one_instant_and_doorbells_without_end() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    for words in ["fill clients=8 due=instant payload=64 every_us=100000 priority=6", "bells clients=64"] {
        let attack = beside(&bed, &daemon, words, || ());
        assert!(attack.value("clients") > 0, "{}", attack.said());
        clients_go(&daemon);
    }
}

/// Streams that teach the worker a period and then stop cost their attachment its budget of empty wake-ups, and no one else a frame.
#[test]
fn streams_of_odd_periods_that_stop_again_and_again() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    let begin = std::time::Instant::now();
    let attack = beside(&bed, &daemon, "phases clients=4 streams=64 payload=64", || {
        eventually("frames are expected that do not come", SOON, || empty_wake_ups(&daemon) > 20);
    });
    assert!(attack.value("streams") == 256 && attack.value("rounds") > 0, "{}", attack.said());
    clients_go(&daemon);
    // The budget is for each attachment and second, and a second that has begun counts; the innocent stream ends once, too.
    let seconds = begin.elapsed().as_secs() + 2;
    let empty = empty_wake_ups(&daemon);
    assert!(empty <= 2 * EMPTY_WAKE_UPS_A_SECOND * seconds, "{empty} in {seconds} s");
}

fn empty_wake_ups(daemon: &Daemon) -> u64 {
    let reply = daemon.control().statistics_of(ATTACKER).expect("Statistics");
    reply.workers.iter().map(|worker| worker.empty_wake_ups).sum()
}

#[test]
fn locked_sockets_and_connections_that_come_and_go() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    for words in ["locks connections=8", "locks connections=8 rights=0", "churn"] {
        beside(&bed, &daemon, words, || ());
        clients_go(&daemon);
    }
}

/// Frames of a pod whose own rules make each hand-over long leave by another thread soon: each of them has an end, too.
#[test]
fn a_pod_whose_own_rules_take_long_is_deferred() {
    let bed = Bed::new();
    rules::own(&bed, rules::RULES);
    let [victim, attacker] = attachments(&bed).map(patient);
    let daemon = start_with(&bed, &(victim.toml() + &rules::by_interface(attacker)));
    assert!(daemon.control().counters(ATTACKER).deferral.is_none());
    let attack = beside(&bed, &daemon, "fill clients=4 payload=200", || {
        eventually("frames are deferred", SOON, || {
            let counters = daemon.control().counters(ATTACKER);
            counters.deferred > 10
        });
    });
    assert!(attack.value("pushed") > 100, "{}", attack.said());
    clients_go(&daemon);
    // What a client left in its ring is sent, then the thread's queue.
    let counted = |of: &AttachmentStatistics| (of.sent, of.deferred, of.deferred_failed);
    let counters = eventually("each frame has an end", SOON, || {
        stands_still("its counters stand still", SOON, || counted(&daemon.control().counters(ATTACKER)));
        let after = daemon.control().counters(ATTACKER);
        let ends = after.sent + after.dropped.values().sum::<u64>();
        (ends == after.taken).then_some(after)
    });
    let deferral = counters.deferral.expect("deferred for minutes");
    assert!(deferral.longest_hand_over_ns > 0 && deferral.for_ns > 0, "{deferral:?}");
    // Two by the worker make a pod deferred; a few more leave until its port is replaced.
    let direct = counters.sent - counters.deferred - counters.deferred_failed;
    assert!((2..counters.deferred).contains(&direct), "{counters:?}");
    assert_eq!(reason(&counters.dropped, "bug"), 0);
    let log = daemon.log();
    assert_eq!(log.matches("leave by an ordinary thread").count(), 1, "{log}");
}

/// What a pod's root does to its own namespace, and messages that cost more than a frame.
#[test]
fn a_namespace_that_changes_without_end_and_messages_without_end() {
    let bed = Bed::new();
    let daemon = start(&bed, "");
    for (words, what) in [
        ("later clients=4", "pushed"),
        ("later clients=16 ahead_us=500000 payload=1000", "pushed"),
        ("expect clients=64", "pushed"),
        ("flap routes=8000", "flaps"),
        ("names", "renames"),
    ] {
        let attack = beside(&bed, &daemon, words, || ());
        assert!(attack.value(what) > 0, "{words}: {}", attack.said());
        clients_go(&daemon);
    }
}
