// SPDX-License-Identifier: Apache-2.0
//! A port without a device: frames end in this process.
//!
//! In: staged frames. Out: counts, and on request the frames themselves, handed to a closure at their commit. When buffers
//! come back can be programmed, so that a caller meets back-pressure.
//! No system call, no clock: the simulator and the throughput measurement run on it.

use std::collections::VecDeque;
use std::fmt;

use crate::error::{OpenError, SendError, StageError};
use crate::limits::{CHUNK_OCTETS_MIN, ETHERNET_HEADER_OCTETS, VLAN_TAG_OCTETS};
use crate::stages::Stages;
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

/// Gets each committed frame.
pub type Sink = Box<dyn FnMut(&[u8]) + Send>;

/// Called at each [`Port::warm_up`].
pub type Look = Box<dyn FnMut() + Send>;

/// When committed buffers come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completion {
    /// At the commit: never any back-pressure.
    AtCommit,
    /// At a reap, in the order of the commits, this many at most each time. 0 holds them for ever.
    AtReap {
        /// Buffers per reap.
        at_most: usize,
    },
}

/// Closures that a test sets.
#[derive(Default)]
struct Hooks {
    sink: Option<Sink>,
    look: Option<Look>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks")
            .field("sink", &self.sink.is_some())
            .field("look", &self.look.is_some())
            .finish()
    }
}

/// A port without a device.
#[derive(Debug)]
pub struct Memory {
    stages: Stages,
    frames: Box<[u8]>,
    chunk_octets: usize,
    capabilities: Capabilities,
    hooks: Hooks,
    completion: Completion,
    in_flight: VecDeque<u16>,
    refusals: VecDeque<SendError>,
    link_up: bool,
}

impl Memory {
    /// A port with `stage_count` buffers for frames of a device with that MTU. The link is up, buffers come back
    /// at the commit, frames are only counted.
    ///
    /// # Errors
    /// [`OpenError::StageCount`].
    pub fn new(stage_count: u16, mtu_octets: usize) -> Result<Self, OpenError> {
        let stages = Stages::new(stage_count)?;
        let frame_octets_max = mtu_octets + ETHERNET_HEADER_OCTETS + VLAN_TAG_OCTETS;
        let chunk_octets = frame_octets_max.next_power_of_two().max(CHUNK_OCTETS_MIN);
        let count = usize::from(stage_count);
        Ok(Self {
            stages,
            frames: vec![0; count * chunk_octets].into_boxed_slice(),
            chunk_octets,
            capabilities: Capabilities {
                adapter: "memory",
                ifindex: 0,
                mac: [0; 6],
                mtu_octets,
                frame_octets_max,
                stage_count,
            },
            hooks: Hooks::default(),
            completion: Completion::AtCommit,
            in_flight: VecDeque::with_capacity(count),
            refusals: VecDeque::new(),
            link_up: true,
        })
    }

    /// Hands each committed frame to `sink`.
    #[must_use]
    pub fn with_sink(mut self, sink: Sink) -> Self {
        self.hooks.sink = Some(sink);
        self
    }

    /// Calls `look` at each [`Port::warm_up`].
    #[must_use]
    pub fn with_look(mut self, look: Look) -> Self {
        self.hooks.look = Some(look);
        self
    }

    /// Changes when buffers come back, from the next commit or reap on.
    pub fn set_completion(&mut self, completion: Completion) {
        self.completion = completion;
    }

    /// The next commits fail so, one each. Nothing of them is delivered.
    pub fn set_refusals(&mut self, refusals: impl IntoIterator<Item = SendError>) {
        self.refusals = refusals.into_iter().collect();
    }

    /// Takes the link down or up. While it is down every commit fails with [`SendError::LinkDown`].
    pub fn set_link_up(&mut self, link_up: bool) {
        self.link_up = link_up;
    }
}

impl Port for Memory {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let start = usize::from(self.stages.next_free()?) * self.chunk_octets;
        let buffer = &mut self.frames[start..start + self.chunk_octets];
        self.stages.build(buffer, build, self.capabilities.frame_octets_max)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        let start = stage.index() * self.chunk_octets;
        self.frames.get(start..start + octets)
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let octets = self.stages.launch(stage)?;
        let refusal = if self.link_up { self.refusals.pop_front() } else { Some(SendError::LinkDown) };
        if let Some(error) = refusal {
            self.stages.withdraw(stage);
            return Err(error);
        }
        let start = stage.index() * self.chunk_octets;
        if let Some(sink) = &mut self.hooks.sink {
            sink(&self.frames[start..start + octets]);
        }
        self.stages.counters.committed_count += 1;
        match self.completion {
            Completion::AtCommit => {
                self.stages.complete(stage.index());
            }
            Completion::AtReap { .. } => self.in_flight.push_back(stage.0),
        }
        Ok(())
    }

    fn warm_up(&mut self) {
        if let Some(look) = &mut self.hooks.look {
            look();
        }
    }

    fn reap(&mut self) -> usize {
        let at_most = match self.completion {
            Completion::AtCommit => usize::MAX,
            Completion::AtReap { at_most } => at_most,
        };
        let count = self.in_flight.len().min(at_most);
        for index in self.in_flight.drain(..count) {
            self.stages.complete(usize::from(index));
        }
        count
    }

    fn link_up(&self) -> bool {
        self.link_up
    }

    crate::stages::stage_methods!();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// A port, and the frames that it is handed.
    fn recorded(stage_count: u16) -> (Arc<Mutex<Vec<Vec<u8>>>>, Memory) {
        let frames = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&frames);
        let sink = Box::new(move |frame: &[u8]| to.lock().unwrap().push(frame.to_vec()));
        (frames, Memory::new(stage_count, 1500).unwrap().with_sink(sink))
    }

    #[test]
    fn nothing_leaves_before_its_commit_and_order_is_the_commits() {
        let (seen, mut port) = recorded(4);
        let first = port.stage_copy(&[1; 60]).unwrap();
        let second = port.stage_copy(&[2; 64]).unwrap();
        let third = port.stage_copy(&[3; 68]).unwrap();
        assert_eq!(port.staged_frame(second), Some(&[2; 64][..]));
        assert!(seen.lock().unwrap().is_empty());
        port.commit(second).unwrap();
        port.abandon(third);
        port.commit(first).unwrap();
        assert_eq!(*seen.lock().unwrap(), [vec![2; 64], vec![1; 60]]);
        assert_eq!(port.staged_frame(second), None);
        assert_eq!(port.commit(second), Err(SendError::NotStaged));
        let counters = port.counters();
        assert_eq!((counters.staged_count, counters.committed_count), (3, 2));
        assert_eq!((counters.abandoned_count, counters.failed_count), (1, 1));
    }

    #[test]
    fn back_pressure_is_programmable() {
        let mut port = Memory::new(4, 1500).unwrap();
        port.set_completion(Completion::AtReap { at_most: 1 });
        for _ in 0..4 {
            let stage = port.stage_copy(&[0; 60]).unwrap();
            port.commit(stage).unwrap();
        }
        assert_eq!(port.occupancy(), Occupancy { free: 0, staged: 0, in_flight: 4 });
        assert_eq!(port.stage_copy(&[0; 60]), Err(StageError::Full));
        assert_eq!(port.reap(), 1);
        assert!(port.stage_copy(&[0; 60]).is_ok());
        port.set_completion(Completion::AtReap { at_most: 0 });
        assert_eq!(port.reap(), 0);
        port.set_completion(Completion::AtCommit);
        assert_eq!(port.reap(), 3);
        assert_eq!(port.occupancy(), Occupancy { free: 3, staged: 1, in_flight: 0 });
    }

    #[test]
    fn a_link_that_is_down_refuses() {
        let (seen, mut port) = recorded(2);
        port.set_link_up(false);
        let stage = port.stage_copy(&[1; 60]).unwrap();
        assert_eq!(port.commit(stage), Err(SendError::LinkDown));
        assert_eq!(port.occupancy().free, 2);
        assert!(seen.lock().unwrap().is_empty() && !port.link_up());
        assert_eq!(port.stage_copy(&[0; 1519]), Err(StageError::TooLong { octets: 1519, octets_max: 1518 }));
    }
}
