// SPDX-License-Identifier: Apache-2.0
//! One process: its region, its streams, and private copies of what it has queued.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use ktsn_resolve::{AttachmentIndex, Flow, PortIndex};
use ktsn_ring::{Consumer, Frame as SlotFrame, LinkError, SlotError, SlotFlags, Taken};

use ktsn_time::{Monotonic, Nanos};
use rustix::fd::OwnedFd;

use super::attention::Attended;
use super::command::ClientKey;
use super::copies::Copies;
use super::report::Asked;
use super::sending::{LinkKind, Sending};
use super::{monotonic_now, tai_now};
use crate::limits::{EARLIER_MAX, STREAMS_MAX};

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
    /// Its transmit times are deadlines (SOF_TXTIME_DEADLINE_MODE).
    pub is_deadline: bool,
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
    /// Its program waited for a slot.
    pub has_waited: bool,
}

/// A registration that ended while frames of it may still lie in the ring.
#[derive(Debug)]
struct Earlier {
    index: u32,
    info: StreamInfo,
    /// The walks that had begun when it ended.
    walks: u64,
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
    /// Oldest first.
    earlier: Vec<Earlier>,
    /// How many lists of published slots were begun.
    walks: u64,
    /// Its ring is emptied, then closed: the walks that had begun when that was decided.
    pub(super) closing: Option<u64>,
    /// When it is closed its process is gone, too.
    pub(super) ends: bool,
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
    /// Notices of the second that began at `notices_since`.
    pub(super) notices: u32,
    pub(super) notices_since: Monotonic,
    pub(super) muted: bool,
    /// Since when it is.
    pub(super) muted_at: Monotonic,
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
            earlier: Vec::with_capacity(EARLIER_MAX),
            walks: 0,
            closing: None,
            ends: false,
            payloads: vec![0; slots * payload_octets_max].into_boxed_slice(),
            payload_octets_max,
            queued: vec![None; slots].into_boxed_slice(),
            queued_count: 0,
            asked: vec![Asked::default(); slots].into_boxed_slice(),
            interface: 0,
            closed: false,
            retired: false,
            ended: false,
            notices: 0,
            notices_since: Monotonic::ZERO,
            muted: false,
            muted_at: Monotonic::ZERO,
            attended: Attended::default(),
            counters_seen: [0; 32],
        }
    }

    /// Octets of private memory that a client with so many slots has at most in its worker, whatever number of streams it has. The
    /// last term of a slot is what the ring's consumer remembers of it.
    #[must_use]
    pub const fn private_octets(slots: usize, payload_octets_max: usize) -> usize {
        let of_slot = payload_octets_max + size_of::<Option<Queued>>() + size_of::<Asked>() + 64;
        let of_stream = size_of::<Option<StreamInfo>>() + size_of::<ktsn_ring::StreamStatus>();
        let earlier = EARLIER_MAX * size_of::<Earlier>();
        size_of::<Self>() + slots * of_slot + STREAMS_MAX as usize * of_stream + earlier
    }

    /// Seals the region against holes and makes its pages present. From then on no access to it waits for the program;
    /// before, no worker may have the client. Sealing itself may wait for the program.
    ///
    /// # Errors
    /// As [`Consumer::seal`].
    pub fn seal(&mut self, memfd: &OwnedFd) -> Result<(), ktsn_ring::RegionError> {
        self.promise_to_begin();
        self.consumer.seal(memfd)
    }

    /// Promises that the worker looks at the ring soon: a program that waits for the answer to its first registration does not
    /// take the daemon for dead.
    pub fn promise_to_begin(&self) {
        let soon = Nanos::from_seconds(1);
        let (monotonic, tai) = (monotonic_now().saturating_add(soon), tai_now().saturating_add(soon));
        self.consumer.look_at(monotonic.as_nanos(), tai.as_nanos());
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

    /// Sets or clears a stream; the registrar has checked the index. Frames that lie in the ring keep the registration that
    /// they were published under: no ring has to be emptied first. Of more than [`EARLIER_MAX`] such registrations the oldest
    /// is forgotten, and its frames end as `peer_corrupt`.
    pub(super) fn set_stream(&mut self, index: u32, info: Option<StreamInfo>) {
        let Some(entry) = self.streams.get_mut(index as usize) else { return };
        let token = info.as_ref().map(|info| info.token);
        let old = std::mem::replace(entry, info);
        if let Some(old) = old.filter(|old| Some(old.token) != token)
            && self.consumer.published()
        {
            if self.earlier.len() == EARLIER_MAX {
                self.earlier.remove(0);
            }
            self.earlier.push(Earlier { index, info: old, walks: self.walks });
        }
    }

    /// The registration, of now or earlier, that a frame of this stream and token was published under.
    #[inline]
    pub(super) fn registered(&self, index: u32, token: u32) -> Option<&StreamInfo> {
        match self.stream(index) {
            Some(stream) if stream.token == token => Some(stream),
            _ => was_registered(&self.earlier, index, token),
        }
    }

    /// The metadata of the oldest published frame; `None` where the list in hand is at its end.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Result<Taken, SlotError>> {
        let earlier = &self.earlier;
        self.consumer.take_metadata(|index, token| was_registered(earlier, index, token).is_some())
    }

    /// Copies the payload of a frame that was taken to where it stays until the frame's end.
    #[inline]
    pub(super) fn fetch(&mut self, slot: u16, octets: u16) {
        let start = usize::from(slot) * self.payload_octets_max;
        let room = &mut self.payloads[start..start + usize::from(octets)];
        self.consumer.read_payload(slot, room);
    }

    /// Follows at most `budget` links of the list in hand, or of a new one. How many frames can be taken then.
    ///
    /// # Errors
    /// The list is impossible.
    pub(super) fn collect(&mut self, budget: usize) -> Result<usize, LinkError> {
        if !self.consumer.is_busy() {
            self.walks += 1;
            // The list that was in hand when a registration ended and the next one hold all frames of it.
            let walks = self.walks;
            self.earlier.retain(|earlier| earlier.walks + 1 >= walks);
        }
        self.consumer.collect(budget)
    }

    /// All that was published at some instant has been taken: nothing is in hand or published, or one whole list that was
    /// begun after the first `walks` ones has been.
    pub(super) fn is_taken_since(&self, walks: u64) -> bool {
        let is_through = !self.consumer.is_busy() && (self.walks > walks || !self.consumer.published());
        self.closed || self.consumer.broken().is_some() && !self.consumer.published() || is_through
    }

    /// How many lists of published slots were begun.
    pub(super) fn walks(&self) -> u64 {
        self.walks
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

    /// Keeps what a slot's frame, whose payload was fetched, needs until it leaves.
    pub(super) fn queue(&mut self, slot: u16, queued: Queued) {
        self.queued_count += 1;
        self.queued[usize::from(slot)] = Some(queued);
    }
}

fn was_registered(earlier: &[Earlier], index: u32, token: u32) -> Option<&StreamInfo> {
    let is_it = |earlier: &&Earlier| earlier.index == index && earlier.info.token == token;
    earlier.iter().rev().find(is_it).map(|earlier| &earlier.info)
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
