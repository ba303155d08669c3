// SPDX-License-Identifier: Apache-2.0
//! The octet that IPv4 calls type of service and IPv6 traffic class: DSCP and ECN.
//!
//! In and out: one octet. The name keeps it apart from 802.1Q's traffic class.

/// Explicit congestion notification (RFC 3168 5), the low two bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ecn {
    /// Not ECN-capable.
    NotEct,
    /// ECN-capable, ECT(1).
    Ect1,
    /// ECN-capable, ECT(0).
    Ect0,
    /// Congestion experienced.
    Ce,
}

/// Differentiated services field (RFC 2474 3) with its ECN bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DsField(pub u8);

impl DsField {
    /// Of a DSCP (its low six bits are used) and an ECN code point.
    #[must_use]
    pub const fn new(dscp: u8, ecn: Ecn) -> Self {
        let ecn = match ecn {
            Ecn::NotEct => 0b00,
            Ecn::Ect1 => 0b01,
            Ecn::Ect0 => 0b10,
            Ecn::Ce => 0b11,
        };
        Self((dscp & 0x3f) << 2 | ecn)
    }

    /// The DSCP, 0 to 63.
    #[must_use]
    pub const fn dscp(self) -> u8 {
        self.0 >> 2
    }

    /// The ECN code point.
    #[must_use]
    pub const fn ecn(self) -> Ecn {
        match self.0 & 0b11 {
            0b00 => Ecn::NotEct,
            0b01 => Ecn::Ect1,
            0b10 => Ecn::Ect0,
            _ => Ecn::Ce,
        }
    }

    /// The outer field of a tunnel: this DSCP, and the inner packet's ECN (RFC 6040 4.1, normal mode). Linux's VXLAN
    /// device still turns CE into ECT(0) there (RFC 3168 9.1.1); what arrives behind the tunnel is the same.
    #[must_use]
    pub const fn encapsulating(self, inner: Self) -> Self {
        Self::new(self.dscp(), inner.ecn())
    }
}
