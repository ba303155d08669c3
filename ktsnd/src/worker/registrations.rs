// SPDX-License-Identifier: Apache-2.0
//! The streams of one client, with registrations that ended while frames of them may still lie in the ring.
//!
//! In: registrations as they come and go, and each list of published slots that is begun. Out: the registration that a frame was
//! published under. So no ring has to be emptied before a registration changes. Memory is allocated when the client is made.

use std::net::SocketAddr;

use ktsn_resolve::AttachmentIndex;
use ktsn_ring::StreamStatus;

use crate::limits::{EARLIER_MAX, STREAMS_MAX};

/// What a packet socket's payloads are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    /// Whole frames (`SOCK_RAW`).
    Frames,
    /// What follows an Ethernet header (`SOCK_DGRAM`).
    Payloads,
}

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
    /// The device that it is bound to; 0: none.
    pub interface: u32,
    /// The user that it belongs to.
    pub uid: u32,
    /// What its payloads are when it is a packet socket.
    pub link: Option<LinkKind>,
    /// Its transmit times are deadlines (SOF_TXTIME_DEADLINE_MODE).
    pub is_deadline: bool,
    /// The answer for the stream's word.
    pub status: StreamStatus,
}

/// A registration that ended while frames of it may still lie in the ring.
#[derive(Debug)]
struct Earlier {
    index: u32,
    info: StreamInfo,
    /// How many lists had begun when it ended.
    lists_begun: u64,
}

/// The registrations of one client.
#[derive(Debug)]
pub(super) struct Registrations {
    streams: Box<[Option<StreamInfo>]>,
    /// Oldest first.
    earlier: Vec<Earlier>,
    /// How many lists of published slots were begun.
    lists_begun: u64,
}

impl Registrations {
    /// Octets that it has outside of itself.
    pub(super) const OCTETS: usize =
        STREAMS_MAX as usize * size_of::<Option<StreamInfo>>() + EARLIER_MAX * size_of::<Earlier>();

    /// No stream is registered.
    pub(super) fn new() -> Self {
        let streams = vec![None; STREAMS_MAX as usize].into_boxed_slice();
        Self { streams, earlier: Vec::with_capacity(EARLIER_MAX), lists_begun: 0 }
    }

    /// The registration of this index, if there is one.
    pub(super) fn get(&self, index: u32) -> Option<&StreamInfo> {
        self.streams.get(index as usize)?.as_ref()
    }

    /// Sets or clears a registration; the registrar has checked the index. `is_published`: frames lie in the ring, so the old
    /// registration is remembered. Of more than [`EARLIER_MAX`] such registrations the oldest is forgotten, and its frames end
    /// as `peer_corrupt`.
    pub(super) fn set(&mut self, index: u32, info: Option<StreamInfo>, is_published: bool) {
        let Some(entry) = self.streams.get_mut(index as usize) else { return };
        let token = info.as_ref().map(|info| info.token);
        let old = std::mem::replace(entry, info);
        if let Some(old) = old.filter(|old| is_published && Some(old.token) != token) {
            if self.earlier.len() == EARLIER_MAX {
                self.earlier.remove(0);
            }
            self.earlier.push(Earlier { index, info: old, lists_begun: self.lists_begun });
        }
    }

    /// The registration, of now or earlier, that a frame of this stream and token was published under.
    #[inline]
    pub(super) fn at_push(&self, index: u32, token: u32) -> Option<&StreamInfo> {
        match self.get(index) {
            Some(stream) if stream.token == token => Some(stream),
            _ => self.earlier(index, token),
        }
    }

    /// The registration of this index and token that has ended, if it is remembered.
    pub(super) fn earlier(&self, index: u32, token: u32) -> Option<&StreamInfo> {
        let is_it = |earlier: &&Earlier| earlier.index == index && earlier.info.token == token;
        self.earlier.iter().rev().find(is_it).map(|earlier| &earlier.info)
    }

    /// A list of published slots is begun.
    pub(super) fn begin_list(&mut self) {
        self.lists_begun += 1;
        // The list that was in hand when a registration ended and the next one hold all frames of it.
        let lists_begun = self.lists_begun;
        self.earlier.retain(|earlier| earlier.lists_begun + 1 >= lists_begun);
    }

    /// How many lists of published slots were begun.
    pub(super) fn lists_begun(&self) -> u64 {
        self.lists_begun
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use ktsn_ring::StreamCode;

    use super::*;

    fn stream(token: u32) -> Option<StreamInfo> {
        Some(StreamInfo {
            interface: 0,
            uid: 0,
            token,
            cookie: 1,
            attachment: AttachmentIndex(0),
            local: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
            peer: None,
            link: None,
            is_deadline: false,
            status: StreamStatus { token, code: StreamCode::Registered, ..StreamStatus::default() },
        })
    }

    #[test]
    fn a_frame_keeps_the_registration_that_it_was_published_under_for_two_lists() {
        let mut all = Registrations::new();
        all.set(3, stream(7), false);
        all.set(3, stream(8), true);
        assert_eq!(all.at_push(3, 8).map(|info| info.token), Some(8));
        for _ in 0..2 {
            assert_eq!(all.at_push(3, 7).map(|info| info.token), Some(7));
            assert!(all.at_push(2, 7).is_none());
            all.begin_list();
        }
        assert!(all.at_push(3, 7).is_none());
        // With an empty ring nothing has to be remembered.
        all.set(3, None, false);
        assert!(all.at_push(3, 8).is_none());
    }

    #[test]
    fn the_oldest_registration_is_forgotten_first() {
        let mut all = Registrations::new();
        for token in 0..EARLIER_MAX as u32 + 2 {
            all.set(0, stream(token), true);
        }
        assert!(all.at_push(0, 0).is_none() && all.at_push(0, 1).is_some());
        assert!(all.earlier.capacity() == EARLIER_MAX);
    }
}
