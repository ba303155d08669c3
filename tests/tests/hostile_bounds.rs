// SPDX-License-Identifier: Apache-2.0
//! What no pod may get: another pod's or the node's addresses, and more of the daemon's memory than the chart provides for.
//! Nothing is timed.

use std::path::Path;
use std::time::Duration;

use ktsn_tests::faults::bed::{Bed, POD_A, POD_Q};
use ktsn_tests::faults::daemon::{Daemon, port};
use ktsn_tests::faults::eventually;
use ktsn_tests::hostile::foreign::{FOREIGN, FRAMES, NOT_ITS_OWN, Short, Way, segment, source};
use ktsn_tests::hostile::{ATTACKER, Attack, VICTIM, attachments};

const SOON: Duration = Duration::from_secs(60);

fn start(bed: &Bed, attacker: &str) -> Daemon {
    let [victim, _] = attachments(bed);
    let patient = victim.with("overrun_limit = \"10s\"").toml();
    let mut daemon = Daemon::prepare(&bed.host_a, &format!("{}{patient}{attacker}", port("auto")));
    daemon.spawn();
    daemon
}

/// Frames with the pod's own source arrive, those with foreign ones do not.
fn foreign_sources_stay_away(way: Way) {
    let bed = Bed::new();
    let [_, attacker] = attachments(&bed);
    let attacker = attacker.with("overrun_limit = \"10s\"").toml();
    let daemon = start(&bed, &if way.is_raw() { segment(&bed) } else { attacker });
    let own = source(&bed, daemon.run_dir(), way, POD_Q).expect("the attack");
    assert!(own.reached * 2 > FRAMES, "its own address: {own:?}");
    for address in FOREIGN {
        let tried = source(&bed, daemon.run_dir(), way, address).expect("the attack");
        assert_eq!(tried.reached, 0, "{way:?}: {tried:?}");
    }
}

#[test]
fn a_source_that_is_bound_freely_sends_nothing() {
    foreign_sources_stay_away(Way::Bound);
}

#[test]
fn a_source_that_the_pod_adds_sends_nothing() {
    foreign_sources_stay_away(Way::Added);
}

#[test]
fn a_foreign_source_in_a_whole_frame_sends_nothing() {
    foreign_sources_stay_away(Way::Raw);
}

#[test]
fn a_foreign_sender_in_an_arp_frame_sends_nothing() {
    foreign_sources_stay_away(Way::Arp);
}

#[test]
fn a_foreign_source_behind_a_tag_sends_nothing() {
    foreign_sources_stay_away(Way::Tagged);
}

#[test]
fn an_address_that_a_pod_adds_takes_nothing_in() {
    let bed = Bed::new();
    let both = Short::start(&bed, None);
    let own = both.redirected(&bed, POD_A).expect("the sender");
    assert!(own.reached * 2 > FRAMES, "its own address: {own:?}");
    for address in NOT_ITS_OWN {
        let tried = both.redirected(&bed, address).expect("the sender");
        assert_eq!(tried.reached, 0, "{tried:?}");
    }
    let (arrived, sent) = both.arrive_where_they_belong(&bed).expect("the sender");
    assert!(arrived == sent && sent * 2 > FRAMES, "{arrived} of {sent} arrived");
}

/// The limit of ktsnd's memory in the chart, KiB.
fn chart_limit_kib() -> usize {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../k8s/deploy/helm/ktsn/values.yaml");
    let text = std::fs::read_to_string(path).expect("the chart's values");
    let (_, daemon) = text.split_once("\nktsnd:").expect("ktsnd's values");
    let (_, limit) = daemon.split_once("limits: {memory: ").expect("its limit");
    let (mib, _) = limit.split_once("Mi").expect("MiB");
    mib.parse::<usize>().expect("a number") * 1024
}

/// 256 connections of one process: those that are let in fill their rings, again and again, and the memory stays within the
/// limit.
#[test]
fn full_rings_of_a_crowd_stay_within_the_charts_memory() {
    let bed = Bed::new();
    let [_, attacker] = attachments(&bed);
    let daemon = start(&bed, &attacker.toml());
    for words in [
        "fill clients=256 due=beyond payload=1 once=1",
        "fill clients=256 due=beyond payload=1",
        "fill clients=256 frames=0",
    ] {
        let mut attack = Attack::start(daemon.run_dir(), &bed.pod_q, words).expect("the attack");
        let clients = u64::try_from(attack.value("clients")).expect("a count");
        assert!(clients > 0, "{}", attack.said());
        // Later clients get fewer slots, 64 at least.
        let slots = 64 * clients;
        if !words.contains("frames=0") {
            eventually("all slots are taken once", SOON, || {
                daemon.control().counters(ATTACKER).dropped.values().sum::<u64>() >= slots
            });
        }
        attack.end();
        assert!(daemon.resident_kib_max() <= chart_limit_kib(), "{words}: {} KiB", daemon.resident_kib_max());
        eventually("the clients go", SOON, || daemon.clients() == 0);
    }
    assert!(daemon.control().statistics_of(VICTIM).is_ok());
}
