// SPDX-License-Identifier: Apache-2.0
//! The sockets at which this process listens: which descriptor is which listener, what is known of its arrivals, who expects.
//!
//! In: descriptors, arrivals, what the hooks of close, dup, … saw succeed. Out: a [`Listener`]. A listener is a UDP or packet socket
//! that the program waited for. All words are atomics; the predictor is only tried for, so no thread and no signal handler waits.
//!
//! One thread at a time *owns* a listener: it expects the next arrival, others block in the kernel. Ownership is a lease: one that a
//! thread could not give back (a handler's `longjmp`, a kill) ends by itself.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use ktsn_expect::{Expected, Predictor, Seen};
use ktsn_ring::receive::ListenerName;
use ktsn_time::{Monotonic, Nanos};

use super::entries::Place;
use super::epolls;
use super::guarded::Guarded;
use crate::process::abi::{
    AF_INET, AF_INET6, AF_PACKET, FDS_COUNT, IPPROTO_UDP, SO_DOMAIN, SO_PROTOCOL, SO_TYPE, SOCK_DGRAM,
    SOL_SOCKET,
};
use crate::{process::page, process::sys};

/// Listeners of a process; the region's receive area has no more.
pub(crate) const LISTENERS_COUNT: usize = 32;

/// Nothing is known about the descriptor.
const UNKNOWN: u8 = 0;
/// No UDP or packet socket, or no listener was free for it.
const OTHER: u8 = 1;
/// Listener `n` is stored as `n + FIRST`.
const FIRST: u8 = 2;

static KINDS: [AtomicU8; FDS_COUNT] = [const { AtomicU8::new(UNKNOWN) }; FDS_COUNT];

/// `references` while an entry begins or ends.
const CHANGING: u32 = u32::MAX;

/// So long after the end of an expected arrival's window another thread may expect.
const LEASE: Nanos = Nanos::from_millis(20);

struct Entry {
    /// How many descriptors name it; 0 = free.
    references: AtomicU32,
    /// The socket's SO_COOKIE.
    cookie: AtomicU64,
    /// The descriptor of the last call that waited for it.
    descriptor: AtomicI32,
    /// Until when a thread owns it (CLOCK_MONOTONIC, ns); 0 = no thread does.
    owned_until: AtomicU64,
    /// Threads that wait in the kernel for it and would expect if they could.
    waiting: AtomicU32,
    /// The last arrival went to a thread that expected it.
    had_turn: AtomicBool,
    /// Its calls are known not to block.
    is_nonblocking: AtomicBool,
    /// The next call goes to the kernel as it is: an option that decides how it waits was set.
    is_changed: AtomicBool,
    predictor: Guarded<Predictor<Monotonic>>,
    /// The period that the program states for it (nanoseconds); 0 = none.
    stated_period: AtomicU64,
    /// The period that the predictor was told last (nanoseconds); 0 = none.
    known_period: AtomicU64,
    /// Its entry in a region's receive area.
    counted: Place,
}

static LISTENERS: [Entry; LISTENERS_COUNT] = [const {
    Entry {
        references: AtomicU32::new(0),
        cookie: AtomicU64::new(0),
        // Without descriptors of its own the entry names none: a value of zeros costs the file nothing.
        descriptor: AtomicI32::new(0),
        owned_until: AtomicU64::new(0),
        waiting: AtomicU32::new(0),
        had_turn: AtomicBool::new(false),
        is_nonblocking: AtomicBool::new(false),
        is_changed: AtomicBool::new(false),
        predictor: Guarded::new(Predictor::new()),
        stated_period: AtomicU64::new(0),
        known_period: AtomicU64::new(0),
        counted: Place::new(),
    }
}; LISTENERS_COUNT];

/// A listener of this process.
#[derive(Clone, Copy)]
pub(crate) struct Listener {
    /// Its number, below [`LISTENERS_COUNT`].
    pub(crate) index: u8,
    entry: &'static Entry,
}

/// Some listeners: bit `n` is listener `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Set(pub(crate) u32);

impl Set {
    /// Adds a listener.
    pub(crate) fn add(&mut self, listener: Listener) {
        self.0 |= 1 << (listener.index & 31);
    }

    /// Whether a listener is in it.
    pub(crate) fn has(self, listener: Listener) -> bool {
        self.0 & 1 << (listener.index & 31) != 0
    }

    /// Whether none is in it.
    pub(crate) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its listeners.
    pub(crate) fn iter(self) -> impl Iterator<Item = Listener> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let index = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            get(index as u8)
        })
    }
}

/// The listener of a number.
pub(crate) fn get(index: u8) -> Option<Listener> {
    LISTENERS.get(usize::from(index)).map(|entry| Listener { index, entry })
}

fn kind(fd: c_int) -> Option<&'static AtomicU8> {
    KINDS.get(usize::try_from(fd).ok()?)
}

/// The listener of a descriptor; one that was not looked at yet becomes one if it is a UDP or packet socket.
#[inline]
pub(crate) fn of(fd: c_int) -> Option<Listener> {
    match kind(fd)?.load(Acquire) {
        UNKNOWN => begin(fd),
        OTHER => None,
        word => get(word.wrapping_sub(FIRST)),
    }
}

/// As [`of`], for a descriptor that a call waits for.
#[inline]
pub(crate) fn of_call(fd: c_int) -> Option<Listener> {
    let listener = of(fd)?;
    if listener.entry.descriptor.load(Relaxed) != fd {
        listener.entry.descriptor.store(fd, Relaxed);
    }
    Some(listener)
}

/// The listener that a descriptor is known to be.
pub(crate) fn known(fd: c_int) -> Option<Listener> {
    match kind(fd)?.load(Acquire) {
        UNKNOWN | OTHER => None,
        word => get(word.wrapping_sub(FIRST)),
    }
}

#[cold]
#[inline(never)]
fn begin(fd: c_int) -> Option<Listener> {
    let kind = kind(fd)?;
    // A vfork's child shares the tables and must not change them.
    if !page::make()?.may_change() {
        return None;
    }
    let listener = if sys::is_open(fd) { is_served(fd).then(|| create(fd)).flatten() } else { return None };
    let word = listener.map_or(OTHER, |listener| listener.index.wrapping_add(FIRST));
    if kind.compare_exchange(UNKNOWN, word, AcqRel, Acquire).is_ok() {
        return listener;
    }
    // Another thread was quicker.
    if let Some(listener) = listener {
        listener.release();
    }
    known(fd)
}

/// Whether a descriptor is a UDP socket or a packet socket.
fn is_served(fd: c_int) -> bool {
    let read = |name| sys::option_int(fd, SOL_SOCKET, name);
    match read(SO_DOMAIN).and_then(|domain| u16::try_from(domain).ok()) {
        Some(AF_INET | AF_INET6) => {
            read(SO_TYPE) == Some(SOCK_DGRAM) && read(SO_PROTOCOL) == Some(IPPROTO_UDP)
        }
        Some(AF_PACKET) => true,
        _ => false,
    }
}

/// The listener of a socket that has one by another descriptor: a duplicate from before it became one. It counts for this one, too.
fn retain_known(cookie: u64) -> Option<Listener> {
    let is_it = |listener: &Listener| listener.entry.cookie.load(Relaxed) == cookie;
    let mut all = (0..LISTENERS_COUNT as u8).filter_map(get).filter(is_it);
    let found = all.find(|listener| listener.retain())?;
    if is_it(&found) {
        return Some(found);
    }
    // Meanwhile it has become another socket's.
    found.release();
    None
}

fn create(fd: c_int) -> Option<Listener> {
    let cookie = sys::cookie(fd)?;
    if let Some(known) = retain_known(cookie) {
        return Some(known);
    }
    for (index, entry) in (0..).zip(&LISTENERS) {
        if entry.references.load(Relaxed) == 0
            && entry.references.compare_exchange(0, CHANGING, AcqRel, Relaxed).is_ok()
        {
            entry.cookie.store(cookie, Relaxed);
            entry.descriptor.store(fd, Relaxed);
            entry.owned_until.store(0, Relaxed);
            entry.waiting.store(0, Relaxed);
            entry.had_turn.store(false, Relaxed);
            entry.is_nonblocking.store(false, Relaxed);
            entry.is_changed.store(false, Relaxed);
            entry.predictor.with(|predictor| *predictor = Predictor::new());
            entry.stated_period.store(0, Relaxed);
            entry.known_period.store(0, Relaxed);
            entry.references.store(1, Release);
            return Some(Listener { index, entry });
        }
    }
    None
}

/// The descriptor is closed, or is something new.
pub(crate) fn forget(fd: c_int) {
    if let Some(kind) = kind(fd)
        && kind.load(Relaxed) != UNKNOWN
        && page::may_change()
    {
        replace(kind, UNKNOWN);
    }
    epolls::forget_set(fd);
}

fn replace(kind: &AtomicU8, word: u8) {
    let before = kind.swap(word, AcqRel);
    if let Some(listener) = before.checked_sub(FIRST).and_then(get) {
        listener.release();
    }
}

/// `new` is a duplicate of `old`.
pub(crate) fn copy(old: c_int, new: c_int) {
    epolls::forget_set(new);
    let (Some(from), Some(to)) = (kind(old), kind(new)) else { return };
    if (from.load(Relaxed), to.load(Relaxed)) == (UNKNOWN, UNKNOWN) || !page::may_change() {
        return;
    }
    let listener = known(old).filter(|listener| listener.retain());
    replace(to, listener.map_or(UNKNOWN, |listener| listener.index.wrapping_add(FIRST)));
}

/// All descriptors from `first` to `last` are closed.
pub(crate) fn forget_range(first: u32, last: u32) {
    epolls::forget_sets(first, last);
    let last = (last as usize).min(FDS_COUNT.saturating_sub(1));
    let Some(range) = KINDS.get(first as usize..=last) else { return };
    for kind in range {
        // Read first: a page of the table that no thread has written stays unwritten.
        if kind.load(Relaxed) != UNKNOWN {
            replace(kind, UNKNOWN);
        }
    }
}

/// In a fork's child: no thread owns a listener or waits for one, and no place in a region is the child's.
pub(crate) fn in_child() {
    for entry in &LISTENERS {
        if entry.references.load(Relaxed) != 0 {
            entry.owned_until.store(0, Relaxed);
            entry.waiting.store(0, Relaxed);
            entry.predictor.free();
            entry.counted.forget();
        }
    }
}

impl Listener {
    fn retain(self) -> bool {
        let more =
            |count: u32| (count != 0 && count < CHANGING.wrapping_sub(1)).then(|| count.wrapping_add(1));
        self.entry.references.fetch_update(AcqRel, Relaxed, more).is_ok()
    }

    /// One descriptor less; with the last one the listener ends.
    fn release(self) {
        let less = |count: u32| match count {
            0 | CHANGING => None,
            1 => Some(CHANGING),
            count => Some(count.wrapping_sub(1)),
        };
        if self.entry.references.fetch_update(AcqRel, Relaxed, less) == Ok(1) {
            epolls::forget_listener(self.index);
            self.entry.counted.end();
            self.entry.references.store(0, Release);
        }
    }

    /// Whether the descriptor still is this listener's.
    pub(crate) fn is_named(self, fd: c_int) -> bool {
        known(fd).is_some_and(|listener| listener.index == self.index)
    }

    /// A descriptor of its socket.
    pub(crate) fn descriptor(self) -> Option<c_int> {
        Some(self.entry.descriptor.load(Relaxed)).filter(|fd| self.is_named(*fd))
    }

    /// Whether the descriptor is this listener's socket; a number may have been used again behind our back.
    pub(crate) fn is_of(self, fd: c_int) -> bool {
        sys::cookie(fd) == Some(self.entry.cookie.load(Relaxed))
    }

    /// Whether its calls are known not to block.
    #[inline]
    pub(crate) fn is_nonblocking(self) -> bool {
        self.entry.is_nonblocking.load(Relaxed)
    }

    /// Its calls do not block.
    pub(crate) fn set_nonblocking(self) {
        self.entry.is_nonblocking.store(true, Relaxed);
    }

    /// How its calls wait has changed: the next one goes to the kernel.
    pub(crate) fn note_changed(self) {
        self.entry.is_nonblocking.store(false, Relaxed);
        self.entry.is_changed.store(true, Relaxed);
    }

    /// Whether [`Self::note_changed`] was called since the last question.
    pub(crate) fn take_changed(self) -> bool {
        self.entry.is_changed.load(Relaxed) && self.entry.is_changed.swap(false, Relaxed)
    }

    /// Where it is counted.
    pub(crate) fn counted(self) -> &'static Place {
        &self.entry.counted
    }

    /// What it is called where it is shown: its family, and its port or interface.
    pub(crate) fn name(self) -> Option<ListenerName> {
        let name = sys::local_name(self.descriptor()?)?;
        let [a, b, c, d, e, f, g, h] = *name.octets.first_chunk()?;
        let port = u16::from_be_bytes([c, d]);
        match u16::from_ne_bytes([a, b]) {
            AF_INET => Some(ListenerName::Udp4(port)),
            AF_INET6 => Some(ListenerName::Udp6(port)),
            AF_PACKET => Some(ListenerName::Packet(u32::from_ne_bytes([e, f, g, h]))),
            _ => None,
        }
    }

    /// The socket's SO_COOKIE.
    pub(crate) fn cookie(self) -> u64 {
        self.entry.cookie.load(Relaxed)
    }

    /// Makes the calling thread the owner; the lease, or `None` when another thread owns it.
    pub(crate) fn own(self, now: Monotonic) -> Option<u64> {
        let seen = self.entry.owned_until.load(Relaxed);
        let lease = now.saturating_add(LEASE).as_nanos().max(1);
        let is_free = seen < now.as_nanos();
        (is_free && self.entry.owned_until.compare_exchange(seen, lease, AcqRel, Relaxed).is_ok())
            .then_some(lease)
    }

    /// Makes a lease last until `until` and some more; the new one, or `None` when it was lost.
    pub(crate) fn renew(self, lease: u64, until: Monotonic) -> Option<u64> {
        let new = until.saturating_add(LEASE).as_nanos();
        self.entry.owned_until.compare_exchange(lease, new, AcqRel, Relaxed).ok().map(|_| new)
    }

    /// Ends a lease, if it was not lost.
    pub(crate) fn give_back(self, lease: u64) {
        let _ = self.entry.owned_until.compare_exchange(lease, 0, AcqRel, Relaxed);
    }

    /// A thread begins to wait in the kernel.
    pub(crate) fn begin_waiting(self) {
        self.entry.waiting.fetch_add(1, Relaxed);
    }

    /// A thread has waited in the kernel.
    pub(crate) fn end_waiting(self) {
        // Not below 0: the entry may be another socket's by now.
        let _ = self.entry.waiting.fetch_update(Relaxed, Relaxed, |count| count.checked_sub(1));
    }

    /// An arrival went to a thread that expected it.
    pub(crate) fn note_turn(self) {
        self.entry.had_turn.store(true, Relaxed);
    }

    /// Whether it is the turn of the threads that wait in the kernel: the last arrival went to one that expected it.
    pub(crate) fn is_others_turn(self) -> bool {
        let had_turn = self.entry.had_turn.swap(false, Relaxed);
        had_turn && self.entry.waiting.load(Relaxed) != 0
    }

    /// The period that the program states for it, nanoseconds; 0 = none.
    pub(crate) fn stated_period(self) -> u64 {
        self.entry.stated_period.load(Relaxed)
    }

    /// The program states its period, nanoseconds; 0 takes it back.
    pub(crate) fn state_period(self, nanos: u64) {
        self.entry.stated_period.store(nanos, Relaxed);
    }

    /// Its arrivals have this period; [`Nanos::ZERO`]: none is known. The same period a second time costs one load.
    #[inline]
    pub(crate) fn set_period(self, period: Nanos) {
        let nanos = period.get().cast_unsigned();
        if self.entry.known_period.load(Relaxed) != nanos
            && self.entry.predictor.with(|predictor| predictor.set_period(period)).is_some()
        {
            self.entry.known_period.store(nanos, Relaxed);
        }
    }

    /// An arrival was seen.
    pub(crate) fn observe(self, at: Monotonic, how: Seen) {
        self.entry.predictor.with(|predictor| predictor.observe(at, how));
    }

    /// The expected arrival at `at` did not come.
    pub(crate) fn missed(self, at: Monotonic) {
        self.entry.predictor.with(|predictor| predictor.missed(at));
    }

    /// The next arrival after `after`, as far as it can be known.
    pub(crate) fn expected(self, after: Monotonic) -> Option<Expected<Monotonic>> {
        self.entry.predictor.with(|predictor| predictor.expected(after)).flatten()
    }
}

const _: () = assert!(LISTENERS_COUNT <= 32 && LISTENERS_COUNT == ktsn_ring::receive::LISTENERS_COUNT);
const _: () = assert!(FIRST as usize + LISTENERS_COUNT <= u8::MAX as usize);
