// SPDX-License-Identifier: Apache-2.0
//! The octet that IPv4 calls type of service and IPv6 traffic class: DSCP and ECN.
//!
//! In and out: one octet. The name keeps it apart from 802.1Q's traffic class.

/// The ECN field: the low two bits (RFC 3168 5).
const ECN: u8 = 0b11;
/// Congestion experienced, and one of the two codepoints of a sender that reacts to it.
const CE: u8 = 0b11;
const ECT_0: u8 = 0b10;

/// Differentiated services field (RFC 2474 3) with its ECN bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DsField(pub u8);

impl DsField {
    /// The outer field of a tunnel: this DSCP, and the inner packet's ECN, CE as ECT(0) (RFC 3168 9.1.1, full functionality), as
    /// Linux's VXLAN device has it. RFC 6040 4.1 would keep CE; what arrives behind the tunnel is the same.
    #[must_use]
    pub const fn encapsulating(self, inner: Self) -> Self {
        let ecn = match inner.0 & ECN {
            CE => ECT_0,
            ecn => ecn,
        };
        Self(self.0 & !ECN | ecn)
    }
}
