// SPDX-License-Identifier: Apache-2.0
//! Ethernet header (802.3 3.1.1): destination, source, EtherType.
//!
//! In: a frame without preamble and frame check sequence, as AF_PACKET and AF_XDP show it. Out: its addresses,
//! EtherType and payload. A value under 0x0600 in the EtherType's place is an LLC length (802.3 3.2.6) and is handed
//! out as it is: nothing here reads LLC.

use core::fmt;
use core::ops::Range;
use core::str::FromStr;

use crate::error::{Header, WireError};
use crate::octets::{array, be16, put16, split};

/// Octets of the header.
pub const HEADER_OCTETS: usize = 14;

/// Where each field lies.
pub mod field {
    use super::Range;
    /// Destination address.
    pub const DESTINATION: Range<usize> = 0..6;
    /// Source address.
    pub const SOURCE: Range<usize> = 6..12;
    /// EtherType or length.
    pub const ETHER_TYPE: Range<usize> = 12..14;
}

/// A 48-bit MAC address (802-2014 8.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// All stations.
    pub const BROADCAST: Self = Self([0xff; 6]);
    /// All zeros: no station has it; Linux's tables mean "none" or "any" by it.
    pub const ZERO: Self = Self([0; 6]);

    /// A group address, broadcast included (the I/G bit).
    #[must_use]
    pub const fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// The address of all stations.
    #[must_use]
    pub fn is_broadcast(self) -> bool {
        self == Self::BROADCAST
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// Text that is not six two-digit hexadecimal octets joined by `:` or `-`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("a MAC address has six two-digit hexadecimal octets, as in 02:00:5e:10:00:01")]
pub struct MacAddressError;

impl FromStr for MacAddress {
    type Err = MacAddressError;

    fn from_str(text: &str) -> Result<Self, MacAddressError> {
        let separator = if text.contains('-') { '-' } else { ':' };
        let mut octets = [0; 6];
        let mut parts = text.split(separator);
        for octet in &mut octets {
            let part = parts.next().ok_or(MacAddressError)?;
            // from_str_radix alone would take "+1".
            if part.len() != 2 || !part.bytes().all(|b| b.is_ascii_hexdigit()) {
                return Err(MacAddressError);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| MacAddressError)?;
        }
        if parts.next().is_some() { Err(MacAddressError) } else { Ok(Self(octets)) }
    }
}

/// An EtherType (802.3 3.2.6 b).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: Self = Self(0x0800);
    /// ARP.
    pub const ARP: Self = Self(0x0806);
    /// 802.1Q customer tag (802.1Q 9.5).
    pub const VLAN: Self = Self(0x8100);
    /// IPv6.
    pub const IPV6: Self = Self(0x86dd);
}

impl fmt::Display for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.0)
    }
}

/// A frame of at least a header.
#[derive(Clone, Copy, Debug)]
pub struct EthernetFrame<'a> {
    header: &'a [u8; HEADER_OCTETS],
    payload: &'a [u8],
}

impl<'a> EthernetFrame<'a> {
    /// Views `octets` as a frame.
    ///
    /// # Errors
    /// `Truncated` under 14 octets.
    pub fn new(octets: &'a [u8]) -> Result<Self, WireError> {
        let (header, payload) = split(octets, Header::Ethernet)?;
        Ok(Self { header, payload })
    }

    /// Destination address.
    #[must_use]
    pub fn destination(&self) -> MacAddress {
        MacAddress(array(self.header, field::DESTINATION))
    }

    /// Source address.
    #[must_use]
    pub fn source(&self) -> MacAddress {
        MacAddress(array(self.header, field::SOURCE))
    }

    /// EtherType; [`EtherType::VLAN`] when an 802.1Q tag follows.
    #[must_use]
    pub fn ether_type(&self) -> EtherType {
        EtherType(be16(self.header, field::ETHER_TYPE))
    }

    /// Everything after the EtherType, padding included.
    #[must_use]
    pub const fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The octets of a header.
#[must_use]
pub fn header(destination: MacAddress, source: MacAddress, ether_type: EtherType) -> [u8; HEADER_OCTETS] {
    let mut header = [0; HEADER_OCTETS];
    header[field::DESTINATION].copy_from_slice(&destination.0);
    header[field::SOURCE].copy_from_slice(&source.0);
    put16(&mut header, field::ETHER_TYPE, ether_type.0);
    header
}
