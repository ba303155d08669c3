// SPDX-License-Identifier: Apache-2.0
//! The entry of a queued frame, found by its name, whatever its owner is.

use ktsn_sched::FrameId;

use super::captures::Captures;
use super::clients::Clients;
use super::owner::{Owner, owner_of};
use super::source::Queued;

/// The entry and the payload of a queued frame.
#[inline]
pub(super) fn queued<'a>(
    clients: &'a Clients,
    captures: &'a Captures,
    id: FrameId,
) -> Option<(&'a Queued, &'a [u8])> {
    let (owner, slot) = owner_of(id);
    let slots = match owner {
        Owner::Client(at) => &clients.get(at)?.slots,
        Owner::Capture(attachment) => &captures.get(attachment)?.slots,
    };
    let queued = slots.get(slot)?;
    Some((queued, slots.payload(slot, queued.payload_octets)))
}

/// The entry of a queued frame, to be changed.
pub(super) fn queued_mut<'a>(
    clients: &'a mut Clients,
    captures: &'a mut Captures,
    id: FrameId,
) -> Option<&'a mut Queued> {
    let (owner, slot) = owner_of(id);
    let slots = match owner {
        Owner::Client(at) => &mut clients.get_mut(at)?.slots,
        Owner::Capture(attachment) => &mut captures.get_mut(attachment)?.slots,
    };
    slots.get_mut(slot)
}
