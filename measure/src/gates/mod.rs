// SPDX-License-Identifier: Apache-2.0
//! When a gate is open, worked out from its list alone: the far end's own calculation.
//!
//! In: the administrative gate parameters (802.1Q-2022 12.29.1). Out: the window of a class at an instant. Nothing of
//! the engine that is judged by it is used here, and nothing here knows of guard bands, cuts or pending changes: it
//! speaks of one list that is in force from its base time on.
//!
//! ```text
//!  base time          cycle               cycle
//!  ├──────────────────┼───────────────────┼──────        entry i begins at the sum of the intervals before it,
//!  │▓▓▓│              │▓▓▓│               │▓▓▓│          the last one lasts to the end of the cycle,
//!  opens_at, closes_at: the maximal span in which the class's gate is open, across entries and cycles
//! ```

mod judge;

pub use judge::{Facts, Figures, Judgement, Verdict, WIRE_LATE_MAX, judge, judge_all, wire_time};

use ktsn_model::{AdminPort, GateFault, TrafficClass};
use ktsn_time::{Nanos, Tai};
use serde::{Deserialize, Serialize};
use std::num::NonZeroU64;

/// The gate schedule of a results document (`parameters.gate_schedule`), which the report draws.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateSchedule {
    /// TAI, nanoseconds.
    pub base_time: u64,
    /// Nanoseconds.
    pub cycle_time: NonZeroU64,
    /// The open windows of the classes within one cycle.
    #[serde(default)]
    pub windows: Vec<GateWindow>,
}

/// A span of the cycle in which the gate of a class is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateWindow {
    /// The traffic class.
    pub class: u8,
    /// Nanoseconds after the beginning of the cycle.
    pub opens_ns: u64,
    /// Nanoseconds after the beginning of the cycle.
    pub closes_ns: u64,
}

/// A span in which a gate is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first instant of the window.
    pub opens_at: Tai,
    /// The first instant after it; [`Tai::MAX`] where the gate never closes.
    pub closes_at: Tai,
}

/// The open spans of one class within a cycle: where they begin, how long they last. One that goes on in the next cycle
/// is longer than what is left of this one.
type Spans = Vec<(Nanos, Nanos)>;

/// The windows of all classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    base_time: Tai,
    cycle_time: Nanos,
    before: u8,
    spans: [Spans; 8],
}

/// Why a list has no windows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowsError {
    /// The list is wrong.
    #[error(transparent)]
    Fault(#[from] GateFault),
    /// Gates are disabled, or the list is empty: there is nothing to judge by.
    #[error("admin-control-list: nothing is gated; expected enabled gates and one entry at least")]
    Ungated,
}

impl Windows {
    /// The windows of `port`, as if its list were in force from its base time on.
    ///
    /// # Errors
    /// [`WindowsError`].
    pub fn of(port: &AdminPort) -> Result<Self, WindowsError> {
        port.check()?;
        if !port.gate_enabled || port.control_list.is_empty() {
            return Err(WindowsError::Ungated);
        }
        Ok(Self {
            base_time: port.base_time,
            cycle_time: port.cycle_time,
            before: port.gate_states.bits(),
            spans: std::array::from_fn(|class| spans(port, class)),
        })
    }

    /// When the first cycle begins.
    #[must_use]
    pub const fn base_time(&self) -> Tai {
        self.base_time
    }

    /// How long a cycle is.
    #[must_use]
    pub const fn cycle_time(&self) -> Nanos {
        self.cycle_time
    }

    /// How far into its cycle `at` is; negative before the base time.
    #[must_use]
    pub fn phase(&self, at: Tai) -> Nanos {
        let since = at.since(self.base_time);
        if since.is_negative() { since } else { Nanos::new(since.get() % self.cycle_time.get()) }
    }

    /// The open spans of `class` in a cycle: offset and length.
    #[must_use]
    pub fn spans(&self, class: TrafficClass) -> &[(Nanos, Nanos)] {
        &self.spans[usize::from(class.get())]
    }

    /// The window of `class` that `at` lies in; `None` when its gate is closed. Before the base time the gates stay at
    /// `admin-gate-states` (8.6.9.4), and the base time is a border.
    #[must_use]
    pub fn at(&self, class: TrafficClass, at: Tai) -> Option<Window> {
        if at < self.base_time {
            let open = self.before >> class.get() & 1 == 1;
            return open.then_some(Window { opens_at: Tai::ZERO, closes_at: self.base_time });
        }
        let phase = self.phase(at);
        for &(offset, length) in self.spans(class) {
            if length == Nanos::MAX {
                return Some(Window { opens_at: self.base_time, closes_at: Tai::MAX });
            }
            // The span of this cycle, and the one of the cycle before that reaches into this.
            for into in [phase, phase.saturating_add(self.cycle_time)] {
                let since = into.saturating_sub(offset);
                if !since.is_negative() && since < length {
                    let opens_at = at.saturating_sub(since).max(self.base_time);
                    return Some(Window {
                        opens_at,
                        closes_at: at.saturating_add(length.saturating_sub(since)),
                    });
                }
            }
        }
        None
    }

    /// The latest instant up to `at` at which the gate of `class` closed; `None` if it has not closed yet.
    #[must_use]
    pub fn closed_before(&self, class: TrafficClass, at: Tai) -> Option<Tai> {
        let phase = self.phase(at);
        if phase.is_negative() {
            return None;
        }
        let ends = self.spans(class).iter().filter(|(_, length)| *length != Nanos::MAX);
        let since = ends
            .map(|&(offset, length)| {
                let end = offset.saturating_add(length);
                let since = phase.saturating_sub(end);
                Nanos::new(since.get().rem_euclid(self.cycle_time.get()))
            })
            .min()?;
        let closed_at = at.saturating_sub(since);
        (closed_at > self.base_time).then_some(closed_at)
    }

    /// Where in a cycle the gate of `class` closes.
    #[must_use]
    pub fn closings(&self, class: TrafficClass) -> Vec<Nanos> {
        let ends = self.spans(class).iter().filter(|(_, length)| *length != Nanos::MAX);
        ends.map(|&(offset, length)| {
            Nanos::new(offset.saturating_add(length).get().rem_euclid(self.cycle_time.get()))
        })
        .collect()
    }
}

/// The spans of one class: neighbouring open entries are one, and so are the last and the first of a cycle.
fn spans(port: &AdminPort, class: usize) -> Spans {
    let cycle = port.cycle_time;
    let mut spans: Spans = Vec::new();
    let mut begins = Nanos::ZERO;
    let last = port.control_list.len() - 1;
    for (index, entry) in port.control_list.iter().enumerate() {
        let ends = if index == last { cycle } else { begins.saturating_add(entry.interval).min(cycle) };
        if begins < ends && entry.states.bits() >> class & 1 == 1 {
            let length = ends.saturating_sub(begins);
            match spans.last_mut() {
                Some((offset, before)) if offset.saturating_add(*before) == begins => {
                    *before = before.saturating_add(length);
                }
                _ => spans.push((begins, length)),
            }
        }
        begins = ends;
    }
    match spans.as_slice() {
        [(_, length)] if *length == cycle => return vec![(Nanos::ZERO, Nanos::MAX)],
        [(Nanos::ZERO, first), .., (offset, length)] if offset.saturating_add(*length) == cycle => {
            let whole = (*offset, length.saturating_add(*first));
            spans.remove(0);
            if let Some(last) = spans.last_mut() {
                *last = whole;
            }
        }
        _ => {}
    }
    spans
}

#[cfg(test)]
mod tests;
