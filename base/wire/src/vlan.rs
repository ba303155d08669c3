// SPDX-License-Identifier: Apache-2.0
//! 802.1Q tag (802.1Q 9.6): priority code point, drop eligible indicator, VLAN identifier.
//!
//! In: what follows an Ethernet header whose EtherType is [`EtherType::VLAN`](crate::EtherType::VLAN): the tag control
//! information and the EtherType of the tagged payload. Out: those fields and the payload. The TPID itself belongs to
//! the header before, so that stacked headers read one after the other.

use core::fmt;
use core::ops::Range;

use crate::error::{Header, WireError};
use crate::ethernet::EtherType;
use crate::octets::{be16, put16, split};

/// Octets of tag control information and the EtherType after it.
pub const HEADER_OCTETS: usize = 4;

/// Where each field lies.
pub mod field {
    use super::Range;
    /// Tag control information.
    pub const TCI: Range<usize> = 0..2;
    /// EtherType of the tagged payload.
    pub const ETHER_TYPE: Range<usize> = 2..4;
}

/// A priority code point, 0 to 7 (802.1Q 6.9.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pcp(u8);

impl Pcp {
    /// The code point `value`, or `None` above 7.
    #[must_use]
    pub const fn new(value: u8) -> Option<Self> {
        if value <= 7 { Some(Self(value)) } else { None }
    }

    /// The value, 0 to 7.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// A VLAN identifier, 0 to 4095 (802.1Q 9.6, table 9-2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vid(u16);

impl Vid {
    /// The null VLAN ID: the tag carries only a priority.
    pub const NULL: Self = Self(0);

    /// The identifier `value`, or `None` above 4095.
    #[must_use]
    pub const fn new(value: u16) -> Option<Self> {
        if value <= 0xfff { Some(Self(value)) } else { None }
    }

    /// The value, 0 to 4095.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }

    /// 4095, which table 9-2 reserves: never configured, never sent in a tag.
    #[must_use]
    pub const fn is_reserved(self) -> bool {
        self.0 == 0xfff
    }
}

impl fmt::Display for Vid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Tag control information.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tci {
    /// Priority code point.
    pub pcp: Pcp,
    /// Drop eligible indicator.
    pub dei: bool,
    /// VLAN identifier.
    pub vid: Vid,
}

impl Tci {
    /// Reads the tag control information from the 16-bit field; every value is valid.
    #[must_use]
    pub const fn from_bits(bits: u16) -> Self {
        Self { pcp: Pcp((bits >> 13) as u8), dei: bits & 0x1000 != 0, vid: Vid(bits & 0xfff) }
    }

    /// The 16-bit field.
    #[must_use]
    pub const fn to_bits(self) -> u16 {
        (self.pcp.0 as u16) << 13 | (self.dei as u16) << 12 | self.vid.0
    }
}

/// Tag control information, EtherType and payload.
#[derive(Clone, Copy, Debug)]
pub struct VlanTag<'a> {
    header: &'a [u8; HEADER_OCTETS],
    payload: &'a [u8],
}

impl<'a> VlanTag<'a> {
    /// Views `octets`, the payload of an Ethernet header with the 802.1Q EtherType.
    ///
    /// # Errors
    /// `Truncated` under 4 octets.
    pub fn new(octets: &'a [u8]) -> Result<Self, WireError> {
        let (header, payload) = split(octets, Header::Vlan)?;
        Ok(Self { header, payload })
    }

    /// Tag control information.
    #[must_use]
    pub fn tci(&self) -> Tci {
        Tci::from_bits(be16(self.header, field::TCI))
    }

    /// EtherType of the payload.
    #[must_use]
    pub fn ether_type(&self) -> EtherType {
        EtherType(be16(self.header, field::ETHER_TYPE))
    }

    /// The tagged payload.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The octets of a tag after its TPID; `ether_type` is that of the tagged payload.
#[must_use]
pub fn header(tci: Tci, ether_type: EtherType) -> [u8; HEADER_OCTETS] {
    let mut header = [0; HEADER_OCTETS];
    put16(&mut header, field::TCI, tci.to_bits());
    put16(&mut header, field::ETHER_TYPE, ether_type.0);
    header
}
