// SPDX-License-Identifier: Apache-2.0
//! The daemon's side of a region.
//!
//! In: what a program published. Out: checked copies of it, oldest first, and the tables that the program reads.
//! It is owned by one thread. No shared word that it writes is ever read back.

use core::cell::Cell;
use core::sync::atomic::Ordering::{Relaxed, Release};
use std::boxed::Box;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use thiserror::Error;

use crate::algorithm;
use crate::completion::{self, Completion};
use crate::frame::SlotHeader;
use crate::layout::{self, COUNTERS, COUNTERS_COUNT, Layout};
use crate::link::LinkFacts;
use crate::published::{LinkError, PublishedSlots, SlotError, Taken};
use crate::receive::{AREA_OCTETS, ReceiveArea};
use crate::region::{GuardedMapping, RegionError};
use crate::tables::{
    Destination, DestinationAction, DestinationsShadow, RegionState, StreamShadow, StreamStatus, read_stream,
};
use crate::words::{Mapping, Words};

/// An entry that does not fit the region's tables.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TableError {
    /// The stream index is not below the region's count.
    #[error("stream {index} of {count}")]
    Stream {
        /// The index.
        index: u32,
        /// How many streams there are.
        count: usize,
    },
    /// More destinations than the region has room for.
    #[error("{entries} destinations, the region has room for {count}")]
    Destinations {
        /// Entries given.
        entries: usize,
        /// Entries that fit.
        count: usize,
    },
    /// A prefix longer than 128 bits.
    #[error("a prefix of {0} bits")]
    PrefixBits(u8),
}

/// A region of ours: the mapping and all that we believe about it.
#[derive(Debug)]
pub struct Consumer {
    memory: Arc<GuardedMapping>,
    nonce: u64,
    layout: Layout,
    slots: PublishedSlots,
    streams: Box<[StreamShadow]>,
    destinations: DestinationsShadow,
    /// The turn of the last promise.
    turn: Cell<u32>,
    /// Holds pages of a sealed region.
    pins: Option<OwnedFd>,
}

/// Between the promises to many rings ([`Consumer::promise_poll_by`]) and the looks at them ([`Consumer::published`]) that allow to
/// sleep until then: one fence, as [`Consumer::sleep_check`] has one for a single ring.
#[inline]
pub fn sleep_fence() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

impl Consumer {
    /// Makes a region: memfd, size, mapping, identity line, all slots free. The descriptor is for the program, and for
    /// [`Self::seal`].
    ///
    /// # Errors
    /// A system call failed (named in the error).
    pub fn create(layout: Layout) -> Result<(Self, OwnedFd), RegionError> {
        let memfd = crate::region::create_memfd(&layout)?;
        let memory = Arc::new(GuardedMapping::new(&memfd, layout.shared_octets())?);
        let words = memory.words();
        for word in 0..layout.free_words() {
            words.store64(layout::FREE + 8 * word, layout.free_mask(word), Relaxed);
        }
        // Keys of the standard hasher: unlike those of any other region, which is all that is asked.
        let nonce = RandomState::new().hash_one(0u8) | 1;
        words.store64(layout::NONCE, nonce, Relaxed);
        words.store32(layout::RECEIVE_OCTETS, AREA_OCTETS as u32, Relaxed);
        for (index, word) in layout.to_words().into_iter().enumerate() {
            words.store64(layout::IDENTITY + 8 * index, word, Relaxed);
        }
        words.fence(Release);
        let streams = std::vec![StreamShadow::default(); layout.streams_count()].into_boxed_slice();
        let slots = PublishedSlots::new(&layout);
        Ok((
            Self {
                memory,
                nonce,
                layout,
                slots,
                streams,
                destinations: DestinationsShadow::default(),
                turn: Cell::new(0),
                pins: None,
            },
            memfd,
        ))
    }

    /// Seals the region's memfd against holes, makes all its pages present and keeps them where they are, once the program has
    /// mapped it. From then on no access to the region waits for the program. Before, a program that punches holes makes each reader of the
    /// region wait, and this call too: never call it in a thread that other threads wait for.
    ///
    /// # Errors
    /// The kernel knows no such seal, the program has sealed the seals, or there is no memory.
    pub fn seal(&mut self, memfd: &OwnedFd) -> Result<(), RegionError> {
        crate::region::seal_memfd(memfd)?;
        self.memory.populate()?;
        self.pins = Some(crate::region::pin(memfd, self.layout.shared_octets())?);
        // What was taken away before the pages were held is there again.
        self.memory.populate()
    }

    #[inline]
    fn words(&self) -> Mapping {
        self.memory.words()
    }

    /// The region's layout.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// One bounded step: takes the list of published slots unless one is in hand, and follows at most `budget` of
    /// its links. Returns how many frames [`Self::take`] can give now (0 until the oldest is reached).
    ///
    /// # Errors
    /// A bad link: the region has been set to [`RegionState::Retired`], what the walk had reached can still be taken,
    /// and every further call returns the same error.
    #[inline]
    pub fn collect(&mut self, budget: usize) -> Result<usize, LinkError> {
        let collected = self.slots.collect(&self.memory.words(), budget);
        if collected.is_err() {
            self.set_state(RegionState::Retired);
        }
        collected
    }

    /// Copies the oldest ready frame into private memory, then checks the copy. `None`: nothing is ready.
    ///
    /// ktsnd's worker uses [`Self::take_metadata`] and [`Self::read_payload`] instead; this is for tests, fuzzing and measurements.
    ///
    /// Whatever comes out, its slot is held until [`Self::release`].
    ///
    /// # Errors
    /// (inside) the slot says nothing usable, or its payload is longer than `payload`.
    #[inline]
    pub fn take(&mut self, payload: &mut [u8]) -> Option<Result<Taken, SlotError>> {
        let (words, streams) = (self.memory.words(), &self.streams);
        self.slots.take(&words, |index| streams.get(index as usize)?.token(), payload)
    }

    /// Copies the oldest ready frame's metadata, checked like those of [`Self::take`]; [`Self::read_payload`] copies the payload: a frame that is refused for what its metadata
    /// say costs no copy. Frames of earlier registrations are taken too where `was_registered` (stream, token) says so.
    ///
    /// # Errors
    /// (inside) the slot says nothing usable.
    #[inline]
    pub fn take_metadata(
        &mut self,
        was_registered: impl FnOnce(u32, u32) -> bool,
    ) -> Option<Result<Taken, SlotError>> {
        let (words, streams) = (self.memory.words(), &self.streams);
        let is_current =
            |index: u32, token| streams.get(index as usize).and_then(StreamShadow::token) == Some(token);
        let is_registered = |index, token| is_current(index, token) || was_registered(index, token);
        self.slots.take_metadata(&words, is_registered)
    }

    /// Copies the first octets of the payload of a slot that was taken and not released, as many as `payload` has room for.
    #[inline]
    pub fn read_payload(&self, slot: u16, payload: &mut [u8]) {
        self.slots.read_payload(&self.memory.words(), slot, payload);
    }

    /// Whether [`Self::complete`] would find room for an outcome now.
    #[inline]
    pub fn has_room_to_tell(&mut self) -> bool {
        self.slots.has_room_to_tell(&self.memory.words())
    }

    /// Whether a list of published slots is in hand: walked, or not taken to its end.
    #[inline]
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        self.slots.is_busy()
    }

    /// Gives a taken slot back to the program. A slot that is not held is our own bug: a debug build stops, a release
    /// build counts it ([`Self::double_releases`]).
    #[inline]
    pub fn release(&mut self, slot: u16) {
        self.slots.release(&self.memory.words(), slot);
    }

    /// Reports what became of a taken slot's frame; the slot is then the program's. The completion's number,
    /// or `None` when the program has not read half a region of them: the slot is still held.
    #[inline]
    pub fn complete(&mut self, slot: u16, completion: &Completion) -> Option<u32> {
        self.slots.complete(&self.memory.words(), slot, completion)
    }

    /// Slots with outcomes that the program has not read, as far as we know.
    #[must_use]
    pub const fn unread_count(&self) -> usize {
        self.slots.unread()
    }

    /// What a thread beside the worker needs to notify the program by its error queues.
    #[must_use]
    pub fn markers(&self) -> Markers {
        Markers { memory: self.memory.clone(), nonce: self.nonce, layout: self.layout }
    }

    /// The receive area, for a thread beside the worker.
    #[must_use]
    pub fn receive_area(&self) -> ReceiveArea {
        ReceiveArea::new(self.memory.clone(), self.layout.region_octets())
    }

    /// Slots in our hands: walked, ready, or taken and not released.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.slots.held()
    }

    /// Frames that [`Self::take`] can give now.
    #[must_use]
    pub const fn ready(&self) -> usize {
        self.slots.ready()
    }

    /// Whether a walk is under way: the next [`Self::collect`] goes on with it.
    #[must_use]
    pub const fn collecting(&self) -> bool {
        self.slots.is_busy() && self.slots.ready() == 0
    }

    /// Why the region was given up, if it was.
    #[must_use]
    pub const fn broken(&self) -> Option<LinkError> {
        self.slots.broken()
    }

    /// How often a slot was released that was not held.
    #[must_use]
    pub const fn double_releases(&self) -> u64 {
        self.slots.double_releases()
    }

    /// Whether [`Self::collect`] has something to do or [`Self::take`] something to give: one load. In a region that
    /// was given up only what is still to be taken counts.
    #[inline]
    #[must_use]
    pub fn published(&self) -> bool {
        self.slots.is_busy() || (self.broken().is_none() && algorithm::is_published(&self.words()))
    }

    /// Promises to poll the ring no later than at this instant, in nanoseconds of both clocks. Stores only.
    #[inline]
    pub fn promise_poll_by(&self, monotonic: u64, tai: u64) {
        let turn = algorithm::next_turn(self.turn.get());
        self.turn.set(turn);
        algorithm::promise_poll_by(&self.words(), monotonic, tai, turn);
    }

    /// After [`Self::promise_poll_by`]: whether the worker may sleep until then, as nothing is published or in hand.
    #[inline]
    #[must_use]
    pub fn sleep_check(&self) -> bool {
        let empty = algorithm::sleep_check(&self.words()) || self.broken().is_some();
        empty && !self.slots.is_busy()
    }

    /// Writes whether the program may use the region.
    pub fn set_state(&self, state: RegionState) {
        self.words().store32(layout::STATE, state as u32, Release);
    }

    /// Answers a registration. From now on frames of this stream must carry `status.token`.
    ///
    /// # Errors
    /// No such stream.
    pub fn set_stream(&mut self, index: u32, status: StreamStatus) -> Result<(), TableError> {
        let words = self.memory.words();
        let (shadow, at) = self.stream_entry(index)?;
        shadow.write(&words, at, &status);
        Ok(())
    }

    /// Forgets a stream: pending, and no frame of it is accepted.
    ///
    /// # Errors
    /// No such stream.
    pub fn clear_stream(&mut self, index: u32) -> Result<(), TableError> {
        let words = self.memory.words();
        let (shadow, at) = self.stream_entry(index)?;
        shadow.clear(&words, at);
        Ok(())
    }

    fn stream_entry(&mut self, index: u32) -> Result<(&mut StreamShadow, usize), TableError> {
        let count = self.layout.streams_count();
        let at = self.layout.stream(index);
        self.streams.get_mut(index as usize).zip(at).ok_or(TableError::Stream { index, count })
    }

    /// Replaces the table of destinations; the caller puts the longest prefixes first.
    ///
    /// # Errors
    /// Too many entries, or a prefix longer than an address: the table stays as it was.
    pub fn set_destinations(&mut self, table: &[Destination]) -> Result<(), TableError> {
        let count = self.layout.destinations_count();
        if table.len() > count {
            return Err(TableError::Destinations { entries: table.len(), count });
        }
        let is_prefix = |entry: &&Destination| {
            !matches!(entry.action, DestinationAction::Named | DestinationAction::Source)
        };
        if let Some(entry) = table.iter().filter(is_prefix).find(|entry| entry.prefix_bits > 128) {
            return Err(TableError::PrefixBits(entry.prefix_bits));
        }
        self.destinations.write(&self.memory.words(), &self.layout, table);
        Ok(())
    }

    /// Writes what packet sockets need to know.
    pub fn set_link(&mut self, facts: &LinkFacts) {
        self.destinations.write_link(&self.memory.words(), *facts);
    }

    /// Writes the interface's only IPv4 address (network order; 0 = there are none or several). Every datagram leaves from it
    /// unless its program names another.
    pub fn set_sole_v4(&self, address: [u8; 4]) {
        self.words().store32(layout::SOLE_V4, u32::from_ne_bytes(address), Relaxed);
    }

    /// Announces that datagrams are taken by [`crate::control::Later`], with a transmit time at most so many milliseconds ahead.
    pub fn set_later_horizon(&self, milliseconds: u32) {
        self.words().store32(layout::LATER_HORIZON, milliseconds, Relaxed);
    }

    /// Names the interfaces of the namespace's other attachments; those beyond [`layout::OTHERS_MAX`] are left out.
    pub fn set_others(&self, interfaces: &[u32]) {
        let words = self.words();
        let mut count = 0;
        for (number, interface) in interfaces.iter().take(layout::OTHERS_MAX).enumerate() {
            words.store32(layout::OTHERS + 4 * number, *interface, Relaxed);
            count = number as u32 + 1;
        }
        words.store32(layout::OTHERS_COUNT, count, Release);
    }

    /// The program's counters, only to be shown: it may write anything there.
    #[must_use]
    pub fn counters(&self) -> [u64; COUNTERS_COUNT] {
        let words = self.words();
        core::array::from_fn(|index| words.load64(COUNTERS + 8 * index, Relaxed))
    }
}

/// A region as the daemon's thread needs it that makes markers: slots to read, and the words by which that thread and a closing program
/// keep off one socket at a time ([`crate::completion`]). It keeps the region mapped.
#[derive(Clone, Debug)]
pub struct Markers {
    memory: Arc<GuardedMapping>,
    nonce: u64,
    layout: Layout,
}

impl Markers {
    /// What markers carry to name this region.
    #[must_use]
    pub const fn nonce(&self) -> u64 {
        self.nonce
    }

    /// What a slot says, for a reader that was told that it may look; `None`: there is no such slot. Its program may write it at any time.
    #[must_use]
    pub fn slot(&self, slot: u16) -> Option<SlotHeader> {
        Some(SlotHeader::load(&self.memory.words(), self.layout.slot(slot)?))
    }

    /// The first octets of a slot's payload, as many as `payload` and a slot have room for.
    pub fn read_payload(&self, slot: u16, payload: &mut [u8]) {
        let octets = payload.len().min(self.layout.payload_max());
        if let (Some(at), Some(room)) = (self.layout.slot(slot), payload.get_mut(..octets)) {
            self.memory.words().read_octets(at + layout::SLOT_HEADER_OCTETS, room);
        }
    }

    /// Before the socket of a stream is taken; `None` when the program is closing it, or its registration is not the
    /// one of this token any more. One thread per region.
    #[must_use]
    pub fn begin(&self, stream: u32, token: u32) -> Option<Holding<'_>> {
        let words = self.memory.words();
        // The word is ours, and the worker's; a program that writes there gets no markers, or too many.
        let is_current =
            || read_stream(&words, &self.layout, stream).is_some_and(|status| status.token == token);
        let is_free = (stream as usize) < self.layout.streams_count()
            && completion::notify_begin(&words, stream, is_current);
        is_free.then_some(Holding(self))
    }
}

/// A program's socket is held; dropped after the socket is closed.
#[derive(Debug)]
pub struct Holding<'a>(&'a Markers);

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        completion::notify_end(&self.0.memory.words());
    }
}
