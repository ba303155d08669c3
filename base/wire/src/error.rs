// SPDX-License-Identifier: Apache-2.0
//! Why octets are not the header they claim to be, or a header can't be written.
//!
//! In: what a parser or writer found. Out: one closed enum that names header and field. It never holds
//! octets of the frame: errors are counted and logged, frames are not.

use core::fmt;

/// The header an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// Ethernet (802.3 3.1.1).
    Ethernet,
    /// 802.1Q tag (802.1Q 9.3).
    Vlan,
    /// IPv4 (RFC 791 3.1).
    Ipv4,
    /// IPv6 (RFC 8200 3).
    Ipv6,
    /// An IPv6 extension header (RFC 8200 4).
    Ipv6Extension,
    /// UDP (RFC 768).
    Udp,
    /// VXLAN (RFC 7348 5).
    Vxlan,
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "ethernet",
            Self::Vlan => "802.1Q tag",
            Self::Ipv4 => "ipv4",
            Self::Ipv6 => "ipv6",
            Self::Ipv6Extension => "ipv6 extension header",
            Self::Udp => "udp",
            Self::Vxlan => "vxlan",
        })
    }
}

/// Why a view, a `parse` or an `emit` refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum WireError {
    /// The input ends before the header, or before what the header's length field promises.
    #[error("{header}: {have_octets} octets where {need_octets} are needed")]
    Truncated {
        /// The header that is cut off.
        header: Header,
        /// Octets that it needs, counted from its own start.
        need_octets: usize,
        /// Octets that are there.
        have_octets: usize,
    },
    /// The output buffer is too small.
    #[error("{header}: no room to write {need_octets} octets into {have_octets}")]
    NoRoom {
        /// The header that was to be written.
        header: Header,
        /// Octets that it needs.
        need_octets: usize,
        /// Octets that the buffer has.
        have_octets: usize,
    },
    /// A field holds a value that its standard forbids.
    #[error("{header}: invalid {field}")]
    Invalid {
        /// The header.
        header: Header,
        /// The field, in the standard's words.
        field: &'static str,
    },
    /// The payload is longer than the header's length field can say.
    #[error("{header}: {octets} octets exceed the length field")]
    TooLong {
        /// The header whose length field is too narrow.
        header: Header,
        /// Octets that were to be carried.
        octets: usize,
    },
    /// The checksum does not agree with the octets.
    #[error("{header}: checksum does not match")]
    Checksum {
        /// The header.
        header: Header,
    },
    /// A valid header that carries something this crate does not walk into.
    #[error("{header}: carries protocol {protocol:#06x}")]
    OtherProtocol {
        /// The header.
        header: Header,
        /// Its EtherType, IPv4 protocol or IPv6 next header.
        protocol: u16,
    },
    /// A fragment: its UDP header or a part of its payload is in another packet.
    #[error("{header}: fragment")]
    Fragment {
        /// The header that says so.
        header: Header,
    },
}

impl WireError {
    /// `header` needs `need_octets`, and only `have_octets` are there.
    pub(crate) const fn truncated(header: Header, need_octets: usize, have_octets: usize) -> Self {
        Self::Truncated { header, need_octets, have_octets }
    }
}
