// SPDX-License-Identifier: Apache-2.0
//! What a taken slot asks for: a datagram or a packet socket's frame, and how that leaves.
//!
//! In: a slot's checked metadata with the stream that the registrar found behind it. Out: a [`FrameContent`] that is kept
//! while the frame is queued, and the [`Outgoing`] frame as it would leave now. A stream sends only what its socket
//! can: a UDP socket no frames of its own making, a packet socket no datagrams.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use ktsn_model::{BypassReason, DropReason, IpPrefix, Priority};
use ktsn_resolve::{
    AttachmentIndex, Flow, LinkFlow, LinkResolved, LinkShape, Marks, PortIndex, Refusal, Replica, Resolved,
    Tables, resolve_link, resolve_link_replica,
};
use ktsn_ring::{HeaderMarks, SlotFlags, SlotFrame};
use ktsn_sched::policing::{FlowKey, FrameKey, StreamHandle, StreamIdentification};
use ktsn_wire::ipv4::PROTOCOL_UDP;
use ktsn_wire::{EtherType, Identifications, Ipv4Packet, Ipv6Packet, MacAddress, UdpDatagram};

use super::headers;
use super::registrations::{LinkKind, StreamInfo};
use super::resolver::{Missing, Resolver};

/// The copy that a slot is queued for, and the end of the copies before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// The copy.
    pub replica: Replica,
    /// Set once a copy has left: the instant that a report says, 0 where the program did not ask.
    pub sent: Option<u64>,
}

impl Copies {
    /// The first copy. `None`: there is one frame only.
    pub(super) fn first(replica: Option<Replica>) -> Self {
        Self { replica: replica.unwrap_or_default(), sent: None }
    }

    /// True when there may be more than one copy.
    pub(super) fn is_one_of_several(self) -> bool {
        self.replica != Replica::First
    }
}

/// The content of a frame, independent of its stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameContent {
    /// A UDP datagram; its IPv4 identification, `None` while that is still to be counted.
    Datagram(Flow, Option<u16>),
    /// A packet socket's frame.
    Link(LinkFlow),
}

/// A frame as it would leave now: its port and its headers.
pub(super) enum Outgoing<'a> {
    /// By prebuilt headers.
    Datagram(&'a Resolved),
    /// With few octets before it.
    Link(LinkResolved),
}

impl FrameContent {
    /// What a slot of this stream sends; `None` when the slot says something that its stream cannot mean.
    pub(super) fn from_slot(stream: &StreamInfo, slot: &SlotFrame) -> Option<Self> {
        let flags = slot.flags;
        let shape = match stream.link {
            None if flags.is_link() => return None,
            None => return datagram_of(stream, slot),
            Some(LinkKind::Frames) if flags.contains(SlotFlags::LINK_FRAME) => LinkShape::Frame,
            Some(LinkKind::Payloads) if flags.contains(SlotFlags::LINK_PAYLOAD) => {
                let [a, b, c, d, e, f, ..] = slot.address;
                LinkShape::Payload {
                    destination: MacAddress([a, b, c, d, e, f]),
                    ether_type: EtherType(slot.port),
                }
            }
            Some(_) => return None,
        };
        Some(Self::Link(LinkFlow { attachment: stream.attachment, if_index: slot.scope, shape }))
    }

    /// The attachment that it belongs to.
    pub(super) fn attachment(&self) -> AttachmentIndex {
        match self {
            Self::Datagram(flow, _) => flow.attachment,
            Self::Link(flow) => flow.attachment,
        }
    }

    /// The same, with the next identification of a datagram between these addresses, unless it has one.
    #[inline]
    pub(super) fn identified(self, pair: Option<u64>, counted: &mut headers::Identifications) -> Self {
        match (self, pair) {
            (Self::Datagram(flow, None), Some(pair)) => Self::Datagram(flow, Some(counted.next(pair))),
            (content, _) => content,
        }
    }

    /// A datagram's IPv4 identification; 0 while it has none.
    #[inline]
    pub(super) fn identification(&self) -> u16 {
        if let Self::Datagram(_, Some(identification)) = *self { identification } else { 0 }
    }

    /// Writes the frame to `scratch` as its own interface would carry it, and returns the range of the headers before `payload`.
    /// A packet socket's frame has only those headers that its program left to the kernel, and no tag but its own.
    pub(super) fn headers(
        &self,
        resolver: &mut Resolver,
        payload: &[u8],
        scratch: &mut [u8],
    ) -> Option<Range<usize>> {
        match self {
            Self::Datagram(flow, _) => {
                let template = &resolver.find(flow, Replica::First).ok()?.template;
                let numbers = Identifications { outer: 0, inner: self.identification() };
                template.write_frame_identified(payload, numbers, scratch).ok()?;
                Some(template.outer_octets()..template.header_octets())
            }
            Self::Link(flow) => match flow.shape {
                LinkShape::Frame => Some(0..0),
                LinkShape::Payload { destination, ether_type } => {
                    let own = resolver.tables().attachment(flow.attachment)?.interface().mac();
                    let header = scratch.get_mut(..14)?;
                    header[..6].copy_from_slice(&destination.0);
                    header[6..12].copy_from_slice(&own.0);
                    header[12..].copy_from_slice(&ether_type.0.to_be_bytes());
                    Some(0..14)
                }
            },
        }
    }

    /// The stream that `payload` belongs to, by its attachment's table. That of a datagram is remembered; a packet
    /// socket's frame is looked at each time, as its headers may be others than the last one's.
    pub(super) fn stream(
        &self,
        resolver: &mut Resolver,
        payload: &[u8],
        streams: &StreamIdentification,
    ) -> Option<StreamHandle> {
        match self {
            Self::Datagram(flow, _) => resolver.stream(flow, streams),
            Self::Link(flow) => {
                let resolved = resolve_link(resolver.tables(), flow, payload).ok()?;
                streams.identify(&FrameKey {
                    attachment: u32::from(flow.attachment.0),
                    destination: resolved.destination.0,
                    vlan: resolved.outer_tag().map(|tag| tag.vid.get()).filter(|vid| *vid != 0),
                    flow: flow_key(resolved.ether_type, resolved.packet(payload)),
                })
            }
        }
    }

    /// Whether the pod's own packet filter may change it.
    pub(super) fn is_filtered(&self, tables: &Tables) -> bool {
        let Self::Datagram(flow, _) = self else { return false };
        let of = tables.attachment(flow.attachment);
        of.is_some_and(|of| of.filters(IpPrefix::host(flow.destination)))
    }

    /// The frame of `payload`, or of this copy of it, as it would leave now.
    ///
    /// # Errors
    /// [`Refusal`]; a payload that is too long for its route is the kernel's, which makes fragments.
    #[inline]
    pub(super) fn outgoing<'a>(
        &self,
        resolver: &'a mut Resolver,
        payload: &[u8],
        replica: Replica,
    ) -> Result<Outgoing<'a>, Refusal> {
        match self {
            Self::Datagram(flow, _) => Outgoing::datagram(resolver.find(flow, replica)?, payload),
            Self::Link(flow) => {
                resolve_link_replica(resolver.tables(), flow, payload, replica).map(Outgoing::Link)
            }
        }
    }

    /// The first frame of `payload` as it will leave, ahead of time, and what is missing: the next hop's MAC address, or the kernel's
    /// answer about the route. The frame may still be queued: [`Self::outgoing`] is asked again before it is sent.
    ///
    /// # Errors
    /// [`Refusal`]; a packet socket's frame has no next hop to wait for.
    pub(super) fn outgoing_ahead<'a>(
        &self,
        resolver: &'a mut Resolver,
        payload: &[u8],
    ) -> Result<(Outgoing<'a>, Option<Missing>), Refusal> {
        let Self::Datagram(flow, _) = self else {
            return self.outgoing(resolver, payload, Replica::First).map(|outgoing| (outgoing, None));
        };
        let (resolved, missing) = resolver.find_ahead(flow)?;
        Ok((Outgoing::datagram(resolved, payload)?, missing))
    }
}

/// The reason for which a frame is dropped that is refused and that the kernel cannot get, and what it lacks where that may come.
pub(super) fn reason_of(refusal: Refusal) -> (DropReason, Option<Missing>) {
    match refusal {
        Refusal::Bypass(BypassReason::OverMtu) => (DropReason::TooLong, None),
        // The client should have known; its table may be older than the worker's.
        Refusal::Bypass(_) => (DropReason::NoRoute, None),
        Refusal::Drop(reason, unresolved) => (reason, unresolved.map(Missing::Neighbour)),
        Refusal::Unanswered => (DropReason::NoRoute, Some(Missing::Route)),
    }
}

/// The datagram of a slot, or `None` when it says something impossible.
fn datagram_of(stream: &StreamInfo, slot: &SlotFrame) -> Option<FrameContent> {
    let (destination, destination_port, scope) = if slot.flags.contains(SlotFlags::CONNECTED) {
        let peer = stream.peer?;
        let scope = if let SocketAddr::V6(v6) = peer { v6.scope_id() } else { 0 };
        (peer.ip().to_canonical(), peer.port(), scope)
    } else {
        (IpAddr::V6(Ipv6Addr::from(slot.address)).to_canonical(), slot.port, slot.scope)
    };
    if destination_port == 0 || (destination.is_ipv6() && stream.local.is_ipv4()) {
        return None;
    }
    let bound = stream.local.ip().to_canonical();
    // What is named in the call goes before what the socket is bound to.
    let scope = if scope == 0 { stream.interface } else { scope };
    let marks = slot.marks;
    let default = if destination.is_ipv4() { HeaderMarks::DEFAULT_TTL } else { HeaderMarks::DEFAULT_HOPS };
    let mut flow = Flow {
        attachment: stream.attachment,
        uid: stream.uid,
        is_connected: slot.flags.contains(SlotFlags::CONNECTED),
        bound: (!bound.is_unspecified()).then_some(bound),
        source_port: stream.local.port(),
        destination,
        destination_port,
        scope,
        traffic_class: if slot.flags.contains(SlotFlags::TRAFFIC_CLASS) { slot.traffic_class } else { 0 },
        hop_limit: if slot.flags.contains(SlotFlags::HOP_LIMIT) { slot.hop_limit } else { 0 },
        marks: Marks {
            dont_fragment: !marks.contains(HeaderMarks::MAY_FRAGMENT),
            is_default_hop_limit: marks.contains(default),
            ..Marks::default()
        },
    };
    if destination.is_ipv6() && marks.contains(HeaderMarks::FLOW_LABEL) {
        flow.marks.flow_label = headers::flow_label(&flow);
    }
    // Linux counts whatever a socket with an IPv4 peer sends.
    let has_peer = stream.peer.is_some_and(|peer| peer.ip().to_canonical().is_ipv4());
    let is_counted = has_peer || !marks.contains(HeaderMarks::NOT_COUNTED);
    Some(FrameContent::Datagram(flow, (!is_counted).then_some(slot.identification)))
}

/// The IP flow of a packet, with ports where it is a whole UDP datagram.
fn flow_key(ether_type: EtherType, packet: &[u8]) -> Option<FlowKey> {
    let (source, destination, protocol, datagram): (IpAddr, IpAddr, u8, _) = match ether_type {
        EtherType::IPV4 => {
            let packet = Ipv4Packet::new(packet).ok()?;
            let datagram = (!packet.is_fragment()).then(|| packet.payload());
            (packet.source().into(), packet.destination().into(), packet.protocol(), datagram)
        }
        EtherType::IPV6 => {
            let packet = Ipv6Packet::new(packet).ok()?;
            let (protocol, datagram) = packet.upper_layer().ok()?;
            (packet.source().into(), packet.destination().into(), protocol, Some(datagram))
        }
        _ => return None,
    };
    let udp = datagram.filter(|_| protocol == PROTOCOL_UDP).and_then(|octets| UdpDatagram::new(octets).ok());
    Some(FlowKey {
        source,
        destination,
        protocol,
        source_port: udp.map(|udp| udp.source_port()),
        destination_port: udp.map(|udp| udp.destination_port()),
    })
}

impl<'a> Outgoing<'a> {
    fn datagram(resolved: &'a Resolved, payload: &[u8]) -> Result<Self, Refusal> {
        let fits = payload.len() <= usize::from(resolved.payload_max);
        if fits { Ok(Self::Datagram(resolved)) } else { Err(Refusal::Bypass(BypassReason::OverMtu)) }
    }

    /// The addresses that a datagram's IPv4 identification is counted by; `None`: it has none, or its program wrote it.
    #[inline]
    pub(super) fn address_pair(&self) -> Option<u64> {
        match self {
            Self::Datagram(resolved) => resolved.template.address_pair(),
            Self::Link(_) => None,
        }
    }

    /// The addresses of the tunnel's IPv4 header; `None`: no tunnel, or over IPv6.
    #[inline]
    pub(super) fn outer_address_pair(&self) -> Option<u64> {
        match self {
            Self::Datagram(resolved) => resolved.template.outer_address_pair(),
            Self::Link(resolved) => resolved.outer_address_pair(),
        }
    }

    /// The port to hand it to.
    pub(super) fn port(&self) -> PortIndex {
        match self {
            Self::Datagram(resolved) => resolved.port,
            Self::Link(resolved) => resolved.port,
        }
    }

    /// The copy that this is, where there are several, and how many copies before it have no route.
    #[inline]
    pub(super) fn copies(&self) -> (Copies, u16) {
        match self {
            Self::Datagram(resolved) => (Copies::first(resolved.replica), resolved.skipped),
            Self::Link(resolved) => (Copies::first(resolved.replica), resolved.skipped),
        }
    }

    /// Octet times on the link, and octets of the service data unit.
    pub(super) fn lengths(&self, payload: &[u8]) -> (u32, u32) {
        match self {
            Self::Datagram(resolved) => {
                (resolved.template.wire_octets(payload.len()), resolved.template.sdu_octets(payload.len()))
            }
            Self::Link(resolved) => (resolved.wire_octets(), resolved.sdu_octets),
        }
    }

    /// The priority that decides on the class: the socket's; a packet socket without one has that of the tag which it
    /// wrote itself.
    pub(super) fn priority(&self, socket: u8) -> Priority {
        let own_tag = match self {
            Self::Link(resolved) => resolved.tag.filter(|_| resolved.is_own_tag && socket == 0),
            Self::Datagram(_) => None,
        };
        Priority::capped(u32::from(own_tag.map_or(socket, |tag| tag.pcp.get())))
    }

    /// Writes the frame; its octets, or `None` when it does not fit.
    #[inline]
    pub(super) fn write(&self, payload: &[u8], numbers: Identifications, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Datagram(resolved) => resolved.template.write_frame_identified(payload, numbers, out).ok(),
            Self::Link(resolved) => resolved.write(payload, numbers.outer, out),
        }
    }
}
