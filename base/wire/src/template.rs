// SPDX-License-Identifier: Apache-2.0
//! Headers built once per destination, frames written from them per datagram.
//!
//! In: a [`TemplateRepr`], once; then payloads. Out: whole frames, from the (outer) destination address to the end of
//! the payload, without padding and check sequence: adapter and device add those.
//! [`HeaderTemplate::write_frame`] is the per-frame path of the daemon. It copies headers and payload, then fixes what
//! depends on the payload. Everything constant is summed when the template is built, so only lengths and payload are
//! summed per frame:
//!
//! ```text
//! inner UDP checksum  = constant (pseudo header, ports) + 2 × UDP length + payload
//! inner IPv4 checksum = constant + total length + identification
//! outer UDP checksum  = constant + 2 × outer UDP length - inner pseudo header's length
//! ```
//!
//! The outer UDP checksum needs no pass over the inner frame: a UDP datagram with its right checksum sums to minus its
//! pseudo header, an IPv4 header to zero. It must never allocate, panic, or read anything but template and payload.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::{self, Checksum};
use crate::ds::DsField;
use crate::error::{Header, WireError};
use crate::ethernet::{self, EtherType, MacAddress};
use crate::frame;
use crate::ipv4::{self, PROTOCOL_UDP};
use crate::ipv6::{self, NEXT_HEADER_UDP};
use crate::octets::put16;
use crate::udp;
use crate::vlan::{self, Tci};
use crate::vxlan::{self, Vni, source_port_of};

/// Most octets of headers: VXLAN over IPv6 around a tagged IPv6 frame.
pub const HEADER_OCTETS_MAX: usize = OUTER_OCTETS_MAX + INNER_OCTETS_MAX;
pub(crate) const OUTER_OCTETS_MAX: usize =
    ethernet::HEADER_OCTETS + ipv6::HEADER_OCTETS + udp::HEADER_OCTETS + vxlan::HEADER_OCTETS;
const INNER_OCTETS_MAX: usize =
    ethernet::HEADER_OCTETS + vlan::HEADER_OCTETS + ipv6::HEADER_OCTETS + udp::HEADER_OCTETS;

/// The network header of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Network {
    /// IPv4 without options.
    V4 {
        /// Source address.
        source: Ipv4Addr,
        /// Destination address.
        destination: Ipv4Addr,
        /// Time to live.
        ttl: u8,
        /// Type of service.
        ds: DsField,
        /// Don't fragment.
        dont_fragment: bool,
    },
    /// IPv6 without extension headers.
    V6 {
        /// Source address.
        source: Ipv6Addr,
        /// Destination address.
        destination: Ipv6Addr,
        /// Hop limit.
        hop_limit: u8,
        /// Traffic class.
        ds: DsField,
        /// Flow label, at most 20 bits.
        flow_label: u32,
    },
}

impl Network {
    /// The DS field.
    #[must_use]
    pub const fn ds(&self) -> DsField {
        match *self {
            Self::V4 { ds, .. } | Self::V6 { ds, .. } => ds,
        }
    }

    /// This header with another DS field.
    #[must_use]
    pub const fn with_ds(mut self, value: DsField) -> Self {
        match &mut self {
            Self::V4 { ds, .. } | Self::V6 { ds, .. } => *ds = value,
        }
        self
    }

    /// Source and destination address.
    #[must_use]
    pub const fn addresses(&self) -> (IpAddr, IpAddr) {
        match *self {
            Self::V4 { source, destination, .. } => (IpAddr::V4(source), IpAddr::V4(destination)),
            Self::V6 { source, destination, .. } => (IpAddr::V6(source), IpAddr::V6(destination)),
        }
    }
}

/// The addresses of an Ethernet header, or the ports of a UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends<T> {
    /// The source.
    pub source: T,
    /// The destination.
    pub destination: T,
}

/// The headers of a VXLAN tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Outer {
    /// Ethernet addresses on the underlay.
    pub ethernet: Ends<MacAddress>,
    /// Network header. Of its DS field only the DSCP counts: the ECN is the inner packet's.
    /// Linux's VXLAN device uses TTL 64 and clears don't-fragment unless configured otherwise.
    pub network: Network,
    /// Take the DSCP from the inner packet as well (`tos inherit` of Linux's device; not its default).
    pub dscp_inherit: bool,
    /// Destination port. The source port is a hash of the inner flow, 49152 to 65535.
    pub vxlan_port: u16,
    /// Network identifier.
    pub vni: Vni,
    /// Compute the outer UDP checksum. Without it the field is 0, which RFC 7348 5 asks for (and RFC 6935 permits over
    /// IPv6, if the other end is set to accept it). Linux's device computes it over both unless `noudpcsum` is set.
    pub udp_checksum: bool,
}

/// What a template is built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TemplateRepr {
    /// The tunnel, or `None` for a plain frame.
    pub outer: Option<Outer>,
    /// Ethernet addresses of the (inner) frame.
    pub ethernet: Ends<MacAddress>,
    /// Tag of the (inner) frame.
    pub vlan: Option<Tci>,
    /// Network header of the (inner) frame.
    pub network: Network,
    /// UDP ports of the (inner) frame.
    pub udp: Ends<u16>,
    /// Compute the UDP checksum of the (inner) frame; else the field is 0 (SO_NO_CHECK, UDP_NO_CHECK6_TX).
    pub udp_checksum: bool,
}

/// The identifications of one frame's IPv4 headers. A packet that may be fragmented needs one of its own (RFC 6864 4.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identifications {
    /// Of the tunnel's header.
    pub outer: u16,
    /// Of the (inner) frame's header.
    pub inner: u16,
}

/// Prebuilt headers with everything constant summed.
#[derive(Clone, Copy, Debug)]
pub struct HeaderTemplate {
    octets: [u8; HEADER_OCTETS_MAX],
    header_octets: usize,
    payload_octets_max: usize,
    /// Where the (inner) frame begins.
    inner_at: usize,
    inner: Stack,
    udp_checksum: bool,
    tunnel: Option<TunnelStack>,
}

/// Where the changing fields of one IP + UDP stack lie, and what its constant fields sum to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stack {
    ip_at: usize,
    pub(crate) udp_at: usize,
    /// Sum of the IPv4 header with total length, identification and checksum zero; `None` for IPv6.
    ipv4_sum: Option<u16>,
    /// Sum of pseudo header and UDP header with both lengths and the checksum zero.
    pub(crate) udp_sum: u16,
}

/// Places and sums of the tunnel's outer headers.
#[derive(Clone, Copy, Debug)]
struct TunnelStack {
    stack: Stack,
    /// Octets between the outer and the inner UDP header's start.
    inner_octets: u16,
    /// Sum of everything constant for the outer UDP checksum, or `None` when that stays 0.
    udp_sum: Option<u16>,
}

impl HeaderTemplate {
    /// Builds the headers.
    ///
    /// # Errors
    /// `Invalid` flow label; `Invalid` when a tag's VLAN identifier is the reserved 4095.
    pub fn new(repr: &TemplateRepr) -> Result<Self, WireError> {
        if repr.vlan.is_some_and(|tci| tci.vid.is_reserved()) {
            return Err(WireError::Invalid { header: Header::Vlan, field: "VLAN identifier" });
        }
        let mut writer = Writer::new();
        let outer = match &repr.outer {
            None => None,
            Some(outer) => {
                let ds = if outer.dscp_inherit { repr.network.ds() } else { outer.network.ds() };
                let network = outer.network.with_ds(ds.encapsulating(repr.network.ds()));
                let ports = Ends { source: flow_port(repr), destination: outer.vxlan_port };
                let stack = writer.stack(outer.ethernet, None, &network, ports)?;
                let vxlan_at = writer.at;
                writer.append(vxlan::header(outer.vni));
                Some((outer, stack, vxlan_at))
            }
        };
        let inner_at = writer.at;
        let inner = writer.stack(repr.ethernet, repr.vlan, &repr.network, repr.udp)?;
        let mut payload_octets_max = inner.payload_octets_max();
        let tunnel = outer.map(|(outer, stack, vxlan_at)| {
            let inner_octets = inner.udp_at - stack.udp_at;
            payload_octets_max = payload_octets_max.min(stack.payload_octets_max() - inner_octets);
            // VXLAN, inner Ethernet and tag; then minus the inner pseudo header; then the IPv6 header (an IPv4 header
            // with its checksum sums to zero). The length fields in the last two cancel, see `outer_sum`.
            let mut sum = Checksum::new();
            sum.add(&writer.octets[vxlan_at..inner.ip_at]);
            if inner.ipv4_sum.is_none() {
                sum.add(&writer.octets[inner.ip_at..inner.udp_at]);
            }
            sum.add_u16(!pseudo_constant(&repr.network).folded());
            sum.add_u16(stack.udp_sum);
            TunnelStack {
                stack,
                inner_octets: inner_octets as u16,
                udp_sum: outer.udp_checksum.then_some(sum.folded()),
            }
        });
        let (octets, header_octets) = (writer.octets, writer.at);
        let udp_checksum = repr.udp_checksum;
        Ok(Self { octets, header_octets, payload_octets_max, inner_at, inner, udp_checksum, tunnel })
    }

    /// Octets of all headers.
    #[must_use]
    pub const fn header_octets(&self) -> usize {
        self.header_octets
    }

    /// Octets in front of the (inner) frame: of the tunnel's headers, if there is one.
    #[must_use]
    pub const fn outer_octets(&self) -> usize {
        self.inner_at
    }

    /// The longest payload that every length field can say. The link's MTU is not known here.
    #[must_use]
    pub const fn payload_octets_max(&self) -> usize {
        self.payload_octets_max
    }

    /// Octets of the frame with a payload of so many octets.
    #[must_use]
    pub const fn frame_octets(&self, payload_octets: usize) -> usize {
        self.header_octets.saturating_add(payload_octets)
    }

    /// Octet times on the link with a payload of so many octets ([`frame::wire_octets`]).
    #[must_use]
    pub fn wire_octets(&self, payload_octets: usize) -> u32 {
        frame::wire_octets(self.frame_octets(payload_octets))
    }

    /// Octets of the service data unit with a payload of so many octets: what follows the outer MAC header and its
    /// tag, unpadded and without check sequence (queueMaxSDU, 802.1Q 8.6.8.4).
    #[must_use]
    pub fn sdu_octets(&self, payload_octets: usize) -> u32 {
        let is_tagged = self.octets.get(12..14) == Some(&[0x81, 0x00]);
        let mac_octets = if is_tagged { 18 } else { 14 };
        u32::try_from(self.frame_octets(payload_octets).saturating_sub(mac_octets)).unwrap_or(u32::MAX)
    }

    /// Destination and VLAN identifier of the outermost MAC header; `None`: no tag, or a priority tag (VLAN 0).
    #[must_use]
    pub fn destination(&self) -> (MacAddress, Option<u16>) {
        let at = |index: usize| self.octets.get(index).copied().unwrap_or(0);
        let vid = u16::from_be_bytes([at(14), at(15)]) & 0xfff;
        let is_tagged = self.octets.get(12..14) == Some(&[0x81, 0x00]);
        (MacAddress(core::array::from_fn(at)), Some(vid).filter(|vid| is_tagged && *vid != 0))
    }

    /// Source address of the (inner) packet.
    #[must_use]
    pub fn source(&self) -> IpAddr {
        let address = |at: usize, index: usize| self.octets.get(at + index).copied().unwrap_or(0);
        let ip_at = self.inner.ip_at;
        if self.inner.ipv4_sum.is_some() {
            IpAddr::V4(core::array::from_fn::<u8, 4, _>(|index| address(ip_at + 12, index)).into())
        } else {
            IpAddr::V6(core::array::from_fn::<u8, 16, _>(|index| address(ip_at + 8, index)).into())
        }
    }

    /// Source and destination address of the (inner) IPv4 header as one number: what identifications are counted by.
    /// `None` for IPv6.
    #[must_use]
    pub fn address_pair(&self) -> Option<u64> {
        self.inner.address_pair(&self.octets)
    }

    /// Source and destination address of the tunnel's IPv4 header as one number; `None`: no tunnel, or over IPv6.
    #[must_use]
    pub fn outer_address_pair(&self) -> Option<u64> {
        self.tunnel.as_ref()?.stack.address_pair(&self.octets)
    }

    /// Writes the frame for `payload` at the start of `out`; returns its octets. Identifications are 0.
    ///
    /// # Errors
    /// `TooLong` payload, `NoRoom`; `out` is untouched then.
    pub fn write_frame(&self, payload: &[u8], out: &mut [u8]) -> Result<usize, WireError> {
        self.write_frame_identified(payload, Identifications::default(), out)
    }

    /// Writes the headers and the payload, with these identifications in the IPv4 headers.
    ///
    /// # Errors
    /// `TooLong` payload, `NoRoom`; `out` is untouched then.
    pub fn write_frame_identified(
        &self,
        payload: &[u8],
        identifications: Identifications,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        if payload.len() > self.payload_octets_max {
            return Err(WireError::TooLong { header: Header::Udp, octets: payload.len() });
        }
        let (frame_octets, have_octets) = (self.header_octets + payload.len(), out.len());
        let Some(frame) = out.get_mut(..frame_octets) else {
            let header = Header::Ethernet;
            return Err(WireError::NoRoom { header, need_octets: frame_octets, have_octets });
        };
        let (header, body) = frame.split_at_mut(self.header_octets);
        header.copy_from_slice(&self.octets[..self.header_octets]);
        body.copy_from_slice(payload);

        // payload_octets_max keeps every length below in 16 bits.
        let udp_octets = (udp::HEADER_OCTETS + payload.len()) as u16;
        self.inner.finish_lengths(header, udp_octets, identifications.inner);
        let sum =
            u32::from(self.inner.udp_sum) + 2 * u32::from(udp_octets) + u32::from(checksum::sum(payload));
        if self.udp_checksum {
            put_udp_checksum(header, self.inner.udp_at, sum);
        }

        if let Some(tunnel) = &self.tunnel {
            let outer_udp_octets = udp_octets + tunnel.inner_octets;
            tunnel.stack.finish_lengths(header, outer_udp_octets, identifications.outer);
            if let Some(outer_sum) = tunnel.udp_sum {
                // Without its checksum the inner datagram sums to that much more.
                let missing = if self.udp_checksum { 0 } else { u32::from(checksum::fold(u64::from(sum))) };
                let sum = u32::from(outer_sum)
                    + 2 * u32::from(outer_udp_octets)
                    + self.inner.outer_sum(udp_octets)
                    + missing;
                put_udp_checksum(header, tunnel.stack.udp_at, sum);
            }
        }
        Ok(frame_octets)
    }
}

impl Stack {
    /// Source and destination address of the IPv4 header among `octets` as one number.
    #[inline]
    pub(crate) fn address_pair(&self, octets: &[u8]) -> Option<u64> {
        let at = self.ip_at + ipv4::field::SOURCE.start;
        let pair = octets.get(at..at + 8).filter(|_| self.ipv4_sum.is_some())?;
        pair.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Writes IP and UDP lengths, identification and IPv4 header checksum.
    #[inline]
    pub(crate) fn finish_lengths(&self, header: &mut [u8], udp_octets: u16, identification: u16) {
        let ip = &mut header[self.ip_at..];
        match self.ipv4_sum {
            Some(sum) => {
                let total_length = ipv4::HEADER_OCTETS as u16 + udp_octets;
                let sum = u32::from(sum) + u32::from(total_length) + u32::from(identification);
                put16(ip, ipv4::field::TOTAL_LENGTH, total_length);
                put16(ip, ipv4::field::IDENTIFICATION, identification);
                put16(ip, ipv4::field::CHECKSUM, !checksum::fold(u64::from(sum)));
            }
            None => put16(ip, ipv6::field::PAYLOAD_LENGTH, udp_octets),
        }
        put16(&mut header[self.udp_at..], udp::field::LENGTH, udp_octets);
    }

    /// What this stack's changing fields add to the checksum of a UDP header around it: minus the length in its
    /// pseudo header, plus the length in its IPv6 header. (Its IPv4 header and its UDP datagram sum to constants.)
    #[inline]
    fn outer_sum(&self, udp_octets: u16) -> u32 {
        if self.ipv4_sum.is_some() { u32::from(!udp_octets) } else { 0 }
    }

    /// The longest UDP payload that the length fields of this stack can say.
    pub(crate) fn payload_octets_max(&self) -> usize {
        let ip_octets = if self.ipv4_sum.is_some() { ipv4::HEADER_OCTETS } else { 0 };
        usize::from(u16::MAX) - ip_octets - udp::HEADER_OCTETS
    }
}

/// Writes a UDP checksum; zero would mean "none", so it is sent as 0xffff (RFC 768, RFC 8200 8.1).
#[inline]
pub(crate) fn put_udp_checksum(header: &mut [u8], udp_at: usize, sum: u32) {
    let checksum = match !checksum::fold(u64::from(sum)) {
        0 => 0xffff,
        checksum => checksum,
    };
    put16(&mut header[udp_at..], udp::field::CHECKSUM, checksum);
}

/// The pseudo header with length 0.
fn pseudo_constant(network: &Network) -> Checksum {
    match *network {
        Network::V4 { source, destination, .. } => Checksum::pseudo_v4(source, destination, PROTOCOL_UDP, 0),
        Network::V6 { source, destination, .. } => {
            Checksum::pseudo_v6(source, destination, NEXT_HEADER_UDP, 0)
        }
    }
}

/// The headers under construction.
pub(crate) struct Writer {
    pub(crate) octets: [u8; HEADER_OCTETS_MAX],
    pub(crate) at: usize,
}

impl Writer {
    pub(crate) const fn new() -> Self {
        Self { octets: [0; HEADER_OCTETS_MAX], at: 0 }
    }

    /// Appends the octets of one header.
    pub(crate) fn append<const N: usize>(&mut self, header: [u8; N]) {
        self.octets[self.at..self.at + N].copy_from_slice(&header);
        self.at += N;
    }

    /// Appends one stack with its lengths zero and sums its constant fields.
    pub(crate) fn stack(
        &mut self,
        ethernet: Ends<MacAddress>,
        vlan: Option<Tci>,
        network: &Network,
        udp: Ends<u16>,
    ) -> Result<Stack, WireError> {
        let network_type = match network {
            Network::V4 { .. } => EtherType::IPV4,
            Network::V6 { .. } => EtherType::IPV6,
        };
        let ether_type = if vlan.is_some() { EtherType::VLAN } else { network_type };
        self.append(ethernet::header(ethernet.destination, ethernet.source, ether_type));
        if let Some(tci) = vlan {
            self.append(vlan::header(tci, network_type));
        }
        let ip_at = self.at;
        let ipv4_sum = self.network(network)?;
        let udp_at = self.at;
        let header = udp::header(udp.source, udp.destination);
        self.append(header);
        let mut sum = pseudo_constant(network);
        sum.add(&header);
        Ok(Stack { ip_at, udp_at, ipv4_sum, udp_sum: sum.folded() })
    }

    /// Appends the network header with its length zero; the sum of an IPv4 header without its checksum.
    fn network(&mut self, network: &Network) -> Result<Option<u16>, WireError> {
        match *network {
            Network::V4 { source, destination, ttl, ds, dont_fragment } => {
                let header = ipv4::udp_header(source, destination, ttl, ds, dont_fragment);
                self.append(header);
                Ok(Some(checksum::sum(&header)))
            }
            Network::V6 { source, destination, hop_limit, ds, flow_label } => {
                self.append(ipv6::udp_header(source, destination, hop_limit, ds, flow_label)?);
                Ok(None)
            }
        }
    }
}

/// The tunnel's source port for the flow of `repr`.
fn flow_port(repr: &TemplateRepr) -> u16 {
    let (source, destination) = (repr.udp.source.to_be_bytes(), repr.udp.destination.to_be_bytes());
    match repr.network {
        Network::V4 { source: from, destination: to, .. } => {
            source_port_of(&[&from.octets(), &to.octets(), &source, &destination])
        }
        Network::V6 { source: from, destination: to, .. } => {
            source_port_of(&[&from.octets(), &to.octets(), &source, &destination])
        }
    }
}
