// SPDX-License-Identifier: Apache-2.0
//! Any sequence of steps against a naive model: a `VecDeque` of what was published and a set of free slots.

mod support;

use std::collections::{BTreeSet, VecDeque};

use ktsn_ring::{Claim, ClientMapping, Consumer, Layout, Run, SlotFrame, TooLong};
use proptest::prelude::*;

const TALKERS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Claim(u32),
    ClaimSome(u32, u32, u32),
    TooLong(u32),
    Publish(u32),
    Run(u32),
    Cancel(u32),
    CancelRun(u32),
    Collect(usize),
    Take,
    Release(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..TALKERS).prop_map(Step::Claim),
        2 => (0..TALKERS, 1u32..70, 0u32..4).prop_map(|(talker, count, unused)| Step::ClaimSome(talker, count, unused)),
        1 => (0..TALKERS).prop_map(Step::TooLong),
        4 => (0..TALKERS).prop_map(Step::Publish),
        2 => (0..TALKERS).prop_map(Step::Run),
        1 => (0..TALKERS).prop_map(Step::Cancel),
        1 => (0..TALKERS).prop_map(Step::CancelRun),
        3 => (0usize..5).prop_map(Step::Collect),
        3 => Just(Step::Take),
        3 => any::<usize>().prop_map(Step::Release),
    ]
}

/// Slot, talker and number of a frame.
type Filled = Vec<(u16, u32, u64)>;

/// What should be true.
struct Model {
    free: BTreeSet<u16>,
    claims: Vec<VecDeque<(Claim, u64)>>,
    numbers: Vec<u64>,
    published: VecDeque<(u16, u32, u64)>,
    /// The list that was taken from the head: frames, and links still to be followed.
    batch: VecDeque<(u16, u32, u64)>,
    unwalked: usize,
    taken: Vec<u16>,
}

struct Ring {
    consumer: Consumer,
    client: ClientMapping,
    model: Model,
}

impl Ring {
    fn new(slots: u32) -> Self {
        let layout = Layout::new(slots, 512, TALKERS, 1).expect("a valid layout");
        let (mut consumer, memfd) = Consumer::create(layout).expect("a region");
        support::register(&mut consumer, TALKERS);
        let client = ClientMapping::open(&memfd).expect("the region is mapped twice");
        let model = Model {
            free: (0..slots as u16).collect(),
            claims: (0..TALKERS).map(|_| VecDeque::new()).collect(),
            numbers: vec![0; TALKERS as usize],
            published: VecDeque::new(),
            batch: VecDeque::new(),
            unwalked: 0,
            taken: Vec::new(),
        };
        Self { consumer, client, model }
    }

    fn claim(&mut self, talker: u32) -> Result<(), TestCaseError> {
        let claim = self.client.producer().claim();
        prop_assert_eq!(claim.as_ref().map(Claim::slot), self.model.free.first().copied(), "lowest first");
        let Some(claim) = claim else { return Ok(()) };
        self.model.free.remove(&claim.slot());
        let number = &mut self.model.numbers[talker as usize];
        self.model.claims[talker as usize].push_back((claim, *number));
        *number += 1;
        Ok(())
    }

    /// Up to `count` slots of one word by one exchange, of which the last `unused` go back.
    fn claim_some(&mut self, talker: u32, count: u32, unused: u32) -> Result<(), TestCaseError> {
        let producer = *self.client.producer();
        let mut claims = producer.claim_some(count);
        let first = self.model.free.first().copied();
        let word = |slot: u16| slot / 64;
        let expected: Vec<u16> =
            self.model.free.iter().copied().filter(|slot| Some(word(*slot)) == first.map(word)).collect();
        let expected = &expected[..expected.len().min(count.min(64) as usize)];
        let used = expected.len().saturating_sub(unused as usize);
        for slot in &expected[..used] {
            let claim = producer.next(&mut claims);
            prop_assert_eq!(claim.as_ref().map(Claim::slot), Some(*slot), "lowest first");
            self.model.free.remove(slot);
            let number = &mut self.model.numbers[talker as usize];
            self.model.claims[talker as usize].extend(claim.map(|claim| (claim, *number)));
            *number += 1;
        }
        prop_assert_eq!(claims.is_empty(), used == expected.len());
        producer.cancel_some(claims);
        Ok(())
    }

    fn too_long(&mut self, talker: u32) -> Result<(), TestCaseError> {
        let Some((claim, _)) = self.model.claims[talker as usize].front() else { return Ok(()) };
        let producer = self.client.producer();
        let long = vec![1; producer.payload_max()];
        let segments: [&[u8]; 2] = [&long, &[2]];
        prop_assert_eq!(producer.fill(claim, &SlotFrame::default(), segments.into_iter()), Err(TooLong));
        Ok(())
    }

    /// Everything that a talker has claimed, filled, as one run; and its slots in the frames' order.
    fn run(&mut self, talker: u32) -> Result<Option<(Run, Filled)>, TestCaseError> {
        let producer = *self.client.producer();
        let (mut run, mut filled) = (None, Vec::new());
        for (claim, number) in self.model.claims[talker as usize].drain(..) {
            let payload = support::payload(talker, number, producer.payload_max());
            prop_assert_eq!(
                producer.fill(&claim, &support::frame(talker, number), [&payload[..]].into_iter()),
                Ok(())
            );
            filled.push((claim.slot(), talker, number));
            let more = producer.run(claim);
            run = Some(match run.take() {
                Some(run) => producer.join(run, more),
                None => more,
            });
        }
        Ok(run.map(|run| (run, filled)))
    }

    fn publish(&mut self, talker: u32) -> Result<(), TestCaseError> {
        let Some((claim, number)) = self.model.claims[talker as usize].pop_front() else { return Ok(()) };
        let producer = self.client.producer();
        let payload = support::payload(talker, number, producer.payload_max());
        // Segments of odd lengths: words are put together across them.
        let (first, second) = payload.split_at(payload.len() / 3);
        let segments = [first, &[], second].into_iter();
        prop_assert_eq!(producer.fill(&claim, &support::frame(talker, number), segments), Ok(()));
        self.model.published.push_back((claim.slot(), talker, number));
        producer.publish(claim);
        Ok(())
    }

    fn collect(&mut self, budget: usize) -> Result<(), TestCaseError> {
        let model = &mut self.model;
        if model.unwalked == 0 && model.batch.is_empty() && budget > 0 {
            model.batch = std::mem::take(&mut model.published);
            model.unwalked = model.batch.len();
        }
        model.unwalked = model.unwalked.saturating_sub(budget);
        let ready = if model.unwalked == 0 { model.batch.len() } else { 0 };
        prop_assert_eq!(self.consumer.collect(budget), Ok(ready));
        Ok(())
    }

    fn take(&mut self) -> Result<(), TestCaseError> {
        let mut buffer = vec![0xa5; self.client.producer().payload_max() + 64];
        let room = self.client.producer().payload_max();
        let taken = self.consumer.take(&mut buffer[..room]);
        let expected = if self.model.unwalked == 0 { self.model.batch.pop_front() } else { None };
        prop_assert_eq!(taken.is_some(), expected.is_some());
        let (Some(taken), Some((slot, talker, number))) = (taken, expected) else { return Ok(()) };
        let taken = taken.expect("an honest frame");
        prop_assert_eq!(taken.slot, slot);
        prop_assert_eq!(taken.frame, support::frame(talker, number));
        let payload = support::payload(talker, number, room);
        prop_assert_eq!(&buffer[..taken.payload_octets], &payload[..]);
        prop_assert!(buffer[taken.payload_octets..].iter().all(|octet| *octet == 0xa5), "nothing behind it");
        self.model.taken.push(slot);
        Ok(())
    }

    fn release(&mut self, which: usize) {
        if !self.model.taken.is_empty() {
            let slot = self.model.taken.swap_remove(which % self.model.taken.len());
            self.consumer.release(slot);
            self.model.free.insert(slot);
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Claim(talker) => self.claim(talker)?,
            Step::ClaimSome(talker, count, unused) => self.claim_some(talker, count, unused)?,
            Step::TooLong(talker) => self.too_long(talker)?,
            Step::Publish(talker) => self.publish(talker)?,
            Step::Cancel(talker) => {
                if let Some((claim, _)) = self.model.claims[talker as usize].pop_back() {
                    self.model.free.insert(claim.slot());
                    self.client.producer().cancel(claim);
                }
            }
            Step::Run(talker) => {
                if let Some((run, filled)) = self.run(talker)? {
                    prop_assert_eq!(usize::from(run.count()), filled.len());
                    self.client.producer().publish_run(run);
                    self.model.published.extend(filled);
                }
            }
            Step::CancelRun(talker) => {
                if let Some((run, filled)) = self.run(talker)? {
                    self.client.producer().cancel_run(run);
                    self.model.free.extend(filled.into_iter().map(|(slot, ..)| slot));
                }
            }
            Step::Collect(budget) => self.collect(budget)?,
            Step::Take => self.take()?,
            Step::Release(which) => self.release(which),
        }
        let model = &self.model;
        let walked = model.batch.len() - model.unwalked;
        prop_assert_eq!(self.consumer.held(), walked + model.taken.len());
        let busy = !model.batch.is_empty() || !model.published.is_empty();
        prop_assert_eq!(self.consumer.published(), busy);
        prop_assert_eq!(self.consumer.sleep_check(), !busy);
        prop_assert_eq!(self.consumer.collecting(), model.unwalked > 0);
        let claimed: usize = model.claims.iter().map(VecDeque::len).sum();
        let published = model.published.len() + model.batch.len();
        let slots = self.consumer.layout().slots_count();
        prop_assert_eq!(model.free.len() + claimed + published + model.taken.len(), slots, "conservation");
        Ok(())
    }
}

proptest! {
    #[test]
    fn any_sequence_of_steps(slots in prop_oneof![1u32..6, Just(64), Just(65), Just(130)],
                             steps in proptest::collection::vec(step(), 1..400)) {
        let mut ring = Ring::new(slots);
        for step in &steps {
            ring.step(step)?;
        }
        // And then everything comes out.
        for talker in 0..TALKERS {
            while !ring.model.claims[talker as usize].is_empty() {
                ring.publish(talker)?;
            }
        }
        while ring.consumer.published() {
            ring.collect(3)?;
            ring.take()?;
        }
        while !ring.model.taken.is_empty() {
            ring.release(0);
        }
        prop_assert_eq!(ring.consumer.held(), 0);
        prop_assert_eq!(ring.model.free.len(), slots as usize);
        for slot in 0..slots as u16 {
            ring.claim(0)?;
            prop_assert_eq!(ring.model.claims[0].back().map(|(claim, _)| claim.slot()), Some(slot));
        }
        prop_assert_eq!(ring.client.producer().claim(), None);
    }
}
