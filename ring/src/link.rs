// SPDX-License-Identifier: Apache-2.0
//! What packet sockets need to know of their attachment: facts beside the destination table, under the same lock.
//!
//! In: facts and MAC addresses on the daemon's side. Out: the same on the program's, or nothing while they are being
//! written. The reader never waits; what it cannot read it leaves to the kernel.

use core::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::layout::{self, Layout};
use crate::words::Words;

/// How often a reader tries again while the table changes under it.
const READ_ATTEMPTS: usize = 4;
/// Action of a destination entry that names a MAC address.
pub(crate) const NAMED: u8 = 4;
/// Action of a destination entry that names an address of the attachment.
pub(crate) const SOURCE: u8 = 6;
/// No address lies in a prefix of this length: datagrams never match an entry that names a MAC address, or a source.
pub(crate) const NO_PREFIX: u8 = 255;

/// Frames of packet sockets are taken.
const SERVED: u16 = 1;
/// Destinations are judged: IP and ARP by the table's prefixes, other EtherTypes by its MAC addresses. A program that knows no
/// [`ANY_MAC`] takes what either list names.
const LISTED: u16 = 2;
/// The attachment has a VLAN of its own.
const VLAN: u16 = 4;
/// IP and ARP sources are judged.
const SOURCES: u16 = 8;
/// Other EtherTypes go to every MAC address.
const ANY_MAC: u16 = 16;

/// What the daemon says about the interface that packet sockets send on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Whether their frames are taken at all; the rest holds only then.
    pub is_served: bool,
    /// Index of the interface in its namespace.
    pub if_index: u32,
    /// Its MAC address.
    pub source: [u8; 6],
    /// IP and ARP are taken to the table's prefixes only. Always, but of a ktsnd that had one list for both.
    pub is_ip_listed: bool,
    /// Other EtherTypes are taken to the table's MAC addresses only.
    pub is_mac_listed: bool,
    /// The attachment's VLAN: frames that bring a tag must name it, or VID 0.
    pub vlan: Option<u16>,
    /// IP sources and ARP senders must be addresses that the table names.
    pub is_source_judged: bool,
}

impl LinkFacts {
    pub(crate) const fn to_words(self) -> [u64; 2] {
        let [a, b, c, d, e, f] = self.source;
        let served = if self.is_served { SERVED } else { 0 };
        let listed = match (self.is_ip_listed, self.is_mac_listed) {
            (false, false) => 0,
            (true, false) => LISTED | ANY_MAC,
            (_, true) => LISTED,
        };
        let (has_vlan, vlan) = match self.vlan {
            Some(vlan) => (VLAN, vlan),
            None => (0, 0),
        };
        let judged = if self.is_source_judged { SOURCES } else { 0 };
        let [low, high] = (served | listed | has_vlan | judged).to_le_bytes();
        [u64::from_le_bytes([a, b, c, d, e, f, low, high]), self.if_index as u64 | (vlan as u64) << 32]
    }

    const fn from_words(words: [u64; 2]) -> Self {
        let [a, b, c, d, e, f, low, high] = words[0].to_le_bytes();
        let flags = u16::from_le_bytes([low, high]);
        Self {
            is_served: flags & SERVED != 0,
            if_index: words[1] as u32,
            source: [a, b, c, d, e, f],
            is_ip_listed: flags & LISTED != 0,
            is_mac_listed: flags & LISTED != 0 && flags & ANY_MAC == 0,
            vlan: if flags & VLAN != 0 { Some((words[1] >> 32) as u16) } else { None },
            is_source_judged: flags & SOURCES != 0,
        }
    }
}

/// Reads under the lock of the destination table; `None` when it stays unreadable.
#[inline]
pub(crate) fn stable<T>(words: &impl Words, read: impl Fn() -> T) -> Option<T> {
    for _ in 0..READ_ATTEMPTS {
        let version = words.load64(layout::DESTINATIONS_VERSION, Acquire);
        if version & 1 != 0 {
            continue;
        }
        let value = read();
        words.fence(Acquire);
        if words.load64(layout::DESTINATIONS_VERSION, Relaxed) == version {
            return Some(value);
        }
    }
    None
}

/// The facts; `None` while they are being written.
#[inline]
pub fn read_link(words: &impl Words) -> Option<LinkFacts> {
    stable(words, || {
        let at = layout::LINK;
        LinkFacts::from_words([words.load64(at, Relaxed), words.load64(at.wrapping_add(8), Relaxed)])
    })
}

/// Whether the table names a MAC address; `None` while it is being written.
#[inline]
pub fn read_named(words: &impl Words, layout: &Layout, address: [u8; 6]) -> Option<bool> {
    has_entry(words, layout, NAMED, [entry_word(address), 0])
}

/// Whether the table names an address of the attachment (IPv6 or IPv4-mapped); `None` while it is being written.
#[inline]
pub fn read_source(words: &impl Words, layout: &Layout, address: [u8; 16]) -> Option<bool> {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = address;
    let wanted = [[a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]].map(u64::from_ne_bytes);
    has_entry(words, layout, SOURCE, wanted)
}

fn has_entry(words: &impl Words, layout: &Layout, action: u8, wanted: [u64; 2]) -> Option<bool> {
    stable(words, || {
        for index in 0..layout.destinations_count() {
            let Some(at) = layout.destination(index) else { break };
            let found = (words.load64(at.wrapping_add(16), Relaxed) >> 8) as u8;
            if found == 0 {
                break;
            }
            let is_wanted = || {
                words.load64(at, Relaxed) == wanted[0]
                    && words.load64(at.wrapping_add(8), Relaxed) == wanted[1]
            };
            if found == action && is_wanted() {
                return true;
            }
        }
        false
    })
}

/// The first word of an entry that names a MAC address.
const fn entry_word(address: [u8; 6]) -> u64 {
    let [a, b, c, d, e, f] = address;
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::LinkFacts;
    use crate::{ClientMapping, Consumer, Destination, DestinationAction, DestinationVerdict, Layout};

    fn facts() -> LinkFacts {
        LinkFacts {
            is_served: true,
            if_index: 0x0102_0304,
            source: [2, 0, 0, 0, 0, 5],
            is_ip_listed: true,
            is_mac_listed: true,
            vlan: Some(7),
            is_source_judged: false,
        }
    }

    #[test]
    fn words_follow_the_page() {
        assert_eq!(facts().to_words(), [0x0007_0500_0000_0002, 0x0000_0007_0102_0304]);
        assert_eq!(LinkFacts::from_words(facts().to_words()), facts());
        assert_eq!(LinkFacts::default().to_words(), [0, 0]);
        let judged = LinkFacts { is_source_judged: true, ..facts() };
        assert_eq!(judged.to_words()[0], 0x000f_0500_0000_0002);
        assert_eq!(LinkFacts::from_words(judged.to_words()), judged);
        let any_mac = LinkFacts { is_mac_listed: false, ..facts() };
        assert_eq!(any_mac.to_words()[0], 0x0017_0500_0000_0002);
        assert_eq!(LinkFacts::from_words(any_mac.to_words()), any_mac);
        let plain = LinkFacts { vlan: None, is_ip_listed: false, is_mac_listed: false, ..facts() };
        assert_eq!(LinkFacts::from_words(plain.to_words()), plain);
    }

    #[test]
    fn a_program_reads_what_the_daemon_says() {
        let (mut consumer, memfd) = Consumer::create(Layout::new(4, 256, 4, 4).unwrap()).unwrap();
        let mapping = ClientMapping::open(&memfd).unwrap();
        let producer = mapping.producer();
        assert_eq!(producer.link(), Some(LinkFacts::default()));
        let group = [0x01, 0x00, 0x5e, 0, 0, 1];
        let prefix = Destination {
            address: [0; 16],
            prefix_bits: 0,
            action: DestinationAction::Take,
            payload_max: 1400,
        };
        // As an IPv6 address it would be 100:5e00:1::
        let own = [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5];
        consumer.set_destinations(&[Destination::named(group), Destination::source(own), prefix]).unwrap();
        consumer.set_link(&facts());
        assert_eq!(producer.link(), Some(facts()));
        assert_eq!(producer.names(group), Some(true));
        assert_eq!(producer.names([0x01, 0x00, 0x5e, 0, 0, 2]), Some(false));
        assert_eq!(producer.names([0; 6]), Some(false), "a prefix names nobody");
        assert_eq!(producer.owns(own), Some(true));
        let mut other = own;
        other[15] = 6;
        assert_eq!(producer.owns(other), Some(false));
        let mut named = [0; 16];
        named[..6].copy_from_slice(&group);
        assert_eq!(producer.owns(named), Some(false), "a MAC address is no source");
        // Datagrams to it pass over it, too.
        assert_eq!(
            producer.destination(own),
            DestinationVerdict::Take { payload_max: 1400, is_asked: false }
        );
        let mut address = [0; 16];
        address[..6].copy_from_slice(&group);
        // Datagrams pass over it to the next entry.
        assert_eq!(
            producer.destination(address),
            DestinationVerdict::Take { payload_max: 1400, is_asked: false }
        );
    }

    #[test]
    fn nobody_waits_for_a_writer() {
        let (consumer, memfd) = Consumer::create(Layout::new(4, 256, 4, 4).unwrap()).unwrap();
        let mapping = ClientMapping::open(&memfd).unwrap();
        mapping.poke(crate::layout::DESTINATIONS_VERSION, 1);
        assert_eq!(mapping.producer().link(), None);
        assert_eq!(mapping.producer().names([0; 6]), None);
        assert_eq!(mapping.producer().owns([0; 16]), None);
        drop(consumer);
    }
}
