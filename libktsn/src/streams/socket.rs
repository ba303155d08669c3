// SPDX-License-Identifier: Apache-2.0
//! What the kernel's socket says about a stream: its options and its addresses.
//!
//! In: the descriptor. Out: the stream's words. The socket is asked again after every change that the kernel accepted.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use super::table::{
    ADDRESS_FLAGS, BOUND, CONNECTED, LOCAL_V4, LOCAL_V6, PEER_GROUP, PEER_V4, Stream, V6_ONLY,
};
use crate::call::destination::Address;
use crate::call::options::Options;
use crate::{process::abi, process::sys, streams::buffer, streams::packet, streams::wanted_interface};

impl Stream {
    /// Asks the socket for its options.
    pub(crate) fn read_options(self, fd: c_int) {
        self.entry.reports.read_flags(fd);
        buffer::read(self.index, fd);
        self.set_options(if self.is_packet() {
            packet::options(fd)
        } else {
            if self.is_v6() {
                self.set_groups(false, wanted_interface::groups_v6(fd));
            }
            let options = Options::read(fd, self.is_v6());
            Options { marks: options.marks.with(self.hop_limit_marks()), ..options }
        });
    }

    /// The socket's addresses changed. The registration goes first: a thread that sees the new port also sees that the registration is out
    /// of date, or one that was made after the change.
    pub(crate) fn addresses_changed(self, fd: c_int) {
        self.set_stale();
        self.read_addresses(fd);
        if self.is_bound() {
            self.entry.reserved.release();
        }
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
}
