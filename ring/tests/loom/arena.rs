// SPDX-License-Identifier: Apache-2.0
//! A region's words as loom's atomics.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ktsn_ring::words::Words;
use ktsn_ring::{Layout, layout, receive};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};

/// Where a model's receive area begins: behind its slots.
pub(crate) const AREA: usize = 1 << 16;

/// Explores `body`, with at most `preemptions` involuntary switches in one run where that is given.
pub(crate) fn model(preemptions: Option<usize>, body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = preemptions;
    builder.max_branches = 10_000;
    builder.check(body);
}

/// Only the words that the algorithms may use: any other offset fails the model.
pub(crate) struct Arena {
    words32: BTreeMap<usize, AtomicU32>,
    words64: BTreeMap<usize, AtomicU64>,
    fences: bool,
}

impl Arena {
    /// The words of a region of this layout, all slots free.
    pub(crate) fn new(layout: &Layout) -> Self {
        let mut at32 = vec![layout::STATE, layout::TURN, layout::HEAD, layout::NOTIFYING];
        let mut at64 = vec![layout::LOOKS_AT_MONOTONIC, layout::LOOKS_AT_TAI, layout::DESTINATIONS_VERSION];
        at64.extend((0..layout.free_words()).map(|word| layout::FREE + 8 * word));
        at64.extend((0..layout.free_words()).map(|word| layout::DONE + 8 * word));
        at64.push(layout::CLOSING);
        for slot in (0..layout.slots_count() as u16).filter_map(|slot| layout.slot(slot)) {
            at32.extend([slot, slot + 4]);
            at64.extend((8..layout::SLOT_HEADER_OCTETS).step_by(8).map(|field| slot + field));
        }
        for stream in (0..layout.streams_count() as u32).filter_map(|stream| layout.stream(stream)) {
            at64.extend([stream, stream + 8]);
        }
        for entry in (0..layout.destinations_count()).filter_map(|entry| layout.destination(entry)) {
            at64.extend([entry, entry + 8, entry + 16]);
        }
        let is_free = |at: usize| (layout::FREE..layout::DONE).contains(&at);
        let value = |at: usize| if is_free(at) { layout.free_mask((at - layout::FREE) / 8) } else { 0 };
        Self {
            words32: at32.into_iter().map(|at| (at, AtomicU32::new(0))).collect(),
            words64: at64.into_iter().map(|at| (at, AtomicU64::new(value(at)))).collect(),
            fences: true,
        }
    }

    /// An arena with the words of a receive area at [`AREA`] and so many entries.
    pub(crate) fn with_receive_area(layout: &Layout, entries: usize) -> Self {
        let mut arena = Self::new(layout);
        arena.words32.insert(AREA + receive::GRANT, AtomicU32::new(0));
        let counts = |at: usize| (0..receive::COUNTS_COUNT).map(move |number| at + 8 * number);
        let mut at64 = vec![AREA + receive::GRANTED_UNTIL];
        at64.extend(counts(AREA + receive::ENDED));
        for number in 0..entries {
            let entry = AREA + receive::LISTENERS + number * receive::LISTENER_OCTETS;
            at64.extend([entry, entry + receive::COOKIE]);
            at64.extend(counts(entry + receive::COUNTS));
        }
        arena.words64.extend(at64.into_iter().map(|at| (at, AtomicU64::new(0))));
        arena
    }

    /// An arena with fences that do nothing.
    pub(crate) fn without_fences(layout: &Layout) -> Self {
        Self { fences: false, ..Self::new(layout) }
    }

    fn word32(&self, at: usize) -> &AtomicU32 {
        self.words32.get(&at).unwrap_or_else(|| panic!("no u32 at {at}"))
    }

    fn word64(&self, at: usize) -> &AtomicU64 {
        self.words64.get(&at).unwrap_or_else(|| panic!("no u64 at {at}"))
    }
}

impl Words for Arena {
    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.word32(at).load(order)
    }
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        if at == layout::TURN {
            // An exchange's value directly follows the one that it replaced, so a store that it did not find comes after
            // both. loom does not know that of a plain store, only of another exchange.
            self.word32(at).swap(value, order);
            return;
        }
        self.word32(at).store(value, order);
    }
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.word32(at).swap(value, order)
    }
    fn exchange32(&self, at: usize, current: u32, new: u32, success: Ordering) -> Result<u32, u32> {
        self.word32(at).compare_exchange(current, new, success, Ordering::Relaxed)
    }
    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.word64(at).load(order)
    }
    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.word64(at).store(value, order);
    }
    fn exchange64(&self, at: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        self.word64(at).compare_exchange(current, new, success, Ordering::Relaxed)
    }
    fn set_bits64(&self, at: usize, bits: u64, order: Ordering) {
        self.word64(at).fetch_or(bits, order);
    }
    fn add64(&self, at: usize, count: u64) {
        self.word64(at).fetch_add(count, Ordering::Relaxed);
    }
    fn fence(&self, order: Ordering) {
        if self.fences {
            fence(order);
        }
    }
}

type Handler = Box<dyn FnOnce(&Arena)>;

/// An arena whose user is interrupted before one of the accesses of its push:
/// the handler runs there, on the same thread, as a signal handler does.
pub(crate) struct Interrupted<'a> {
    arena: &'a Arena,
    /// Which access: 0 the claim's exchange, 1 the load of the head, 2 the store of the link, 3 the head's exchange.
    at: usize,
    handler: RefCell<Option<Handler>>,
    happened: Cell<bool>,
}

impl<'a> Interrupted<'a> {
    /// Runs `handler` once, before the chosen access.
    pub(crate) fn new(arena: &'a Arena, at: usize, handler: impl FnOnce(&Arena) + 'static) -> Self {
        Self { arena, at, handler: RefCell::new(Some(Box::new(handler))), happened: Cell::new(false) }
    }

    /// Whether the handler has run.
    pub(crate) fn happened(&self) -> bool {
        self.happened.get()
    }

    fn before(&self, access: usize) {
        if access == self.at
            && let Some(handler) = self.handler.borrow_mut().take()
        {
            self.happened.set(true);
            handler(self.arena);
        }
    }
}

impl Words for Interrupted<'_> {
    fn load32(&self, at: usize, order: Ordering) -> u32 {
        self.before(1);
        self.arena.load32(at, order)
    }
    fn store32(&self, at: usize, value: u32, order: Ordering) {
        self.before(2);
        self.arena.store32(at, value, order);
    }
    fn swap32(&self, at: usize, value: u32, order: Ordering) -> u32 {
        self.arena.swap32(at, value, order)
    }
    fn exchange32(&self, at: usize, current: u32, new: u32, success: Ordering) -> Result<u32, u32> {
        self.before(3);
        self.arena.exchange32(at, current, new, success)
    }
    fn load64(&self, at: usize, order: Ordering) -> u64 {
        self.arena.load64(at, order)
    }
    fn store64(&self, at: usize, value: u64, order: Ordering) {
        self.arena.store64(at, value, order);
    }
    fn exchange64(&self, at: usize, current: u64, new: u64, success: Ordering) -> Result<u64, u64> {
        self.before(0);
        self.arena.exchange64(at, current, new, success)
    }
    fn set_bits64(&self, at: usize, bits: u64, order: Ordering) {
        self.arena.set_bits64(at, bits, order);
    }
    fn add64(&self, at: usize, count: u64) {
        self.arena.add64(at, count);
    }
    fn fence(&self, order: Ordering) {
        self.arena.fence(order);
    }
}
