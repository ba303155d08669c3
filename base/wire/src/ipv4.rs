// SPDX-License-Identifier: Apache-2.0
//! IPv4 header (RFC 791 3.1).
//!
//! In: what follows an IPv4 EtherType. Out: the fields and the payload, cut to the total length (the rest is Ethernet
//! padding). The view checks lengths, and the header checksum on request. Fragments are recognised, never put
//! together. Options are shown as octets, never acted on, and never written.

use core::net::Ipv4Addr;
use core::ops::Range;

use crate::checksum;
use crate::ds::DsField;
use crate::error::{Header, WireError};
use crate::octets::{array, be16, put16, split};

/// Octets of a header without options.
pub const HEADER_OCTETS: usize = 20;
/// The protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Where each field lies.
pub mod field {
    use super::Range;
    /// Version (high half) and header length in 32-bit words (low half).
    pub const VERSION_IHL: usize = 0;
    /// Type of service: DSCP and ECN.
    pub const DS: usize = 1;
    /// Total length in octets.
    pub const TOTAL_LENGTH: Range<usize> = 2..4;
    /// Identification.
    pub const IDENTIFICATION: Range<usize> = 4..6;
    /// Flags (high three bits) and fragment offset.
    pub const FLAGS_FRAGMENT: Range<usize> = 6..8;
    /// Time to live.
    pub const TTL: usize = 8;
    /// Protocol.
    pub const PROTOCOL: usize = 9;
    /// Header checksum.
    pub const CHECKSUM: Range<usize> = 10..12;
    /// Source address.
    pub const SOURCE: Range<usize> = 12..16;
    /// Destination address.
    pub const DESTINATION: Range<usize> = 16..20;
}

const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// A packet whose lengths agree with its octets.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4Packet<'a> {
    /// Header with options: 20 to 60 octets.
    header: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Ipv4Packet<'a> {
    /// Views `octets` as a packet; octets after its total length are left out.
    ///
    /// # Errors
    /// `Truncated`, or `Invalid` version, header length (under 20 octets) or total length (under the header's).
    pub fn new(octets: &'a [u8]) -> Result<Self, WireError> {
        let (fixed, _) = split::<HEADER_OCTETS>(octets, Header::Ipv4)?;
        if fixed[field::VERSION_IHL] >> 4 != 4 {
            return Err(WireError::Invalid { header: Header::Ipv4, field: "version" });
        }
        let header_octets = usize::from(fixed[field::VERSION_IHL] & 0xf) * 4;
        if header_octets < HEADER_OCTETS {
            return Err(WireError::Invalid { header: Header::Ipv4, field: "header length" });
        }
        let total_octets = usize::from(be16(fixed, field::TOTAL_LENGTH));
        if total_octets < header_octets {
            return Err(WireError::Invalid { header: Header::Ipv4, field: "total length" });
        }
        let packet = octets.get(..total_octets);
        let packet = packet.ok_or(WireError::truncated(Header::Ipv4, total_octets, octets.len()))?;
        let (header, payload) = packet.split_at(header_octets);
        Ok(Self { header, payload })
    }

    /// Type of service.
    #[must_use]
    pub fn ds(&self) -> DsField {
        DsField(self.header[field::DS])
    }

    /// Octets of header and payload.
    #[must_use]
    pub fn total_length(&self) -> u16 {
        be16(self.header, field::TOTAL_LENGTH)
    }

    /// The more-fragments flag.
    #[must_use]
    pub fn more_fragments(&self) -> bool {
        be16(self.header, field::FLAGS_FRAGMENT) & MORE_FRAGMENTS != 0
    }

    /// Fragment offset in units of eight octets.
    #[must_use]
    pub fn fragment_offset(&self) -> u16 {
        be16(self.header, field::FLAGS_FRAGMENT) & FRAGMENT_OFFSET
    }

    /// True if the packet is a fragment, not a whole datagram.
    #[must_use]
    pub fn is_fragment(&self) -> bool {
        self.more_fragments() || self.fragment_offset() != 0
    }

    /// Time to live.
    #[must_use]
    pub fn ttl(&self) -> u8 {
        self.header[field::TTL]
    }

    /// Protocol of the payload.
    #[must_use]
    pub fn protocol(&self) -> u8 {
        self.header[field::PROTOCOL]
    }

    /// Source address.
    #[must_use]
    pub fn source(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.header, field::SOURCE))
    }

    /// Destination address.
    #[must_use]
    pub fn destination(&self) -> Ipv4Addr {
        Ipv4Addr::from(array::<4>(self.header, field::DESTINATION))
    }

    /// The options' octets, a multiple of four.
    #[must_use]
    pub fn options(&self) -> &'a [u8] {
        &self.header[HEADER_OCTETS..]
    }

    /// What the header carries.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The header checksum is right.
    #[must_use]
    pub fn is_checksum_right(&self) -> bool {
        checksum::sum(self.header) == 0xffff
    }
}

/// The octets of a UDP packet's header without options, whose total length, identification and checksum are 0.
#[must_use]
pub fn udp_header(
    source: Ipv4Addr,
    destination: Ipv4Addr,
    ttl: u8,
    ds: DsField,
    dont_fragment: bool,
) -> [u8; HEADER_OCTETS] {
    let mut header = [0; HEADER_OCTETS];
    header[field::VERSION_IHL] = 4 << 4 | (HEADER_OCTETS / 4) as u8;
    header[field::DS] = ds.0;
    put16(&mut header, field::FLAGS_FRAGMENT, if dont_fragment { DONT_FRAGMENT } else { 0 });
    header[field::TTL] = ttl;
    header[field::PROTOCOL] = PROTOCOL_UDP;
    header[field::SOURCE].copy_from_slice(&source.octets());
    header[field::DESTINATION].copy_from_slice(&destination.octets());
    header
}
