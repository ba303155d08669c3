// SPDX-License-Identifier: Apache-2.0
//! A stream gate (802.1Q-2022 clause 8.6.5.4): open or closed by a gate control list of its own, with the machines of
//! 8.6.9 as for a port.
//!
//! In: a compiled list, and frames with their instants of TAI. Out: whether a frame passes, and the priority it goes on with.
//! Never: reads a clock, allocates or frees; a program that a change replaced is kept until the caller takes it.

use super::config::{PolicingFault, StreamGate, StreamGateEntry, StreamGateState};
use crate::gate::{cycle_timer, list_config};
use alloc::boxed::Box;
use ktsn_model::Priority;
use ktsn_time::{Span, Tai};

/// Parameters of a stream gate, compiled where allocating is allowed.
#[derive(Clone, Debug)]
pub struct StreamGateProgram {
    admin: StreamGate,
    /// Offset into the cycle at which each entry ends.
    ends: Box<[Span]>,
}

impl StreamGateProgram {
    /// Compile `admin`.
    ///
    /// # Errors
    /// The first fault that [`StreamGate::check`] finds.
    pub fn new(admin: &StreamGate) -> Result<Self, PolicingFault> {
        admin.check()?;
        let mut end = Span::ZERO;
        let ends = admin.control_list.iter().map(|entry| {
            end = end.saturating_add(Span::not_negative(entry.interval));
            end
        });
        Ok(Self { ends: ends.collect(), admin: admin.clone() })
    }

    /// What it was made from.
    #[must_use]
    pub fn admin(&self) -> &StreamGate {
        &self.admin
    }

    fn has_cycles(&self) -> bool {
        self.admin.gate_enabled && !self.ends.is_empty()
    }

    fn cycle_time(&self) -> Span {
        Span::not_negative(self.admin.cycle_time)
    }

    /// The entry at `offset`; the last one holds on beyond its end.
    fn entry_at(&self, offset: Span) -> usize {
        self.ends.partition_point(|&end| end <= offset).min(self.ends.len() - 1)
    }
}

#[derive(Debug)]
struct Pending {
    program: Box<StreamGateProgram>,
    change_at: Tai,
    last_cycle_start: Option<Tai>,
}

/// The state of the gate at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding {
    state: StreamGateState,
    ipv: Option<Priority>,
    octet_max: Option<u32>,
    /// Start of the cycle and index of the entry; `None` outside of cycles.
    interval: Option<(Tai, usize)>,
}

/// A stream gate in operation.
#[derive(Debug)]
pub(super) struct Gate {
    oper: Box<StreamGateProgram>,
    /// The start of oper's first cycle.
    start: Tai,
    pending: Option<Pending>,
    /// Empty while a change is pending, so there is room for what the change replaces.
    retired: Option<Box<StreamGateProgram>>,
    config_change_error: u64,
    /// The interval that `octets_left` belongs to.
    interval: Option<(Tai, usize)>,
    octets_left: u32,
    closed_due_to_invalid_rx: bool,
    closed_due_to_octets_exceeded: bool,
}

impl Gate {
    /// In force from its base time on, however long ago that was.
    pub(super) fn new(program: Box<StreamGateProgram>) -> Self {
        Self {
            start: program.admin.base_time,
            oper: program,
            pending: None,
            retired: None,
            config_change_error: 0,
            interval: None,
            octets_left: 0,
            closed_due_to_invalid_rx: false,
            closed_due_to_octets_exceeded: false,
        }
    }

    /// List config (8.6.9.3): gives back a program that can be freed, the displaced pending one or a retired one.
    pub(super) fn set(
        &mut self,
        program: Box<StreamGateProgram>,
        now: Tai,
    ) -> Option<Box<StreamGateProgram>> {
        self.advance(now);
        let displaced = self.pending.take().map(|pending| pending.program).or_else(|| self.retired.take());
        let base_time = program.admin.base_time;
        let mut change_at = now;
        if program.has_cycles() {
            change_at = list_config::config_change_time(base_time, program.cycle_time(), now);
            let is_running = self.oper.admin.gate_enabled;
            let is_error = list_config::is_config_change_error(base_time, now, is_running);
            self.config_change_error += u64::from(is_error);
        }
        let last_cycle_start = if self.oper.has_cycles() {
            let (cycle_time, extension) = (self.oper.cycle_time(), self.oper.admin.cycle_time_extension);
            let extension = Span::not_negative(extension);
            cycle_timer::last_cycle_start(self.start, cycle_time, extension, now, change_at)
        } else {
            None
        };
        self.pending = Some(Pending { program, change_at, last_cycle_start });
        self.advance(now);
        displaced
    }

    pub(super) fn take_retired(&mut self) -> Option<Box<StreamGateProgram>> {
        self.retired.take()
    }

    pub(super) fn config_change_error(&self) -> u64 {
        self.config_change_error
    }

    /// The change takes place, for good.
    fn advance(&mut self, now: Tai) {
        if let Some(Pending { program, change_at, .. }) = self.pending.take_if(|p| p.change_at <= now) {
            self.retired = Some(core::mem::replace(&mut self.oper, program));
            self.start = change_at;
            self.interval = None;
        }
    }

    fn holding(&self, now: Tai) -> Holding {
        let StreamGate { gate_state, ipv, control_list, .. } = &self.oper.admin;
        if !self.oper.has_cycles() || now < self.start {
            return Holding { state: *gate_state, ipv: *ipv, octet_max: None, interval: None };
        }
        let last = self.pending.as_ref().and_then(|pending| pending.last_cycle_start);
        let cycle_start = last
            .filter(|&last| last <= now)
            .unwrap_or_else(|| cycle_timer::cycle_start(self.start, self.oper.cycle_time(), now));
        let index = self.oper.entry_at(now.span_since(cycle_start));
        let StreamGateEntry { state, ipv, interval_octet_max, .. } = control_list[index];
        Holding { state, ipv, octet_max: interval_octet_max, interval: Some((cycle_start, index)) }
    }

    /// Whether a frame with `sdu_octets` passes at `now`, and with which priority it goes on.
    pub(super) fn judge(&mut self, priority: Priority, sdu_octets: u32, now: Tai) -> Option<Priority> {
        self.advance(now);
        let holding = self.holding(now);
        if holding.interval != self.interval {
            self.interval = holding.interval;
            self.octets_left = holding.octet_max.unwrap_or(0);
        }
        if self.closed_due_to_invalid_rx || self.closed_due_to_octets_exceeded {
            return None;
        }
        if holding.state == StreamGateState::Closed {
            self.closed_due_to_invalid_rx = self.oper.admin.closed_due_to_invalid_rx_enabled;
            return None;
        }
        if holding.octet_max.is_some() {
            let Some(left) = self.octets_left.checked_sub(sdu_octets) else {
                self.closed_due_to_octets_exceeded = self.oper.admin.closed_due_to_octets_exceeded_enabled;
                return None;
            };
            self.octets_left = left;
        }
        Some(holding.ipv.unwrap_or(priority))
    }

    /// Whether a frame that was not meant to come has closed it.
    pub(super) fn is_closed_for_good(&self) -> (bool, bool) {
        (self.closed_due_to_invalid_rx, self.closed_due_to_octets_exceeded)
    }

    pub(super) fn clear(&mut self) {
        (self.closed_due_to_invalid_rx, self.closed_due_to_octets_exceeded) = (false, false);
    }
}
