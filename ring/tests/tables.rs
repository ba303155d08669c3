// SPDX-License-Identifier: Apache-2.0
//! What the daemon writes is what the program reads, and what it must refuse is refused.

use std::os::fd::AsFd;

use ktsn_ring::{
    ClientMapping, ClockId, Consumer, Destination, DestinationAction, DestinationVerdict, Layout,
    LayoutError, RegionError, RegionState, StreamCode, StreamStatus, TableError, algorithm, bypass, counter,
    layout, stream_flags,
};

fn region() -> (Consumer, ClientMapping) {
    let layout = Layout::new(16, 2048, 5, 8).expect("a valid layout");
    let (consumer, memfd) = Consumer::create(layout).expect("a region");
    let client = ClientMapping::open(&memfd).expect("a mapping");
    (consumer, client)
}

fn destination(address: &str, prefix_bits: u8, action: DestinationAction, payload_max: u16) -> Destination {
    Destination { address: mapped(address), prefix_bits, action, payload_max }
}

fn mapped(address: &str) -> [u8; 16] {
    match address.parse().expect("an address") {
        std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        std::net::IpAddr::V6(v6) => v6.octets(),
    }
}

#[test]
fn streams_are_answered() {
    let (mut consumer, client) = region();
    let producer = client.producer();
    assert_eq!(producer.stream(4), Some(StreamStatus::default()));
    assert_eq!(producer.stream(5), None);
    let mut status = StreamStatus {
        token: 77,
        flags: stream_flags::TAI_GRANTED,
        code: StreamCode::Registered,
        limit: 1410,
        bypass: 0,
        is_asked: false,
    };
    consumer.set_stream(4, status).expect("stream 4");
    assert_eq!(producer.stream(4), Some(status));
    // Only the limit changes: the route to the peer is another.
    (status.limit, status.bypass) = (0, bypass::OVER_MTU);
    consumer.set_stream(4, status).expect("stream 4");
    assert_eq!(producer.stream(4), Some(status));
    consumer.clear_stream(4).expect("stream 4");
    assert_eq!(producer.stream(4), Some(StreamStatus::default()));
    assert_eq!(consumer.set_stream(5, status), Err(TableError::Stream { index: 5, count: 5 }));
}

#[test]
fn other_attachments_are_named() {
    let (consumer, client) = region();
    let producer = client.producer();
    assert_eq!((producer.others_count(), producer.other(0)), (0, 0));
    consumer.set_others(&[5, 9]);
    assert_eq!(
        (producer.others_count(), producer.other(0), producer.other(1), producer.other(2)),
        (2, 5, 9, 0)
    );
    consumer.set_others(&[9]);
    assert_eq!((producer.others_count(), producer.other(0), producer.other(1)), (1, 9, 0));
    let many: Vec<u32> = (1..=20).collect();
    consumer.set_others(&many);
    assert_eq!((producer.others_count(), producer.other(7), producer.other(8)), (8, 8, 0));
    // Nothing beside them was written.
    assert_eq!((producer.state(), producer.link()), (RegionState::Attached, Some(Default::default())));
}

#[test]
fn untimed_datagrams_are_taken_from_a_priority_on() {
    for least in 0..=15 {
        let flags = stream_flags::TAI_GRANTED | stream_flags::takes_untimed_from(least);
        for priority in 0..=15 {
            assert_eq!(stream_flags::takes_untimed(flags, priority), priority >= least);
        }
    }
    assert!(!stream_flags::takes_untimed(stream_flags::TAI_GRANTED, 15));
    assert_eq!(stream_flags::takes_untimed_from(16), stream_flags::takes_untimed_from(15));
}

#[test]
fn the_first_matching_destination_wins() {
    let (mut consumer, client) = region();
    let producer = client.producer();
    let verdict = |address: &str| producer.destination(mapped(address));
    assert_eq!(
        verdict("10.0.0.1"),
        DestinationVerdict::Bypass(bypass::NOT_ALLOWED),
        "an empty table allows nothing"
    );
    let table = [
        destination("10.244.1.7", 128, DestinationAction::OwnAddress, 0),
        destination("10.244.1.255", 128, DestinationAction::Broadcast, 1422),
        destination("10.244.1.0", 120, DestinationAction::Take, 1422),
        destination("10.244.0.0", 112, DestinationAction::NotAllowed, 0),
        destination("10.0.0.0", 104, DestinationAction::Take, 1372),
        destination("fd00::", 8, DestinationAction::Take, 1352),
        destination("fc00::", 8, DestinationAction::Asked, 1300),
    ];
    consumer.set_destinations(&table).expect("it fits");
    assert_eq!(producer.destinations_version(), 2);
    assert_eq!(verdict("10.244.1.7"), DestinationVerdict::Bypass(bypass::OWN_ADDRESS));
    assert_eq!(verdict("10.244.1.8"), DestinationVerdict::Take { payload_max: 1422, is_asked: false });
    assert_eq!(verdict("10.244.1.255"), DestinationVerdict::Broadcast { payload_max: 1422 });
    assert_eq!(verdict("10.244.2.8"), DestinationVerdict::Bypass(bypass::NOT_ALLOWED));
    assert_eq!(verdict("10.9.2.8"), DestinationVerdict::Take { payload_max: 1372, is_asked: false });
    assert_eq!(verdict("11.9.2.8"), DestinationVerdict::Bypass(bypass::NOT_ALLOWED));
    assert_eq!(verdict("fcff::1"), DestinationVerdict::Take { payload_max: 1300, is_asked: true });
    assert_eq!(verdict("fdff::1"), DestinationVerdict::Take { payload_max: 1352, is_asked: false });
    // A shorter table leaves nothing behind, and a prefix of no bits matches all.
    consumer.set_destinations(&[destination("::", 0, DestinationAction::Take, 9)]).expect("it fits");
    assert_eq!(verdict("10.244.1.7"), DestinationVerdict::Take { payload_max: 9, is_asked: false });
    consumer.set_destinations(&[]).expect("it fits");
    assert_eq!(verdict("10.244.1.8"), DestinationVerdict::Bypass(bypass::NOT_ALLOWED));

    let full = [table[0]; 8];
    consumer.set_destinations(&full).expect("all entries are used");
    assert_eq!(verdict("10.244.1.7"), DestinationVerdict::Bypass(bypass::OWN_ADDRESS));
    let many = [table[0]; 9];
    assert_eq!(consumer.set_destinations(&many), Err(TableError::Destinations { entries: 9, count: 8 }));
    let long = [Destination { prefix_bits: 129, ..table[0] }];
    assert_eq!(consumer.set_destinations(&long), Err(TableError::PrefixBits(129)));
    client.poke(layout::DESTINATIONS_VERSION, 99);
    assert_eq!(verdict("10.244.1.8"), DestinationVerdict::Unstable, "a reader does not wait for a writer");
}

#[test]
fn doorbells_follow_the_promise() {
    let (consumer, client) = region();
    let producer = client.producer();
    consumer.promise_poll_by(1_000_000_000, 38_000_000_000);
    let rings = |clock, tx_time, now| producer.bell(clock, tx_time, now).is_some();
    assert!(rings(ClockId::Monotonic, 999_999_999, 0));
    assert!(!rings(ClockId::Monotonic, 1_000_000_000, 0));
    assert!(rings(ClockId::Tai, 37_999_999_999, 0));
    assert!(!rings(ClockId::Tai, 38_000_000_000, 1_005_000_000));
    assert!(rings(ClockId::Tai, 38_000_000_000, 1_005_000_001), "the worker is overdue");
    consumer.promise_poll_by(u64::MAX, u64::MAX);
    assert!(!rings(ClockId::Tai, u64::MAX, u64::MAX), "sums do not wrap");
}

#[test]
fn a_doorbell_is_rung_once_in_a_turn() {
    let (consumer, client) = region();
    let producer = client.producer();
    let bell = |now| producer.bell(ClockId::Monotonic, 5, now);
    // Before the first promise nothing is noted: a daemon that knows of no turns would leave the mark for ever.
    client.poke(layout::LOOKS_AT_MONOTONIC, 10);
    producer.rung(bell(0).expect("early"));
    assert!(bell(0).is_some());
    for _ in 0..3 {
        consumer.promise_poll_by(10, 10);
        let (first, second) = (bell(0).expect("asleep"), bell(0).expect("asleep, and nobody has rung"));
        producer.rung(first);
        assert_eq!(bell(0), None, "rung");
        producer.rung(second);
        assert_eq!(bell(0), None, "rung twice");
        let overdue = bell(10 + algorithm::ATTENTION_GRACE + 1).expect("overdue: perhaps it is dead");
        producer.rung(overdue);
        assert_eq!(bell(0), None);
        consumer.promise_poll_by(10, 10);
        let late = bell(0).expect("another turn");
        consumer.promise_poll_by(10, 10);
        producer.rung(late);
        assert!(bell(0).is_some(), "a doorbell of the turn before may have been heard before it");
    }
}

#[test]
fn state_and_counters_travel() {
    let (consumer, client) = region();
    let producer = client.producer();
    assert_eq!(producer.state(), RegionState::Attached);
    consumer.set_state(RegionState::Detached);
    assert_eq!(producer.state(), RegionState::Detached);
    client.poke(layout::STATE, 3);
    assert_eq!(producer.state(), RegionState::Retired);
    producer.count(counter::SENT);
    producer.count(counter::SENT);
    producer.count(31);
    producer.count(32);
    let counters = consumer.counters();
    assert_eq!((counters[counter::SENT], counters[31]), (2, 1));
    assert_eq!(counters.iter().sum::<u64>(), 3);
    producer.add(counter::DAEMON_ABSENT, 1 << 40);
    producer.add(counter::DAEMON_ABSENT, 2);
    producer.add(32, 5);
    assert_eq!(consumer.counters()[counter::DAEMON_ABSENT], (1 << 40) + 2);
    assert_eq!(consumer.counters().iter().sum::<u64>(), (1 << 40) + 5);
}

#[test]
fn a_region_cannot_be_resized() {
    let layout = Layout::new(16, 2048, 5, 8).expect("a valid layout");
    let (_consumer, memfd) = Consumer::create(layout).expect("a region");
    for octets in [0, layout.shared_octets() as u64 + 4096] {
        assert_eq!(rustix::fs::ftruncate(&memfd, octets), Err(rustix::io::Errno::PERM));
    }
    // The seals are open until the program has mapped it; while it is mapped to be written, the kernel refuses this one.
    let seals = rustix::fs::SealFlags::WRITE;
    assert_eq!(rustix::fs::fcntl_add_seals(&memfd, seals), Err(rustix::io::Errno::BUSY));
    assert!(
        rustix::io::fcntl_getfd(memfd.as_fd()).expect("a descriptor").contains(rustix::io::FdFlags::CLOEXEC)
    );
}

#[test]
fn layouts_out_of_range_are_refused() {
    assert_eq!(Layout::new(0, 2048, 1, 1), Err(LayoutError::Slots(0)));
    assert_eq!(Layout::new(4097, 2048, 1, 1), Err(LayoutError::Slots(4097)));
    assert_eq!(Layout::new(1, 128, 1, 1), Err(LayoutError::SlotOctets(128)));
    assert_eq!(Layout::new(1, 3000, 1, 1), Err(LayoutError::SlotOctets(3000)));
    assert_eq!(Layout::new(1, 131_072, 1, 1), Err(LayoutError::SlotOctets(131_072)));
    assert_eq!(Layout::new(1, 256, 0, 1), Err(LayoutError::Streams(0)));
    assert_eq!(Layout::new(1, 256, 1025, 1), Err(LayoutError::Streams(1025)));
    assert_eq!(Layout::new(1, 256, 1, 65), Err(LayoutError::Destinations(65)));
    let greatest = Layout::new(4096, 65_536, 1024, 64).expect("the greatest layout");
    assert_eq!(greatest.slot(4095).expect("the last slot") + 65_536, greatest.region_octets());
    assert_eq!(greatest.destination(0), Some(1664 + 16 * 1024));
    let usual = Layout::new(1024, 2048, 256, 64).expect("a usual layout");
    assert_eq!(usual.slot(0), Some(8192), "1664 + 16 * 256 + 32 * 64 = 7808, and slots begin on a page");
    assert_eq!(usual.slot(1024), None);
    assert_eq!(usual.payload_max(), 1856);
}

#[test]
fn no_flipped_bit_of_the_identity_misleads() {
    let layout = Layout::new(16, 2048, 5, 8).expect("a valid layout");
    let words = layout.to_words();
    assert_eq!(Layout::from_words(words, layout.region_octets()), Ok(layout));
    let short = layout.region_octets() - 1;
    assert!(matches!(Layout::from_words(words, short), Err(LayoutError::Mapping(..))));
    for word in 0..words.len() {
        for bit in 0..64 {
            let mut bad = words;
            bad[word] ^= 1 << bit;
            // Another number of streams or destinations may fit the same page; nothing else may be believed.
            if let Ok(other) = Layout::from_words(bad, usize::MAX) {
                assert_eq!(other.to_words(), bad, "word {word}, bit {bit}");
                assert_eq!(other.region_octets(), layout.region_octets());
                assert!(matches!((word, bit), (3 | 4, 32..)), "word {word}, bit {bit}");
                assert_eq!(other.slot(15), layout.slot(15));
            }
        }
    }
    let (_consumer, memfd) = Consumer::create(layout).expect("a region");
    let mapping = ClientMapping::open(&memfd).expect("a mapping");
    mapping.poke(8, mapping.peek(8) + 1);
    let again = ClientMapping::open(&memfd).err();
    assert_eq!(again, Some(RegionError::Layout(LayoutError::Abi(2))));
}
