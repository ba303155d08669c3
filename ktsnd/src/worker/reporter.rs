// SPDX-License-Identifier: Apache-2.0
//! Telling a program how a frame ended, where it asked: error reports and transmit timestamps.
//!
//! In: the end of a frame. Out: a completion in its slot, and a notice for the notifier thread, which makes the kernel wake the
//! program (`docs/design/error-queue.md`). Nothing here allocates or waits. The only system call wakes the notifier when it
//! sleeps.

use std::net::SocketAddr;

use ktsn_ring::completion::{Completion, HEADERS_MAX};

use super::client::{Client, ClientKey};
use super::environment::Environment;
use super::requested_reports::{End, RequestedReports};
use super::resolver::Resolver;
use super::source::Source as _;
use crate::queue::Sender;
use crate::stats::{WorkerStats, count};

/// A completion that the program's error queue must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The client.
    pub client: ClientKey,
    /// The stream's index in its region.
    pub stream: u32,
    /// The token of the registration that its frame was sent under.
    pub token: u32,
    /// The program's descriptor of the socket when it sent.
    pub descriptor: i32,
    /// SO_COOKIE of the socket that was registered.
    pub cookie: u64,
    /// Its local address as it was registered.
    pub local: SocketAddr,
    /// The slot with the completion.
    pub slot: u16,
    /// The completion's number.
    pub sequence: u32,
    /// The kinds of entries, one bit each; each is one entry.
    pub kinds: u8,
}

/// Writes completions and sends notices.
pub(super) struct Reporter {
    /// `None`: programs find completions only when they look.
    notifier: Option<Sender<Notice>>,
    /// Room for the headers of one frame.
    scratch: Box<[u8]>,
}

impl Reporter {
    /// A reporter without a notifier.
    pub(super) fn new() -> Self {
        Self { notifier: None, scratch: vec![0; 1 << 16].into_boxed_slice() }
    }

    /// Notices go to `notifier` from now on.
    pub(super) fn set_notifier(&mut self, notifier: Sender<Notice>) {
        self.notifier = Some(notifier);
    }

    /// Reports how a frame ended, if its program asked. True when its slot belongs to the program from now on.
    #[inline]
    pub(super) fn report(
        &mut self,
        client: &mut Client,
        slot: u16,
        end: End,
        resolver: &mut Resolver,
        env: &mut impl Environment,
        stats: &WorkerStats,
    ) -> bool {
        match client.take_requested_reports(slot) {
            Some(requested) => self.complete(client, slot, &requested, end, (resolver, env, stats)),
            None => false,
        }
    }

    fn complete(
        &mut self,
        client: &mut Client,
        slot: u16,
        requested: &RequestedReports,
        end: End,
        (resolver, env, stats): (&mut Resolver, &mut impl Environment, &WorkerStats),
    ) -> bool {
        let outcome = end.outcome();
        let kinds = requested.kinds_at(outcome);
        // A socket that is closed has no reader, and its stream's index may name another socket by now.
        let stream = client.stream(requested.stream).filter(|stream| stream.cookie == requested.cookie);
        let Some(local) = stream.map(|stream| stream.local) else { return false };
        if kinds == 0 || client.has_ended() {
            return false;
        }
        if !client.has_room_for_completion() {
            // A program that reads no reports costs no headers either.
            count(&stats.reports_dropped);
            return false;
        }
        let done_at = env.monotonic();
        let mut completion = Completion {
            kinds,
            outcome,
            interface: client.interface,
            handed_at: if let End::Sent(at) = end { at } else { 0 },
            scheduled_at: requested.scheduled_at,
            done_at: done_at.as_nanos(),
            ..Completion::default()
        };
        if client.slots().get(slot).is_none() {
            // The frame was refused, perhaps before its payload was needed.
            client.fetch(slot, requested.payload_octets);
        }
        // The headers are written again: they were not kept, as few programs ask. Without a route there are none.
        // What was queued has its identification.
        let queued = client.slots().get(slot).map(|queued| queued.content);
        if let Some(content) = queued.or(requested.content)
            && let payload = client.slots().payload(slot, requested.payload_octets)
            && let Some(place) = content.headers(resolver, payload, &mut self.scratch)
            && let Some(headers) = self.scratch.get(place)
            && headers.len() <= HEADERS_MAX
        {
            completion.headers[..headers.len()].copy_from_slice(headers);
            completion.headers_octets = headers.len() as u8;
        }
        let Some(sequence) = client.complete(slot, &completion) else {
            count(&stats.reports_dropped);
            return false;
        };
        count(&stats.reports);
        let RequestedReports { stream, token, descriptor, cookie, .. } = *requested;
        let notice =
            Notice { client: client.key, stream, token, descriptor, cookie, local, slot, sequence, kinds };
        // All clients share the queue. A client that makes more notices than its share loses its own.
        let is_within_share = client.count_notice(done_at);
        if let Some(notifier) = &mut self.notifier
            && (!is_within_share || notifier.try_send(notice).is_err())
        {
            count(&stats.notices_lost);
        }
        true
    }
}
