// SPDX-License-Identifier: Apache-2.0
//! Takes datagrams that the kernel is to send later.
//!
//! In: a `Later` with the program's socket. Out: a datagram for the namespace's lane ([`Later`]), which hands it to the kernel at its
//! transmit time. The worker judges it before. Nothing here waits: only sockets that close at once are taken, all others go to the
//! examiner.
//!
//! [`Later`]: crate::clients::later::Later

use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use ktsn_model::{DropReason, Priority};
use ktsn_resolve::{AttachmentIndex, Flow, Marks};
use ktsn_ring::ClockId;
use ktsn_ring::control::{self, Later, Message};
use ktsn_time::{Nanos, Tai, TxTime};

use super::Registrar;
use crate::clients::connection::{self, Read, Received};
use crate::clients::examiner::Job;
use crate::clients::later::{Datagram, read_clock};
use crate::clients::socket::{SocketFacts, facts_without_lock};
use crate::clients::sys;
use crate::worker::{Command, Judging, StreamInfo, monotonic_now};

/// Messages that are read of a process that has ended: more than fit into a connection.
const UNREAD_MAX: usize = 1024;

/// The facts of the socket that came with a message, if that is a datagram, with a socket that may have sent it.
pub(super) fn facts_of_datagram(message: &Received) -> Option<SocketFacts> {
    let [socket] = &message.descriptors[..] else { return None };
    let is_datagram = matches!(control::parse(message.octets()), Ok(Message::Later(_)));
    let facts = is_datagram.then(|| facts_without_lock(socket).ok()).flatten();
    facts.filter(SocketFacts::closes_at_once)
}

/// The destination that `msg_name` has, with its scope.
fn destination_of(name: &[u8]) -> Option<(IpAddr, u16, u32)> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(name.get(2..4)?.try_into().ok()?);
    match i32::from(family) {
        libc::AF_INET => Some((IpAddr::from(<[u8; 4]>::try_from(name.get(4..8)?).ok()?), port, 0)),
        libc::AF_INET6 => {
            let address = IpAddr::from(<[u8; 16]>::try_from(name.get(8..24)?).ok()?).to_canonical();
            Some((address, port, u32::from_ne_bytes(name.get(24..28)?.try_into().ok()?)))
        }
        _ => None,
    }
}

/// Where a datagram goes. `None`: it says nothing that KTSN has a port for.
fn flow_of(
    attachment: AttachmentIndex,
    facts: &SocketFacts,
    stream: Option<&StreamInfo>,
    later: &Later<'_>,
) -> Option<Flow> {
    let (destination, destination_port, scope) = match stream.and_then(|stream| stream.peer) {
        Some(peer) if later.name.is_empty() => (peer.ip().to_canonical(), peer.port(), 0),
        _ => destination_of(later.name)?,
    };
    // What takes the socket's lock was read when it was registered.
    let local = stream.map_or(facts.local, |stream| stream.local);
    let bound = local.ip().to_canonical();
    Some(Flow {
        attachment,
        uid: facts.uid,
        is_connected: later.name.is_empty(),
        bound: (!bound.is_unspecified()).then_some(bound),
        source_port: local.port(),
        destination,
        destination_port,
        scope: if scope == 0 { facts.interface } else { scope },
        traffic_class: 0,
        hop_limit: 0,
        marks: Marks::default(),
    })
}

/// The transmit time of a `Later`, on a clock that a worker reads. One of CLOCK_REALTIME or CLOCK_BOOTTIME is as far ahead on MONOTONIC.
fn tx_time_of(clock: u32, tx_time: u64) -> Option<TxTime> {
    if clock == u32::from(ClockId::Tai.id()) {
        return Some(TxTime::Tai(Tai::from_nanos(tx_time)));
    }
    let left = Nanos::new(i64::try_from(tx_time.saturating_sub(read_clock(clock))).ok()?);
    Some(TxTime::Monotonic(monotonic_now().saturating_add(left)))
}

/// The number in a control message (SO_PRIORITY: Linux 6.14), of two octets at least.
fn number_of(control: &[u8], level: i32, kind: i32) -> Option<u32> {
    let (mut left, mut found) = (control, None);
    while let Some((header, _)) = left.split_first_chunk::<16>() {
        let word =
            |at: usize| i32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        // The program's own number: it may be anything.
        let octets = usize::from_ne_bytes(*header.first_chunk().unwrap_or(&[0; 8]));
        if (word(8), word(12)) == (level, kind) {
            let mut value = [0; 4];
            let given = left.get(16..octets.min(20).min(left.len())).unwrap_or(&[]);
            value[..given.len()].copy_from_slice(given);
            found = Some(u32::from_ne_bytes(value));
        }
        let next = octets.checked_next_multiple_of(8).filter(|_| octets >= 16);
        let Some(octets) = next else { break };
        left = left.get(octets..).unwrap_or(&[]);
    }
    found
}

/// Octets of the datagrams that the kernel makes of one call.
fn segment_of(socket: impl AsFd, control: &[u8]) -> u16 {
    let of_call = number_of(control, libc::SOL_UDP, libc::UDP_SEGMENT);
    u16::try_from(of_call.unwrap_or_else(|| sys::segment(socket))).unwrap_or(0)
}

impl<P: Send + 'static> Registrar<P> {
    /// Takes a datagram ([`facts_of_datagram`]); false ends the connection.
    pub(super) fn take_datagram(&mut self, number: u64, message: Received, facts: &SocketFacts) -> bool {
        let Some(client) = self.connections.get(&number).and_then(|connection| connection.client.as_ref())
        else {
            return false;
        };
        let Received { octets, mut descriptors } = message;
        let Ok(Message::Later(later)) = control::parse(&octets) else { return false };
        let (clock, tx_time) = (later.header.clock, later.header.tx_time);
        let Some(socket) = descriptors.pop() else { return false };
        let served = {
            let known = self.directory.lock();
            let found = known.served.iter().find(|served| served.index == client.attachment);
            let view = known.clients.get(&client.key);
            let stream =
                view.and_then(|view| view.streams.values().find(|stream| stream.cookie == facts.cookie));
            found.map(|served| (served.clone(), stream.cloned()))
        };
        let Some((served, stream)) = served else { return false };
        let netns_cookie = client.netns_cookie;
        let stream = stream.as_ref();
        let flow = flow_of(client.attachment, facts, stream, &later);
        let judging = flow.zip(tx_time_of(clock, tx_time)).map(|(flow, tx_time)| Judging {
            netns_cookie,
            number: 0,
            flow,
            priority: Priority::capped(
                number_of(later.control, libc::SOL_SOCKET, libc::SO_PRIORITY)
                    .unwrap_or_else(|| sys::priority(&socket)),
            ),
            payload_octets: later.header.payload_octets,
            segment_octets: segment_of(&socket, later.control),
            tx_time,
        });
        let datagram = Datagram {
            socket: Arc::new(socket),
            cookie: facts.cookie,
            octets,
            clock,
            tx_time,
            client: client.key,
            attachment: client.attachment,
            is_foreign: facts.netns_cookie != netns_cookie,
            stats: served.stats.clone(),
            asked: None,
        };
        let horizon = served.attachment.horizon.get().unsigned_abs();
        let Some(judging) = judging else {
            self.directory.later().give(netns_cookie, horizon, datagram);
            return true;
        };
        let held = self.directory.later().give_unjudged(netns_cookie, horizon, datagram);
        if let Some(number) = held {
            let judging = Box::new(Judging { number, ..judging });
            if served.worker.send(Command::Judge(judging)).is_err() {
                self.directory.later().judge(netns_cookie, number, Err(DropReason::Detached));
            }
        }
        true
    }

    /// A process has ended: the datagrams that it sent are taken, then its connection ends.
    pub(super) fn end_process(&mut self, number: u64) {
        self.take_unread(number);
        self.end(number);
    }

    /// Takes the unread datagrams of a client that sends no more.
    pub(super) fn take_unread(&mut self, number: u64) {
        let owner = self.owner_of(number);
        for _ in 0..UNREAD_MAX {
            let Some(connection) = self.connections.get(&number).filter(|c| c.client.is_some()) else {
                return;
            };
            let Read::Message(message) = connection::read(connection.fd.as_fd(), &mut self.buffer) else {
                return;
            };
            if let Some(facts) = facts_of_datagram(&message) {
                self.take_datagram(number, *message, &facts);
                continue;
            }
            let mut descriptors = message.descriptors;
            descriptors.retain(|each| !facts_without_lock(each).is_ok_and(|facts| facts.closes_at_once()));
            if !descriptors.is_empty() {
                self.examiner.give(owner, 0, Job::Look { unsealed: None, known: None, descriptors });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::number_of;

    fn message(octets: usize, level: i32, kind: i32, value: &[u8]) -> Vec<u8> {
        let mut all = [&octets.to_ne_bytes()[..], &level.to_ne_bytes(), &kind.to_ne_bytes(), value].concat();
        all.resize(all.len().next_multiple_of(8), 0);
        all
    }

    /// Control messages are a program's own octets: none keeps the registrar.
    #[test]
    fn numbers_of_control_messages_are_read_whatever_their_lengths() {
        let priority = message(20, 1, 12, &5_u32.to_ne_bytes());
        let segment = message(18, 17, 103, &1000_u16.to_ne_bytes());
        let both = [&segment[..], &priority].concat();
        assert_eq!((number_of(&both, 1, 12), number_of(&both, 17, 103)), (Some(5), Some(1000)));
        assert_eq!((number_of(&both, 0, 12), number_of(&[], 1, 12)), (None, None));
        for octets in
            [0, 1, 15, 16, 17, 21, 1 << 20, usize::MAX / 2, usize::MAX - 8, usize::MAX - 6, usize::MAX]
        {
            let odd = [message(octets, 9, 9, &[]), priority.clone()].concat();
            let found = number_of(&odd, 1, 12);
            assert_eq!(found.is_some(), octets == 16, "{octets}");
            // Its own length is wrong.
            let _ = number_of(&message(octets, 1, 12, &[7; 3]), 1, 12);
        }
        for octets in 0..both.len() {
            let _ = number_of(&both[..octets], 1, 12);
        }
    }
}
