// SPDX-License-Identifier: Apache-2.0
//! Gate control lists as an administrator asks for them (802.1Q-2022 clauses 8.6.8.4, 8.6.9.4, 12.29).
//!
//! In: values as they were written. Out: the same values, and every fault in them with its field, value and rule.

use alloc::vec::Vec;
use core::fmt;

use ktsn_time::{Nanos, Tai};

use crate::TrafficClass;

/// Which gates are open: bit n is set if traffic class n may transmit (`gate-states-value`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GateStates(u8);

impl GateStates {
    /// Every gate open.
    pub const ALL_OPEN: Self = Self(0xff);
    /// Every gate closed.
    pub const ALL_CLOSED: Self = Self(0);

    /// Bit 7 is class 7.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }
    /// Bit 7 is class 7.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
    /// Whether the gate of `class` is open.
    #[must_use]
    pub const fn is_open(self, class: TrafficClass) -> bool {
        self.0 >> class.get() & 1 == 1
    }
}

impl Default for GateStates {
    fn default() -> Self {
        Self::ALL_OPEN
    }
}

crate::words! {
    /// `operation-name` of an entry (table 8-7). Frame preemption is the MAC's: in software the hold and release
    /// operations set the gate states and nothing else.
    #[derive(Default)]
    pub enum GateOperation {
        /// `set-gate-states`.
        #[default]
        SetGateStates = "set-gate-states",
        /// `set-and-hold-mac`.
        SetAndHoldMac = "set-and-hold-mac",
        /// `set-and-release-mac`.
        SetAndReleaseMac = "set-and-release-mac",
    }
}

/// One entry of a gate control list (`gate-control-entry`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GateControlEntry {
    /// `operation-name`.
    pub operation: GateOperation,
    /// `gate-states-value`.
    pub states: GateStates,
    /// `time-interval-value`: how long the states hold.
    pub interval: Nanos,
}

/// The administrative gate parameters of one port (12.29.1, `gate-parameter-table`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AdminPort {
    /// `gate-enabled`: false means that the gates stay at `gate_states`.
    pub gate_enabled: bool,
    /// `admin-gate-states`: before the first cycle and while gates are disabled.
    pub gate_states: GateStates,
    /// `admin-base-time`.
    pub base_time: Tai,
    /// `admin-cycle-time`, in whole nanoseconds.
    pub cycle_time: Nanos,
    /// `admin-cycle-time-extension`: by how much the last cycle before a change may grow.
    pub cycle_time_extension: Nanos,
    /// `admin-control-list`.
    pub control_list: Vec<GateControlEntry>,
}

impl Default for AdminPort {
    /// Gates disabled, all open.
    fn default() -> Self {
        Self {
            gate_enabled: false,
            gate_states: GateStates::ALL_OPEN,
            base_time: Tai::ZERO,
            cycle_time: Nanos::ZERO,
            cycle_time_extension: Nanos::ZERO,
            control_list: Vec::new(),
        }
    }
}

/// A fault in administrative gate parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateFault {
    /// The leaf at fault.
    pub leaf: &'static str,
    /// Index of the entry at fault in the control list.
    pub entry_index: Option<usize>,
    /// The value found: nanoseconds or a count.
    pub value: i128,
    /// What was expected.
    pub expected: &'static str,
    /// The clause of 802.1Q-2022 that asks for it, or the limit of this implementation.
    pub rule: &'static str,
}

impl fmt::Display for GateFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(index) = self.entry_index {
            write!(f, "admin-control-list[{index}].")?;
        }
        write!(f, "{}: {} found, expected {} ({})", self.leaf, self.value, self.expected, self.rule)
    }
}

impl core::error::Error for GateFault {}

const OWN_LIMIT: &str = "limit of KTSN";

impl AdminPort {
    /// Entries that a control list may have.
    pub const ENTRIES_MAX: usize = 1024;
    /// The shortest cycle.
    pub const CYCLE_TIME_MIN: Nanos = Nanos::from_micros(50);
    /// The longest cycle.
    pub const CYCLE_TIME_MAX: Nanos = Nanos::from_seconds(10);
    /// The latest base time, in nanoseconds.
    pub const BASE_TIME_MAX: u64 = 1 << 62;

    /// The first fault.
    ///
    /// # Errors
    /// The first fault of [`Self::faults`].
    pub fn check(&self) -> Result<(), GateFault> {
        match self.faults().into_iter().next() {
            None => Ok(()),
            Some(fault) => Err(fault),
        }
    }

    /// Everything that is wrong with these parameters, in the order of the leaves.
    #[must_use]
    pub fn faults(&self) -> Vec<GateFault> {
        let mut faults = Vec::new();
        let mut fault = |leaf, entry_index, value: i128, expected, rule| {
            faults.push(GateFault { leaf, entry_index, value, expected, rule });
        };
        if self.base_time.as_nanos() > Self::BASE_TIME_MAX {
            let value = i128::from(self.base_time.as_nanos());
            fault("admin-base-time", None, value, "at most 2^62 ns", OWN_LIMIT);
        }
        let extension = self.cycle_time_extension.get();
        if !(0..=Self::CYCLE_TIME_MAX.get()).contains(&extension) {
            fault(
                "admin-cycle-time-extension",
                None,
                extension.into(),
                "0 ns to 10 s",
                "802.1Q-2022 8.6.9.4",
            );
        }
        let count = self.control_list.len();
        if count > Self::ENTRIES_MAX {
            fault("admin-control-list", None, count as i128, "at most 1024 entries", OWN_LIMIT);
        }
        if count > 0 {
            let cycle = self.cycle_time;
            if cycle < Self::CYCLE_TIME_MIN || cycle > Self::CYCLE_TIME_MAX {
                fault("admin-cycle-time", None, cycle.get().into(), "50 us to 10 s", OWN_LIMIT);
            }
            for (index, entry) in self.control_list.iter().enumerate() {
                let interval = entry.interval;
                if interval <= Nanos::ZERO || interval > Self::CYCLE_TIME_MAX {
                    let expected = "more than 0 ns, at most 10 s";
                    fault(
                        "time-interval-value",
                        Some(index),
                        interval.get().into(),
                        expected,
                        "802.1Q-2022 8.6.9.4",
                    );
                }
            }
        }
        faults
    }
}
