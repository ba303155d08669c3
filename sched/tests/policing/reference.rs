// SPDX-License-Identifier: Apache-2.0
//! Policing as the clauses tell it: filters asked one after the other, gates walked cycle by cycle from their first one, buckets
//! in wide integers. Shares no code with the crate beyond the nouns.

use ktsn_model::Priority;
use ktsn_sched::policing::{
    FilterCounters, FlowMeter, PolicingConfig, StreamFilter, StreamGate, StreamGateState, StreamHandle,
    Tripped,
};

/// What holds at an instant: state, IPV, octets that may pass, and which interval it is.
pub(crate) struct Holding {
    pub(crate) is_open: bool,
    pub(crate) ipv: Option<Priority>,
    pub(crate) octet_max: Option<u32>,
    pub(crate) interval: Option<(u64, usize)>,
}

/// A gate and everything that was ever configured. Asked about instants that never go back.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) oper: StreamGate,
    start: u64,
    /// The parameters to come, when they were configured and when they take over.
    pending: Option<(StreamGate, u64, u64)>,
    pub(crate) config_change_error: u64,
    used: Option<((u64, usize), u32)>,
    pub(crate) invalid_rx: bool,
    pub(crate) octets_exceeded: bool,
}

fn nanos(span: ktsn_time::Nanos) -> u64 {
    u64::try_from(span.get()).unwrap()
}

fn runs(gate: &StreamGate) -> bool {
    gate.gate_enabled && !gate.control_list.is_empty()
}

impl Gate {
    pub(crate) fn new(gate: &StreamGate) -> Self {
        Self {
            oper: gate.clone(),
            start: gate.base_time.as_nanos(),
            pending: None,
            config_change_error: 0,
            used: None,
            invalid_rx: false,
            octets_exceeded: false,
        }
    }

    fn change(&mut self, now: u64) {
        if let Some((gate, _, change_at)) = &self.pending
            && *change_at <= now
        {
            (self.oper, self.start, self.used) = (gate.clone(), *change_at, None);
            self.pending = None;
        }
    }

    pub(crate) fn set(&mut self, gate: &StreamGate, now: u64) {
        self.change(now);
        let mut change_at = now;
        if runs(gate) {
            change_at = gate.base_time.as_nanos();
            if change_at < now && self.oper.gate_enabled {
                self.config_change_error += 1;
            }
            while change_at < now {
                change_at += nanos(gate.cycle_time);
            }
        }
        self.pending = Some((gate.clone(), now, change_at));
        self.change(now);
    }

    pub(crate) fn holding(&self, now: u64) -> Holding {
        let gate = &self.oper;
        if !runs(gate) || now < self.start {
            let is_open = gate.gate_state == StreamGateState::Open;
            return Holding { is_open, ipv: gate.ipv, octet_max: None, interval: None };
        }
        let mut start = self.start;
        loop {
            let next = start + nanos(gate.cycle_time);
            let is_last = self.pending.as_ref().is_some_and(|(_, configured_at, change_at)| {
                start >= *configured_at && next + nanos(gate.cycle_time_extension) >= *change_at
            });
            if is_last || now < next {
                break;
            }
            start = next;
        }
        let mut end = start;
        let index = gate.control_list.iter().position(|entry| {
            end += nanos(entry.interval);
            now < end
        });
        let index = index.unwrap_or(gate.control_list.len() - 1);
        let entry = gate.control_list[index];
        Holding {
            is_open: entry.state == StreamGateState::Open,
            ipv: entry.ipv,
            octet_max: entry.interval_octet_max,
            interval: Some((start, index)),
        }
    }

    pub(crate) fn judge(&mut self, priority: Priority, octets: u32, now: u64) -> Option<Priority> {
        self.change(now);
        let holding = self.holding(now);
        let used = match (self.used, holding.interval) {
            (Some((then, used)), Some(interval)) if then == interval => used,
            _ => 0,
        };
        self.used = holding.interval.map(|interval| (interval, used));
        if self.invalid_rx || self.octets_exceeded {
            return None;
        }
        if !holding.is_open {
            self.invalid_rx = self.oper.closed_due_to_invalid_rx_enabled;
            return None;
        }
        if let Some(most) = holding.octet_max {
            if u64::from(used) + u64::from(octets) > u64::from(most) {
                self.octets_exceeded = self.oper.closed_due_to_octets_exceeded_enabled;
                return None;
            }
            self.used = holding.interval.map(|interval| (interval, used + octets));
        }
        Some(holding.ipv.unwrap_or(priority))
    }
}

#[derive(Clone)]
struct Meter {
    config: FlowMeter,
    committed: i128,
    excess: i128,
    last: Option<u64>,
    all_red: bool,
}

const OCTET: i128 = 8_000_000_000;

impl Meter {
    fn passes(&mut self, octets: u32, now: u64) -> bool {
        let span = i128::from(now - self.last.unwrap_or(now));
        self.last = Some(now);
        let committed = self.committed + i128::from(self.config.committed_information_rate) * span;
        let overflow = (committed - i128::from(self.config.committed_burst_size) * OCTET).max(0);
        self.committed = committed - overflow;
        self.excess += i128::from(self.config.excess_information_rate) * span;
        if self.config.coupling_flag {
            self.excess += overflow;
        }
        self.excess = self.excess.min(i128::from(self.config.excess_burst_size) * OCTET);
        let need = i128::from(octets) * OCTET;
        if self.all_red {
            false
        } else if need <= self.committed {
            self.committed -= need;
            true
        } else if need <= self.excess {
            self.excess -= need;
            !self.config.drop_on_yellow
        } else {
            self.all_red = self.config.mark_all_frames_red_enabled;
            false
        }
    }
}

pub(crate) struct Reference {
    filters: Vec<(StreamFilter, FilterCounters, bool)>,
    pub(crate) gates: Vec<Gate>,
    meters: Vec<Meter>,
}

impl Reference {
    pub(crate) fn new(config: &PolicingConfig) -> Self {
        let meter = |&config: &FlowMeter| Meter {
            config,
            committed: i128::from(config.committed_burst_size) * OCTET,
            excess: i128::from(config.excess_burst_size) * OCTET,
            last: None,
            all_red: false,
        };
        Self {
            filters: config.stream_filters.iter().map(|&f| (f, FilterCounters::default(), false)).collect(),
            gates: config.stream_gates.iter().map(Gate::new).collect(),
            meters: config.flow_meters.iter().map(meter).collect(),
        }
    }

    /// The priority that the frame goes on with.
    pub(crate) fn judge(
        &mut self,
        stream: Option<StreamHandle>,
        priority: Priority,
        (sdu_octets, wire_octets): (u32, u32),
        (tai, monotonic): (u64, u64),
    ) -> Option<Priority> {
        let matching = self.filters.iter_mut().find(|(filter, ..)| {
            let stream_matches = match filter.stream {
                None => true,
                wanted => wanted == stream,
            };
            stream_matches && (filter.priority.is_none() || filter.priority == Some(priority))
        });
        let Some((filter, counters, blocked)) = matching else { return Some(priority) };
        counters.matching_frames += 1;
        if *blocked || filter.max_sdu_octets.is_some_and(|most| sdu_octets > most) {
            counters.not_passing_sdu += 1;
            if filter.blocked_due_to_oversize_frame_enabled {
                *blocked = true;
            }
            return None;
        }
        counters.passing_sdu += 1;
        let mut onward = Some(priority);
        if let Some(gate) = filter.stream_gate {
            onward = self.gates[gate].judge(priority, sdu_octets, tai);
        }
        if onward.is_none() {
            counters.not_passing_frames += 1;
            return None;
        }
        counters.passing_frames += 1;
        if let Some(meter) = filter.flow_meter
            && !self.meters[meter].passes(wire_octets, monotonic)
        {
            counters.red_frames += 1;
            return None;
        }
        onward
    }

    pub(crate) fn counters(&self, filter: usize) -> FilterCounters {
        self.filters[filter].1
    }

    pub(crate) fn tripped(&self, filter: usize) -> Tripped {
        let (filter, _, blocked) = &self.filters[filter];
        Tripped {
            blocked_due_to_oversize_frame: *blocked,
            closed_due_to_invalid_rx: filter.stream_gate.is_some_and(|gate| self.gates[gate].invalid_rx),
            closed_due_to_octets_exceeded: filter
                .stream_gate
                .is_some_and(|gate| self.gates[gate].octets_exceeded),
            all_frames_red: filter.flow_meter.is_some_and(|meter| self.meters[meter].all_red),
        }
    }

    pub(crate) fn clear(&mut self, filter: usize) {
        let (filter, _, blocked) = &mut self.filters[filter];
        *blocked = false;
        if let Some(gate) = filter.stream_gate {
            (self.gates[gate].invalid_rx, self.gates[gate].octets_exceeded) = (false, false);
        }
        if let Some(meter) = filter.flow_meter {
            self.meters[meter].all_red = false;
        }
    }
}
