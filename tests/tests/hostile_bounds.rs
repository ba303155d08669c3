// SPDX-License-Identifier: Apache-2.0
//! What no pod may get: another pod's or the node's addresses. Nothing is timed.

use ktsn_tests::faults::bed::{Bed, POD_A, POD_Q};
use ktsn_tests::faults::daemon::{Daemon, port};
use ktsn_tests::hostile::attachments;
use ktsn_tests::hostile::foreign::{FOREIGN, FRAMES, NOT_ITS_OWN, Short, Way, segment, source};

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
    assert_eq!(both.arrive_where_they_belong(&bed), Ok(FRAMES));
}
