// SPDX-License-Identifier: Apache-2.0
use std::sync::atomic::Ordering::Relaxed;

use ktsn_ring::receive::{Listener, ListenerName, Receive, ReceiveCount};
use ktsn_ring::{ClientMapping, Consumer, Layout};

use super::*;
use crate::limits::RECEIVE_RENEWAL;

/// A client with its own mapping of the region.
struct Client {
    _consumer: Consumer,
    mapping: ClientMapping,
    key: ClientKey,
    stats: Arc<AttachmentStats>,
}

impl Client {
    fn receive(&self) -> Receive {
        self.mapping.producer().receive().expect("an area")
    }

    fn claim(&self, port: u16) -> Listener {
        self.receive().claim(ListenerName::Udp4(port), u64::from(port)).expect("an entry")
    }

    fn counted(&self) -> Vec<u64> {
        self.stats.receive.iter().map(|counter| counter.load(Relaxed)).collect()
    }
}

fn client(receivers: &Receivers, key: u64, pid: u32, attachment: u16) -> Client {
    let (consumer, memfd) = Consumer::create(Layout::new(4, 256, 1, 2).unwrap()).unwrap();
    let (key, stats) = (ClientKey(key), Arc::new(AttachmentStats::default()));
    let (area, attachment) = (consumer.receive_area(), AttachmentIndex(attachment));
    receivers.add(key, Grantee { pid, attachment, stats: stats.clone(), area });
    Client { _consumer: consumer, mapping: ClientMapping::open(&memfd).unwrap(), key, stats }
}

const fn at(seconds: i64) -> Monotonic {
    Monotonic::ZERO.saturating_add(Nanos::from_seconds(seconds))
}

#[test]
fn a_grant_follows_use_and_ends_with_its_lease() {
    let receivers = Receivers::default();
    let one = client(&receivers, 1, 10, 0);
    let grant = |now| one.receive().grant(now);
    receivers.renew(at(1), 200, |_| true);
    assert_eq!(grant(at(1)), 0, "it uses no entry");
    let listener = one.claim(7000);
    receivers.renew(at(2), 200, |_| true);
    assert_eq!(grant(at(2)), 100);
    assert_eq!(receivers.granted(), [(AttachmentIndex(0), (1, 100))].into());
    let ends = at(2).saturating_add(RECEIVE_LEASE);
    assert_eq!([grant(ends.saturating_sub(Nanos::new(1))), grant(ends)], [100, 0], "nothing renews it");
    receivers.renew(at(3), 200, |_| true);
    assert_eq!(grant(ends), 100, "renewed");
    let two = client(&receivers, 2, 11, 0);
    let three = client(&receivers, 3, 12, 0);
    two.claim(1);
    three.claim(1);
    receivers.renew(at(4), 200, |_| true);
    let shares = [&one, &two, &three].map(|client| client.receive().grant(at(4)));
    assert_eq!(shares, [66, 66, 66]);
    one.receive().free(listener);
    receivers.renew(at(5), 200, |_| true);
    let shares = [&one, &two, &three].map(|client| client.receive().grant(at(5)));
    assert_eq!(shares, [0, 100, 100], "an idle process costs the others nothing");
    receivers.renew(at(6), 0, |_| true);
    assert_eq!(two.receive().grant(at(6)), 0, "a cap of 0 grants nothing");
}

#[test]
fn a_grant_is_the_attachments() {
    let receivers = Receivers::default();
    let (here, there) = (client(&receivers, 1, 10, 0), client(&receivers, 2, 11, 1));
    here.claim(1);
    there.claim(1);
    let grants = |now| [&here, &there].map(|client| client.receive().grant(now));
    receivers.renew(at(1), 200, |index| index == AttachmentIndex(0));
    assert_eq!(grants(at(1)), [100, 0]);
    receivers.renew(at(2), 200, |_| true);
    assert_eq!(grants(at(2)), [100, 100]);
    receivers.renew(at(3), 200, |index| index == AttachmentIndex(1));
    assert_eq!(grants(at(3)), [0, 100], "withdrawn at once");
    receivers.renew(at(4), 200, |_| true);
    receivers.end_attachment(AttachmentIndex(0));
    assert_eq!(grants(at(4)), [0, 100]);
    receivers.renew(at(5), 200, |_| true);
    assert_eq!(grants(at(5)), [0, 100], "the client of an attachment that is gone gets none");
    receivers.close();
    assert_eq!(grants(at(5)), [0, 0]);
    receivers.renew(at(6), 200, |_| true);
    assert_eq!(grants(at(6)), [0, 0], "a daemon that drains grants nothing");
}

#[test]
fn counts_are_added_once_and_never_go_back() {
    let receivers = Receivers::default();
    let one = client(&receivers, 1, 10, 0);
    let listener = one.claim(7000);
    let counts = [ReceiveCount::Expected, ReceiveCount::Hit, ReceiveCount::Early, ReceiveCount::Missed];
    for (number, which) in (1..).zip(counts) {
        one.receive().add(listener, which, number);
    }
    one.receive().add_spun(listener, Nanos::new(9));
    receivers.renew(at(1), 200, |_| true);
    let listed = receivers.list();
    assert_eq!(one.counted(), [1, 2, 3, 4, 9], "what was read twice counts once");
    let shown = &listed[&one.key];
    assert_eq!((shown.granted, shown.listeners.len()), (100, 1));
    assert_eq!(shown.listeners[0].counts.to_array(), [1, 2, 3, 4, 9]);
    // A listener that is over, and a program that writes zeros and then the greatest number.
    one.receive().free(listener);
    receivers.look();
    assert_eq!(one.counted(), [1, 2, 3, 4, 9]);
    let ended = one.mapping.producer().layout().region_octets() + ktsn_ring::receive::ENDED;
    one.mapping.poke(ended, 0);
    receivers.look();
    assert_eq!(one.counted()[0], 1);
    one.mapping.poke(ended, u64::MAX);
    receivers.look();
    let grown = one.counted()[0];
    assert!(grown > 1 && grown <= 1 + (1 << 32), "a claim grows by a bounded number: {grown}");
    // What it counts last is not lost.
    one.mapping.poke(ended + 8, 12);
    receivers.end(one.key);
    assert_eq!(one.counted()[1], 12);
    assert!(receivers.list().is_empty());
}

#[test]
fn a_lease_outlives_missed_renewals() {
    assert!(RECEIVE_LEASE.get() >= 3 * i64::try_from(RECEIVE_RENEWAL.as_nanos()).unwrap());
}

/// An ordinary user can ask without end: only a new client makes the node renew the grants of all.
#[test]
fn a_client_that_asks_again_wakes_nobody() {
    use futures_util::FutureExt as _;
    let receivers = Receivers::default();
    let woken = || receivers.wait_for_request().now_or_never().is_some();
    let one = client(&receivers, 1, 10, 0);
    assert!(woken() && !woken());
    let ask = || Grantee {
        pid: 10,
        attachment: AttachmentIndex(0),
        stats: one.stats.clone(),
        area: one._consumer.receive_area(),
    };
    for _ in 0..100 {
        receivers.add(one.key, ask());
    }
    assert!(!woken());
    let _two = client(&receivers, 2, 11, 0);
    assert!(woken() && !woken());
}
