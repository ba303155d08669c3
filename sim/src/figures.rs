// SPDX-License-Identifier: Apache-2.0
//! Latency and jitter per class, in whole nanoseconds.

use crate::ledger::Kind;
use crate::world::World;

/// A distribution, by all its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    values: Vec<u64>,
}

impl Distribution {
    fn of(mut values: Vec<u64>) -> Self {
        values.sort_unstable();
        Self { values }
    }

    /// How many values.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.len()
    }

    /// The value that `permille` of a thousand do not exceed; 0 of none.
    #[must_use]
    pub fn quantile(&self, permille: usize) -> u64 {
        let rank = (self.values.len() * permille).div_ceil(1_000);
        self.values.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// The greatest; 0 of none.
    #[must_use]
    pub fn max(&self) -> u64 {
        self.values.last().copied().unwrap_or(0)
    }
}

/// One class of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassFigures {
    /// The class.
    pub class: u8,
    /// Frames on time that were pushed.
    pub pushed: usize,
    /// handed_at − tx_time.
    pub transmit_error: Distribution,
    /// First bit − tx_time.
    pub wire_offset: Distribution,
    /// How much the first bit's offset changes from one frame of a tenant to its next.
    pub wire_jitter: Distribution,
}

/// All classes of a run, the highest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// The classes that were used.
    pub classes: Vec<ClassFigures>,
}

impl Figures {
    /// Reads them from the truth.
    #[must_use]
    pub fn of(world: &World) -> Self {
        let mut classes = Vec::new();
        for class in (0..8u8).rev() {
            let mut errors = Vec::new();
            let mut offsets = Vec::new();
            let mut jitters = Vec::new();
            let mut pushed = 0;
            let mut last: Vec<Option<u64>> = vec![None; world.tenants.len()];
            let good = |f: &&crate::ledger::Frame| f.class == class && f.kind == Kind::Good && !f.at_once();
            for frame in world.ledger.frames.iter().filter(good) {
                pushed += usize::from(frame.published_at.is_some());
                let before = &mut last[usize::from(frame.tenant)];
                let (Some(arrival), Some(error)) = (frame.arrival, frame.error()) else {
                    *before = None;
                    continue;
                };
                let error = u64::try_from(error).unwrap_or(0);
                let offset = error + (arrival.wire_from - arrival.handed.monotonic.as_nanos());
                if let Some(before) = before.replace(offset) {
                    jitters.push(offset.abs_diff(before));
                }
                errors.push(error);
                offsets.push(offset);
            }
            if pushed > 0 {
                classes.push(ClassFigures {
                    class,
                    pushed,
                    transmit_error: Distribution::of(errors),
                    wire_offset: Distribution::of(offsets),
                    wire_jitter: Distribution::of(jitters),
                });
            }
        }
        Self { classes }
    }
}
