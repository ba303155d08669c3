// SPDX-License-Identifier: Apache-2.0
//! A VXLAN tunnel's headers around finished frames of any content.
//!
//! In: an [`Outer`], and the first octets of a frame; then whole frames. Out: the outer headers in front of the frame, with
//! lengths, identification and checksum. [`crate::HeaderTemplate`] is for datagrams with inner headers that are known
//! beforehand. This module never allocates, panics, or believes a length within the frame.

use crate::checksum;
use crate::ds::DsField;
use crate::error::WireError;
use crate::ethernet::EtherType;
use crate::template::{Ends, OUTER_OCTETS_MAX, Outer, Stack, Writer, put_udp_checksum};
use crate::udp;
use crate::vxlan::{self, source_port_of};

/// The fields of a frame's packet that the tunnel's headers may copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct InnerMarks {
    /// DSCP and ECN.
    pub ds: DsField,
    /// TTL or hop limit.
    pub ttl: u8,
    /// Don't-fragment; IPv6 never fragments on its way.
    pub dont_fragment: bool,
}

/// Octets of the IPv4 and IPv6 headers without options.
const V4_OCTETS: usize = 20;
const V6_OCTETS: usize = 40;

impl InnerMarks {
    /// Reads the packet behind a frame's header; `None` when it is no IP packet.
    #[must_use]
    pub fn of(ether_type: EtherType, packet: &[u8]) -> Option<Self> {
        match (ether_type, packet.first()? >> 4) {
            (EtherType::IPV4, 4) => {
                let header = packet.get(..V4_OCTETS)?;
                Some(Self { ds: DsField(header[1]), ttl: header[8], dont_fragment: header[6] & 0x40 != 0 })
            }
            (EtherType::IPV6, 6) => {
                let header = packet.get(..V6_OCTETS)?;
                let ds = DsField(header[0] << 4 | header[1] >> 4);
                Some(Self { ds, ttl: header[7], dont_fragment: true })
            }
            _ => None,
        }
    }
}

/// The source port of the tunnel (RFC 7348 5): one flow, one port. A UDP datagram gets the port that
/// [`crate::HeaderTemplate`] gives it. A frame without an IP packet gets the port of its addresses and type.
fn source_port(addresses: &[u8], ether_type: EtherType, packet: &[u8]) -> u16 {
    const UDP: u8 = 17;
    const TCP: u8 = 6;
    let ports = |at: usize, protocol: u8| {
        packet.get(at..at + 4).filter(|_| matches!(protocol, UDP | TCP)).unwrap_or(&[0; 4])
    };
    match (ether_type, packet) {
        (EtherType::IPV4, [first, ..]) if first >> 4 == 4 && packet.len() >= V4_OCTETS => {
            let is_whole = packet[6] & 0x3f == 0 && packet[7] == 0;
            let ports = ports(usize::from(first & 0xf) * 4, if is_whole { packet[9] } else { 0 });
            source_port_of(&[&packet[12..20], ports])
        }
        (EtherType::IPV6, [first, ..]) if first >> 4 == 6 && packet.len() >= V6_OCTETS => {
            source_port_of(&[&packet[8..40], ports(V6_OCTETS, packet[6])])
        }
        _ => source_port_of(&[addresses, &ether_type.0.to_be_bytes()]),
    }
}

/// Prebuilt headers of a tunnel around one frame.
#[derive(Clone, Copy, Debug)]
pub struct TunnelTemplate {
    octets: [u8; OUTER_OCTETS_MAX],
    header_octets: usize,
    stack: Stack,
    udp_checksum: bool,
}

impl TunnelTemplate {
    /// Builds the headers for a frame with these `addresses` (destination and source MAC) and this packet in it. What
    /// is no IP packet is not ECN-capable.
    ///
    /// # Errors
    /// `Invalid` flow label.
    pub fn new(
        outer: &Outer,
        addresses: &[u8],
        ether_type: EtherType,
        packet: &[u8],
    ) -> Result<Self, WireError> {
        let inner = InnerMarks::of(ether_type, packet).map_or(DsField(0), |marks| marks.ds);
        let ds = if outer.dscp_inherit { inner } else { outer.network.ds() };
        let network = outer.network.with_ds(ds.encapsulating(inner));
        let ports =
            Ends { source: source_port(addresses, ether_type, packet), destination: outer.vxlan_port };
        let mut writer = Writer::new();
        let stack = writer.stack(outer.ethernet, None, &network, ports)?;
        writer.append(vxlan::header(outer.vni));
        let mut octets = [0; OUTER_OCTETS_MAX];
        octets.copy_from_slice(&writer.octets[..OUTER_OCTETS_MAX]);
        Ok(Self { octets, header_octets: writer.at, stack, udp_checksum: outer.udp_checksum })
    }

    /// Octets of all headers.
    #[must_use]
    pub const fn header_octets(&self) -> usize {
        self.header_octets
    }

    /// Source and destination address of the IPv4 header as one number: what identifications are counted by. `None` for IPv6.
    #[must_use]
    pub fn address_pair(&self) -> Option<u64> {
        self.stack.address_pair(&self.octets)
    }

    /// Writes the headers into the first octets of `frame`, in front of the inner frame that lies there already.
    /// `identification` is that of an IPv4 header. `None` when there is no room,
    /// or the frame is longer than the length fields can say.
    #[must_use]
    pub fn write_before(&self, identification: u16, frame: &mut [u8]) -> Option<()> {
        let udp_octets = frame.len().checked_sub(self.stack.udp_at)?;
        if udp_octets > self.stack.payload_octets_max() + udp::HEADER_OCTETS
            || frame.len() < self.header_octets
        {
            return None;
        }
        let udp_octets = u16::try_from(udp_octets).ok()?;
        frame.get_mut(..self.header_octets)?.copy_from_slice(self.octets.get(..self.header_octets)?);
        self.stack.finish_lengths(frame, udp_octets, identification);
        if self.udp_checksum {
            let payload = frame.get(self.stack.udp_at + udp::HEADER_OCTETS..)?;
            let sum =
                u32::from(self.stack.udp_sum) + 2 * u32::from(udp_octets) + u32::from(checksum::sum(payload));
            put_udp_checksum(frame, self.stack.udp_at, sum);
        }
        Some(())
    }
}
