// SPDX-License-Identifier: Apache-2.0
//! One process: its region, its streams, and private copies of what it has queued.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ktsn_resolve::{AttachmentIndex, Flow, PortIndex};
use ktsn_ring::{Consumer, Frame as SlotFrame, SlotFlags};

use rustix::fd::OwnedFd;

use super::attention::Attended;
use super::command::ClientKey;
use super::copies::Copies;
use super::report::Asked;
use super::sending::{LinkKind, Sending};
use crate::limits::STREAMS_MAX;

/// What the registrar read from a passed socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// The client's token for this registration.
    pub token: u32,
    /// SO_COOKIE.
    pub cookie: u64,
    /// The attachment it belongs to.
    pub attachment: AttachmentIndex,
    /// Local address; unspecified when not bound to one.
    pub local: SocketAddr,
    /// Peer, when connected.
    pub peer: Option<SocketAddr>,
    /// What its payloads are when it is a packet socket.
    pub link: Option<LinkKind>,
    /// The answer for the stream's word.
    pub status: ktsn_ring::StreamStatus,
}

/// A queued frame: everything to send it, whatever happens to its stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Queued {
    pub sending: Sending,
    pub port: PortIndex,
    pub payload_octets: u16,
    pub copies: Copies,
}

/// One process.
#[derive(Debug)]
pub struct Client {
    /// Its name.
    pub key: ClientKey,
    /// The attachment of its first socket: what its limits and counters belong to.
    pub attachment: AttachmentIndex,
    pub(super) consumer: Consumer,
    pub(super) doorbell: OwnedFd,
    streams: Box<[Option<StreamInfo>]>,
    payloads: Box<[u8]>,
    payload_octets_max: usize,
    pub(super) queued: Box<[Option<Queued>]>,
    pub(super) queued_count: usize,
    /// What is to be told of each slot's frame.
    pub(super) asked: Box<[Asked]>,
    /// Index of the pod's interface, for what is told; 0 = unknown.
    pub(super) interface: u32,
    /// The region is not read any more: its links were impossible and all that they reached is taken, its
    /// attachment is gone, or its process is.
    pub(super) closed: bool,
    pub(super) retired: bool,
    /// The process is gone; to be handed back when `held` is zero.
    pub(super) ended: bool,
    pub(super) bells: u32,
    /// Notices since the last look after clients.
    pub(super) notices: u32,
    pub(super) muted: bool,
    pub(super) attended: Attended,
    pub(super) counters_seen: [u64; 32],
}

impl Client {
    /// A client whose region was just made.
    ///
    /// `slots` and `payload_octets_max` are those of the region's layout.
    #[must_use]
    pub fn new(
        key: ClientKey,
        attachment: AttachmentIndex,
        consumer: Consumer,
        doorbell: OwnedFd,
        slots: usize,
        payload_octets_max: usize,
    ) -> Self {
        Self {
            key,
            attachment,
            consumer,
            doorbell,
            streams: vec![None; STREAMS_MAX as usize].into_boxed_slice(),
            payloads: vec![0; slots * payload_octets_max].into_boxed_slice(),
            payload_octets_max,
            queued: vec![None; slots].into_boxed_slice(),
            queued_count: 0,
            asked: vec![Asked::default(); slots].into_boxed_slice(),
            interface: 0,
            closed: false,
            retired: false,
            ended: false,
            bells: 0,
            notices: 0,
            muted: false,
            attended: Attended::default(),
            counters_seen: [0; 32],
        }
    }

    /// The same on the pod's interface of this index.
    #[must_use]
    pub fn on_interface(mut self, interface: u32) -> Self {
        self.interface = interface;
        self
    }

    pub(super) fn stream(&self, index: u32) -> Option<&StreamInfo> {
        self.streams.get(index as usize)?.as_ref()
    }

    /// Sets or clears a stream; the registrar has checked the index.
    pub(super) fn set_stream(&mut self, index: u32, info: Option<StreamInfo>) {
        if let Some(entry) = self.streams.get_mut(index as usize) {
            *entry = info;
        }
    }

    pub(super) fn streams(&self) -> impl Iterator<Item = &StreamInfo> {
        self.streams.iter().flatten()
    }

    /// The port that a slot is queued for, and which copy of it.
    pub(super) fn place(&mut self, slot: u16) -> Option<(&mut PortIndex, &mut Copies)> {
        let queued = self.queued.get_mut(usize::from(slot))?.as_mut()?;
        Some((&mut queued.port, &mut queued.copies))
    }

    pub(super) fn payload(&self, slot: u16, octets: u16) -> &[u8] {
        let start = usize::from(slot) * self.payload_octets_max;
        &self.payloads[start..start + usize::from(octets)]
    }

    pub(super) fn keep_payload(&mut self, slot: u16, payload: &[u8]) {
        let start = usize::from(slot) * self.payload_octets_max;
        self.payloads[start..start + payload.len()].copy_from_slice(payload);
    }
}

/// The flow of a slot, or `None` when it says something impossible.
pub(super) fn flow_of(stream: &StreamInfo, slot: &SlotFrame) -> Option<Flow> {
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
    Some(Flow {
        attachment: stream.attachment,
        bound: (!bound.is_unspecified()).then_some(bound),
        source_port: stream.local.port(),
        destination,
        destination_port,
        scope,
        traffic_class: if slot.flags.contains(SlotFlags::TRAFFIC_CLASS) { slot.traffic_class } else { 0 },
        hop_limit: if slot.flags.contains(SlotFlags::HOP_LIMIT) { slot.hop_limit } else { 0 },
    })
}
