// SPDX-License-Identifier: Apache-2.0
//! IPv4 header (RFC 791 3.1), options included.
//!
//! In: what follows an IPv4 EtherType. Out: the fields and the payload, cut to the total length (the rest is Ethernet
//! padding). The view checks lengths; [`Ipv4Repr::parse`] checks the header checksum too. Fragments are recognised,
//! never put together. Options are carried as octets, never acted on.

use core::net::Ipv4Addr;
use core::ops::Range;

use crate::checksum;
use crate::ds::DsField;
use crate::error::{Header, WireError};
use crate::octets::{array, be16, put16, split};

/// Octets of a header without options.
pub const HEADER_OCTETS: usize = 20;
/// Most octets of options: the header length field counts up to fifteen 32-bit words.
pub const OPTIONS_OCTETS_MAX: usize = 40;
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

    /// Identification.
    #[must_use]
    pub fn identification(&self) -> u16 {
        be16(self.header, field::IDENTIFICATION)
    }

    /// The don't-fragment flag.
    #[must_use]
    pub fn dont_fragment(&self) -> bool {
        be16(self.header, field::FLAGS_FRAGMENT) & DONT_FRAGMENT != 0
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

    /// Not a whole datagram.
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

    /// The header's fields.
    #[must_use]
    pub fn repr(&self) -> Ipv4Repr {
        Ipv4Repr {
            source: self.source(),
            destination: self.destination(),
            protocol: self.protocol(),
            ttl: self.ttl(),
            ds: self.ds(),
            identification: self.identification(),
            dont_fragment: self.dont_fragment(),
            more_fragments: self.more_fragments(),
            fragment_offset: self.fragment_offset(),
            options: Ipv4Options::of_header(self.options()),
            payload_octets: self.total_length() - self.header.len() as u16,
        }
    }
}

/// Options of up to 40 octets, a multiple of four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Options {
    octets: [u8; OPTIONS_OCTETS_MAX],
    octets_count: u8,
}

impl Ipv4Options {
    /// No options.
    pub const NONE: Self = Self { octets: [0; OPTIONS_OCTETS_MAX], octets_count: 0 };

    /// The given octets, already padded.
    ///
    /// # Errors
    /// `Invalid` over 40 octets or when not a multiple of four.
    pub fn new(octets: &[u8]) -> Result<Self, WireError> {
        if octets.len() > OPTIONS_OCTETS_MAX || !octets.len().is_multiple_of(4) {
            return Err(WireError::Invalid { header: Header::Ipv4, field: "options" });
        }
        Ok(Self::of_header(octets))
    }

    /// The options as octets.
    #[must_use]
    pub fn octets(&self) -> &[u8] {
        &self.octets[..usize::from(self.octets_count)]
    }

    /// Of octets whose count the header length field has already bounded.
    fn of_header(octets: &[u8]) -> Self {
        let mut this = Self::NONE;
        this.octets[..octets.len()].copy_from_slice(octets);
        this.octets_count = octets.len() as u8;
        this
    }
}

/// The fields of an IPv4 header. Total length, header length and checksum follow from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ipv4Repr {
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Type of service.
    pub ds: DsField,
    /// Identification.
    pub identification: u16,
    /// Don't fragment.
    pub dont_fragment: bool,
    /// More fragments follow.
    pub more_fragments: bool,
    /// Fragment offset in units of eight octets, at most 8191.
    pub fragment_offset: u16,
    /// Options.
    pub options: Ipv4Options,
    /// Octets of payload.
    pub payload_octets: u16,
}

impl Ipv4Repr {
    /// Reads the header at the start of `octets`, which must hold the whole packet.
    ///
    /// # Errors
    /// Those of [`Ipv4Packet::new`], and `Checksum`.
    pub fn parse(octets: &[u8]) -> Result<Self, WireError> {
        let packet = Ipv4Packet::new(octets)?;
        if !packet.is_checksum_right() {
            return Err(WireError::Checksum { header: Header::Ipv4 });
        }
        Ok(packet.repr())
    }

    /// Octets of the header with its options.
    #[must_use]
    pub fn header_octets(&self) -> usize {
        HEADER_OCTETS + self.options.octets().len()
    }

    /// Writes the header with its checksum; returns its octets.
    ///
    /// # Errors
    /// `NoRoom`, `TooLong` when header and payload exceed 65,535 octets, `Invalid` fragment offset.
    pub fn emit(&self, out: &mut [u8]) -> Result<usize, WireError> {
        let (header_octets, have_octets) = (self.header_octets(), out.len());
        let total_octets = header_octets + usize::from(self.payload_octets);
        let total_length = u16::try_from(total_octets)
            .map_err(|_| WireError::TooLong { header: Header::Ipv4, octets: total_octets })?;
        if self.fragment_offset > FRAGMENT_OFFSET {
            return Err(WireError::Invalid { header: Header::Ipv4, field: "fragment offset" });
        }
        let header = out.get_mut(..header_octets).ok_or(WireError::NoRoom {
            header: Header::Ipv4,
            need_octets: header_octets,
            have_octets,
        })?;
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 }
            | if self.more_fragments { MORE_FRAGMENTS } else { 0 };
        header[field::VERSION_IHL] = 4 << 4 | (header_octets / 4) as u8;
        header[field::DS] = self.ds.0;
        put16(header, field::TOTAL_LENGTH, total_length);
        put16(header, field::IDENTIFICATION, self.identification);
        put16(header, field::FLAGS_FRAGMENT, flags | self.fragment_offset);
        header[field::TTL] = self.ttl;
        header[field::PROTOCOL] = self.protocol;
        put16(header, field::CHECKSUM, 0);
        header[field::SOURCE].copy_from_slice(&self.source.octets());
        header[field::DESTINATION].copy_from_slice(&self.destination.octets());
        header[HEADER_OCTETS..].copy_from_slice(self.options.octets());
        let checksum = !checksum::sum(header);
        put16(header, field::CHECKSUM, checksum);
        Ok(header_octets)
    }
}
