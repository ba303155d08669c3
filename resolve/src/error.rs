// SPDX-License-Identifier: Apache-2.0
//! Why tables cannot be made.

use core::net::IpAddr;

use ktsn_wire::MacAddress;

/// What a table cannot be made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// More than [`crate::limits`] allows.
    #[error("{count} {what}, at most {count_max} are possible")]
    TooMany {
        /// The kind of entry.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many there may be.
        count_max: usize,
    },
    /// A prefix length that the address's family does not know.
    #[error("{address}/{bits} is no address with a prefix length")]
    Bits {
        /// The address.
        address: IpAddr,
        /// The prefix length found.
        bits: u8,
    },
    /// A tunnel end of another family than `local`.
    #[error("tunnel end {vtep} and local address {local} are of different families")]
    TunnelFamily {
        /// The peer's tunnel end.
        vtep: IpAddr,
        /// Ours.
        local: IpAddr,
    },
    /// A group address as a station of a segment.
    #[error("{0} is a group address, no station's")]
    GroupMember(MacAddress),
    /// VLAN identifier 4095 is reserved (802.1Q 9.6).
    #[error("VLAN identifier 4095 is reserved")]
    ReservedVlan,
}

impl TableError {
    pub(crate) fn bound(what: &'static str, count: usize, count_max: usize) -> Result<(), Self> {
        if count <= count_max { Ok(()) } else { Err(Self::TooMany { what, count, count_max }) }
    }
}
