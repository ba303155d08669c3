// SPDX-License-Identifier: Apache-2.0
//! The Internet checksum: the one's complement of the one's complement sum of 16-bit words (RFC 1071).
//!
//! In: octets, piece by piece, each piece of any length. Out: the value for the header's checksum field.
//! It sums eight octets at a time in the machine's own byte order and swaps once at the end, which RFC 1071 2(B)
//! shows to be the same sum. It never looks at fields: the caller decides what the checksum field holds.

use core::net::{Ipv4Addr, Ipv6Addr};

/// A running one's complement sum.
///
/// ```
/// let mut checksum = ktsn_wire::Checksum::new();
/// checksum.add(&[0x00, 0x01, 0xf2]);
/// checksum.add(&[0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
/// assert_eq!(checksum.finish(), !0xddf2); // RFC 1071 3
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Checksum {
    /// Sum of 16-bit big-endian words, not folded. Every addition is below 2^17, so it can't overflow in practice.
    sum: u64,
    /// An odd count of octets was added: the next octet is the low half of a word.
    odd: bool,
}

impl Checksum {
    /// The sum of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { sum: 0, odd: false }
    }

    /// The IPv4 pseudo header (RFC 768): `octets` is the length of the UDP header and payload.
    #[must_use]
    pub fn pseudo_v4(source: Ipv4Addr, destination: Ipv4Addr, protocol: u8, octets: u16) -> Self {
        let mut this = Self::new();
        this.add(&source.octets());
        this.add(&destination.octets());
        this.add_u16(u16::from(protocol));
        this.add_u16(octets);
        this
    }

    /// The IPv6 pseudo header (RFC 8200 8.1): `octets` is the length of the upper-layer header and payload.
    #[must_use]
    pub fn pseudo_v6(source: Ipv6Addr, destination: Ipv6Addr, next_header: u8, octets: u32) -> Self {
        let mut this = Self::new();
        this.add(&source.octets());
        this.add(&destination.octets());
        this.add(&octets.to_be_bytes());
        this.add_u16(u16::from(next_header));
        this
    }

    /// Adds `octets`, which follow directly on those added before.
    pub fn add(&mut self, octets: &[u8]) {
        let sum = sum(octets);
        // After an odd count every octet of this piece sits in the other half of its word (RFC 1071 2(B)).
        self.sum += u64::from(if self.odd { sum.swap_bytes() } else { sum });
        self.odd ^= octets.len() % 2 == 1;
    }

    /// Adds a 16-bit field.
    pub fn add_u16(&mut self, field: u16) {
        self.sum += u64::from(if self.odd { field.swap_bytes() } else { field });
    }

    /// The folded sum, not complemented: 0xffff over octets that include their own right checksum.
    #[must_use]
    pub const fn folded(self) -> u16 {
        fold(self.sum)
    }

    /// The checksum field's value.
    #[must_use]
    pub const fn finish(self) -> u16 {
        !self.folded()
    }
}

/// The sum's 16-bit value with all carries added back in.
pub(crate) const fn fold(mut sum: u64) -> u16 {
    sum = (sum & 0xffff_ffff) + (sum >> 32); // ≤ 33 bits
    sum = (sum & 0xffff) + (sum >> 16); // ≤ 18 bits
    sum = (sum & 0xffff) + (sum >> 16); // ≤ 17 bits
    sum = (sum & 0xffff) + (sum >> 16); // ≤ 16 bits: the carry of the line before leaves at most 2 behind
    sum as u16
}

/// The folded sum of the big-endian words of `octets`, an odd last octet padded with zero.
pub(crate) fn sum(octets: &[u8]) -> u16 {
    // Two 32-bit halves are added per step: a block of this size can't overflow the 64-bit sum by far.
    const BLOCK_OCTETS: usize = 1 << 16;
    let mut total: u64 = 0;
    for block in octets.chunks(BLOCK_OCTETS) {
        total += u64::from(fold(sum_block(block)));
    }
    u16::from_be(fold(total))
}

/// The sum of one block in the machine's byte order, not folded.
fn sum_block(block: &[u8]) -> u64 {
    let (words, rest) = block.as_chunks::<8>();
    let mut sum: u64 = 0;
    for word in words {
        let word = u64::from_ne_bytes(*word);
        sum += (word & 0xffff_ffff) + (word >> 32);
    }
    let (pairs, last) = rest.as_chunks::<2>();
    for pair in pairs {
        sum += u64::from(u16::from_ne_bytes(*pair));
    }
    if let [octet] = last {
        sum += u64::from(u16::from_ne_bytes([*octet, 0]));
    }
    sum
}
