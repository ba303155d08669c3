// SPDX-License-Identifier: Apache-2.0
//! The reports that a program asked for (errors, timestamps), and how a frame ended.
//!
//! In: the flags of a slot. Out: the kinds of completions that the program asked for, and those that an end of the frame
//! answers. A frame that asks for nothing costs one comparison.

use ktsn_model::DropReason;
use ktsn_ring::completion::{Outcome, kind};
use ktsn_ring::{SlotFlags, Taken};

use super::content::FrameContent;

/// The reports that the program requested for the frame in one slot.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestedReports {
    /// Bits of [`kind`]; 0: nothing is asked, and nothing else here holds.
    kinds: u8,
    pub stream: u32,
    pub token: u32,
    pub descriptor: i32,
    pub cookie: u64,
    pub scheduled_at: u64,
    pub payload_octets: u16,
    pub content: Option<FrameContent>,
}

/// How a frame ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    /// Handed to a port at this instant (`CLOCK_REALTIME`, ns; 0 where the program did not ask).
    Sent(u64),
    /// Not sent.
    Dropped(DropReason),
    /// Sent by the kernel, which makes its own reports.
    ByKernel,
}

impl End {
    /// What a completion says of this end.
    pub(super) const fn outcome(self) -> Outcome {
        match self {
            Self::Sent(_) | Self::ByKernel => Outcome::Sent,
            Self::Dropped(DropReason::Overrun | DropReason::Waited) => Outcome::Missed,
            // etf refuses a frame whose time has passed when it is sent as one with a wrong parameter.
            Self::Dropped(DropReason::Missed | DropReason::InvalidTime | DropReason::BeyondHorizon) => {
                Outcome::Invalid
            }
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

impl RequestedReports {
    /// What the frame in a slot of this stream asks for; `None`: nothing.
    #[inline]
    pub(super) fn from_slot(taken: &Taken, cookie: u64, content: FrameContent) -> Option<Self> {
        let kinds = kinds_of(taken.frame.flags);
        if kinds == 0 {
            return None;
        }
        Some(Self {
            kinds,
            stream: taken.frame.stream_index,
            token: taken.frame.token,
            descriptor: taken.frame.descriptor,
            cookie,
            scheduled_at: 0,
            payload_octets: taken.payload_octets as u16, // it fitted into a slot
            content: Some(content),
        })
    }

    /// True when the program asked for anything.
    pub(super) fn is_any(&self) -> bool {
        self.kinds != 0
    }

    /// True when the program asked for the instant of the hand-over.
    pub(super) fn wants_stamp(&self) -> bool {
        self.kinds & kind::SOFTWARE != 0
    }

    /// The kinds of completions that this outcome answers.
    pub(super) const fn kinds_at(&self, outcome: Outcome) -> u8 {
        self.kinds
            & match outcome {
                Outcome::Sent => kind::SCHEDULED | kind::SOFTWARE,
                Outcome::Missed | Outcome::Invalid => kind::SCHEDULED | kind::ERROR,
                Outcome::Dropped => kind::SCHEDULED,
            }
    }
}
