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
/// No address lies in a prefix of this length: datagrams never match an entry that names a MAC address.
pub(crate) const NO_PREFIX: u8 = 255;

/// Frames of packet sockets are taken.
const SERVED: u16 = 1;
/// Only listed destinations are.
const LISTED: u16 = 2;
/// The attachment has a VLAN of its own.
const VLAN: u16 = 4;

/// What the daemon says about the interface that packet sockets send on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// Whether their frames are taken at all; the rest holds only then.
    pub is_served: bool,
    /// Index of the interface in its namespace.
    pub if_index: u32,
    /// Its MAC address.
    pub source: [u8; 6],
    /// Only destinations of the table are taken: its prefixes for IP, its MAC addresses for everything.
    pub is_listed: bool,
    /// The attachment's VLAN: frames that bring a tag must name it, or VID 0.
    pub vlan: Option<u16>,
}

impl LinkFacts {
    pub(crate) const fn to_words(self) -> [u64; 2] {
        let [a, b, c, d, e, f] = self.source;
        let served = if self.is_served { SERVED } else { 0 };
        let listed = if self.is_listed { LISTED } else { 0 };
        let (has_vlan, vlan) = match self.vlan {
            Some(vlan) => (VLAN, vlan),
            None => (0, 0),
        };
        let [low, high] = (served | listed | has_vlan).to_le_bytes();
        [u64::from_le_bytes([a, b, c, d, e, f, low, high]), self.if_index as u64 | (vlan as u64) << 32]
    }

    const fn from_words(words: [u64; 2]) -> Self {
        let [a, b, c, d, e, f, low, high] = words[0].to_le_bytes();
        let flags = u16::from_le_bytes([low, high]);
        Self {
            is_served: flags & SERVED != 0,
            if_index: words[1] as u32,
            source: [a, b, c, d, e, f],
            is_listed: flags & LISTED != 0,
            vlan: if flags & VLAN != 0 { Some((words[1] >> 32) as u16) } else { None },
        }
    }
}

/// Reads under the lock of the destination table; `None` when it stays unreadable.
#[inline]
fn stable<T>(words: &impl Words, read: impl Fn() -> T) -> Option<T> {
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
    let wanted = entry_word(address);
    stable(words, || {
        for index in 0..layout.destinations_count() {
            let Some(at) = layout.destination(index) else { break };
            match (words.load64(at.wrapping_add(16), Relaxed) >> 8) as u8 {
                0 => break,
                NAMED if words.load64(at, Relaxed) == wanted => return true,
                _ => {}
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
            is_listed: true,
            vlan: Some(7),
        }
    }

    #[test]
    fn words_follow_the_page() {
        assert_eq!(facts().to_words(), [0x0007_0500_0000_0002, 0x0000_0007_0102_0304]);
        assert_eq!(LinkFacts::from_words(facts().to_words()), facts());
        assert_eq!(LinkFacts::default().to_words(), [0, 0]);
        let plain = LinkFacts { vlan: None, is_listed: false, ..facts() };
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
        consumer.set_destinations(&[Destination::named(group), prefix]).unwrap();
        consumer.set_link(&facts());
        assert_eq!(producer.link(), Some(facts()));
        assert_eq!(producer.names(group), Some(true));
        assert_eq!(producer.names([0x01, 0x00, 0x5e, 0, 0, 2]), Some(false));
        assert_eq!(producer.names([0; 6]), Some(false), "a prefix names nobody");
        let mut address = [0; 16];
        address[..6].copy_from_slice(&group);
        // Datagrams pass over it to the next entry.
        assert_eq!(producer.destination(address), DestinationVerdict::Take { payload_max: 1400 });
    }

    #[test]
    fn nobody_waits_for_a_writer() {
        let (consumer, memfd) = Consumer::create(Layout::new(4, 256, 4, 4).unwrap()).unwrap();
        let mapping = ClientMapping::open(&memfd).unwrap();
        mapping.poke(crate::layout::DESTINATIONS_VERSION, 1);
        assert_eq!(mapping.producer().link(), None);
        assert_eq!(mapping.producer().names([0; 6]), None);
        drop(consumer);
    }
}
