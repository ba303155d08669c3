// SPDX-License-Identifier: Apache-2.0
//! The timed sockets of this process: one entry for each open socket, shared by all its descriptors.
//!
//! In: what the hooks learned about a socket. Out: what a send needs to know, and its registration with the daemon.
//! All words are atomics; a send that races with a close on another thread sees the old socket's words or the new
//! one's, and the token in the frame tells the daemon which: a mixture is refused there, never sent.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use ktsn_ring::control::{Register, TxtimeClaim, Unregister};
use ktsn_ring::{StreamCode, StreamStatus, stream_flags};

use crate::abi::{self, CLOCK_TAI, ECONNRESET, ENOTCONN, EPIPE, SockTxtime};
use crate::destination::Address;
use crate::options::Options;
use crate::packet::{self, Shape};
use crate::page::PLACES_COUNT;
use crate::region::Use;
use crate::stamps::Telling;
use crate::{clock, page, sys};

/// Streams of a process; the region's table has no more.
pub(crate) const STREAMS_COUNT: usize = 1024;
/// How long a send waits for a registration that the program itself made necessary, ns.
const REGISTER_WAIT: u64 = 20_000_000;

/// In a registration: the socket's addresses changed, register again before the next frame. It lies in the same word
/// as the token, so that no thread sees it cleared beside the old one.
const STALE: u64 = 1 << 63;
/// The epoch's bits in a registration, after shifting.
const EPOCH_MASK: u32 = u32::MAX >> 1;

/// The kernel's socket knows SO_TXTIME too.
const KERNEL_TXTIME: u32 = 1;
/// It has a local port.
const BOUND: u32 = 1 << 2;
/// It is connected.
const CONNECTED: u32 = 1 << 3;
/// The peer is a group.
const PEER_GROUP: u32 = 1 << 4;
/// The peer is an IPv4 address.
const PEER_V4: u32 = 1 << 5;
/// AF_INET6.
const V6: u32 = 1 << 6;
/// IPV6_V6ONLY.
const V6_ONLY: u32 = 1 << 7;
/// Bound to one IPv4 (or IPv4-mapped) address.
const LOCAL_V4: u32 = 1 << 8;
/// Bound to one IPv6 address.
const LOCAL_V6: u32 = 1 << 9;
/// An option that cannot be read back was set: datagrams are the kernel's.
const PINNED: u32 = 1 << 10;
/// The same for groups only.
const PINNED_GROUP: u32 = 1 << 11;
/// Nobody in this process set SO_TXTIME: the daemon is asked whether somebody else was granted it.
const ASKS: u32 = 1 << 12;
/// The kernel holds the beginning of a datagram (MSG_MORE): what follows belongs to it.
const CORKED: u32 = 1 << 13;

/// AF_PACKET, SOCK_RAW.
const PACKET_FRAMES: u32 = 1 << 30;
/// AF_PACKET, SOCK_DGRAM.
const PACKET_PAYLOADS: u32 = 1 << 31;

const ADDRESS_FLAGS: u32 = BOUND | CONNECTED | PEER_GROUP | PEER_V4 | V6_ONLY | LOCAL_V4 | LOCAL_V6;

/// `references` while the last one is being let go.
const CLOSING: u32 = u32::MAX;

struct Entry {
    references: AtomicU32,
    flags: AtomicU32,
    /// SO_TXTIME: the clock in the low half, the flags in the high one.
    txtime: AtomicU64,
    options: AtomicU64,
    /// The second word of the options: UDP_SEGMENT.
    segment: AtomicU32,
    telling: Telling,
    /// With each attachment: the token in the low half, the region's epoch and [`STALE`] above; token 0 = never.
    registrations: [AtomicU64; PLACES_COUNT],
    /// The interface that the socket is bound to, 0 = none.
    interface: AtomicU32,
    /// The socket's SO_COOKIE.
    cookie: AtomicU64,
    /// A send waits for the answer until then (CLOCK_MONOTONIC, ns).
    wait_until: AtomicU64,
}

static STREAMS: [Entry; STREAMS_COUNT] = [const {
    Entry {
        references: AtomicU32::new(0),
        flags: AtomicU32::new(0),
        txtime: AtomicU64::new(0),
        options: AtomicU64::new(0),
        segment: AtomicU32::new(0),
        telling: Telling::new(),
        registrations: [const { AtomicU64::new(0) }; PLACES_COUNT],
        interface: AtomicU32::new(0),
        cookie: AtomicU64::new(0),
        wait_until: AtomicU64::new(0),
    }
}; STREAMS_COUNT];

static TOKENS: AtomicU32 = AtomicU32::new(0);

/// A stream of this process.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Its index, here and in the region.
    pub(crate) index: u32,
    entry: &'static Entry,
}

/// What the daemon says about a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registration {
    /// It has answered; `StreamStatus::token` is the one for frames.
    Known(StreamStatus),
    /// Not yet, or not any more.
    Unknown,
    /// The region has fewer streams than this program.
    NoRoom,
}

/// The stream of this index.
pub(crate) fn get(index: u32) -> Option<Stream> {
    STREAMS.get(index as usize).map(|entry| Stream { index, entry })
}

/// A new stream with one reference; `None` when there are too many.
pub(crate) fn create(is_v6: bool, cookie: u64) -> Option<Stream> {
    for (index, entry) in (0..).zip(&STREAMS) {
        if entry.references.load(Relaxed) == 0
            && entry.references.compare_exchange(0, CLOSING, AcqRel, Relaxed).is_ok()
        {
            entry.flags.store(if is_v6 { V6 } else { 0 }, Relaxed);
            entry.txtime.store(0, Relaxed);
            entry.options.store(0, Relaxed);
            entry.segment.store(0, Relaxed);
            entry.telling.begin(TOKENS.load(Relaxed));
            for registration in &entry.registrations {
                registration.store(0, Relaxed);
            }
            entry.interface.store(0, Relaxed);
            entry.cookie.store(cookie, Relaxed);
            entry.wait_until.store(0, Relaxed);
            entry.references.store(1, Release);
            return Some(Stream { index, entry });
        }
    }
    None
}

/// One more descriptor of a stream; false when it is just going away.
pub(crate) fn retain(index: u32) -> bool {
    let Some(entry) = STREAMS.get(index as usize) else { return false };
    let more = |count: u32| (count != 0 && count < CLOSING.wrapping_sub(1)).then(|| count.wrapping_add(1));
    entry.references.fetch_update(AcqRel, Relaxed, more).is_ok()
}

/// One descriptor less; with the last one the stream ends and the daemon is told.
pub(crate) fn release(index: u32) {
    let Some(entry) = STREAMS.get(index as usize) else { return };
    let less = |count: u32| match count {
        0 | CLOSING => None,
        1 => Some(CLOSING),
        count => Some(count.wrapping_sub(1)),
    };
    if entry.references.fetch_update(AcqRel, Relaxed, less) != Ok(1) {
        return;
    }
    entry.telling.end(index);
    for (place, word) in (0..).zip(&entry.registrations) {
        let registration = word.swap(0, AcqRel);
        if registration as u32 != 0
            && let Some(held) = page::get().and_then(|page| Use::at(page, place))
            && epoch_of(registration) == held.epoch() & EPOCH_MASK
            && let Some(control) = held.region().control.get()
        {
            let message = Unregister { stream_index: index, token: registration as u32 };
            // If the daemon's queue is full the entry is simply taken over by the next stream of this index.
            let _ = sys::send(control, &message.encode(), None);
        }
    }
    entry.references.store(0, Release);
}

/// In a fork's child: no stream is registered by this process.
pub(crate) fn forget_registrations() {
    for registration in STREAMS.iter().flat_map(|entry| &entry.registrations) {
        // Read first: a page of the table that nobody has written stays unwritten.
        if registration.load(Relaxed) != 0 {
            registration.store(0, Relaxed);
        }
    }
}

const fn epoch_of(registration: u64) -> u32 {
    (registration >> 32) as u32 & EPOCH_MASK
}

impl Stream {
    fn has(self, flag: u32) -> bool {
        self.entry.flags.load(Acquire) & flag != 0
    }

    fn put(self, flag: u32, value: bool) {
        if value {
            self.entry.flags.fetch_or(flag, Release);
        } else {
            self.entry.flags.fetch_and(!flag, Release);
        }
    }

    /// SO_TXTIME as the program set it.
    pub(crate) fn txtime(self) -> SockTxtime {
        let word = self.entry.txtime.load(Relaxed);
        SockTxtime { clock: word as u32 as c_int, flags: (word >> 32) as u32 }
    }

    /// Remembers SO_TXTIME, and whether the kernel took it too.
    pub(crate) fn set_txtime(self, txtime: SockTxtime, is_kernels: bool) {
        self.entry.txtime.store(u64::from(txtime.clock as u32) | u64::from(txtime.flags) << 32, Relaxed);
        self.put(KERNEL_TXTIME, is_kernels);
    }

    /// The program set SO_TXTIME that the kernel refused: the next registration says so.
    pub(crate) fn claim_txtime(self, txtime: SockTxtime) {
        if self.is_kernel_timed() || self.has(ASKS) || self.txtime() != txtime {
            self.set_txtime(txtime, false);
            self.put(ASKS, false);
            self.set_stale();
        }
    }

    /// The next registration asks whether SO_TXTIME was granted to this socket in another process.
    pub(crate) fn ask_txtime(self) {
        self.put(ASKS, true);
        self.set_stale();
    }

    /// What a registration says about SO_TXTIME.
    fn txtime_claim(self) -> TxtimeClaim {
        match self.txtime() {
            _ if self.has(ASKS) => TxtimeClaim::Asked,
            SockTxtime { clock: CLOCK_TAI, flags } if !self.is_kernel_timed() => {
                TxtimeClaim::Tai(flags as u8)
            }
            _ => TxtimeClaim::Kernels,
        }
    }

    /// Whether the daemon does not grant this stream's clock any more, which only it had granted.
    pub(crate) fn is_revoked(self, status: &StreamStatus) -> bool {
        !self.is_kernel_timed()
            && self.txtime().clock == CLOCK_TAI
            && status.flags & stream_flags::TAI_GRANTED == 0
    }

    /// Whether the kernel's socket would understand SCM_TXTIME.
    pub(crate) fn is_kernel_timed(self) -> bool {
        self.has(KERNEL_TXTIME)
    }
    /// AF_INET6.
    pub(crate) fn is_v6(self) -> bool {
        self.has(V6)
    }
    /// IPV6_V6ONLY.
    pub(crate) fn is_v6_only(self) -> bool {
        self.has(V6_ONLY)
    }
    /// Has a local port.
    pub(crate) fn is_bound(self) -> bool {
        self.has(BOUND)
    }
    /// Has a peer.
    pub(crate) fn is_connected(self) -> bool {
        self.has(CONNECTED)
    }
    /// The peer is a group, and an IPv4 address.
    pub(crate) fn peer(self) -> (bool, bool) {
        (self.has(PEER_GROUP), self.has(PEER_V4))
    }
    /// Bound to one address of the other family: only the kernel knows what that means.
    pub(crate) fn is_bound_elsewhere(self, to_v4: bool) -> bool {
        self.has(if to_v4 { LOCAL_V6 } else { LOCAL_V4 })
    }
    /// Datagrams are the kernel's, because of an option; `to_group`: of one for groups.
    pub(crate) fn is_pinned(self, to_group: bool) -> bool {
        self.has(PINNED) || (to_group && self.has(PINNED_GROUP))
    }
    /// An option that cannot be read back was set.
    pub(crate) fn pin(self, only_groups: bool) {
        self.put(if only_groups { PINNED_GROUP } else { PINNED }, true);
    }
    /// The socket's options.
    pub(crate) fn options(self) -> Options {
        Options::from_words((self.entry.options.load(Relaxed), self.entry.segment.load(Relaxed)))
    }
    /// Remembers the socket's options.
    pub(crate) fn set_options(self, options: Options) {
        let (word, segment) = options.to_words();
        self.entry.options.store(word, Relaxed);
        self.entry.segment.store(segment, Relaxed);
    }
    /// What its program wants to be told.
    pub(crate) fn telling(self) -> &'static Telling {
        &self.entry.telling
    }
    /// Asks the socket for its options.
    pub(crate) fn read_options(self, fd: c_int) {
        self.entry.telling.read_flags(fd);
        crate::buffer::read(self.index, fd);
        self.set_options(if self.is_packet() {
            packet::options(fd)
        } else {
            Options::read(fd, self.is_v6())
        });
    }
    /// It is a packet socket. Said once, before anybody else knows the stream.
    pub(crate) fn set_packet(self, shape: Shape) {
        self.put(if shape == Shape::Frame { PACKET_FRAMES } else { PACKET_PAYLOADS }, true);
    }
    /// Whether a send with or without MSG_MORE is the kernel's because it begins or continues a datagram there; it is
    /// remembered for the next one.
    pub(crate) fn is_piece(self, more: bool) -> bool {
        let was = self.has(CORKED);
        if was != more {
            self.put(CORKED, more);
        }
        was || more
    }
    /// AF_PACKET.
    pub(crate) fn is_packet(self) -> bool {
        self.has(PACKET_FRAMES | PACKET_PAYLOADS)
    }
    /// What a packet socket's payloads are.
    pub(crate) fn packet_shape(self) -> Option<Shape> {
        match (self.has(PACKET_FRAMES), self.has(PACKET_PAYLOADS)) {
            (true, _) => Some(Shape::Frame),
            (_, true) => Some(Shape::Payload),
            _ => None,
        }
    }
    /// The interface that the socket is bound to, 0 = none.
    pub(crate) fn bound_interface(self) -> u32 {
        self.entry.interface.load(Relaxed)
    }
    /// The registration says what the socket no longer is.
    fn set_stale(self) {
        for registration in &self.entry.registrations {
            registration.fetch_or(STALE, AcqRel);
        }
    }
    /// Its registration with the attachment of a region.
    fn registered(self, held: &Use) -> &'static AtomicU64 {
        self.entry.registrations.get(held.place()).unwrap_or(&self.entry.registrations[0])
    }
    /// Whether the descriptor is this stream's socket; a number may have been used again behind our back.
    pub(crate) fn is_of(self, fd: c_int) -> bool {
        sys::cookie(fd) == Some(self.entry.cookie.load(Relaxed))
    }

    /// The socket's addresses changed. The registration goes first: who sees the new port also sees that it is out
    /// of date, or one that was made after the change.
    pub(crate) fn addresses_changed(self, fd: c_int) {
        self.set_stale();
        self.read_addresses(fd);
    }

    /// Asks the socket for its addresses.
    pub(crate) fn read_addresses(self, fd: c_int) {
        if self.is_packet() {
            self.entry.interface.store(packet::bound_interface(fd), Relaxed);
            return self.put(BOUND, true); // it needs no port
        }
        let interface = sys::option_int(fd, abi::SOL_SOCKET, abi::SO_BINDTOIFINDEX).unwrap_or(0);
        self.entry.interface.store(interface.cast_unsigned(), Relaxed);
        let mut flags = 0;
        if let Some(name) = sys::local_name(fd)
            && let Some(local) = Address::from_name(name.octets.get(..name.len).unwrap_or(&[]))
        {
            flags |= if local.port != 0 { BOUND } else { 0 };
            flags |= match (local.is_any(), local.is_v4()) {
                (true, _) => 0,
                (false, true) => LOCAL_V4,
                (false, false) => LOCAL_V6,
            };
        }
        if let Some(name) = sys::peer_name(fd)
            && let Some(peer) = Address::from_name(name.octets.get(..name.len).unwrap_or(&[]))
        {
            flags |= CONNECTED | if peer.is_v4() { PEER_V4 } else { 0 };
            flags |= if peer.is_multicast() { PEER_GROUP } else { 0 };
        }
        if self.is_v6() && sys::option_int(fd, abi::SOL_IPV6, abi::IPV6_V6ONLY) == Some(1) {
            flags |= V6_ONLY;
        }
        self.put(ADDRESS_FLAGS & !flags, false);
        self.put(flags, true);
    }

    /// What the daemon says about this stream, having registered it if need be. Waits only where the program's own
    /// `bind`, `connect` or first send made a registration necessary.
    pub(crate) fn registration(self, held: &Use, fd: c_int) -> Registration {
        let mut registration = self.registered(held).load(Acquire);
        let is_ours = epoch_of(registration) == held.epoch() & EPOCH_MASK;
        if registration & STALE != 0 || !is_ours {
            // After a daemon's return nobody waits; else the program's own change made it necessary.
            let may_wait = registration as u32 == 0 || is_ours;
            match self.register(held, fd, registration, if may_wait { REGISTER_WAIT } else { 0 }) {
                Some(new) => registration = new,
                None => return Registration::Unknown,
            }
        }
        self.answer(held, registration)
    }

    /// The same where nothing has to be sent for it; `None` where it is to be registered, for the first time or anew.
    #[inline(always)]
    pub(crate) fn known_registration(self, held: &Use) -> Option<Registration> {
        let registration = self.registered(held).load(Acquire);
        if registration & STALE != 0 || epoch_of(registration) != held.epoch() & EPOCH_MASK {
            return None;
        }
        Some(self.answer(held, registration))
    }

    /// The limit to the connected peer that a region's daemon told last, for the registration that still stands.
    pub(crate) fn last_limit(self, held: &Use) -> u32 {
        let registration = self.registered(held).load(Acquire);
        let told = held.producer().stream(self.index);
        let told = told.filter(|status| {
            status.token == registration as u32 && epoch_of(registration) == held.epoch() & EPOCH_MASK
        });
        told.map_or(0, |status| status.limit)
    }

    /// The daemon's answer to a registration, awaited as long as its program may.
    fn answer(self, held: &Use, mut registration: u64) -> Registration {
        loop {
            match held.producer().stream(self.index) {
                None => return Registration::NoRoom,
                Some(status) if status.token == registration as u32 && status.code != StreamCode::Pending => {
                    return Registration::Known(status);
                }
                Some(_) => {}
            }
            if clock::monotonic() >= self.entry.wait_until.load(Relaxed) {
                return Registration::Unknown;
            }
            sys::nap(50_000);
            registration = self.registered(held).load(Acquire);
        }
    }

    /// Sends the socket to the daemon under a new token; the registration, or `None` when it could not be sent.
    fn register(self, held: &Use, fd: c_int, old: u64, wait: u64) -> Option<u64> {
        let token = match TOKENS.fetch_add(1, Relaxed).wrapping_add(1) {
            0 => TOKENS.fetch_add(1, Relaxed).wrapping_add(1),
            token => token,
        };
        let new = u64::from(token) | u64::from(held.epoch() & EPOCH_MASK) << 32;
        self.entry.wait_until.store(clock::monotonic().saturating_add(wait), Relaxed);
        if let Err(other) = self.registered(held).compare_exchange(old, new, AcqRel, Acquire) {
            return Some(other); // another thread registers right now
        }
        // First the word, then the addresses: a change in between makes the stream stale again.
        self.read_addresses(fd);
        self.read_options(fd);
        let message = Register { stream_index: self.index, token, txtime: self.txtime_claim() };
        let sent = match held.region().control.get() {
            Some(control) => sys::send(control, &message.encode(), Some(fd)),
            None => Err(EPIPE),
        };
        match sent {
            Ok(()) => {
                // A newer registration may have been sent before this one, and the daemon keeps the last.
                if self.registered(held).load(Acquire) as u32 != token {
                    self.set_stale();
                }
                Some(new)
            }
            Err(error) => {
                self.set_stale();
                // Anything else passes, also what others of this user cause (ETOOMANYREFS, ENOMEM).
                if matches!(error, EPIPE | ECONNRESET | ENOTCONN)
                    && let Some(page) = page::get()
                {
                    held.give_up(page);
                }
                None
            }
        }
    }
}
