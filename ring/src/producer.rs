// SPDX-License-Identifier: Apache-2.0
//! The program's side of a region.
//!
//! In: frames from any thread or signal handler of one process. Out: published slots and a word on whether the
//! worker must be woken. No function here allocates, locks, waits, panics or makes a system call.

use core::num::NonZeroU64;
use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use thiserror::Error;

use crate::algorithm::{self, Bell};
use crate::completion::{self, Completion, Place};
use crate::frame::{self, ClockId, SlotFrame, SlotHeader};
use crate::layout::{self, COUNTERS, COUNTERS_COUNT, Layout, LayoutError, SLOT_HEADER_OCTETS};
use crate::link::{self, LinkFacts};
use crate::tables::{self, DestinationVerdict, RegionState, StreamStatus};
use crate::words::{Mapping, Words};

/// A slot that belongs to its holder alone until it is published or cancelled. Dropped, it leaks until the process ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a claimed slot that is neither published nor cancelled is lost"]
pub struct Claim {
    slot: u16,
}

impl Claim {
    /// The slot's index.
    #[must_use]
    pub const fn slot(&self) -> u16 {
        self.slot
    }
}

/// Slots that belong to their holder alone, for the next frames of one call. Dropped, they leak until the process ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "claimed slots that are neither used nor cancelled are lost"]
pub struct Claims {
    /// The slot of bit 0.
    first: u16,
    bits: u64,
    /// Those of `bits` whose memory was not asked for yet.
    cold: u64,
}

impl Claims {
    /// No slot.
    pub const NONE: Self = Self { first: 0, bits: 0, cold: 0 };

    /// Whether no slot is left.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bits == 0
    }
}

/// How many slots ahead the producer prefetches a slot's memory. The daemon's processor used that memory last, and its transfer takes
/// longer than the filling of one slot.
const AHEAD: u32 = 6;

/// Filled slots in the order of their frames, which the daemon does not see until they are published together. Dropped, they leak
/// until the process ends.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "slots that are neither published nor cancelled are lost"]
pub struct Run(
    /// First and last slot in bits 0–15 and 16–31, the frames' count from bit 32 on: one word, so that a run is kept in
    /// a register from message to message.
    NonZeroU64,
);

impl Run {
    #[inline]
    const fn new(first: u16, last: u16, count: u16) -> Self {
        let count = if count == 0 { 1 } else { count };
        match NonZeroU64::new(first as u64 | (last as u64) << 16 | (count as u64) << 32) {
            Some(word) => Self(word),
            None => Self(NonZeroU64::MIN), // not met: the count is not 0
        }
    }

    const fn first(&self) -> u16 {
        self.0.get() as u16
    }

    const fn last(&self) -> u16 {
        (self.0.get() >> 16) as u16
    }

    /// Frames in it, 1 at least.
    #[inline]
    #[must_use]
    pub const fn count(&self) -> u16 {
        (self.0.get() >> 32) as u16
    }
}

/// The payload is greater than [`Producer::payload_max`]; the claim is still held.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the payload does not fit a slot")]
pub struct TooLong;

/// The program's handle over a mapped region: a plain value, any number of copies, any thread.
#[derive(Clone, Copy, Debug)]
pub struct Producer {
    pub(crate) words: Mapping,
    pub(crate) layout: Layout,
}

impl Producer {
    /// Reads and checks the identity line of a mapped region.
    ///
    /// # Errors
    /// No ring, another ABI, an identity line that contradicts itself, or a mapping that is too small or begins
    /// within a page.
    ///
    /// # Safety
    /// `octets` from `base` on are mapped readable and writable as long as this value or a copy of it is used, and
    /// nothing else in the process touches them.
    #[allow(unsafe_code)]
    pub unsafe fn from_mapping(base: NonNull<u8>, octets: usize) -> Result<Self, LayoutError> {
        if base.as_ptr().addr() & layout::PAGE_OCTETS.wrapping_sub(1) != 0 || octets < layout::PAGE_OCTETS {
            return Err(LayoutError::Mapping(octets, layout::PAGE_OCTETS));
        }
        // SAFETY: the caller's promise is the same.
        let words = unsafe { Mapping::new(base, octets) };
        let mut identity = [0; 6];
        for (index, word) in identity.iter_mut().enumerate() {
            *word = words.load64(layout::IDENTITY.wrapping_add(index.wrapping_mul(8)), Relaxed);
        }
        Ok(Self { words, layout: Layout::from_words(identity, octets)? })
    }

    /// The region's layout.
    #[must_use]
    pub const fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Greatest payload of a slot, in octets.
    #[must_use]
    pub const fn payload_max(&self) -> usize {
        self.layout.payload_max()
    }

    /// Prefetches what a send of this stream reads and writes outside its slot: other processors had most of it last.
    #[inline(always)]
    pub fn prefetch(&self, stream: u32) {
        tables::prefetch(&self.words, &self.layout, stream);
    }

    /// Takes a free slot, or `None` when all are in use.
    #[inline]
    pub fn claim(&self) -> Option<Claim> {
        algorithm::claim(&self.words, &self.layout).map(|slot| Claim { slot })
    }

    /// Takes free slots, `count_max` at most (1 to 64; fewer where free ones lie apart), by one exchange; none when all
    /// are in use.
    #[inline]
    pub fn claim_some(&self, count_max: u32) -> Claims {
        let Some((first, bits)) = algorithm::claim_some(&self.words, &self.layout, count_max) else {
            return Claims::NONE;
        };
        let mut claims = Claims { first, bits, cold: bits };
        for _ in 0..AHEAD {
            self.prefetch_next(&mut claims);
        }
        claims
    }

    /// Prefetches the memory of the next of these slots.
    #[inline(always)]
    fn prefetch_next(&self, claims: &mut Claims) {
        if claims.cold == 0 {
            return;
        }
        let slot = claims.first.wrapping_add(claims.cold.trailing_zeros() as u16);
        claims.cold &= claims.cold.wrapping_sub(1);
        if let Some(at) = self.layout.slot(slot) {
            self.words.expect_write(at);
            self.words.expect_write(at.wrapping_add(SLOT_HEADER_OCTETS));
        }
    }

    /// The first of these slots.
    #[inline(always)]
    pub fn next(&self, claims: &mut Claims) -> Option<Claim> {
        if claims.bits == 0 {
            return None;
        }
        self.prefetch_next(claims);
        let slot = claims.first.wrapping_add(claims.bits.trailing_zeros() as u16);
        claims.bits &= claims.bits.wrapping_sub(1);
        Some(Claim { slot })
    }

    /// Gives claimed slots back unused.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // consumed: they must not be used afterwards
    pub fn cancel_some(&self, claims: Claims) {
        if claims.bits != 0 {
            algorithm::release_some(&self.words, claims.first, claims.bits);
        }
    }

    /// Gives a claimed slot back unused.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // consumed: it must not be published afterwards
    pub fn cancel(&self, claim: Claim) {
        algorithm::release(&self.words, claim.slot);
    }

    /// Writes metadata and payload (the segments one after the other) into a claimed slot.
    ///
    /// # Errors
    /// [`TooLong`]: the claim is still held, to be filled again or cancelled.
    #[inline]
    #[allow(unsafe_code)]
    pub fn fill<'a>(
        &self,
        claim: &Claim,
        frame: &SlotFrame,
        segments: impl Iterator<Item = &'a [u8]>,
    ) -> Result<(), TooLong> {
        // SAFETY: slices are readable for their length, and there is no slice of the region.
        unsafe { self.fill_raw(claim, frame, segments.map(|segment| (segment.as_ptr(), segment.len()))) }
    }

    /// [`Self::fill`] from addresses and lengths, as an iovec has them.
    ///
    /// # Errors
    /// [`TooLong`], as for [`Self::fill`].
    ///
    /// # Safety
    /// Each segment is readable for its length and does not lie in the region. The program's other threads may
    /// write to it meanwhile: then some mixture is sent, as by the kernel.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn fill_raw(
        &self,
        claim: &Claim,
        frame: &SlotFrame,
        segments: impl Iterator<Item = (*const u8, usize)>,
    ) -> Result<(), TooLong> {
        let at = self.layout.slot(claim.slot).ok_or(TooLong)?;
        let payload_at = at.wrapping_add(SLOT_HEADER_OCTETS);
        // SAFETY: the caller's promise is the same.
        let octets = unsafe { self.words.write_segments(payload_at, self.layout.payload_max(), segments) };
        let payload_octets = octets.and_then(|octets| u16::try_from(octets).ok()).ok_or(TooLong)?;
        let (stream_index, fields, report) = SlotHeader { frame: *frame, payload_octets }.to_words();
        self.words.store32(at.wrapping_add(frame::STREAM_INDEX), stream_index, Relaxed);
        self.words.store_words(at.wrapping_add(frame::FIELDS), &fields);
        if frame.flags.wants_report() {
            self.words.store64(at.wrapping_add(frame::REPORT), report, Relaxed);
        }
        Ok(())
    }

    /// Hands a filled slot to the daemon.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // consumed: a slot is published once
    pub fn publish(&self, claim: Claim) {
        if let Some(at) = self.layout.slot(claim.slot) {
            algorithm::publish(&self.words, claim.slot, at);
        }
    }

    /// A filled slot as a run of one frame.
    #[inline(always)]
    #[allow(clippy::needless_pass_by_value)] // consumed, as by `publish`
    pub const fn run(&self, claim: Claim) -> Run {
        Run::new(claim.slot, claim.slot, 1)
    }

    /// The frames of `run`, then those of `more`.
    #[inline(always)]
    #[allow(clippy::needless_pass_by_value)] // consumed: both are part of the result
    pub fn join(&self, run: Run, more: Run) -> Run {
        if let Some(at) = self.layout.slot(more.first()) {
            algorithm::link(&self.words, at, run.last());
        }
        Run::new(run.first(), more.last(), run.count().saturating_add(more.count()))
    }

    /// Hands a run to the daemon: it finds all of these frames or none, and no others between them.
    #[inline]
    #[allow(clippy::needless_pass_by_value)] // consumed: a run is published once
    pub fn publish_run(&self, run: Run) {
        if let Some(at) = self.layout.slot(run.first()) {
            algorithm::publish_run(&self.words, at, run.last());
        }
    }

    /// Gives the slots of a run back unused.
    #[allow(clippy::needless_pass_by_value)] // consumed: it must not be published afterwards
    pub fn cancel_run(&self, run: Run) {
        let mut slot = run.last();
        for left in (0..run.count()).rev() {
            let link = self.layout.slot(slot).map_or(0, |at| algorithm::next(&self.words, at));
            algorithm::release(&self.words, slot);
            match u16::try_from(link.wrapping_sub(1)) {
                Ok(before) if left != 0 => slot = before,
                _ => return, // the first, or a link that was overwritten: the rest is lost
            }
        }
    }

    /// The doorbell to be rung for a frame just published, or for a worker that has not looked for too long; `None` where it
    /// looks in time, or was rung for. `tx_time` in nanoseconds of `clock`, `now_monotonic` in those of `CLOCK_MONOTONIC`.
    #[inline]
    #[must_use]
    pub fn bell(&self, clock: ClockId, tx_time: u64, now_monotonic: u64) -> Option<Bell> {
        algorithm::bell(&self.words, clock, tx_time, now_monotonic)
    }

    /// The doorbell was rung: until the worker has heard it no other thread rings.
    #[inline]
    pub fn rung(&self, bell: Bell) {
        algorithm::rung(&self.words, bell);
    }

    /// Whether the region is to be used.
    #[inline]
    #[must_use]
    pub fn state(&self) -> RegionState {
        RegionState::from_word(self.words.load32(layout::STATE, Acquire))
    }

    /// How many other attachments the program's namespace has.
    #[inline]
    #[must_use]
    pub fn others_count(&self) -> usize {
        (self.words.load32(layout::OTHERS_COUNT, Acquire) as usize).min(layout::OTHERS_MAX)
    }

    /// The interface of another attachment of the program's namespace; 0 = there is none of this number.
    #[must_use]
    pub fn other(&self, number: usize) -> u32 {
        let at = layout::OTHERS.wrapping_add(number.wrapping_mul(4));
        if number < self.others_count() { self.words.load32(at, Relaxed) } else { 0 }
    }

    /// The entry of a stream; `None` when the table has no such index.
    #[inline(always)]
    #[must_use]
    pub fn stream(&self, index: u32) -> Option<StreamStatus> {
        tables::read_stream(&self.words, &self.layout, index)
    }

    /// What is done with datagrams to `address` (IPv6 or IPv4-mapped, network order).
    #[inline]
    #[must_use]
    pub fn destination(&self, address: [u8; 16]) -> DestinationVerdict {
        tables::read_destination(&self.words, &self.layout, address)
    }

    /// Whether the table names an address of the attachment (IPv6 or IPv4-mapped); `None` while the daemon writes it.
    #[inline]
    #[must_use]
    pub fn owns(&self, address: [u8; 16]) -> Option<bool> {
        link::read_source(&self.words, &self.layout, address)
    }

    /// The interface's only IPv4 address; zeros = none or several.
    #[must_use]
    pub fn sole_v4(&self) -> [u8; 4] {
        self.words.load32(layout::SOLE_V4, Relaxed).to_ne_bytes()
    }

    /// What markers carry to name this region.
    #[must_use]
    pub fn nonce(&self) -> u64 {
        self.words.load64(layout::NONCE, Relaxed)
    }

    /// The report in `slot`, its number, and the frame that it is about.
    #[inline]
    #[must_use]
    pub fn completion(&self, slot: u16) -> Option<(Place, Completion, SlotHeader)> {
        completion::read(&self.words, &self.layout, slot)
    }

    /// Takes entries of a completion; the bits that the caller has now. What was copied before is whole only then.
    #[inline]
    #[must_use]
    pub fn take(&self, place: Place, kinds: u8) -> u8 {
        completion::take(&self.words, &self.layout, place, kinds)
    }

    /// The first posted of those completions whose frame is one of `which`.
    #[must_use]
    pub fn oldest_completion(
        &self,
        which: impl Fn(&SlotFrame) -> bool,
    ) -> Option<(Place, Completion, SlotHeader)> {
        let mut oldest: Option<(Place, Completion, SlotHeader)> = None;
        for slot in completion::done(&self.words, &self.layout) {
            let Some(found) = self.completion(slot).filter(|found| which(&found.2.frame)) else { continue };
            let is_older =
                |other: &(Place, _, _)| found.0.sequence.wrapping_sub(other.0.sequence).cast_signed() < 0;
            if oldest.as_ref().is_none_or(is_older) {
                oldest = Some(found);
            }
        }
        oldest
    }

    /// Drops the completions whose frame is one of `which`.
    pub fn drop_completions(&self, which: impl Fn(&SlotFrame) -> bool) {
        for slot in completion::done(&self.words, &self.layout) {
            if let Some((place, _, header)) = self.completion(slot)
                && which(&header.frame)
            {
                // Another thread may take it at the same time: then that one has it.
                let _ = self.take(place, completion::kind::ALL);
            }
        }
    }

    /// Copies octets of a slot's payload from `at` (a multiple of 8) on; beyond the payload's room: zeros.
    #[inline]
    pub fn read_payload(&self, slot: u16, at: usize, out: &mut [u8]) {
        let room = self.layout.payload_max().saturating_sub(at);
        match self.layout.slot(slot) {
            Some(slot_at) if at & 7 == 0 && out.len() <= room => {
                self.words.read_octets(slot_at.wrapping_add(SLOT_HEADER_OCTETS).wrapping_add(at), out);
            }
            _ => {
                for octet in out {
                    *octet = 0;
                }
            }
        }
    }

    /// A stream's last descriptor is about to be closed; while [`Self::is_notified`] says so, wait.
    pub fn closing(&self, stream: u32) {
        if (stream as usize) < self.layout.streams_count() {
            completion::closing(&self.words, stream);
        }
    }

    /// Whether the daemon holds the socket of this stream right now.
    #[must_use]
    pub fn is_notified(&self, stream: u32) -> bool {
        completion::is_notified(&self.words, stream)
    }

    /// The stream's index is in use again.
    pub fn opened(&self, stream: u32) {
        if (stream as usize) < self.layout.streams_count() {
            completion::opened(&self.words, stream);
        }
    }

    /// What packet sockets need to know; `None` while the daemon writes it.
    #[inline]
    #[must_use]
    pub fn link(&self) -> Option<LinkFacts> {
        link::read_link(&self.words)
    }

    /// Whether the destination table names a MAC address; `None` while the daemon writes it.
    #[inline]
    #[must_use]
    pub fn names(&self, address: [u8; 6]) -> Option<bool> {
        link::read_named(&self.words, &self.layout, address)
    }

    /// Changes whenever the destination table changes; odd while it is written.
    #[inline]
    #[must_use]
    pub fn destinations_version(&self) -> u64 {
        self.words.load64(layout::DESTINATIONS_VERSION, Acquire)
    }

    /// Adds one to a counter ([`tables::bypass`], [`tables::counter`]); an unknown one is ignored.
    #[inline]
    pub fn count(&self, counter: usize) {
        self.add(counter, 1);
    }

    /// Adds to a counter as [`Self::count`] does, `events` at once.
    #[inline]
    pub fn add(&self, counter: usize, events: u64) {
        if counter < COUNTERS_COUNT {
            self.words.add64(COUNTERS.wrapping_add(counter.wrapping_mul(8)), events);
        }
    }

    /// The memory, for tests of what a hostile program can do.
    #[cfg(feature = "daemon")]
    pub(crate) const fn words(&self) -> &Mapping {
        &self.words
    }
}
