// SPDX-License-Identifier: Apache-2.0
//! Whole frames: what is in one, and how long it is on the wire.
//!
//! In: a frame as a passive tap sees it, of any sender. Out: its addresses, ports and the innermost UDP payload,
//! or the typed reason why it is not a UDP datagram that this crate reads. Nothing is copied, and nothing is walked
//! deeper than one tunnel and one 802.1Q tag per Ethernet header, so the work is bounded whatever the frame says.

use core::net::IpAddr;

use crate::ds::DsField;
use crate::error::{Header, WireError};
use crate::ethernet::{EtherType, EthernetFrame, MacAddress};
use crate::ipv4::{Ipv4Packet, PROTOCOL_UDP};
use crate::ipv6::{Ipv6Packet, NEXT_HEADER_UDP};
use crate::udp::{UdpChecksum, UdpDatagram};
use crate::vlan::{Tci, VlanTag};
use crate::vxlan::{Vni, VxlanPacket};

/// Shortest frame without its check sequence: minFrameSize of 64 octets less 4 (802.3 3.2.8, 4.4.2).
pub const FRAME_OCTETS_MIN: usize = 60;
/// Frame check sequence (802.3 3.2.9).
pub const FCS_OCTETS: u32 = 4;
/// Preamble and start frame delimiter (802.3 3.2.1, 3.2.2).
pub const PREAMBLE_OCTETS: u32 = 8;
/// interPacketGap, 96 bit times (802.3 4.4.2).
pub const GAP_OCTETS: u32 = 12;

/// Octet times that a frame takes from the link: padding up to the minimum, check sequence, preamble, start
/// delimiter and the gap after it. `frame_octets` counts from the destination address, without check sequence.
/// Saturates. Guard bands (802.1Q 8.6.8.4) are computed from this.
#[must_use]
pub fn wire_octets(frame_octets: usize) -> u32 {
    let frame_octets = u32::try_from(frame_octets.max(FRAME_OCTETS_MIN)).unwrap_or(u32::MAX);
    frame_octets.saturating_add(FCS_OCTETS + PREAMBLE_OCTETS + GAP_OCTETS)
}

/// One stack of Ethernet, optional tag, IP and UDP.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'a> {
    /// Ethernet destination.
    pub destination_mac: MacAddress,
    /// Ethernet source.
    pub source_mac: MacAddress,
    /// Tag control information, if there is a tag.
    pub vlan: Option<Tci>,
    /// IP source.
    pub source: IpAddr,
    /// IP destination; of the same family as `source`.
    pub destination: IpAddr,
    /// Type of service or traffic class.
    pub ds: DsField,
    /// Time to live or hop limit.
    pub hop_limit: u8,
    /// The datagram: ports and payload.
    pub datagram: UdpDatagram<'a>,
}

impl Layers<'_> {
    /// Verifies the UDP checksum. A tap on a sender's or veth device sees unfinished ones: `Wrong` is a finding
    /// only where the sender does not offload it.
    #[must_use]
    pub fn checksum(&self) -> UdpChecksum {
        self.datagram.verify(self.source, self.destination)
    }
}

/// The headers around a tunnelled frame.
#[derive(Clone, Copy, Debug)]
pub struct Tunnel<'a> {
    /// The outer stack.
    pub outer: Layers<'a>,
    /// VXLAN network identifier.
    pub vni: Vni,
}

/// A frame taken apart.
#[derive(Clone, Copy, Debug)]
pub struct Dissected<'a> {
    /// The tunnel that carried it, if any.
    pub tunnel: Option<Tunnel<'a>>,
    /// The innermost stack.
    pub inner: Layers<'a>,
}

impl<'a> Dissected<'a> {
    /// The innermost UDP payload.
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.inner.datagram.payload()
    }
}

/// Takes `frame` apart down to its innermost UDP payload. A datagram to `vxlan_port` is read as VXLAN; its inner
/// frame is never read as a tunnel again.
///
/// # Errors
/// Those of the views; `Checksum` of an IPv4 header; `Fragment`; `OtherProtocol` for everything that is not UDP,
/// stacked tags included.
pub fn dissect(frame: &[u8], vxlan_port: Option<u16>) -> Result<Dissected<'_>, WireError> {
    let layers = layers(frame)?;
    if vxlan_port != Some(layers.datagram.destination_port()) {
        return Ok(Dissected { tunnel: None, inner: layers });
    }
    let vxlan = VxlanPacket::new(layers.datagram.payload())?;
    let inner = self::layers(vxlan.payload())?;
    Ok(Dissected { tunnel: Some(Tunnel { outer: layers, vni: vxlan.vni() }), inner })
}

/// One stack of headers.
fn layers(frame: &[u8]) -> Result<Layers<'_>, WireError> {
    let ethernet = EthernetFrame::new(frame)?;
    let (vlan, header, ether_type, network) = match ethernet.ether_type() {
        EtherType::VLAN => {
            let tag = VlanTag::new(ethernet.payload())?;
            (Some(tag.tci()), Header::Vlan, tag.ether_type(), tag.payload())
        }
        ether_type => (None, Header::Ethernet, ether_type, ethernet.payload()),
    };
    let ip = match ether_type {
        EtherType::IPV4 => ipv4(network)?,
        EtherType::IPV6 => ipv6(network)?,
        EtherType(protocol) => return Err(WireError::OtherProtocol { header, protocol }),
    };
    Ok(Layers {
        destination_mac: ethernet.destination(),
        source_mac: ethernet.source(),
        vlan,
        source: ip.source,
        destination: ip.destination,
        ds: ip.ds,
        hop_limit: ip.hop_limit,
        datagram: UdpDatagram::new(ip.datagram)?,
    })
}

/// The fields that both IP versions have.
struct Ip<'a> {
    source: IpAddr,
    destination: IpAddr,
    ds: DsField,
    hop_limit: u8,
    datagram: &'a [u8],
}

fn ipv4(octets: &[u8]) -> Result<Ip<'_>, WireError> {
    let packet = Ipv4Packet::new(octets)?;
    // Always finished by software, so a wrong one is a damaged header: its addresses mean nothing.
    if !packet.is_checksum_right() {
        return Err(WireError::Checksum { header: Header::Ipv4 });
    }
    if packet.protocol() != PROTOCOL_UDP {
        let protocol = u16::from(packet.protocol());
        return Err(WireError::OtherProtocol { header: Header::Ipv4, protocol });
    }
    if packet.is_fragment() {
        return Err(WireError::Fragment { header: Header::Ipv4 });
    }
    Ok(Ip {
        source: packet.source().into(),
        destination: packet.destination().into(),
        ds: packet.ds(),
        hop_limit: packet.ttl(),
        datagram: packet.payload(),
    })
}

fn ipv6(octets: &[u8]) -> Result<Ip<'_>, WireError> {
    let packet = Ipv6Packet::new(octets)?;
    let (next_header, datagram) = packet.upper_layer()?;
    if next_header != NEXT_HEADER_UDP {
        let protocol = u16::from(next_header);
        return Err(WireError::OtherProtocol { header: Header::Ipv6, protocol });
    }
    Ok(Ip {
        source: packet.source().into(),
        destination: packet.destination().into(),
        ds: packet.ds(),
        hop_limit: packet.hop_limit(),
        datagram,
    })
}
