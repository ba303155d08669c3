// SPDX-License-Identifier: Apache-2.0
//! Targets `control` and `ring`: what a hostile program can send, and what it can write into its region.
//!
//! A control message that is accepted is written again octet by octet as it was read. A region made of any octets,
//! changed by any octets between the consumer's steps, gives frames and typed errors, in a bounded number of reads
//! of allowed words, and every slot that came out goes back once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use ktsn_ring::control::{HelloReply, Message, parse};
use ktsn_ring::published::PublishedSlots;
use ktsn_ring::words::Words;
use ktsn_ring::{ClockId, Layout, LinkError, layout};

const SLOT_OCTETS: u32 = 256;
const STREAMS: u32 = 2;
const TOKEN: u32 = 1;
const STEPS_MAX: usize = 256;

/// Parses `data` as a message of either side.
///
/// # Panics
/// When an invariant does not hold.
pub fn control(data: &[u8]) {
    match parse(data) {
        Ok(Message::Hello(hello)) => assert_eq!(data, hello.encode().as_slice(), "Hello"),
        Ok(Message::Register(register)) => assert_eq!(data, register.encode(), "Register"),
        Ok(Message::Unregister(unregister)) => assert_eq!(data, unregister.encode(), "Unregister"),
        Ok(Message::Expect(expect)) => assert_eq!(data, expect.encode(), "Expect"),
        Ok(Message::ShowPort(shown)) => assert_eq!(data, shown.encode(), "ShowPort"),
        Ok(Message::Later(later)) => {
            let header = later.header.encode().into_iter().flat_map(u64::to_ne_bytes);
            let rest = [later.name, later.control, later.payload].concat();
            assert_eq!(data, header.chain(rest).collect::<Vec<u8>>(), "Later");
        }
        Err(_) => {}
    }
    if let Ok(reply) = HelloReply::parse(data) {
        assert_eq!(data, reply.encode(), "HelloReply");
    }
    assert!(parse(data).is_err() || HelloReply::parse(data).is_err(), "a message has one type");
    if let Some((octets, _)) = data.split_first_chunk::<48>() {
        let mut words = [0; 6];
        for (word, chunk) in words.iter_mut().zip(octets.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        if let Ok(accepted) = Layout::from_words(words, usize::MAX) {
            assert_eq!(accepted.to_words(), words, "an identity line is believed as a whole");
        }
    }
}

/// Private memory in the shape of a region: head, and slots that repeat the input. After some reads a word changes.
struct Image<'a> {
    layout: Layout,
    head: Cell<u32>,
    slots: Box<[Cell<u64>]>,
    /// Writes still to be done by the program: when (reads to wait), where and what, three octets and five.
    pokes: RefCell<std::slice::Iter<'a, [u8; 8]>>,
    wait: Cell<u8>,
    loads: Cell<usize>,
    freed: RefCell<BTreeSet<u16>>,
}

impl<'a> Image<'a> {
    fn new(layout: Layout, head: u32, slots: &[u8], pokes: &'a [[u8; 8]]) -> Self {
        let words = layout.slots_count() * layout.slot_octets() / 8;
        let mut chunks = slots.as_chunks::<8>().0.iter().cycle();
        let next = || Cell::new(chunks.next().map_or(0, |chunk| u64::from_le_bytes(*chunk)));
        Self {
            layout,
            head: Cell::new(head),
            slots: std::iter::repeat_with(next).take(words).collect(),
            pokes: RefCell::new(pokes.iter()),
            wait: Cell::new(0),
            loads: Cell::new(0),
            freed: RefCell::default(),
        }
    }

    /// The word of a slot at an offset of the region. Anything else is not the consumer's to read.
    fn slot_word(&self, at: usize) -> &Cell<u64> {
        let first = self.layout.slot(0).expect("slot 0");
        let word = at.checked_sub(first).and_then(|octets| self.slots.get(octets / 8));
        word.unwrap_or_else(|| panic!("a read at {at}, which is in no slot"))
    }

    /// Counts a read and lets the program write.
    fn meanwhile(&self) {
        self.loads.set(self.loads.get() + 1);
        if let Some(left) = self.wait.get().checked_sub(1) {
            return self.wait.set(left);
        }
        if let Some([wait, low, high, value @ ..]) = self.pokes.borrow_mut().next() {
            self.wait.set(*wait);
            let at = usize::from(u16::from_le_bytes([*low, *high]));
            let value = value.iter().fold(0, |value, octet| value << 8 | u64::from(*octet));
            match at.checked_sub(1) {
                None => self.head.set(value as u32),
                Some(word) => self.slots[word % self.slots.len()].set(value),
            }
        }
    }
}

impl Words for Image<'_> {
    fn load32(&self, at: usize, _: Ordering) -> u32 {
        self.meanwhile();
        if at == layout::HEAD {
            return self.head.get();
        }
        let word = self.slot_word(at).get();
        if at.is_multiple_of(8) { word as u32 } else { (word >> 32) as u32 }
    }
    fn swap32(&self, at: usize, value: u32, _: Ordering) -> u32 {
        assert_eq!((at, value), (layout::HEAD, 0), "only the head is taken");
        self.meanwhile();
        self.head.replace(value)
    }
    fn load64(&self, at: usize, _: Ordering) -> u64 {
        assert!(at.is_multiple_of(8), "u64 at {at}");
        self.meanwhile();
        self.slot_word(at).get()
    }
    fn set_bits64(&self, at: usize, bits: u64, _: Ordering) {
        assert!((layout::FREE..layout::STREAMS).contains(&at) && bits.is_power_of_two(), "one slot is freed");
        let slot = (at - layout::FREE) * 8 + bits.trailing_zeros() as usize;
        self.freed.borrow_mut().insert(u16::try_from(slot).expect("a slot"));
    }
    fn store32(&self, at: usize, _: u32, _: Ordering) {
        panic!("the consumer writes at {at}");
    }
    fn exchange32(&self, at: usize, _: u32, _: u32, _: Ordering) -> Result<u32, u32> {
        panic!("the consumer exchanges at {at}");
    }
    fn store64(&self, at: usize, _: u64, _: Ordering) {
        panic!("the consumer writes at {at}");
    }
    fn exchange64(&self, at: usize, _: u64, _: u64, _: Ordering) -> Result<u64, u64> {
        panic!("the consumer exchanges at {at}");
    }
    fn add64(&self, at: usize, _: u64) {
        panic!("the consumer adds at {at}");
    }
    fn fence(&self, _: Ordering) {}
}

/// Runs the consumer's state over a region made of `data`: slots, budget, head, number of later writes, then the
/// writes and the slots.
///
/// # Panics
/// When an invariant does not hold.
pub fn ring(data: &[u8]) {
    run(data);
}

/// What came of a region: frames, bad slots, and the bad link if there was one.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    frames: usize,
    bad_slots: usize,
    bad_link: Option<LinkError>,
}

fn run(data: &[u8]) -> Outcome {
    let mut outcome = Outcome::default();
    let Some(([slots, budget, head, pokes_count], rest)) = data.split_first_chunk::<4>() else {
        return outcome;
    };
    let layout = Layout::new(u32::from(slots % 16) + 1, SLOT_OCTETS, STREAMS, 1).expect("a valid layout");
    let (chunks, _) = rest.as_chunks::<8>();
    let (pokes, image) = chunks.split_at(usize::from(*pokes_count).min(chunks.len()));
    let image = Image::new(layout, u32::from(*head), image.as_flattened(), pokes);
    let budget = usize::from(budget % 8) + 1;
    let mut published = PublishedSlots::new(&layout);
    let mut ours = BTreeSet::new();
    let mut payload = [0; SLOT_OCTETS as usize];
    for _ in 0..STEPS_MAX {
        let before = image.loads.get();
        let collected = published.collect(&image, budget);
        assert!(image.loads.get() - before <= budget + 2, "a step has a bound");
        while let Some(taken) = published.take(&image, |index| (index == 0).then_some(TOKEN), &mut payload) {
            let slot = match taken {
                Ok(taken) => {
                    assert_eq!((taken.frame.stream_index, taken.frame.token), (0, TOKEN));
                    assert_eq!(ClockId::from_id(taken.frame.clock), Some(taken.clock));
                    assert!(taken.payload_octets <= layout.payload_max() && taken.frame.priority <= 15);
                    outcome.frames += 1;
                    taken.slot
                }
                Err(error) => {
                    outcome.bad_slots += 1;
                    error.slot
                }
            };
            assert!(
                usize::from(slot) < layout.slots_count() && ours.insert(slot),
                "slot {slot} came out twice"
            );
        }
        // Every second slot stays ours for a step.
        for slot in ours.iter().copied().filter(|slot| slot % 2 == 0).collect::<Vec<_>>() {
            give(&mut published, &image, &mut ours, slot);
        }
        if collected.is_err()
            || (collected == Ok(0) && !published.is_busy() && image.pokes.borrow().len() == 0)
        {
            break;
        }
    }
    while let Some(slot) = ours.first().copied() {
        give(&mut published, &image, &mut ours, slot);
    }
    assert!(published.is_busy() || published.held() == 0, "all slots went back");
    assert_eq!(published.double_releases(), 0);
    outcome.bad_link = published.broken();
    outcome
}

fn give(published: &mut PublishedSlots, image: &Image<'_>, ours: &mut BTreeSet<u16>, slot: u16) {
    let held = published.held();
    published.release(image, slot);
    assert_eq!(published.held() + 1, held);
    assert!(ours.remove(&slot) && image.freed.borrow_mut().remove(&slot), "exactly this slot is freed");
}

#[cfg(test)]
mod tests {
    use super::{LinkError, Outcome, run};

    /// The corpus reaches what its names say.
    #[test]
    fn corpus_of_ring_gets_far() {
        let outcome = |frames, bad_slots, bad_link| Outcome { frames, bad_slots, bad_link };
        let cases: [(&[u8], Outcome); 5] = [
            (include_bytes!("../corpus/ring/four-frames.bin"), outcome(4, 0, None)),
            (include_bytes!("../corpus/ring/four-frames-slowly.bin"), outcome(4, 0, None)),
            (include_bytes!("../corpus/ring/circle.bin"), outcome(4, 0, Some(LinkError::Held(3)))),
            (
                include_bytes!("../corpus/ring/out-of-range.bin"),
                outcome(0, 0, Some(LinkError::OutOfRange(5))),
            ),
            (include_bytes!("../corpus/ring/bad-slots.bin"), outcome(1, 7, None)),
        ];
        for (data, expected) in cases {
            assert_eq!(run(data), expected);
        }
    }
}
