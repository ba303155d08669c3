// SPDX-License-Identifier: Apache-2.0
//! A port without a device: frames end in this process.
//!
//! In: staged frames. Out: counts, and on request the frames themselves, recorded (bounded) or handed to a
//! closure at their commit. When buffers come back can be programmed, so that a caller meets back-pressure.
//! No system call, no clock: the simulator and the throughput measurement run on it.

use std::collections::VecDeque;
use std::fmt;

use crate::error::{OpenError, SendError, StageError};
use crate::limits::{CHUNK_OCTETS_MIN, ETHERNET_HEADER_OCTETS, VLAN_TAG_OCTETS};
use crate::stages::{Stages, check_frame};
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

enum Destination {
    Nowhere,
    Record { frames: VecDeque<Vec<u8>>, frames_max: usize },
    Sink(Sink),
}

impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nowhere => "Nowhere",
            Self::Record { .. } => "Record",
            Self::Sink(_) => "Sink",
        })
    }
}

struct Looks(Option<Look>);

impl fmt::Debug for Looks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Looks" } else { "None" })
    }
}

/// The port.
#[derive(Debug)]
pub struct Memory {
    stages: Stages,
    frames: Box<[u8]>,
    chunk_octets: usize,
    capabilities: Capabilities,
    destination: Destination,
    completion: Completion,
    in_flight: VecDeque<u16>,
    refusals: VecDeque<SendError>,
    link_up: bool,
    looks: Looks,
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
                launch_time: false,
            },
            destination: Destination::Nowhere,
            completion: Completion::AtCommit,
            in_flight: VecDeque::with_capacity(count),
            refusals: VecDeque::new(),
            link_up: true,
            looks: Looks(None),
        })
    }

    /// Keeps the newest `frames_max` committed frames. Recording allocates.
    #[must_use]
    pub fn recording(mut self, frames_max: usize) -> Self {
        self.destination = Destination::Record { frames: VecDeque::with_capacity(frames_max), frames_max };
        self
    }

    /// Hands each committed frame to `sink`.
    #[must_use]
    pub fn with_sink(mut self, sink: Sink) -> Self {
        self.destination = Destination::Sink(sink);
        self
    }

    /// Calls `look` at each [`Port::warm_up`].
    #[must_use]
    pub fn with_look(mut self, look: Look) -> Self {
        self.looks = Looks(Some(look));
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

    /// The recorded frames, oldest first; they are forgotten here. Empty unless [`Self::recording`].
    pub fn take_recorded(&mut self) -> Vec<Vec<u8>> {
        match &mut self.destination {
            Destination::Record { frames, .. } => frames.drain(..).collect(),
            Destination::Nowhere | Destination::Sink(_) => Vec::new(),
        }
    }

    fn deliver(destination: &mut Destination, frame: &[u8]) {
        match destination {
            Destination::Nowhere => {}
            Destination::Record { frames, frames_max } => {
                if frames.len() == *frames_max {
                    frames.pop_front();
                }
                if *frames_max > 0 {
                    frames.push_back(frame.to_vec());
                }
            }
            Destination::Sink(sink) => sink(frame),
        }
    }
}

impl Port for Memory {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let start = usize::from(self.stages.next_free()?) * self.chunk_octets;
        let buffer = &mut self.frames[start..start + self.chunk_octets];
        let octets = build(buffer);
        let octets = check_frame(buffer, octets, self.capabilities.frame_octets_max)?;
        self.stages.occupy(octets)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        let octets = self.stages.staged_octets(stage)?;
        let start = stage.index() * self.chunk_octets;
        self.frames.get(start..start + octets)
    }

    #[inline]
    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let launched = self.stages.launch(stage);
        let octets = launched.inspect_err(|_| self.stages.counters.failed_count += 1)?;
        let refusal = if self.link_up { self.refusals.pop_front() } else { Some(SendError::LinkDown) };
        if let Some(error) = refusal {
            self.stages.withdraw(stage);
            self.stages.counters.failed_count += 1;
            return Err(error);
        }
        let start = stage.index() * self.chunk_octets;
        Self::deliver(&mut self.destination, &self.frames[start..start + octets]);
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
        if let Looks(Some(look)) = &mut self.looks {
            look();
        }
    }

    fn abandon(&mut self, stage: StageId) {
        self.stages.abandon(stage);
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

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn link_up(&self) -> bool {
        self.link_up
    }

    fn occupancy(&self) -> Occupancy {
        self.stages.occupancy()
    }

    fn counters(&self) -> Counters {
        self.stages.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn nothing_leaves_before_its_commit_and_order_is_the_commits() {
        let mut port = Memory::new(4, 1500).unwrap().recording(8);
        let first = port.stage_copy(&[1; 60]).unwrap();
        let second = port.stage_copy(&[2; 64]).unwrap();
        let third = port.stage_copy(&[3; 68]).unwrap();
        assert_eq!(port.staged_frame(second), Some(&[2; 64][..]));
        assert!(port.take_recorded().is_empty());
        port.commit(second).unwrap();
        port.abandon(third);
        port.commit(first).unwrap();
        assert_eq!(port.take_recorded(), [vec![2; 64], vec![1; 60]]);
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
    fn a_sink_sees_each_frame_and_a_record_is_bounded() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&seen);
        let mut port =
            Memory::new(2, 1500).unwrap().with_sink(Box::new(move |frame| to.lock().unwrap().push(frame[0])));
        let mut recorder = Memory::new(2, 1500).unwrap().recording(2);
        for n in 0..5 {
            for port in [&mut port, &mut recorder] {
                let stage = port.stage_copy(&[n; 60]).unwrap();
                port.commit(stage).unwrap();
            }
        }
        assert_eq!(*seen.lock().unwrap(), [0, 1, 2, 3, 4]);
        assert_eq!(recorder.take_recorded(), [vec![3; 60], vec![4; 60]]);
    }

    #[test]
    fn a_link_that_is_down_refuses() {
        let mut port = Memory::new(2, 1500).unwrap().recording(2);
        port.set_link_up(false);
        let stage = port.stage_copy(&[1; 60]).unwrap();
        assert_eq!(port.commit(stage), Err(SendError::LinkDown));
        assert_eq!(port.occupancy().free, 2);
        assert!(port.take_recorded().is_empty() && !port.link_up());
        assert_eq!(port.stage_copy(&[0; 1519]), Err(StageError::TooLong { octets: 1519, octets_max: 1518 }));
    }
}
