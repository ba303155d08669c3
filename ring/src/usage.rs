// SPDX-License-Identifier: Apache-2.0
//! Which streams use the slots of a region, as its program sees it.
//!
//! In: the bitmaps, and the slots in use. Out: what is queued, and how many slots a stream holds. Other threads claim and the
//! daemon frees meanwhile: an answer is as old as its reading. A slot that is claimed and not filled yet shows what was in it
//! before.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::algorithm;
use crate::frame::{self, SlotFrame, SlotHeader};
use crate::layout::{self, FREE_WORDS, STREAMS_MAX};
use crate::producer::Producer;
use crate::words::Words;

const SEEN_WORDS: usize = STREAMS_MAX as usize / 64;
const _: () = assert!(FREE_WORDS == 64);

/// The slots in use, from one stream's side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Slots that the stream holds.
    pub own: usize,
    /// Other streams that hold any.
    pub others: usize,
}

impl Producer {
    /// Frees the published slots that the daemon has not taken, and returns how many they were. For a region whose state says that the daemon
    /// has ended it: a frame is taken by the daemon's last look or here, never by both.
    #[must_use]
    pub fn take_back(&self) -> u64 {
        let (mut link, mut count) = (algorithm::take_all(&self.words), 0u64);
        for _ in 0..self.layout.slots_count() {
            let Some(slot) = link.checked_sub(1).and_then(|slot| u16::try_from(slot).ok()) else { break };
            let Some(at) = self.layout.slot(slot) else { break };
            link = algorithm::next(&self.words, at);
            algorithm::release(&self.words, slot);
            count = count.wrapping_add(1);
        }
        count
    }

    /// How many slots are free.
    #[must_use]
    pub fn free_count(&self) -> usize {
        let free = |index: usize| {
            self.words.load64(bitmap(layout::FREE, index), Relaxed) & self.layout.free_mask(index)
        };
        (0..self.layout.free_words())
            .fold(0, |sum, index| sum.wrapping_add(free(index).count_ones() as usize))
    }

    /// What `stream` and the others hold. It reads a word of each slot in use.
    #[must_use]
    pub fn usage(&self, stream: u32) -> Usage {
        let (mut usage, mut seen) = (Usage::default(), [0u64; SEEN_WORDS]);
        self.for_each_used(layout::FREE, |at| {
            let of = self.words.load32(at.wrapping_add(frame::STREAM_INDEX), Relaxed);
            if of == stream {
                usage.own = usage.own.wrapping_add(1);
            } else if let Some(word) = seen.get_mut(of as usize / 64) {
                let bit = 1u64.wrapping_shl(of & 63);
                usage.others = usage.others.wrapping_add(usize::from(*word & bit == 0));
                *word |= bit;
            }
        });
        usage
    }

    /// Shows every frame whose slot is in use and holds no outcome, with the octets of its payload: what is queued.
    pub fn for_each_queued(&self, mut show: impl FnMut(&SlotFrame, u16)) {
        self.for_each_used(layout::DONE, |at| {
            let header = SlotHeader::load(&self.words, at);
            show(&header.frame, header.payload_octets);
        });
    }

    /// Shows where each slot lies that is in use, and of which no bit is set in the bitmap `but`.
    fn for_each_used(&self, but: usize, mut show: impl FnMut(usize)) {
        for index in 0..self.layout.free_words() {
            let word = |of: usize| self.words.load64(bitmap(of, index), Acquire);
            let mut left = self.layout.free_mask(index) & !word(layout::FREE) & !word(but);
            while left != 0 {
                let slot = index.wrapping_mul(64).wrapping_add(left.trailing_zeros() as usize) as u16;
                left &= left.wrapping_sub(1);
                if let Some(at) = self.layout.slot(slot) {
                    show(at);
                }
            }
        }
    }
}

/// The word of this index of a bitmap.
const fn bitmap(of: usize, index: usize) -> usize {
    of.wrapping_add(index.wrapping_mul(8))
}

#[cfg(all(test, feature = "daemon"))]
mod tests {
    use crate::{ClientMapping, ClockId, Consumer, Layout, Producer, SlotFrame, StreamCode, StreamStatus};

    #[test]
    fn what_the_daemon_has_not_taken_is_taken_back() {
        let (mut consumer, memfd) = Consumer::create(Layout::new(8, 256, 1, 1).unwrap()).unwrap();
        let status = StreamStatus { token: 5, code: StreamCode::Registered, ..StreamStatus::default() };
        consumer.set_stream(0, status).unwrap();
        let mapping = ClientMapping::open(&memfd).unwrap();
        let producer: &Producer = mapping.producer();
        let publish = || {
            let claim = producer.claim().unwrap();
            let frame = SlotFrame { token: 5, clock: ClockId::Tai.id(), ..SlotFrame::default() };
            producer.fill(&claim, &frame, core::iter::empty()).unwrap();
            producer.publish(claim);
        };
        (0..3).for_each(|_| publish());
        assert_eq!(consumer.collect(8), Ok(3));
        (0..2).for_each(|_| publish());
        assert_eq!((producer.take_back(), producer.take_back()), (2, 0));
        assert_eq!(producer.free_count(), 5);
        for _ in 0..3 {
            let taken = consumer.take(&mut []).unwrap().unwrap();
            consumer.release(taken.slot);
        }
        assert_eq!((consumer.collect(8), producer.free_count()), (Ok(0), 8));
    }
}
