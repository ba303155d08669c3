// SPDX-License-Identifier: Apache-2.0
//! Programs killed in the middle of a send, a thousand times.

use std::time::{Duration, Instant};

use ktsn_tests::faults::bed::{Bed, POD_B, UPLINK};
use ktsn_tests::faults::daemon::{Attachment, Daemon, NAME};
use ktsn_tests::faults::talker::{Talker, talk};
use ktsn_tests::faults::{Tap, eventually};

const SOON: Duration = Duration::from_secs(20);
const KILLS: u32 = 1000;
/// What a daemon may keep more after 900 further clients: its allocator's caches, 18 KiB a client at most. One that is
/// held keeps 2 MiB and two descriptors, and those are counted to the last one.
const GROWTH_KIB: usize = 16_384;

/// Nothing leaks, valid frames go out, none is early.
#[test]
fn a_thousand_kills() {
    let bed = Bed::new();
    let daemon = Daemon::start(&bed, &[Attachment::pod_a(&bed)]);
    let tap = Tap::open(&bed.host_b, UPLINK);
    let keys = "burst=1 count=1000000 period_us=2 lead_us=3000";
    let (mut baseline, mut kinds) = (None, std::collections::BTreeMap::new());
    let began = Instant::now();
    for round in 0..KILLS {
        if round == 100 {
            eventually("no client is left", SOON, || daemon.clients() == 0);
            baseline = Some((daemon.descriptors(), daemon.resident_kib()));
            kinds = daemon.descriptor_kinds();
        }
        let mut talker = Talker::start(&daemon, &bed.pod_a, POD_B, 10 + round, keys);
        // From before its first instruction on; every third one in the midst of its sends, however slow the machine.
        if round % 3 == 0 {
            let _ = tap.wait(10 + round, 1, SOON);
        }
        std::thread::sleep(Duration::from_micros(u64::from(round * 7919 % 12_000)));
        talker.child().kill().expect("kill");
    }
    let took = began.elapsed();
    eventually("no client is left", SOON, || daemon.clients() == 0);
    let (descriptors, resident) = baseline.expect("round 100");
    let what =
        std::fmt::from_fn(|f| write!(f, "descriptors: {kinds:?}, now {:?}", daemon.descriptor_kinds()));
    eventually(what, SOON, || daemon.descriptors() <= descriptors);
    let now = daemon.resident_kib();
    assert!(now <= resident + GROWTH_KIB, "{resident} KiB after 100 clients, {now} KiB after {KILLS}");
    talk(&daemon, &bed.pod_a, POD_B, 1, "count=50");
    assert_eq!(tap.wait(1, 50, SOON).len(), 50);
    assert!(tap.early().is_empty(), "{:?}", tap.early());
    let senders = (10..10 + KILLS).filter(|n| !tap.of(*n).is_empty()).count();
    assert!(senders > KILLS as usize / 4, "{senders} of {KILLS} got to send");
    let counters = daemon.control().counters(NAME);
    assert!(!counters.dropped.contains_key("bug"), "{counters:?}");
    let workers = daemon.control().statistics_of("").expect("statistics").workers;
    assert_eq!((workers[0].bugs, workers[0].regions_retired), (0, 0), "{workers:?}");
    eprintln!("{KILLS} kills in {took:?}: {senders} sent {} frames; {resident} → {now} KiB", counters.sent);
}
