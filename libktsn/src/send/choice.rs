// SPDX-License-Identifier: Apache-2.0
//! Which attachment of its namespace a frame leaves by, where there are several.
//!
//! In: the frame, the socket's interface, what each attachment's region says. Out: the attachment's place. The daemon
//! has asked the namespace's own routes (`objects.md`): of two attachments the destination tables of one at most take
//! a unicast datagram, so the first that takes it is the one. An attachment whose region was given up keeps its
//! datagrams: they are lost as on a link without carrier, never sent by the kernel at once. With one attachment this is
//! two loads.

use ktsn_model::BypassReason;
use ktsn_ring::{DestinationVerdict, SlotFlags, SlotFrame, StreamStatus};

use crate::attach::handshake;
use crate::call::message::Message;
use crate::process::page::PLACES_COUNT;
use crate::process::region::{self, RegionUse};
use crate::send::batch::Batch;
use crate::send::verdict::SendCall;
use crate::streams::{self, Registration};
use crate::{process::sys, streams::packet};

use core::sync::atomic::Ordering::SeqCst;

/// How often a destination table that is being written is read again, and the pause, ns.
const TABLE_ATTEMPTS: u32 = 20;
const TABLE_NAP: u32 = 50_000;

/// Lets `batch` use the region of the attachment by which `frame` leaves. Where none takes it that is the first one:
/// its daemon's reason is as good as another's.
#[inline(always)]
pub(crate) fn choose(send: SendCall, frame: &SlotFrame, batch: &mut Batch) {
    let end = batch.page().places_end.load(SeqCst) as usize;
    if end <= 1 && batch.usable_region().is_none_or(|held| held.producer().others_count() == 0) {
        return;
    }
    // A copy, so that the frame itself can stay in registers.
    let frame = *frame;
    choose_among(send, &frame, batch);
}

#[inline(never)]
fn choose_among(send: SendCall, frame: &SlotFrame, batch: &mut Batch) {
    let page = batch.page();
    if region::missing(page) != 0 {
        handshake::advance(page, send.fd);
    }
    let named = if frame.flags.is_link() { 0 } else { send.stream.bound_interface() };
    let interface = if named != 0 { named } else { frame.scope };
    if interface != 0
        && let Some(place) = region::place_of(page, interface)
    {
        return batch.select_place(place);
    }
    let places = || 0..page.places_end.load(SeqCst) as usize;
    let first = places().find(|place| RegionUse::at(page, *place).is_some());
    // An interface that has no attachment is the kernel's; whichever is asked says so.
    let taking = if interface == 0 { taking(send, frame, batch) } else { None };
    batch.select_place(taking.or(first).unwrap_or(0));
}

/// The attachment that takes a datagram: one that is served, else one that was.
fn taking(send: SendCall, frame: &SlotFrame, batch: &mut Batch) -> Option<usize> {
    let page = batch.page();
    for place in 0..PLACES_COUNT {
        if let Some(held) = RegionUse::at(page, place)
            && takes(send, frame, &held, batch)
        {
            return Some(place);
        }
    }
    (0..PLACES_COUNT).find(|place| {
        RegionUse::given_up_at(page, *place).is_some_and(|held| {
            if frame.flags.contains(SlotFlags::CONNECTED) {
                send.stream.last_limit(&held) != 0
            } else {
                is_taken(&held, frame)
            }
        })
    })
}

fn takes(send: SendCall, frame: &SlotFrame, held: &RegionUse, batch: &mut Batch) -> bool {
    if !frame.flags.contains(SlotFlags::CONNECTED) {
        return is_taken(held, frame);
    }
    let answer = send.stream.known_registration(held, send.fd, send.flags).unwrap_or_else(|| {
        // What is filled carries the token of an older registration: it goes first.
        batch.publish();
        send.stream.register_if_stale(held, send.fd, send.flags)
    });
    matches!(answer, Registration::Known(status) if status.limit != 0)
}

/// Whether a region's table takes an unconnected datagram. One that stays unreadable may.
#[inline(never)]
fn is_taken(held: &RegionUse, frame: &SlotFrame) -> bool {
    destination(held, frame).is_none_or(|answer| answer.is_ok())
}

/// What a daemon takes to one destination, in one register: the greatest payload in octets, and [`Limit::ASKED`].
#[derive(Clone, Copy)]
pub(crate) struct Limit(usize);

impl Limit {
    /// From sockets only that the daemon keeps: what turns out to be the kernel's it hands over.
    const ASKED: usize = 1 << 32;

    pub(crate) const fn new(octets: usize, is_asked: bool) -> Self {
        Self(octets | (is_asked as usize) << 32)
    }

    /// What is taken from any socket.
    pub(crate) const fn plain(octets: usize) -> Self {
        Self(octets)
    }

    /// The greatest payload, octets.
    pub(crate) const fn octets(self) -> usize {
        self.0 & !Self::ASKED
    }

    /// Whether only a socket's datagrams are taken that the daemon keeps.
    pub(crate) const fn is_asked(self) -> bool {
        self.0 & Self::ASKED != 0
    }
}

/// What a region's table of destinations says of an unconnected datagram: the greatest payload, or why the daemon takes nothing; `None`
/// when the table stays unreadable.
pub(crate) fn destination(held: &RegionUse, frame: &SlotFrame) -> Option<Result<Limit, BypassReason>> {
    for _ in 0..TABLE_ATTEMPTS {
        match held.producer().destination(frame.address) {
            DestinationVerdict::Take { payload_max, is_asked } => {
                return Some(Ok(Limit::new(usize::from(payload_max), is_asked)));
            }
            DestinationVerdict::Broadcast { payload_max } => {
                let is_allowed =
                    streams::get(frame.stream_index).is_some_and(|stream| stream.options().has_broadcast);
                let refused = Err(BypassReason::UnsupportedOption);
                return Some(if is_allowed { Ok(Limit::plain(usize::from(payload_max))) } else { refused });
            }
            DestinationVerdict::Bypass(number) => {
                return Some(Err(bypass_reason(number)));
            }
            DestinationVerdict::Unstable => {
                sys::nap(TABLE_NAP);
            }
        }
    }
    None
}

/// The bypass reason of this number in the daemon's tables; an unknown number is [`BypassReason::NotAllowed`].
fn bypass_reason(number: u16) -> BypassReason {
    BypassReason::from_number(number).unwrap_or(BypassReason::NotAllowed)
}

/// The greatest payload that the daemon takes of any frame, or why it takes none: of a connected socket by `status`, else by the region's
/// tables; `None` when these stay unreadable.
#[inline(always)]
pub(crate) fn limit(
    held: &RegionUse,
    message: &Message<'_>,
    frame: &SlotFrame,
    status: &StreamStatus,
) -> Option<Result<Limit, BypassReason>> {
    if frame.flags.contains(SlotFlags::CONNECTED) {
        return Some(if status.limit == 0 {
            Err(bypass_reason(status.bypass))
        } else {
            Ok(Limit::new(status.limit as usize, status.is_asked))
        });
    }
    let frame = *frame; // a copy: the frame itself stays in registers
    if frame.flags.is_link() {
        return packet::payload_max(held, message, &frame, status).map(|octets| octets.map(Limit::plain));
    }
    destination(held, &frame)
}
