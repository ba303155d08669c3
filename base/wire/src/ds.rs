// SPDX-License-Identifier: Apache-2.0
//! The octet that IPv4 calls type of service and IPv6 traffic class: DSCP and ECN.
//!
//! In and out: one octet. The name keeps it apart from 802.1Q's traffic class.

/// The ECN field: the low two bits (RFC 3168 5).
const ECN: u8 = 0b11;

/// Differentiated services field (RFC 2474 3) with its ECN bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DsField(pub u8);

impl DsField {
    /// The outer field of a tunnel: this DSCP, and the inner packet's ECN (RFC 6040 4.1, normal mode). Linux's VXLAN
    /// device still turns CE into ECT(0) there (RFC 3168 9.1.1); what arrives behind the tunnel is the same.
    #[must_use]
    pub const fn encapsulating(self, inner: Self) -> Self {
        Self(self.0 & !ECN | inner.0 & ECN)
    }
}
