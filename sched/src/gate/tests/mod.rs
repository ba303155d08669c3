// SPDX-License-Identifier: Apache-2.0
//! The machines by example, clause by clause, and against a scan of every nanosecond.
//!
//! The examples are plain numbers of nanoseconds; [`Gates`] here takes and returns them.

mod clauses;
mod scan;

use super::Position;
use crate::GateProgram;
use alloc::boxed::Box;
use alloc::vec::Vec;
use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates};
use ktsn_time::{Nanos, Span, Tai};

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

/// A span without end.
const ENDLESS: u64 = u64::MAX;

fn tai(nanos: u64) -> Tai {
    Tai::from_nanos(nanos)
}

fn span(nanos: u64) -> Span {
    Span::from_nanos(nanos)
}

/// The gates under test.
#[derive(Debug, Default)]
struct Gates(super::Gates);

/// A window, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Remaining {
    opens_at: u64,
    rest: u64,
}

/// Where something fits, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Fit {
    after: u64,
    rest: u64,
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

    fn set_admin(&mut self, program: Box<GateProgram>, now: u64) -> Option<Box<GateProgram>> {
        self.0.set_admin(program, tai(now))
    }

    fn advance(&mut self, now: u64) -> bool {
        self.0.advance(tai(now))
    }

    fn position(&mut self, now: u64) -> Position {
        self.0.position(tai(now))
    }

    fn states(&self, position: &Position) -> GateStates {
        self.0.states(position)
    }

    fn take_retired(&mut self) -> Option<Box<GateProgram>> {
        self.0.take_retired()
    }

    fn config_change_error(&self) -> u64 {
        self.0.config_change_error()
    }

    fn pending_change_at(&self) -> Option<u64> {
        self.0.pending_change_at().map(Tai::as_nanos)
    }

    fn oper_start(&self) -> Option<u64> {
        self.0.oper_start().map(Tai::as_nanos)
    }

    fn current_cycle_start(&self, position: &Position) -> Option<u64> {
        self.0.current_cycle_start(position).map(Tai::as_nanos)
    }

    fn window(&self, position: &Position, class: usize) -> Option<Remaining> {
        let window = self.0.window(position, class)?;
        Some(Remaining { opens_at: window.opens_at.as_nanos(), rest: window.rest.as_nanos() })
    }

    fn next_fit(&self, position: &Position, class: usize, from: u64, need: u64) -> Option<Fit> {
        let fit = self.0.next_fit(position, class, span(from), span(need))?;
        Some(Fit { after: fit.after.as_nanos(), rest: fit.rest.as_nanos() })
    }

    fn open_time(&self, class: usize, at: u64, length: u64) -> u64 {
        self.0.open_time(class, tai(at), span(length)).as_nanos()
    }

    fn open_after(&self, class: usize, at: u64, amount: u64) -> Option<u64> {
        Some(self.0.open_after(class, tai(at), span(amount))?.as_nanos())
    }
}

fn config_change_time(base_time: u64, cycle_time: u64, now: u64) -> u64 {
    super::list_config::config_change_time(tai(base_time), span(cycle_time), tai(now)).as_nanos()
}

fn cycle_start(first: u64, cycle_time: u64, now: u64) -> u64 {
    super::cycle_timer::cycle_start(tai(first), span(cycle_time), tai(now)).as_nanos()
}

fn last_cycle_start(
    first: u64,
    cycle_time: u64,
    extension: u64,
    configured_at: u64,
    change_at: u64,
) -> Option<u64> {
    let (cycle_time, extension) = (span(cycle_time), span(extension));
    super::cycle_timer::last_cycle_start(
        tai(first),
        cycle_time,
        extension,
        tai(configured_at),
        tai(change_at),
    )
    .map(Tai::as_nanos)
}
