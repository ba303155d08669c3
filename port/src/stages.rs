// SPDX-License-Identifier: Apache-2.0
//! The state of each transmit buffer: free, staged or in flight.
//!
//! In: the adapter's moves. Out: refusals of moves that are not allowed, counters. It holds no frame octets and makes no
//! system call, so all adapters share it, and conservation of buffers is checked in one place.

use crate::error::{OpenError, SendError, StageError};
use crate::limits::{ETHERNET_HEADER_OCTETS, ETHERTYPE_VLAN, STAGE_COUNT_MAX, VLAN_TAG_OCTETS};
use crate::traits::{Builder, Counters, Occupancy, StageId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Staged,
    InFlight,
}

#[derive(Debug)]
pub(crate) struct Stages {
    states: Box<[State]>,
    octets: Box<[u32]>,
    /// Stack of free buffers: the one used last is taken first, its octets are still in the cache.
    free: Vec<u16>,
    staged_count: usize,
    in_flight_count: usize,
    pub(crate) counters: Counters,
}

impl Stages {
    pub(crate) fn new(stage_count: u16) -> Result<Self, OpenError> {
        if !stage_count.is_power_of_two() || stage_count > STAGE_COUNT_MAX {
            return Err(OpenError::StageCount { stage_count });
        }
        let count = usize::from(stage_count);
        Ok(Self {
            states: vec![State::Free; count].into_boxed_slice(),
            octets: vec![0; count].into_boxed_slice(),
            free: (0..stage_count).rev().collect(),
            staged_count: 0,
            in_flight_count: 0,
            counters: Counters::default(),
        })
    }

    /// The buffer that the next frame is built into; it stays free until [`Self::build`].
    pub(crate) fn next_free(&self) -> Result<u16, StageError> {
        self.free.last().copied().ok_or(StageError::Full)
    }

    /// Builds and checks a frame in the octets of the buffer that [`Self::next_free`] named, and marks the buffer as staged.
    pub(crate) fn build(
        &mut self,
        buffer: &mut [u8],
        build: &mut Builder<'_>,
        frame_octets_max: usize,
    ) -> Result<StageId, StageError> {
        let octets = build(buffer);
        self.occupy(check_frame(buffer, octets, frame_octets_max)?)
    }

    /// The buffer of [`Self::next_free`] now holds a frame of `octets`.
    fn occupy(&mut self, octets: usize) -> Result<StageId, StageError> {
        let octets32 = u32::try_from(octets)
            .map_err(|_| StageError::TooLong { octets, octets_max: u32::MAX as usize })?;
        let index = self.free.pop().ok_or(StageError::Full)?;
        self.states[usize::from(index)] = State::Staged;
        self.octets[usize::from(index)] = octets32;
        self.staged_count += 1;
        self.counters.staged_count += 1;
        self.check();
        Ok(StageId(index))
    }

    /// The length of a staged frame, or `None` when `stage` is not one.
    pub(crate) fn staged_octets(&self, stage: StageId) -> Option<usize> {
        match self.states.get(stage.index()) {
            Some(State::Staged) => Some(self.octets[stage.index()] as usize),
            _ => None,
        }
    }

    /// staged → in flight. Returns the frame's length in octets. A stage that is not occupied counts as a failed commit.
    pub(crate) fn launch(&mut self, stage: StageId) -> Result<usize, SendError> {
        let Some(octets) = self.staged_octets(stage) else {
            self.counters.failed_count += 1;
            return Err(SendError::NotStaged);
        };
        self.states[stage.index()] = State::InFlight;
        self.staged_count -= 1;
        self.in_flight_count += 1;
        Ok(octets)
    }

    /// in flight → free, transmitted. `false` for a buffer that is not in flight.
    pub(crate) fn complete(&mut self, index: usize) -> bool {
        if self.states.get(index) != Some(&State::InFlight) {
            self.counters.stray_completion_count += 1;
            return false;
        }
        self.land(index);
        self.counters.completed_count += 1;
        true
    }

    /// in flight → free: the port has accepted the frame, and its buffer is not needed any more.
    pub(crate) fn deliver(&mut self, stage: StageId) {
        self.complete(stage.index());
        self.counters.committed_count += 1;
    }

    /// in flight → free, without having been transmitted: the commit failed.
    pub(crate) fn withdraw(&mut self, stage: StageId) {
        debug_assert_eq!(self.states[stage.index()], State::InFlight, "only a launched frame is withdrawn");
        self.land(stage.index());
        self.counters.failed_count += 1;
    }

    fn land(&mut self, index: usize) {
        self.states[index] = State::Free;
        self.in_flight_count -= 1;
        // The index came out of `states`, whose length was made from a u16.
        self.free.push(index as u16);
        self.check();
    }

    /// staged → free. Nothing happens to any other buffer.
    pub(crate) fn abandon(&mut self, stage: StageId) {
        if self.staged_octets(stage).is_none() {
            return;
        }
        self.states[stage.index()] = State::Free;
        self.staged_count -= 1;
        self.free.push(stage.0);
        self.counters.abandoned_count += 1;
        self.check();
    }

    pub(crate) fn occupancy(&self) -> Occupancy {
        Occupancy { free: self.free.len(), staged: self.staged_count, in_flight: self.in_flight_count }
    }

    fn check(&self) {
        debug_assert_eq!(self.occupancy().total(), self.states.len(), "buffers are conserved");
    }
}

/// Implements the methods of [`Port`](crate::Port) that only look at the fields `stages` and `capabilities`.
macro_rules! stage_methods {
    () => {
        fn abandon(&mut self, stage: StageId) {
            self.stages.abandon(stage);
        }
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }
        fn occupancy(&self) -> Occupancy {
            self.stages.occupancy()
        }
        fn counters(&self) -> Counters {
            self.stages.counters
        }
    };
}
pub(crate) use stage_methods;

/// Checks what a builder wrote into `buffer` against the device's limit: `frame_octets_max` for a frame with an
/// 802.1Q tag, four octets less without. That is the kernel's own rule for packet sockets, applied to all.
fn check_frame(buffer: &[u8], octets: Option<usize>, frame_octets_max: usize) -> Result<usize, StageError> {
    let octets = octets.ok_or(StageError::NotBuilt)?;
    if octets < ETHERNET_HEADER_OCTETS {
        return Err(StageError::TooShort { octets });
    }
    let tagged = buffer.get(12..14) == Some(&ETHERTYPE_VLAN[..]);
    let octets_max = if tagged { frame_octets_max } else { frame_octets_max - VLAN_TAG_OCTETS };
    if octets > octets_max || octets > buffer.len() {
        return Err(StageError::TooLong { octets, octets_max });
    }
    Ok(octets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tag_gives_four_more_octets() {
        let mut buffer = vec![0_u8; 2048];
        assert_eq!(check_frame(&buffer, Some(1514), 1518), Ok(1514));
        assert_eq!(
            check_frame(&buffer, Some(1515), 1518),
            Err(StageError::TooLong { octets: 1515, octets_max: 1514 })
        );
        buffer[12..14].copy_from_slice(&ETHERTYPE_VLAN);
        assert_eq!(check_frame(&buffer, Some(1518), 1518), Ok(1518));
        assert!(check_frame(&buffer, Some(1519), 1518).is_err());
        assert_eq!(check_frame(&buffer, Some(13), 1518), Err(StageError::TooShort { octets: 13 }));
        assert_eq!(check_frame(&buffer, None, 1518), Err(StageError::NotBuilt));
    }

    #[test]
    fn counts_that_are_no_powers_of_two_are_refused() {
        for stage_count in [0, 3, 255, STAGE_COUNT_MAX + 1, 8192] {
            assert_eq!(Stages::new(stage_count).err(), Some(OpenError::StageCount { stage_count }));
        }
    }

    #[test]
    fn a_stage_is_used_up_by_its_commit() {
        let mut stages = Stages::new(2).unwrap();
        let stage = stages.occupy(60).unwrap();
        assert_eq!(stages.launch(stage), Ok(60));
        assert_eq!(stages.launch(stage), Err(SendError::NotStaged));
        assert!(stages.complete(stage.index()));
        assert!(!stages.complete(stage.index()), "completed once only");
        assert!(!stages.complete(77), "out of range");
        assert_eq!(stages.counters.stray_completion_count, 2);
        assert_eq!(stages.launch(StageId(9)), Err(SendError::NotStaged));
    }

    proptest! {
        /// Whatever moves are tried, in whatever order, the buffers are conserved and the counters agree.
        #[test]
        fn buffers_are_conserved(moves in prop::collection::vec((0_u8..4, 0_u16..10), 0..400)) {
            let mut stages = Stages::new(8).unwrap();
            for (kind, index) in moves {
                let stage = StageId(index);
                match kind {
                    0 => { let _ = stages.occupy(60); }
                    1 => { let _ = stages.launch(stage); }
                    2 => { stages.complete(usize::from(index)); }
                    _ => if stages.staged_octets(stage).is_some() { stages.abandon(stage); },
                }
                prop_assert_eq!(stages.occupancy().total(), 8);
            }
            let (now, counters) = (stages.occupancy(), stages.counters);
            let left = counters.abandoned_count + counters.completed_count;
            prop_assert_eq!(counters.staged_count - left, (now.staged + now.in_flight) as u64);
        }
    }
}
