// SPDX-License-Identifier: Apache-2.0
//! The owner of a queued frame, and how a frame's name says it.
//!
//! In: a client or a capture, and a slot. Out: the frame's name in the schedulers, and back. The same numbers name the
//! descriptors that the worker waits for. Nothing else may take such a number apart.

use ktsn_resolve::AttachmentIndex;
use ktsn_sched::FrameId;

use crate::limits::CLIENTS_MAX;

/// The source that a frame came from. It has a slot for each of its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The client in this place.
    Client(usize),
    /// The kernel capture of this attachment.
    Capture(AttachmentIndex),
}

impl Owner {
    /// Captures are numbered behind all clients.
    #[inline]
    pub(super) fn number(self) -> u64 {
        match self {
            Self::Client(place) => place as u64,
            Self::Capture(attachment) => (CLIENTS_MAX + usize::from(attachment.0)) as u64,
        }
    }

    #[inline]
    fn numbered(number: usize) -> Self {
        match number.checked_sub(CLIENTS_MAX) {
            None => Self::Client(number),
            Some(attachment) => Self::Capture(AttachmentIndex(attachment as u16)),
        }
    }
}

/// The name of the frame in this slot of its owner.
#[inline]
pub(super) fn frame_id(owner: Owner, slot: u16) -> FrameId {
    FrameId(owner.number() << 16 | u64::from(slot))
}

/// The owner and the slot of the frame with this name.
#[inline]
pub(super) fn owner_of(id: FrameId) -> (Owner, u16) {
    (Owner::numbered((id.0 >> 16) as usize), id.0 as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::ATTACHMENTS_MAX;

    #[test]
    fn a_name_says_its_owner_and_its_slot() {
        let clients = [0, 1, CLIENTS_MAX - 1].map(Owner::Client);
        let captures = [0, ATTACHMENTS_MAX as u16 - 1].map(|index| Owner::Capture(AttachmentIndex(index)));
        for owner in clients.into_iter().chain(captures) {
            for slot in [0, 7, u16::MAX] {
                assert_eq!(owner_of(frame_id(owner, slot)), (owner, slot));
            }
        }
    }
}
