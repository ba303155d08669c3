// SPDX-License-Identifier: Apache-2.0
//! The table of timed sockets: one entry for each open socket, shared by all its descriptors.
//!
//! In: what the hooks learned about a socket. Out: what a send needs to know.
//! All words are atomics; a send that races with a close on another thread sees the old socket's words or the new
//! one's, and the token in the frame shows the daemon which: a mixture is refused there, never sent.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
    fence,
};

use ktsn_ring::{HeaderMarks, StreamStatus, stream_flags};

use crate::call::control_messages::Leaving;
use crate::call::options::Options;
use crate::process::abi::{CLOCK_TAI, SockTxtime};
use crate::process::page::PLACES_COUNT;
use crate::process::sys;
use crate::streams::reports::Reports;

use super::reserved::Reserved;

/// Streams of a process; the region's table has no more.
pub(crate) const STREAMS_COUNT: usize = 1024;

/// The kernel's socket knows SO_TXTIME too.
const KERNEL_TXTIME: u32 = 1;
/// The socket has a local port.
pub(super) const BOUND: u32 = 1 << 2;
/// The socket is connected.
pub(super) const CONNECTED: u32 = 1 << 3;
/// The peer is a group.
pub(super) const PEER_GROUP: u32 = 1 << 4;
/// The peer is an IPv4 address.
pub(super) const PEER_V4: u32 = 1 << 5;
/// AF_INET6.
const V6: u32 = 1 << 6;
/// IPV6_V6ONLY.
pub(super) const V6_ONLY: u32 = 1 << 7;
/// Bound to one IPv4 (or IPv4-mapped) address.
pub(super) const LOCAL_V4: u32 = 1 << 8;
/// Bound to one IPv6 address.
pub(super) const LOCAL_V6: u32 = 1 << 9;
/// An option that cannot be read back was set: datagrams are the kernel's.
const PINNED: u32 = 1 << 10;
/// This process did not set SO_TXTIME: the daemon is asked whether another process was granted it.
pub(super) const ASKS: u32 = 1 << 12;
/// A frame of it was about to be sent.
const BEGUN: u32 = 1 << 14;
/// This process set IP_TTL, IPV6_UNICAST_HOPS, and not to the default.
const TTL_SET: u32 = 1 << 15;
const HOPS_SET: u32 = 1 << 16;
/// The daemon may keep the socket, of which a datagram went to where the daemon asks the kernel about the route.
pub(super) const KEEPS: u32 = 1 << 17;
/// The kernel holds the beginning of a datagram (MSG_MORE): what follows belongs to it.
const CORKED: u32 = 1 << 13;

/// AF_PACKET, SOCK_RAW.
const PACKET_FRAMES: u32 = 1 << 30;
/// AF_PACKET, SOCK_DGRAM.
const PACKET_PAYLOADS: u32 = 1 << 31;

pub(super) const ADDRESS_FLAGS: u32 =
    BOUND | CONNECTED | PEER_GROUP | PEER_V4 | V6_ONLY | LOCAL_V4 | LOCAL_V6;

/// In a registration: the socket's addresses changed, register again before the next frame. It lies in the same word
/// as the token, so that no thread sees it cleared beside the old one.
pub(super) const STALE: u64 = 1 << 63;

/// `references` while the last one is being let go.
pub(super) const CLOSING: u32 = u32::MAX;

pub(super) struct Entry {
    pub(super) references: AtomicU32,
    flags: AtomicU32,
    /// SO_TXTIME: the clock in the low half, the flags in the high one.
    txtime: AtomicU64,
    options: AtomicU64,
    /// The second word of the options: UDP_SEGMENT.
    segment: AtomicU32,
    pub(super) reports: Reports,
    /// The registration at each attachment: token in the low half, region epoch and [`STALE`] above; token 0 = none.
    pub(super) registrations: [AtomicU64; PLACES_COUNT],
    /// The interface that the socket is bound to, 0 = none.
    pub(super) interface: AtomicU32,
    /// Where IPv4 datagrams to groups leave: the interface's index in the high half, the source in the low one.
    groups_v4: AtomicU64,
    /// Where IPv6 datagrams to groups leave: the interface's index in the high half; no source.
    groups_v6: AtomicU64,
    /// The socket's SO_COOKIE.
    cookie: AtomicU64,
    /// When the last registration was made (CLOCK_MONOTONIC, ns); 0 = no send waits for its answer.
    pub(super) registered_at: AtomicU64,
    /// The port that it gets at its first send.
    pub(super) reserved: Reserved,
}

pub(super) static STREAMS: [Entry; STREAMS_COUNT] = [const {
    Entry {
        references: AtomicU32::new(0),
        flags: AtomicU32::new(0),
        txtime: AtomicU64::new(0),
        options: AtomicU64::new(0),
        segment: AtomicU32::new(0),
        reports: Reports::new(),
        registrations: [const { AtomicU64::new(0) }; PLACES_COUNT],
        interface: AtomicU32::new(0),
        groups_v4: AtomicU64::new(0),
        groups_v6: AtomicU64::new(0),
        cookie: AtomicU64::new(0),
        registered_at: AtomicU64::new(0),
        reserved: Reserved::new(),
    }
}; STREAMS_COUNT];

/// The last token that a registration of this process got.
pub(super) static TOKENS: AtomicU32 = AtomicU32::new(0);

/// How many of the entries are in use.
pub(super) static COUNT: AtomicU32 = AtomicU32::new(0);

/// How many timed sockets this process has.
#[inline]
pub(crate) fn count() -> u32 {
    COUNT.load(Relaxed)
}

/// What a packet socket's payloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Whole frames: SOCK_RAW.
    Frame,
    /// What follows the Ethernet header: SOCK_DGRAM.
    Payload,
}

/// A stream of this process.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Its index, here and in the region.
    pub(crate) index: u32,
    pub(super) entry: &'static Entry,
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
            entry.reports.begin(TOKENS.load(Relaxed));
            for registration in &entry.registrations {
                registration.store(0, Relaxed);
            }
            entry.interface.store(0, Relaxed);
            entry.groups_v4.store(0, Relaxed);
            entry.groups_v6.store(0, Relaxed);
            entry.cookie.store(cookie, Relaxed);
            entry.registered_at.store(0, Relaxed);
            COUNT.fetch_add(1, Relaxed);
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

impl Stream {
    pub(super) fn has(self, flag: u32) -> bool {
        self.entry.flags.load(Acquire) & flag != 0
    }

    pub(super) fn put(self, flag: u32, value: bool) {
        if value {
            self.entry.flags.fetch_or(flag, Release);
        } else {
            self.entry.flags.fetch_and(!flag, Release);
        }
    }

    /// The registrations say what the socket no longer is.
    pub(super) fn set_stale(self) {
        for registration in &self.entry.registrations {
            registration.fetch_or(STALE, AcqRel);
        }
    }

    /// SO_TXTIME as the program set it.
    pub(crate) fn txtime(self) -> SockTxtime {
        let word = self.entry.txtime.load(Relaxed);
        SockTxtime { clock: word as u32 as c_int, flags: (word >> 32) as u32 }
    }

    /// Remembers SO_TXTIME, and whether the kernel took it too.
    pub(crate) fn set_txtime(self, txtime: SockTxtime, is_kernel_timed: bool) {
        self.entry.txtime.store(u64::from(txtime.clock as u32) | u64::from(txtime.flags) << 32, Relaxed);
        self.put(KERNEL_TXTIME, is_kernel_timed);
    }

    /// The kernel accepted the program's SO_TXTIME. A changed one is registered again.
    pub(crate) fn know_txtime(self, txtime: SockTxtime) {
        if self.txtime() != txtime || !self.is_kernel_timed() {
            self.set_txtime(txtime, true);
            self.set_stale();
        }
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
    /// A frame of it is about to be sent: from here on senders register what changes, and no other thread does it under them.
    #[inline(always)]
    pub(crate) fn begin_sending(self) {
        if !self.has(BEGUN) {
            self.note_begun();
        }
    }
    #[cold]
    #[inline(never)]
    fn note_begun(self) {
        self.put(BEGUN, true);
        fence(SeqCst); // against `announce`, which makes the registration stale and then looks at this flag
    }
    /// Lets the daemons keep the socket from the next registration on, which comes with the next frame; false: they may already.
    #[cold]
    pub(crate) fn begin_keeping(self) -> bool {
        let begins = !self.has(KEEPS);
        if begins {
            self.put(KEEPS, true);
            self.set_stale();
        }
        begins
    }
    /// Whether no frame of it was about to be sent yet.
    pub(crate) fn is_unused(self) -> bool {
        fence(SeqCst);
        !self.has(BEGUN)
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
    /// Datagrams are the kernel's, because of an option.
    pub(crate) fn is_pinned(self) -> bool {
        self.has(PINNED)
    }
    /// An option that cannot be read back was set.
    pub(crate) fn pin(self) {
        self.put(PINNED, true);
    }
    /// Where datagrams to groups leave, by an option of the socket.
    pub(crate) fn groups(self, is_v4: bool) -> Leaving {
        let word = if is_v4 { &self.entry.groups_v4 } else { &self.entry.groups_v6 }.load(Relaxed);
        Leaving { interface: (word >> 32) as u32, source: (word as u32).to_ne_bytes() }
    }
    /// Whether anything is said by it.
    #[inline(always)]
    pub(crate) fn says_where(self) -> bool {
        self.entry.groups_v4.load(Relaxed) | self.entry.groups_v6.load(Relaxed) != 0
    }
    /// Remembers it.
    pub(crate) fn set_groups(self, is_v4: bool, leaving: Leaving) {
        let word = if is_v4 { &self.entry.groups_v4 } else { &self.entry.groups_v6 };
        let value = u64::from(leaving.interface) << 32 | u64::from(u32::from_ne_bytes(leaving.source));
        word.store(value, Relaxed);
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
    /// Remembers whether the program set IP_TTL, or where not `is_v4` IPV6_UNICAST_HOPS.
    pub(crate) fn set_hop_limit(self, is_v4: bool, is_set: bool) {
        self.put(if is_v4 { TTL_SET } else { HOPS_SET }, is_set);
    }
    /// The marks of hop limits that the program did not set. The kernel does not show that.
    pub(super) fn hop_limit_marks(self) -> HeaderMarks {
        let mark = |flag, mark| if self.has(flag) { HeaderMarks::NONE } else { mark };
        mark(TTL_SET, HeaderMarks::DEFAULT_TTL).with(mark(HOPS_SET, HeaderMarks::DEFAULT_HOPS))
    }
    /// Which reports its program wants.
    pub(crate) fn reports(self) -> &'static Reports {
        &self.entry.reports
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
    /// Whether the descriptor is this stream's socket; a number may have been used again behind our back.
    pub(crate) fn is_of(self, fd: c_int) -> bool {
        sys::cookie(fd) == Some(self.entry.cookie.load(Relaxed))
    }
}
