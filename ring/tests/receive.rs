// SPDX-License-Identifier: Apache-2.0
//! The receive area: what the program counts is what the daemon shows, a grant ends by itself, an older daemon has none, and a
//! program that writes anything there changes nothing but what is shown of it.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ktsn_ring::receive::{
    AREA_OCTETS, COUNTS_COUNT, GRANT, GRANTED_UNTIL, LISTENERS, LISTENERS_COUNT, Listener, ListenerName,
    PERIOD, ReceiveCount, ReceiveCounts, WHOLE_CPU, read,
};
use ktsn_ring::words::Words;
use ktsn_ring::{ClientMapping, Consumer, Layout, layout};
use ktsn_time::{Monotonic, Nanos};
use proptest::prelude::*;
use rustix::fd::OwnedFd;

const COUNTS: [ReceiveCount; COUNTS_COUNT] = [
    ReceiveCount::Expected,
    ReceiveCount::Hit,
    ReceiveCount::Early,
    ReceiveCount::Missed,
    ReceiveCount::Spun,
];

fn region() -> (Consumer, OwnedFd) {
    Consumer::create(Layout::new(4, 256, 1, 2).expect("a valid layout")).expect("a region")
}

const fn at(nanos: u64) -> Monotonic {
    Monotonic::from_nanos(nanos)
}

#[test]
fn the_layout_is_the_pages() {
    assert_eq!((layout::RECEIVE_OCTETS, GRANT, GRANTED_UNTIL, PERIOD, LISTENERS), (100, 0, 8, 16, 128));
    let (consumer, memfd) = region();
    let region_octets = consumer.layout().region_octets();
    let octets = rustix::fs::fstat(&memfd).expect("its size").st_size;
    assert_eq!(octets, (region_octets + AREA_OCTETS) as i64, "the area lies behind the region");
    assert_eq!(consumer.layout().shared_octets() as i64, octets);
    let client = ClientMapping::open(&memfd).expect("a mapping");
    assert_eq!(client.peek(96) >> 32, 4096, "the announcement at 100");
    let receive = client.producer().receive().expect("an area");
    assert_eq!(receive.period(), Nanos::ZERO, "a daemon that knows none");
    consumer.receive_area().set_period(Nanos::from_seconds(10));
    assert_eq!(
        (receive.period(), client.peek(region_octets + 16)),
        (Nanos::from_seconds(10), 10_000_000_000)
    );
    let listener = receive.claim(ListenerName::Udp4(7000), 0x1234).expect("an entry");
    receive.add(listener, ReceiveCount::Expected, 5);
    receive.add_spun(listener, Nanos::from_micros(3));
    receive.add_spun(listener, Nanos::new(-1));
    let entry = |word: usize| client.peek(region_octets + 128 + 8 * word);
    assert_eq!([entry(0), entry(1)], [7000 | 2 << 16, 0x1234]);
    assert_eq!([entry(2), entry(3), entry(4), entry(5), entry(6), entry(7)], [5, 0, 0, 0, 3000, 0]);
    receive.free(listener);
    let ended = |number: usize| client.peek(region_octets + 64 + 8 * number);
    assert_eq!([ended(0), ended(4), entry(0), entry(1), entry(2)], [5, 3000, 0, 0, 0]);
    assert_eq!(ListenerName::Udp6(1).to_word(), 1 | 10 << 16);
    assert_eq!(ListenerName::Packet(9).to_word(), 17 << 16 | 9 << 32);
}

#[test]
fn a_grant_ends_by_itself() {
    let (consumer, memfd) = region();
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let (area, receive) = (consumer.receive_area(), client.producer().receive().expect("an area"));
    assert_eq!(receive.grant(at(0)), 0, "none was given");
    area.grant(100, at(5_000));
    assert_eq!([receive.grant(at(0)), receive.grant(at(4_999)), receive.grant(at(5_000))], [100, 100, 0]);
    area.grant(50, at(9_000));
    assert_eq!(receive.grant(at(5_000)), 50);
    area.withdraw();
    assert_eq!(receive.grant(at(0)), 0);
    area.grant(u32::MAX, at(u64::MAX));
    assert_eq!(receive.grant(at(u64::MAX - 1)), WHOLE_CPU);
}

/// A daemon that knows no area leaves the word at 0.
#[test]
fn an_older_daemon_has_no_area() {
    let (_consumer, memfd) = region();
    let client = ClientMapping::open(&memfd).expect("a mapping");
    for announced in [0, 1, AREA_OCTETS as u64 - 1] {
        client.poke(96, announced << 32);
        assert!(client.producer().receive().is_none(), "{announced} octets are no area");
    }
    client.poke(96, (AREA_OCTETS as u64 + 4096) << 32);
    assert!(client.producer().receive().is_some(), "a later daemon may have more");
}

#[test]
fn entries_run_out_and_come_back() {
    let (consumer, memfd) = region();
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let receive = client.producer().receive().expect("an area");
    let claimed: Vec<Listener> = (0..LISTENERS_COUNT as u16)
        .map(|port| receive.claim(ListenerName::Udp6(port), u64::from(port) + 1).expect("an entry"))
        .collect();
    assert_eq!(receive.claim(ListenerName::Packet(3), 99), None);
    let reading = consumer.receive_area().read();
    assert_eq!(reading.listeners.len(), LISTENERS_COUNT);
    for (port, listener) in (0..).zip(&reading.listeners) {
        assert_eq!((listener.name, listener.cookie), (ListenerName::Udp6(port), u64::from(port) + 1));
    }
    receive.add(claimed[7], ReceiveCount::Missed, 2);
    receive.free(claimed[7]);
    let again = receive.claim(ListenerName::Packet(3), 99).expect("the freed entry");
    assert_eq!(again, claimed[7]);
    assert_eq!(Listener::from_index(again.index()), Some(again));
    assert_eq!(Listener::from_index(LISTENERS_COUNT as u8), None);
    let reading = consumer.receive_area().read();
    let shown = reading.listeners[7];
    assert_eq!(
        (shown.name, shown.cookie, shown.counts),
        (ListenerName::Packet(3), 99, ReceiveCounts::default())
    );
    assert_eq!(reading.total.get(ReceiveCount::Missed), 2, "the sum keeps those that are over");
}

#[derive(Clone, Debug)]
enum Action {
    Claim(u16),
    Free(usize),
    Add(usize, u8, u16),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        any::<u16>().prop_map(Action::Claim),
        any::<usize>().prop_map(Action::Free),
        (any::<usize>(), 0..COUNTS_COUNT as u8, any::<u16>())
            .prop_map(|(n, which, c)| Action::Add(n, which, c)),
    ]
}

proptest! {
    /// Listeners and counts are those of a map, and the sum never shrinks.
    #[test]
    fn what_is_shown_is_what_was_counted(actions in proptest::collection::vec(action(), 0..200)) {
        let (consumer, memfd) = region();
        let client = ClientMapping::open(&memfd).expect("a mapping");
        let (area, receive) = (consumer.receive_area(), client.producer().receive().expect("an area"));
        let mut model: BTreeMap<u8, (u16, [u64; COUNTS_COUNT])> = BTreeMap::new();
        let mut sums = [0u64; COUNTS_COUNT];
        for action in actions {
            let nth = |model: &BTreeMap<u8, _>, n: usize| {
                let index = *model.keys().nth(n % model.len().max(1))?;
                Listener::from_index(index)
            };
            match action {
                Action::Claim(port) => match receive.claim(ListenerName::Udp4(port), u64::from(port)) {
                    Some(listener) => {
                        prop_assert!(model.insert(listener.index(), (port, [0; COUNTS_COUNT])).is_none());
                    }
                    None => prop_assert_eq!(model.len(), LISTENERS_COUNT),
                },
                Action::Free(n) => if let Some(listener) = nth(&model, n) {
                    model.remove(&listener.index());
                    receive.free(listener);
                },
                Action::Add(n, which, count) => if let Some(listener) = nth(&model, n) {
                    receive.add(listener, COUNTS[usize::from(which)], count.into());
                    model.get_mut(&listener.index()).expect("claimed").1[usize::from(which)] += u64::from(count);
                    sums[usize::from(which)] += u64::from(count);
                },
            }
            let reading = area.read();
            let shown: BTreeMap<u8, (u16, [u64; COUNTS_COUNT])> = reading.listeners.iter().map(|listener| {
                let ListenerName::Udp4(port) = listener.name else { panic!("a name of ours") };
                (listener.index, (port, listener.counts.to_array()))
            }).collect();
            prop_assert_eq!(&shown, &model);
            prop_assert_eq!(reading.total.to_array(), sums);
        }
    }

    /// A word names a socket only if it is the socket's word.
    #[test]
    fn names_are_canonical(word in any::<u64>(), family in prop_oneof![Just(2u64), Just(10), Just(17)]) {
        for word in [word, word & !0xff_0000 | family << 16, word & 0xffff | family << 16] {
            if let Some(name) = ListenerName::from_word(word) {
                prop_assert_eq!(name.to_word(), word);
            }
        }
        prop_assert_eq!(ListenerName::from_word(0), None);
    }
}

/// Threads and the handlers that interrupt them claim, count and free; no entry has two owners, and no count is lost.
#[test]
fn many_threads_share_the_entries() {
    const THREADS: u16 = 6;
    const ROUNDS: u64 = 3_000;
    let (consumer, memfd) = region();
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let receive = client.producer().receive().expect("an area");
    let owned: [AtomicBool; LISTENERS_COUNT] = [const { AtomicBool::new(false) }; LISTENERS_COUNT];
    let area = consumer.receive_area();
    let over = &AtomicBool::new(false);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|port| {
                let owned = &owned;
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let name = ListenerName::Udp4(port);
                        let listener = receive.claim(name, u64::from(port) + 1).expect("there are 32");
                        let place = &owned[usize::from(listener.index())];
                        assert!(!place.swap(true, Ordering::AcqRel), "an entry has one owner");
                        receive.add(listener, ReceiveCount::Hit, 1);
                        assert!(place.swap(false, Ordering::AcqRel));
                        receive.free(listener);
                    }
                })
            })
            .collect();
        let reader = scope.spawn(move || {
            let mut shown = ReceiveCounts::default();
            while !over.load(Ordering::Acquire) {
                let reading = area.read();
                for listener in &reading.listeners {
                    let ListenerName::Udp4(port) = listener.name else { panic!("{listener:?}") };
                    assert!(
                        port < THREADS && [0, u64::from(port) + 1].contains(&listener.cookie),
                        "{listener:?}"
                    );
                }
                assert!(
                    reading.total.get(ReceiveCount::Hit) <= u64::from(THREADS) * ROUNDS,
                    "nothing counts twice"
                );
                shown = reading.total.at_least(shown);
            }
            shown
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        over.store(true, Ordering::Release);
        reader.join().expect("the reader ends");
        for result in results {
            result.expect("a worker ends");
        }
    });
    let reading = consumer.receive_area().read();
    assert_eq!(reading.total.to_array(), [0, u64::from(THREADS) * ROUNDS, 0, 0, 0]);
    assert!(reading.listeners.is_empty());
}

/// Memory whose every load says something else, and which knows what the reader may touch.
struct Liar {
    random: RefCell<support::Random>,
    loads: Cell<usize>,
}

/// Where the area begins in these tests.
const AREA: usize = 8192;

impl Words for Liar {
    fn load64(&self, at: usize, _: Ordering) -> u64 {
        assert!(
            (AREA + 64..AREA + AREA_OCTETS).contains(&at) && at.is_multiple_of(8),
            "nothing to read at {at}"
        );
        self.loads.set(self.loads.get() + 1);
        let mut random = self.random.borrow_mut();
        match random.below(8) {
            0 => u64::MAX,
            1 => random.next(),
            2..5 => ListenerName::Udp4(random.below(3) as u16).to_word(),
            _ => 0,
        }
    }
    fn load32(&self, at: usize, _: Ordering) -> u32 {
        panic!("reads a u32 at {at}");
    }
    fn store32(&self, at: usize, _: u32, _: Ordering) {
        panic!("writes a u32 at {at}");
    }
    fn swap32(&self, at: usize, _: u32, _: Ordering) -> u32 {
        panic!("swaps a u32 at {at}");
    }
    fn exchange32(&self, at: usize, _: u32, _: u32, _: Ordering) -> Result<u32, u32> {
        panic!("exchanges a u32 at {at}");
    }
    fn store64(&self, at: usize, _: u64, _: Ordering) {
        panic!("writes a u64 at {at}");
    }
    fn exchange64(&self, at: usize, _: u64, _: u64, _: Ordering) -> Result<u64, u64> {
        panic!("exchanges a u64 at {at}");
    }
    fn set_bits64(&self, at: usize, _: u64, _: Ordering) {
        panic!("sets bits at {at}");
    }
    fn add64(&self, at: usize, _: u64) {
        panic!("adds at {at}");
    }
    fn fence(&self, _: Ordering) {}
}

/// Whatever the words say, a reading takes a fixed number of loads, names at most 32 listeners, and what is shown never shrinks.
#[test]
fn memory_that_lies_at_every_load() {
    let mut listeners = 0;
    for seed in 0..2_000 {
        let liar = Liar { random: RefCell::new(support::Random::new(seed)), loads: Cell::new(0) };
        let mut shown = ReceiveCounts::default();
        for _ in 0..4 {
            liar.loads.set(0);
            let reading = read(&liar, AREA, LISTENERS_COUNT);
            assert_eq!(liar.loads.get(), COUNTS_COUNT + LISTENERS_COUNT * (3 + COUNTS_COUNT));
            assert!(reading.listeners.len() <= LISTENERS_COUNT);
            listeners += reading.listeners.len();
            let grown = reading.total.at_least(shown);
            for (now, before) in grown.to_array().into_iter().zip(shown.to_array()) {
                assert!(now >= before);
            }
            assert!(grown.spun() >= Nanos::ZERO, "a span that a u64 overflows is the longest one");
            let added = grown.since(shown);
            assert_eq!(shown.plus(added), grown);
            shown = grown;
        }
    }
    assert!(listeners > 1_000, "some lies look like listeners: {listeners}");
}

/// A program that writes everywhere in the area neither stops the ring nor gets a word of the daemon's believed.
#[test]
fn a_program_that_writes_anything_there_harms_itself_alone() {
    let (mut consumer, memfd) = region();
    support::register(&mut consumer, 1);
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let (area, producer) = (consumer.receive_area(), client.producer());
    let (mut random, base) = (support::Random::new(16), consumer.layout().region_octets());
    let mut payload = [0; 256];
    for number in 0..2_000 {
        for _ in 0..8 {
            client.poke(base + random.below(AREA_OCTETS as u64) as usize, random.next());
        }
        area.grant(number % 1_000, at(u64::MAX));
        let reading = area.read();
        assert!(reading.listeners.len() <= LISTENERS_COUNT);
        let claim = producer.claim().expect("a slot");
        producer.fill(&claim, &support::frame(0, 7), [&b"x"[..]].into_iter()).expect("it fits");
        producer.publish(claim);
        assert_eq!(consumer.collect(8), Ok(1));
        let taken = consumer.take(&mut payload).expect("a frame").expect("an honest one");
        consumer.release(taken.slot);
    }
}
