// SPDX-License-Identifier: Apache-2.0
//! The gates of one port over time (802.1Q-2022 clauses 8.6.8.4 and 8.6.9).
//!
//! In: compiled gate parameters, when they were configured, and instants of TAI. Out: which gates are open, until when, and
//! when one is open long enough. Never: reads a clock, allocates, or needs a call for a step of TAI.
//!
//! Everything is a function of the instant that is asked about; only a change that took place is remembered. A
//! [`Position`] is worked out once per instant, and every answer is a span from there, so that no sum can overflow:
//!
//! ```text
//!            base time of oper                   last cycle       change
//!  ──────────────┼────────┬────────┬───────┬────────┼───────────────┼──────────►  TAI
//!    gate_states │ cycle  │ cycle  │ cycle │ cycle  │ last list     │ the pending program
//!    (only after │                                    (cut short or
//!  a step back)                                        extended)
//! ```

pub(crate) mod cycle_timer;
pub(crate) mod list_config;
mod list_execute;
mod open_time;
mod position;
mod program;
mod windows;

pub(crate) use list_execute::Fit;
pub(crate) use position::Position;
pub use program::GateProgram;

use alloc::boxed::Box;
use alloc::sync::Arc;
use ktsn_model::{AdminPort, GateStates};
use ktsn_time::Tai;
use position::{Hint, Region};

/// The program in force.
#[derive(Debug)]
struct Oper {
    program: Box<GateProgram>,
    /// Its ConfigChangeTime: when it took over.
    start: Tai,
    /// OperBaseTime: its cycles count from here. It lies before `start` where TAI has passed it already, which shows
    /// after a step back.
    first: Tai,
}

/// A change to come.
#[derive(Debug)]
struct Pending {
    program: Box<GateProgram>,
    change_at: Tai,
    /// The start of oper's last cycle, where that sees the change.
    last_cycle_start: Option<Tai>,
}

/// The three state machines of a port, and the programs they run.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    oper: Option<Oper>,
    pending: Option<Pending>,
    /// Replaced programs that were not taken yet. Never more than one while a change is pending, so there is always room for the program
    /// that the change replaces.
    retired: [Option<Box<GateProgram>>; 2],
    config_change_error: u64,
    hint: Hint,
    /// The position asked for last, while no program has changed since.
    here: Option<Position>,
}

impl Gates {
    /// Configures `program` at `now`. Returns the displaced pending program, or else one of two retired ones.
    pub(crate) fn set_admin(&mut self, program: Box<GateProgram>, now: Tai) -> Option<Box<GateProgram>> {
        self.advance(now);
        let displaced = match self.pending.take() {
            Some(pending) => Some(pending.program),
            None if self.retired.iter().all(Option::is_some) => self.take_retired(),
            None => None,
        };
        let base_time = program.admin().base_time;
        let change_at = program
            .lists()
            .map_or(now, |lists| list_config::config_change_time(base_time, lists.cycle_time, now));
        let is_enabled = self.oper.as_ref().is_some_and(|oper| oper.program.admin().gate_enabled);
        if program.lists().is_some() && list_config::is_config_change_error(base_time, now, is_enabled) {
            self.config_change_error += 1;
        }
        let last_cycle_start = self.oper.as_ref().and_then(|oper| {
            let lists = oper.program.lists()?;
            cycle_timer::last_cycle_start(oper.first, lists.cycle_time, lists.extension, now, change_at)
        });
        self.here = None;
        self.pending = Some(Pending { program, change_at, last_cycle_start });
        self.advance(now);
        displaced
    }

    /// Lets a change that is due at `now` take place. Returns whether one did.
    pub(crate) fn advance(&mut self, now: Tai) -> bool {
        if self.pending.as_ref().is_none_or(|pending| now < pending.change_at) {
            return false;
        }
        let Some(Pending { program, change_at, .. }) = self.pending.take() else { return false };
        let first = program.admin().base_time.min(change_at);
        if let Some(replaced) = self.oper.replace(Oper { program, start: change_at, first })
            && let Some(place) = self.retired.iter_mut().find(|place| place.is_none())
        {
            *place = Some(replaced.program);
        }
        self.hint = Hint::default();
        self.here = None;
        true
    }

    /// A program that a change replaced.
    pub(crate) fn take_retired(&mut self) -> Option<Box<GateProgram>> {
        self.retired.iter_mut().find_map(Option::take)
    }

    pub(crate) fn config_change_error(&self) -> u64 {
        self.config_change_error
    }

    /// When the pending change takes place.
    pub(crate) fn pending_change_at(&self) -> Option<Tai> {
        Some(self.pending.as_ref()?.change_at)
    }

    /// ConfigChangeTime of oper: when it took over.
    pub(crate) fn oper_start(&self) -> Option<Tai> {
        Some(self.oper.as_ref()?.start)
    }

    pub(crate) fn oper_admin(&self) -> Option<&Arc<AdminPort>> {
        Some(&self.oper.as_ref()?.program.admin)
    }

    pub(crate) fn pending_admin(&self) -> Option<&Arc<AdminPort>> {
        Some(&self.pending.as_ref()?.program.admin)
    }

    /// What is open at `position`.
    pub(crate) fn states(&self, position: &Position) -> GateStates {
        let Some(oper) = &self.oper else { return GateStates::ALL_OPEN };
        match (position.region, oper.program.lists()) {
            (Region::Cycle { entry, .. }, Some(lists)) => lists.cycle.states(entry),
            (Region::Last { entry, .. }, Some(lists)) => lists.last.states(entry),
            _ => oper.program.admin().gate_states,
        }
    }

    /// When the cycle that holds at `position` started.
    pub(crate) fn current_cycle_start(&self, position: &Position) -> Option<Tai> {
        match position.region {
            Region::Cycle { offset, .. } | Region::Last { offset, .. } => Some(position.now.before(offset)),
            Region::Constant | Region::Before { .. } => None,
        }
    }

    /// Where `now` lies. The current instant is looked up fastest, and only once.
    #[inline]
    pub(crate) fn position(&mut self, now: Tai) -> Position {
        match self.here {
            Some(here) if here.now == now => here,
            _ => self.arrive(now),
        }
    }

    fn arrive(&mut self, now: Tai) -> Position {
        let mut hint = self.hint;
        let position = self.locate(now, &mut hint);
        (self.hint, self.here) = (hint, Some(position));
        position
    }

    /// Where an instant other than the current one lies.
    pub(crate) fn position_of(&self, at: Tai) -> Position {
        self.locate(at, &mut Hint::default())
    }
}

#[cfg(test)]
pub(crate) mod tests;
