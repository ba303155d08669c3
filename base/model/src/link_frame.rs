// SPDX-License-Identifier: Apache-2.0
//! An Ethernet frame that a program made itself: what its first octets say, and whether it may leave.
//!
//! In: at least the first [`HEAD_OCTETS`] octets of a frame, or all of a shorter one; what the attachment allows. Out:
//! the fields that the decision needs, and the decision. Program and daemon ask this same code, so that a frame that
//! the daemon would refuse goes to the kernel instead. It believes no length and reads nothing beyond the network
//! header's addresses (of ARP: beyond the target's).

/// First octets that are looked at: Ethernet header, one tag, an IPv6 header; rounded up.
pub const HEAD_OCTETS: usize = 64;
/// Octets of an Ethernet header (802.3 3.1.1).
pub const HEADER_OCTETS: usize = 14;
/// Octets of a tag (802.1Q 9.3).
pub const TAG_OCTETS: usize = 4;

const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;
/// Below, the field is a length, and an LLC header follows (802.3 3.2.6).
const ETHER_TYPE_MIN: u16 = 0x600;
/// LLC and SNAP header in front of an EtherType (RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];
/// First octets of an ARP packet for IPv4 over Ethernet (RFC 826).
const ARP_ETHERNET_IPV4: [u8; 6] = [0, 1, 8, 0, 6, 4];
/// Customer tag (802.1Q 9.5).
const C_TAG: u16 = 0x8100;
/// Service tag (802.1Q 9.5), and what older devices write for one.
const OTHER_TAGS: [u16; 3] = [0x88a8, 0x9100, 0x9200];
/// Reserved for the implementation (802.1Q table 9-2).
const VID_RESERVED: u16 = 0xfff;

/// What the first octets of a frame say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkHead {
    /// Destination MAC address.
    pub destination: [u8; 6],
    /// Source MAC address.
    pub source: [u8; 6],
    /// Tag control information of a customer tag, if there is one.
    pub tag: Option<u16>,
    /// EtherType (or length) after it.
    pub ether_type: u16,
    /// Destination of an IPv4 (mapped) or IPv6 header, network order; `None` also when that header cannot be one.
    pub ip_destination: Option<[u8; 16]>,
    /// The IP address that the frame is for: the same, also in the older encapsulation, or the target of an ARP packet.
    pub ip_target: Option<[u8; 16]>,
    /// The IP address that the frame says it comes from.
    pub ip_source: IpSource,
}

/// The IP address that a frame says it comes from, network order (IPv4-mapped or IPv6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpSource {
    /// The frame is neither IP nor ARP.
    None,
    /// Source address of the IP header, or the sender's address of an ARP packet.
    Address([u8; 16]),
    /// No address, in a frame that no router forwards: IPv4 from 0.0.0.0 to 255.255.255.255 (DHCP), an ARP probe
    /// (RFC 5227), IPv6 from `::` to a link-local group (RFC 4862).
    Unspecified,
    /// The EtherType says IP or ARP, and the packet cannot be one.
    Unreadable,
}

/// Why a frame does not leave here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LinkFault {
    /// The source is not the interface's MAC address.
    #[error("the source is not the interface's MAC address")]
    Source,
    /// A reserved VLAN identifier, one that is not the attachment's, or a second tag.
    #[error("the tag is not the attachment's")]
    Tag,
    /// A group address of the bridge protocols or of PTP that the attachment does not allow.
    #[error("a reserved group address")]
    Reserved,
    /// The IP destination (of ARP: the target) is not allowed; of a frame that is neither IP nor ARP the MAC address.
    #[error("the destination is not allowed")]
    Destination,
    /// The IP source, or the sender's address of an ARP packet, is not the attachment's.
    #[error("the IP or ARP source is not the attachment's")]
    Address,
}

/// What an attachment allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkRules {
    /// The interface's MAC address.
    pub source: [u8; 6],
    /// The attachment's VLAN, if it has one. A frame with a tag must name this VID, or VID 0 (a priority tag).
    pub vlan: Option<u16>,
    /// IP and ARP may go to listed prefixes only.
    pub is_ip_listed: bool,
    /// Frames with another EtherType may go to listed MAC addresses only.
    pub is_mac_listed: bool,
    /// IP sources and ARP senders must be addresses of the attachment.
    pub is_source_judged: bool,
}

fn array<const N: usize>(octets: &[u8], at: usize) -> Option<[u8; N]> {
    octets.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn be16(octets: &[u8], at: usize) -> Option<u16> {
    array(octets, at).map(u16::from_be_bytes)
}

impl LinkHead {
    /// Reads the first octets of a frame; `None` when they end within the Ethernet header or its tag.
    #[must_use]
    #[inline]
    pub fn parse(head: &[u8]) -> Option<Self> {
        let (mut tag, mut network_at) = (None, HEADER_OCTETS);
        let mut ether_type = be16(head, 12)?;
        if ether_type == C_TAG {
            tag = Some(be16(head, HEADER_OCTETS)?);
            ether_type = be16(head, HEADER_OCTETS + 2)?;
            network_at += TAG_OCTETS;
        }
        let packet = head.get(network_at..)?;
        Some(Self {
            destination: array(head, 0)?,
            source: array(head, 6)?,
            tag,
            ether_type,
            ip_destination: ip_destination(ether_type, packet),
            ip_target: ip_target(ether_type, packet),
            ip_source: ip_source(ether_type, packet),
        })
    }

    /// Octets of header and tag.
    #[must_use]
    pub const fn header_octets(&self) -> usize {
        if self.tag.is_some() { HEADER_OCTETS + TAG_OCTETS } else { HEADER_OCTETS }
    }

    /// Priority code point of the tag.
    #[must_use]
    pub fn priority(&self) -> Option<u8> {
        self.tag.map(|tag| (tag >> 13) as u8)
    }

    /// Whether bridges and end stations keep the destination for their own protocols: 01-80-C2-00-00-00 to -0F
    /// (802.1Q 8.6.3; LLDP and PTP's peer delay are among them) and PTP's 01-1B-19-00-00-00 (IEEE 1588 annex E).
    #[must_use]
    pub const fn is_reserved(&self) -> bool {
        matches!(self.destination, [0x01, 0x80, 0xc2, 0, 0, 0..=0x0f] | [0x01, 0x1b, 0x19, 0, 0, 0])
    }

    /// Whether the frame may leave. IP and ARP are judged by IP addresses alone, every other EtherType by the MAC address
    /// alone; a reserved group must be named in any case. `owns` asks whether an IP address (IPv6 or IPv4-mapped) is the
    /// attachment's, only where sources are judged; `names` asks for a MAC address on its list; `allows` for an IP address.
    ///
    /// # Errors
    /// The first [`LinkFault`] found.
    #[inline]
    pub fn judge(
        &self,
        rules: &LinkRules,
        owns: impl FnOnce([u8; 16]) -> bool,
        names: impl FnOnce([u8; 6]) -> bool,
        allows: impl FnOnce([u8; 16]) -> bool,
    ) -> Result<(), LinkFault> {
        if self.source != rules.source {
            return Err(LinkFault::Source);
        }
        if self.ether_type == C_TAG || OTHER_TAGS.contains(&self.ether_type) {
            return Err(LinkFault::Tag);
        }
        if let Some(tag) = self.tag {
            let vid = tag & 0xfff;
            if vid == VID_RESERVED || rules.vlan.is_some_and(|own| vid != own && vid != 0) {
                return Err(LinkFault::Tag);
            }
        }
        if rules.is_source_judged {
            match self.ip_source {
                IpSource::None | IpSource::Unspecified => {}
                IpSource::Address(address) if owns(address) => {}
                IpSource::Address(_) | IpSource::Unreadable => return Err(LinkFault::Address),
            }
        }
        let is_ip = self.ip_source != IpSource::None;
        let is_reserved = self.is_reserved();
        // One question: the list is in shared memory.
        let is_named = (is_reserved || (!is_ip && rules.is_mac_listed)) && names(self.destination);
        if is_reserved && !is_named {
            return Err(LinkFault::Reserved);
        }
        let is_allowed = match is_ip {
            true => !rules.is_ip_listed || self.ip_target.is_some_and(allows),
            false => !rules.is_mac_listed || is_named,
        };
        if is_allowed { Ok(()) } else { Err(LinkFault::Destination) }
    }
}

fn mapped([a, b, c, d]: [u8; 4]) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// EtherType and packet; of the older encapsulation those behind its LLC and SNAP headers.
fn unwrapped(ether_type: u16, packet: &[u8]) -> (u16, &[u8]) {
    match packet.split_first_chunk() {
        Some((&SNAP, rest)) if ether_type < ETHER_TYPE_MIN => {
            (be16(rest, 0).unwrap_or(0), rest.get(2..).unwrap_or_default())
        }
        _ => (ether_type, packet),
    }
}

/// The source that the packet names.
fn ip_source(ether_type: u16, packet: &[u8]) -> IpSource {
    let (ether_type, packet) = unwrapped(ether_type, packet);
    let read = match ether_type {
        IPV4 => ipv4_source(packet),
        IPV6 => ipv6_source(packet),
        ARP => arp_sender(packet),
        _ => return IpSource::None,
    };
    read.unwrap_or(IpSource::Unreadable)
}

/// The destination that the packet names.
fn ip_target(ether_type: u16, packet: &[u8]) -> Option<[u8; 16]> {
    match unwrapped(ether_type, packet) {
        (ARP, packet) if array(packet, 0)? == ARP_ETHERNET_IPV4 => Some(mapped(array(packet, 24)?)),
        (ether_type, packet) => ip_destination(ether_type, packet),
    }
}

fn ipv4_source(packet: &[u8]) -> Option<IpSource> {
    let (source, destination) = (array(packet, 12)?, array(packet, 16)?);
    match (packet.first()? >> 4, source, destination) {
        (4, [0, 0, 0, 0], [255, 255, 255, 255]) => Some(IpSource::Unspecified),
        (4, source, _) => Some(IpSource::Address(mapped(source))),
        _ => None,
    }
}

fn ipv6_source(packet: &[u8]) -> Option<IpSource> {
    let (source, group): ([u8; 16], Option<[u8; 2]>) = (array(packet, 8)?, array(packet, 24));
    let number = u128::from_be_bytes(source);
    match packet.first()? >> 4 {
        6 if number == 0 && group == Some([0xff, 0x02]) => Some(IpSource::Unspecified),
        // A mapped address has no place on a wire; as an address of the attachment it would be IPv4's.
        6 if number >> 32 == 0xffff => None,
        6 => Some(IpSource::Address(source)),
        _ => None,
    }
}

fn arp_sender(packet: &[u8]) -> Option<IpSource> {
    match (array(packet, 0)?, array(packet, 14)?) {
        (ARP_ETHERNET_IPV4, [0, 0, 0, 0]) => Some(IpSource::Unspecified),
        (ARP_ETHERNET_IPV4, sender) => Some(IpSource::Address(mapped(sender))),
        _ => None,
    }
}

/// Destination of the header at the start of `packet`.
fn ip_destination(ether_type: u16, packet: &[u8]) -> Option<[u8; 16]> {
    let version = packet.first()? >> 4;
    match (ether_type, version) {
        (IPV4, 4) => Some(mapped(array(packet, 16)?)),
        (IPV6, 6) => array(packet, 24),
        _ => None,
    }
}

#[cfg(test)]
#[path = "link_frame_tests.rs"]
mod tests;
