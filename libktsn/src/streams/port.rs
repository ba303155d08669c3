// SPDX-License-Identifier: Apache-2.0
//! A port for a UDP socket that has none: reserved and shown to the daemon in advance, taken at the first send.
//!
//! In: a socket without a port. Out: a second socket that holds a port, until the first send closes it and binds the program's socket to
//! that port. So the first send needs no registration, which may take longer than its TxTime is ahead. Where the port is lost meanwhile
//! (another socket takes it, a fork's child holds it) the kernel chooses another, and the first send registers it.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use ktsn_ring::control::ShowPort;
use ktsn_ring::{StreamCode, stream_flags};
use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use super::registration::{Registration, STALE, is_with};
use super::{STREAMS, Stream};
use crate::abi::{AF_INET, AF_INET6, IP_LOCAL_PORT_RANGE, IPV6_V6ONLY, SOCK_DGRAM, SOL_IP, SOL_IPV6};
use crate::destination::Address;
use crate::limit::{self, RESERVED_MAX};
use crate::page::{self, Locked, Page};
use crate::region::RegionUse;
use crate::sys;

/// Sockets that hold a port.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// The reserved port of a stream.
pub(super) struct Reserved {
    /// The descriptor that holds it plus one in the low half, the port above; 0 = none.
    socket: AtomicU64,
    /// The socket's SO_COOKIE: the program may have closed the descriptor.
    cookie: AtomicU64,
}

impl Reserved {
    pub(super) const fn new() -> Self {
        Self { socket: AtomicU64::new(0), cookie: AtomicU64::new(0) }
    }

    /// The socket that holds the port, and the port. Owned by the caller from now on.
    #[inline(never)]
    fn take(&self) -> Option<(OwnedFd, u16)> {
        if self.socket.load(Relaxed) == 0 {
            return None; // a page of the table that no thread has written stays unwritten
        }
        let word = self.socket.swap(0, AcqRel);
        let fd = (word as u32).cast_signed().checked_sub(1).filter(|fd| *fd >= 0)?;
        COUNT.fetch_sub(1, Relaxed);
        if sys::cookie(fd) != Some(self.cookie.load(Relaxed)) {
            return None; // the program closed it
        }
        // SAFETY: not negative; it is the socket that `put` was given, and the swap gives it to one caller.
        Some((unsafe { OwnedFd::from_raw_fd(fd & c_int::MAX) }, (word >> 32) as u16))
    }

    /// The socket that holds the port, where it is still there.
    fn get(&self) -> Option<c_int> {
        let fd = (self.socket.load(Acquire) as u32).cast_signed().checked_sub(1).filter(|fd| *fd >= 0)?;
        (sys::cookie(fd) == Some(self.cookie.load(Relaxed))).then_some(fd)
    }

    /// Only under the page's lock, and where there is none.
    fn put(&self, socket: OwnedFd, port: u16, cookie: u64) {
        COUNT.fetch_add(1, Relaxed);
        self.cookie.store(cookie, Relaxed);
        let word = u64::from(socket.into_raw_fd().cast_unsigned().wrapping_add(1)) | u64::from(port) << 32;
        self.socket.store(word, Release);
    }

    /// Whether there is one.
    pub(super) fn is_there(&self) -> bool {
        self.socket.load(Relaxed) != 0
    }

    /// Gives the port back.
    pub(super) fn release(&self) {
        drop(self.take());
    }
}

/// In a fork's child: the ports are the parent's.
pub(super) fn release_all() {
    STREAMS.iter().for_each(|entry| entry.reserved.release());
}

/// A new socket with a port that the kernel chose, as it would have at a first send; its port and its SO_COOKIE. Only under the page's lock:
/// the limit of descriptors is raised for a moment.
fn bound(is_v6: bool, is_v6_only: bool, _locked: &Locked) -> Option<(OwnedFd, u16, u64)> {
    let raised = limit::raise_for_port();
    let min = raised.descriptor_min();
    let socket = sys::socket(if is_v6 { AF_INET6 } else { AF_INET }, SOCK_DGRAM).ok();
    let socket = socket.filter(|_| raised.has_room()).map(|socket| sys::move_high(socket, min));
    drop(raised);
    let socket = socket?;
    let fd = socket.as_raw_fd();
    // Below that it would cost the program one of its own.
    if fd < min || (is_v6 && !sys::set_option_int(fd, SOL_IPV6, IPV6_V6ONLY, is_v6_only.into())) {
        return None;
    }
    let name = sys::bind_any(fd, is_v6, 0).then(|| sys::local_name(fd)).flatten()?;
    let local = Address::from_name(name.octets.get(..name.len)?)?;
    Some((socket, local.port, sys::cookie(fd)?))
}

/// Whether the program limits the ports that the kernel may choose for this socket. A reserved port could lie outside.
fn has_range(fd: c_int) -> bool {
    sys::option_int(fd, SOL_IP, IP_LOCAL_PORT_RANGE).is_some_and(|range| range != 0)
}

impl Stream {
    /// Reserves a port for a socket without one and shows it to each daemon that takes it. Before the stream's first frame. At most
    /// [`RESERVED_MAX`] at a time; where another thread attaches or reserves right now, this socket has none.
    pub(crate) fn reserve_port(self, fd: c_int) {
        if self.is_packet() || self.is_bound() || !self.is_unused() || has_range(fd) {
            return;
        }
        let Some(page) = page::get().filter(|page| page.may_change()) else { return };
        let Some(locked) = page.try_lock() else { return };
        if self.entry.reserved.get().is_none() {
            self.entry.reserved.release();
            let is_taken = RegionUse::all(page).any(|held| self.takes_port(&held));
            if !is_taken || COUNT.load(Relaxed) >= RESERVED_MAX.into() {
                return;
            }
            let Some((socket, port, cookie)) = bound(self.is_v6(), self.is_v6_only(), &locked) else {
                return;
            };
            self.entry.reserved.put(socket, port, cookie);
            self.forget_shown(page);
        }
        drop(locked);
        self.show_port();
    }

    /// A port that was shown before is not this one.
    fn forget_shown(self, page: &'static Page) {
        for held in RegionUse::all(page).filter(|held| self.is_shown(held)) {
            self.set_stale_at(&held);
        }
    }

    /// Whether the daemon of a region has registered it and takes its port in advance.
    fn takes_port(self, held: &RegionUse) -> bool {
        // Also by an answer to an earlier registration: the next one may be under way.
        let flags = held.producer().stream(self.index).map_or(0, |status| status.flags);
        flags & stream_flags::TAKES_PORT != 0 && is_with(self.registered(held).load(Acquire), held)
    }

    /// Whether a daemon has answered that it knows the port.
    fn is_shown(self, held: &RegionUse) -> bool {
        let registration = self.registered(held).load(Acquire);
        let status = held.producer().stream(self.index).filter(|status| status.token == registration as u32);
        status.is_some_and(|status| status.flags & stream_flags::PORT_SHOWN != 0)
            && is_with(registration, held)
    }

    /// Shows the reserved port to each daemon that takes it and does not know it. It waits for no answer.
    pub(super) fn show_port(self) {
        let Some(page) = page::get() else { return };
        let Some(reserved) = self.entry.reserved.get() else { return };
        for held in RegionUse::all(page).filter(|held| self.takes_port(held) && !self.is_shown(held)) {
            let old = self.registered(&held).load(Acquire);
            if old & STALE == 0
                && let Ok(token) = self.begin_registration(&held, old, true)
            {
                let message = ShowPort { stream_index: self.index, token }.encode();
                let _ = self.send_registration(&held, token, &message, reserved);
            }
        }
    }

    /// Binds the socket to its reserved port. False where there is none, or where it is lost: registrations without that port are out of
    /// date then. `flags` are the call's.
    #[inline(never)]
    pub(crate) fn take_port(self, fd: c_int, flags: c_int) -> bool {
        // A vfork's child shares the tables, and not the descriptors.
        let Some(page) = page::get().filter(|page| page.may_change()) else { return false };
        let Some((socket, port)) = self.entry.reserved.take() else { return false };
        let mut is_shown = false;
        for held in RegionUse::all(page) {
            let registration = self.registered(&held).load(Acquire);
            if registration & STALE != 0 || !is_with(registration, &held) {
                continue; // it is registered with its port
            }
            match self.answer(&held, registration, fd, flags) {
                Registration::Known(status) if status.flags & stream_flags::PORT_SHOWN != 0 => {
                    is_shown |= status.code == StreamCode::Registered;
                }
                _ => self.set_stale_at(&held),
            }
        }
        drop(socket);
        if !is_shown || has_range(fd) || !sys::bind_any(fd, self.is_v6(), port) {
            return false;
        }
        self.read_addresses(fd);
        true
    }
}
