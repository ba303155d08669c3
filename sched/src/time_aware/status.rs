// SPDX-License-Identifier: Apache-2.0
//! The state of a port's gates (802.1Q-2022 clause 12.29).

use alloc::sync::Arc;
use ktsn_model::{AdminPort, GateStates, TrafficClass};
use ktsn_time::Tai;

/// The gates of a port at an instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateStatus {
    /// `oper-gate-states`: which gates are open now.
    pub oper_gate_states: GateStates,
    /// `config-pending`: a change is configured and has not taken place.
    pub config_pending: bool,
    /// `config-change-time`: of the pending change, or else when oper took over. `None` before the first change.
    pub config_change_time: Option<Tai>,
    /// `config-change-error`: how many changes were configured with a base time in the past while gates ran.
    pub config_change_error: u64,
    /// When the current cycle started; `None` while no list is executed.
    pub current_cycle_start: Option<Tai>,
    /// The parameters in force (`oper-*`); `None` before the first change.
    pub oper: Option<Arc<AdminPort>>,
    /// The parameters last configured (`admin-*`); `None` if there were none.
    pub admin: Option<Arc<AdminPort>>,
    /// `transmission-overrun` of each class: hand-overs that ended after their window's latest instant.
    pub transmission_overrun: [u64; TrafficClass::COUNT],
}
