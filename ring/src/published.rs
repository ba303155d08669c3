// SPDX-License-Identifier: Apache-2.0
//! The published slots, as the consumer holds them privately: which are in our hands, and in which order they were published.
//!
//! In: links and slots that a hostile program may change between any two loads. Out: checked private copies, oldest
//! first, or a typed error. Of the shared words it reads the head, the links, slot fields and payload, each once.
//! It never follows more links than there are slots, never allocates after it was made, and never panics on what
//! it reads.

use core::sync::atomic::Ordering::Relaxed;
use std::boxed::Box;

use thiserror::Error;

use crate::algorithm;
use crate::completion::{self, Completion, Place};
use crate::frame::{ClockId, SlotFlags, SlotFrame, SlotHeader};
use crate::layout::{self, FREE_WORDS, Layout, SLOT_HEADER_OCTETS};
use crate::words::Words;

/// Highest SO_PRIORITY that a slot carries.
pub const PRIORITY_MAX: u8 = 15;

/// The list of published slots is broken: the region can no longer be used.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LinkError {
    /// A link names a slot that does not exist.
    #[error("link {0} is out of range")]
    OutOfRange(u32),
    /// A link names a slot that we hold: published twice, or a circle.
    #[error("slot {0} was published while it is in our hands")]
    Held(u16),
}

/// What is wrong with a slot.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum SlotFault {
    /// No clock of ours.
    #[error("clock {0}")]
    Clock(u8),
    /// Flags that this ABI does not know, or that cannot stand together.
    #[error("flags {0:#x}")]
    Flags(u32),
    /// More than 15.
    #[error("priority {0}")]
    Priority(u8),
    /// Longer than the slot, or than the buffer for the copy.
    #[error("payload of {0} octets")]
    Payload(u16),
    /// No such stream.
    #[error("stream index {0}")]
    Stream(u32),
    /// Not the token of the stream's registration (the stream was registered again meanwhile, or never).
    #[error("token {0}")]
    Token(u32),
}

/// A slot that says nothing usable. It is still held: [`release`](PublishedSlots::release) it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("slot {slot}: {fault}")]
pub struct SlotError {
    /// The slot.
    pub slot: u16,
    /// What is wrong.
    pub fault: SlotFault,
}

/// A frame whose slot is held until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The slot.
    pub slot: u16,
    /// The metadata, checked.
    pub frame: SlotFrame,
    /// The clock of `frame.tx_time`.
    pub clock: ClockId,
    /// Octets of payload; they fit into a slot.
    pub payload_octets: usize,
}

/// A set of slots.
#[derive(Clone, Debug)]
struct SlotSet {
    bits: [u64; FREE_WORDS],
    count: usize,
}

impl SlotSet {
    /// Adds a slot; false if it was there.
    fn insert(&mut self, slot: u16) -> bool {
        let bit = 1u64 << (slot & 63);
        match self.bits.get_mut(usize::from(slot >> 6)) {
            Some(word) if *word & bit == 0 => {
                *word |= bit;
                self.count += 1;
                true
            }
            _ => false,
        }
    }
    /// Takes a slot out; false if it was not there.
    fn remove(&mut self, slot: u16) -> bool {
        let bit = 1u64 << (slot & 63);
        match self.bits.get_mut(usize::from(slot >> 6)) {
            Some(word) if *word & bit != 0 => {
                *word &= !bit;
                self.count -= 1;
                true
            }
            _ => false,
        }
    }
}

/// The consumer's private state over one region.
#[derive(Debug)]
pub struct PublishedSlots {
    layout: Layout,
    held: SlotSet,
    /// Slots with an outcome that the program has not read, as far as we know.
    unread: SlotSet,
    /// The last completion's number.
    sequence: u32,
    /// Slots of the list that is walked or was walked, newest first; the end is taken first.
    stack: Box<[u16]>,
    stacked: usize,
    /// The next link to follow; 0 when no walk is under way.
    link: u32,
    /// Why the region is given up.
    broken: Option<LinkError>,
    double_releases: u64,
}

impl PublishedSlots {
    /// The state for a region of this layout; the only allocation.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        Self {
            layout: *layout,
            held: SlotSet { bits: [0; FREE_WORDS], count: 0 },
            unread: SlotSet { bits: [0; FREE_WORDS], count: 0 },
            sequence: 0,
            stack: std::vec![0; layout.slots_count()].into_boxed_slice(),
            stacked: 0,
            link: 0,
            broken: None,
            double_releases: 0,
        }
    }

    /// Takes the list of published slots if none is in hand, and follows at most `budget` links of it.
    ///
    /// Returns how many frames [`Self::take`] can give now: 0 until the walk has reached the oldest.
    ///
    /// # Errors
    /// A bad link, once found, is returned by every further call. What the walk had reached can still be taken.
    pub fn collect(&mut self, words: &impl Words, budget: usize) -> Result<usize, LinkError> {
        if let Some(error) = self.broken {
            return Err(error);
        }
        if self.link == 0 {
            if self.stacked > 0 || budget == 0 {
                return Ok(self.stacked);
            }
            self.link = algorithm::take_all(words);
        }
        for _ in 0..budget {
            if self.link == 0 {
                break;
            }
            if let Err(error) = self.follow(words) {
                self.link = 0;
                self.broken = Some(error);
                return Err(error);
            }
        }
        Ok(self.ready())
    }

    /// Follows one link: the slot comes into our hands.
    fn follow(&mut self, words: &impl Words) -> Result<(), LinkError> {
        let link = self.link;
        let slot = link.checked_sub(1).and_then(|slot| u16::try_from(slot).ok());
        let slot = slot.ok_or(LinkError::OutOfRange(link))?;
        let at = self.layout.slot(slot).ok_or(LinkError::OutOfRange(link))?;
        if !self.held.insert(slot) {
            return Err(LinkError::Held(slot));
        }
        // It was freed by the program meanwhile, or the program lies and loses our report.
        self.unread.remove(slot);
        // Stacked slots are held, and a held slot is not inserted again: the stack has room for all slots.
        if let Some(place) = self.stack.get_mut(self.stacked) {
            *place = slot;
            self.stacked += 1;
        }
        self.link = algorithm::next(words, at);
        Ok(())
    }

    /// How many frames can be taken now.
    #[must_use]
    pub const fn ready(&self) -> usize {
        if self.link == 0 { self.stacked } else { 0 }
    }

    /// Whether a walk is under way or frames wait to be taken.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.link != 0 || self.stacked > 0
    }

    /// Slots in our hands: walked, ready, or taken and not released.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held.count
    }

    /// Why the region is given up, if it is.
    #[must_use]
    pub const fn broken(&self) -> Option<LinkError> {
        self.broken
    }

    /// Releases of slots that were not held: a bug of ours.
    #[must_use]
    pub const fn double_releases(&self) -> u64 {
        self.double_releases
    }

    /// Copies the oldest ready frame, metadata and payload; `token` gives the token of a stream's registration.
    ///
    /// # Errors
    /// (inside) a slot that says nothing usable, or whose payload is longer than `payload`; like a good one it is held until
    /// released.
    #[inline]
    pub fn take(
        &mut self,
        words: &impl Words,
        token: impl FnOnce(u32) -> Option<u32>,
        payload: &mut [u8],
    ) -> Option<Result<Taken, SlotError>> {
        let taken = self.take_metadata(words, |stream, its| token(stream) == Some(its))?;
        Some(taken.and_then(|taken| {
            let fault = SlotFault::Payload(taken.payload_octets as u16); // it fits into a slot
            let room = payload.get_mut(..taken.payload_octets);
            let room = room.ok_or(SlotError { slot: taken.slot, fault })?;
            self.read_payload(words, taken.slot, room);
            Ok(taken)
        }))
    }

    /// Copies the metadata of the oldest ready frame; `is_registered` says whether a frame of this stream may carry this token.
    /// The walk has put the newest slot on the stack first, so the last entry is the oldest frame.
    /// The payload stays in the slot.
    ///
    /// # Errors
    /// (inside) a slot that says nothing usable; like a good one it is held until released.
    #[inline]
    pub fn take_metadata(
        &mut self,
        words: &impl Words,
        is_registered: impl FnOnce(u32, u32) -> bool,
    ) -> Option<Result<Taken, SlotError>> {
        let last = self.ready().checked_sub(1)?;
        let slot = *self.stack.get(last)?;
        self.stacked = last;
        let at = self.layout.slot(slot)?;
        let taken = self.copy(words, slot, at, is_registered);
        Some(taken.map_err(|fault| SlotError { slot, fault }))
    }

    /// Copies the first octets of the payload of a slot that was taken and not released, as many as `payload` has room for. The
    /// program may still write to it: what was copied is what counts.
    #[inline]
    pub fn read_payload(&self, words: &impl Words, slot: u16, payload: &mut [u8]) {
        let octets = payload.len().min(self.layout.payload_max());
        if let (Some(at), Some(room)) = (self.layout.slot(slot), payload.get_mut(..octets)) {
            words.read_octets(at + SLOT_HEADER_OCTETS, room);
        }
    }

    #[inline]
    fn copy(
        &self,
        words: &impl Words,
        slot: u16,
        at: usize,
        is_registered: impl FnOnce(u32, u32) -> bool,
    ) -> Result<Taken, SlotFault> {
        let SlotHeader { frame, payload_octets } = SlotHeader::load(words, at);
        let stream_index = frame.stream_index;

        let clock = ClockId::from_id(frame.clock).ok_or(SlotFault::Clock(frame.clock))?;
        if !SlotFlags::ALL.contains(frame.flags) || !frame.flags.is_consistent() {
            return Err(SlotFault::Flags(frame.flags.bits()));
        }
        if frame.priority > PRIORITY_MAX {
            return Err(SlotFault::Priority(frame.priority));
        }
        if self.layout.stream(stream_index).is_none() {
            return Err(SlotFault::Stream(stream_index));
        }
        if !is_registered(stream_index, frame.token) {
            return Err(SlotFault::Token(frame.token));
        }
        let octets = usize::from(payload_octets);
        if octets > self.layout.payload_max() {
            return Err(SlotFault::Payload(payload_octets));
        }
        Ok(Taken { slot, frame, clock, payload_octets: octets })
    }

    /// Gives a taken slot back to the program. One that is not held is our own bug: counted, and nothing is given.
    #[inline]
    pub fn release(&mut self, words: &impl Words, slot: u16) {
        if self.held.remove(slot) {
            algorithm::release(words, slot);
        } else {
            debug_assert!(false, "slot {slot} is released but not held");
            self.double_releases += 1;
        }
    }

    /// Whether [`Self::complete`] would find room for an outcome.
    #[inline]
    pub fn has_room_to_tell(&mut self, words: &impl Words) -> bool {
        let is_full = |slots: &Self| 2 * slots.unread.count >= slots.layout.slots_count();
        if is_full(self) {
            self.forget_freed(words);
        }
        !is_full(self)
    }

    /// Reports what became of a taken slot's frame instead of releasing the slot; the completion's number.
    /// `None`: half of the slots hold outcomes that it has not read; the slot is still held.
    #[inline]
    pub fn complete(&mut self, words: &impl Words, slot: u16, completion: &Completion) -> Option<u32> {
        if !self.has_room_to_tell(words) {
            return None;
        }
        if !self.held.remove(slot) {
            debug_assert!(false, "slot {slot} is completed but not held");
            self.double_releases += 1;
            return None;
        }
        self.unread.insert(slot);
        self.sequence = self.sequence.wrapping_add(1);
        completion::post(words, &self.layout, Place { slot, sequence: self.sequence }, completion);
        Some(self.sequence)
    }

    /// Slots with outcomes that the program has not read, as far as we know.
    #[must_use]
    pub const fn unread(&self) -> usize {
        self.unread.count
    }

    /// A free slot holds no outcome any more.
    fn forget_freed(&mut self, words: &impl Words) {
        let mut count = 0;
        for (index, unread) in self.unread.bits.iter_mut().take(self.layout.free_words()).enumerate() {
            *unread &= !words.load64(layout::FREE + 8 * index, Relaxed);
            count += unread.count_ones() as usize;
        }
        self.unread.count = count;
    }
}
