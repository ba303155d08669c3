// SPDX-License-Identifier: Apache-2.0
//! The three state machines of 802.1Q-2022 8.6.9 (figures 8-20 to 8-22), polled at every nanosecond.
//!
//! In: administrators' requests and ticks of TAI, one after the other. Out: the operational gate states of each
//! tick. The variables have the clause's names; the conditions are those of the clause, read as the page of
//! rules reads them. Good for lists of a few nanoseconds, which is what makes it obviously right.

use ktsn_model::AdminPort;

/// Variables of 8.6.9.4, of one port.
#[derive(Clone, Debug)]
pub(crate) struct Machines {
    // List config.
    admin: Option<AdminPort>,
    pub(crate) config_pending: bool,
    pub(crate) config_change_time: u64,
    pub(crate) config_change_error: u64,
    new_config_ct: bool,
    /// These machines as they would be if the pending list had never been configured.
    without_pending: Option<Box<Self>>,
    // In force.
    oper: Option<AdminPort>,
    oper_change_time: u64,
    gate_enabled: bool,
    // Cycle timer.
    cycle_start: bool,
    cycle_start_time: u64,
    // List execute.
    list_pointer: usize,
    exit_timer: u64,
    pub(crate) oper_gate_states: u8,
    /// Whether another configuration came into force in this tick.
    pub(crate) changed: bool,
}

impl Machines {
    /// BEGIN: nothing was ever configured.
    pub(crate) fn new() -> Self {
        Self {
            admin: None,
            config_pending: false,
            config_change_time: 0,
            config_change_error: 0,
            new_config_ct: false,
            without_pending: None,
            oper: None,
            oper_change_time: 0,
            gate_enabled: false,
            cycle_start: false,
            cycle_start_time: 0,
            list_pointer: 0,
            exit_timer: 0,
            oper_gate_states: 0xff,
            changed: false,
        }
    }

    /// ConfigChange := TRUE, with these parameters.
    pub(crate) fn config_change(&mut self, admin: &AdminPort, current_time: u64) {
        self.list_config(current_time);
        self.forget_pending();
        if !admin.gate_enabled || admin.control_list.is_empty() {
            // GateEnabled := FALSE leads every machine back to its first state.
            self.config_pending = false;
            self.admin = None;
            self.oper = Some(admin.clone());
            self.gate_enabled = false;
            self.new_config_ct = false;
            self.oper_gate_states = admin.gate_states.bits();
            self.config_change_time = current_time;
            self.changed = true;
            return;
        }
        self.without_pending = Some(Box::new(self.clone()));
        self.set_config_change_time(admin, current_time);
        self.admin = Some(admin.clone());
        self.config_pending = true;
    }

    /// A change that is replaced before its time leaves no trace but its error count.
    fn forget_pending(&mut self) {
        if let Some(without) = self.without_pending.take() {
            *self = Self { config_change_error: self.config_change_error, ..*without };
        }
    }

    /// SetConfigChangeTime() of 8.6.9.3.1.
    fn set_config_change_time(&mut self, admin: &AdminPort, current_time: u64) {
        let base = admin.base_time.as_nanos();
        self.config_change_time = base;
        if base >= current_time {
            return;
        }
        if self.oper.as_ref().is_some_and(|oper| oper.gate_enabled) {
            self.config_change_error += 1;
        }
        while self.config_change_time < current_time {
            self.config_change_time += admin.cycle_time.get().unsigned_abs();
        }
    }

    /// One nanosecond: what holds from `current_time` on.
    pub(crate) fn tick(&mut self, current_time: u64) {
        if let Some(without) = &mut self.without_pending {
            without.tick(current_time);
        }
        self.changed = false;
        self.list_config(current_time);
        self.cycle_timer(current_time);
        self.list_execute();
    }

    /// 8.6.9.3, states CONFIG_PENDING, UPDATE_CONFIG, CONFIG_IDLE.
    fn list_config(&mut self, current_time: u64) {
        if self.config_pending && current_time >= self.config_change_time {
            self.oper = self.admin.take();
            self.config_pending = false;
            self.without_pending = None;
            self.new_config_ct = true;
            self.oper_change_time = self.config_change_time;
        }
    }

    /// 8.6.9.1, states CYCLE_IDLE, SET_CYCLE_START_TIME, START_CYCLE.
    fn cycle_timer(&mut self, current_time: u64) {
        if self.new_config_ct {
            // CYCLE_IDLE; the new cycles begin at config change time, which is now.
            self.new_config_ct = false;
            self.changed = true;
            self.gate_enabled = true;
            self.cycle_start_time = self.oper_change_time;
        }
        if !self.gate_enabled || current_time < self.cycle_start_time {
            return;
        }
        self.cycle_start = true;
        let oper = self.oper.as_ref().unwrap();
        let cycle = oper.cycle_time.get().unsigned_abs();
        let extension = oper.cycle_time_extension.get().unsigned_abs();
        let cut_or_extended =
            self.config_pending && self.config_change_time <= current_time + cycle + extension;
        self.cycle_start_time =
            if cut_or_extended { self.config_change_time } else { self.cycle_start_time + cycle };
    }

    /// 8.6.9.2, states INIT, NEW_CYCLE, EXECUTE_CYCLE, DELAY, END_OF_CYCLE.
    fn list_execute(&mut self) {
        if !self.gate_enabled {
            return;
        }
        let list = &self.oper.as_ref().unwrap().control_list;
        if self.cycle_start {
            self.cycle_start = false;
            self.list_pointer = 0;
            self.exit_timer = 0;
        }
        if self.exit_timer == 0 && self.list_pointer < list.len() {
            self.oper_gate_states = list[self.list_pointer].states.bits();
            self.exit_timer = list[self.list_pointer].interval.get().unsigned_abs();
            self.list_pointer += 1;
        }
        self.exit_timer = self.exit_timer.saturating_sub(1);
    }
}
