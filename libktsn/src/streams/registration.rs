// SPDX-License-Identifier: Apache-2.0
//! A stream's registrations with the daemon: one with each attachment of its namespace.
//!
//! In: a socket, and a region, and so its daemon. Out: the token that frames carry, and what the daemon
//! answered. A send waits for an answer only where the program itself made the registration necessary, and only for a
//! daemon that lives: 20 ms, and a blocking socket as long as for room in its buffer, a second at most.

use core::ffi::c_int;
use core::hint::cold_path;
use core::sync::atomic::{
    AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use ktsn_ring::control::{MESSAGE_OCTETS_MAX, Register, TxtimeClaim, Unregister};
use ktsn_ring::{ClockId, StreamCode, StreamStatus, stream_flags};

use super::table::{ASKS, CLOSING, COUNT, Entry, KEEPS, STALE, STREAMS, Stream, TOKENS};
use crate::process::abi::{CLOCK_TAI, ECONNRESET, ENOTCONN, EPIPE, MSG_DONTWAIT, SockTxtime};
use crate::process::region::RegionUse;
use crate::{process::clock, process::page, process::sys};

/// How long any send waits for a registration that the program itself made necessary, ns.
const WAIT: u64 = 20_000_000;
/// How long one on a blocking socket waits, ns.
const WAIT_MAX: u64 = 1_000_000_000;
/// Between two looks, ns.
const NAP: u32 = 50_000;
/// How often a close looks whether the daemon has let go of the socket.
const RELEASE_ATTEMPTS: u32 = 1000;

/// The epoch's bits in a registration, after shifting.
const EPOCH_MASK: u32 = u32::MAX >> 1;

/// What the daemon says about a stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Registration {
    /// The daemon has answered; `StreamStatus::token` is the token for frames.
    Known(StreamStatus),
    /// The daemon does not know the registration: not yet, or not any more.
    Unknown,
    /// The daemon lives and has not answered, and the socket waits no longer.
    Late,
    /// The region has fewer streams than this program.
    NoRoom,
}

/// In a fork's child: no stream is registered by this process, and the reserved ports are the parent's.
pub(crate) fn forget_registrations() {
    for entry in &STREAMS {
        for registration in &entry.registrations {
            // Read first: a page of the table that no thread has written stays unwritten.
            if registration.load(Relaxed) != 0 {
                registration.store(0, Relaxed);
            }
        }
        entry.reserved.release();
    }
}

/// One descriptor less; with the last one the stream ends and the daemon gets an Unregister.
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
    entry.reports.end(index);
    unregister(index, entry);
    entry.reserved.release();
    COUNT.fetch_sub(1, Relaxed);
    entry.references.store(0, Release);
}

/// A stream ends: the daemons get an Unregister.
fn unregister(index: u32, entry: &Entry) {
    for (place, word) in (0..).zip(&entry.registrations) {
        let registration = word.swap(0, AcqRel);
        if registration as u32 != 0
            && let Some(held) = page::get().and_then(|page| RegionUse::at(page, place))
            && is_with(registration, &held)
            && let Some(control) = held.region().control.get()
        {
            let message = Unregister { stream_index: index, token: registration as u32 };
            // If the daemon's queue is full the entry is simply taken over by the next stream of this index.
            if sys::send(control, &message.encode(), None).is_ok() {
                await_release(index, registration as u32, &held);
            }
        }
    }
}

/// Waits until the daemon has let go of a socket that it keeps: it does within milliseconds. A closed socket's port is free, and no
/// `epoll` reports it any more. A daemon that was stopped is not waited for.
fn await_release(index: u32, token: u32, held: &RegionUse) {
    for _ in 0..RELEASE_ATTEMPTS {
        match held.producer().stream(index) {
            Some(status) if status.token == token && status.flags & stream_flags::KEPT != 0 => sys::nap(NAP),
            _ => return,
        };
    }
}

/// Whether a registration was made with this region's daemon, and not with one before it.
pub(super) fn is_with(registration: u64, held: &RegionUse) -> bool {
    (registration >> 32) as u32 & EPOCH_MASK == held.epoch() & EPOCH_MASK
}

impl Stream {
    /// Marks the registration with this region's attachment as out of date: the next send makes a new one.
    pub(super) fn set_stale_at(self, held: &RegionUse) {
        self.registration_word(held).fetch_or(STALE, AcqRel);
    }

    /// What a registration says about SO_TXTIME.
    fn txtime_claim(self) -> TxtimeClaim {
        match self.txtime() {
            _ if self.has(ASKS) => TxtimeClaim::Asked,
            SockTxtime { clock: CLOCK_TAI, flags } if !self.is_kernel_timed() => {
                TxtimeClaim::Tai(flags as u8)
            }
            _ => TxtimeClaim::Kernel,
        }
    }

    /// Its registration with the attachment of a region.
    pub(super) fn registration_word(self, held: &RegionUse) -> &'static AtomicU64 {
        self.entry.registrations.get(held.place()).unwrap_or(&self.entry.registrations[0])
    }

    /// What the daemon says about this stream, having registered it if need be. Waits only where the program's own
    /// `bind`, `connect` or first send made a registration necessary. `flags` are the call's.
    pub(crate) fn register_if_stale(self, held: &RegionUse, fd: c_int, flags: c_int) -> Registration {
        let mut registration = self.registration_word(held).load(Acquire);
        if registration & STALE != 0 || !is_with(registration, held) {
            // After a daemon's return no send waits; else the program's own change made it necessary.
            let may_wait = registration as u32 == 0 || is_with(registration, held);
            match self.register(held, fd, registration, may_wait) {
                Some(new) => registration = new,
                None => return Registration::Unknown,
            }
        }
        self.await_answer(held, registration, fd, flags)
    }

    /// The stream's registration where no message has to be sent for it; `None` where the stream must be registered (again).
    #[inline(always)]
    pub(crate) fn known_registration(
        self,
        held: &RegionUse,
        fd: c_int,
        flags: c_int,
    ) -> Option<Registration> {
        let registration = self.registration_word(held).load(Acquire);
        if registration & STALE != 0 || !is_with(registration, held) {
            cold_path();
            return None;
        }
        Some(match self.read_answer(held, registration) {
            Some(answered) => answered,
            None => {
                cold_path();
                self.await_answer(held, registration, fd, flags)
            }
        })
    }

    /// The limit to the connected peer that a region's daemon wrote last, for the registration that still stands.
    pub(crate) fn last_limit(self, held: &RegionUse) -> u32 {
        let registration = self.registration_word(held).load(Acquire);
        let status = held.producer().stream(self.index);
        let status =
            status.filter(|status| status.token == registration as u32 && is_with(registration, held));
        status.map_or(0, |status| status.limit)
    }

    /// The daemon's answer to a registration, if there is one.
    #[inline(always)]
    fn read_answer(self, held: &RegionUse, registration: u64) -> Option<Registration> {
        match held.producer().stream(self.index) {
            None => Some(Registration::NoRoom),
            Some(status) if status.token == registration as u32 && status.code != StreamCode::Pending => {
                Some(Registration::Known(status))
            }
            Some(_) => None,
        }
    }

    /// The daemon's answer to a registration, awaited as long as its program may.
    #[inline(never)]
    pub(super) fn await_answer(
        self,
        held: &RegionUse,
        mut registration: u64,
        fd: c_int,
        flags: c_int,
    ) -> Registration {
        let mut patience: Option<u64> = None;
        loop {
            if let Some(answered) = self.read_answer(held, registration) {
                return answered;
            }
            let registered_at = self.entry.registered_at.load(Relaxed);
            let now = clock::monotonic();
            let waited = now.saturating_sub(registered_at);
            if registered_at == 0 || waited >= WAIT_MAX {
                return Registration::Unknown;
            }
            if waited >= WAIT {
                // The worker promises to look; the send does not wait for a worker that breaks its promise.
                if held.producer().bell(ClockId::Monotonic, u64::MAX, now).is_some() {
                    return Registration::Unknown;
                }
                let patience = *patience.get_or_insert_with(|| patience_of(fd, flags));
                if waited >= patience {
                    return Registration::Late;
                }
            }
            sys::nap(NAP);
            registration = self.registration_word(held).load(Acquire);
        }
    }

    /// Sends the socket to the daemon under a new token; the registration, or `None` when it could not be sent.
    pub(super) fn register(self, held: &RegionUse, fd: c_int, old: u64, may_wait: bool) -> Option<u64> {
        let token = match self.begin_registration(held, old, may_wait) {
            Ok(token) => token,
            Err(other) => return Some(other), // another thread registers right now
        };
        // First the word, then the addresses: a change in between makes the stream stale again.
        self.read_addresses(fd);
        if self.is_bound() && self.entry.reserved.is_there() {
            // The kernel gave it another port.
            self.entry.reserved.release();
            self.set_stale();
        }
        self.read_options(fd);
        // An older daemon takes no datagrams by messages, and keeps no sockets.
        let is_kept = self.has(KEEPS) && held.producer().later_horizon() != 0;
        let message = Register { stream_index: self.index, token, txtime: self.txtime_claim(), is_kept };
        self.send_registration(held, token, &message.encode(), fd)
    }

    /// Puts a registration with a new token in the place of the old one; the token, or the registration that is there instead.
    pub(super) fn begin_registration(self, held: &RegionUse, old: u64, may_wait: bool) -> Result<u32, u64> {
        let token = match TOKENS.fetch_add(1, Relaxed).wrapping_add(1) {
            0 => TOKENS.fetch_add(1, Relaxed).wrapping_add(1),
            token => token,
        };
        self.entry.registered_at.store(if may_wait { clock::monotonic() } else { 0 }, Relaxed);
        self.registration_word(held)
            .compare_exchange(old, with_token(token, held), AcqRel, Acquire)
            .map(|_| token)
    }

    /// Sends the message of a registration with its descriptor; the registration, or `None` when it could not be sent.
    #[inline(never)]
    pub(super) fn send_registration(
        self,
        held: &RegionUse,
        token: u32,
        message: &[u8; MESSAGE_OCTETS_MAX],
        fd: c_int,
    ) -> Option<u64> {
        let sent = match held.region().control.get() {
            Some(control) => sys::send(control, message, Some(fd)),
            None => Err(EPIPE),
        };
        match sent {
            Ok(()) => {
                // A newer registration may have been sent before this one, and the daemon keeps the last.
                if self.registration_word(held).load(Acquire) as u32 != token {
                    self.set_stale();
                }
                Some(with_token(token, held))
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

/// The registration of a token with a region's daemon.
fn with_token(token: u32, held: &RegionUse) -> u64 {
    u64::from(token) | u64::from(held.epoch() & EPOCH_MASK) << 32
}

/// How long a call waits for an answer at most, ns.
fn patience_of(fd: c_int, flags: c_int) -> u64 {
    if flags & MSG_DONTWAIT != 0 || sys::is_nonblocking(fd) {
        return WAIT;
    }
    match sys::send_timeout(fd) {
        0 => WAIT_MAX,
        timeout => timeout.max(WAIT),
    }
}
