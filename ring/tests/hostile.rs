// SPDX-License-Identifier: Apache-2.0
//! A program that writes anything anywhere at any time. The consumer gives frames and typed errors, touches nothing
//! that is not its own, stops after a known number of steps, and its books close.

mod support;

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use ktsn_ring::published::{PublishedSlots, SlotFault};
use ktsn_ring::words::Words;
use ktsn_ring::{ClientMapping, Consumer, Layout, LinkError, RegionState, SlotError, Taken, layout};

/// Memory whose every load says something else, and which knows what the consumer may touch.
struct Liar {
    layout: Layout,
    random: RefCell<support::Random>,
    loads: Cell<usize>,
    released: RefCell<Vec<(usize, u64)>>,
}

impl Liar {
    fn new(layout: &Layout, seed: u64) -> Self {
        let random = RefCell::new(support::Random::new(seed));
        Self { layout: *layout, random, loads: Cell::new(0), released: RefCell::new(Vec::new()) }
    }

    /// Where in a slot an offset lies; fails when it is in none.
    fn in_slot(&self, at: usize) -> usize {
        let first = self.layout.slot(0).expect("slot 0");
        let end = first + self.layout.slots_count() * self.layout.slot_octets();
        assert!((first..end).contains(&at), "the consumer has nothing to read at {at}");
        (at - first) % self.layout.slot_octets()
    }

    fn lie(&self) -> u64 {
        self.loads.set(self.loads.get() + 1);
        let mut random = self.random.borrow_mut();
        match random.below(32) {
            0 => random.next(),
            1 => u64::MAX,
            2 => self.layout.slots_count() as u64 + 1,
            // The end of a list, and small numbers: links, indices and lengths that look right.
            3..16 => 0,
            _ => random.below(self.layout.slots_count() as u64 + 1),
        }
    }

    fn lie_about_a_field(&self, field: usize) -> u64 {
        let value = self.lie();
        let mut random = self.random.borrow_mut();
        match field {
            // token and flags, scope and lengths, clock: often right, else nothing would get past the checks.
            8 if random.below(8) != 0 => u64::from(support::TOKEN) | random.below(8) << 32,
            48 if random.below(4) != 0 => random.below(600) << 48,
            56 if random.below(8) != 0 => 1 | random.below(16) << 8,
            _ => value,
        }
    }
}

impl Words for Liar {
    fn load32(&self, at: usize, _: Ordering) -> u32 {
        let is_head = at == layout::HEAD;
        assert!(is_head || [0, 4].contains(&self.in_slot(at)), "u32 at {at}");
        if !is_head && self.in_slot(at) == 4 && self.random.borrow_mut().below(8) != 0 {
            return 0;
        }
        self.lie() as u32
    }
    fn swap32(&self, at: usize, value: u32, _: Ordering) -> u32 {
        assert_eq!((at, value), (layout::HEAD, 0));
        self.lie() as u32
    }
    fn load64(&self, at: usize, _: Ordering) -> u64 {
        assert_eq!(at % 8, 0);
        let field = self.in_slot(at);
        assert!((8..72).contains(&field) || field >= 192, "the completion is not read");
        self.lie_about_a_field(field)
    }
    fn set_bits64(&self, at: usize, bits: u64, _: Ordering) {
        assert!((layout::FREE..layout::DONE).contains(&at));
        self.released.borrow_mut().push((at, bits));
    }
    fn store32(&self, at: usize, _: u32, _: Ordering) {
        panic!("the consumer writes a u32 at {at}");
    }
    fn exchange32(&self, at: usize, _: u32, _: u32, _: Ordering) -> Result<u32, u32> {
        panic!("the consumer exchanges a u32 at {at}");
    }
    fn store64(&self, at: usize, _: u64, _: Ordering) {
        panic!("the consumer writes a u64 at {at}");
    }
    fn exchange64(&self, at: usize, _: u64, _: u64, _: Ordering) -> Result<u64, u64> {
        panic!("the consumer exchanges a u64 at {at}");
    }
    fn add64(&self, at: usize, _: u64) {
        panic!("the consumer adds at {at}");
    }
    fn fence(&self, _: Ordering) {}
}

/// The payload's buffer with octets around it that must stay as they are.
struct Guarded {
    octets: Vec<u8>,
    room: usize,
}

impl Guarded {
    const GUARD: usize = 64;

    fn new(room: usize) -> Self {
        Self { octets: vec![0xa5; room + 2 * Self::GUARD], room }
    }
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.octets[Self::GUARD..Self::GUARD + self.room]
    }
    fn check(&self) {
        let (front, rest) = self.octets.split_at(Self::GUARD);
        assert!(
            front.iter().chain(&rest[self.room..]).all(|octet| *octet == 0xa5),
            "written beside the buffer"
        );
    }
}

/// What must hold of anything that comes out.
fn check(taken: &Result<Taken, SlotError>, layout: &Layout, ours: &mut BTreeSet<u16>) -> bool {
    let slot = match taken {
        Ok(taken) => {
            assert!(taken.payload_octets <= layout.payload_max());
            assert!((taken.frame.stream_index as usize) < layout.streams_count());
            assert_eq!(taken.frame.token, support::TOKEN);
            assert_eq!(taken.frame.clock, taken.clock.id());
            assert!(taken.frame.priority <= 15);
            taken.slot
        }
        Err(error) => error.slot,
    };
    assert!(usize::from(slot) < layout.slots_count());
    assert!(ours.insert(slot), "slot {slot} came out twice");
    taken.is_ok()
}

#[test]
fn memory_that_lies_at_every_load() {
    let (mut good, mut bad, mut held_errors, mut range_errors) = (0, 0, 0, 0);
    for seed in 0..20_000 {
        let slots = [1, 3, 16, 64, 70][seed as usize % 5];
        let layout = Layout::new(slots, 512, 2, 1).expect("a valid layout");
        let (liar, mut published) = (Liar::new(&layout, seed), PublishedSlots::new(&layout));
        let mut guarded = Guarded::new(layout.payload_max());
        let mut ours = BTreeSet::new();
        let broken = loop {
            let before = liar.loads.get();
            let collected = published.collect(&liar, 8);
            assert!(liar.loads.get() - before <= 8 + 2, "a step is bounded by its budget");
            while let Some(taken) = published.take(&liar, |_| Some(support::TOKEN), guarded.buffer()) {
                guarded.check();
                if check(&taken, &layout, &mut ours) {
                    good += 1;
                } else {
                    bad += 1;
                }
                if seed % 3 != 0 {
                    let slot = *ours.first().expect("a slot");
                    ours.remove(&slot);
                    published.release(&liar, slot);
                }
            }
            assert!(published.held() >= ours.len() && published.held() <= layout.slots_count());
            if let Err(error) = collected {
                break error;
            }
            if liar.loads.get() > 20_000 {
                break LinkError::OutOfRange(0); // a long life without a bad link
            }
        };
        match broken {
            LinkError::Held(_) => held_errors += 1,
            LinkError::OutOfRange(_) => range_errors += 1,
        }
        for slot in std::mem::take(&mut ours) {
            published.release(&liar, slot);
        }
        if published.broken().is_some() {
            assert_eq!((published.held(), published.ready()), (0, 0), "the books close");
        }
        for (at, bits) in liar.released.borrow().iter() {
            let slot = (at - layout::FREE) / 8 * 64 + bits.trailing_zeros() as usize;
            assert!(bits.is_power_of_two() && slot < layout.slots_count());
        }
    }
    let all = [good, bad, held_errors, range_errors];
    assert!(all.iter().all(|count| *count > 1_000), "good, bad, held, out of range: {all:?}");
}

/// What a region's life against random writes came to.
#[derive(Default)]
struct Outcome {
    good: usize,
    bad: usize,
    broken: usize,
}

/// One region, honest pushes and lies between the consumer's steps, until it is retired or `steps` are over.
fn one_life(
    seed: u64,
    steps: usize,
    outcome: &mut Outcome,
    beside: impl FnOnce(&ClientMapping, &mut dyn FnMut()),
) {
    let layout = Layout::new(32, 512, 2, 1).expect("a valid layout");
    let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
    support::register(&mut consumer, 2);
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let mut random = support::Random::new(seed);
    let mut guarded = Guarded::new(layout.payload_max());
    let mut ours = BTreeSet::new();
    let mut life = || {
        for number in 0..steps as u64 {
            lie_or_push(&client, &mut random, number);
            let collected = consumer.collect(1 + random.below(8) as usize);
            lie_or_push(&client, &mut random, number);
            if let Some(taken) = consumer.take(guarded.buffer()) {
                guarded.check();
                if check(&taken, &layout, &mut ours) {
                    outcome.good += 1;
                } else {
                    outcome.bad += 1;
                }
            }
            if random.below(2) == 0
                && let Some(slot) = ours.pop_first()
            {
                consumer.release(slot);
            }
            assert!(consumer.held() >= ours.len() && consumer.held() <= layout.slots_count());
            if collected.is_err() {
                outcome.broken += 1;
                break;
            }
        }
        while let Some(taken) = consumer.take(guarded.buffer()) {
            check(&taken, &layout, &mut ours);
        }
        while let Some(slot) = ours.pop_first() {
            consumer.release(slot);
        }
        if consumer.broken().is_some() {
            assert_eq!(consumer.held(), 0, "the books close");
            assert!(!consumer.published());
        }
        consumer.set_state(RegionState::Retired);
        assert_eq!(consumer.double_releases(), 0);
    };
    beside(&client, &mut life);
}

fn lie_or_push(client: &ClientMapping, random: &mut support::Random, number: u64) {
    let layout = *client.producer().layout();
    match random.below(40) {
        0 => client.poke(random.next() as usize, random.next()),
        1 => client.poke(random.next() as usize, random.below(40)),
        // Fields of slots, so that bad slots are more frequent than bad links.
        2..6 => {
            let slot = layout.slot(random.below(32) as u16).expect("a slot");
            client.poke(slot + 8 + 8 * random.below(7) as usize, random.next());
        }
        // And rarely the links.
        6 => client.poke(layout.slot(random.below(32) as u16).expect("a slot"), random.below(34)),
        7 => client.poke(layout::HEAD, random.below(34)),
        _ => {
            let producer = client.producer();
            if let Some(claim) = producer.claim() {
                let payload = support::payload(0, number, producer.payload_max());
                let filled = producer.fill(&claim, &support::frame(0, number), std::iter::once(&payload[..]));
                assert_eq!(filled, Ok(()));
                producer.publish(claim);
            }
        }
    }
}

#[test]
fn words_written_between_any_two_steps() {
    let mut outcome = Outcome::default();
    for seed in 0..3_000 {
        one_life(seed, 400, &mut outcome, |_, life| life());
    }
    assert!(outcome.good > 1_000 && outcome.bad > 1_000, "{} good, {} bad", outcome.good, outcome.bad);
    assert!(outcome.broken > 100, "{} broken", outcome.broken);
}

#[test]
fn words_written_by_a_thread_beside_it() {
    let mut outcome = Outcome::default();
    for seed in 0..300 {
        one_life(seed, 400, &mut outcome, |client, life| {
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let mut random = support::Random::new(!seed);
                    let layout = client.producer().layout();
                    while !over.load(Ordering::Relaxed) {
                        let slot = layout.slot(random.below(32) as u16).expect("a slot");
                        client.poke(slot + 8 * random.below(8) as usize, random.below(34));
                        client.poke(random.next() as usize, random.next());
                        thread::yield_now();
                    }
                });
                life();
                over.store(true, Ordering::Relaxed);
            });
        });
    }
    assert!(outcome.good + outcome.bad > 300, "{} good, {} bad", outcome.good, outcome.bad);
    assert!(outcome.broken > 10, "{} broken", outcome.broken);
}

/// Each check of a slot, one by one.
#[test]
fn every_fault_of_a_slot_has_a_name() {
    let faults: [(usize, u64, u64, SlotFault); 11] = [
        (56, 0xff, 2, SlotFault::Clock(2)),
        (56, 0xff, 0, SlotFault::Clock(0)),
        (56, 0xff00, 16 << 8, SlotFault::Priority(16)),
        (8, 0xffff_ffff << 32, 1 << 63, SlotFault::Flags(1 << 31)),
        (8, 0xffff_ffff << 32, (8 | 16) << 32, SlotFault::Flags(8 | 16)),
        (8, 0xffff_ffff << 32, (8 | 1) << 32, SlotFault::Flags(8 | 1)),
        (8, 0xffff_ffff << 32, (16 | 4) << 32, SlotFault::Flags(16 | 4)),
        (8, 0xffff_ffff, 1, SlotFault::Token(1)),
        (48, 0xffff << 48, 385 << 48, SlotFault::Payload(385)),
        (0, 0xffff_ffff << 32, 2 << 32, SlotFault::Stream(2)),
        (0, 0xffff_ffff << 32, 1 << 32, SlotFault::Token(support::TOKEN)),
    ];
    for (field, mask, value, fault) in faults {
        let layout = Layout::new(4, 512, 2, 1).expect("a valid layout");
        let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
        support::register(&mut consumer, 1); // stream 1 exists, but is not registered
        let client = ClientMapping::open(&memfd).expect("a mapping");
        let producer = client.producer();
        let claim = producer.claim().expect("a slot");
        let at = layout.slot(claim.slot()).expect("the slot") + field;
        producer.fill(&claim, &support::frame(0, 7), std::iter::empty()).expect("it fits");
        producer.publish(claim);
        client.poke(at, client.peek(at) & !mask | value);
        assert_eq!(consumer.collect(8), Ok(1));
        let mut buffer = [0; 512];
        assert_eq!(consumer.take(&mut buffer), Some(Err(SlotError { slot: 0, fault })));
        assert_eq!(consumer.held(), 1, "a bad slot is held like a good one");
        consumer.release(0);
        assert_eq!(consumer.held(), 0);
        assert_eq!(producer.claim().map(|claim| claim.slot()), Some(0), "and comes back");
    }
}

/// Metadata that were checked stay as they were, whatever the program writes into the slot before the payload is copied.
#[test]
fn a_slot_that_changes_between_metadata_and_payload_gives_no_more_than_was_checked() {
    let layout = Layout::new(4, 512, 1, 1).expect("a valid layout");
    let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
    support::register(&mut consumer, 1);
    let client = ClientMapping::open(&memfd).expect("a mapping");
    let producer = client.producer();
    let claim = producer.claim().expect("a slot");
    let at = layout.slot(claim.slot()).expect("the slot");
    producer.fill(&claim, &support::frame(0, 7), [&b"before"[..]].into_iter()).expect("it fits");
    producer.publish(claim);
    assert_eq!(consumer.collect(8), Ok(1));
    let taken = consumer.take_metadata(|_, _| false).expect("a frame").expect("an honest one");
    assert_eq!(taken.payload_octets, 6);
    // Another length, token and payload.
    client.poke(at + 48, client.peek(at + 48) | 0xffff << 48);
    client.poke(at + 8, !0);
    client.poke(at + ktsn_ring::layout::SLOT_HEADER_OCTETS, u64::from_ne_bytes(*b"after   "));
    let mut payload = [7; 16];
    consumer.read_payload(taken.slot, &mut payload[..taken.payload_octets]);
    assert_eq!(&payload, b"after \x07\x07\x07\x07\x07\x07\x07\x07\x07\x07");
    // More than a slot holds, and a slot that does not exist: as much as there is, or nothing.
    let mut long = [7; 4096];
    consumer.read_payload(taken.slot, &mut long);
    assert!(long[layout.payload_max()..].iter().all(|octet| *octet == 7));
    consumer.read_payload(77, &mut payload);
    assert_eq!(&payload[..6], b"after ");
}

/// A list that bites its own tail, one that goes round, and two that name no slot.
#[test]
fn bad_lists_end() {
    let cases: [(&[u64], LinkError, usize); 4] = [
        (&[1, 0], LinkError::Held(0), 1),
        (&[2, 1, 1], LinkError::Held(0), 2),
        (&[5], LinkError::OutOfRange(5), 0),
        (&[0xffff_ffff], LinkError::OutOfRange(0xffff_ffff), 0),
    ];
    for (links, error, reached) in cases {
        let layout = Layout::new(4, 256, 1, 1).expect("a valid layout");
        let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
        let client = ClientMapping::open(&memfd).expect("a mapping");
        client.poke(layout::HEAD, links[0]);
        // links[n] is what the slot named by links[n - 1] says; the last points back to slot 0.
        for pair in links.windows(2) {
            let slot = u16::try_from(pair[0] - 1).expect("a slot");
            client.poke(layout.slot(slot).expect("a slot"), pair[1].max(1));
        }
        let mut result = Ok(0);
        for _ in 0..8 {
            result = consumer.collect(1);
        }
        assert_eq!(result, Err(error));
        assert_eq!((consumer.held(), consumer.ready()), (reached, reached));
        assert_eq!(client.producer().state(), RegionState::Retired);
    }
}
