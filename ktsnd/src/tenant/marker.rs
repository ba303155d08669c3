// SPDX-License-Identifier: Apache-2.0
//! The marker: a datagram on a program's own socket that reaches nobody and leaves an entry on its error queue.
//!
//! In: a socket, and which completion is to be found by the program. Out: one `sendmsg`. It touches no option of the
//! socket: destination, interface (`lo`), hop limit or option, and timestamp are all asked for this one message
//! (`docs/design/error-queue.md`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use ktsn_ring::marker::Marker;
use rustix::net::{AddressFamily, sockopt};

use super::sys;

/// The loopback interface has this index in every namespace.
const LOOPBACK: u32 = 1;
/// Local scope, assigned to nobody (224.0.0.0/24 is never forwarded).
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 255);
/// An IPv6 destination option that whoever does not know it has to discard the packet for, without a word (RFC 8200 4.2:
/// type 01…….). Nobody knows it: it is of the range for experiments (RFC 4727).
const DISCARD: [u8; 8] = [0, 0, 0x5e, 4, 0, 0, 0, 0];
/// The discard service.
const PORT: u16 = 9;

const SOF_TIMESTAMPING_TX_SCHED: u32 = 1 << 8;
const SOF_TIMESTAMPING_OPT_ID: u32 = 1 << 7;
const SCM_TS_OPT_ID: i32 = 81;

/// An address that an IPv6 datagram of this socket reaches `lo` by, now and for good: the loopback address. Where the
/// socket is bound to a device, which has no way there, the address that it was bound to.
fn loopback(socket: &OwnedFd, local: SocketAddr) -> SocketAddrV6 {
    let is_bound = sys::bound_interface(socket).is_ok_and(|interface| interface != 0);
    match local {
        SocketAddr::V6(own)
            if is_bound && !own.ip().is_unspecified() && own.ip().to_ipv4_mapped().is_none() =>
        {
            own
        }
        _ => SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0),
    }
}

/// Control messages one after the other.
#[derive(Default)]
struct Control(Vec<u8>);

impl Control {
    fn push(&mut self, level: i32, kind: i32, value: &[u8]) {
        let octets = size_of::<libc::cmsghdr>() + value.len();
        self.0.extend_from_slice(&octets.to_ne_bytes());
        self.0.extend_from_slice(&level.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

/// A socket of a program, held for a moment, with what a marker must know of it.
#[derive(Debug)]
pub(super) struct Target {
    socket: OwnedFd,
    is_v6: bool,
    is_v6_only: bool,
    has_keys: bool,
    /// An address that an IPv6 datagram of this socket reaches lo by.
    local: SocketAddrV6,
}

impl Target {
    /// The socket, if it is the one that was registered, from `local`. Nothing here asks for the socket's lock.
    ///
    /// # Errors
    /// The descriptor, if it is another socket or none: closing it is the caller's, as it may take its time.
    pub(super) fn new(socket: OwnedFd, cookie: u64, local: SocketAddr) -> Result<Self, OwnedFd> {
        if sockopt::socket_cookie(&socket) != Ok(cookie) {
            return Err(socket);
        }
        let is_v6 = sockopt::socket_domain(&socket) == Ok(AddressFamily::INET6);
        Ok(Self {
            is_v6,
            is_v6_only: is_v6 && sys::is_v6_only(&socket),
            has_keys: sys::timestamping(&socket).is_ok_and(|flags| flags & SOF_TIMESTAMPING_OPT_ID != 0),
            local: loopback(&socket, local),
            socket,
        })
    }

    /// Sends one marker.
    ///
    /// # Errors
    /// The kernel's, or `WouldBlock` while the program has a datagram in the making: this program finds the completion
    /// only when it looks.
    pub(super) fn mark(&self, marker: &Marker) -> io::Result<()> {
        // Whatever is sent now would become a part of that datagram, and would wait for the socket's lock.
        if sys::is_corked(&self.socket) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        let send = |is_v6: bool| {
            let result = self.send(marker, is_v6, self.has_keys);
            // Before Linux 6.13 the key is the socket's own next one.
            if self.has_keys && result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
                return self.send(marker, is_v6, false);
            }
            result
        };
        if !self.is_v6 {
            return send(false);
        }
        // IPv4-mapped first: IPv6 refuses another interface where the socket is bound to one.
        if !self.is_v6_only && send(false).is_ok() { Ok(()) } else { send(true) }
    }

    fn send(&self, marker: &Marker, is_v6: bool, has_key: bool) -> io::Result<()> {
        let mut control = Control::default();
        control.push(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &SOF_TIMESTAMPING_TX_SCHED.to_ne_bytes());
        if is_v6 {
            control.push(libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &DISCARD);
        } else {
            let mut info = [0; 12]; // struct in_pktinfo: interface, two addresses
            info[..4].copy_from_slice(&LOOPBACK.to_ne_bytes());
            control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            control.push(libc::IPPROTO_IP, libc::IP_TTL, &1i32.to_ne_bytes());
        }
        if has_key {
            control.push(libc::SOL_SOCKET, SCM_TS_OPT_ID, &marker.key().to_ne_bytes());
        }
        let address = self.destination(is_v6);
        sys::send_marker(self.socket.as_fd(), &address, &marker.payload(), &control.0)
    }

    /// A socket address of the socket's family.
    fn destination(&self, is_v6: bool) -> Vec<u8> {
        let mut octets = Vec::with_capacity(28);
        if self.is_v6 {
            // Multicast has no route to lo in IPv6; an own address has, and the option keeps it from everybody.
            let mapped = SocketAddrV6::new(GROUP_V4.to_ipv6_mapped(), PORT, 0, 0);
            let group = if is_v6 { self.local } else { mapped };
            octets.extend_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            octets.extend_from_slice(&PORT.to_be_bytes());
            octets.extend_from_slice(&[0; 4]);
            octets.extend_from_slice(&group.ip().octets());
            octets.extend_from_slice(&group.scope_id().to_ne_bytes());
        } else {
            octets.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            octets.extend_from_slice(&PORT.to_be_bytes());
            octets.extend_from_slice(&GROUP_V4.octets());
            octets.extend_from_slice(&[0; 8]);
        }
        octets
    }
}

#[cfg(test)]
#[path = "marker_tests.rs"]
mod tests;
