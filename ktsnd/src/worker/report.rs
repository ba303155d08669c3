// SPDX-License-Identifier: Apache-2.0
//! Telling a program what became of a frame, where it asked: error reports and transmit timestamps.
//!
//! In: the end of a frame's life. Out: a completion in its slot, and a notice for the notifier, who makes the kernel
//! wake the program (`docs/design/error-queue.md`). A frame that asked for nothing costs one comparison. Nothing
//! here allocates, waits for anybody or makes a system call, but for waking the notifier when it sleeps.

use std::net::SocketAddr;

use ktsn_model::DropReason;
use ktsn_port::Port;
use ktsn_ring::completion::{Completion, HEADERS_MAX, Outcome, kind};
use ktsn_ring::{SlotFlags, Taken};
use ktsn_time::{Monotonic, Nanos};

use super::client::Client;
use super::sending::Sending;
use super::{ClientKey, Environment, Worker};
use crate::limits;
use crate::queue::Sender;
use crate::stats::count;

/// One completion that a program's error queue should tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Whose.
    pub client: ClientKey,
    /// The stream's index in its region.
    pub stream: u32,
    /// The token of the registration that its frame was sent under.
    pub token: u32,
    /// Where the program had the socket when it sent.
    pub descriptor: i32,
    /// SO_COOKIE of the socket that was registered.
    pub cookie: u64,
    /// Its local address as it was registered.
    pub local: SocketAddr,
    /// The slot that tells it.
    pub slot: u16,
    /// The completion's number.
    pub sequence: u32,
    /// The entries ([`kind`], bits): one each.
    pub kinds: u8,
}

/// What a frame's program wants to be told.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    /// [`kind`], bits; 0: nothing, and nothing else here holds.
    kinds: u8,
    stream: u32,
    token: u32,
    descriptor: i32,
    cookie: u64,
    scheduled_at: u64,
    payload_octets: u16,
    sending: Option<Sending>,
}

/// How a frame ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Handed to a port at this instant (`CLOCK_REALTIME`, ns; 0 where nobody asked).
    Sent(u64),
    /// Not sent.
    Dropped(DropReason),
}

impl End {
    const fn outcome(self) -> Outcome {
        match self {
            Self::Sent(_) => Outcome::Sent,
            Self::Dropped(DropReason::Missed | DropReason::Overrun | DropReason::Waited) => Outcome::Missed,
            Self::Dropped(DropReason::InvalidTime | DropReason::BeyondHorizon) => Outcome::Invalid,
            Self::Dropped(_) => Outcome::Dropped,
        }
    }
}

/// The kinds that the slot's flags ask for.
const fn kinds_of(flags: SlotFlags) -> u8 {
    let mut kinds = 0;
    if flags.contains(SlotFlags::STAMP_SCHED) {
        kinds |= kind::SCHEDULED;
    }
    if flags.contains(SlotFlags::STAMP_SOFTWARE) {
        kinds |= kind::SOFTWARE;
    }
    if flags.contains(SlotFlags::REPORT) {
        kinds |= kind::ERROR;
    }
    kinds
}

/// Of what was asked, what there is to tell at this end.
const fn kinds_at(asked: u8, outcome: Outcome) -> u8 {
    asked
        & match outcome {
            Outcome::Sent => kind::SCHEDULED | kind::SOFTWARE,
            Outcome::Missed | Outcome::Invalid => kind::SCHEDULED | kind::ERROR,
            Outcome::Dropped => kind::SCHEDULED,
        }
}

impl Asked {
    /// Remembers what a frame that was just taken over asks for. `realtime` is read only where it asks for anything.
    #[inline]
    pub(super) fn remember(
        client: &mut Client,
        taken: &Taken,
        cookie: u64,
        sending: Sending,
        realtime: impl FnOnce() -> u64,
    ) {
        let kinds = kinds_of(taken.frame.flags);
        if kinds == 0 {
            return;
        }
        if let Some(asked) = client.asked.get_mut(usize::from(taken.slot)) {
            *asked = Self {
                kinds,
                stream: taken.frame.stream_index,
                token: taken.frame.token,
                descriptor: taken.frame.descriptor,
                cookie,
                scheduled_at: realtime(),
                payload_octets: taken.payload_octets as u16, // it fitted into a slot
                sending: Some(sending),
            };
        }
    }
}

impl<P: Port, E: Environment> Worker<P, E> {
    /// Tells by error queues from now on: notices go to `notifier`. Without one, programs find completions only when
    /// they look.
    #[must_use]
    pub fn with_notifier(mut self, notifier: Sender<Notice>) -> Self {
        self.notifier = Some(notifier);
        self
    }

    /// The instant for a software stamp, if this frame wants one: to be read right before the hand-over.
    #[inline]
    pub(super) fn stamp(&mut self, client: usize, slot: u16) -> u64 {
        let asked = self.clients.get(client).and_then(Option::as_ref);
        let asked = asked.and_then(|client| client.asked.get(usize::from(slot)));
        if asked.is_some_and(|asked| asked.kinds & kind::SOFTWARE != 0) { self.env.realtime() } else { 0 }
    }

    /// Tells how a frame ended, if its program asked; true when its slot is the program's from now on.
    #[inline]
    pub(super) fn tell(&mut self, client: usize, slot: u16, end: End) -> bool {
        let asked = self.clients.get_mut(client).and_then(Option::as_mut);
        let asked = asked.and_then(|client| client.asked.get_mut(usize::from(slot)));
        match asked {
            Some(asked) if asked.kinds != 0 => {
                let asked = std::mem::take(asked);
                self.tell_what_was_asked(client, slot, &asked, end)
            }
            _ => false,
        }
    }

    fn tell_what_was_asked(&mut self, index: usize, slot: u16, asked: &Asked, end: End) -> bool {
        let outcome = end.outcome();
        let kinds = kinds_at(asked.kinds, outcome);
        let Some(client) = self.clients.get_mut(index).and_then(Option::as_mut) else { return false };
        // A socket that is closed has no reader, and its stream's index may be another one's by now.
        let heard = client.stream(asked.stream).filter(|stream| stream.cookie == asked.cookie);
        let Some(local) = heard.map(|stream| stream.local) else { return false };
        if kinds == 0 || client.ended {
            return false;
        }
        if !client.consumer.has_room_to_tell() {
            // A program that reads no reports costs no headers either.
            count(&self.stats.reports_dropped);
            return false;
        }
        let mut completion = Completion {
            kinds,
            outcome,
            interface: client.interface,
            handed_at: if let End::Sent(at) = end { at } else { 0 },
            scheduled_at: asked.scheduled_at,
            done_at: self.env.monotonic().as_nanos(),
            ..Completion::default()
        };
        // The headers are written again: nobody kept them, as hardly anybody asks. Without a route there are none.
        if client.queued.get(usize::from(slot)).is_some_and(Option::is_none) {
            // The frame was refused, perhaps before its payload was needed.
            client.fetch(slot, asked.payload_octets);
        }
        if let Some(sending) = &asked.sending
            && let payload = client.payload(slot, asked.payload_octets)
            && let Some(place) = sending.headers(&mut self.routes, &self.tables, payload, &mut self.scratch)
            && let Some(headers) = self.scratch.get(place)
            && headers.len() <= HEADERS_MAX
        {
            completion.headers[..headers.len()].copy_from_slice(headers);
            completion.headers_octets = headers.len() as u8;
        }
        let Some(sequence) = client.consumer.complete(slot, &completion) else {
            count(&self.stats.reports_dropped);
            return false;
        };
        count(&self.stats.reports);
        let Asked { stream, token, descriptor, cookie, .. } = *asked;
        let notice =
            Notice { client: client.key, stream, token, descriptor, cookie, local, slot, sequence, kinds };
        let done_at = Monotonic::from_nanos(completion.done_at);
        if done_at.since(client.notices_since) >= Nanos::from_seconds(1) {
            (client.notices_since, client.notices) = (done_at, 0);
        }
        client.notices = client.notices.saturating_add(1);
        // The queue is everybody's: who makes more notices than a program reads loses its own.
        let is_its_share = client.notices <= limits::NOTICES_A_SECOND;
        if let Some(notifier) = &mut self.notifier
            && (!is_its_share || notifier.try_send(notice).is_err())
        {
            count(&self.stats.notices_lost);
        }
        true
    }
}
