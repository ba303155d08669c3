// SPDX-License-Identifier: Apache-2.0
//! A worker's surroundings in miniature: two clocks that advance and step, and frames with readable fields.

use ktsn_model::{LatePolicy, TrafficClass};
use ktsn_sched::{Decision, Frame, FrameId, TimeAware};
use ktsn_time::{Monotonic, Nanos, Now, Tai, TxTime};

pub(crate) fn mono(at: u64) -> TxTime {
    TxTime::Monotonic(Monotonic::from_nanos(at))
}

pub(crate) fn tai(at: u64) -> TxTime {
    TxTime::Tai(Tai::from_nanos(at))
}

/// Both clocks, in nanoseconds.
pub(crate) fn now(monotonic: u64, tai: u64) -> Now {
    Now { tai: Tai::from_nanos(tai), monotonic: Monotonic::from_nanos(monotonic) }
}

pub(crate) fn class(value: u8) -> TrafficClass {
    TrafficClass::new(value).unwrap()
}

/// An ordinary frame of class 0, sent at monotonic zero, that tolerates everything.
pub(crate) fn frame(id: u64, tx_time: Option<TxTime>) -> Frame {
    Frame {
        id: FrameId(id),
        attachment: 0,
        class: class(0),
        tx_time,
        pushed_at: Monotonic::ZERO,
        wire_octets: 64,
        sdu_octets: 64,
        late: LatePolicy::ByClock,
        overrun_limit: Nanos::MAX,
        horizon: Nanos::MAX,
    }
}

/// Whether the TxTime has come on its own clock; a frame without one may always leave.
pub(crate) fn has_come(tx_time: Option<TxTime>, now: Now) -> bool {
    match tx_time {
        None => true,
        Some(TxTime::Tai(at)) => at <= now.tai,
        Some(TxTime::Monotonic(at)) => at <= now.monotonic,
    }
}

/// Everything that is decided at one instant, the final `WakeAt` or `Idle` included.
pub(crate) fn decide_all(strategy: &mut TimeAware, now: Now) -> Vec<Decision> {
    let mut decisions = Vec::new();
    loop {
        let decision = strategy.decide(now);
        decisions.push(decision);
        if matches!(decision, Decision::WakeAt { .. } | Decision::Idle) {
            return decisions;
        }
    }
}

/// The ids of the frames among `decisions` that were transmitted.
pub(crate) fn transmitted(decisions: &[Decision]) -> Vec<u64> {
    decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Transmit { frame, .. } => Some(frame.id.0),
            _ => None,
        })
        .collect()
}
