// SPDX-License-Identifier: Apache-2.0
//! The socket options that a frame carries, and those that make a datagram the kernel's.
//!
//! In: a socket; it is asked again after every `setsockopt` that the kernel accepted, so nothing is ever guessed from
//! what the program passed. Out: two words for the stream. It never changes an option.

use core::ffi::c_int;

use ktsn_ring::HeaderMarks;
use rustix::fd::AsRawFd;

use crate::call::control_messages::Parsed;
use crate::process::abi::{
    AF_INET, AF_INET6, IP_IPSEC_POLICY, IP_MTU_DISCOVER, IP_MULTICAST_IF, IP_MULTICAST_TTL, IP_OPTIONS,
    IP_PMTUDISC_DO, IP_PMTUDISC_DONT, IP_PMTUDISC_INTERFACE, IP_PMTUDISC_OMIT, IP_PMTUDISC_PROBE,
    IP_PMTUDISC_WANT, IP_TOS, IP_TTL, IP_UNICAST_IF, IP_XFRM_POLICY, IPV6_ADDR_PREFERENCES, IPV6_ADDRFORM,
    IPV6_AUTOFLOWLABEL, IPV6_DSTOPTS, IPV6_FLOWINFO_SEND, IPV6_HOPOPTS, IPV6_IPSEC_POLICY, IPV6_MTU,
    IPV6_MULTICAST_HOPS, IPV6_PKTINFO, IPV6_PREFER_SRC_COA, IPV6_PREFER_SRC_PUBLIC, IPV6_PREFER_SRC_TMP,
    IPV6_RTHDR, IPV6_RTHDRDSTOPTS, IPV6_TCLASS, IPV6_UNICAST_HOPS, IPV6_UNICAST_IF, IPV6_V6ONLY,
    IPV6_XFRM_POLICY, PACKET_TX_RING, SO_BINDTODEVICE, SO_BINDTOIFINDEX, SO_BROADCAST, SO_DONTROUTE, SO_MARK,
    SO_NO_CHECK, SO_PRIORITY, SOCK_DGRAM, SOL_IP, SOL_IPV6, SOL_PACKET, SOL_SOCKET, SOL_UDP, UDP_CORK,
    UDP_NO_CHECK6_TX, UDP_SEGMENT,
};
use crate::{process::kernel, process::sys};

/// SO_PRIORITY values above this are one and the same to the daemon.
const PRIORITY_MAX: c_int = 15;

/// Whether control messages ask for a priority that this kernel refuses, or may refuse to this program.
pub(crate) fn has_refusable_priority(control: &Parsed) -> bool {
    (control.has_priority && !kernel::knows_priority_messages())
        || (control.is_privileged && !sys::may_prioritise())
}

/// Where the marks lie among the flags of the first word.
const MARKS_SHIFT: u32 = 2;

/// What the options of a socket say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// SO_PRIORITY, at most 15.
    pub(crate) priority: u8,
    /// IP_TOS.
    pub(crate) tos: u8,
    /// IPV6_TCLASS.
    pub(crate) traffic_class: u8,
    /// IP_TTL.
    pub(crate) ttl: u8,
    /// IPV6_UNICAST_HOPS.
    pub(crate) hops: u8,
    /// IP_MULTICAST_TTL.
    pub(crate) multicast_ttl: u8,
    /// IPV6_MULTICAST_HOPS.
    pub(crate) multicast_hops: u8,
    /// Only the kernel serves what is set.
    pub(crate) is_unsupported: bool,
    /// SO_BROADCAST.
    pub(crate) has_broadcast: bool,
    /// IP_MTU_DISCOVER and IPV6_AUTOFLOWLABEL, as far as the headers show them, and which hop limits are defaults.
    pub(crate) marks: HeaderMarks,
    /// UDP_SEGMENT; 0 = no segments.
    pub(crate) segment_octets: u16,
}

impl Options {
    /// The options as two words.
    pub(crate) const fn to_words(self) -> (u64, u32) {
        let flags =
            self.is_unsupported as u8 | (self.has_broadcast as u8) << 1 | self.marks.bits() << MARKS_SHIFT;
        let word = u64::from_le_bytes([
            self.priority,
            self.tos,
            self.traffic_class,
            self.ttl,
            self.hops,
            self.multicast_ttl,
            self.multicast_hops,
            flags,
        ]);
        (word, self.segment_octets as u32)
    }

    /// The reverse.
    pub(crate) const fn from_words((word, segment_octets): (u64, u32)) -> Self {
        let [priority, tos, traffic_class, ttl, hops, multicast_ttl, multicast_hops, flags] =
            word.to_le_bytes();
        Self {
            priority,
            tos,
            traffic_class,
            ttl,
            hops,
            multicast_ttl,
            multicast_hops,
            is_unsupported: flags & 1 != 0,
            has_broadcast: flags & 2 != 0,
            marks: HeaderMarks::from_bits(flags >> MARKS_SHIFT),
            segment_octets: segment_octets as u16,
        }
    }

    /// Asks the socket.
    pub(crate) fn read(fd: c_int, is_v6: bool) -> Self {
        let octet = |level, name, default| {
            sys::option_int(fd, level, name).and_then(|value| u8::try_from(value).ok()).unwrap_or(default)
        };
        let is_set = |&(level, name): &(c_int, c_int)| {
            sys::option_int(fd, level, name).is_some_and(|value| value != 0)
        };
        let discovery = discovery_marks(fd);
        let mut options = Self {
            priority: read_priority(fd),
            tos: octet(SOL_IP, IP_TOS, 0),
            ttl: octet(SOL_IP, IP_TTL, 64),
            multicast_ttl: octet(SOL_IP, IP_MULTICAST_TTL, 1),
            is_unsupported: UNSUPPORTED.iter().any(is_set)
                || has_headers(fd, SOL_IP, IP_OPTIONS)
                || discovery.is_none(),
            marks: discovery.unwrap_or_default(),
            has_broadcast: is_set(&(SOL_SOCKET, SO_BROADCAST)),
            segment_octets: sys::option_int(fd, SOL_UDP, UDP_SEGMENT)
                .and_then(|octets| u16::try_from(octets).ok())
                .unwrap_or(0),
            ..Self::default()
        };
        if is_v6 {
            options.traffic_class = octet(SOL_IPV6, IPV6_TCLASS, 0);
            options.hops = octet(SOL_IPV6, IPV6_UNICAST_HOPS, 64);
            options.multicast_hops = octet(SOL_IPV6, IPV6_MULTICAST_HOPS, 1);
            if is_set(&(SOL_IPV6, IPV6_AUTOFLOWLABEL)) {
                options.marks = options.marks.with(HeaderMarks::FLOW_LABEL);
            }
            options.is_unsupported |= UNSUPPORTED_V6.iter().any(is_set)
                || sys::option_int(fd, SOL_IPV6, IPV6_ADDR_PREFERENCES)
                    .is_some_and(|value| value & PREFERENCES != 0)
                || STICKY_V6.iter().any(|&name| has_headers(fd, SOL_IPV6, name));
        }
        options
    }
}

/// What IP_MTU_DISCOVER says of the headers. `net.ipv4.ip_no_pmtu_disc` gave the socket its value when it was made. `None`: a
/// value that no known kernel has.
fn discovery_marks(fd: c_int) -> Option<HeaderMarks> {
    match sys::option_int(fd, SOL_IP, IP_MTU_DISCOVER).unwrap_or(IP_PMTUDISC_WANT) {
        IP_PMTUDISC_WANT => Some(HeaderMarks::NONE),
        IP_PMTUDISC_DONT | IP_PMTUDISC_INTERFACE | IP_PMTUDISC_OMIT => Some(HeaderMarks::MAY_FRAGMENT),
        IP_PMTUDISC_DO | IP_PMTUDISC_PROBE => Some(HeaderMarks::NOT_COUNTED),
        _ => None,
    }
}

/// Whether a socket of this namespace that was just made has the same value of an option; `None`: none can be made.
pub(crate) fn is_usual(fd: c_int, is_v6: bool, (level, name): (c_int, c_int)) -> Option<bool> {
    let value = |fd| sys::option_int(fd, level, name);
    let fresh = sys::socket(if is_v6 { AF_INET6 } else { AF_INET }, SOCK_DGRAM).ok()?;
    Some(value(fresh.as_raw_fd()) == value(fd))
}

/// Whether IPV6_AUTOFLOWLABEL is as usual. If not, `net.ipv6.auto_flowlabels` may overrule it, and no socket tells whether it does.
pub(crate) fn has_usual_flow_labels(fd: c_int) -> bool {
    is_usual(fd, true, (SOL_IPV6, IPV6_AUTOFLOWLABEL)) == Some(true)
}

/// SO_PRIORITY, at most 15.
fn read_priority(fd: c_int) -> u8 {
    let value = sys::option_int(fd, SOL_SOCKET, SO_PRIORITY).unwrap_or(0);
    u8::try_from(value.clamp(0, PRIORITY_MAX)).unwrap_or(0)
}

const UNSUPPORTED: [(c_int, c_int); 5] = [
    (SOL_SOCKET, SO_MARK),
    (SOL_SOCKET, SO_DONTROUTE),
    (SOL_SOCKET, SO_NO_CHECK),
    (SOL_IP, IP_UNICAST_IF),
    (SOL_UDP, UDP_CORK),
];
const UNSUPPORTED_V6: [(c_int, c_int); 3] =
    [(SOL_IPV6, IPV6_FLOWINFO_SEND), (SOL_IPV6, IPV6_UNICAST_IF), (SOL_UDP, UDP_NO_CHECK6_TX)];
/// Of IPV6_ADDR_PREFERENCES: source addresses other than the usual one.
const PREFERENCES: c_int = IPV6_PREFER_SRC_TMP | IPV6_PREFER_SRC_PUBLIC | IPV6_PREFER_SRC_COA;
/// Extension headers and source addresses that stick to the socket.
const STICKY_V6: [c_int; 4] = [IPV6_HOPOPTS, IPV6_RTHDR, IPV6_RTHDRDSTOPTS, IPV6_DSTOPTS];

/// Whether an option that is a list of octets is not empty.
fn has_headers(fd: c_int, level: c_int, name: c_int) -> bool {
    let mut value = [0; 64];
    // Too long for our memory means that there is something.
    match sys::option_octets(fd, level, name, &mut value) {
        Ok(octets) => octets != 0,
        Err(errno) => errno == crate::process::abi::EINVAL,
    }
}

/// What libktsn must do after a successful `setsockopt`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Only the priority is another.
    Priority,
    /// Options that travel in each frame, or rule it out.
    Options,
    /// Something that the daemon reads from the socket: register again.
    Registration,
    /// Something that cannot be read back whole: a source address, a transmit ring, a flow label that stays after
    /// IPV6_FLOWINFO_SEND is off, an IPsec policy, the MTU of fragments, another family. The datagrams are the kernel's from
    /// now on.
    Pinned,
    /// Pinned, unless it is what a new socket has.
    FlowLabels,
    /// The TTL, or hop limit, of unicast: whether the program set it cannot be read back.
    HopLimit,
    /// The interface and source for IPv4 groups, which cannot be read back whole.
    GroupsV4,
}

/// Which options call for what. The unknown ones are read again too: reading is cheap and guessing is not.
pub(crate) const fn change(level: c_int, name: c_int) -> Change {
    match (level, name) {
        (SOL_SOCKET, SO_PRIORITY) => Change::Priority,
        (SOL_SOCKET, SO_BINDTODEVICE | SO_BINDTOIFINDEX | SO_MARK) | (SOL_IPV6, IPV6_V6ONLY) => {
            Change::Registration
        }
        (
            SOL_IPV6,
            IPV6_PKTINFO | IPV6_MTU | IPV6_ADDRFORM | IPV6_FLOWINFO_SEND | IPV6_IPSEC_POLICY
            | IPV6_XFRM_POLICY,
        )
        | (SOL_IP, IP_IPSEC_POLICY | IP_XFRM_POLICY)
        | (SOL_PACKET, PACKET_TX_RING) => Change::Pinned,
        (SOL_IPV6, IPV6_AUTOFLOWLABEL) => Change::FlowLabels,
        (SOL_IP, IP_TTL) | (SOL_IPV6, IPV6_UNICAST_HOPS) => Change::HopLimit,
        (SOL_IP, IP_MULTICAST_IF) => Change::GroupsV4,
        _ => Change::Options,
    }
}

/// `options` with the socket's present priority.
pub(crate) fn with_priority(options: Options, fd: c_int) -> Options {
    Options { priority: read_priority(fd), ..options }
}

#[cfg(test)]
mod tests {
    use ktsn_ring::HeaderMarks;

    use super::Options;

    #[test]
    fn two_words_hold_everything() {
        let options = Options {
            priority: 15,
            tos: 0xb8,
            traffic_class: 255,
            ttl: 64,
            hops: 3,
            multicast_ttl: 1,
            multicast_hops: 2,
            is_unsupported: true,
            has_broadcast: true,
            marks: HeaderMarks::NOT_COUNTED.with(HeaderMarks::FLOW_LABEL),
            segment_octets: 0xfffe,
        };
        assert_eq!(Options::from_words(options.to_words()), options);
        assert_eq!(Options::from_words((0, 0)), Options::default());
    }
}
