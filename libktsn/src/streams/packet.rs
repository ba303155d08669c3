// SPDX-License-Identifier: Apache-2.0
//! Packet sockets (AF_PACKET): which frames of them a slot can hold, and which of these the daemon takes.
//!
//! In: a socket, a message, what the daemon says in the region. Out: a [`SlotFrame`] with the greatest payload, or a reason
//! to leave it to the kernel. What this library does not understand at once is the kernel's: it has the errno (packet(7)).
//! The rules are the daemon's own ([`LinkHead::judge`]); what another thread changes after this look, it drops.

use core::ffi::c_int;

use ktsn_model::link_frame::{HEAD_OCTETS, HEADER_OCTETS, TAG_OCTETS};
use ktsn_model::{BypassReason, LinkHead, LinkRules};
use ktsn_ring::{DestinationVerdict, LinkFacts, SlotFlags, SlotFrame, StreamStatus};

use crate::call::control_messages::{Parsed, field};
use crate::call::message::Message;
use crate::call::options::{self, Options};
use crate::process::abi::{
    AF_PACKET, PACKET_LOSS, PACKET_QDISC_BYPASS, PACKET_VNET_HDR, SO_DOMAIN, SO_MARK, SO_NOFCS, SO_TYPE,
    SOCK_DGRAM, SOCK_RAW, SOL_PACKET, SOL_SOCKET,
};
use crate::process::region::RegionUse;
use crate::streams::{Shape, Stream};
use crate::{process::sys, streams::stamps};

/// How often facts that are being written are read again, and the pause, ns.
const ATTEMPTS: u32 = 20;
const NAP: u32 = 50_000;
/// `sizeof(struct sockaddr_ll)`: the kernel wants all of it.
const NAME_OCTETS: usize = 20;
/// EtherTypes begin here (802.3 3.2.6); below, the kernel writes a length or one of its own numbers.
const ETHER_TYPE_MIN: u16 = 0x600;
/// Octets of a MAC address.
const MAC_OCTETS: usize = 6;

/// The shape of a socket; `None` when it is no packet socket.
pub(crate) fn shape(fd: c_int) -> Option<Shape> {
    let read = |name| sys::option_int(fd, SOL_SOCKET, name);
    if read(SO_DOMAIN)? != c_int::from(AF_PACKET) {
        return None;
    }
    match read(SO_TYPE)? {
        SOCK_RAW => Some(Shape::Frame),
        SOCK_DGRAM => Some(Shape::Payload),
        _ => None,
    }
}

/// What the options of a packet socket say.
pub(crate) fn options(fd: c_int) -> Options {
    const UNSUPPORTED: [(c_int, c_int); 5] = [
        (SOL_SOCKET, SO_MARK),
        (SOL_SOCKET, SO_NOFCS),
        (SOL_PACKET, PACKET_VNET_HDR),
        (SOL_PACKET, PACKET_LOSS),
        (SOL_PACKET, PACKET_QDISC_BYPASS),
    ];
    let is_set =
        |&(level, name): &(c_int, c_int)| sys::option_int(fd, level, name).is_some_and(|set| set != 0);
    let is_unsupported = UNSUPPORTED.iter().any(is_set);
    options::with_priority(Options { is_unsupported, ..Options::default() }, fd)
}

/// `struct sockaddr_ll`, as far as a send looks at it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name {
    protocol: u16,
    if_index: u32,
    address: [u8; MAC_OCTETS],
    address_octets: u8,
}

impl Name {
    fn parse(name: &[u8]) -> Option<Self> {
        let family = u16::from_ne_bytes(field(name, 0)?);
        (family == AF_PACKET && name.len() >= NAME_OCTETS).then_some(())?;
        Some(Self {
            protocol: u16::from_be_bytes(field(name, 2)?),
            if_index: u32::from_ne_bytes(field(name, 4)?),
            address_octets: *name.get(11)?,
            address: field(name, 12)?,
        })
    }
}

/// The interface that a socket is bound to, from `getsockname`; 0 = none.
pub(crate) fn bound_interface(fd: c_int) -> u32 {
    // The kernel gives no more of the address than the device has.
    let name = sys::local_name(fd);
    name.and_then(|name| field(&name.octets, 4)).map_or(0, u32::from_ne_bytes)
}

/// The frame that a message asks for, sent on `fd`; `None` when only the kernel can judge it.
pub(crate) fn frame(stream: Stream, fd: c_int, message: &Message<'_>, control: &Parsed) -> Option<SlotFrame> {
    let options = stream.options();
    if options.is_unsupported || stream.is_pinned() || (control.is_any && is_for_kernel(control)) {
        return None;
    }
    let asked = stamps::requested_flags(stream, control)?;
    let mut frame = SlotFrame {
        stream_index: stream.index,
        priority: control.priority.unwrap_or(options.priority),
        ..SlotFrame::default()
    };
    if asked != SlotFlags::NONE {
        frame.descriptor = fd;
    }
    let name = if message.name.is_empty() { None } else { Some(Name::parse(message.name)?) };
    match (stream.packet_shape()?, name) {
        (Shape::Frame, name) => {
            frame.flags = SlotFlags::LINK_FRAME.with(asked);
            // The address is not used, but the kernel looks at its length.
            frame.scope = match name {
                Some(name) if usize::from(name.address_octets) > 8 => return None,
                Some(name) => name.if_index,
                None => stream.bound_interface(),
            };
        }
        (Shape::Payload, Some(name))
            if usize::from(name.address_octets) == MAC_OCTETS && name.protocol >= ETHER_TYPE_MIN =>
        {
            // Nothing to send: with a transmit ring that means "send the ring".
            if message.octets == 0 {
                return None;
            }
            frame.flags = SlotFlags::LINK_PAYLOAD.with(asked);
            (frame.scope, frame.port) = (name.if_index, name.protocol);
            let [a, b, c, d, e, f] = name.address;
            frame.address = [a, b, c, d, e, f, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        }
        (Shape::Payload, _) => return None,
    }
    (frame.scope != 0).then_some(frame)
}

/// Whether the control messages ask for something that only the kernel does. Those of SOL_IP and SOL_IPV6 mean nothing
/// here, to the kernel neither.
fn is_for_kernel(control: &Parsed) -> bool {
    control.has_others || control.segment_octets.is_some() || options::has_refusable_priority(control)
}

/// The greatest payload that the daemon takes of such a frame, or why it takes none; `None` when what it says stays
/// unreadable.
pub(crate) fn payload_max(
    held: &RegionUse,
    message: &Message<'_>,
    frame: &SlotFrame,
    status: &StreamStatus,
) -> Option<Result<usize, BypassReason>> {
    let producer = held.producer();
    for _ in 0..ATTEMPTS {
        if let Some(facts) = producer.link() {
            return Some(judge(held, &facts, message, frame, status));
        }
        sys::nap(NAP);
    }
    None
}

fn judge(
    held: &RegionUse,
    facts: &LinkFacts,
    message: &Message<'_>,
    frame: &SlotFrame,
    status: &StreamStatus,
) -> Result<usize, BypassReason> {
    if !facts.is_served || frame.scope != facts.if_index {
        return Err(BypassReason::NotAllowed);
    }
    if status.limit == 0 {
        return Err(BypassReason::from_number(status.bypass).unwrap_or(BypassReason::NotAllowed));
    }
    let mut head = [0; HEAD_OCTETS];
    let used = first_octets(&mut head, facts, message, frame);
    // What is no frame gets the kernel's EINVAL.
    let head = head.get(..used).and_then(LinkHead::parse).ok_or(BypassReason::UnsupportedOption)?;
    let producer = held.producer();
    let rules = LinkRules {
        source: facts.source,
        vlan: facts.vlan,
        is_ip_listed: facts.is_ip_listed,
        is_mac_listed: facts.is_mac_listed,
        is_source_judged: facts.is_source_judged,
    };
    let owns = |address| producer.owns(address) == Some(true);
    // Packet sockets need no SO_BROADCAST.
    let allows = |address| {
        let verdict = producer.destination(address);
        matches!(
            verdict,
            DestinationVerdict::Take { is_asked: false, .. } | DestinationVerdict::Broadcast { .. }
        )
    };
    head.judge(&rules, owns, |address| producer.names(address) == Some(true), allows)
        .map_err(|_| BypassReason::NotAllowed)?;
    let tag = if head.tag.is_some() { TAG_OCTETS } else { 0 };
    let greatest = (status.limit as usize).saturating_add(tag);
    let made = if frame.flags.contains(SlotFlags::LINK_PAYLOAD) { HEADER_OCTETS } else { 0 };
    Ok(greatest.saturating_sub(made))
}

/// The first octets of the frame that the message becomes; how many.
fn first_octets(
    head: &mut [u8; HEAD_OCTETS],
    facts: &LinkFacts,
    message: &Message<'_>,
    frame: &SlotFrame,
) -> usize {
    let mut at = 0;
    if frame.flags.contains(SlotFlags::LINK_PAYLOAD) {
        let [a, b, c, d, e, f, ..] = frame.address;
        let [g, h, i, j, k, l] = facts.source;
        let [high, low] = frame.port.to_be_bytes();
        let header = [a, b, c, d, e, f, g, h, i, j, k, l, high, low];
        if let Some(place) = head.first_chunk_mut() {
            *place = header;
        }
        at = header.len();
    }
    let mut pieces = message.pieces();
    pieces.begin(HEAD_OCTETS.saturating_sub(at));
    for (base, octets) in pieces {
        if octets == HEAD_OCTETS {
            // SAFETY: the piece is as long as it says: it was found readable when the message was read.
            *head = unsafe { base.cast::<[u8; HEAD_OCTETS]>().read_unaligned() };
            return HEAD_OCTETS;
        }
        for index in 0..octets {
            let Some(place) = head.get_mut(at) else { return HEAD_OCTETS };
            // Volatile: as an ordinary loop it would become a call of memcpy, which this library does not have.
            // SAFETY: as above.
            *place = unsafe { base.wrapping_add(index).read_volatile() };
            at = at.wrapping_add(1);
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::Name;

    fn name(family: u16, protocol: u16, if_index: u32, address_octets: u8) -> Vec<u8> {
        let mut name = family.to_ne_bytes().to_vec();
        name.extend(protocol.to_be_bytes());
        name.extend(if_index.to_ne_bytes());
        name.extend([0, 0, 0, address_octets, 2, 0, 0, 0, 0, 9, 0xee, 0xee]);
        name
    }

    #[test]
    fn a_name_is_a_whole_sockaddr_ll() {
        let good = name(17, 0x22f0, 3, 6);
        let read = Name { protocol: 0x22f0, if_index: 3, address: [2, 0, 0, 0, 0, 9], address_octets: 6 };
        assert_eq!(Name::parse(&good), Some(read));
        let longer = [&good[..], &[0; 108]].concat();
        assert_eq!(Name::parse(&longer), Some(read));
        for cut in 0..good.len() {
            assert_eq!(Name::parse(&good[..cut]), None, "{cut} octets");
        }
        assert_eq!(Name::parse(&name(2, 0x22f0, 3, 6)), None);
    }
}
