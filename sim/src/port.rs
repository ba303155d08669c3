// SPDX-License-Identifier: Apache-2.0
//! The worker's port in the simulation: the shipped `memory` port, with the virtual link behind it.
//!
//! In: stages and commits of the worker. Out: frames on the virtual wire with their instants, back-pressure from
//! buffers whose last bit has not left, and the errors that the plan asks for.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Weak;

use ktsn_port::memory::{Completion, Memory};
use ktsn_port::{Builder, Capabilities, Counters, Occupancy, Port, SendError, StageError, StageId};

/// What lies behind the port.
pub trait Behind {
    /// The instant.
    fn at(&self) -> u64;
    /// Carrier.
    fn is_up(&self) -> bool;
    /// The worker found no buffer.
    fn port_full(&mut self);
    /// The worker built a frame.
    fn staged(&mut self);
    /// The worker commits a frame on a port of device number `device`: when its last bit leaves, or why it does not.
    ///
    /// # Errors
    /// As the plan has it.
    fn hand_over(&mut self, device: u32, frame: &[u8]) -> Result<u64, SendError>;
}

/// The port.
#[derive(Debug)]
pub struct LinkPort {
    memory: Memory,
    world: Weak<RefCell<dyn Behind>>,
    /// Which device it was opened on.
    device: u32,
    /// When the buffers in flight come back.
    in_flight: VecDeque<u64>,
}

impl LinkPort {
    /// Opens a port on the link of `world`, on its device number `device`.
    ///
    /// # Panics
    /// When the plan's count of buffers is no power of two.
    #[must_use]
    pub fn open(world: Weak<RefCell<dyn Behind>>, device: u32, stages: u16) -> Self {
        let mut memory = Memory::new(stages, 1_500).expect("a power of two");
        memory.set_completion(Completion::AtReap { at_most: 0 });
        Self { memory, world, device, in_flight: VecDeque::with_capacity(usize::from(stages)) }
    }

    /// Calls `act` with the world; a port that outlives it does nothing any more.
    fn with<T>(&self, act: impl FnOnce(&mut dyn Behind) -> T) -> Option<T> {
        Some(act(&mut *self.world.upgrade()?.borrow_mut()))
    }
}

impl Port for LinkPort {
    fn stage(&mut self, build: &mut Builder<'_>) -> Result<StageId, StageError> {
        let staged = self.memory.stage(build);
        self.with(|world| {
            if staged == Err(StageError::Full) {
                world.port_full();
            }
            world.staged();
        });
        staged
    }

    fn staged_frame(&self, stage: StageId) -> Option<&[u8]> {
        self.memory.staged_frame(stage)
    }

    fn commit(&mut self, stage: StageId) -> Result<(), SendError> {
        let Some(frame) = self.memory.staged_frame(stage) else { return self.memory.commit(stage) };
        let handed = self.with(|world| world.hand_over(self.device, frame));
        match handed {
            Some(Ok(until)) => {
                self.in_flight.push_back(until);
                self.memory.commit(stage)
            }
            Some(Err(error)) => {
                self.memory.abandon(stage);
                Err(error)
            }
            None => {
                self.memory.abandon(stage);
                Err(SendError::DeviceGone)
            }
        }
    }

    fn abandon(&mut self, stage: StageId) {
        self.memory.abandon(stage);
    }

    fn reap(&mut self) -> usize {
        let Some(now) = self.with(|world| world.at()) else { return 0 };
        let done = self.in_flight.iter().take_while(|until| **until <= now).count();
        self.in_flight.drain(..done);
        self.memory.set_completion(Completion::AtReap { at_most: done });
        let back = self.memory.reap();
        self.memory.set_completion(Completion::AtReap { at_most: 0 });
        back
    }

    fn capabilities(&self) -> &Capabilities {
        self.memory.capabilities()
    }

    fn link_up(&self) -> bool {
        self.with(|world| world.is_up()).unwrap_or(false)
    }

    fn occupancy(&self) -> Occupancy {
        self.memory.occupancy()
    }

    fn counters(&self) -> Counters {
        self.memory.counters()
    }
}
