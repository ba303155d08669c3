// SPDX-License-Identifier: Apache-2.0
//! UDP header (RFC 768).
//!
//! In: what follows an IP header with protocol 17. Out: ports, checksum and the payload, cut to the length field.
//! A length of 0 (jumbograms, RFC 2675) is refused. The checksum is verified only on request: a frame tapped inside
//! one machine often carries an unfinished one that the device was to complete.

use core::net::IpAddr;
use core::ops::Range;

use crate::checksum::Checksum;
use crate::error::{Header, WireError};
use crate::ipv4::PROTOCOL_UDP;
use crate::octets::{be16, put16, split};

/// Octets of the header.
pub const HEADER_OCTETS: usize = 8;

/// Where each field lies.
pub mod field {
    use super::Range;
    /// Source port.
    pub const SOURCE_PORT: Range<usize> = 0..2;
    /// Destination port.
    pub const DESTINATION_PORT: Range<usize> = 2..4;
    /// Octets of header and payload.
    pub const LENGTH: Range<usize> = 4..6;
    /// Checksum; 0 means none.
    pub const CHECKSUM: Range<usize> = 6..8;
}

/// What a datagram's checksum says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UdpChecksum {
    /// The field is 0: the sender computed none (over IPv6 only tunnels may, RFC 6935).
    Absent,
    /// The checksum agrees with the octets.
    Right,
    /// The checksum does not agree with the octets.
    Wrong,
}

/// A datagram whose length field agrees with its octets.
#[derive(Clone, Copy, Debug)]
pub struct UdpDatagram<'a> {
    /// Header and payload.
    octets: &'a [u8],
}

impl<'a> UdpDatagram<'a> {
    /// Views `octets` as a datagram; octets after its length are left out.
    ///
    /// # Errors
    /// `Truncated`, or `Invalid` length (under 8).
    pub fn new(octets: &'a [u8]) -> Result<Self, WireError> {
        let (header, _) = split::<HEADER_OCTETS>(octets, Header::Udp)?;
        let length = usize::from(be16(header, field::LENGTH));
        if length < HEADER_OCTETS {
            return Err(WireError::Invalid { header: Header::Udp, field: "length" });
        }
        let datagram = octets.get(..length).ok_or(WireError::truncated(Header::Udp, length, octets.len()))?;
        Ok(Self { octets: datagram })
    }

    /// Source port.
    #[must_use]
    pub fn source_port(&self) -> u16 {
        be16(self.octets, field::SOURCE_PORT)
    }

    /// Destination port.
    #[must_use]
    pub fn destination_port(&self) -> u16 {
        be16(self.octets, field::DESTINATION_PORT)
    }

    /// Octets of header and payload.
    #[must_use]
    pub fn length(&self) -> u16 {
        be16(self.octets, field::LENGTH)
    }

    /// The checksum field; 0 means none.
    #[must_use]
    pub fn checksum(&self) -> u16 {
        be16(self.octets, field::CHECKSUM)
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        &self.octets[HEADER_OCTETS..]
    }

    /// Verifies the checksum against the addresses of the IP header before; addresses of two families are `Wrong`.
    #[must_use]
    pub fn verify(&self, source: IpAddr, destination: IpAddr) -> UdpChecksum {
        if self.checksum() == 0 {
            return UdpChecksum::Absent;
        }
        let Some(mut sum) = pseudo_header(source, destination, self.length()) else {
            return UdpChecksum::Wrong;
        };
        sum.add(self.octets);
        if sum.folded() == 0xffff { UdpChecksum::Right } else { UdpChecksum::Wrong }
    }
}

/// The octets of a header whose length and checksum are 0.
#[must_use]
pub fn header(source_port: u16, destination_port: u16) -> [u8; HEADER_OCTETS] {
    let mut header = [0; HEADER_OCTETS];
    put16(&mut header, field::SOURCE_PORT, source_port);
    put16(&mut header, field::DESTINATION_PORT, destination_port);
    header
}

/// The sum of the pseudo header before a datagram of `length` octets, if both addresses are of one family.
fn pseudo_header(source: IpAddr, destination: IpAddr, length: u16) -> Option<Checksum> {
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            Some(Checksum::pseudo_v4(source, destination, PROTOCOL_UDP, length))
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            Some(Checksum::pseudo_v6(source, destination, PROTOCOL_UDP, u32::from(length)))
        }
        _ => None,
    }
}
