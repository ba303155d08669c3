// SPDX-License-Identifier: Apache-2.0
//! The control data of one send: what it asks for, as far as a frame can carry it.
//!
//! In: the program's octets. Out: a [`Parsed`], or that the kernel must judge. It believes no length, and it
//! judges nothing that the kernel judges: garbage goes there and gets the kernel's own errno. The walk is that of
//! cmsg(3); which levels count depends on the socket and the destination, so each has its own mark.

use core::hint::cold_path;

use crate::process::abi::{
    IP_PKTINFO, IP_TOS, IP_TTL, IPV6_DONTFRAG, IPV6_HOPLIMIT, IPV6_PKTINFO, IPV6_TCLASS, SCM_TS_OPT_ID,
    SO_PRIORITY, SO_TIMESTAMPING, SO_TXTIME, SOL_IP, SOL_IPV6, SOL_SOCKET, SOL_UDP, UDP_SEGMENT,
};

/// Priorities above this are one and the same to the daemon.
const PRIORITY_MAX: u32 = 15;
/// Greatest priority that any program may ask for.
const PRIORITY_UNPRIVILEGED_MAX: u32 = 6;
/// `sizeof(struct cmsghdr)`: length (8 octets), level, type.
const HEADER: usize = 16;

/// What the control data asks for; of several messages of one kind the last holds, as in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parsed {
    /// SCM_TXTIME, ns of the socket's clock.
    pub(crate) tx_time: Option<u64>,
    /// UDP_SEGMENT, octets; it overrides the socket's option, and 0 means no segments.
    pub(crate) segment_octets: Option<u16>,
    /// SO_TIMESTAMPING: what is to be recorded about this datagram, as the program wrote it.
    pub(crate) timestamping: Option<u32>,
    /// SCM_TS_OPT_ID: the key of this datagram's timestamps.
    pub(crate) key: Option<u32>,
    /// SO_PRIORITY, at most 15.
    pub(crate) priority: Option<u8>,
    /// The priority on the IPv4 path: there IP_TOS sets one too, and the last of both holds.
    pub(crate) priority_v4: Option<u8>,
    /// There is SO_PRIORITY, which older kernels refuse.
    pub(crate) has_priority: bool,
    /// There is a SO_PRIORITY that not every program may ask for.
    pub(crate) is_privileged: bool,
    /// IP_TOS, on the IPv4 path only.
    pub(crate) tos: Option<u8>,
    /// IP_TTL, 1 to 255, on the IPv4 path only.
    pub(crate) ttl: Option<u8>,
    /// IPV6_TCLASS, on the IPv6 path only. −1 is the kernel's: the socket's own class, or with some kernels (6.18) 255.
    pub(crate) traffic_class: Option<u8>,
    /// IPV6_HOPLIMIT, on the IPv6 path only; `Some(None)` is −1, the socket's own.
    pub(crate) hop_limit: Option<Option<u8>>,
    /// IP_PKTINFO, on the IPv4 path only.
    pub(crate) leaving_v4: Leaving,
    /// IPV6_PKTINFO without an address, on the IPv6 path only.
    pub(crate) leaving_v6: Leaving,
    /// What only the kernel serves on any path: other messages of SOL_SOCKET and SOL_UDP, unknown levels.
    pub(crate) has_others: bool,
    /// Messages of SOL_IP that only the kernel serves: of no effect on the IPv6 path and on packet sockets.
    pub(crate) has_others_v4: bool,
    /// Messages of SOL_IPV6 that only the kernel serves: of no effect on packet sockets.
    pub(crate) has_others_v6: bool,
    /// There is anything at all.
    pub(crate) is_any: bool,
}

/// Where a datagram is to leave, by its program's word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// The interface to send by; 0 = any.
    pub(crate) interface: u32,
    /// The IPv4 source address, network order; all zeros = any.
    pub(crate) source: [u8; 4],
}

impl Leaving {
    /// Whether nothing is said.
    #[inline(always)]
    pub(crate) const fn is_any(&self) -> bool {
        self.interface == 0 && u32::from_ne_bytes(self.source) == 0
    }

    /// Adds one message: the last address holds, and an interface that was named stays named, as in the kernel.
    fn set(&mut self, interface: u32, source: [u8; 4]) {
        if interface != 0 {
            self.interface = interface;
        }
        self.source = source;
    }
}

/// A length with its padding.
const fn padded(octets: usize) -> usize {
    octets.saturating_add(7) & !7
}

/// The octets of a structure's field at `at`.
#[inline(always)]
pub(crate) fn field<const N: usize>(structure: &[u8], at: usize) -> Option<[u8; N]> {
    structure.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// One control message.
struct Item<'a> {
    level: i32,
    kind: i32,
    /// The message with its header, without padding.
    octets: &'a [u8],
}

/// Walks control data as the kernel's `for_each_cmsghdr` does. `None` inside means a length that cannot be.
struct Walk<'a> {
    rest: &'a [u8],
    /// In musl's header the length has 32 bits and padding of unknown content.
    is_musl: bool,
}

impl<'a> Iterator for Walk<'a> {
    type Item = Option<Item<'a>>;

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.len() < HEADER {
            return None;
        }
        let header = self.rest;
        let item = (|| {
            let mut len = u64::from_le_bytes(field(header, 0)?);
            if self.is_musl {
                len &= u64::from(u32::MAX);
            }
            let len = usize::try_from(len).ok().filter(|len| *len >= HEADER)?;
            let octets = header.get(..len)?;
            let level = i32::from_le_bytes(field(header, 8)?);
            Some(Item { level, kind: i32::from_le_bytes(field(header, 12)?), octets })
        })();
        let step = item.as_ref().map_or(header.len(), |item| padded(item.octets.len()));
        self.rest = header.get(step..).unwrap_or(&[]);
        Some(item)
    }
}

impl Item<'_> {
    const fn is_txtime(&self) -> bool {
        self.level == SOL_SOCKET && self.kind == SO_TXTIME
    }

    /// The data, when it has exactly this length.
    fn data<const N: usize>(&self) -> Option<[u8; N]> {
        self.octets.get(HEADER..)?.try_into().ok()
    }

    fn int(&self) -> Option<i32> {
        self.data().map(i32::from_le_bytes)
    }

    /// An `int` from 0 to 255; inside `None` for −1.
    fn octet_or_default(&self) -> Option<Option<u8>> {
        let value = self.int()?;
        if value == -1 { Some(None) } else { u8::try_from(value).ok().map(Some) }
    }
}

/// The priority that the kernel gives a datagram of this IP_TOS (`rt_tos2priority`).
pub(crate) const fn priority_of_tos(tos: u8) -> u8 {
    const BEST_EFFORT: u8 = 0;
    const BULK: u8 = 2;
    const INTERACTIVE: u8 = 6;
    const INTERACTIVE_BULK: u8 = 4;
    match (tos & 0x1e) >> 3 {
        0 => BEST_EFFORT,
        1 => BULK,
        2 => INTERACTIVE,
        _ => INTERACTIVE_BULK,
    }
}

impl Parsed {
    /// Where the datagram is to leave, on the path of this family.
    pub(crate) const fn leaving(&self, is_v4: bool) -> Leaving {
        if is_v4 { self.leaving_v4 } else { self.leaving_v6 }
    }

    /// What only the kernel serves, on the path of this family.
    pub(crate) const fn is_for_kernel(&self, is_v4: bool) -> bool {
        self.has_others || if is_v4 { self.has_others_v4 } else { self.has_others_v6 }
    }

    /// Takes one message in; `None` for an SCM_TXTIME of a wrong length.
    #[inline(always)]
    fn take(&mut self, item: &Item<'_>) -> Option<()> {
        self.is_any = true;
        match item.level {
            SOL_SOCKET => return self.take_socket(item),
            _ => cold_path(),
        }
        match item.level {
            SOL_UDP => match (item.kind, item.data()) {
                (UDP_SEGMENT, Some(octets)) => self.segment_octets = Some(u16::from_le_bytes(octets)),
                _ => self.has_others = true,
            },
            SOL_IP => self.take_v4(item),
            SOL_IPV6 => self.take_v6(item),
            _ => self.has_others = true,
        }
        Some(())
    }

    #[inline(always)]
    fn take_socket(&mut self, item: &Item<'_>) -> Option<()> {
        if item.kind == SO_TXTIME {
            self.tx_time = Some(u64::from_le_bytes(item.data()?));
            return Some(());
        }
        cold_path();
        match item.kind {
            SO_TIMESTAMPING => match item.int() {
                Some(flags) => self.timestamping = Some(flags.cast_unsigned()),
                None => self.has_others = true,
            },
            SCM_TS_OPT_ID => match item.data() {
                Some(key) => self.key = Some(u32::from_le_bytes(key)),
                None => self.has_others = true,
            },
            SO_PRIORITY => match item.int() {
                Some(value) => self.set_priority(value.cast_unsigned()),
                None => self.has_others = true,
            },
            _ => self.has_others = true,
        }
        Some(())
    }

    fn set_priority(&mut self, value: u32) {
        self.has_priority = true;
        self.is_privileged |= value > PRIORITY_UNPRIVILEGED_MAX;
        self.priority = Some(u8::try_from(value.min(PRIORITY_MAX)).unwrap_or(0));
        self.priority_v4 = self.priority;
    }

    #[inline(always)]
    fn take_v6(&mut self, item: &Item<'_>) {
        match (item.kind, item.octet_or_default()) {
            (IPV6_TCLASS, Some(Some(value))) => self.traffic_class = Some(value),
            (IPV6_HOPLIMIT, Some(value)) => self.hop_limit = Some(value),
            (IPV6_PKTINFO, _) => {
                // struct in6_pktinfo: the source's address, the interface's index. It counts on the IPv4 path too.
                self.has_others_v4 = true;
                match item.data::<20>().and_then(|octets| Some((field(&octets, 0)?, field(&octets, 16)?))) {
                    Some((source, interface)) if u128::from_ne_bytes(source) == 0 => {
                        self.leaving_v6.set(u32::from_ne_bytes(interface), [0; 4]);
                    }
                    _ => self.has_others_v6 = true,
                }
            }
            _ => {
                self.has_others_v6 = true;
                // Other messages of IPv6 on the IPv4 path are rare.
                self.has_others_v4 = true;
            }
        }
    }

    fn take_v4(&mut self, item: &Item<'_>) {
        let tos = item.data::<1>().map(|[tos]| tos);
        match item.kind {
            IP_TOS => match tos.or_else(|| u8::try_from(item.int()?).ok()) {
                Some(tos) => (self.tos, self.priority_v4) = (Some(tos), Some(priority_of_tos(tos))),
                None => self.has_others_v4 = true,
            },
            IP_TTL => match item.int().and_then(|ttl| u8::try_from(ttl).ok()).filter(|ttl| *ttl != 0) {
                Some(ttl) => self.ttl = Some(ttl),
                None => self.has_others_v4 = true,
            },
            // struct in_pktinfo: the interface's index, the source's address, one that only a receiver gets.
            IP_PKTINFO => {
                match item.data::<12>().and_then(|octets| Some((field(&octets, 0)?, field(&octets, 4)?))) {
                    Some((interface, source)) => {
                        self.leaving_v4.set(u32::from_ne_bytes(interface), source);
                    }
                    None => self.has_others_v4 = true,
                }
            }
            _ => self.has_others_v4 = true,
        }
    }
}

/// Reads the control data of a send; `None` when it is malformed and the kernel has an errno for it.
#[inline(always)] // the result stays in registers
pub(crate) fn parse(control: &[u8], is_musl: bool) -> Option<Parsed> {
    let mut parsed = Parsed::default();
    for item in (Walk { rest: control, is_musl }) {
        parsed.take(&item?)?;
    }
    Some(parsed)
}

/// [`parse`] where it is not urgent.
#[inline(never)]
pub(crate) fn parse_cold(control: &[u8], is_musl: bool) -> Option<Parsed> {
    parse(control, is_musl)
}

/// Whether there is a message that the kernel may refuse to one program and not to another, or one that is not known here.
pub(crate) fn is_privileged(control: &[u8], is_musl: bool) -> bool {
    (Walk { rest: control, is_musl }).any(|item| {
        item.is_none_or(|item| match (item.level, item.kind) {
            (SOL_SOCKET, SO_PRIORITY) => {
                item.int().is_none_or(|value| value.cast_unsigned() > PRIORITY_UNPRIVILEGED_MAX)
            }
            (SOL_SOCKET, SO_TXTIME | SO_TIMESTAMPING | SCM_TS_OPT_ID) | (SOL_UDP, UDP_SEGMENT) => false,
            (SOL_IP, IP_PKTINFO | IP_TOS | IP_TTL) => false,
            (SOL_IPV6, IPV6_TCLASS | IPV6_HOPLIMIT | IPV6_PKTINFO | IPV6_DONTFRAG) => false,
            _ => true,
        })
    })
}

/// A program's control data with changes, on the stack.
#[repr(C, align(8))]
pub(crate) struct Changed {
    octets: [u8; Changed::MAX],
    len: usize,
}

impl Changed {
    /// The most that is copied. More fails with ENOBUFS, the kernel's own answer to too much control data:
    /// dropping what the program asked for would be worse.
    const MAX: usize = 1024;

    /// Copies everything, where said without SCM_TXTIME, and adds a key; `None` when it does not fit or is malformed.
    pub(crate) fn copy(control: &[u8], is_musl: bool, is_stripped: bool, key: Option<u32>) -> Option<Self> {
        let mut copy = Self { octets: [0; Self::MAX], len: 0 };
        for item in (Walk { rest: control, is_musl }) {
            let item = item?;
            if is_stripped && item.is_txtime() {
                continue;
            }
            let end = copy.len.checked_add(item.octets.len())?;
            let place = copy.octets.get_mut(copy.len..end)?;
            place.copy_from_slice(item.octets);
            // Not musl's header: these octets may go to the kernel as they are.
            *place.first_chunk_mut()? = (item.octets.len() as u64).to_ne_bytes();
            copy.len = padded(end);
        }
        if let Some(key) = key {
            let end = copy.len.checked_add(HEADER.wrapping_add(size_of::<u32>()))?;
            let [a, b, c, d, e, f, g, h] = (HEADER.wrapping_add(size_of::<u32>()) as u64).to_ne_bytes();
            let [i, j, k, l] = SOL_SOCKET.to_ne_bytes();
            let [m, n, o, p] = SCM_TS_OPT_ID.to_ne_bytes();
            let [q, r, s, t] = key.to_ne_bytes();
            let message = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t];
            copy.octets.get_mut(copy.len..end)?.copy_from_slice(&message);
            copy.len = end;
        }
        copy.len = copy.len.min(Self::MAX);
        Some(copy)
    }

    /// The octets that are left.
    pub(crate) fn as_slice(&self) -> &[u8] {
        self.octets.get(..self.len).unwrap_or(&[])
    }
}

#[cfg(test)]
#[path = "control_messages_tests.rs"]
mod tests;
