// SPDX-License-Identifier: Apache-2.0
//! Where one datagram goes, from `msg_name`.
//!
//! In: at most 128 octets of a socket address and the socket's kind. Out: an address that can be looked up, the
//! connected peer, or that the kernel must judge (it knows the errno for what makes no sense).

use crate::call::control_messages::field;
use crate::process::abi::{AF_INET, AF_INET6};

/// The first octets of an IPv4-mapped IPv6 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// A datagram's destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// The address the socket is connected to.
    Peer,
    /// The datagram goes to this address.
    To(Address),
    /// The kernel judges the destination.
    Kernel,
}

/// An address and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    /// IPv6, or IPv4-mapped.
    pub(crate) address: [u8; 16],
    /// Index of the interface, for link-local addresses only.
    pub(crate) scope: u32,
    /// UDP port, host order.
    pub(crate) port: u16,
}

impl Address {
    /// True if the destination is an IPv4 address.
    pub(crate) fn is_v4(&self) -> bool {
        self.address.starts_with(&MAPPED)
    }

    /// True if the destination is a group.
    pub(crate) fn is_multicast(&self) -> bool {
        if self.is_v4() { self.address[12] & 0xf0 == 0xe0 } else { self.address[0] == 0xff }
    }

    /// Whether it is 255.255.255.255, which needs SO_BROADCAST.
    pub(crate) fn is_broadcast(&self) -> bool {
        self.is_v4() && self.address[12..] == [0xff; 4]
    }

    /// Whether the socket address says "any", which the kernel turns into something else.
    pub(crate) fn is_any(&self) -> bool {
        self.address == [0; 16] || (self.is_v4() && self.address[12..] == [0; 4])
    }

    fn is_link_local(&self) -> bool {
        (self.address[0] == 0xfe && self.address[1] & 0xc0 == 0x80)
            || (self.address[0] == 0xff && matches!(self.address[1] & 0x0f, 1 | 2))
    }

    /// Reads a `sockaddr_in` or `sockaddr_in6`; `None` for anything else.
    pub(crate) fn from_name(name: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(field(name, 0)?);
        let port = u16::from_be_bytes(field(name, 2)?);
        if family == AF_INET {
            field::<8>(name, 8)?; // the kernel wants the whole sockaddr_in
            let mut address = [0; 16];
            address[..12].copy_from_slice(&MAPPED);
            address[12..].copy_from_slice(&field::<4>(name, 4)?);
            return Some(Self { address, scope: 0, port });
        }
        if family != AF_INET6 {
            return None;
        }
        // The scope may be missing, as in RFC 2133.
        let mut address = Self { address: field(name, 8)?, scope: 0, port };
        if address.is_link_local() {
            address.scope = field(name, 24).map_or(0, u32::from_ne_bytes);
        }
        Some(address)
    }
}

/// Reads `msg_name` for a socket of this kind.
pub(crate) fn parse(name: &[u8], is_v6_socket: bool, is_v6_only: bool) -> Destination {
    if name.is_empty() {
        return Destination::Peer;
    }
    match Address::from_name(name) {
        Some(to) if to.port == 0 || to.is_any() => Destination::Kernel,
        Some(to) if is_v6_socket && is_v6_only && to.is_v4() => Destination::Kernel,
        Some(to) if !is_v6_socket && (!to.is_v4() || name.first_chunk() != Some(&AF_INET.to_ne_bytes())) => {
            Destination::Kernel
        }
        Some(to) => Destination::To(to),
        None => Destination::Kernel,
    }
}

#[cfg(test)]
#[path = "destination_tests.rs"]
mod tests;
