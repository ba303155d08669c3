// SPDX-License-Identifier: Apache-2.0
//! What a taken slot asks for: a datagram or a packet socket's frame, and its way.
//!
//! In: a slot's checked metadata with the stream that the registrar found behind it. Out: a [`Sending`] that is kept
//! while the frame is queued, and the [`Way`] that it would leave by right now. A stream sends only what its socket
//! can: a UDP socket no frames of its own making, a packet socket no datagrams.

use std::net::IpAddr;
use std::ops::Range;

use ktsn_model::{DropReason, Priority};
use ktsn_resolve::{
    AttachmentIndex, Flow, LinkFlow, LinkResolved, LinkShape, NextHop, PortIndex, Refusal, Replica, Resolved,
    Tables, resolve_link, resolve_link_replica,
};
use ktsn_ring::{Frame as SlotFrame, SlotFlags};
use ktsn_sched::policing::{FlowKey, FrameKey, StreamHandle, StreamIdentification};
use ktsn_wire::ipv4::PROTOCOL_UDP;
use ktsn_wire::{EtherType, Ipv4Packet, Ipv6Packet, MacAddress, UdpDatagram};

use super::client::{StreamInfo, flow_of};
use super::copies::Copies;
use super::routes::Routes;

/// What a packet socket's payloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Whole frames (`SOCK_RAW`).
    Frames,
    /// What follows an Ethernet header (`SOCK_DGRAM`).
    Payloads,
}

/// What is to be sent, whatever happens to its stream.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sending {
    /// A UDP datagram.
    Datagram(Flow),
    /// A packet socket's frame.
    Link(LinkFlow),
}

/// How it would leave now.
pub(super) enum Way<'a> {
    /// By prebuilt headers.
    Datagram(&'a Resolved),
    /// With few octets before it.
    Link(LinkResolved),
}

impl Sending {
    /// `None` when the slot says something that its stream cannot mean.
    pub(super) fn of(stream: &StreamInfo, slot: &SlotFrame) -> Option<Self> {
        let flags = slot.flags;
        let shape = match stream.link {
            None if flags.is_link() => return None,
            None => return flow_of(stream, slot).map(Self::Datagram),
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

    /// Whose it is.
    pub(super) fn attachment(&self) -> AttachmentIndex {
        match self {
            Self::Datagram(flow) => flow.attachment,
            Self::Link(flow) => flow.attachment,
        }
    }

    /// Writes the frame to `scratch` as its own interface would carry it; where the headers before `payload` lie there.
    /// A packet socket's frame has none but what the program left to others, and no tag that is not its own.
    pub(super) fn headers(
        &self,
        routes: &mut Routes,
        tables: &Tables,
        payload: &[u8],
        scratch: &mut [u8],
    ) -> Option<Range<usize>> {
        match self {
            Self::Datagram(flow) => {
                let template = &routes.find(tables, flow).ok()?.template;
                template.write_frame(payload, scratch).ok()?;
                Some(template.outer_octets()..template.header_octets())
            }
            Self::Link(flow) => match flow.shape {
                LinkShape::Frame => Some(0..0),
                LinkShape::Payload { destination, ether_type } => {
                    let own = tables.attachment(flow.attachment)?.interface().mac();
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
        routes: &mut Routes,
        tables: &Tables,
        payload: &[u8],
        streams: &StreamIdentification,
    ) -> Option<StreamHandle> {
        match self {
            Self::Datagram(flow) => routes.stream(tables, flow, streams),
            Self::Link(flow) => {
                let way = resolve_link(tables, flow, payload).ok()?;
                streams.identify(&FrameKey {
                    tenant: u32::from(flow.attachment.0),
                    destination: way.destination.0,
                    vlan: way.outer_tag().map(|tag| tag.vid.get()).filter(|vid| *vid != 0),
                    flow: flow_key(way.ether_type, way.packet(payload)),
                })
            }
        }
    }

    /// Where `payload`, or this copy of it, would leave now.
    ///
    /// # Errors
    /// [`Refusal`]; a payload that is too long for the way is a drop.
    #[inline]
    pub(super) fn way<'a>(
        &self,
        routes: &'a mut Routes,
        tables: &Tables,
        payload: &[u8],
        replica: Replica,
    ) -> Result<Way<'a>, Refusal> {
        match self {
            Self::Datagram(flow) => Way::of(routes.find_replica(tables, flow, replica)?, payload),
            Self::Link(flow) => resolve_link_replica(tables, flow, payload, replica).map(Way::Link),
        }
    }

    /// Where the first frame of `payload` will leave; with whose MAC address, if that is not known yet. It is known in good time
    /// perhaps: [`Self::way`] tells then.
    ///
    /// # Errors
    /// As `way`; a packet socket's frame waits for nobody.
    pub(super) fn way_ahead<'a>(
        &self,
        routes: &'a mut Routes,
        tables: &Tables,
        payload: &[u8],
    ) -> Result<(Way<'a>, Option<NextHop>), Refusal> {
        let Self::Datagram(flow) = self else {
            return self.way(routes, tables, payload, Replica::First).map(|way| (way, None));
        };
        let (way, wanted) = routes.find_ahead(tables, flow)?;
        Ok((Way::of(way, payload)?, wanted))
    }
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

impl<'a> Way<'a> {
    fn of(resolved: &'a Resolved, payload: &[u8]) -> Result<Self, Refusal> {
        let fits = payload.len() <= usize::from(resolved.payload_max);
        if fits { Ok(Self::Datagram(resolved)) } else { Err(Refusal::Drop(DropReason::TooLong, None)) }
    }

    /// The port to hand it to.
    pub(super) fn port(&self) -> PortIndex {
        match self {
            Self::Datagram(way) => way.port,
            Self::Link(way) => way.port,
        }
    }

    /// Which of several copies this is, if there are several; and how many before it cannot leave.
    #[inline]
    pub(super) fn copies(&self) -> (Copies, u16) {
        match self {
            Self::Datagram(way) => (Copies::of(way.replica), way.skipped),
            Self::Link(way) => (Copies::of(way.replica), way.skipped),
        }
    }

    /// Octet times on the link, and octets of the service data unit.
    pub(super) fn lengths(&self, payload: &[u8]) -> (u32, u32) {
        match self {
            Self::Datagram(way) => {
                (way.template.wire_octets(payload.len()), way.template.sdu_octets(payload.len()))
            }
            Self::Link(way) => (way.wire_octets(), way.sdu_octets),
        }
    }

    /// The priority that decides on the class: the socket's; a packet socket without one has that of the tag which it
    /// wrote itself.
    pub(super) fn priority(&self, socket: u8) -> Priority {
        let own_tag = match self {
            Self::Link(way) => way.tag.filter(|_| way.is_own_tag && socket == 0),
            Self::Datagram(_) => None,
        };
        Priority::capped(u32::from(own_tag.map_or(socket, |tag| tag.pcp.get())))
    }

    /// Writes the frame; its octets, or `None` when it does not fit.
    #[inline]
    pub(super) fn write(&self, payload: &[u8], identification: u16, out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Datagram(way) => way.template.write_frame_identified(payload, identification, out).ok(),
            Self::Link(way) => way.write(payload, identification, out),
        }
    }
}
