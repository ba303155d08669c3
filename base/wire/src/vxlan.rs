// SPDX-License-Identifier: Apache-2.0
//! VXLAN header (RFC 7348 5): flags and the 24-bit network identifier.
//!
//! In: the payload of a UDP datagram to the VXLAN port. Out: the identifier and the inner Ethernet frame.
//! The I flag must be set; the reserved fields are ignored on receipt and sent as zero, as the RFC says. Extensions
//! that reuse reserved bits (group policy, GPE) are not read.

use core::fmt;
use core::ops::Range;

use crate::error::{Header, WireError};
use crate::octets::{array, split};

/// Octets of the header.
pub const HEADER_OCTETS: usize = 8;

/// The lowest source port of a tunnel (RFC 7348 5: the dynamic range).
pub const SOURCE_PORT_MIN: u16 = 49_152;

/// Where each field lies.
pub mod field {
    use super::Range;
    /// Flags.
    pub const FLAGS: usize = 0;
    /// VXLAN network identifier.
    pub const VNI: Range<usize> = 4..7;
}

/// The I flag: the network identifier is valid.
const FLAG_I: u8 = 0x08;

/// A VXLAN network identifier, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vni(u32);

impl Vni {
    /// The identifier `value`, or `None` above 24 bits.
    #[must_use]
    pub const fn new(value: u32) -> Option<Self> {
        if value <= 0x00ff_ffff { Some(Self(value)) } else { None }
    }

    /// The value.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Vni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A VXLAN header and the frame in it.
#[derive(Clone, Copy, Debug)]
pub struct VxlanPacket<'a> {
    header: &'a [u8; HEADER_OCTETS],
    payload: &'a [u8],
}

impl<'a> VxlanPacket<'a> {
    /// Views `octets`, a UDP payload.
    ///
    /// # Errors
    /// `Truncated` under 8 octets, `Invalid` flags without I.
    pub fn new(octets: &'a [u8]) -> Result<Self, WireError> {
        let (header, payload) = split::<HEADER_OCTETS>(octets, Header::Vxlan)?;
        if header[field::FLAGS] & FLAG_I == 0 {
            return Err(WireError::Invalid { header: Header::Vxlan, field: "flags" });
        }
        Ok(Self { header, payload })
    }

    /// Network identifier.
    #[must_use]
    pub fn vni(&self) -> Vni {
        let [a, b, c] = array(self.header, field::VNI);
        Vni(u32::from_be_bytes([0, a, b, c]))
    }

    /// The inner Ethernet frame.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The octets of a header.
#[must_use]
pub const fn header(vni: Vni) -> [u8; HEADER_OCTETS] {
    let [_, high, middle, low] = vni.0.to_be_bytes();
    [FLAG_I, 0, 0, 0, high, middle, low, 0]
}

/// The source port of a tunnel for the flow that `parts` name: a flow keeps its path through the underlay, and different flows spread
/// (RFC 7348 5).
pub(crate) fn source_port_of(parts: &[&[u8]]) -> u16 {
    // FNV-1a. Its halves are mixed, because its low bits are weak.
    let hash = parts
        .iter()
        .flat_map(|part| part.iter())
        .fold(0x811c_9dc5_u32, |hash, octet| (hash ^ u32::from(*octet)).wrapping_mul(0x0100_0193));
    SOURCE_PORT_MIN | ((hash >> 16) ^ hash) as u16
}
