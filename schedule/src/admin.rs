// SPDX-License-Identifier: Apache-2.0
//! What the gates do not execute of a schedule that can be read.

use ktsn_model::{AdminPort, GateFault};

use crate::fault::{Fault, Position};
use crate::schedule::{CLOCK_EXPECTED, CLOCK_RULE, Clock, Schedule};
use crate::units::show_span;

impl Schedule {
    /// What tc and Linux take, and KTSN does not execute: other clocks than TAI, and times beyond the limits of [`AdminPort`]. Empty for what
    /// YAML or JSON said.
    #[must_use]
    pub fn limits(&self) -> Vec<Fault> {
        let mut limits = admin_faults(&self.admin, true, |fault| {
            let index =
                fault.entry_index.map(|index| format!("admin-control-list[{index}].")).unwrap_or_default();
            (Position::NOWHERE, format!("{index}{}", fault.leaf))
        });
        if let Some(clock) =
            self.taprio.as_ref().and_then(|taprio| taprio.clock).filter(|clock| *clock != Clock::Tai)
        {
            limits.push(Fault::new(Position::NOWHERE, "clockid", clock.word(), CLOCK_EXPECTED, CLOCK_RULE));
        }
        limits
    }
}

/// The model's faults, each where `place` says. Rules about values that could not be read are left out.
pub(crate) fn admin_faults(
    admin: &AdminPort,
    is_cycle_time_known: bool,
    place: impl Fn(&GateFault) -> (Position, String),
) -> Vec<Fault> {
    let count = admin.control_list.len();
    let mut faults = Vec::new();
    for fault in admin.faults() {
        if fault.leaf == "admin-cycle-time" && !is_cycle_time_known {
            continue;
        }
        let value = match fault.leaf {
            "admin-control-list" => format!("{count} entries"),
            _ => i64::try_from(fault.value).map_or_else(|_| format!("{} ns", fault.value), show_span),
        };
        let (at, path) = place(&fault);
        faults.push(Fault::new(at, path, value, fault.expected, fault.rule));
    }
    faults
}
