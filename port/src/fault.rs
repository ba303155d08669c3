// SPDX-License-Identifier: Apache-2.0
//! A wrapper that makes a port fail on purpose, the same way for the same seed.
//!
//! In: stages and commits. Out: the port inside, or an error from the plan. A commit that fails by plan abandons
//! the frame inside, so it truly does not go out and its buffer comes back, as [`SendError`] promises.
//! It delays nothing and reads no clock.

use crate::error::{SendError, StageError};
use crate::traits::{Builder, Capabilities, Counters, Occupancy, Port, StageId};

const MILLION: u64 = 1_000_000;

/// How often what fails, in parts per million of the calls.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Stages that find the port full.
    pub full_ppm: u32,
    /// Commits that fail, by error. The sum is at most a million.
    pub commit_ppm: Vec<(SendError, u32)>,
}

/// The wrapper.
#[derive(Debug)]
pub struct Fault<P> {
    port: P,
    plan: Plan,
    random: u64,
    link_up: bool,
    injected_count: u64,
}

impl<P: Port> Fault<P> {
    /// Wraps `port`; equal seeds and equal calls give equal faults.
    pub fn new(port: P, plan: Plan, seed: u64) -> Self {
        Self { port, plan, random: seed, link_up: true, injected_count: 0 }
    }

    /// The port inside.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Follows another plan from now on.
    pub fn set_plan(&mut self, plan: Plan) {
        self.plan = plan;
    }

    /// Drops or restores the link. While it is down every commit fails with [`SendError::LinkDown`].
    pub fn set_link_up(&mut self, link_up: bool) {
        self.link_up = link_up;
    }

    /// Faults injected so far.
    #[must_use]
    pub fn injected_count(&self) -> u64 {
        self.injected_count
    }

    /// The next number below a million (the generator is splitmix64).
    fn draw(&mut self) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.random;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((bits ^ (bits >> 31)) % MILLION) as u32
    }

    fn commit_fault(&mut self) -> Option<SendError> {
        if !self.link_up {
            return Some(SendError::LinkDown);
        }
        let drawn = self.draw();
        let mut below = 0_u32;
        self.plan.commit_ppm.iter().find_map(|(error, ppm)| {
            below = below.saturating_add(*ppm);
            (drawn < below).then_some(*error)
        })
    }
}

impl<P: Port> Port for Fault<P> {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        if self.draw() < self.plan.full_ppm {
            self.injected_count += 1;
            return Err(StageError::Full);
        }
        self.port.stage(build)
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        self.port.staged_frame(stage)
    }

    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        if self.port.staged_frame(stage).is_some()
            && let Some(error) = self.commit_fault()
        {
            self.injected_count += 1;
            self.port.abandon(stage);
            return Err(error);
        }
        self.port.commit(stage)
    }

    fn warm_up(&mut self) {
        self.port.warm_up();
    }

    fn abandon(&mut self, stage: StageId) {
        self.port.abandon(stage);
    }

    fn reap(&mut self) -> usize {
        self.port.reap()
    }

    fn capabilities(&self) -> &Capabilities {
        self.port.capabilities()
    }

    fn link_up(&self) -> bool {
        self.link_up && self.port.link_up()
    }

    fn occupancy(&self) -> Occupancy {
        self.port.occupancy()
    }

    /// The port's own; the faults of the plan are counted there as abandoned.
    fn counters(&self) -> Counters {
        self.port.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    const COUNT: u64 = 10_000;

    fn run(seed: u64) -> (Vec<Result<(), SendError>>, u64, Counters) {
        let plan = Plan {
            full_ppm: 50_000,
            commit_ppm: vec![(SendError::Dropped, 100_000), (SendError::Busy, 20_000)],
        };
        let mut port = Fault::new(Memory::new(2, 1500).unwrap(), plan, seed);
        let mut results = Vec::new();
        let mut full_count = 0;
        for _ in 0..COUNT {
            match port.stage_copy(&[0; 60]) {
                Ok(stage) => results.push(port.commit(stage)),
                Err(error) => {
                    assert_eq!(error, StageError::Full);
                    full_count += 1;
                }
            }
            assert_eq!(port.occupancy().free, 2);
        }
        (results, full_count, port.counters())
    }

    #[test]
    fn faults_come_as_often_as_planned_and_are_never_sent() {
        let (results, full_count, counters) = run(1);
        let count = |wanted| results.iter().filter(|result| **result == wanted).count() as u64;
        let (dropped, busy) = (count(Err(SendError::Dropped)), count(Err(SendError::Busy)));
        assert!((400..600).contains(&full_count), "{full_count}");
        assert!((800..1100).contains(&dropped) && (130..260).contains(&busy), "{dropped} {busy}");
        assert_eq!(counters.committed_count, count(Ok(())));
        assert_eq!(counters.abandoned_count, dropped + busy);
    }

    #[test]
    fn the_seed_decides() {
        assert_eq!(run(7), run(7));
        assert_ne!(run(7).0, run(8).0);
    }

    #[test]
    fn the_link_can_be_dropped() {
        let mut port = Fault::new(Memory::new(2, 1500).unwrap().recording(2), Plan::default(), 0);
        port.set_link_up(false);
        assert!(!port.link_up());
        let stage = port.stage_copy(&[0; 60]).unwrap();
        assert_eq!(port.commit(stage), Err(SendError::LinkDown));
        assert_eq!(port.commit(stage), Err(SendError::NotStaged));
        port.set_link_up(true);
        let stages = [port.stage_copy(&[0; 60]).unwrap(), port.stage_copy(&[1; 60]).unwrap()];
        assert_eq!(port.commit_many(&stages).taken_count, 2);
        assert_eq!(port.inner_mut().take_recorded().len(), 2);
        assert_eq!(port.injected_count(), 1);
    }
}
