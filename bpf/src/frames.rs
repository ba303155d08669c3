// SPDX-License-Identifier: Apache-2.0
//! The consumer's side: captured frames and what was counted.
//!
//! In: the memory that the program writes. Out: copies. Nothing here allocates, waits or makes a system call, so that a
//! worker can use it at any time.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::layout::{COUNTERS, Clock, Counted, RECORD_OCTETS, STRIPES};
use crate::sys::{CounterMap, RingMap};

/// A captured frame, copied out of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The transmit time, nanoseconds of `clock`.
    pub tx_time: u64,
    /// The clock of the transmit time.
    pub clock: Clock,
    /// When the program saw it, CLOCK_MONOTONIC, nanoseconds.
    pub captured_at: u64,
    /// Octets of the frame at the front of the caller's buffer, Ethernet header first.
    pub octets: usize,
    /// The datagram is to be cut into pieces with so much payload each, the last one may be shorter; 0: it is one.
    pub segment_octets: u16,
}

/// The ring with captured frames. Can be read (poll, epoll) when there are some.
#[derive(Debug)]
pub struct Frames {
    ring: RingMap,
    descriptor: OwnedFd,
}

impl Frames {
    pub(crate) fn new(ring: RingMap, descriptor: OwnedFd) -> Self {
        Self { ring, descriptor }
    }

    /// Whether a frame waits.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.ring.is_waiting()
    }

    /// The next frame; `buffer` holds [`crate::FRAME_OCTETS_MAX`] octets and a record's header, 24, at least. A record that
    /// makes no sense (our own fault) is skipped.
    pub fn take(&mut self, buffer: &mut [u8]) -> Option<Taken> {
        loop {
            let octets = self.ring.take(buffer)?.min(buffer.len());
            let Some((head, frame)) = buffer[..octets].split_at_checked(RECORD_OCTETS) else { continue };
            let word = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&head[at..at + 8]);
                u64::from_ne_bytes(word)
            };
            let last = word(16);
            let (octets, segment_octets) = (last as u32 as usize, (last >> 32) as u16);
            let (Some(clock), true) = (Clock::from_number((last >> 48) as u8), octets <= frame.len()) else {
                continue;
            };
            let taken = Taken { tx_time: word(0), captured_at: word(8), clock, octets, segment_octets };
            buffer.copy_within(RECORD_OCTETS..RECORD_OCTETS + octets, 0);
            return Some(taken);
        }
    }
}

impl AsFd for Frames {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// What the program counted since it was loaded.
#[derive(Debug)]
pub struct Counters(pub(crate) CounterMap);

impl Counters {
    /// All counters in the order of [`Counted::ALL`], over all processors.
    #[must_use]
    pub fn read(&self) -> [u64; Counted::ALL.len()] {
        let mut sums = [0_u64; Counted::ALL.len()];
        for stripe in 0..STRIPES {
            for (number, sum) in sums.iter_mut().enumerate() {
                *sum = sum.wrapping_add(self.0.get(stripe * COUNTERS + number));
            }
        }
        sums
    }
}
