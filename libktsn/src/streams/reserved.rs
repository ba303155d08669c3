// SPDX-License-Identifier: Apache-2.0
//! A second socket that holds a port for a program's UDP socket without one.
//!
//! In: the program's socket. Out: the second socket, its port and its SO_COOKIE; taken by one caller.

use core::ffi::c_int;
use core::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use rustix::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

use crate::call::destination::Address;
use crate::process::abi::{
    AF_INET, AF_INET6, IP_LOCAL_PORT_RANGE, IPV6_V6ONLY, SOCK_DGRAM, SOL_IP, SOL_IPV6,
};
use crate::process::limit;
use crate::process::page::Locked;
use crate::process::sys;

/// Sockets that hold a port.
pub(super) static COUNT: AtomicU32 = AtomicU32::new(0);

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
    pub(super) fn take(&self) -> Option<(OwnedFd, u16)> {
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
    pub(super) fn get(&self) -> Option<c_int> {
        let fd = (self.socket.load(Acquire) as u32).cast_signed().checked_sub(1).filter(|fd| *fd >= 0)?;
        (sys::cookie(fd) == Some(self.cookie.load(Relaxed))).then_some(fd)
    }

    /// Only under the page's lock, and where there is none.
    pub(super) fn put(&self, socket: OwnedFd, port: u16, cookie: u64) {
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

/// A new socket with a port that the kernel chose, as it would have at a first send; its port and its SO_COOKIE. Only under the page's lock:
/// the limit of descriptors is raised for a moment.
pub(super) fn bound(is_v6: bool, is_v6_only: bool, _locked: &Locked) -> Option<(OwnedFd, u16, u64)> {
    let raised = limit::raise_for_port();
    let min = raised.descriptor_min();
    let socket = sys::socket(if is_v6 { AF_INET6 } else { AF_INET }, SOCK_DGRAM).ok();
    let socket = socket.filter(|_| raised.has_room()).and_then(|socket| sys::move_high(socket, min).ok());
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
pub(super) fn has_range(fd: c_int) -> bool {
    sys::option_int(fd, SOL_IP, IP_LOCAL_PORT_RANGE).is_some_and(|range| range != 0)
}
