// SPDX-License-Identifier: Apache-2.0
//! The AF_XDP port without its socket: buffers, rings, the book, and what each answer of a kick means.
//!
//! In: stages and kick results. Out: descriptors in the ring, errors, counters. Generic over the kick, so that a
//! simulated kernel can give every answer in tests.
//!
//! What Linux does with `sendto(fd, NULL, 0, MSG_DONTWAIT)` on a copy-mode socket, and what follows:
//!
//! | answer | what the kernel did | what we do |
//! |---|---|---|
//! | 0, ring empty | took every descriptor, in order; each frame was handed to the device | done |
//! | 0, ring not empty | nothing: the device has fewer queues than when the socket was bound | as EAGAIN |
//! | ENETDOWN, ENXIO | returned before it looked at the ring (down; removed) | take the fresh descriptors back: those frames never leave |
//! | EBUSY | handed over some, then the device dropped one (no carrier, queue full); that one is consumed and completes; the rest stay | count one dropped, kick again |
//! | EAGAIN | handed over some (32 at most in one call); the rest stay, unconsumed: budget used, send buffer full, or the device's queue stopped | kick again while it can help; else a lone frame is taken back (`Busy`), a batch's rest stays queued: deferred |
//! | ENOBUFS, ENOMEM, others | no memory for a copy; the rest stay, unconsumed | the same (`NoMemory`) |
//!
//! A deferred frame stays queued while the link is down and would leave late once it is up again: a caller that
//! gets `LinkDown` with frames deferred drops the port and opens it anew.
//!
//! The kernel reads the producer index only inside this call (we never poll the socket), so a descriptor can't
//! leave before its commit, can be taken back as long as no call has looked, and is never handed over twice.
//! Once a call has looked, the kernel remembers how many descriptors there were, and the next call may read as many
//! whatever the index says by then. So a descriptor that it left can be taken back only if it was the only one: its place is
//! written again before the next kick. Without a descriptor in the ring only [`Port::warm_up`] kicks, and not while the kernel may
//! remember one.

use rustix::io::Errno;

use super::rings::{CompletionRing, TxRing};
use super::sys::FrameMemory;
use crate::device::{LinkState, LinkWatch};
use crate::error::{SendError, StageError};
use crate::limits::KICK_FRAMES;
use crate::stages::{Stages, check_frame};
use crate::traits::{BatchReport, Builder, Capabilities, Counters, Occupancy, Port, StageId};

/// Makes the kernel look at the transmit ring.
pub(super) trait Kick {
    /// One non-blocking kick.
    fn kick(&mut self) -> Result<(), Errno>;
    /// A kick with an empty ring: the kernel's code runs, and nothing leaves.
    fn kick_empty(&mut self);
    /// The link's state, for answers that leave it open.
    fn link_state(&self) -> LinkState;
}

#[derive(Debug)]
pub(super) struct Engine<K> {
    pub(super) kick: K,
    pub(super) tx: TxRing,
    pub(super) completion: CompletionRing,
    pub(super) stages: Stages,
    pub(super) frames: FrameMemory,
    pub(super) chunk_octets: usize,
    pub(super) capabilities: Capabilities,
    /// Published descriptors that a kick left in the ring (an upper bound); 0 almost always.
    pub(super) pending_count: usize,
    /// The kernel may remember a descriptor that was taken back: a kick without another one in its place would send it.
    pub(super) is_one_remembered: bool,
}

/// What a round of kicks did to the descriptors that were in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Kicked {
    dropped_count: usize,
    remaining_count: usize,
    /// The kernel never looked: the reason.
    untouched: Option<SendError>,
    /// What it said last.
    last: Option<Errno>,
}

impl<K: Kick> Engine<K> {
    /// Deals with `first`, the answer to the kick that followed `queued` descriptors, kicking on where needed.
    #[cold]
    fn settle(&mut self, first: Errno, queued: usize) -> Kicked {
        let mut kicked = Kicked { remaining_count: queued, ..Kicked::default() };
        let mut answer = Err(first);
        // Each EBUSY uses up a descriptor and each useful EAGAIN a whole budget: this many kicks are enough.
        let mut budget_kicks = queued / KICK_FRAMES;
        for round in 0..=queued + budget_kicks {
            kicked.last = answer.err();
            match answer {
                Ok(()) => {
                    kicked.remaining_count = self.remaining(kicked.remaining_count);
                    break;
                }
                Err(Errno::BUSY) => {
                    kicked.dropped_count += 1;
                    kicked.remaining_count = self.remaining(kicked.remaining_count - 1);
                }
                Err(Errno::NETDOWN) if round == 0 => kicked.untouched = Some(SendError::LinkDown),
                Err(Errno::NXIO | Errno::NODEV) if round == 0 => {
                    kicked.untouched = Some(SendError::DeviceGone);
                }
                Err(Errno::AGAIN) if budget_kicks > 0 => {
                    budget_kicks -= 1;
                    kicked.remaining_count = self.remaining(kicked.remaining_count);
                }
                Err(_) => {
                    kicked.remaining_count = self.remaining(kicked.remaining_count);
                    break;
                }
            }
            if kicked.remaining_count == 0 || kicked.untouched.is_some() {
                break;
            }
            answer = self.kick.kick();
        }
        kicked
    }

    /// Descriptors that the kernel has still to take, not more than `known`.
    fn remaining(&self, known: usize) -> usize {
        known.min(self.tx.occupied() as usize)
    }

    /// Writes and counts one descriptor, not yet published.
    fn queue(&mut self, stage: StageId) -> Result<(), SendError> {
        let octets = self.stages.launch(stage).inspect_err(|_| self.stages.counters.failed_count += 1)?;
        let address = (stage.index() * self.chunk_octets) as u64;
        // The ring has twice as many slots as there are buffers, so this fails only if the kernel lags absurdly.
        if !self.tx.push(address, octets as u32) {
            self.stages.withdraw(stage);
            self.stages.counters.failed_count += 1;
            return Err(SendError::Busy);
        }
        Ok(())
    }

    /// Books the answer `errno` to the kick after `fresh` newly published descriptors. Returns how many of them
    /// failed, and why.
    #[cold]
    fn refused(&mut self, errno: Errno, fresh: usize) -> Option<(usize, SendError)> {
        let older = self.pending_count;
        let kicked = self.settle(errno, older + fresh);
        if let Some(error) = kicked.untouched {
            (0..fresh).for_each(|_| self.take_back_one());
            self.stages.counters.failed_count += fresh as u64;
            return (fresh > 0).then_some((fresh, error));
        }
        if older == 0 && fresh == 1 && kicked.remaining_count == 1 && kicked.dropped_count == 0 {
            self.take_back_one();
            self.is_one_remembered = true;
            self.stages.counters.failed_count += 1;
            let is_short = matches!(kicked.last, Some(Errno::NOBUFS | Errno::NOMEM));
            return Some((1, if is_short { SendError::NoMemory } else { SendError::Busy }));
        }
        // Which one the device dropped is not told; the fresh ones answer for it first.
        let failed = kicked.dropped_count.min(fresh);
        self.pending_count = kicked.remaining_count;
        let counters = &mut self.stages.counters;
        counters.deferred_dropped_count += (kicked.dropped_count - failed) as u64;
        counters.committed_count += (fresh - failed) as u64;
        counters.failed_count += failed as u64;
        counters.deferred_count += kicked.remaining_count.min(fresh - failed) as u64;
        (failed > 0).then(|| (failed, LinkWatch::reason(self.kick.link_state())))
    }

    /// The newest descriptor leaves the ring, its buffer is free again.
    fn take_back_one(&mut self) {
        if let Some(address) = self.tx.take_back() {
            self.stages.withdraw(StageId((address as usize / self.chunk_octets) as u16));
        }
    }

    /// Publishes and kicks. Returns how many of the `fresh` descriptors failed, and why.
    #[inline]
    fn send(&mut self, fresh: usize) -> Option<(usize, SendError)> {
        self.tx.publish();
        match self.kick.kick() {
            Ok(()) if self.tx.occupied() == 0 => {
                self.pending_count = 0;
                self.is_one_remembered = false;
                self.stages.counters.committed_count += fresh as u64;
                None
            }
            Ok(()) => self.refused(Errno::AGAIN, fresh),
            Err(errno) => self.refused(errno, fresh),
        }
    }
}

impl<K: Kick> Port for Engine<K> {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let index = usize::from(self.stages.next_free()?);
        let buffer =
            self.frames.slice_mut(index * self.chunk_octets, self.chunk_octets).ok_or(StageError::Full)?;
        let octets = build(buffer);
        let octets = check_frame(buffer, octets, self.capabilities.frame_octets_max)?;
        self.stages.occupy(octets)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        self.frames.slice(stage.index() * self.chunk_octets, octets)
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        self.queue(stage)?;
        self.send(1).map_or(Ok(()), |(_, error)| Err(error))
    }

    fn commit_many(&mut self, stages: &[StageId]) -> BatchReport {
        let mut report = BatchReport::default();
        for stage in stages {
            report.count(self.queue(*stage));
        }
        let fresh = report.taken_count;
        if fresh > 0
            && let Some((failed, error)) = self.send(fresh)
        {
            report.taken_count -= failed;
            report.fail(failed, error);
        }
        report
    }

    #[inline]
    fn warm_up(&mut self) {
        if self.tx.occupied() == 0 && !self.is_one_remembered {
            self.kick.kick_empty();
        }
    }

    fn abandon(&mut self, stage: StageId) {
        self.stages.abandon(stage);
    }

    fn reap(&mut self) -> usize {
        if self.pending_count > 0 {
            self.send(0);
        }
        let (stages, chunk_octets) = (&mut self.stages, self.chunk_octets as u64);
        let mut completed = 0;
        self.completion.drain(|address| {
            completed += usize::from(stages.complete((address / chunk_octets) as usize));
        });
        completed
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn link_up(&self) -> bool {
        self.kick.link_state() == LinkState::Up
    }

    fn occupancy(&self) -> Occupancy {
        self.stages.occupancy()
    }

    fn counters(&self) -> Counters {
        self.stages.counters
    }
}
