// SPDX-License-Identifier: Apache-2.0
//! Per-stream filtering and policing (802.1Q-2022 clauses 8.6.5.2 to 8.6.5.5) in front of transmission selection.
//!
//! In: of each frame its stream, priority and lengths, and the instant. Out: whether it goes on, and with which priority.
//! Never: reads a clock, allocates after construction, or lets a stream's excess reach a queue.
//!
//! ```text
//!  frame ─► stream filter ─────────► stream gate ──────────► flow meter ────► TimeAware::offer
//!           first match of           open at this instant?   green, yellow
//!           stream and priority;     IPV for the priority    or red
//!           longest SDU
//! ```
//! A frame that no filter matches goes on as if there were no policing. Gates go by TAI, meters by MONOTONIC: a step of TAI moves
//! windows and adds no tokens.

mod config;
mod filter;
mod gate;
mod identification;
mod meter;

pub use config::{
    FlowMeter, PolicingConfig, PolicingFault, StreamFilter, StreamGate, StreamGateEntry, StreamGateState,
    StreamHandle,
};
pub use gate::StreamGateProgram;
pub use identification::{FlowKey, FrameKey, StreamIdentification, StreamIdentity, StreamMatch};

use alloc::boxed::Box;
use filter::FirstMatch;
use gate::Gate;
use ktsn_model::{DropReason, Priority};
use ktsn_time::Now;
use meter::Meter;

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// The frame goes on to the queue of the class for `priority`: its own, or its stream gate's IPV.
    Pass {
        /// The priority.
        priority: Priority,
    },
    /// The frame is dropped: [`DropReason::Policed`].
    Drop(DropReason),
}

/// What a stream filter has seen (12.31.2). `matching = passing_sdu + not_passing_sdu`, `passing_sdu = passing +
/// not_passing`, and `passing − red` frames went on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterCounters {
    /// `matching-frames-count`.
    pub matching_frames: u64,
    /// `passing-frames-count`: passed the stream gate.
    pub passing_frames: u64,
    /// `not-passing-frames-count`: did not pass the stream gate.
    pub not_passing_frames: u64,
    /// `passing-sdu-count`: not longer than the maximum SDU size.
    pub passing_sdu: u64,
    /// `not-passing-sdu-count`: longer, or blocked because an earlier one was.
    pub not_passing_sdu: u64,
    /// `red-frames-count`: dropped by the flow meter, yellow ones where these are dropped included.
    pub red_frames: u64,
}

/// State of a stream filter, gate or meter that a frame has changed, until it is cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tripped {
    /// `stream-blocked-due-to-oversize-frame`, of a filter.
    pub blocked_due_to_oversize_frame: bool,
    /// `gate-closed-due-to-invalid-rx`, of its gate.
    pub closed_due_to_invalid_rx: bool,
    /// `gate-closed-due-to-octets-exceeded`, of its gate.
    pub closed_due_to_octets_exceeded: bool,
    /// `mark-all-frames-red`, of its meter.
    pub all_frames_red: bool,
}

#[derive(Debug)]
struct Filter {
    config: StreamFilter,
    counters: FilterCounters,
    is_blocked: bool,
}

/// Policing in front of one port.
///
/// # Examples
/// ```
/// use ktsn_model::{DropReason, Priority};
/// use ktsn_sched::policing::{FlowMeter, Judged, Police, PolicingConfig, StreamFilter, StreamHandle};
/// use ktsn_time::Now;
///
/// let mut police = Police::new(&PolicingConfig {
///     stream_filters: vec![StreamFilter { stream: Some(StreamHandle(7)), flow_meter: Some(0), ..StreamFilter::default() }],
///     flow_meters: vec![FlowMeter {
///         committed_information_rate: 1_000_000,
///         committed_burst_size: 1_542,
///         ..FlowMeter::default()
///     }],
///     ..PolicingConfig::default()
/// })?;
/// let (priority, now) = (Priority::capped(3), Now::default());
/// let mut judge = |stream| police.judge(stream, priority, 1_500, 1_542, now);
/// assert_eq!(judge(Some(StreamHandle(7))), Judged::Pass { priority });
/// assert_eq!(judge(Some(StreamHandle(7))), Judged::Drop(DropReason::Policed));
/// assert_eq!(judge(None), Judged::Pass { priority });
/// # Ok::<(), ktsn_sched::policing::PolicingFault>(())
/// ```
#[derive(Debug)]
pub struct Police {
    first_match: FirstMatch,
    filters: Box<[Filter]>,
    gates: Box<[Gate]>,
    meters: Box<[Meter]>,
}

impl Police {
    /// Stream gates are in force from their base time on, meters start with full buckets. Nothing is allocated later.
    ///
    /// # Errors
    /// The first [`PolicingFault`].
    pub fn new(config: &PolicingConfig) -> Result<Self, PolicingFault> {
        config.check()?;
        let filters = config.stream_filters.iter().map(|&config| Filter {
            config,
            counters: FilterCounters::default(),
            is_blocked: false,
        });
        let gates = config.stream_gates.iter().map(|gate| {
            let program = StreamGateProgram::new(gate)?;
            Ok(Gate::new(Box::new(program)))
        });
        Ok(Self {
            first_match: FirstMatch::new(&config.stream_filters),
            filters: filters.collect(),
            gates: gates.collect::<Result<_, _>>()?,
            meters: config.flow_meters.iter().map(|&meter| Meter::new(meter)).collect(),
        })
    }

    /// Index of the stream filter that decides about a frame: the first one that matches its stream and priority.
    #[must_use]
    pub fn filter_of(&self, stream: Option<StreamHandle>, priority: Priority) -> Option<usize> {
        self.first_match.find(stream, priority)
    }

    /// Judge a frame that comes at `now`: `sdu_octets` count for the maximum SDU size and the gate's octets, `wire_octets` for
    /// the meter. What a filter or gate drops takes no tokens.
    pub fn judge(
        &mut self,
        stream: Option<StreamHandle>,
        priority: Priority,
        sdu_octets: u32,
        wire_octets: u32,
        now: Now,
    ) -> Judged {
        match self.filter_of(stream, priority) {
            Some(filter) => self.judge_by(filter, priority, sdu_octets, wire_octets, now),
            None => Judged::Pass { priority },
        }
    }

    /// Judges a frame by `filter`, an index that [`Police::filter_of`] returned.
    pub fn judge_by(
        &mut self,
        filter: usize,
        priority: Priority,
        sdu_octets: u32,
        wire_octets: u32,
        now: Now,
    ) -> Judged {
        const POLICED: Judged = Judged::Drop(DropReason::Policed);
        let Some(filter) = self.filters.get_mut(filter) else { return Judged::Pass { priority } };
        let Filter { config, counters, is_blocked } = filter;
        counters.matching_frames += 1;
        let is_too_long = config.max_sdu_octets.is_some_and(|longest| sdu_octets > longest);
        if is_too_long || *is_blocked {
            *is_blocked |= config.blocked_due_to_oversize_frame_enabled;
            counters.not_passing_sdu += 1;
            return POLICED;
        }
        counters.passing_sdu += 1;
        let mut onward = priority;
        if let Some(gate) = config.stream_gate {
            let Some(priority) = self.gates[gate].judge(priority, sdu_octets, now.tai) else {
                counters.not_passing_frames += 1;
                return POLICED;
            };
            onward = priority;
        }
        counters.passing_frames += 1;
        if let Some(meter) = config.flow_meter
            && !self.meters[meter].judge(wire_octets, now.monotonic)
        {
            counters.red_frames += 1;
            return POLICED;
        }
        Judged::Pass { priority: onward }
    }

    /// What stream filter `filter` has seen.
    #[must_use]
    pub fn counters(&self, filter: usize) -> Option<&FilterCounters> {
        self.filters.get(filter).map(|filter| &filter.counters)
    }

    /// What stands in the way of stream filter `filter` until it is cleared.
    #[must_use]
    pub fn tripped(&self, filter: usize) -> Option<Tripped> {
        let filter = self.filters.get(filter)?;
        let gate = filter.config.stream_gate.map(|gate| self.gates[gate].is_closed_for_good());
        let meter = filter.config.flow_meter.map(|meter| self.meters[meter].are_all_frames_red());
        let (closed_due_to_invalid_rx, closed_due_to_octets_exceeded) = gate.unwrap_or_default();
        Some(Tripped {
            blocked_due_to_oversize_frame: filter.is_blocked,
            closed_due_to_invalid_rx,
            closed_due_to_octets_exceeded,
            all_frames_red: meter.unwrap_or_default(),
        })
    }

    /// Clear what stands in the way of stream filter `filter`, in its gate and meter too.
    pub fn clear(&mut self, filter: usize) {
        let Some(filter) = self.filters.get_mut(filter) else { return };
        filter.is_blocked = false;
        if let Some(gate) = filter.config.stream_gate {
            self.gates[gate].clear();
        }
        if let Some(meter) = filter.config.flow_meter {
            self.meters[meter].clear();
        }
    }

    /// Configures stream gate `gate` at `now`, by the rules of list config (8.6.9.3): it changes at its ConfigChangeTime. Gives back
    /// a program that can be freed elsewhere: `program` itself where there is no such gate.
    pub fn set_stream_gate(
        &mut self,
        gate: usize,
        program: Box<StreamGateProgram>,
        now: Now,
    ) -> Option<Box<StreamGateProgram>> {
        match self.gates.get_mut(gate) {
            Some(gate) => gate.set(program, now.tai),
            None => Some(program),
        }
    }

    /// The program of stream gate `gate` that a change replaced, to be freed elsewhere.
    pub fn take_retired(&mut self, gate: usize) -> Option<Box<StreamGateProgram>> {
        self.gates.get_mut(gate)?.take_retired()
    }

    /// `config-change-error` of stream gate `gate`: how often it was configured with a base time that had passed.
    #[must_use]
    pub fn config_change_error(&self, gate: usize) -> Option<u64> {
        self.gates.get(gate).map(Gate::config_change_error)
    }
}
