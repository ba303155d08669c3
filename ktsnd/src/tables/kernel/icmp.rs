// SPDX-License-Identifier: Apache-2.0
//! Hints that a route of a namespace has an exception now: a router sent a redirect, or named a smaller MTU.
//!
//! In: the ICMP messages of these types that come into the namespace (RFC 792, RFC 1191, RFC 4443, RFC 4861). Out: the destinations that
//! they name. Anyone may send such a message: it only makes the kernel's own routes be read again. Nothing is sent.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::OwnedFd;
use std::task::{Context, Poll};

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, ipproto, recv};
use tokio::io::unix::AsyncFd;

use crate::sys;

/// SOL_RAW and ICMP_FILTER (linux/icmp.h), and ICMP6_FILTER (linux/icmpv6.h): of types whose bit is set nothing is received.
const SOL_RAW: libc::c_int = 255;
const ICMP_FILTER: libc::c_int = 1;
const ICMP6_FILTER: libc::c_int = 1;
/// SO_MEMINFO and SK_MEMINFO_DROPS: messages that were lost for want of room.
const SO_MEMINFO: libc::c_int = 55;
const DROPS_AT: usize = 8 * 4;

const V4_UNREACHABLE: u8 = 3;
const V4_FRAGMENTATION_NEEDED: u8 = 4;
const V4_REDIRECT: u8 = 5;
const V6_TOO_BIG: u8 = 2;
const V6_REDIRECT: u8 = 137;
/// Unreachable ports are no business of ours, however many there are: code, jumps, and a number (linux/filter.h).
const FILTER_V4: [(u16, u8, u8, u32); 7] = [
    // The length of the IPv4 header; the two octets behind it.
    (libc::BPF_LDX as u16 | libc::BPF_B as u16 | libc::BPF_MSH as u16, 0, 0, 0),
    (libc::BPF_LD as u16 | libc::BPF_B as u16 | libc::BPF_IND as u16, 0, 0, 0),
    (libc::BPF_JMP as u16 | libc::BPF_JEQ as u16 | libc::BPF_K as u16, 2, 0, V4_REDIRECT as u32),
    (libc::BPF_LD as u16 | libc::BPF_B as u16 | libc::BPF_IND as u16, 0, 0, 1),
    (libc::BPF_JMP as u16 | libc::BPF_JEQ as u16 | libc::BPF_K as u16, 0, 1, V4_FRAGMENTATION_NEEDED as u32),
    (libc::BPF_RET as u16 | libc::BPF_K as u16, 0, 0, u32::MAX),
    (libc::BPF_RET as u16 | libc::BPF_K as u16, 0, 0, 0),
];
/// The octets of a message that are looked at: two IPv4 headers with options, and an ICMP header.
const MESSAGE_OCTETS: usize = 192;
/// Messages that are read at once.
const MESSAGES_MAX: usize = 64;

/// The sockets of one namespace.
#[derive(Debug)]
pub(crate) struct Sockets {
    v4: Option<OwnedFd>,
    v6: Option<OwnedFd>,
}

impl Sockets {
    /// Opens them in the calling thread's namespace. Without IPv6 there is no socket of it.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { v4: Some(open_v4()?), v6: open_v6().ok() })
    }
}

fn socket(family: AddressFamily, protocol: Protocol) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socket_with(family, SocketType::RAW, flags, Some(protocol))?)
}

fn open_v4() -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::INET, ipproto::ICMP)?;
    let blocked = !(1_u32 << V4_UNREACHABLE | 1 << V4_REDIRECT);
    sys::set_socket_option(&socket, SOL_RAW, ICMP_FILTER, &blocked.to_ne_bytes())?;
    sys::attach_filter(&socket, &FILTER_V4)?;
    Ok(socket)
}

fn open_v6() -> io::Result<OwnedFd> {
    let socket = socket(AddressFamily::INET6, ipproto::ICMPV6)?;
    let mut blocked = [0xff; 32];
    for kind in [V6_TOO_BIG, V6_REDIRECT] {
        // Words of 32 bits in the machine's order.
        let word = usize::from(kind / 32) * 4;
        let bits = (u32::MAX ^ 1 << (kind % 32)).to_ne_bytes();
        if let Some(place) = blocked.get_mut(word..word + 4) {
            place.copy_from_slice(&bits);
        }
    }
    sys::set_socket_option(&socket, libc::IPPROTO_ICMPV6, ICMP6_FILTER, &blocked)?;
    Ok(socket)
}

/// The sockets, registered with the current runtime.
#[derive(Debug)]
pub(crate) struct Icmp {
    sockets: Vec<(AsyncFd<OwnedFd>, bool)>,
    /// Messages that were lost so far.
    drops: u32,
    destinations: BTreeSet<IpAddr>,
    /// Messages were lost, since the news were last taken and ever.
    has_lost: bool,
    is_unsure: bool,
}

impl Icmp {
    pub(crate) fn new(sockets: Sockets) -> io::Result<Self> {
        let Sockets { v4, v6 } = sockets;
        let all = v4.map(|socket| (socket, true)).into_iter().chain(v6.map(|socket| (socket, false)));
        let sockets: io::Result<_> =
            all.map(|(socket, is_v4)| Ok((sys::readiness(socket)?, is_v4))).collect();
        let destinations = BTreeSet::new();
        Ok(Self { sockets: sockets?, drops: 0, destinations, has_lost: false, is_unsure: false })
    }

    /// Whether a message has come, or was lost, since the news were last taken.
    pub(crate) fn has_news(&self) -> bool {
        self.has_lost || !self.destinations.is_empty()
    }

    /// The destinations that were named since this was last called.
    pub(crate) fn take(&mut self) -> BTreeSet<IpAddr> {
        self.has_lost = false;
        std::mem::take(&mut self.destinations)
    }

    /// Whether messages were lost: the destinations in them are not known.
    pub(crate) fn is_unsure(&self) -> bool {
        self.is_unsure
    }

    /// Reads messages, unless there are news already: more wait, or are lost. Ready when the first one came.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.has_news() {
            return Poll::Pending;
        }
        let mut was_read = false;
        for (socket, is_v4) in &self.sockets {
            while let Poll::Ready(Ok(mut guard)) = socket.poll_read_ready(context) {
                was_read = true;
                if read(socket.get_ref(), *is_v4, &mut self.destinations) {
                    guard.clear_ready();
                    continue;
                }
                // The rest is read when it is the socket's turn again.
                guard.retain_ready();
                break;
            }
        }
        if was_read {
            let drops = self.sockets.iter().map(|(socket, _)| drops(socket.get_ref())).sum();
            self.has_lost = drops != self.drops;
            self.is_unsure |= self.has_lost;
            self.drops = drops;
        }
        if self.has_news() { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Reads messages; true when all were read.
fn read(socket: &OwnedFd, is_v4: bool, destinations: &mut BTreeSet<IpAddr>) -> bool {
    let mut message = [0; MESSAGE_OCTETS];
    for _ in 0..MESSAGES_MAX {
        match recv(socket, &mut message[..], RecvFlags::DONTWAIT) {
            Ok((octets, _)) => {
                let message = message.get(..octets).unwrap_or_default();
                let named = if is_v4 { destination_v4(message) } else { destination_v6(message) };
                destinations.extend(named);
            }
            Err(Errno::INTR) => {}
            Err(_) => return true,
        }
    }
    false
}

fn drops(socket: &OwnedFd) -> u32 {
    let mut all = [0; DROPS_AT + 4];
    let read = sys::socket_option(socket, libc::SOL_SOCKET, SO_MEMINFO, &mut all);
    let counted = all.last_chunk::<4>().filter(|_| read.is_ok());
    counted.map_or(0, |octets| u32::from_ne_bytes(*octets))
}

/// The destination whose route a message is about: an IPv4 packet with ICMP.
pub(crate) fn destination_v4(packet: &[u8]) -> Option<IpAddr> {
    const QUOTED_AT: usize = 8;
    const DESTINATION_AT: usize = 16;
    let header = usize::from(packet.first()? & 0xf) * 4;
    let message = packet.get(header..)?;
    let is_about_routes = match *message.get(..2)? {
        [kind, code] => kind == V4_REDIRECT || (kind == V4_UNREACHABLE && code == V4_FRAGMENTATION_NEEDED),
        _ => false,
    };
    let quoted = message.get(QUOTED_AT..).filter(|_| is_about_routes)?;
    let octets: [u8; 4] = quoted.get(DESTINATION_AT..DESTINATION_AT + 4)?.try_into().ok()?;
    Some(Ipv4Addr::from(octets).into())
}

/// The destination whose route a message of ICMPv6 is about.
pub(crate) fn destination_v6(message: &[u8]) -> Option<IpAddr> {
    let at = match *message.first()? {
        // Behind the message's header, in the IPv6 header of the packet that was too big.
        V6_TOO_BIG => 8 + 24,
        // Behind the target's address.
        V6_REDIRECT => 8 + 16,
        _ => return None,
    };
    let octets: [u8; 16] = message.get(at..at + 16)?.try_into().ok()?;
    Some(Ipv6Addr::from(octets).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message with this type and code, and these octets at a place.
    fn message(header: usize, kind: u8, code: u8, at: usize, octets: &[u8]) -> Vec<u8> {
        let mut message = vec![0; header + at + octets.len()];
        if header > 0 {
            message[0] = 0x40 | (header / 4) as u8;
        }
        message[header..header + 2].copy_from_slice(&[kind, code]);
        message[header + at..].copy_from_slice(octets);
        message
    }

    #[test]
    fn a_message_names_the_destination_that_its_sender_cannot_reach_so() {
        let address = [10, 99, 0, 7];
        for (header, kind, code, is_meant) in [
            (20, 3, 4, true),
            (24, 3, 4, true),
            (20, 5, 0, true),
            (60, 5, 1, true),
            (20, 3, 3, false),
            (20, 8, 0, false),
        ] {
            let named = destination_v4(&message(header, kind, code, 8 + 16, &address));
            assert_eq!(named, is_meant.then(|| address.into()), "{kind} {code}");
        }
        let address = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(destination_v6(&message(0, 2, 0, 32, &address)), Some(address.into()));
        assert_eq!(destination_v6(&message(0, 137, 0, 24, &address)), Some(address.into()));
        assert_eq!(destination_v6(&message(0, 1, 0, 32, &address)), None);
    }

    #[test]
    fn a_short_message_names_nothing() {
        let whole = message(20, 3, 4, 8 + 16, &[10, 99, 0, 7]);
        assert!((0..whole.len()).all(|octets| destination_v4(&whole[..octets]).is_none()));
        let whole = message(0, 2, 0, 32, &[1; 16]);
        assert!((0..whole.len()).all(|octets| destination_v6(&whole[..octets]).is_none()));
    }
}
