// SPDX-License-Identifier: Apache-2.0
//! The AF_XDP port without its socket: buffers, rings, counters, and what each answer of a kick means.
//!
//! In: stages and kick results. Out: descriptors in the ring, errors, counters. Generic over the kick, so that a
//! simulated kernel can give every answer in tests.
//!
//! Each commit puts one descriptor into the transmit ring and kicks the kernel once. When it returns, the ring is empty: the
//! kernel has taken the descriptor, or the port has taken it back. What Linux does with `sendto(fd, NULL, 0, MSG_DONTWAIT)` on a
//! copy-mode socket, and what follows:
//!
//! | answer | what the kernel did | what we do |
//! |---|---|---|
//! | 0, ring empty | took the descriptor and handed the frame to the device | done |
//! | 0, ring not empty | nothing: the device has fewer queues than when the socket was bound | as EAGAIN |
//! | ENETDOWN, ENXIO | returned before it looked at the ring (down; removed) | take the descriptor back: the frame never leaves |
//! | EBUSY | took the descriptor, and the device dropped the frame (no carrier, queue full); the buffer completes | `LinkDown`, `DeviceGone` or `Dropped` |
//! | EAGAIN | left the descriptor: send buffer full, or the device's queue stopped | take it back (`Busy`) |
//! | ENOBUFS, ENOMEM | left the descriptor: no memory for a copy | take it back (`NoMemory`) |
//! | others | left the descriptor | take it back (`Busy`) |
//!
//! The kernel reads the producer index only inside this call (we never poll the socket), so a descriptor can't
//! leave before its commit, can be taken back as long as no call has looked, and is never handed over twice.
//! Once a call has looked, the kernel remembers how many descriptors there were, and the next call reads as many
//! whatever the index says by then. A descriptor that the kernel left is taken back all the same: the next commit writes
//! another one into its place before it kicks. Without a descriptor in the ring only [`Port::warm_up`] kicks, and not while
//! the kernel may remember one.

use rustix::io::Errno;

use super::rings::{CompletionRing, TxRing};
use super::sys::FrameMemory;
use crate::device::{LinkState, LinkWatch};
use crate::error::{SendError, StageError};
use crate::stages::Stages;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

/// Makes the kernel look at the transmit ring.
pub trait Kick {
    /// One non-blocking kick.
    fn kick(&mut self) -> Result<(), Errno>;
    /// A kick with an empty ring: the kernel's code runs, and nothing leaves.
    fn kick_empty(&mut self);
    /// The link's state, for answers that leave it open.
    fn link_state(&self) -> LinkState;
}

/// A transmit-only AF_XDP port whose kernel is behind `K`.
#[derive(Debug)]
pub struct Engine<K> {
    pub(super) kick: K,
    pub(super) tx: TxRing,
    pub(super) completion: CompletionRing,
    pub(super) stages: Stages,
    pub(super) frames: FrameMemory,
    pub(super) chunk_octets: usize,
    pub(super) capabilities: Capabilities,
    /// The kernel may remember a descriptor that was taken back: a kick without another one in its place would send it.
    pub(super) is_one_remembered: bool,
}

impl<K: Kick> Engine<K> {
    /// Counts and explains a kick that did not plainly succeed; the frame's descriptor may still be in the ring.
    #[cold]
    fn refused(&mut self, errno: Errno) -> Result<(), SendError> {
        match errno {
            // The kernel took the descriptor, and the device dropped the frame: the buffer completes.
            Errno::BUSY => {
                self.stages.counters.failed_count += 1;
                Err(LinkWatch::reason(self.kick.link_state()))
            }
            Errno::NETDOWN => Err(self.take_back(SendError::LinkDown)),
            Errno::NXIO | Errno::NODEV => Err(self.take_back(SendError::DeviceGone)),
            _ if self.tx.occupied() == 0 => {
                // The kernel took the descriptor all the same.
                self.stages.counters.committed_count += 1;
                Ok(())
            }
            other => {
                self.is_one_remembered = true;
                let is_short = matches!(other, Errno::NOBUFS | Errno::NOMEM);
                Err(self.take_back(if is_short { SendError::NoMemory } else { SendError::Busy }))
            }
        }
    }

    /// Removes the descriptor from the ring, frees its buffer and returns `error`.
    fn take_back(&mut self, error: SendError) -> SendError {
        if let Some(address) = self.tx.take_back() {
            self.stages.withdraw(StageId((address as usize / self.chunk_octets) as u16));
        }
        error
    }
}

impl<K: Kick> Port for Engine<K> {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let index = usize::from(self.stages.next_free()?);
        let buffer =
            self.frames.slice_mut(index * self.chunk_octets, self.chunk_octets).ok_or(StageError::Full)?;
        self.stages.build(buffer, build, self.capabilities.frame_octets_max)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        self.frames.slice(stage.index() * self.chunk_octets, octets)
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let octets = self.stages.launch(stage)?;
        let address = (stage.index() * self.chunk_octets) as u64;
        // The ring has twice as many slots as there are buffers, so this fails only if the kernel lags absurdly.
        if !self.tx.push(address, octets as u32) {
            self.stages.withdraw(stage);
            return Err(SendError::Busy);
        }
        self.tx.publish();
        match self.kick.kick() {
            Ok(()) if self.tx.occupied() == 0 => {
                self.is_one_remembered = false;
                self.stages.counters.committed_count += 1;
                Ok(())
            }
            Ok(()) => self.refused(Errno::AGAIN),
            Err(errno) => self.refused(errno),
        }
    }

    #[inline]
    fn warm_up(&mut self) {
        if self.tx.occupied() == 0 && !self.is_one_remembered {
            self.kick.kick_empty();
        }
    }

    fn reap(&mut self) -> usize {
        let (stages, chunk_octets) = (&mut self.stages, self.chunk_octets as u64);
        let mut completed = 0;
        self.completion.drain(|address| {
            completed += usize::from(stages.complete((address / chunk_octets) as usize));
        });
        completed
    }

    fn link_up(&self) -> bool {
        self.kick.link_state() == LinkState::Up
    }

    crate::stages::stage_methods!();
}
