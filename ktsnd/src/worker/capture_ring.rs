// SPDX-License-Identifier: Apache-2.0
//! The ring of a loaded capture program, and what the program counted.
//!
//! In: the program's ring and counters. Out: frames one by one, and the reason word of each counter. It takes the frames that
//! are there and never waits.

use std::fmt;

use ktsn_bpf::{Counted, Taken};
use ktsn_model::BypassReason;
use rustix::fd::{AsFd, BorrowedFd};

/// A ring of captured frames.
pub trait CaptureRing: Send + fmt::Debug {
    /// True when a frame waits.
    fn is_waiting(&self) -> bool;
    /// The next frame, at the front of `buffer`.
    fn take(&mut self, buffer: &mut [u8]) -> Option<Taken>;
    /// What was counted since the ring was made, in the order of [`Counted::ALL`].
    fn counters(&self) -> [u64; Counted::ALL.len()];
    /// A descriptor that can be read when a frame waits.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// The ring of a loaded capture program.
#[derive(Debug)]
pub struct Ring {
    /// Its frames.
    pub frames: ktsn_bpf::Frames,
    /// Its counters.
    pub counters: ktsn_bpf::Counters,
}

impl CaptureRing for Ring {
    fn is_waiting(&self) -> bool {
        self.frames.is_waiting()
    }
    fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        self.frames.take(buffer)
    }
    fn counters(&self) -> [u64; Counted::ALL.len()] {
        self.counters.read()
    }
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.frames.as_fd()
    }
}

/// The reason for which the program left frames to the kernel; `None`: it did not.
pub(super) fn bypass_reason(counted: Counted) -> Option<BypassReason> {
    match counted {
        Counted::Taken | Counted::RingFull => None,
        Counted::Untimed | Counted::OtherClock => Some(BypassReason::NoTxtime),
        Counted::NotUdp => Some(BypassReason::UnsupportedFamily),
        Counted::Options | Counted::Unreadable => Some(BypassReason::UnsupportedOption),
        Counted::NotAllowed | Counted::Foreign => Some(BypassReason::NotAllowed),
        Counted::Fragment | Counted::OverMtu => Some(BypassReason::OverMtu),
    }
}
