// SPDX-License-Identifier: Apache-2.0
//! The answer for one frame of a packet socket: port, first octets and lengths, or the reason why it is dropped.
//!
//! In: [`Tables`], a [`LinkFlow`] and the payload that was copied out of the program's memory. Out:
//! [`LinkResolved`], which writes the frame, or a [`DropReason`]. A client asks the same rules beforehand
//! ([`LinkHead::judge`]), so what is dropped here is a lie, a race with a change of the tables, or a bug.
//! Must never allocate or panic: workers call it, for each frame, right before it leaves too.
//!
//! Such frames leave by the attachment's interface, as those that a packet socket sends itself: what happens behind it is
//! the kernel's business. In a bridged overlay the interface is a station on the segment, so they go where the segment's
//! datagrams go (rule 4c), whatever is in them; reserved groups end at the node's bridge and stay with the interface.

use core::net::{IpAddr, Ipv6Addr};

use ktsn_model::link_frame::{HEAD_OCTETS, HEADER_OCTETS, TAG_OCTETS};
use ktsn_model::{DropReason, IpPrefix, LinkHead, LinkRules};
use ktsn_wire::{EtherType, InnerMarks, MacAddress, Tci, TunnelTemplate, wire_octets};

use crate::datagram::{outer_around, place};
use crate::flow::{Egress, FORBIDDEN, NO_ROUTE, Refusal, Replica};
use crate::limits::{VXLAN_OVER_IPV4_OCTETS, VXLAN_OVER_IPV6_OCTETS};
use crate::link::{PortIndex, Via};
use crate::path::{Path, path_to};
use crate::table::{AttachmentIndex, AttachmentTables, Tables};

/// TTL of a tunnel that would inherit the one of a frame which has none.
const TTL_OF_OTHERS: u8 = 64;

/// What the payload of a packet socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkShape {
    /// A whole frame (`SOCK_RAW`).
    Frame,
    /// What follows an Ethernet header that is still to be made (`SOCK_DGRAM`).
    Payload {
        /// Destination MAC address.
        destination: MacAddress,
        /// EtherType.
        ether_type: EtherType,
    },
}

/// A packet socket's frame and the interface that the program wants it to leave by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkFlow {
    /// The attachment that sends it.
    pub attachment: AttachmentIndex,
    /// Number of the interface that it is meant for, in the namespace.
    pub if_index: u32,
    /// What the payload is.
    pub shape: LinkShape,
}

/// Where and how a packet socket's frame leaves.
#[derive(Clone, Copy, Debug)]
pub struct LinkResolved {
    /// The port to hand it to.
    pub port: PortIndex,
    /// How it leaves.
    pub egress: Egress,
    /// Octets of the frame, without check sequence.
    pub frame_octets: usize,
    /// Octets of what follows the outermost header and tag (queueMaxSDU, 802.1Q 8.6.8.4).
    pub sdu_octets: u32,
    /// Destination MAC address of the outermost header.
    pub destination: MacAddress,
    /// Tag of the program's frame, or that it gets.
    pub tag: Option<Tci>,
    /// EtherType after the tag.
    pub ether_type: EtherType,
    /// Whether the program brought the tag.
    pub is_own_tag: bool,
    /// Set when it leaves as several frames: which of them this is.
    pub replica: Option<Replica>,
    /// Copies before this one that cannot leave, for want of a route or a neighbour.
    pub skipped: u16,
    tunnel: Option<TunnelTemplate>,
    head: [u8; HEADER_OCTETS + TAG_OCTETS],
    head_octets: usize,
    /// Octets of the payload that `head` stands for.
    skip_octets: usize,
    /// Where the network header begins in the payload.
    packet_at: usize,
}

/// The greatest frame of packet sockets on the attachment's interface, octets without a tag of its own.
///
/// A tag adds four (802.3 3.2.7), which Linux allows over every Ethernet device. Within a segment it is the same for all
/// stations, as for datagrams: what fits the tunnel, with the attachment's own tag.
#[must_use]
pub fn link_frame_max(tables: &AttachmentTables) -> u32 {
    let added = if tables.vlan().is_some() { TAG_OCTETS as u32 } else { 0 };
    let packet = match segment_octets(tables) {
        Some(octets) => tables.interface().mtu().min(octets.saturating_sub(added)),
        None => tables.interface().mtu(),
    };
    packet.saturating_add(HEADER_OCTETS as u32)
}

/// The largest packet of a frame without a tag that fits the tunnels of the attachment's segment.
fn segment_octets(tables: &AttachmentTables) -> Option<u32> {
    let local = tables.overlay().bridged()?.tunnel().local;
    let headers = if local.is_ipv4() { VXLAN_OVER_IPV4_OCTETS } else { VXLAN_OVER_IPV6_OCTETS };
    Some(tables.uplink().mtu().saturating_sub(headers))
}

/// The rules of an attachment for frames of packet sockets.
#[must_use]
pub fn link_rules(tables: &AttachmentTables) -> LinkRules {
    LinkRules {
        source: tables.interface().mac().0,
        vlan: tables.vlan().map(|tci| tci.vid.get()).filter(|vid| *vid != 0),
        is_ip_listed: true,
        is_mac_listed: tables.is_mac_listed(),
        is_source_judged: tables.is_source_judged(),
    }
}

/// Applies the rules to one frame. Where it leaves as several, this is the first that can leave.
///
/// # Errors
/// [`Refusal::Drop`]: `detached`; `no_route` for another interface; `link_down`; `peer_corrupt` for what is no frame;
/// `too_long`; `policed` for a source (MAC, IP, ARP), tag or destination that is not allowed; `no_route` and `no_neighbour` of tunnel ends;
/// `network_policy`, where policies restrict the attachment also for what is no IP packet.
pub fn resolve_link(tables: &Tables, flow: &LinkFlow, payload: &[u8]) -> Result<LinkResolved, Refusal> {
    resolve_link_replica(tables, flow, payload, Replica::First)
}

/// Applies the rules to one of the frames that a frame leaves as.
///
/// # Errors
/// Those of [`resolve_link`]; `no_route` for a copy that the tables know no more.
pub fn resolve_link_replica(
    tables: &Tables,
    flow: &LinkFlow,
    payload: &[u8],
    replica: Replica,
) -> Result<LinkResolved, Refusal> {
    let drop = |reason| Refusal::Drop(reason, None);
    let tables = tables.attachment(flow.attachment).ok_or(drop(DropReason::Detached))?;
    let interface = tables.interface();
    if flow.if_index != interface.if_index() {
        return Err(NO_ROUTE);
    }
    if !interface.is_up() {
        return Err(drop(DropReason::LinkDown));
    }
    let head = match flow.shape {
        LinkShape::Frame => LinkHead::parse(payload.get(..HEAD_OCTETS).unwrap_or(payload)),
        LinkShape::Payload { destination, ether_type } => {
            let mut octets = [0; HEAD_OCTETS];
            let used = made_head(&mut octets, destination, interface.mac(), ether_type, payload);
            LinkHead::parse(octets.get(..used).unwrap_or(&octets))
        }
    };
    let head = head.ok_or(drop(DropReason::PeerCorrupt))?;
    let names = |address| tables.names(MacAddress(address));
    let owns = |address| interface.has_address(IpAddr::V6(Ipv6Addr::from(address)).to_canonical());
    head.judge(&link_rules(tables), owns, names, |address| is_allowed(tables, address))
        .map_err(|_| drop(DropReason::Policed))?;
    let mut resolved = LinkResolved::new(tables, flow, &head, payload.len());
    let tag = if resolved.tag.is_some() { TAG_OCTETS } else { 0 };
    let greatest = (interface.mtu() as usize).saturating_add(HEADER_OCTETS + tag);
    if resolved.frame_octets > greatest {
        return Err(drop(DropReason::TooLong));
    }
    resolved.place(tables, &head, payload, replica)?;
    let to = head.ip_destination.map(|address| IpAddr::V6(Ipv6Addr::from(address)));
    if resolved.egress == Egress::Uplink && !tables.permits(to) {
        return Err(FORBIDDEN);
    }
    Ok(resolved)
}

/// Whether a prefix of the attachment holds an IP address, own addresses excepted. What is left to the kernel leaves by the
/// interface (`place`), where the kernel's rules are: a program that knows of it already gives it to the kernel.
fn is_allowed(tables: &AttachmentTables, address: [u8; 16]) -> bool {
    let host = IpPrefix::host(IpAddr::V6(Ipv6Addr::from(address)).to_canonical());
    tables.leaves(host) || !matches!(path_to(tables, host), Path::Bypass(_))
}

/// The first octets of the frame that will be made around `payload`; how many.
fn made_head(
    octets: &mut [u8; HEAD_OCTETS],
    destination: MacAddress,
    source: MacAddress,
    ether_type: EtherType,
    payload: &[u8],
) -> usize {
    octets[..6].copy_from_slice(&destination.0);
    octets[6..12].copy_from_slice(&source.0);
    octets[12..HEADER_OCTETS].copy_from_slice(&ether_type.0.to_be_bytes());
    let payload = payload.get(..HEAD_OCTETS - HEADER_OCTETS).unwrap_or(payload);
    for (octet, value) in octets[HEADER_OCTETS..].iter_mut().zip(payload) {
        *octet = *value;
    }
    HEADER_OCTETS + payload.len()
}

impl LinkResolved {
    fn new(tables: &AttachmentTables, flow: &LinkFlow, frame: &LinkHead, payload_octets: usize) -> Self {
        let own_tag = frame.tag.map(Tci::from_bits);
        let added = if own_tag.is_some() { None } else { tables.vlan() };
        let mut head = [0; HEADER_OCTETS + TAG_OCTETS];
        head[..6].copy_from_slice(&frame.destination);
        head[6..12].copy_from_slice(&frame.source);
        let mut head_octets = 12;
        if let Some(tci) = added {
            head[12..14].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
            head[14..16].copy_from_slice(&tci.to_bits().to_be_bytes());
            head_octets += TAG_OCTETS;
        }
        // A whole frame goes on with its own type; else it is written here.
        let mut skip_octets = 12;
        if let LinkShape::Payload { ether_type, .. } = flow.shape {
            if let Some(place) = head.get_mut(head_octets..head_octets + 2) {
                place.copy_from_slice(&ether_type.0.to_be_bytes());
            }
            head_octets += 2;
            skip_octets = 0;
        }
        let frame_octets = head_octets.saturating_add(payload_octets.saturating_sub(skip_octets));
        let tag = own_tag.or(added);
        let mac_octets = if tag.is_some() { HEADER_OCTETS + TAG_OCTETS } else { HEADER_OCTETS };
        Self {
            port: tables.interface().port(),
            egress: Egress::Interface,
            frame_octets,
            sdu_octets: u32::try_from(frame_octets.saturating_sub(mac_octets)).unwrap_or(u32::MAX),
            destination: MacAddress(frame.destination),
            tag,
            ether_type: EtherType(frame.ether_type),
            is_own_tag: own_tag.is_some(),
            replica: None,
            skipped: 0,
            tunnel: None,
            head,
            head_octets,
            skip_octets,
            packet_at: match flow.shape {
                LinkShape::Frame => frame.header_octets(),
                // The EtherType of a tag, if there is one, stands before the payload; the tag's rest in it.
                LinkShape::Payload { .. } => frame.header_octets() - HEADER_OCTETS,
            },
        }
    }

    /// Rule 4c, by the destination MAC address: the frame that the interface would send goes through the segment's tunnel.
    fn place(
        &mut self,
        tables: &AttachmentTables,
        frame: &LinkHead,
        payload: &[u8],
        replica: Replica,
    ) -> Result<(), Refusal> {
        // The node's bridge knows whether a reserved group ends with it (802.1Q 8.6.3), and has the rules about
        // what is left to the kernel.
        let ip = |address: [u8; 16]| IpAddr::V6(Ipv6Addr::from(address)).to_canonical();
        let (address, target) = (frame.ip_destination.map(ip), frame.ip_target.map(ip));
        if frame.is_reserved() || target.is_some_and(|target| tables.leaves(IpPrefix::host(target))) {
            return if replica == Replica::First { Ok(()) } else { Err(NO_ROUTE) };
        }
        let packet = self.packet(payload);
        let marks = InnerMarks::of(self.ether_type, packet);
        // An entry by prefix is about the next hop, which a host on the link is itself.
        let on_link = |address: &IpAddr| {
            tables.interface().route(*address).is_some_and(|route| route.via == Via::OnLink)
        };
        let (ttl, df) = marks.map_or((TTL_OF_OTHERS, false), |marks| (marks.ttl, marks.dont_fragment));
        let (uplink, inner) = (tables.uplink(), self.frame_octets);
        let placed =
            place(tables.overlay(), self.destination, address.filter(on_link), replica, |tunnel, vtep| {
                outer_around(tunnel, uplink, vtep, (ttl, df), None)
            })?;
        (self.replica, self.skipped) = (placed.replica, placed.skipped);
        let Some(outer) = placed.outer else { return Ok(()) };
        let greatest = segment_octets(tables).unwrap_or(0) as usize + HEADER_OCTETS;
        if inner > greatest {
            return Err(Refusal::Drop(DropReason::TooLong, None));
        }
        let tunnel = TunnelTemplate::new(&outer, &self.head[..12], self.ether_type, packet)
            .map_err(|_| Refusal::Drop(DropReason::Bug, None))?;
        self.frame_octets = inner + tunnel.header_octets();
        self.sdu_octets = u32::try_from(self.frame_octets - HEADER_OCTETS).unwrap_or(u32::MAX);
        (self.port, self.egress) = (uplink.port(), Egress::Uplink);
        (self.destination, self.tunnel) = (outer.ethernet.destination, Some(tunnel));
        Ok(())
    }

    /// Tag of the outermost header.
    #[must_use]
    pub fn outer_tag(&self) -> Option<Tci> {
        self.tag.filter(|_| self.tunnel.is_none())
    }

    /// Octet times that the frame takes from the link.
    #[must_use]
    pub fn wire_octets(&self) -> u32 {
        wire_octets(self.frame_octets)
    }

    /// What follows header and tag in the payload that was resolved.
    #[must_use]
    pub fn packet<'a>(&self, payload: &'a [u8]) -> &'a [u8] {
        payload.get(self.packet_at..).unwrap_or_default()
    }

    /// Source and destination address of the tunnel's IPv4 header as one number; `None`: no tunnel, or over IPv6.
    #[must_use]
    pub fn outer_address_pair(&self) -> Option<u64> {
        self.tunnel.as_ref()?.address_pair()
    }

    /// Writes the frame around the payload that was resolved; its octets, or `None` when `out` is too short. The
    /// identification is for a tunnel's IPv4 header.
    #[must_use]
    pub fn write(&self, payload: &[u8], identification: u16, out: &mut [u8]) -> Option<usize> {
        let head = self.head.get(..self.head_octets)?;
        let body = payload.get(self.skip_octets..)?;
        let outer_octets = self.tunnel.map_or(0, |tunnel| tunnel.header_octets());
        let whole = out.get_mut(..outer_octets + head.len() + body.len())?;
        let (first, rest) = whole.get_mut(outer_octets..)?.split_at_mut_checked(head.len())?;
        first.copy_from_slice(head);
        rest.copy_from_slice(body);
        if let Some(tunnel) = &self.tunnel {
            tunnel.write_before(identification, whole)?;
        }
        Some(whole.len())
    }
}
