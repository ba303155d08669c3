// SPDX-License-Identifier: Apache-2.0
//! A port for a UDP socket that has none: reserved and shown to the daemon in advance, taken at the first send.
//!
//! In: a socket without a port. Out: a second socket that holds a port, until the first send closes it and binds the program's socket to
//! that port. So the first send needs no registration, which may take longer than its TxTime is ahead. Where the port is lost meanwhile
//! (another socket takes it, a fork's child holds it) the kernel chooses another, and the first send registers it.

use core::ffi::c_int;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use ktsn_ring::control::ShowPort;
use ktsn_ring::{StreamCode, stream_flags};

use super::registration::{Registration, is_with};
use super::reserved::{COUNT, bound, has_range};
use super::table::{STALE, Stream};
use crate::process::limit::RESERVED_MAX;
use crate::process::page::{self, Page};
use crate::process::region::RegionUse;
use crate::process::sys;

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
        flags & stream_flags::TAKES_PORT != 0 && is_with(self.registration_word(held).load(Acquire), held)
    }

    /// Whether a daemon has answered that it knows the port.
    fn is_shown(self, held: &RegionUse) -> bool {
        let registration = self.registration_word(held).load(Acquire);
        let status = held.producer().stream(self.index).filter(|status| status.token == registration as u32);
        status.is_some_and(|status| status.flags & stream_flags::PORT_SHOWN != 0)
            && is_with(registration, held)
    }

    /// Registers a socket again that has changed before its first frame, with each daemon that knows the socket. It waits for no answer: the
    /// first frame reads the answer. After the first frame the sender registers the change, behind the frames of the old token.
    pub(crate) fn announce(self, fd: c_int) {
        if !self.is_unused() {
            return;
        }
        let Some(page) = page::get().filter(|page| page.may_change()) else { return };
        for held in RegionUse::all(page) {
            let registration = self.registration_word(&held).load(Acquire);
            if registration as u32 != 0 && registration & STALE != 0 && is_with(registration, &held) {
                let _ = self.register(&held, fd, registration, true);
            }
        }
        self.show_port();
    }

    /// Shows the reserved port to each daemon that takes it and does not know it. It waits for no answer.
    fn show_port(self) {
        let Some(page) = page::get() else { return };
        let Some(reserved) = self.entry.reserved.get() else { return };
        for held in RegionUse::all(page).filter(|held| self.takes_port(held) && !self.is_shown(held)) {
            let old = self.registration_word(&held).load(Acquire);
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
            let registration = self.registration_word(&held).load(Acquire);
            if registration & STALE != 0 || !is_with(registration, &held) {
                continue; // it is registered with its port
            }
            match self.await_answer(&held, registration, fd, flags) {
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
