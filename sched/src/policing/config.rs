// SPDX-License-Identifier: Apache-2.0
//! What an administrator asks of policing (802.1Q-2022 clause 12.31), and what is wrong with it.
//!
//! In: values as they were written. Out: the same values, and the first fault with its place, value and rule.

use alloc::vec::Vec;
use core::fmt;
use ktsn_model::{AdminPort, Priority};
use ktsn_time::{Nanos, Tai};

/// The stream that a frame belongs to (802.1CB `stream-handle`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamHandle(pub u32);

/// Everything that is policed in front of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicingConfig {
    /// `stream-filter-instance-table`; the first one that matches a frame decides about it.
    pub stream_filters: Vec<StreamFilter>,
    /// `stream-gate-instance-table`.
    pub stream_gates: Vec<StreamGate>,
    /// `flow-meter-instance-table`.
    pub flow_meters: Vec<FlowMeter>,
}

/// `stream-filter-instance` (8.6.5.3, 12.31.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamFilter {
    /// `stream-handle`; `None`: any, also a frame of no known stream.
    pub stream: Option<StreamHandle>,
    /// `priority-spec`; `None`: any.
    pub priority: Option<Priority>,
    /// `max-sdu-size` in octets; `None`: no limit.
    pub max_sdu_octets: Option<u32>,
    /// `stream-blocked-due-to-oversize-frame-enabled`: the first longer frame blocks the filter for good.
    pub blocked_due_to_oversize_frame_enabled: bool,
    /// `stream-gate-ref`: index of a stream gate; `None`: always open.
    pub stream_gate: Option<usize>,
    /// `flow-meter-ref`: index of a flow meter; `None`: unmetered. Filters that name one meter share it.
    pub flow_meter: Option<usize>,
}

ktsn_model::words! {
    /// `gate-states-value` of a stream gate.
    #[derive(Default)]
    pub enum StreamGateState {
        /// Frames pass.
        #[default]
        Open = "open",
        /// Frames are dropped.
        Closed = "closed",
    }
}

/// `gate-control-entry` of a stream gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamGateEntry {
    /// `gate-state-value`.
    pub state: StreamGateState,
    /// `ipv-spec`: the internal priority value that replaces the priority of what passes; `None`: it stays.
    pub ipv: Option<Priority>,
    /// `time-interval-value`.
    pub interval: Nanos,
    /// `interval-octet-max`: octets of service data units that pass in the interval; `None`: no limit.
    pub interval_octet_max: Option<u32>,
}

/// `stream-gate-instance` (8.6.5.4, 12.31.3): the same parameters as a port's gates, for one gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamGate {
    /// `gate-enabled`: false means that the gate stays at `gate_state`.
    pub gate_enabled: bool,
    /// `admin-gate-states`: before the first cycle and while it is not enabled.
    pub gate_state: StreamGateState,
    /// `admin-ipv`, in force with `gate_state`.
    pub ipv: Option<Priority>,
    /// `admin-base-time`.
    pub base_time: Tai,
    /// `admin-cycle-time`.
    pub cycle_time: Nanos,
    /// `admin-cycle-time-extension`.
    pub cycle_time_extension: Nanos,
    /// `admin-control-list`; empty means that the gate stays at `gate_state`.
    pub control_list: Vec<StreamGateEntry>,
    /// `gate-closed-due-to-invalid-rx-enabled`: a frame that comes while the gate is closed closes it for good.
    pub closed_due_to_invalid_rx_enabled: bool,
    /// `gate-closed-due-to-octets-exceeded-enabled`: a frame beyond `interval_octet_max` closes it for good.
    pub closed_due_to_octets_exceeded_enabled: bool,
}

impl Default for StreamGate {
    /// Always open.
    fn default() -> Self {
        Self {
            gate_enabled: false,
            gate_state: StreamGateState::Open,
            ipv: None,
            base_time: Tai::ZERO,
            cycle_time: Nanos::ZERO,
            cycle_time_extension: Nanos::ZERO,
            control_list: Vec::new(),
            closed_due_to_invalid_rx_enabled: false,
            closed_due_to_octets_exceeded_enabled: false,
        }
    }
}

/// `flow-meter-instance` (8.6.5.5, 12.31.4): a bandwidth profile of MEF 10.3, colour-blind.
///
/// Counted are octets on the wire, not those of the frame alone: it is the link that is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowMeter {
    /// `committed-information-rate` (CIR) in bit/s.
    pub committed_information_rate: u64,
    /// `committed-burst-size` (CBS) in octets. A longer frame is never green.
    pub committed_burst_size: u32,
    /// `excess-information-rate` (EIR) in bit/s.
    pub excess_information_rate: u64,
    /// `excess-burst-size` (EBS) in octets. A longer frame is never yellow.
    pub excess_burst_size: u32,
    /// `coupling-flag` (CF): what overflows the committed bucket goes to the excess bucket.
    pub coupling_flag: bool,
    /// `drop-on-yellow`: yellow frames do not pass either.
    pub drop_on_yellow: bool,
    /// `mark-all-frames-red-enabled`: after the first red frame every frame is red.
    pub mark_all_frames_red_enabled: bool,
}

/// A fault in what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicingFault {
    /// The list at fault: `stream-filter`, `stream-gate`, `flow-meter` or `stream-identity`.
    pub list: &'static str,
    /// Index in that list.
    pub index: usize,
    /// Index in the gate's control list.
    pub entry_index: Option<usize>,
    /// The leaf at fault.
    pub leaf: &'static str,
    /// The value found: nanoseconds, octets, a rate, an index or a count.
    pub value: i128,
    /// What was expected.
    pub expected: &'static str,
    /// The clause that asks for it, or the limit of this implementation.
    pub rule: &'static str,
}

impl fmt::Display for PolicingFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}].", self.list, self.index)?;
        if let Some(entry_index) = self.entry_index {
            write!(f, "admin-control-list[{entry_index}].")?;
        }
        write!(f, "{}: {} found, expected {} ({})", self.leaf, self.value, self.expected, self.rule)
    }
}

impl core::error::Error for PolicingFault {}

pub(super) const OWN_LIMIT: &str = "limit of KTSN";

impl PolicingConfig {
    /// Entries that each of the three lists may have.
    pub const INSTANCES_MAX: usize = 256;

    /// The first fault.
    ///
    /// # Errors
    /// [`PolicingFault`] with the place.
    pub fn check(&self) -> Result<(), PolicingFault> {
        let lists = [
            ("stream-filter", self.stream_filters.len()),
            ("stream-gate", self.stream_gates.len()),
            ("flow-meter", self.flow_meters.len()),
        ];
        for (list, count) in lists {
            if count > Self::INSTANCES_MAX {
                return Err(fault(list, Self::INSTANCES_MAX, "count", count, "at most 256", OWN_LIMIT));
            }
        }
        for (index, filter) in self.stream_filters.iter().enumerate() {
            let references = [
                ("stream-gate-ref", filter.stream_gate, self.stream_gates.len(), "802.1Q-2022 12.31.2"),
                ("flow-meter-ref", filter.flow_meter, self.flow_meters.len(), "802.1Q-2022 12.31.2"),
            ];
            for (leaf, reference, count, rule) in references {
                if let Some(reference) = reference.filter(|&reference| reference >= count) {
                    let expected = "the index of one that exists";
                    return Err(fault("stream-filter", index, leaf, reference, expected, rule));
                }
            }
        }
        for (index, gate) in self.stream_gates.iter().enumerate() {
            gate.check().map_err(|fault| PolicingFault { index, ..fault })?;
        }
        for (index, meter) in self.flow_meters.iter().enumerate() {
            meter.check().map_err(|fault| PolicingFault { index, ..fault })?;
        }
        Ok(())
    }
}

impl StreamGate {
    /// The first fault: what [`AdminPort::check`] finds in a port's gate parameters.
    ///
    /// # Errors
    /// [`PolicingFault`] for gate 0.
    pub fn check(&self) -> Result<(), PolicingFault> {
        let control_list = self.control_list.iter().map(|entry| ktsn_model::GateControlEntry {
            operation: ktsn_model::GateOperation::SetGateStates,
            states: ktsn_model::GateStates::ALL_OPEN,
            interval: entry.interval,
        });
        let port = AdminPort {
            gate_enabled: self.gate_enabled,
            gate_states: ktsn_model::GateStates::ALL_OPEN,
            base_time: self.base_time,
            cycle_time: self.cycle_time,
            cycle_time_extension: self.cycle_time_extension,
            control_list: control_list.collect(),
        };
        port.check().map_err(|found| PolicingFault {
            list: "stream-gate",
            index: 0,
            entry_index: found.entry_index,
            leaf: found.leaf,
            value: found.value,
            expected: found.expected,
            rule: found.rule,
        })
    }
}

impl FlowMeter {
    /// The first fault.
    ///
    /// # Errors
    /// [`PolicingFault`] for meter 0: a rate whose bucket holds nothing, so that nothing would ever pass by it.
    pub fn check(&self) -> Result<(), PolicingFault> {
        let buckets = [
            ("committed-burst-size", self.committed_information_rate, self.committed_burst_size),
            ("excess-burst-size", self.excess_information_rate, self.excess_burst_size),
        ];
        for (leaf, rate, size) in buckets {
            if rate > 0 && size == 0 {
                let expected = "at least one frame's octets where the rate is not 0";
                return Err(fault("flow-meter", 0, leaf, 0, expected, "MEF 10.3"));
            }
        }
        Ok(())
    }
}

pub(super) fn fault(
    list: &'static str,
    index: usize,
    leaf: &'static str,
    value: usize,
    expected: &'static str,
    rule: &'static str,
) -> PolicingFault {
    PolicingFault { list, index, entry_index: None, leaf, value: value as i128, expected, rule }
}
