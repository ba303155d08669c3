// SPDX-License-Identifier: Apache-2.0
//! IPv6 header (RFC 8200 3).
//!
//! In: what follows an IPv6 EtherType. Out: the fields and the payload, cut to the payload length.
//! Extension headers are walked only as far as finding the upper layer needs ([`Ipv6Packet::upper_layer`]):
//! hop-by-hop options, routing and destination options are skipped by their length, a fragment header is passed if
//! it is "atomic" (RFC 6946) and refused otherwise. Their contents are never looked at: the checksum of a packet with
//! an unfinished routing header (segments left) is not verifiable here and shows as wrong. Authentication, ESP and
//! everything else end the walk. Jumbograms (RFC 2675) are not read: their payload length 0 shows an empty packet.

use core::net::Ipv6Addr;
use core::ops::Range;

use crate::ds::DsField;
use crate::error::{Header, WireError};
use crate::octets::{array, be16, split};

/// Octets of the fixed header.
pub const HEADER_OCTETS: usize = 40;
/// The next header number of UDP.
pub const NEXT_HEADER_UDP: u8 = 17;
/// Most extension headers that are walked: RFC 8200 4.1 orders seven kinds, each at most twice; more is an attack.
pub const EXTENSION_HEADERS_MAX: usize = 8;

/// Where each field lies.
pub mod field {
    use super::Range;
    /// Version (4 bits), traffic class (8), flow label (20).
    pub const VERSION_DS_FLOW: Range<usize> = 0..4;
    /// Payload length, extension headers included.
    pub const PAYLOAD_LENGTH: Range<usize> = 4..6;
    /// Next header.
    pub const NEXT_HEADER: usize = 6;
    /// Hop limit.
    pub const HOP_LIMIT: usize = 7;
    /// Source address.
    pub const SOURCE: Range<usize> = 8..24;
    /// Destination address.
    pub const DESTINATION: Range<usize> = 24..40;
}

const FLOW_LABEL: u32 = 0x000f_ffff;

/// Next header values of the extension headers that are walked.
mod extension {
    pub(super) const HOP_BY_HOP: u8 = 0;
    pub(super) const ROUTING: u8 = 43;
    pub(super) const FRAGMENT: u8 = 44;
    pub(super) const DESTINATION: u8 = 60;
    /// Every extension header is a multiple of this.
    pub(super) const UNIT_OCTETS: usize = 8;
}

/// A packet whose payload length agrees with its octets.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6Packet<'a> {
    header: &'a [u8; HEADER_OCTETS],
    payload: &'a [u8],
}

impl<'a> Ipv6Packet<'a> {
    /// Views `octets` as a packet; octets after its payload length are left out.
    ///
    /// # Errors
    /// `Truncated`, or `Invalid` version.
    pub fn new(octets: &'a [u8]) -> Result<Self, WireError> {
        let (header, rest) = split::<HEADER_OCTETS>(octets, Header::Ipv6)?;
        if header[0] >> 4 != 6 {
            return Err(WireError::Invalid { header: Header::Ipv6, field: "version" });
        }
        let payload_octets = usize::from(be16(header, field::PAYLOAD_LENGTH));
        let payload = rest.get(..payload_octets).ok_or(WireError::truncated(
            Header::Ipv6,
            HEADER_OCTETS + payload_octets,
            octets.len(),
        ))?;
        Ok(Self { header, payload })
    }

    fn first_word(&self) -> u32 {
        u32::from_be_bytes(array(self.header, field::VERSION_DS_FLOW))
    }

    /// Traffic class.
    #[must_use]
    pub fn ds(&self) -> DsField {
        DsField((self.first_word() >> 20) as u8)
    }

    /// Flow label, 20 bits.
    #[must_use]
    pub fn flow_label(&self) -> u32 {
        self.first_word() & FLOW_LABEL
    }

    /// Next header of the fixed header.
    #[must_use]
    pub fn next_header(&self) -> u8 {
        self.header[field::NEXT_HEADER]
    }

    /// Hop limit.
    #[must_use]
    pub fn hop_limit(&self) -> u8 {
        self.header[field::HOP_LIMIT]
    }

    /// Source address.
    #[must_use]
    pub fn source(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.header, field::SOURCE))
    }

    /// Destination address.
    #[must_use]
    pub fn destination(&self) -> Ipv6Addr {
        Ipv6Addr::from(array::<16>(self.header, field::DESTINATION))
    }

    /// What follows the fixed header, extension headers included.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// The first next header that is not a walked extension, and its octets.
    ///
    /// # Errors
    /// `Truncated` extension header, `Invalid` when there are more than [`EXTENSION_HEADERS_MAX`], `Fragment`.
    pub fn upper_layer(&self) -> Result<(u8, &'a [u8]), WireError> {
        let (mut next_header, mut rest) = (self.next_header(), self.payload);
        for _ in 0..=EXTENSION_HEADERS_MAX {
            let octets = match next_header {
                extension::HOP_BY_HOP | extension::ROUTING | extension::DESTINATION => {
                    let (unit, _) = split::<{ extension::UNIT_OCTETS }>(rest, Header::Ipv6Extension)?;
                    (usize::from(unit[1]) + 1) * extension::UNIT_OCTETS
                }
                extension::FRAGMENT => {
                    let (unit, _) = split::<{ extension::UNIT_OCTETS }>(rest, Header::Ipv6Extension)?;
                    // Offset (13 bits), two reserved bits, more-fragments flag.
                    if be16(unit, 2..4) & 0xfff9 != 0 {
                        return Err(WireError::Fragment { header: Header::Ipv6 });
                    }
                    extension::UNIT_OCTETS
                }
                _ => return Ok((next_header, rest)),
            };
            let have_octets = rest.len();
            next_header = rest[0];
            rest =
                rest.get(octets..).ok_or(WireError::truncated(Header::Ipv6Extension, octets, have_octets))?;
        }
        Err(WireError::Invalid { header: Header::Ipv6Extension, field: "count of extension headers" })
    }
}

/// The octets of a UDP packet's header without extension headers, whose payload length is 0.
///
/// # Errors
/// `Invalid` flow label (over 20 bits).
pub fn udp_header(
    source: Ipv6Addr,
    destination: Ipv6Addr,
    hop_limit: u8,
    ds: DsField,
    flow_label: u32,
) -> Result<[u8; HEADER_OCTETS], WireError> {
    if flow_label > FLOW_LABEL {
        return Err(WireError::Invalid { header: Header::Ipv6, field: "flow label" });
    }
    let mut header = [0; HEADER_OCTETS];
    let first_word = 6 << 28 | u32::from(ds.0) << 20 | flow_label;
    header[field::VERSION_DS_FLOW].copy_from_slice(&first_word.to_be_bytes());
    header[field::NEXT_HEADER] = NEXT_HEADER_UDP;
    header[field::HOP_LIMIT] = hop_limit;
    header[field::SOURCE].copy_from_slice(&source.octets());
    header[field::DESTINATION].copy_from_slice(&destination.octets());
    Ok(header)
}
