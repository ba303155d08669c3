// SPDX-License-Identifier: Apache-2.0
//! The marker: a message on a program's own socket that reaches no receiver and leaves an entry on the socket's error queue.
//! It is a datagram, or a frame of a packet socket.
//!  
//! In: a socket, and the completion that the program is to find. Out: one `sendmsg`. It changes no option of the socket:
//! destination, interface (`lo`), hop limit or option, and timestamp are those of this one message
//! (`docs/design/error-queue.md`).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, OwnedFd};

use ktsn_ring::marker::{FRAME_HEADER_OCTETS, FRAME_TYPE, Marker};
use rustix::net::{AddressFamily, SocketType, sockopt};

use super::sys::{self, Control};

/// The loopback interface has this index in every namespace.
const LOOPBACK: u32 = 1;
/// Local scope, unassigned (224.0.0.0/24 is never forwarded).
const GROUP_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 255);
/// An IPv6 destination option: a receiver that does not know it must discard the packet silently (RFC 8200 4.2: type 01…….).
/// Its number is of the range for experiments (RFC 4727), so no receiver knows the option.
const DISCARD: [u8; 8] = [0, 0, 0x5e, 4, 0, 0, 0, 0];
/// The discard service.
const PORT: u16 = 9;

const SOF_TIMESTAMPING_TX_SCHED: u32 = 1 << 8;
const SOF_TIMESTAMPING_OPT_ID: u32 = 1 << 7;
const SCM_TS_OPT_ID: i32 = 81;

/// An address by which an IPv6 datagram of this socket reaches `lo`: the loopback address, or, where the socket is bound to a
/// device without a route there, the address that the socket was bound to.
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

/// A socket of a program, held for a moment, with what a marker needs.
#[derive(Debug)]
pub(super) struct Target {
    socket: OwnedFd,
    family: Family,
    has_keys: bool,
}

/// The kind of datagrams that a socket sends.
#[derive(Clone, Copy, Debug)]
enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6, with an address by which an IPv6 datagram of this socket reaches `lo`.
    V6 { is_only: bool, local: SocketAddrV6 },
    /// AF_PACKET: whole frames, or what follows the header.
    Packet { is_whole: bool },
}

/// The three kinds of marker.
#[derive(Clone, Copy, Debug)]
enum Form {
    V4,
    V6,
    Frame,
}

impl Target {
    /// The socket, if it is the one that was registered, from `local`. Nothing here asks for the socket's lock.
    ///
    /// # Errors
    /// The descriptor, if it is another socket or none. The caller closes it, as its close may block.
    pub(super) fn new(socket: OwnedFd, cookie: u64, local: SocketAddr) -> Result<Self, OwnedFd> {
        if sockopt::socket_cookie(&socket) != Ok(cookie) {
            return Err(socket);
        }
        let family = match sockopt::socket_domain(&socket) {
            Ok(AddressFamily::PACKET) => {
                Family::Packet { is_whole: sockopt::socket_type(&socket) == Ok(SocketType::RAW) }
            }
            Ok(AddressFamily::INET6) => {
                Family::V6 { is_only: sys::is_v6_only(&socket), local: loopback(&socket, local) }
            }
            _ => Family::V4,
        };
        let has_keys = sys::timestamping(&socket).is_ok_and(|flags| flags & SOF_TIMESTAMPING_OPT_ID != 0);
        Ok(Self { socket, family, has_keys })
    }

    /// Sends one marker.
    ///
    /// # Errors
    /// The kernel's, or `WouldBlock` while the program has begun a datagram: this program finds the completion only when it reads.
    pub(super) fn mark(&self, marker: &Marker) -> io::Result<()> {
        // The marker would become a part of that datagram, and would wait for the socket's lock. Frames never have parts.
        if !matches!(self.family, Family::Packet { .. }) && sys::is_corked(&self.socket) {
            return Err(io::Error::from(io::ErrorKind::WouldBlock));
        }
        let send = |form: Form| {
            let result = self.send(marker, form, self.has_keys);
            // Before Linux 6.13 the key is the socket's own next key.
            if self.has_keys && result.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EINVAL)) {
                return self.send(marker, form, false);
            }
            result
        };
        match self.family {
            Family::Packet { .. } => send(Form::Frame),
            Family::V4 => send(Form::V4),
            // IPv4-mapped addresses first: IPv6 refuses another interface where the socket is bound to one.
            Family::V6 { is_only: false, .. } if send(Form::V4).is_ok() => Ok(()),
            Family::V6 { .. } => send(Form::V6),
        }
    }

    fn send(&self, marker: &Marker, form: Form, has_key: bool) -> io::Result<()> {
        let mut control = Control::default();
        control.push(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, &SOF_TIMESTAMPING_TX_SCHED.to_ne_bytes());
        match form {
            Form::V6 => control.push(libc::IPPROTO_IPV6, libc::IPV6_DSTOPTS, &DISCARD),
            Form::V4 => {
                let mut info = [0; 12]; // struct in_pktinfo: interface, two addresses
                info[..4].copy_from_slice(&LOOPBACK.to_ne_bytes());
                control.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
                control.push(libc::IPPROTO_IP, libc::IP_TTL, &1i32.to_ne_bytes());
            }
            Form::Frame => {}
        }
        if has_key {
            control.push(libc::SOL_SOCKET, SCM_TS_OPT_ID, &marker.key().to_ne_bytes());
        }
        let (payload, frame) = (marker.payload(), marker.frame());
        let octets = match self.family {
            Family::Packet { is_whole: true } => &frame[..],
            Family::Packet { is_whole: false } => &frame[FRAME_HEADER_OCTETS..],
            Family::V4 | Family::V6 { .. } => &payload[..],
        };
        sys::send_once(self.socket.as_fd(), &self.destination(form, &frame), octets, control.octets(), 0)
    }

    /// A socket address of the socket's family.
    fn destination(&self, form: Form, frame: &[u8]) -> Vec<u8> {
        let mut octets = Vec::with_capacity(28);
        match self.family {
            // IPv6 multicast has no route to lo. An own address has one, and the option keeps the datagram from all receivers.
            Family::V6 { local, .. } => {
                let mapped = SocketAddrV6::new(GROUP_V4.to_ipv6_mapped(), PORT, 0, 0);
                let group = if matches!(form, Form::V6) { local } else { mapped };
                octets.extend_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
                octets.extend_from_slice(&PORT.to_be_bytes());
                octets.extend_from_slice(&[0; 4]);
                octets.extend_from_slice(&group.ip().octets());
                octets.extend_from_slice(&group.scope_id().to_ne_bytes());
            }
            Family::V4 => {
                octets.extend_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
                octets.extend_from_slice(&PORT.to_be_bytes());
                octets.extend_from_slice(&GROUP_V4.octets());
                octets.extend_from_slice(&[0; 8]);
            }
            Family::Packet { .. } => {
                octets.extend_from_slice(&(libc::AF_PACKET as u16).to_ne_bytes());
                octets.extend_from_slice(&FRAME_TYPE.to_be_bytes());
                octets.extend_from_slice(&LOOPBACK.to_ne_bytes());
                octets.extend_from_slice(&[0, 0, 0, 6]); // type, class, octets of the address
                octets.extend_from_slice(&frame[..6]);
                octets.extend_from_slice(&[0; 2]);
            }
        }
        octets
    }
}

#[cfg(test)]
#[path = "marker_tests.rs"]
mod tests;
