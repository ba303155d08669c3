// SPDX-License-Identifier: Apache-2.0
//! Administrative gate parameters, compiled for look-ups.
//!
//! In: an [`AdminPort`]. Out: a value that answers in O(log entries). Compiling allocates; using it never does.

use super::list_execute::Timetable;
use alloc::sync::Arc;
use ktsn_model::{AdminPort, GateFault};
use ktsn_time::{Nanos, Span};

/// Gate parameters that a port can run (802.1Q-2022 clauses 8.6.8.4, 8.6.9), compiled where allocating is allowed.
///
/// # Examples
/// ```
/// use ktsn_model::{AdminPort, GateControlEntry, GateOperation, GateStates};
/// use ktsn_sched::GateProgram;
/// use ktsn_time::Nanos;
///
/// let entry = |states, micros| GateControlEntry {
///     operation: GateOperation::SetGateStates,
///     states: GateStates::from_bits(states),
///     interval: Nanos::from_micros(micros),
/// };
/// let mut port = AdminPort {
///     gate_enabled: true,
///     cycle_time: Nanos::from_micros(500),
///     control_list: vec![entry(0x80, 100), entry(0x7f, 400)],
///     ..AdminPort::default()
/// };
/// assert_eq!(GateProgram::new(&port)?.admin(), &port);
/// port.control_list[1].interval = Nanos::ZERO;
/// assert!(GateProgram::new(&port).is_err());
/// # Ok::<(), ktsn_model::GateFault>(())
/// ```
#[derive(Debug)]
pub struct GateProgram {
    pub(super) admin: Arc<AdminPort>,
    lists: Option<Lists>,
}

/// The lists that an enabled program with entries executes.
#[derive(Debug)]
pub(super) struct Lists {
    pub(super) cycle_time: Span,
    pub(super) extension: Span,
    /// The list as it is repeated.
    pub(super) cycle: Timetable,
    /// The list in the last cycle before a change: what it holds beyond the cycle time counts, and its last entry has no end.
    pub(super) last: Timetable,
}

impl GateProgram {
    /// Compile `admin`.
    ///
    /// # Errors
    /// [`GateFault`] for what cannot be executed at all: more than 1,024 entries, an interval that is not positive, an
    /// extension below 0, or entries with a cycle time that is not positive. Whether it is a sensible schedule is
    /// [`AdminPort::check`]'s to say.
    pub fn new(admin: &AdminPort) -> Result<Self, GateFault> {
        let fault = |leaf, entry_index, value: i64, expected, rule| {
            Err(GateFault { leaf, entry_index, value: value.into(), expected, rule })
        };
        let (cycle, extension) = (admin.cycle_time, admin.cycle_time_extension);
        if extension.is_negative() {
            let leaf = "admin-cycle-time-extension";
            return fault(leaf, None, extension.get(), "at least 0 ns", "802.1Q-2022 8.6.9.4");
        }
        let entries = &admin.control_list;
        if entries.len() > AdminPort::ENTRIES_MAX {
            let count = entries.len() as i64;
            return fault("admin-control-list", None, count, "at most 1024 entries", "limit of KTSN");
        }
        if !entries.is_empty() && cycle <= Nanos::ZERO {
            return fault("admin-cycle-time", None, cycle.get(), "more than 0 ns", "802.1Q-2022 8.6.9.4");
        }
        if let Some(index) = entries.iter().position(|entry| entry.interval <= Nanos::ZERO) {
            let interval = entries[index].interval.get();
            let leaf = "time-interval-value";
            return fault(leaf, Some(index), interval, "more than 0 ns", "802.1Q-2022 8.6.9.4");
        }
        let lists = (admin.gate_enabled && !entries.is_empty()).then(|| {
            let cycle_time = Span::not_negative(cycle);
            Lists {
                cycle_time,
                extension: Span::not_negative(extension),
                cycle: Timetable::new(entries, Some(cycle_time)),
                last: Timetable::new(entries, None),
            }
        });
        Ok(Self { admin: Arc::new(admin.clone()), lists })
    }

    /// The parameters that it was compiled from.
    #[must_use]
    pub fn admin(&self) -> &AdminPort {
        &self.admin
    }

    /// What is executed; `None` where the gates stay at `gate_states`.
    pub(super) fn lists(&self) -> Option<&Lists> {
        self.lists.as_ref()
    }

    /// Whether the gate of `class` is open where no list is executed.
    pub(super) fn is_open_initially(&self, class: usize) -> bool {
        self.admin.gate_states.bits() >> class & 1 == 1
    }
}
