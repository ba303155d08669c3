// SPDX-License-Identifier: Apache-2.0
//! Which copy of a datagram is queued: head-end replication sends one to each tunnel end of a segment.
//!
//! In: the replica that the tables name. Out: what the queue entry keeps of it. A slot stands in one queue only, however many
//! copies it makes; how many there are is bounded by the tables ([`ktsn_resolve::limits::FLOOD_MAX`]).

use ktsn_resolve::Replica;

/// The copy that a slot is queued for, and the end of the copies before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Copies {
    /// The copy.
    pub replica: Replica,
    /// Set once a copy has left: the instant that a report says, 0 where the program did not ask.
    pub sent: Option<u64>,
}

impl Copies {
    /// The first copy. `None`: there is one frame only.
    pub(super) fn first(replica: Option<Replica>) -> Self {
        Self { replica: replica.unwrap_or_default(), sent: None }
    }

    /// True when there may be more than one copy.
    pub(super) fn is_one_of_several(self) -> bool {
        self.replica != Replica::First
    }
}
