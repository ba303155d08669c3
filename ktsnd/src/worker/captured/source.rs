// SPDX-License-Identifier: Apache-2.0
//! Where captured frames come from, and what their program counted.
//!
//! In: the ring and the counters of a loaded program. Out: frames one by one; the word of what it passed on. It takes what
//! is there and waits for nothing.

use std::fmt;

use ktsn_bpf::{Counted, Taken};
use ktsn_model::BypassReason;
use rustix::fd::{AsFd, BorrowedFd};

/// Where captured frames come from.
pub trait Source: Send + fmt::Debug {
    /// Whether a frame waits.
    fn is_waiting(&self) -> bool;
    /// The next frame, at the front of `buffer`.
    fn take(&mut self, buffer: &mut [u8]) -> Option<Taken>;
    /// What was counted since the source was made, in the order of [`Counted::ALL`].
    fn counters(&self) -> [u64; Counted::ALL.len()];
    /// Can be read when a frame waits.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// The ring of a loaded capture program.
#[derive(Debug)]
pub struct Ring {
    /// Its frames.
    pub frames: ktsn_bpf::Frames,
    /// What it counts.
    pub counters: ktsn_bpf::Counters,
}

impl Source for Ring {
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

/// The word of a passed frame, where it is one of libktsn's.
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
