// SPDX-License-Identifier: Apache-2.0
//! The machines by example, clause by clause, and against a scan of every nanosecond.

mod clauses;
mod scan;

use super::{Gates, Position};
use crate::GateProgram;
use alloc::boxed::Box;
use alloc::vec::Vec;
use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates};
use ktsn_time::{Nanos, Tai};

/// Enabled, all open initially; entries are (gate states, interval).
pub(crate) fn port(base_time: u64, cycle_time: i64, extension: i64, entries: &[(u8, i64)]) -> AdminPort {
    AdminPort {
        gate_enabled: true,
        gate_states: GateStates::ALL_OPEN,
        base_time: Tai::from_nanos(base_time),
        cycle_time: Nanos::new(cycle_time),
        cycle_time_extension: Nanos::new(extension),
        control_list: entries
            .iter()
            .map(|&(states, interval)| GateControlEntry {
                operation: GateOperation::SetGateStates,
                states: GateStates::from_bits(states),
                interval: Nanos::new(interval),
            })
            .collect(),
    }
}

pub(crate) fn program(port: &AdminPort) -> Box<GateProgram> {
    Box::new(GateProgram::new(port).unwrap())
}

impl Gates {
    /// `port` configured at `now` in gates that never ran.
    fn with(port: &AdminPort, now: u64) -> Self {
        let mut gates = Self::default();
        assert!(gates.set_admin(program(port), now).is_none());
        gates
    }

    fn bits(&mut self, now: u64) -> u8 {
        self.advance(now);
        let position = self.position(now);
        self.states(&position).bits()
    }

    /// Gate states at each instant.
    fn bits_over(&mut self, span: core::ops::Range<u64>) -> Vec<u8> {
        span.map(|now| self.bits(now)).collect()
    }

    /// Time until something fits.
    fn after(&self, position: &Position, class: usize, from: u64, need: u64) -> Option<u64> {
        Some(self.next_fit(position, class, from, need)?.after)
    }

    fn at(&mut self, now: u64) -> Position {
        self.advance(now);
        self.position(now)
    }
}
