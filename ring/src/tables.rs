// SPDX-License-Identifier: Apache-2.0
//! What the daemon writes for a program in shared words: the region's state, streams and allowed destinations.
//!
//! In: values on the daemon's side, words on the program's. Out: the reverse. The daemon never reads these words
//! back: [`StreamShadow`] and [`DestinationsShadow`] keep what it wrote. A reader never waits for the writer: what
//! is being written reads as pending or unstable.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::control::TXTIME_FLAGS;
use crate::layout::{self, Layout};
use crate::link::{self, LinkFacts};
use crate::words::{Mapping, Words};

/// The limit word of a stream entry.
const LIMIT: usize = 8;

/// Numbers of the reasons for which a datagram goes to the kernel instead; also the index of their counter.
pub mod bypass {
    /// No transmit time was asked.
    pub const NO_TXTIME: u16 = 0;
    /// The socket's namespace has no attachment.
    pub const NOT_ATTACHED: u16 = 1;
    /// The destination is not among the allowed prefixes.
    pub const NOT_ALLOWED: u16 = 2;
    /// The destination is this host's own address.
    pub const OWN_ADDRESS: u16 = 3;
    /// The datagram would not fit the path.
    pub const OVER_MTU: u16 = 4;
    /// A socket option or control message that frames do not carry.
    pub const UNSUPPORTED_OPTION: u16 = 5;
    /// No UDP over IPv4 or IPv6.
    pub const UNSUPPORTED_FAMILY: u16 = 6;
    /// Only the kernel knows the route.
    pub const ROUTING_RULES: u16 = 7;
}

/// Indices of the counters beside those of [`bypass`].
pub mod counter {
    /// Frames that found no daemon.
    pub const DAEMON_ABSENT: usize = 16;
    /// Doorbells rung.
    pub const DOORBELLS: usize = 17;
    /// Frames published.
    pub const SENT: usize = 18;
    /// Sends that failed with EAGAIN for want of a slot.
    pub const RING_FULL: usize = 19;
}

/// Bits of [`StreamStatus::flags`].
pub mod stream_flags {
    /// `CLOCK_TAI` is granted to this stream.
    pub const TAI_GRANTED: u16 = 1;
    /// Datagrams without a transmit time are taken too, from the priority in bits 8 to 11 on (0 to 15).
    pub const TAKES_UNTIMED: u16 = 2;
    /// The daemon takes the port of a socket that has none yet ([`crate::control::ShowPort`]).
    pub const TAKES_PORT: u16 = 4;
    /// The stream's port was shown: the socket may get it, and frames with the registration's token leave from it.
    pub const PORT_SHOWN: u16 = 8;
    /// The daemon keeps the socket while the stream is registered: what turns out to be the kernel's it can hand over.
    pub const KEPT: u16 = 16;
    /// The socket was granted `CLOCK_TAI` before, perhaps in another process; its SO_TXTIME flags are in bits 13 and 14.
    pub const TAI_REMEMBERED: u16 = 1 << 12;
    const PRIORITY_SHIFT: u32 = 8;
    const TXTIME_SHIFT: u32 = 13;

    /// The flags that say: `CLOCK_TAI` was granted with these flags of SO_TXTIME.
    #[must_use]
    pub const fn remembered(txtime_flags: u8) -> u16 {
        TAI_REMEMBERED | ((txtime_flags & super::TXTIME_FLAGS) as u16) << TXTIME_SHIFT
    }

    /// The flags of SO_TXTIME with which `CLOCK_TAI` was granted before; `None` when it was not.
    #[must_use]
    pub const fn recalled(flags: u16) -> Option<u8> {
        let txtime = (flags >> TXTIME_SHIFT) as u8 & super::TXTIME_FLAGS;
        if flags & TAI_REMEMBERED != 0 { Some(txtime) } else { None }
    }

    /// The flags that say: datagrams without a transmit time are taken from `priority` on (capped at 15).
    #[must_use]
    pub const fn takes_untimed_from(priority: u8) -> u16 {
        TAKES_UNTIMED | (if priority > 15 { 15 } else { priority as u16 }) << PRIORITY_SHIFT
    }

    /// Whether a datagram of this priority without a transmit time is taken.
    #[must_use]
    pub const fn takes_untimed(flags: u16, priority: u8) -> bool {
        flags & TAKES_UNTIMED != 0 && priority as u16 >= flags >> PRIORITY_SHIFT & 15
    }
}

/// Whether the region is to be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum RegionState {
    /// The region is attached.
    Attached = 0,
    /// The attachment is gone: frames are lost and counted [`counter::DAEMON_ABSENT`] until another one is there.
    Detached = 1,
    /// The daemon has given the region up: attach again.
    Retired = 2,
}

impl RegionState {
    /// The state of a word; one that no daemon writes means that the region is of no use.
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Attached,
            1 => Self::Detached,
            _ => Self::Retired,
        }
    }
}

/// How far the registration of a stream is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u16)]
pub enum StreamCode {
    /// No answer yet.
    #[default]
    Pending = 0,
    /// Frames are taken.
    Registered = 1,
    /// Its namespace has no attachment.
    NotAttached = 2,
    /// A socket that is not served.
    Unsupported = 3,
    /// Refused.
    Refused = 4,
}

impl StreamCode {
    const fn from_word(word: u16) -> Self {
        match word {
            0 => Self::Pending,
            1 => Self::Registered,
            2 => Self::NotAttached,
            3 => Self::Unsupported,
            _ => Self::Refused,
        }
    }
}

/// A stream's entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStatus {
    /// Token of the registration that this answers.
    pub token: u32,
    /// [`stream_flags`].
    pub flags: u16,
    /// The answer.
    pub code: StreamCode,
    /// Greatest payload to the connected peer, in octets; 0: leave it to the kernel for reason `bypass`.
    pub limit: u32,
    /// Number of the bypass reason ([`bypass`]) when `limit` is 0.
    pub bypass: u16,
    /// The kernel knows the route to the peer, for each flow another one. An older library leaves the peer to the kernel.
    pub is_asked: bool,
}

/// Where the limit of an asked peer is in the limit word: 16 bits that an older library passes over.
const ASKED_SHIFT: u32 = 48;

impl StreamStatus {
    const fn status_word(&self) -> u64 {
        (self.token as u64) << 32 | (self.flags as u64) << 16 | self.code as u64
    }
    const fn limit_word(&self) -> u64 {
        if self.is_asked {
            return (bypass::ROUTING_RULES as u64) << 32 | (self.limit as u64) << ASKED_SHIFT;
        }
        self.limit as u64 | (self.bypass as u64) << 32
    }
    const fn from_words(status: u64, limit: u64) -> Self {
        Self {
            token: (status >> 32) as u32,
            flags: (status >> 16) as u16,
            code: StreamCode::from_word(status as u16),
            // One of both is 0.
            limit: limit as u32 | (limit >> ASKED_SHIFT) as u32,
            bypass: (limit >> 32) as u16,
            is_asked: limit >> ASKED_SHIFT != 0,
        }
    }
}

/// Reads a stream's entry; one that changes meanwhile is pending. `None`: no such stream.
#[inline(always)]
pub fn read_stream(words: &impl Words, layout: &Layout, index: u32) -> Option<StreamStatus> {
    let at = layout.stream(index)?;
    let status = words.load64(at, Acquire);
    let limit = words.load64(at.wrapping_add(LIMIT), Relaxed);
    words.fence(Acquire);
    let mut read = StreamStatus::from_words(status, limit);
    if words.load64(at, Relaxed) != status {
        read.code = StreamCode::Pending;
    }
    Some(read)
}

/// What the daemon wrote last into a stream's entry.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamShadow {
    status: u64,
    set: bool,
}

impl StreamShadow {
    /// The token of the last registration, if there was one.
    #[inline]
    #[must_use]
    pub const fn token(&self) -> Option<u32> {
        if self.set { Some((self.status >> 32) as u32) } else { None }
    }

    /// Writes the entry at `at`. A new status first makes the entry pending, so that no reader pairs it with the
    /// limit of another registration.
    pub fn write(&mut self, words: &impl Words, at: usize, new: &StreamStatus) {
        let status = new.status_word();
        if status == self.status {
            words.store64(at.wrapping_add(LIMIT), new.limit_word(), Relaxed);
        } else {
            let pending = StreamStatus { code: StreamCode::Pending, ..*new }.status_word();
            words.store64(at, pending, Relaxed);
            words.fence(Release);
            words.store64(at.wrapping_add(LIMIT), new.limit_word(), Relaxed);
            words.store64(at, status, Release);
        }
        *self = Self { status, set: true };
    }

    /// Forgets the stream: its entry is pending and no token is its own.
    pub fn clear(&mut self, words: &impl Words, at: usize) {
        self.write(words, at, &StreamStatus::default());
        self.set = false;
    }
}

/// What is done with datagrams to a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DestinationAction {
    /// KTSN takes them.
    Take = 1,
    /// The frame goes to the kernel: it is for the host's own address.
    OwnAddress = 2,
    /// The frame goes to the kernel: the destination is not allowed.
    NotAllowed = 3,
    /// Packet sockets may send to the MAC address in the first six octets; no datagram's destination matches.
    Named = 4,
    /// KTSN takes them from sockets with SO_BROADCAST; those of others are the kernel's to refuse.
    Broadcast = 5,
    /// Frames of packet sockets may come from this address; no datagram's destination matches.
    Source = 6,
    /// The frame goes to the kernel: only the kernel knows its route. An older library takes it for `NotAllowed`.
    RoutingRules = 7,
    /// KTSN takes them from sockets that the daemon keeps ([`stream_flags::KEPT`]): it asks the kernel about the route. An older library
    /// takes it for `NotAllowed`.
    Asked = 8,
}

/// An entry of the destination table; the longest prefixes come first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// IPv6 or IPv4-mapped prefix, network order.
    pub address: [u8; 16],
    /// Length of the prefix in bits, 0 to 128 (an IPv4 prefix plus 96).
    pub prefix_bits: u8,
    /// What is done.
    pub action: DestinationAction,
    /// Greatest payload that is taken, in octets.
    pub payload_max: u16,
}

impl Destination {
    /// The entry that names a MAC address to packet sockets.
    #[must_use]
    pub const fn named(address: [u8; 6]) -> Self {
        let [a, b, c, d, e, f] = address;
        let address = [a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        Self { address, prefix_bits: link::NO_PREFIX, action: DestinationAction::Named, payload_max: 0 }
    }

    /// The entry that names an address of the attachment (IPv6 or IPv4-mapped) to packet sockets.
    #[must_use]
    pub const fn source(address: [u8; 16]) -> Self {
        Self { address, prefix_bits: link::NO_PREFIX, action: DestinationAction::Source, payload_max: 0 }
    }
}

/// What the table says about a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DestinationVerdict {
    /// Take datagrams of at most `payload_max` octets.
    Take {
        /// Greatest payload in octets.
        payload_max: u16,
        /// From a socket only that the daemon keeps; leave others to the kernel.
        is_asked: bool,
    },
    /// Take datagrams of at most `payload_max` octets of a socket with SO_BROADCAST; leave others to the kernel.
    Broadcast {
        /// Greatest payload in octets.
        payload_max: u16,
    },
    /// Leave it to the kernel, for the reason of this number ([`bypass`]).
    Bypass(u16),
    /// The table is being written: ask again, or leave it to the kernel.
    Unstable,
}

/// Whether `address` lies in the prefix; both as big-endian numbers.
#[inline]
const fn matches(address: u128, prefix: u128, bits: u8) -> bool {
    match 128u32.checked_sub(bits as u32) {
        Some(128) => true,
        Some(host_bits) => (address ^ prefix).wrapping_shr(host_bits) == 0,
        None => false,
    }
}

/// Prefetches what a send of this stream reads and writes outside its slot.
#[inline(always)]
pub(crate) fn prefetch(words: &Mapping, layout: &Layout, stream: u32) {
    for at in [layout::FREE, layout::HEAD, layout::COUNTERS] {
        words.expect_write(at);
    }
    for at in [Some(layout::STATE), layout.stream(stream), layout.destination(0)].into_iter().flatten() {
        words.expect_read(at);
    }
}

/// Finds the first entry that holds `address`. It makes few attempts and never waits.
#[inline]
pub fn read_destination(words: &impl Words, layout: &Layout, address: [u8; 16]) -> DestinationVerdict {
    link::stable(words, || find(words, layout, u128::from_be_bytes(address)))
        .unwrap_or(DestinationVerdict::Unstable)
}

#[inline]
fn find(words: &impl Words, layout: &Layout, address: u128) -> DestinationVerdict {
    for index in 0..layout.destinations_count() {
        let Some(at) = layout.destination(index) else { break };
        let rule = words.load64(at.wrapping_add(16), Relaxed);
        let [bits, action, max_low, max_high, ..] = rule.to_le_bytes();
        if action == 0 {
            break; // the end of the table
        }
        let high = u64::from_be(words.load64(at, Relaxed));
        let low = u64::from_be(words.load64(at.wrapping_add(8), Relaxed));
        if matches(address, u128::from(high) << 64 | u128::from(low), bits) {
            let payload_max = u16::from_le_bytes([max_low, max_high]);
            return match action {
                1 | 8 => DestinationVerdict::Take { payload_max, is_asked: action == 8 },
                5 => DestinationVerdict::Broadcast { payload_max },
                2 => DestinationVerdict::Bypass(bypass::OWN_ADDRESS),
                7 => DestinationVerdict::Bypass(bypass::ROUTING_RULES),
                _ => DestinationVerdict::Bypass(bypass::NOT_ALLOWED),
            };
        }
    }
    DestinationVerdict::Bypass(bypass::NOT_ALLOWED)
}

/// The sequence lock's number as the daemon wrote it last.
#[derive(Clone, Copy, Debug, Default)]
pub struct DestinationsShadow {
    version: u64,
}

impl DestinationsShadow {
    /// Lets `write` change the table; readers see that it changes.
    fn change<W: Words>(&mut self, words: &W, write: impl FnOnce(&W)) {
        words.store64(layout::DESTINATIONS_VERSION, self.version.wrapping_add(1), Relaxed);
        words.fence(Release);
        write(words);
        self.version = self.version.wrapping_add(2);
        words.store64(layout::DESTINATIONS_VERSION, self.version, Release);
    }

    /// Replaces what packet sockets need to know.
    pub fn write_link(&mut self, words: &impl Words, facts: LinkFacts) {
        self.change(words, |words| {
            let [first, second] = facts.to_words();
            words.store64(layout::LINK, first, Relaxed);
            words.store64(layout::LINK.wrapping_add(8), second, Relaxed);
        });
    }

    /// Replaces the whole table. The caller has checked that it fits; entries beyond the room are left out.
    pub fn write(&mut self, words: &impl Words, layout: &Layout, table: &[Destination]) {
        self.change(words, |words| {
            for index in 0..layout.destinations_count() {
                let Some(at) = layout.destination(index) else { break };
                let Some(entry) = table.get(index) else {
                    // Action 0 ends the table; what lies behind it is not read.
                    words.store64(at.wrapping_add(16), 0, Relaxed);
                    break;
                };
                let address = u128::from_be_bytes(entry.address);
                let [max_low, max_high] = entry.payload_max.to_le_bytes();
                let rule = [entry.prefix_bits, entry.action as u8, max_low, max_high, 0, 0, 0, 0];
                words.store64(at, ((address >> 64) as u64).to_be(), Relaxed);
                words.store64(at.wrapping_add(8), (address as u64).to_be(), Relaxed);
                words.store64(at.wrapping_add(16), u64::from_le_bytes(rule), Relaxed);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{StreamCode, StreamStatus, bypass};

    /// What a library reads that knows no asked peers: 32 bits of limit, then 16 of the reason.
    #[test]
    fn an_asked_peer_is_the_kernels_to_an_older_library() {
        let asked = StreamStatus {
            token: 7,
            code: StreamCode::Registered,
            limit: 65_507,
            bypass: bypass::ROUTING_RULES,
            is_asked: true,
            ..StreamStatus::default()
        };
        let word = asked.limit_word();
        assert_eq!((word as u32, (word >> 32) as u16), (0, bypass::ROUTING_RULES));
        assert_eq!(StreamStatus::from_words(asked.status_word(), word), asked);
        let plain = StreamStatus { is_asked: false, bypass: 0, ..asked };
        assert_eq!(plain.limit_word(), 65_507);
        assert_eq!(StreamStatus::from_words(plain.status_word(), plain.limit_word()), plain);
    }
}
