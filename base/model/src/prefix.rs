// SPDX-License-Identifier: Apache-2.0
//! IP prefixes.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// A network address and the count of its leading bits that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IpPrefix {
    address: IpAddr,
    bits: u8,
}

/// What is wrong with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrefixError {
    /// The text before the slash is no IP address.
    #[error("not an IP address; expected ADDRESS/BITS, for example 10.244.1.0/24")]
    Address,
    /// The text behind the slash is no count of bits, or the count is too large.
    #[error("not a prefix length; expected 0 to 32 (IPv4) or 0 to 128 (IPv6)")]
    Bits,
    /// Bits set behind the prefix.
    #[error("the address has bits set behind the prefix length; clear them or use /32 (/128)")]
    HostBits,
}

impl IpPrefix {
    /// The prefix of `bits` leading bits of `address`; the rest must be zero.
    ///
    /// # Errors
    /// [`PrefixError`] when `bits` is too large or host bits are set.
    pub fn new(address: IpAddr, bits: u8) -> Result<Self, PrefixError> {
        let prefix = Self::covering(address, bits)?;
        if prefix.address == address { Ok(prefix) } else { Err(PrefixError::HostBits) }
    }
    /// The prefix of `bits` bits that `address` lies in.
    ///
    /// # Errors
    /// [`PrefixError::Bits`] when `bits` is too large.
    pub fn covering(address: IpAddr, bits: u8) -> Result<Self, PrefixError> {
        let address = match address {
            IpAddr::V4(a) if bits <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(a.to_bits() & mask))
            }
            IpAddr::V6(a) if bits <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(a.to_bits() & mask))
            }
            _ => return Err(PrefixError::Bits),
        };
        Ok(Self { address, bits })
    }
    /// The prefix that holds one address.
    #[must_use]
    pub fn host(address: IpAddr) -> Self {
        Self { address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }
    /// The network's address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }
    /// Count of leading bits that matter.
    #[must_use]
    pub fn bits(&self) -> u8 {
        self.bits
    }
    /// Whether `address` lies in the prefix (families never mix).
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(net), IpAddr::V4(a)) => {
                (net.to_bits() ^ a.to_bits()).leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(net), IpAddr::V6(a)) => {
                (net.to_bits() ^ a.to_bits()).leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
    /// The prefix as an IPv6 one, IPv4 mapped to `::ffff:0:0/96`.
    #[must_use]
    pub fn mapped(&self) -> (Ipv6Addr, u8) {
        match self.address {
            IpAddr::V4(a) => (a.to_ipv6_mapped(), self.bits + 96),
            IpAddr::V6(a) => (a, self.bits),
        }
    }
}

impl fmt::Display for IpPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for IpPrefix {
    type Err = PrefixError;
    /// `ADDRESS/BITS`, or an address alone for a single host.
    fn from_str(text: &str) -> Result<Self, PrefixError> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Address)?;
        match bits {
            None => Ok(Self::host(address)),
            Some(bits) => Self::new(address, bits.parse().map_err(|_| PrefixError::Bits)?),
        }
    }
}
